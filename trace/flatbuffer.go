package trace

// This file reads flatbuffers, the format of an Arrow message's metadata. What it reads may contradict
// itself: the methods panic then, and recoverDamage turns that into an error.

import (
	"fmt"

	flatbuffers "github.com/google/flatbuffers/go"
)

// flat is a table of a flatbuffer.
type flat struct{ flatbuffers.Table }

func rootTable(b []byte) flat {
	return flat{flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}}
}

// slotOf returns where in a table's index the offset of a field is.
func slotOf(field int) flatbuffers.VOffsetT { return flatbuffers.VOffsetT(4 + 2*field) }

// child returns the table in a field, if there is one.
func (t flat) child(field int) (flat, bool) {
	o := flatbuffers.UOffsetT(t.Offset(slotOf(field)))
	if o == 0 {
		return flat{}, false
	}
	return flat{flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(t.Pos + o)}}, true
}

// vector returns where the vector in a field begins, and how many elements it has. All of them lie in
// the buffer.
func (t flat) vector(field, elementBytes int) (begin flatbuffers.UOffsetT, n int) {
	o := flatbuffers.UOffsetT(t.Offset(slotOf(field)))
	if o == 0 {
		return 0, 0
	}
	begin, n = t.Vector(o), t.VectorLen(o)
	if int64(begin)+int64(n)*int64(elementBytes) > int64(len(t.Bytes)) {
		panic(fmt.Sprintf("a list of %d elements in %d bytes", n, len(t.Bytes)))
	}
	return begin, n
}

// children yields the tables in the vector in a field.
func (t flat) children(field int) func(yield func(flat) bool) {
	return func(yield func(flat) bool) {
		begin, n := t.vector(field, flatbuffers.SizeUOffsetT)
		for i := range n {
			at := begin + flatbuffers.UOffsetT(i*flatbuffers.SizeUOffsetT)
			if !yield(flat{flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(at)}}) {
				return
			}
		}
	}
}

// pairs returns the elements of a vector of structs with two numbers each.
func (t flat) pairs(field int) [][2]int64 {
	begin, n := t.vector(field, pairBytes)
	all := make([][2]int64, n)
	for i := range all {
		at := begin + flatbuffers.UOffsetT(i*pairBytes)
		all[i] = [2]int64{t.GetInt64(at), t.GetInt64(at + 8)}
	}
	return all
}

// text returns the text in a field. It shares memory with the buffer.
func (t flat) text(field int) []byte {
	o := t.Offset(slotOf(field))
	if o == 0 {
		return nil
	}
	return t.ByteVector(flatbuffers.UOffsetT(o) + t.Pos)
}
