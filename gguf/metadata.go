package gguf

// This file defines metadata values: their types, and decoding them on demand. A tokenizer's arrays
// hold hundreds of thousands of strings that most callers never need. They stay in the file until
// they are asked for. Then they are read piece by piece, because a file that takes no space may
// claim to hold a string of 255 MiB.

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"sort"
	"strings"
)

// ErrNoValue says that a file has no metadata entry with that key and type.
var ErrNoValue = errors.New("no such metadata entry")

// ValueType is the number that a GGUF file stores for a metadata value's type (enum gguf_type in
// gguf.h).
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
	ValueUint8: {"u8", 1}, ValueInt8: {"i8", 1}, ValueUint16: {"u16", 2}, ValueInt16: {"i16", 2},
	ValueUint32: {"u32", 4}, ValueInt32: {"i32", 4}, ValueUint64: {"u64", 8}, ValueInt64: {"i64", 8},
	ValueFloat32: {"f32", 4}, ValueFloat64: {"f64", 8},
	ValueBool: {"bool", 1}, ValueString: {"str", 0}, ValueArray: {"arr", 0},
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

// findKV returns the entry with that key. It takes O(log n).
func (f *File) findKV(key string) (*KV, bool) {
	i, ok := sort.Find(len(f.byKey), func(i int) int { return strings.Compare(key, f.Metadata[f.byKey[i]].Key) })
	if !ok {
		return nil, false
	}
	return &f.Metadata[f.byKey[i]], true
}

// keptBytes returns the bytes of a value that is kept.
func (f *File) keptBytes(kv *KV) []byte { return f.kept[kv.kept:][:kv.size] }

// String returns the value of a string entry. It reports false if there is no such key, it is of
// another type, or the string is longer than 64 KiB (read that by Each). Unlike names, values may
// hold any bytes: quote them before printing.
func (f *File) String(key string) (string, bool) {
	kv, ok := f.findKV(key)
	if !ok || kv.Type != ValueString || kv.kept == inFile {
		return "", false
	}
	return string(f.keptBytes(kv)), true
}

// Uint returns the value of an integer entry of any width, because writers differ in the width that
// they choose. It reports false if there is no such key, it is of another type, or the value is
// negative.
func (f *File) Uint(key string) (uint64, bool) {
	kv, ok := f.findKV(key)
	if !ok {
		return 0, false
	}
	var v int64
	switch kv.Type {
	case ValueUint8:
		v = int64(f.enc.u8(f.keptBytes(kv)))
	case ValueInt8:
		v = int64(f.enc.i8(f.keptBytes(kv)))
	case ValueUint16:
		v = int64(f.enc.u16(f.keptBytes(kv)))
	case ValueInt16:
		v = int64(f.enc.i16(f.keptBytes(kv)))
	case ValueUint32:
		v = int64(f.enc.u32(f.keptBytes(kv)))
	case ValueInt32:
		v = int64(f.enc.i32(f.keptBytes(kv)))
	case ValueUint64:
		return f.enc.u64(f.keptBytes(kv)), true
	case ValueInt64:
		v = f.enc.i64(f.keptBytes(kv))
	default:
		return 0, false
	}
	return uint64(v), v >= 0
}

// Float returns the value of a floating-point entry. It reports false if there is no such key or it
// is of another type.
func (f *File) Float(key string) (float64, bool) {
	kv, ok := f.findKV(key)
	if !ok {
		return 0, false
	}
	switch kv.Type {
	case ValueFloat32:
		return float64(f.enc.f32(f.keptBytes(kv))), true
	case ValueFloat64:
		return f.enc.f64(f.keptBytes(kv)), true
	}
	return 0, false
}

// Bool returns the value of a boolean entry. It reports false if there is no such key or it is of
// another type.
func (f *File) Bool(key string) (value, ok bool) {
	kv, ok := f.findKV(key)
	if !ok || kv.Type != ValueBool {
		return false, false
	}
	return f.enc.bool(f.keptBytes(kv)), true
}

// Strings returns an array of strings, such as tokenizer.ggml.tokens, all of it in memory. Each
// call reads it from the file, which must not have changed (ErrChanged). It returns ErrNoValue if
// there is no such key or it is of another type.
func (f *File) Strings(key string) ([]string, error) {
	kv, ok := f.findKV(key)
	if !ok || kv.Type != ValueArray || kv.Elem != ValueString {
		return nil, fmt.Errorf("%w: an array of strings, %.100q", ErrNoValue, key)
	}
	all := []string{}
	err := f.Each(kv, -1, func(value any) error {
		var b []byte
		for piece, err := range value.(*Text).Pieces() {
			if err != nil {
				return err
			}
			b = append(b, piece...)
		}
		all = append(all, string(b))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Text is a string of the metadata. It may be long, and is read in pieces. It is valid until the
// function that got it returns.
type Text struct {
	entry *KV
	src   *source
	off   int64
	n     int64
}

// Len is the string's length in bytes.
func (t *Text) Len() int64 { return t.n }

// Pieces are the string's bytes, in pieces of at most 64 KiB. A piece is valid until the next one,
// and may end within a character. The sequence can be iterated over more than once.
func (t *Text) Pieces() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for done := int64(0); done < t.n; {
			n := min(t.n-done, t.src.piece)
			b, err := t.src.bytesAt(t.off+done, n)
			if err != nil {
				yield(nil, t.entry.errorf(err))
				return
			}
			if !yield(b[:n:n], nil) {
				return
			}
			done += n
		}
	}
}

func (kv *KV) errorf(err error) error { return fmt.Errorf("read %.100q: %w", kv.Key, err) }

// Each calls do with the value of an entry of f.Metadata. It calls it once, or for an array with
// each of the first limit elements, all if limit is negative. A value is a uint8 to float64, a bool
// or a *Text. Arrays and long strings are read from the file, which must not have changed
// (ErrChanged). However long they are, some 100 KiB of memory are used. An error of do ends Each,
// which returns it as it is.
func (f *File) Each(kv *KV, limit int64, do func(value any) error) error {
	if kv.kept != inFile {
		if kv.Type == ValueString {
			return do(&Text{kv, &source{buf: f.keptBytes(kv), size: kv.size, piece: max(kv.size, 1)}, 0, kv.size})
		}
		return do(f.enc.decodeValue(kv.Type, f.keptBytes(kv)))
	}
	n := kv.Len
	if kv.Type == ValueArray && limit >= 0 {
		n = min(n, limit)
	}
	var doErr error // what do returned
	err := f.reread(func(r io.ReaderAt) error {
		src := &source{r: r, size: kv.off + kv.size, piece: pieceBytes}
		if kv.Type == ValueString {
			doErr = do(&Text{kv, src, kv.off, kv.size})
			return nil
		}
		var err error
		doErr, err = f.enc.eachElement(kv, src, n, do)
		return err
	})
	if err != nil {
		return kv.errorf(err)
	}
	return doErr
}

// decodeValue decodes a number or a boolean.
func (e encoding) decodeValue(t ValueType, b []byte) any {
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
	case ValueUint64:
		return e.u64(b)
	case ValueInt64:
		return e.i64(b)
	}
	return e.f64(b)
}

// eachElement calls do with the first n elements of an array. Parse has checked that they exist,
// but the file may have changed since then. doErr is what do returned.
func (e encoding) eachElement(kv *KV, src *source, n int64, do func(any) error) (doErr, err error) {
	off, text := kv.off, &Text{entry: kv, src: src}
	for range n {
		width := valueTypes[kv.Elem].bytes
		if kv.Elem == ValueString {
			width = e.lengthBytes
		}
		if width > src.size-off {
			return nil, ErrChanged
		}
		b, err := src.bytesAt(off, width)
		if err != nil {
			return nil, err
		}
		off += width
		if kv.Elem != ValueString {
			doErr = do(e.decodeValue(kv.Elem, b))
		} else {
			length := e.length(b)
			if length > uint64(src.size-off) {
				return nil, ErrChanged
			}
			text.off, text.n = off, int64(length)
			off += int64(length)
			doErr = do(text)
		}
		if doErr != nil {
			return doErr, nil
		}
	}
	return nil, nil
}
