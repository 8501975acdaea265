package gguf

// This file has the cases by which llama.cpp tests its own reader (tests/test-gguf.cpp there), made
// anew, and what this package does with them. ggml_test.go asks the real library.

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// Handcrafted is a file that is made for what a reader does with it.
type Handcrafted struct {
	Name   string
	Bytes  []byte
	Data   bool   // ggml is to read the data, too
	GGML   bool   // whether ggml accepts it
	Varies string // in which way some versions of ggml do otherwise
	Ours   error  // the kind of error of this package; nil if it accepts the file
	Why    string // if the two differ
}

// Handcrafteds are llama.cpp's cases.
func Handcrafteds() (all []Handcrafted) {
	add := func(name string, b []byte, ggml bool, ours error, why string) *Handcrafted {
		all = append(all, Handcrafted{Name: name, Bytes: b, GGML: ggml, Ours: ours, Why: why})
		return &all[len(all)-1]
	}
	header := func(version uint32, tensors, kvs uint64) []byte {
		return slices.Concat([]byte(magic), u32(version), u64(tensors), u64(kvs), make([]byte, 8))
	}
	add("header: bad magic", append([]byte("FUGG"), header(3, 0, 0)[4:]...), false, ErrNotGGUF, "")
	add("header: version 0", header(0, 0, 0), false, ErrUnsupported, "")
	add("header: version 1", slices.Concat([]byte(magic), u32(1), u32(0), u32(0), make([]byte, 16)), false, nil,
		"files of version 1 are still around, and differ only in the width of lengths")
	add("header: a later version", header(4, 0, 0), false, ErrUnsupported, "")
	add("header: too many tensors", header(3, math.MaxUint64, 0), false, ErrTruncated, "")
	add("header: too many metadata", header(3, 0, math.MaxUint64), false, ErrTruncated, "")
	add("header: nothing else", header(3, 0, 0), true, nil, "")

	kv := func(change func(*model)) []byte {
		m := small()
		m.tensors, m.kvs = nil, slices.DeleteFunc(m.kvs, func(kv kvSpec) bool { return kv.key == alignmentKey })
		change(m)
		b, _ := m.meta()
		return append(b, make([]byte, 64)...)
	}
	set := func(key string, typ ValueType, value []byte) func(*model) {
		return func(m *model) { m.kvs = append(m.kvs, kvSpec{key, typ, value}) }
	}
	longKey := kv(func(m *model) { m.kvs = []kvSpec{{"k", ValueUint8, []byte{1}}} })
	copy(longKey[24:], u64(math.MaxUint64))
	add("metadata: length of a key", longKey, false, ErrTruncated, "")
	add("metadata: an empty key", kv(set("", ValueUint8, []byte{1})), false, ErrDamaged, "")
	add("metadata: an unknown type", kv(set("k", valueTypeCount, []byte{1})), false, ErrUnsupported, "")
	add("metadata: a key twice", kv(set("v.u8", ValueUint8, []byte{1})), false, ErrDamaged, "")
	add("metadata: an alignment of 13", kv(set(alignmentKey, ValueUint32, u32(13))), false, ErrDamaged, "")
	add("metadata: an alignment of another type", kv(set(alignmentKey, ValueInt32, u32(32))), false, ErrDamaged,
		"").Varies = "they abort"
	add("metadata: all types", kv(func(*model) {}), true, nil, "")

	// As there, the tensors have no data unless these are what is tested.
	tensors := func(change func(*model)) []byte {
		m := small()
		m.kvs[1].value, m.alignment = u32(32), 32
		change(m)
		b, _ := m.meta()
		return append(b, make([]byte, -int64(len(b))&(m.alignment-1))...)
	}
	first := func(change func(*tensorSpec)) func(*model) { return func(m *model) { change(&m.tensors[0]) } }
	const noData = "ggml looks at no data unless it is to load them, and llama.cpp finds out later"
	add("tensors: a long name", tensors(first(func(s *tensorSpec) { s.name = strings.Repeat("n", 64) })), false,
		ErrTruncated, "")
	add("tensors: five dimensions", tensors(first(func(s *tensorSpec) { s.dims = []uint64{32, 1, 1, 1, 1} })), false,
		ErrUnsupported, "")
	add("tensors: a negative dimension", tensors(first(func(s *tensorSpec) { s.dims = []uint64{math.MaxUint64} })),
		false, ErrDamaged, "")
	add("tensors: dimensions of 0", tensors(func(m *model) {
		for i := range m.tensors {
			m.tensors[i].dims = []uint64{m.tensors[i].dims[0], 0}
		}
	}), true, nil, "").Varies = "they divide by the 0 and end"
	shaped := func(typ Type, n uint64) []byte {
		return tensors(first(func(s *tensorSpec) { s.typ, s.dims = typ, []uint64{n, n} }))
	}
	add("tensors: too many elements", shaped(F32, 1<<33), false, ErrDamaged, "").Varies = "their product wraps to 0"
	add("tensors: too many bytes", shaped(I64, 1<<31), false, ErrDamaged, "")
	add("tensors: a type of nobody", tensors(first(func(s *tensorSpec) { s.typ = 1000 })), false, ErrTruncated, "")
	add("tensors: an offset beyond all", tensors(first(func(s *tensorSpec) { s.offset = ptr[uint64](math.MaxUint64) })),
		false, ErrDamaged, "")
	add("tensors: a name twice", tensors(first(func(s *tensorSpec) { s.name = "token_embd.weight" })), false,
		ErrTruncated, "")
	add("tensors: an alignment of 13", tensors(func(m *model) { m.kvs[1].value = u32(13) }), false, ErrDamaged, "")
	inconsistent := func(m *model) {
		m.alignment = 1
		m.kvs = slices.DeleteFunc(m.kvs, func(kv kvSpec) bool { return kv.key == alignmentKey })
	}
	add("tensors: offsets without the alignment", tensors(inconsistent), false, ErrTruncated, "")
	add("tensors: as they should be", tensors(func(*model) {}), true, ErrTruncated, noData)
	add("tensors: an alignment of 1", tensors(func(m *model) { m.alignment, m.kvs[1].value = 1, u32(1) }), true,
		ErrTruncated, noData)

	data := func(name string, change func(*model), ggml bool, ours error, why string) {
		m := small()
		m.kvs[1].value, m.alignment = u32(32), 32
		change(m)
		add(name, m.encode(), ggml, ours, why).Data = true
	}
	data("data: a byte too few", func(m *model) { m.missing = 1 }, false, nil,
		"what is missing is padding: all weights are there, and llama.cpp runs such a model")
	data("data: an alignment of 13", func(m *model) { m.kvs[1].value = u32(13) }, false, ErrDamaged, "")
	data("data: offsets without the alignment", inconsistent, false, ErrDamaged, "")
	data("data: sizes whose sum overflows", func(m *model) {
		huge := tensorSpec{dims: []uint64{math.MaxInt64 - 63}, typ: I8, bytes: 32}
		m.tensors = []tensorSpec{huge, huge}
		m.tensors[0].name, m.tensors[1].name = "a", "b"
		m.tensors[0].offset, m.tensors[1].offset = ptr[uint64](0), ptr[uint64](math.MaxInt64-63)
	}, false, ErrTruncated, "")
	data("data: as they should be", func(*model) {}, true, nil, "")
	data("data: an alignment of 1", func(m *model) { m.alignment, m.kvs[1].value = 1, u32(1) }, true, nil, "")
	data("data: a long name", func(m *model) { m.tensors[0].name = strings.Repeat("n", 64) }, false, nil,
		"readers other than ggml have no such limit, and --check tells of it")
	data("data: a type of nobody", func(m *model) { m.tensors[0].typ, m.tensors[0].bytes = 1000, 640 }, false, nil,
		"forks have such types, and everything that needs only bytes works")
	data("data: a name twice", func(m *model) { m.tensors[0].name = "token_embd.weight" }, false, ErrDamaged, "")
	return all
}

func TestHandcrafted(t *testing.T) {
	for _, h := range Handcrafteds() {
		t.Run(h.Name, func(t *testing.T) {
			f, err := Parse(bytes.NewReader(h.Bytes), int64(len(h.Bytes)))
			if !errors.Is(err, h.Ours) {
				t.Errorf("%v, want %v", err, h.Ours)
			}
			if err == nil {
				checkInvariants(t, f)
			}
			if (h.Ours == nil) != h.GGML && h.Why == "" {
				t.Error("ggml does otherwise, and no reason is given")
			}
		})
	}
}
