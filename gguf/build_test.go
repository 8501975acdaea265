package gguf

// This file has a writer of GGUF files for the tests. Unlike a real writer, it can write wrong
// values on request.

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
)

// model describes a GGUF file. The zero value of an override means "tell the truth".
type model struct {
	version     uint32
	big         bool  // big endian
	alignment   int64 // of the layout; declare it in kvs
	kvs         []kvSpec
	tensors     []tensorSpec
	tensorCount *uint64
	kvCount     *uint64
	missing     int // bytes to leave out at the end of the data
}

type kvSpec struct {
	key   string
	typ   ValueType
	value []byte // as in a file of version 3, little endian
}

type tensorSpec struct {
	name   string
	dims   []uint64
	typ    Type
	offset *uint64 // relative to the data; nil for the next free
	bytes  int64   // of the data; 0 for what the type and the dimensions say
}

func ptr[T any](v T) *T { return &v }

func u16(v uint16) []byte { return binary.LittleEndian.AppendUint16(nil, v) }
func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
func str(s string) []byte { return append(u64(uint64(len(s))), s...) }

func array(elem ValueType, count uint64, elems []byte) []byte {
	return bytes.Join([][]byte{u32(uint32(elem)), u64(count), elems}, nil)
}

func stringArray(values ...string) []byte {
	var elems []byte
	for _, v := range values {
		elems = append(elems, str(v)...)
	}
	return array(ValueString, uint64(len(values)), elems)
}

// writer encodes numbers as a version of the format does.
type writer struct {
	b    []byte
	big  bool
	wide bool // lengths of 64 bits
}

// number appends a little-endian number in the writer's byte order.
func (w *writer) number(little []byte) {
	first := len(w.b)
	w.b = append(w.b, little...)
	if w.big {
		slices.Reverse(w.b[first:])
	}
}

func (w *writer) length(n uint64) {
	if w.wide {
		w.number(u64(n))
	} else {
		w.number(u32(uint32(n)))
	}
}

func (w *writer) str(s string) {
	w.length(uint64(len(s)))
	w.b = append(w.b, s...)
}

// value appends a value that is encoded as in version 3, little endian, and returns what follows
// it. If the value claims a wrong length, what there is of it is appended.
func (w *writer) value(t ValueType, b []byte) []byte {
	cut := func(n int) []byte {
		n = min(n, len(b))
		head := b[:n]
		b = b[n:]
		return head
	}
	length := func() uint64 {
		l := cut(8)
		if len(l) < 8 {
			return 0
		}
		n := binary.LittleEndian.Uint64(l)
		w.length(n)
		return n
	}
	switch t {
	case ValueString:
		n := length()
		w.b = append(w.b, cut(int(min(n, 1<<30)))...)
	case ValueArray:
		elem := ValueType(binary.LittleEndian.Uint32(b))
		w.number(cut(4))
		for n := length(); n > 0 && len(b) > 0; n-- {
			b = w.value(elem, b)
		}
	case ValueUint16, ValueInt16:
		w.number(cut(2))
	case ValueUint32, ValueInt32, ValueFloat32:
		w.number(cut(4))
	case ValueUint64, ValueInt64, ValueFloat64:
		w.number(cut(8))
	default:
		w.b = append(w.b, cut(1)...)
	}
	return b
}

// meta encodes everything before the padding, and returns the size of the data that the tensors need.
func (m *model) meta() (b []byte, data int64) {
	w := &writer{b: []byte(magic), big: m.big, wide: m.version != 1}
	w.number(u32(m.version))
	tensors, kvs := uint64(len(m.tensors)), uint64(len(m.kvs))
	if m.tensorCount != nil {
		tensors = *m.tensorCount
	}
	if m.kvCount != nil {
		kvs = *m.kvCount
	}
	w.length(tensors)
	w.length(kvs)
	for _, kv := range m.kvs {
		w.str(kv.key)
		w.number(u32(uint32(kv.typ)))
		w.value(kv.typ, kv.value)
	}
	for _, t := range m.tensors {
		w.str(t.name)
		w.number(u32(uint32(len(t.dims))))
		size := int64(1)
		for i, d := range t.dims {
			w.length(d)
			if i > 0 {
				size *= int64(d)
			}
		}
		if len(t.dims) > 0 {
			if row, err := t.typ.RowBytes(int64(t.dims[0])); err == nil {
				size *= row
			}
		}
		if t.bytes > 0 {
			size = t.bytes
		}
		w.number(u32(uint32(t.typ)))
		if t.offset != nil {
			w.number(u64(*t.offset))
			continue
		}
		w.number(u64(uint64(data)))
		data += size + -size&(m.alignment-1)
	}
	return w.b, data
}

// encode is the whole file, with zeros for weights.
func (m *model) encode() []byte {
	b, data := m.meta()
	if len(m.tensors) > 0 {
		b = append(b, make([]byte, -int64(len(b))&(m.alignment-1))...)
	}
	b = append(b, make([]byte, data)...)
	return b[:len(b)-m.missing]
}

// small is a valid model with a value of every type and tensors of several shapes.
func small() *model {
	return &model{
		version:   3,
		alignment: 64,
		kvs: []kvSpec{
			{"general.architecture", ValueString, str("llama")},
			{"general.alignment", ValueUint32, u32(64)},
			{"llama.block_count", ValueUint32, u32(2)},
			{"llama.context_length", ValueUint64, u64(1 << 40)},
			{"split.count", ValueUint16, u16(1)},
			{"v.u8", ValueUint8, []byte{200}},
			{"v.i8", ValueInt8, []byte{0xff}},
			{"v.i16", ValueInt16, u16(300)},
			{"v.i32", ValueInt32, u32(math.MaxUint32)},
			{"v.i64", ValueInt64, u64(7)},
			{"v.f32", ValueFloat32, u32(math.Float32bits(0.5))},
			{"v.f64", ValueFloat64, u64(math.Float64bits(-2))},
			{"v.bool", ValueBool, []byte{1}},
			{"v.empty", ValueString, str("")},
			{"tokenizer.ggml.tokens", ValueArray, stringArray("<s>", "", "héllo", "a longer token than the others")},
			{"tokenizer.ggml.scores", ValueArray, array(ValueFloat32, 4, make([]byte, 16))},
			{"v.none", ValueArray, array(ValueString, 0, nil)},
		},
		tensors: []tensorSpec{
			{name: "output.weight", dims: []uint64{256, 3}, typ: Q6_K},
			{name: "token_embd.weight", dims: []uint64{32, 3}, typ: Q8_0},
			{name: "blk.0.attn_norm.weight", dims: []uint64{5}, typ: F32},
			{name: "blk.1.ffn_up_exps.weight", dims: []uint64{64, 2, 4}, typ: Q4_0},
			{name: "blk.1.ffn_up_exps.bias", dims: []uint64{2, 4}, typ: F32},
			{name: "blk.1.odd", dims: []uint64{1, 2, 3, 4}, typ: F16},
		},
	}
}

func mustParse(tb testing.TB, b []byte) *File {
	tb.Helper()
	f, err := Parse(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		tb.Fatalf("parse: %v", err)
	}
	return f
}

// OfTypes encodes a model with one tensor of each type, of odd sizes. Unknown types are allowed.
func OfTypes(types []Type) []byte {
	m := &model{version: 3, alignment: 32, kvs: []kvSpec{{"general.architecture", ValueString, str("llama")}}}
	for i, t := range types {
		m.tensors = append(m.tensors, tensorSpec{
			name: "blk.0." + t.String(), dims: []uint64{uint64(max(1, t.BlockElems())) * 3, uint64(i + 1), 2}, typ: t,
		})
	}
	return m.encode()
}

// Split cuts a model of version 3, little endian, in parts as llama.cpp's gguf-split does.
func Split(tb testing.TB, b []byte, parts int) (files [][]byte) {
	tb.Helper()
	f := mustParse(tb, b)
	last := f.Metadata[len(f.Metadata)-1]
	for no := range parts {
		m := part(no, parts, len(f.Tensors))
		m.kvs, m.tensors, m.alignment = m.kvs[:3], nil, f.Alignment
		var data []byte
		for _, t := range f.Tensors[no*len(f.Tensors)/parts : (no+1)*len(f.Tensors)/parts] {
			spec := tensorSpec{name: t.Name, typ: t.Type}
			for _, n := range t.Shape {
				spec.dims = append(spec.dims, uint64(n))
			}
			m.tensors = append(m.tensors, spec)
			data = append(data, b[t.Offset:t.End()]...)
			data = append(data, make([]byte, -int64(len(data))&(f.Alignment-1))...)
		}
		head, size := m.meta()
		if no == 0 { // all metadata of the model come after those of the part
			own, _ := (&model{version: 3, kvs: m.kvs}).meta()
			records := head[len(own):]
			binary.LittleEndian.PutUint64(own[8:], uint64(len(m.tensors)))
			binary.LittleEndian.PutUint64(own[16:], uint64(len(m.kvs)+len(f.Metadata)))
			head = slices.Concat(own, b[24:last.off+last.size], records)
		}
		if size != int64(len(data)) {
			tb.Fatalf("part %d has %d bytes of weights, want %d", no, len(data), size)
		}
		head = append(head, make([]byte, -int64(len(head))&(f.Alignment-1))...)
		files = append(files, append(head, data...))
	}
	return files
}
