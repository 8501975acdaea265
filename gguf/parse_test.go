package gguf

// These tests parse files in every encoding, and broken ones of every kind.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"tensorcast/internal/testenv"
)

// encodings are all encodings that a file may have.
var encodings = []struct {
	name    string
	version uint32
	big     bool
}{
	{"v1", 1, false}, {"v2", 2, false}, {"v3", 3, false},
	{"v1 big endian", 1, true}, {"v2 big endian", 2, true}, {"v3 big endian", 3, true},
}

func TestParse(t *testing.T) {
	for _, enc := range encodings {
		version := enc.version
		m := small()
		m.version, m.big = version, enc.big
		b := m.encode()
		f := mustParse(t, b)
		meta, _ := m.meta()
		data := (int64(len(meta)) + 63) / 64 * 64
		if f.Version != version || f.BigEndian != enc.big || f.Size != int64(len(b)) || f.Alignment != 64 ||
			f.DataOffset != data || f.Path != "" {
			t.Errorf("%s: version %d, size %d, alignment %d, data at %d, path %q", enc.name, f.Version, f.Size,
				f.Alignment, f.DataOffset, f.Path)
		}
		want := []Tensor{ // sizes by hand: rows * blocks per row * bytes per block
			{"output.weight", Q6_K, []int64{256, 3}, data, 3 * 210},
			{"token_embd.weight", Q8_0, []int64{32, 3}, data + 640, 3 * 34},
			{"blk.0.attn_norm.weight", F32, []int64{5}, data + 768, 20},
			{"blk.1.ffn_up_exps.weight", Q4_0, []int64{64, 2, 4}, data + 832, 2 * 18 * 8},
			{"blk.1.ffn_up_exps.bias", F32, []int64{2, 4}, data + 1152, 32},
			{"blk.1.odd", F16, []int64{1, 2, 3, 4}, data + 1216, 48},
		}
		if !reflect.DeepEqual(f.Tensors, want) {
			t.Errorf("%s: tensors\n%+v, want\n%+v", enc.name, f.Tensors, want)
		}
		if len(f.Metadata) != len(m.kvs) {
			t.Errorf("%d metadata entries, want %d", len(f.Metadata), len(m.kvs))
		}
	}
}

// A file may list its tensors in another order than it stores them, and leave gaps.
func TestParseOrdersByOffset(t *testing.T) {
	m := small()
	m.tensors = []tensorSpec{
		{name: "c", dims: []uint64{64}, typ: I8, offset: ptr[uint64](256)},
		{name: "a", dims: []uint64{64}, typ: I8, offset: ptr[uint64](0)},
		{name: "b", dims: []uint64{60}, typ: I8, offset: ptr[uint64](64)},
	}
	f := mustParse(t, append(m.encode(), make([]byte, 320)...))
	var names []string
	for _, tensor := range f.Tensors {
		names = append(names, tensor.Name)
	}
	if !reflect.DeepEqual(names, []string{"a", "b", "c"}) {
		t.Errorf("order %q", names)
	}
}

// The first part of a split model may hold metadata alone, and then no padding follows.
func TestParseNoTensors(t *testing.T) {
	m := &model{version: 3, alignment: 32, kvs: []kvSpec{
		{"split.count", ValueUint16, u16(2)},
		{"v.bool", ValueBool, []byte{0}}, // makes the length odd
	}}
	b := m.encode()
	f := mustParse(t, b)
	if f.DataOffset != int64(len(b)) || len(f.Tensors) != 0 {
		t.Errorf("data at %d of %d, %d tensors", f.DataOffset, len(b), len(f.Tensors))
	}
	if n, ok := f.Uint("split.count"); n != 2 || !ok {
		t.Errorf("split.count = %d, %v", n, ok)
	}
	if _, ok := f.At(0); ok {
		t.Error("a file without tensors has a tensor at byte 0")
	}
}

// The result does not depend on how the bytes are split into pieces.
func TestParsePieces(t *testing.T) {
	b := small().encode()
	want := mustParse(t, b)
	wantTokens, _ := want.Strings("tokenizer.ggml.tokens")
	for piece := int64(1); piece < 80; piece++ {
		f, err := parse(bytes.NewReader(b), int64(len(b)), piece)
		if err != nil {
			t.Fatalf("pieces of %d: %v", piece, err)
		}
		tokens, _ := f.Strings("tokenizer.ggml.tokens")
		if !reflect.DeepEqual(f.Tensors, want.Tensors) || !reflect.DeepEqual(f.Metadata, want.Metadata) ||
			!reflect.DeepEqual(tokens, wantTokens) || fingerprint(t, f) != fingerprint(t, want) {
			t.Errorf("pieces of %d change the result", piece)
		}
	}
}

func TestHoles(t *testing.T) {
	set := func(key string, typ ValueType, value []byte) func(*model) {
		return func(m *model) { m.kvs = append(m.kvs, kvSpec{key, typ, value}) }
	}
	alignment := func(typ ValueType, value []byte) func(*model) {
		return func(m *model) { m.kvs[1].typ, m.kvs[1].value = typ, value }
	}
	last := func(edit func(*tensorSpec)) func(*model) {
		return func(m *model) { edit(&m.tensors[len(m.tensors)-1]) }
	}
	dims := func(typ Type, dims ...uint64) func(*model) {
		return last(func(s *tensorSpec) { s.typ, s.dims, s.offset = typ, dims, ptr[uint64](1216) })
	}
	at := func(off uint64) func(*model) { return last(func(s *tensorSpec) { s.offset = &off }) }
	named := func(name string) func(*model) { return last(func(s *tensorSpec) { s.name = name }) }

	tests := []struct {
		name string
		edit func(*model)
		want string
		is   error
	}{
		{"version 0", func(m *model) { m.version = 0 }, "version 0", nil},
		{"version 4", func(m *model) { m.version = 4 }, "version 4", nil},
		{"version 4, big endian", func(m *model) { m.version, m.big = 4, true }, "version 4", nil},
		{"version of all ones", func(m *model) { m.version = math.MaxUint32 }, "version 4294967295", nil},

		{
			"tensor count of all ones", func(m *model) { m.tensorCount = ptr[uint64](math.MaxUint64) },
			"the tensor count", ErrTruncated,
		},
		{
			"tensor count beyond the file", func(m *model) { m.tensorCount = ptr[uint64](1 << 20) },
			"the tensor count", ErrTruncated,
		},
		{
			"tensor count one too many", func(m *model) { m.tensorCount = ptr(uint64(len(m.tensors) + 1)) },
			"overlap", nil, // the padding is a record of zeros
		},
		{
			"metadata count of all ones", func(m *model) { m.kvCount = ptr[uint64](math.MaxUint64) },
			"the metadata count", ErrTruncated,
		},
		{
			"metadata count wraps when multiplied", func(m *model) { m.kvCount = ptr[uint64](1<<63 + 1) },
			"the metadata count", ErrTruncated,
		},

		{"empty key", set("", ValueUint8, []byte{1}), "the key has 0 bytes", nil},
		{"long key", set(strings.Repeat("k", maxName+1), ValueUint8, []byte{1}), "the key has 65536 bytes", nil},
		{"duplicate key", set("v.u8", ValueUint8, []byte{1}), `two metadata entries have the key "v.u8"`, nil},
		{
			"unknown value type", set("k", valueTypeCount, []byte{1}),
			`metadata entry 17 ("k"): unknown value type 13`, nil,
		},
		{"boolean of 2", set("k", ValueBool, []byte{2}), "boolean value is 2", nil},
		{"string beyond the file", set("k", ValueString, u64(1<<20)), "the string of metadata entry 17", ErrTruncated},
		{
			"string of all ones", set("k", ValueString, u64(math.MaxUint64)), "the string of metadata entry 17",
			ErrTruncated,
		},
		{
			"nested array", set("k", ValueArray, array(ValueArray, 1, array(ValueUint8, 1, []byte{1}))),
			"array of arrays", nil,
		},
		{
			"unknown element type", set("k", ValueArray, array(99, 1, []byte{1})),
			"unknown type 99 of array elements", nil,
		},
		{
			"array beyond the file", set("k", ValueArray, array(ValueUint8, 1<<20, nil)), "the array's length",
			ErrTruncated,
		},
		{
			"array length wraps when multiplied", set("k", ValueArray, array(ValueUint64, 1<<61, nil)),
			"the array's length", ErrTruncated,
		},
		{
			"array of strings beyond the file", set("k", ValueArray, array(ValueString, 1<<40, nil)),
			"the array's length", ErrTruncated,
		},
		{
			"string in an array beyond the file",
			set("k", ValueArray, array(ValueString, 2, append(str("x"), u64(1<<40)...))), "a string in the array",
			ErrTruncated,
		},
		{
			"string in an array of all ones", set("k", ValueArray, array(ValueString, 1, u64(math.MaxUint64))),
			"a string in the array", ErrTruncated,
		},

		{"alignment 0", alignment(ValueUint32, u32(0)), "the alignment is 0", nil},
		{"alignment 7", alignment(ValueUint32, u32(7)), "the alignment is 7", nil},
		{"alignment 48", alignment(ValueUint32, u32(48)), "the alignment is 48", nil},
		{"alignment 2^30", alignment(ValueUint32, u32(1<<30)), "the alignment is 1073741824", nil},
		{"alignment beyond the file", alignment(ValueUint32, u32(1<<20)), "the padding", ErrTruncated},
		{"alignment of another type", alignment(ValueUint64, u64(64)), "the alignment is of type u64", nil},
		{"alignment as a string", alignment(ValueString, str("64")), "the alignment is of type str", nil},

		{"duplicate tensor name", named("output.weight"), `two tensors have the name "output.weight"`, nil},
		{"five dimensions", dims(F32, 1, 1, 1, 1, 1), `tensor 5 ("blk.1.odd"): 5 dimensions`, nil},
		{"negative dimension", dims(F32, math.MaxUint64), "dimension 0 is 18446744073709551615", nil},
		{"product wraps to 0", dims(F32, 1<<32, 1<<32), "number of elements does not fit", nil},
		{"product wraps to a small number", dims(F32, 1<<62, 4, 1<<60, 16), "number of elements does not fit", nil},
		{"product that wraps beside a 0", dims(F32, 0, 1<<62, 4), "number of elements does not fit", nil},
		{"product of 63 bits, size of 65", dims(F32, 1, 1<<62), "its size does not fit", nil},
		{"row of 65 bits", dims(F32, 1<<62), "does not fit 63 bits", nil},
		{"row not of whole blocks", dims(Q4_K, 255), "not a whole number of Q4_K blocks", nil},
		{
			"unknown type without a byte", dims(Type(43), 32), `tensor "blk.1.odd" begins at byte 2176, where the file ends`,
			ErrTruncated,
		},
		{"type of all ones", dims(Type(math.MaxUint32), 32), "type(4294967295)", nil},
		{"size beyond the file", dims(F32, 1<<40), "tensor 5", ErrTruncated},
		{"offset beyond the file", at(1 << 40), "tensor 5", ErrTruncated},
		{"offset of 64 bits", at(1 << 63), "offset 9223372036854775808 does not fit", nil},
		{"offset plus start wraps", at(math.MaxInt64 &^ 63), "tensor 5", ErrTruncated},
		{"offset not aligned", at(1216 + 1), "offset 1217 is not a multiple of the alignment 64", nil},
		{"same offset twice", at(1152), "overlap", nil},
		{"overlap", at(64), `tensors "output.weight"`, nil},
		{
			"one byte short", func(m *model) { m.missing = 16 + 1 }, `tensor 5 ("blk.1.odd") needs 48 bytes`,
			ErrTruncated,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := small()
			tt.edit(m)
			b := m.encode()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f, err := Parse(bytes.NewReader(b), int64(len(b)))
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatalf("no error; tensors %+v", f.Tensors)
			}
			kinds := 0
			for kind, todo := range advice {
				text := err.Error()
				if errors.Is(err, kind) && strings.HasSuffix(text, "; "+todo) && strings.Count(text, todo) == 1 {
					kinds++
				}
			}
			if kinds != 1 {
				t.Errorf("error %q does not say what to do", err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error %q is not %q", err, tt.is)
			}
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("error %q holds control characters", err)
			}
			if used, limit := after.TotalAlloc-before.TotalAlloc, uint64(12*len(b)+16<<10); used > limit {
				t.Errorf("%d bytes allocated for a file of %d", used, len(b))
			}
		})
	}
	// The fixture itself must be sound, and padding after the last tensor may be absent.
	m := small()
	m.missing = 16
	mustParse(t, m.encode())
}

func TestNotGGUF(t *testing.T) {
	for _, b := range []string{"", "GGU", "GGML\x03\x00\x00\x00", "FUGG\x00\x00\x00\x03", "<!DOCTYPE html>"} {
		_, err := Parse(strings.NewReader(b), int64(len(b)))
		if !errors.Is(err, ErrNotGGUF) {
			t.Errorf("%q: error %v", b, err)
		}
	}
}

// A file that is cut anywhere before the end of the last weight is an error. So is one that ends
// before the size that it had at first.
func TestCutEverywhere(t *testing.T) {
	for _, enc := range encodings {
		m := small()
		m.version, m.big = enc.version, enc.big
		t.Run(enc.name, func(t *testing.T) { testCutEverywhere(t, m) })
	}
}

func testCutEverywhere(t *testing.T, m *model) {
	b := m.encode()
	end := len(b) - 16 // padding after the last tensor
	for n := range end {
		_, err := Parse(bytes.NewReader(b[:n]), int64(n))
		switch {
		case err == nil:
			t.Errorf("cut at byte %d of %d: no error", n, len(b))
		case n < len(magic) && !errors.Is(err, ErrNotGGUF), n >= len(magic) && !errors.Is(err, ErrTruncated):
			t.Errorf("cut at byte %d: %v", n, err)
		}
	}
	meta, _ := m.meta()
	for n := range meta {
		for _, piece := range []int64{16, pieceBytes} {
			_, err := parse(bytes.NewReader(b[:n]), int64(len(b)), piece)
			if !errors.Is(err, ErrTruncated) {
				t.Errorf("shrunk to %d bytes while read in pieces of %d: %v", n, piece, err)
			}
		}
	}
}

// The same holds for metadata that are read in several pieces, and for arrays that are not kept.
func TestCutLongArrays(t *testing.T) {
	testenv.SkipWithRace(t)
	m, _ := arrays(t)
	b := m.encode()
	meta, _ := m.meta()
	for n := 0; n < len(meta); n += 1 + n%61 {
		if _, err := Parse(bytes.NewReader(b[:n]), int64(n)); n >= len(magic) && !errors.Is(err, ErrTruncated) {
			t.Errorf("cut at byte %d of %d: %v", n, len(meta), err)
		}
		if _, err := Parse(bytes.NewReader(b[:n]), int64(len(b))); !errors.Is(err, ErrTruncated) {
			t.Errorf("shrunk to %d bytes of %d: %v", n, len(b), err)
		}
	}
}

// A flipped byte in the metadata gives an error or a consistent table, never a panic.
func TestFlipEverywhere(t *testing.T) {
	for _, enc := range encodings {
		m := small()
		m.version, m.big = enc.version, enc.big
		b := m.encode()
		data := mustParse(t, b).DataOffset
		for i := range data {
			for _, flip := range []byte{0x01, 0x80, 0xff} {
				b[i] ^= flip
				if f, err := Parse(bytes.NewReader(b), int64(len(b))); err == nil {
					checkInvariants(t, f)
				}
				b[i] ^= flip
			}
		}
	}
}

// brokenReader fails from a byte on.
type brokenReader struct {
	b    []byte
	from int64
}

func (r *brokenReader) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > r.from {
		return 0, syscall.EIO
	}
	return bytes.NewReader(r.b).ReadAt(p, off)
}

func TestReadError(t *testing.T) {
	b := small().encode()
	_, err := parse(&brokenReader{b, 200}, int64(len(b)), 64)
	if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), " to 256: input/output error") {
		t.Errorf("error %v, want %v", err, syscall.EIO)
	}
}

// sparse is a file of zeros after its first bytes.
type sparse []byte

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(s)) {
		copy(p, s[off:])
	}
	return len(p), nil
}

// A file that claims to be huge costs nothing to make. So metadata have a limit of their own.
func TestHugeMetadata(t *testing.T) {
	for name, m := range map[string]*model{
		"bytes":   {version: 3, kvs: []kvSpec{{"k", ValueArray, array(ValueUint8, maxMetadata, nil)}}},
		"strings": {version: 3, kvs: []kvSpec{{"k", ValueArray, array(ValueString, 1<<30, nil)}}},
		"entries": {version: 3, kvCount: ptr[uint64](1 << 30)},
		"tensors": {version: 3, tensorCount: ptr[uint64](1 << 30)},
	} {
		if testing.Short() && name == "strings" {
			continue // walks 256 MiB of empty strings
		}
		b, _ := m.meta()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(sparse(b), 1<<42)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if used := after.TotalAlloc - before.TotalAlloc; name != "strings" && used > 256<<10 {
			t.Errorf("%s: %d bytes allocated on a claim", name, used)
		}
		if (name == "bytes" || name == "strings") && !strings.Contains(err.Error(), "larger than 256 MiB") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// However large the weights are, nothing after the metadata's last piece is read.
func TestReadsMetadataOnly(t *testing.T) {
	m := small()
	m.tensors[5].dims = []uint64{1 << 40, 2}
	m.tensors[5].offset = ptr[uint64](1216)
	b := m.encode()
	r := &brokenReader{b, mustParse(t, small().encode()).DataOffset} // a multiple of 64
	f, err := parse(r, 1<<43, 64)
	if err != nil {
		t.Fatal(err)
	}
	if x, ok := f.At(1 << 41); !ok || x.Name != "blk.1.odd" || x.Size != 1<<42 {
		t.Errorf("byte 2^41 is in %+v", x)
	}
}

// Even the densest records take memory in proportion to their bytes.
func TestAllocationBound(t *testing.T) {
	entries := &model{version: 3, alignment: 32}
	tensors := &model{version: 3, alignment: 32}
	for i := range 20000 {
		name := fmt.Sprintf("%x", i)
		entries.kvs = append(entries.kvs, kvSpec{name, ValueUint8, []byte{1}})
		tensors.tensors = append(tensors.tensors, tensorSpec{name: name, dims: []uint64{1}, typ: I8})
	}
	for name, m := range map[string]*model{"entries": entries, "tensors": tensors} {
		b := m.encode()
		meta, _ := m.meta()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		mustParse(t, b)
		runtime.ReadMemStats(&after)
		if ratio := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(meta)); ratio > 20 {
			t.Errorf("%s: allocated %.1f bytes per byte of metadata", name, ratio)
		} else {
			t.Logf("%s: allocated %.1f bytes per byte of metadata", name, ratio)
		}
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.gguf")
	if err := os.WriteFile(path, small().encode(), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	// What was read stays valid when the file is removed.
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if arch, ok := f.String("general.architecture"); f.Path != path || arch != "llama" || !ok {
		t.Errorf("path %q, architecture %q", f.Path, arch)
	}

	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path, want string
		is         error
	}{
		{filepath.Join(dir, "none"), "open " + filepath.Join(dir, "none") + ": no such file", os.ErrNotExist},
		{dir, "not a regular file", nil},
		{fifo, "not a regular file", nil},
		{path, "read " + path, ErrNotGGUF},
	} {
		_, err := Open(tt.path)
		if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%s: error %v, want %q", tt.path, err, tt.want)
		}
	}
}

// Files with as many records as fit the limit for a structure take the memory that was accounted
// for. Files with more are refused.
func TestStructureBound(t *testing.T) {
	testenv.SkipWithRace(t)
	le := binary.LittleEndian
	name := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	entry := func(key string) func([]byte, int) []byte {
		return func(b []byte, i int) []byte {
			return append(le.AppendUint32(name(b, fmt.Sprintf(key, i)), uint32(ValueUint8)), 1)
		}
	}
	tensor := func(called string) func([]byte, int) []byte {
		return func(b []byte, i int) []byte {
			b = le.AppendUint64(le.AppendUint32(name(b, fmt.Sprintf(called, i)), 1), 1)
			return le.AppendUint64(le.AppendUint32(b, uint32(I8)), 32*uint64(i))
		}
	}
	kept := strings.Repeat("x", 1000)
	for what, tt := range map[string]struct {
		records int // that fit
		tensors bool
		record  func(b []byte, i int) []byte
	}{
		"entries":   {maxStructure / (int(entryMemory) + 6 + 1), false, entry("%06x")},
		"long keys": {maxStructure / (int(entryMemory) + 60000 + 1), false, entry("%060000x")},
		"strings": {4 * maxKeptAll / 1000, false, func(b []byte, i int) []byte {
			return name(le.AppendUint32(name(b, fmt.Sprintf("%06x", i)), uint32(ValueString)), kept)
		}},
		"tensors":    {maxStructure / (int(tensorMemory) + 6 + 8), true, tensor("%06x")},
		"long names": {maxStructure / (int(tensorMemory) + 60000 + 8), true, tensor("%060000x")},
	} {
		t.Run(what, func(t *testing.T) {
			var records []byte // one more than fit: what is not counted passes for weights
			for i := range tt.records + 1 {
				records = tt.record(records, i)
			}
			for _, more := range []int{0, 1} {
				n := tt.records + more
				if what == "strings" && more > 0 {
					break // what is not kept costs no memory
				}
				b := le.AppendUint32([]byte(magic), 3)
				counts := [2]uint64{0, uint64(n)}
				if tt.tensors {
					counts = [2]uint64{uint64(n), 0}
				}
				b = le.AppendUint64(le.AppendUint64(b, counts[0]), counts[1])
				b = append(b, records...)
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				f, err := Parse(sparse(b), 1<<32)
				runtime.GC()
				runtime.ReadMemStats(&after)
				if more > 0 {
					if err == nil || !strings.Contains(err.Error(), "takes more than 32 MiB of memory") {
						t.Errorf("%d records: %v", n, err)
					}
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				m := &Model{Files: []*File{f}}
				check(t, m.indexNames())
				runtime.ReadMemStats(&after)
				if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > maxStructure*3/2 ||
					used > 2*f.memory {
					t.Errorf("%d records take %d bytes of memory, accounted for are %d", n, used, f.memory)
				}
				runtime.KeepAlive(m)
				runtime.KeepAlive(b)
			}
		})
	}
}

// A file keeps copies of strings up to a limit for all of them. The others are read when they are asked for.
func TestKeptStringsAreBounded(t *testing.T) {
	const count = maxKeptAll/maxKept + 10
	m := small()
	for i := range count {
		m.kvs = append(m.kvs, kvSpec{fmt.Sprint("long.", i), ValueString, str(string(make([]byte, maxKept)))})
	}
	f := mustParse(t, m.encode())
	if len(f.kept) > maxKeptAll || len(f.kept) < maxKeptAll-maxKept {
		t.Errorf("%d bytes are kept, want nearly %d", len(f.kept), maxKeptAll)
	}
}
