package gguf

// This test parses any bytes, and checks that the result keeps the promises of File.

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
)

// checkInvariants checks everything that the package promises of a file.
func checkInvariants(t *testing.T, f *File) {
	t.Helper()
	if f.DataOffset < 16 || f.DataOffset > f.Size {
		t.Fatalf("data at %d of %d", f.DataOffset, f.Size)
	}
	end := f.DataOffset
	for i := range f.Tensors {
		x := &f.Tensors[i]
		empty := slices.Contains(x.Shape, 0)
		if x.Offset < end || x.Size < 0 || (x.Size == 0) != empty || x.Size > f.Size-x.Offset ||
			(x.Offset-f.DataOffset)%f.Alignment != 0 {
			t.Fatalf("tensor %q at %d, %d bytes; the one before ends at %d of %d", x.Name, x.Offset, x.Size, end,
				f.Size)
		}
		end = x.End()
		if len(x.Shape) < 1 || len(x.Shape) > maxDims || slices.Min(x.Shape) < 0 || x.Type.Number() > MaxNumber {
			t.Fatalf("tensor %q: shape %v, type %d", x.Name, x.Shape, uint32(x.Type))
		}
		if size, err := x.Type.Bytes(x.Shape); !x.Opaque() && (err != nil || size != x.Size) {
			t.Fatalf("tensor %q: shape %v, %d bytes of %v; want %d, %v", x.Name, x.Shape, x.Size, x.Type, size, err)
		}
		if n := int64(x.Experts()); n > 0 && x.ExpertStride() > 0 && n*x.ExpertStride() != x.Size {
			t.Fatalf("%q: %d experts every %d bytes of %d", x.Name, n, x.ExpertStride(), x.Size)
		}
		if got, ok := f.Lookup(x.Name); !ok || got != x {
			t.Fatalf("%q is not found", x.Name)
		}
		if empty {
			continue
		}
		for _, off := range []int64{x.Offset, end - 1} {
			if got, ok := f.At(off); !ok || got != x {
				t.Fatalf("byte %d is not in %q", off, x.Name)
			}
		}
	}
	if _, ok := f.At(f.DataOffset - 1); ok {
		t.Fatal("a tensor holds metadata")
	}
	for i := range f.Metadata {
		kv := &f.Metadata[i]
		_, s := f.String(kv.Key)
		u, isUint := f.Uint(kv.Key)
		_, fl := f.Float(kv.Key)
		_, bo := f.Bool(kv.Key)
		values, err := f.Strings(kv.Key)
		ss := err == nil
		answers := 0
		for _, ok := range []bool{s, isUint, fl, bo, ss} {
			if ok {
				answers++
			}
		}
		if _, err := valueOf(f, kv, -1); err != nil {
			t.Fatalf("entry %+v: %v", kv, err)
		}
		if answers > 1 || ss && int64(len(values)) != kv.Len || isUint && u > math.MaxInt64 && kv.Type != ValueUint64 {
			t.Fatalf("entry %+v: %d getters return a value", kv, answers)
		}
	}
	if len(fingerprint(t, f)) != 32 {
		t.Fatal("fingerprint")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small().encode())
	for _, enc := range encodings {
		m := small()
		m.version, m.big = enc.version, enc.big
		f.Add(m.encode())
	}
	long, _ := arrays(f)
	f.Add(long.encode())
	f.Add((&model{version: 3, alignment: 32, kvs: small().kvs[:1]}).encode())
	f.Add((&model{version: 3, alignment: 8, kvs: []kvSpec{
		{alignmentKey, ValueUint32, u32(8)},
		{"t", ValueArray, stringArray("a", "", "b")},
	}, tensors: []tensorSpec{{name: "blk.0.ffn_down_exps.bias", dims: []uint64{1, 2}, typ: I8}}}).encode())
	f.Add(forksModel().encode())
	f.Add([]byte(magic + "\x00\x00\x00\x03"))

	f.Fuzz(func(t *testing.T, b []byte) {
		whole, err := Parse(bytes.NewReader(b), int64(len(b)))
		pieces, err2 := parse(bytes.NewReader(b), int64(len(b)), 7)
		if err != nil || err2 != nil {
			if err == nil || err2 == nil || err.Error() != err2.Error() {
				t.Fatalf("in one piece %v, in several %v", err, err2)
			}
			return
		}
		checkInvariants(t, whole)
		if !reflect.DeepEqual(whole.Tensors, pieces.Tensors) || fingerprint(t, whole) != fingerprint(t, pieces) {
			t.Fatal("pieces change the result")
		}
		for i := range whole.Metadata {
			a, err := valueOf(whole, &whole.Metadata[i], -1)
			b, err2 := valueOf(pieces, &pieces.Metadata[i], -1)
			// NaN differs from itself.
			if err != nil || err2 != nil || fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("pieces change the value of %q: %v, %v", whole.Metadata[i].Key, err, err2)
			}
		}
	})
}
