package gguf

// This file defines metadata values: their types, and decoding them on demand. A tokenizer's arrays hold hundreds of thousands of strings
// that most callers never need; these stay in the file until they are asked for.

import (
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
)

// ErrNoValue says that a file has no metadata entry with that key and type.
var ErrNoValue = errors.New("no such metadata entry")

// ValueType is the number that a GGUF file stores for a metadata value's type (enum gguf_type in gguf.h).
type ValueType uint32

// The types of metadata values.
const (
	ValueUint8 ValueType = iota
	ValueInt8
	ValueUint16
	ValueInt16
	ValueUint32
	ValueInt32
	ValueFloat32
	ValueBool
	ValueString
	ValueArray
	ValueUint64
	ValueInt64
	ValueFloat64

	valueTypeCount
)

var valueTypes = [valueTypeCount]struct {
	name  string
	bytes int64 // 0 if the length varies
}{
	ValueUint8: {"u8", 1}, ValueInt8: {"i8", 1}, ValueUint16: {"u16", 2}, ValueInt16: {"i16", 2}, ValueUint32: {"u32", 4}, ValueInt32: {"i32", 4},
	ValueFloat32: {"f32", 4}, ValueBool: {"bool", 1}, ValueString: {"str", 0}, ValueArray: {"arr", 0},
	ValueUint64: {"u64", 8}, ValueInt64: {"i64", 8}, ValueFloat64: {"f64", 8},
}

// String is the name that ggml prints ("u32", "str"), or "type(N)" for a number that is not known.
func (t ValueType) String() string {
	if t >= valueTypeCount {
		return fmt.Sprintf("type(%d)", uint32(t))
	}
	return valueTypes[t].name
}

// KV is one metadata entry. File's getters decode its value.
type KV struct {
	Key  string
	Type ValueType
	Elem ValueType // type of an array's elements; never ValueArray
	Len  int64     // number of elements of an array; 1 for other types

	off, size int64 // the value's bytes in the file; without the length that precedes a string or array
	kept      int32 // where File.kept holds a copy of these bytes, or inFile
}

// inFile marks a value that is read from the file on demand.
const inFile = -1

func (f *File) find(key string) (*KV, bool) {
	i, ok := sort.Find(len(f.byKey), func(i int) int { return strings.Compare(key, f.Metadata[f.byKey[i]].Key) })
	if !ok {
		return nil, false
	}
	return &f.Metadata[f.byKey[i]], true
}

// scalar returns the bytes of a value that is no array.
func (f *File) scalar(kv *KV) []byte { return f.kept[kv.kept:][:kv.size] }

// String returns the value of a string entry. It reports false if there is no such key or it is of another type. Unlike
// names, values may hold any bytes: quote them before printing.
func (f *File) String(key string) (string, bool) {
	kv, ok := f.find(key)
	if !ok || kv.Type != ValueString {
		return "", false
	}
	return string(f.scalar(kv)), true
}

// Uint returns the value of an integer entry of any width, because writers differ in the width that they choose. It reports false if there
// is no such key, it is of another type, or the value is negative.
func (f *File) Uint(key string) (uint64, bool) {
	kv, ok := f.find(key)
	if !ok {
		return 0, false
	}
	var v int64
	switch kv.Type {
	case ValueUint8:
		v = int64(f.enc.u8(f.scalar(kv)))
	case ValueInt8:
		v = int64(f.enc.i8(f.scalar(kv)))
	case ValueUint16:
		v = int64(f.enc.u16(f.scalar(kv)))
	case ValueInt16:
		v = int64(f.enc.i16(f.scalar(kv)))
	case ValueUint32:
		v = int64(f.enc.u32(f.scalar(kv)))
	case ValueInt32:
		v = int64(f.enc.i32(f.scalar(kv)))
	case ValueUint64:
		return f.enc.u64(f.scalar(kv)), true
	case ValueInt64:
		v = f.enc.i64(f.scalar(kv))
	default:
		return 0, false
	}
	return uint64(v), v >= 0
}

// Float returns the value of a floating-point entry. It reports false if there is no such key or it is of another type.
func (f *File) Float(key string) (float64, bool) {
	kv, ok := f.find(key)
	if !ok {
		return 0, false
	}
	switch kv.Type {
	case ValueFloat32:
		return float64(f.enc.f32(f.scalar(kv))), true
	case ValueFloat64:
		return f.enc.f64(f.scalar(kv)), true
	}
	return 0, false
}

// Bool returns the value of a boolean entry. It reports false if there is no such key or it is of another type.
func (f *File) Bool(key string) (value, ok bool) {
	kv, ok := f.find(key)
	if !ok || kv.Type != ValueBool {
		return false, false
	}
	return f.enc.bool(f.scalar(kv)), true
}

// Strings returns an array of strings, such as tokenizer.ggml.tokens. Each call decodes it anew; a long array is read from the file, which
// must not have changed (ErrChanged). It returns ErrNoValue if there is no such key or it is of another type.
func (f *File) Strings(key string) ([]string, error) {
	kv, ok := f.find(key)
	if !ok || kv.Type != ValueArray || kv.Elem != ValueString {
		return nil, fmt.Errorf("%w: an array of strings, %.100q", ErrNoValue, key)
	}
	v, err := f.Value(kv, -1)
	if err != nil {
		return nil, err
	}
	return v.([]string), nil
}

// Value decodes the value of an entry of f.Metadata. The result is a uint8 to float64, bool or string, or for an array a slice of one of
// these with the first limit elements, all if limit is negative. A long array is read from the file, which must not have changed
// (ErrChanged).
func (f *File) Value(kv *KV, limit int64) (any, error) {
	if kv.Type != ValueArray {
		return f.enc.value(kv.Type, f.scalar(kv)), nil
	}
	n := kv.Len
	if limit >= 0 {
		n = min(n, limit)
	}
	var elems any
	decode := func(src *source, off int64) error {
		var err error
		elems, err = f.enc.elements(src, off, kv.Elem, n)
		return err
	}
	if kv.kept != inFile {
		b := f.kept[kv.kept:][:kv.size]
		if err := decode(&source{buf: b, size: kv.size}, 0); err != nil {
			return nil, err
		}
		return elems, nil
	}
	err := f.reread(func(r io.ReaderAt) error {
		return decode(&source{r: r, size: kv.off + kv.size, piece: pieceBytes}, kv.off)
	})
	if err != nil {
		return nil, fmt.Errorf("read %.100q: %w", kv.Key, err)
	}
	return elems, nil
}

// value decodes a value that is no array.
func (e encoding) value(t ValueType, b []byte) any {
	switch t {
	case ValueUint8:
		return e.u8(b)
	case ValueInt8:
		return e.i8(b)
	case ValueUint16:
		return e.u16(b)
	case ValueInt16:
		return e.i16(b)
	case ValueUint32:
		return e.u32(b)
	case ValueInt32:
		return e.i32(b)
	case ValueFloat32:
		return e.f32(b)
	case ValueBool:
		return e.bool(b)
	case ValueString:
		return string(b)
	case ValueUint64:
		return e.u64(b)
	case ValueInt64:
		return e.i64(b)
	}
	return e.f64(b)
}

// elements decodes the first n elements of the array at off. Parse has checked that they exist, but the file may have changed since.
func (e encoding) elements(src *source, off int64, t ValueType, n int64) (any, error) {
	switch t {
	case ValueUint8:
		return fixed(src, off, n, 1, e.u8)
	case ValueInt8:
		return fixed(src, off, n, 1, e.i8)
	case ValueUint16:
		return fixed(src, off, n, 2, e.u16)
	case ValueInt16:
		return fixed(src, off, n, 2, e.i16)
	case ValueUint32:
		return fixed(src, off, n, 4, e.u32)
	case ValueInt32:
		return fixed(src, off, n, 4, e.i32)
	case ValueFloat32:
		return fixed(src, off, n, 4, e.f32)
	case ValueBool:
		return fixed(src, off, n, 1, e.bool)
	case ValueUint64:
		return fixed(src, off, n, 8, e.u64)
	case ValueInt64:
		return fixed(src, off, n, 8, e.i64)
	case ValueFloat64:
		return fixed(src, off, n, 8, e.f64)
	}
	values := make([]string, n)
	for i := range values {
		if e.wide > src.size-off {
			return nil, ErrChanged
		}
		b, err := src.at(off, e.wide)
		if err != nil {
			return nil, err
		}
		length := e.length(b)
		off += e.wide
		if length > uint64(src.size-off) {
			return nil, ErrChanged
		}
		if b, err = src.at(off, int64(length)); err != nil {
			return nil, err
		}
		values[i] = string(b[:length])
		off += int64(length)
	}
	return values, nil
}

// fixed decodes n values of width bytes each.
func fixed[T any](src *source, off, n, width int64, decode func([]byte) T) ([]T, error) {
	values := make([]T, n)
	for i := range values {
		b, err := src.at(off, width)
		if err != nil {
			return nil, err
		}
		values[i] = decode(b)
		off += width
	}
	return values, nil
}
