package rewrite

// This file handles what precedes the tensors' data, the head of a file. It finds out three things
// that package gguf does not say: where the metadata end, where numbers lie in them, and in which
// order the tensor table lists the tensors. It also makes records for a new table. The file has
// been parsed before, so reading it again only checks that it is unchanged.

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"tensorcast/gguf"
)

// head is what was found out about the head of a file.
type head struct {
	wide        int            // bytes of a length: 4 in version 1 of the format, else 8
	metadataEnd int64          // where the tensor table begins
	tensors     []*gguf.Tensor // in the order of the table
	patches     []patch        // in the order of the file
}

// patch replaces some bytes of the metadata.
type patch struct {
	at    int64
	bytes []byte
}

// readHead reads the head of file f from r, and makes patches of numbers.
func readHead(f *gguf.File, r io.ReaderAt, numbers []Number) (head, error) {
	h := head{wide: 8}
	if f.Version == 1 {
		h.wide = 4
	}
	w := headReader{
		wide: h.wide, left: f.DataOffset, r: bufio.NewReaderSize(io.NewSectionReader(r, 0, f.DataOffset), 64<<10),
	}
	w.skipBytes(int64(4 + 4 + 2*h.wide)) // magic, version, counts
	for _, kv := range f.Metadata {
		w.skipBytes(w.readLength())     // key
		at := f.DataOffset - w.left + 4 // of the value, which follows the type
		w.skipValue()
		if i := slices.IndexFunc(numbers, func(n Number) bool { return n.Key == kv.Key }); i >= 0 {
			b, err := numbers[i].encode(kv.Type)
			if err != nil {
				return h, err
			}
			h.patches = append(h.patches, patch{at, b})
		}
	}
	if w.err == nil && len(h.patches) < len(numbers) {
		return h, missingEntry(f, numbers)
	}
	h.metadataEnd = f.DataOffset - w.left
	for range f.Tensors {
		name := w.readBytes(w.readLength())
		t, ok := f.Lookup(string(name))
		if !ok {
			return h, w.changedError()
		}
		h.tensors = append(h.tensors, t)
		w.skipBytes(4 + int64(len(t.Shape)*w.wide) + 4 + 8) // the number of dimensions, these, the type, the offset
	}
	if w.err != nil || w.left >= f.Alignment {
		return h, w.changedError()
	}
	return h, nil
}

// encode returns the number as an entry of that type stores it.
func (n Number) encode(t gguf.ValueType) ([]byte, error) {
	bits := 8 * int(widths[t])
	switch t {
	case gguf.ValueUint8, gguf.ValueUint16, gguf.ValueUint32, gguf.ValueUint64:
	case gguf.ValueInt8, gguf.ValueInt16, gguf.ValueInt32, gguf.ValueInt64:
		bits--
	default:
		return nil, fmt.Errorf("metadata entry %q is of type %v, no integer", n.Key, t)
	}
	if n.Value>>bits != 0 {
		return nil, fmt.Errorf("metadata entry %q: %d does not fit type %v", n.Key, n.Value, t)
	}
	return binary.LittleEndian.AppendUint64(nil, n.Value)[:widths[t]], nil
}

// missingEntry is the error if f has no entry for one of the numbers, or if two numbers name the
// same entry.
func missingEntry(f *gguf.File, numbers []Number) error {
	for i, n := range numbers {
		if !slices.ContainsFunc(f.Metadata, func(kv gguf.KV) bool { return kv.Key == n.Key }) {
			return fmt.Errorf("metadata entry %q: %w", n.Key, gguf.ErrNoValue)
		}
		if slices.ContainsFunc(numbers[:i], func(o Number) bool { return o.Key == n.Key }) {
			return fmt.Errorf("metadata entry %q is set twice", n.Key)
		}
	}
	return gguf.ErrChanged // not reached: keys are unique
}

// appendRecord appends t's record of the tensor table to b, with another type and shape. offset
// counts from the start of the data.
func (h *head) appendRecord(b []byte, t *gguf.Tensor, as gguf.Type, shape []int64, offset int64) []byte {
	length := func(n uint64) {
		if h.wide == 4 {
			b = binary.LittleEndian.AppendUint32(b, uint32(n))
		} else {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
	}
	length(uint64(len(t.Name)))
	b = append(b, t.Name...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(shape)))
	for _, n := range shape {
		length(uint64(n))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(as))
	return binary.LittleEndian.AppendUint64(b, uint64(offset))
}

// headReader reads through a head. After an error it returns zeros.
type headReader struct {
	r    *bufio.Reader
	wide int
	left int64 // bytes of the head that remain
	err  error
}

// changedError is the error for a file that is no longer the one that was parsed.
func (w *headReader) changedError() error {
	if w.err != nil {
		return w.err
	}
	return gguf.ErrChanged
}

// canRead reports whether n more bytes may be read. If not, it sets the error.
func (w *headReader) canRead(n int64) bool {
	if w.err == nil && (n < 0 || n > w.left) {
		w.err = gguf.ErrChanged
	}
	return w.err == nil
}

// account notes that n bytes were read, with this error.
func (w *headReader) account(n int64, err error) {
	w.left -= n
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = gguf.ErrChanged
	}
	if err != nil {
		w.err = fmt.Errorf("metadata: %w", err)
	}
}

func (w *headReader) skipBytes(n int64) {
	if w.canRead(n) {
		_, err := w.r.Discard(int(n))
		w.account(n, err)
	}
}

func (w *headReader) readBytes(n int64) []byte {
	if !w.canRead(n) {
		return nil
	}
	b := make([]byte, n)
	_, err := io.ReadFull(w.r, b)
	w.account(n, err)
	return b
}

// readNumber reads a number of n bytes.
func (w *headReader) readNumber(n int) int64 {
	b := w.readBytes(int64(n))
	switch {
	case w.err != nil:
		return 0
	case n == 4:
		return int64(binary.LittleEndian.Uint32(b))
	}
	return int64(binary.LittleEndian.Uint64(b))
}

func (w *headReader) readLength() int64 { return w.readNumber(w.wide) }

// widths are the sizes in bytes of the types of fixed size.
var widths = map[gguf.ValueType]int64{
	gguf.ValueUint8: 1, gguf.ValueInt8: 1, gguf.ValueBool: 1, gguf.ValueUint16: 2, gguf.ValueInt16: 2,
	gguf.ValueUint32: 4, gguf.ValueInt32: 4, gguf.ValueFloat32: 4,
	gguf.ValueUint64: 8, gguf.ValueInt64: 8, gguf.ValueFloat64: 8,
}

// skipValue skips the type and the value of a metadata entry.
func (w *headReader) skipValue() {
	switch t := gguf.ValueType(w.readNumber(4)); t {
	case gguf.ValueString:
		w.skipBytes(w.readLength())
	case gguf.ValueArray:
		elem, n := gguf.ValueType(w.readNumber(4)), w.readLength()
		switch {
		case elem == gguf.ValueString:
			for ; n > 0 && w.err == nil; n-- {
				w.skipBytes(w.readLength())
			}
		case n > w.left: // so the product below cannot overflow
			w.canRead(n)
		default:
			w.skipBytes(n * widths[elem])
		}
	default:
		w.skipBytes(widths[t])
	}
}
