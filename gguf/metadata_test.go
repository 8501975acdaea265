package gguf

// These tests read metadata values on demand, also from files that have changed.

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// longText is a string that is not kept.
var longText = strings.Repeat("a long text, ", maxKept/10)

// arrays has an array of every element type, two of them longer than a piece, and strings.
func arrays(tb testing.TB) (m *model, want map[string]any) {
	tb.Helper()
	long := make([]string, 9000)
	var floats []float32
	var floatBytes []byte
	for i := range long {
		long[i] = string(bytes.Repeat([]byte{'a' + byte(i%26)}, i%17))
		floats = append(floats, float32(i)/4)
		floatBytes = append(floatBytes, u32(math.Float32bits(float32(i)/4))...)
	}
	floats, floatBytes = append(floats, floats...), append(floatBytes, floatBytes...)
	want = map[string]any{
		"u8": []uint8{1, 255}, "i8": []int8{-1, 2}, "u16": []uint16{1, 65535}, "i16": []int16{-2, 3},
		"u32": []uint32{1, math.MaxUint32}, "i32": []int32{-3, 4}, "f32": []float32{0.5, -2},
		"bool": []bool{true, false},
		"str":  []string{"", "héllo", "\x00\xff"}, "u64": []uint64{1, math.MaxUint64}, "i64": []int64{-4, 5},
		"f64":  []float64{0.25, -8},
		"none": []uint8{}, "long str": long, "long f32": floats, "scalar": uint16(7), "short": "kept",
		"long": longText, "empty": "",
	}
	join := func(b ...[]byte) []byte { return bytes.Join(b, nil) }
	m = &model{version: 3, alignment: 32}
	add := func(key string, elem ValueType, n uint64, elems []byte) {
		m.kvs = append(m.kvs, kvSpec{key, ValueArray, array(elem, n, elems)})
	}
	add("u8", ValueUint8, 2, []byte{1, 255})
	add("i8", ValueInt8, 2, []byte{255, 2})
	add("u16", ValueUint16, 2, join(u16(1), u16(65535)))
	add("i16", ValueInt16, 2, join(u16(65534), u16(3)))
	add("u32", ValueUint32, 2, join(u32(1), u32(math.MaxUint32)))
	add("i32", ValueInt32, 2, join(u32(math.MaxUint32-2), u32(4)))
	add("f32", ValueFloat32, 2, join(u32(math.Float32bits(0.5)), u32(math.Float32bits(-2))))
	add("bool", ValueBool, 2, []byte{1, 0})
	add("u64", ValueUint64, 2, join(u64(1), u64(math.MaxUint64)))
	add("i64", ValueInt64, 2, join(u64(math.MaxUint64-3), u64(5)))
	add("f64", ValueFloat64, 2, join(u64(math.Float64bits(0.25)), u64(math.Float64bits(-8))))
	add("none", ValueUint8, 0, nil)
	add("long f32", ValueFloat32, uint64(len(floats)), floatBytes)
	m.kvs = append(m.kvs,
		kvSpec{"str", ValueArray, stringArray("", "héllo", "\x00\xff")},
		kvSpec{"long str", ValueArray, stringArray(long...)},
		kvSpec{"scalar", ValueUint16, u16(7)}, kvSpec{"short", ValueString, str("kept")},
		kvSpec{"long", ValueString, str(longText)},
		kvSpec{"empty", ValueString, str("")})
	m.tensors = []tensorSpec{{name: "x", dims: []uint64{32}, typ: F32}}
	return m, want
}

// valueOf collects what Each passes on: a value, or the elements of an array as a slice of their type.
func valueOf(f *File, kv *KV, limit int64) (any, error) {
	var value any
	var elems reflect.Value
	if kv.Type == ValueArray {
		types := []any{
			[]uint8{}, []int8{}, []uint16{}, []int16{}, []uint32{}, []int32{}, []float32{}, []bool{}, []string{}, nil,
			[]uint64{}, []int64{}, []float64{},
		}
		elems = reflect.ValueOf(types[kv.Elem])
	}
	err := f.Each(kv, limit, func(v any) error {
		if text, ok := v.(*Text); ok {
			var b []byte
			for piece, err := range text.Pieces() {
				if err != nil {
					return err
				}
				b = append(b, piece...)
			}
			if int64(len(b)) != text.Len() {
				return fmt.Errorf("%d bytes of a text of %d", len(b), text.Len())
			}
			v = string(b)
		}
		if value = v; elems.IsValid() {
			elems = reflect.Append(elems, reflect.ValueOf(v))
		}
		return nil
	})
	if elems.IsValid() {
		value = elems.Interface()
	}
	return value, err
}

func TestEach(t *testing.T) {
	m, want := arrays(t)
	for _, enc := range encodings {
		m.version, m.big = enc.version, enc.big
		path := filepath.Join(t.TempDir(), "m.gguf")
		b := m.encode()
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		opened, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(opened.Metadata) != len(want) {
			t.Fatalf("%d entries, want %d", len(opened.Metadata), len(want))
		}
		for _, f := range []*File{opened, mustParse(t, b)} {
			for i := range f.Metadata {
				kv := &f.Metadata[i]
				all := reflect.ValueOf(want[kv.Key])
				if got, err := valueOf(f, kv, -1); err != nil || !reflect.DeepEqual(got, all.Interface()) {
					t.Errorf("%s: %s: %v, %v, want %v", enc.name, kv.Key, got, err, all)
				}
				if kv.Type != ValueArray {
					continue
				}
				for _, limit := range []int{0, 1, all.Len() + 1} {
					want := all.Slice(0, min(limit, all.Len())).Interface()
					if got, err := valueOf(f, kv, int64(limit)); err != nil || !reflect.DeepEqual(got, want) {
						t.Errorf("%s: the first %d of %s: %v, %v, want %v", enc.name, limit, kv.Key, got, err, want)
					}
				}
			}
		}
	}
}

// A file that is read again must be the one that was parsed. Another file, another size and another
// time are errors. So is a file whose contents changed although its size and time are the same.
func TestValueOfChangedFile(t *testing.T) {
	m, _ := arrays(t)
	b := m.encode()
	for name, change := range map[string]func(t *testing.T, path string){
		"grown": func(t *testing.T, path string) {
			check(t, os.WriteFile(path, append(bytes.Clone(b), 0), 0o644))
		},
		"shrunk": func(t *testing.T, path string) { check(t, os.Truncate(path, 100)) },
		"written": func(t *testing.T, path string) {
			check(t, os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)))
		},
		"replaced": func(t *testing.T, path string) {
			check(t, os.WriteFile(path+"2", b, 0o644))
			check(t, os.Rename(path+"2", path))
		},
		"written in secret": func(t *testing.T, path string) {
			info, err := os.Stat(path)
			check(t, err)
			lies := bytes.Clone(b)
			for i := bytes.Index(b, []byte("long str")) + 20; i < len(lies)-200; i++ {
				lies[i] = 0xff
			}
			check(t, os.WriteFile(path, lies, 0o644))
			check(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			check(t, os.WriteFile(path, b, 0o644))
			f, err := Open(path)
			check(t, err)
			change(t, path)
			if _, err := f.Strings("long str"); !errors.Is(err, ErrChanged) {
				t.Errorf("error %v, want %v", err, ErrChanged)
			}
			if _, err := f.Fingerprint(); name != "written in secret" && !errors.Is(err, ErrChanged) {
				t.Errorf("error %v, want %v", err, ErrChanged)
			}
			if got, ok := f.String("short"); !ok || got != "kept" {
				t.Errorf("a short string: %q, %v", got, ok)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	check(t, os.WriteFile(path, b, 0o644))
	f, err := Open(path)
	check(t, err)
	check(t, os.Remove(path))
	if _, err := f.Strings("long str"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Each returns the error of do as it is: it is not an error of the file.
func TestEachEnds(t *testing.T) {
	m, _ := arrays(t)
	f := mustParse(t, m.encode())
	for i := range f.Metadata {
		kv, calls := &f.Metadata[i], 0
		err := f.Each(kv, -1, func(any) error {
			calls++
			return os.ErrClosed
		})
		if kv.Len > 0 && (err != os.ErrClosed || calls != 1) {
			t.Errorf("%s: %v after %d calls", kv.Key, err, calls)
		}
	}
	if s, ok := f.String("long"); ok {
		t.Errorf("a string of %d bytes is kept", len(s))
	}
}
