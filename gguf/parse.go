package gguf

// This file parses the format. It checks every count against the bytes that remain, every product
// for overflow and every bound by subtraction, so that no number in a file can lead outside it.

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unsafe"
)

const (
	magic            = "GGUF"
	alignmentKey     = "general.alignment"
	defaultAlignment = 32
	maxDims          = 4

	// maxMetadata bounds memory use where the file's size does not: a sparse file of terabytes
	// costs nothing to make. The metadata of a model with 262k tokens and 515k merges take 13 MB.
	maxMetadata = 256 << 20

	// maxAlignment is far above any page size. With a larger one, a whole file could hide in the
	// padding.
	maxAlignment = 16 << 20

	// maxName is the format's limit for keys. ggml truncates tensor names to 63 bytes; other
	// readers do not.
	maxName = 65535

	maxOffset = math.MaxInt64 // file offsets are int64

	// maxStructure bounds the memory in bytes that the structure of a model takes, all parts
	// together: records, names and copies of short strings. 100,000 tensors with names of 30 bytes
	// take 14 MB. 384 experts in 60 layers, with three tensors each, would be 69,120.
	maxStructure = 32 << 20

	// A tensor takes memory for its Tensor, its Location and its index in the order by name; an
	// entry for its KV and its index.
	tensorMemory = int64(unsafe.Sizeof(Tensor{})+unsafe.Sizeof(Location{})) + 4
	entryMemory  = int64(unsafe.Sizeof(KV{})) + 4

	// maxKept is the length in bytes up to which a File keeps a copy of a string, maxKeptAll the
	// limit for all of them together. The longest string in use is a chat template of 30 KB. Other
	// strings, and arrays, are read from the file when they are asked for.
	maxKept    = 64 << 10
	maxKeptAll = 4 << 20

	// firstRecords is for how many records memory is allocated before the first is read: the count
	// in the file cannot be trusted.
	firstRecords = 1024
)

// Parse reads the structure of the GGUF file of size bytes that r holds. It reads the metadata,
// skipping arrays of numbers and long strings, and at most 64 KiB beyond. The File uses r again
// only in Each, Strings and Fingerprint. It is an error if the metadata have more than 256 MiB, or
// if the structure would take more than 32 MiB of memory.
//
// Errors wrap ErrNotGGUF, ErrTruncated, ErrDamaged, ErrUnsupported or r's own.
func Parse(r io.ReaderAt, size int64) (*File, error) { return parse(r, size, pieceBytes) }

func parse(r io.ReaderAt, size, piece int64) (*File, error) {
	p := &parser{src: &source{r: r, size: size, piece: piece}}
	f := &File{Size: size, Alignment: defaultAlignment, r: r}
	tensors, entries, err := p.readHeader(f)
	if err != nil {
		return nil, err
	}
	f.enc = p.enc
	if err := p.readMetadata(f, entries); err != nil {
		return nil, err
	}
	f.kept = slices.Clip(p.kept)
	if err := p.readTensors(f, tensors); err != nil {
		return nil, err
	}
	f.memory = p.memory
	return f, nil
}

// parseHead reads as much of the metadata as there is of them. The File has no tensors.
func parseHead(r io.ReaderAt, size int64) (*File, error) {
	p := &parser{src: &source{r: r, size: size, piece: pieceBytes}, headOnly: true}
	f := &File{Size: size, Alignment: defaultAlignment, r: r}
	_, entries, err := p.readHeader(f)
	if err != nil {
		return nil, err
	}
	f.enc = p.enc
	if err := p.readMetadata(f, entries); err != nil && !errors.Is(err, ErrTruncated) {
		return nil, err
	}
	f.byKey, err = sortByName(len(f.Metadata), func(i int32) string { return f.Metadata[i].Key })
	if err != nil {
		return nil, damaged("two metadata entries have the key %w", err)
	}
	f.kept, f.memory, f.DataOffset = slices.Clip(p.kept), p.memory, min(p.off, size)
	return f, nil
}

// parser reads a file from front to back.
type parser struct {
	src  *source
	enc  encoding
	off  int64 // of the next byte
	kept []byte

	memory     int64 // bytes that the structure takes up to now
	sawUnnamed bool  // a tensor without a name
	headOnly   bool  // what is declared need not exist

	// What is being read, for error messages: "tensor", 3, `blk.0.attn_q.weight`.
	kind  string
	index int64
	name  string
}

// position says what is being read.
func (p *parser) position() string {
	switch {
	case p.kind == "":
		return "the header"
	case p.name == "":
		return fmt.Sprintf("%s %d", p.kind, p.index)
	}
	return fmt.Sprintf("%s %d (%.100q)", p.kind, p.index, p.name)
}

// require returns an error unless n more bytes exist. what names them.
func (p *parser) require(n uint64, what string) error {
	remain := p.src.size - p.off
	if n > uint64(remain) {
		return cutOff("byte %d, %s of %s: %d bytes needed, %d remain of the file's %d", p.off, what, p.position(), n,
			remain, p.src.size)
	}
	// skipStrings may have exceeded the limit by one piece.
	if n > uint64(max(0, maxMetadata-p.off)) {
		return p.beyond("byte %d, %s: metadata larger than %d MiB", p.off, what, maxMetadata>>20)
	}
	return nil
}

// readBytes returns the next n bytes. They are valid until the next call and must not be changed.
func (p *parser) readBytes(n uint64, what string) ([]byte, error) {
	if err := p.require(n, what); err != nil {
		return nil, err
	}
	b, err := p.src.bytesAt(p.off, int64(n))
	if err != nil {
		return nil, err
	}
	p.off += int64(n)
	return b[:n], nil
}

// account accounts for n bytes of memory that the structure takes from now on.
func (p *parser) account(n int64) error {
	if p.memory += n; p.memory > maxStructure {
		return p.beyond("the structure up to here takes more than %d MiB of memory", maxStructure>>20)
	}
	return nil
}

// skipBytes skips n bytes without reading them.
func (p *parser) skipBytes(n uint64, what string) error {
	if err := p.require(n, what); err != nil {
		return err
	}
	p.off += int64(n)
	return nil
}

func (p *parser) readU32(what string) (uint32, error) {
	b, err := p.readBytes(4, what)
	if err != nil {
		return 0, err
	}
	return p.enc.u32(b), nil
}

func (p *parser) readU64(what string) (uint64, error) {
	b, err := p.readBytes(8, what)
	if err != nil {
		return 0, err
	}
	return p.enc.u64(b), nil
}

// readLength reads a length, a count or a dimension.
func (p *parser) readLength(what string) (uint64, error) {
	b, err := p.readBytes(uint64(p.enc.lengthBytes), what)
	if err != nil {
		return 0, err
	}
	return p.enc.length(b), nil
}

// readCount reads a number of records. As each takes at least minBytes, it cannot exceed what the
// remaining bytes hold.
func (p *parser) readCount(minBytes int64, what string) (int64, error) {
	n, err := p.readLength(what)
	if err != nil {
		return 0, err
	}
	if p.headOnly {
		return int64(min(n, math.MaxInt64)), nil // reading ends where the file does
	}
	if remain := p.src.size - p.off; n > uint64(remain/minBytes) {
		return 0, cutOff("%s of %s is %d, the %d bytes that remain hold at most %d", what, p.position(), n, remain,
			remain/minBytes)
	}
	return int64(n), nil
}

// readName reads a key or a tensor name of at least shortest bytes. It may hold any bytes, as ggml
// accepts them.
func (p *parser) readName(lengthOf, what string, shortest uint64) (string, error) {
	n, err := p.readLength(lengthOf)
	if err != nil {
		return "", err
	}
	if err := p.require(n, what); err != nil {
		return "", err
	}
	if n < shortest {
		return "", p.errorf("%s has %d bytes", what, n)
	}
	if n > maxName {
		return "", p.beyond("%s has %d bytes, more than %d", what, n, maxName)
	}
	b, err := p.readBytes(n, what)
	if err != nil {
		return "", err
	}
	return string(b), p.account(int64(n))
}

// readHeader reads the magic, the version and the counts. It finds out the byte order.
func (p *parser) readHeader(f *File) (tensors, entries int64, err error) {
	if p.src.size < int64(len(magic)) {
		return 0, 0, fmt.Errorf("%w: it has %d bytes", ErrNotGGUF, p.src.size)
	}
	b, err := p.readBytes(uint64(len(magic)), "the magic")
	if err != nil {
		return 0, 0, err
	}
	if string(b) != magic {
		return 0, 0, fmt.Errorf("%w: bad magic, it begins with %q", ErrNotGGUF, b)
	}
	if f.Version, err = p.readU32("the version"); err != nil {
		return 0, 0, err
	}
	// Only the version shows the byte order. Like ggml, take a low half of zero as a sign of the
	// other order.
	if f.Version&0xffff == 0 && f.Version != 0 {
		p.enc.big, f.BigEndian, f.Version = true, true, bits.ReverseBytes32(f.Version)
	}
	switch f.Version {
	case 1:
		p.enc.lengthBytes = 4
	case 2, 3:
		p.enc.lengthBytes = 8
	default:
		return 0, 0, parseError(ErrUnsupported, "GGUF version %d, which is not 1 to 3", f.Version)
	}
	if tensors, err = p.readCount(p.minTensorBytes(), "the tensor count"); err != nil {
		return 0, 0, err
	}
	entries, err = p.readCount(p.minKVBytes(), "the metadata count")
	return tensors, entries, err
}

// minKVBytes is the size of the smallest entry: a key of one byte with its length, the type, a
// value of one byte.
func (p *parser) minKVBytes() int64 { return p.enc.lengthBytes + 1 + 4 + 1 }

// minTensorBytes is the size of the smallest record: the length of an empty name, the number of
// dimensions, the type, the offset.
func (p *parser) minTensorBytes() int64 { return p.enc.lengthBytes + 4 + 4 + 8 }

// readMetadata reads n entries.
func (p *parser) readMetadata(f *File, n int64) error {
	f.Metadata = make([]KV, 0, min(n, firstRecords))
	for i := range n {
		p.kind, p.index, p.name = "metadata entry", i, ""
		var kv KV
		err := p.account(entryMemory)
		if err != nil {
			return err
		}
		if kv.Key, err = p.readName("the key's length", "the key", 1); err != nil {
			return err
		}
		p.name = kv.Key
		if err := p.readValue(&kv); err != nil {
			return err
		}
		if kv.Key == alignmentKey {
			if kv.Type != ValueUint32 {
				return p.errorf("the alignment is of type %v, not u32", kv.Type)
			}
			f.Alignment = int64(p.enc.u32(p.kept[kv.kept:]))
			if a := f.Alignment; a == 0 || a&(a-1) != 0 {
				return p.errorf("the alignment is %d, not a power of two", a)
			} else if a > maxAlignment {
				return p.beyond("the alignment is %d, more than %d", a, maxAlignment)
			}
		}
		f.Metadata = append(f.Metadata, kv)
	}
	var err error
	if f.byKey, err = sortByName(len(f.Metadata), func(i int32) string { return f.Metadata[i].Key }); err != nil {
		return damaged("two metadata entries have the key %w", err)
	}
	return nil
}

// readValue reads an entry's type and finds the end of its value.
func (p *parser) readValue(kv *KV) error {
	t, err := p.readU32("the type")
	if err != nil {
		return err
	}
	kv.Type, kv.Len = ValueType(t), 1
	if kv.Type >= valueTypeCount {
		return p.beyond("unknown value type %d", t)
	}
	switch kv.Type {
	case ValueArray:
		return p.readArray(kv)
	case ValueString:
		n, err := p.readLength("the string's length")
		if err != nil {
			return err
		}
		kv.off, kv.size, kv.kept = p.off, int64(n), inFile
		if n > uint64(min(maxKept, maxKeptAll-len(p.kept))) {
			return p.skipBytes(n, "the string")
		}
		return p.keepValue(kv, "the string")
	}
	kv.off, kv.size = p.off, valueTypes[kv.Type].bytes
	if err := p.keepValue(kv, "the value"); err != nil {
		return err
	}
	if v := p.kept[kv.kept]; kv.Type == ValueBool && v > 1 {
		return p.errorf("the boolean value is %d, not 0 or 1", v)
	}
	return nil
}

// keepValue reads the value's bytes and copies them to p.kept.
func (p *parser) keepValue(kv *KV, what string) error {
	b, err := p.readBytes(uint64(kv.size), what)
	if err != nil {
		return err
	}
	kv.kept = int32(len(p.kept))
	p.kept = append(p.kept, b...)
	return p.account(kv.size)
}

// readArray reads an array's type and length, and skips its elements.
func (p *parser) readArray(kv *KV) error {
	t, err := p.readU32("the array's element type")
	if err != nil {
		return err
	}
	kv.Elem = ValueType(t)
	if kv.Elem >= valueTypeCount {
		return p.beyond("unknown type %d of array elements", t)
	}
	if kv.Elem == ValueArray {
		return p.beyond("an array of arrays, which ggml does not read either")
	}
	width := valueTypes[kv.Elem].bytes
	if kv.Elem == ValueString {
		width = p.enc.lengthBytes // an empty string's length
	}
	if kv.Len, err = p.readCount(width, "the array's length"); err != nil {
		return err
	}
	kv.off, kv.kept = p.off, inFile
	if kv.Elem == ValueString {
		err = p.skipStrings(kv.Len)
	} else {
		err = p.skipBytes(uint64(kv.Len*width), "the array")
	}
	kv.size = p.off - kv.off
	return err
}

// skipStrings skips n strings. With large vocabularies this is the parser's hot loop. So strings
// within the window are skipped without a function call.
func (p *parser) skipStrings(n int64) error {
	for i := int64(0); i < n; i++ {
		length, err := p.readLength("the length of a string in the array")
		if err != nil {
			return err
		}
		if err := p.skipBytes(length, "a string in the array"); err != nil {
			return err
		}
		if p.enc.big || p.enc.lengthBytes != 8 {
			continue // these encodings are rare, and three times slower to skip
		}
		b := p.src.windowFrom(p.off)
		pos := 0
		for i+1 < n && len(b)-pos >= 8 {
			length := binary.LittleEndian.Uint64(b[pos:])
			if length > uint64(len(b)-pos-8) {
				break
			}
			pos += 8 + int(length)
			i++
		}
		p.off += int64(pos)
	}
	return nil
}

// readTensors reads n tensors' records and checks where their data lie.
func (p *parser) readTensors(f *File, n int64) error {
	if err := p.readTensorTable(f, n); err != nil {
		return err
	}
	// ggml pads only if tensors follow; the first part of a split model may have none.
	p.kind = ""
	if n > 0 {
		if err := p.skipBytes(uint64(-p.off&(f.Alignment-1)), "the padding before the tensor data"); err != nil {
			return err
		}
	}
	f.DataOffset = p.off
	if err := p.placeTensors(f); err != nil {
		return err
	}
	var err error
	if f.byName, err = sortByName(len(f.Tensors), func(i int32) string { return f.Tensors[i].Name }); err != nil {
		return damaged("two tensors have the name %w", err)
	}
	return nil
}

// readTensorTable reads n tensors' records. The offsets stay relative to the data.
func (p *parser) readTensorTable(f *File, n int64) error {
	f.Tensors = make([]Tensor, 0, min(n, firstRecords))
	var dims []int64 // one allocation for the shapes of many tensors
	for i := range n {
		p.kind, p.index, p.name = "tensor", i, ""
		var t Tensor
		err := p.account(tensorMemory)
		if err != nil {
			return err
		}
		if cap(dims)-len(dims) < maxDims {
			dims = make([]int64, 0, 2*firstRecords)
		}
		if dims, err = p.readTensor(&t, dims); err != nil {
			return err
		}
		f.Tensors = append(f.Tensors, t)
	}
	return nil
}

// placeTensors makes the tensors' offsets absolute, and sorts the tensors by them. It checks the
// alignment, and that tensors lie in the file and do not overlap.
func (p *parser) placeTensors(f *File) error {
	data := f.Size - f.DataOffset
	unsized := false
	for i := range f.Tensors {
		t := &f.Tensors[i]
		p.kind, p.index, p.name = "tensor", int64(i), t.Name
		if t.Offset%f.Alignment != 0 {
			return p.errorf("offset %d is not a multiple of the alignment %d", t.Offset, f.Alignment)
		}
		if t.Offset > data || !isUnsized(t) && t.Size > data-t.Offset {
			return cutOff("%s needs %d bytes from %d of the data that begin at byte %d, the file has %d bytes",
				p.position(), max(t.Size, 0), t.Offset, f.DataOffset, f.Size)
		}
		unsized = unsized || isUnsized(t)
		t.Offset += f.DataOffset
	}
	compare := func(a, b Tensor) int {
		// Of tensors that begin at the same byte, only the last may have any.
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), compareBools(hasElements(&a), hasElements(&b)))
	}
	if f.InOrder = slices.IsSortedFunc(f.Tensors, compare); !f.InOrder {
		slices.SortFunc(f.Tensors, compare)
	}
	if unsized {
		layOut(f)
	}
	return checkExtents(f)
}

// checkExtents checks that tensors in the order of their offsets lie in the file, do not overlap, and
// have bytes if they have elements.
func checkExtents(f *File) error {
	end := f.DataOffset
	for i := range f.Tensors {
		t := &f.Tensors[i]
		if t.Offset < end {
			a := &f.Tensors[i-1]
			return damaged("tensors %.100q (bytes %d to %d) and %.100q (from byte %d) overlap", a.Name, a.Offset,
				a.End(), t.Name, t.Offset)
		}
		if t.Size > f.Size-t.Offset {
			return cutOff("tensor %.100q needs %d bytes from byte %d, the file has %d bytes", t.Name, t.Size, t.Offset,
				f.Size)
		}
		if t.Size == 0 && t.Opaque() && hasElements(t) {
			if i+1 == len(f.Tensors) {
				return cutOff("tensor %.100q begins at byte %d, where the file ends", t.Name, t.Offset)
			}
			return damaged("tensors %.100q and %.100q begin at the same byte %d", t.Name, f.Tensors[i+1].Name, t.Offset)
		}
		end = t.End()
	}
	return nil
}

// readTensor reads one tensor's record; its Offset stays relative to the data, and its size is not
// known yet if isUnsized. The shape is appended to dims.
func (p *parser) readTensor(t *Tensor, dims []int64) ([]int64, error) {
	var err error
	if t.Name, err = p.readName("the name's length", "the name", 0); err != nil {
		return nil, err
	}
	p.name = t.Name
	// Zeros are records without a name. In a sparse file there may be any number of them.
	if t.Name == "" && p.sawUnnamed {
		return nil, p.errorf("it is the second tensor without a name")
	}
	p.sawUnnamed = p.sawUnnamed || t.Name == ""
	n, err := p.readU32("the number of dimensions")
	if err != nil {
		return nil, err
	}
	if n > maxDims {
		return nil, p.beyond("%d dimensions, not 0 to %d", n, maxDims)
	}
	first := len(dims)
	if dims, err = p.readShape(dims, n); err != nil {
		return nil, err
	}
	t.Shape = dims[first:len(dims):len(dims)]
	if err := p.account(int64(8 * len(t.Shape))); err != nil {
		return nil, err
	}

	number, err := p.readU32("the type")
	if err != nil {
		return nil, err
	}
	if number > MaxNumber {
		return nil, p.errorf("type(%d), which no fork of ggml has", number)
	}
	t.Type = Type(number)
	if t.Type.Valid() {
		if t.Size, err = t.Type.Bytes(t.Shape); err != nil {
			return nil, p.errorf("%w", err)
		}
	}

	offset, err := p.readU64("the offset")
	if err != nil {
		return nil, err
	}
	if offset > maxOffset {
		return nil, p.errorf("offset %d does not fit 63 bits", offset)
	}
	t.Offset = int64(offset)
	return dims, nil
}

// readShape appends n dimensions to dims. Without any, the tensor is of one element, and so is its
// shape. A dimension may be 0: ggml reads such tensors.
func (p *parser) readShape(dims []int64, n uint32) ([]int64, error) {
	if n == 0 {
		return append(dims, 1), nil
	}
	elems := uint64(1) // of the dimensions that are not 0: ggml multiplies in the order of the file
	for d := range n {
		ne, err := p.readLength("the dimensions")
		if err != nil {
			return nil, err
		}
		if ne > maxOffset {
			return nil, p.errorf("dimension %d is %d", d, ne)
		}
		var hi uint64
		if hi, elems = bits.Mul64(elems, max(ne, 1)); hi != 0 || elems > maxOffset {
			return nil, p.errorf("its number of elements does not fit 63 bits")
		}
		dims = append(dims, int64(ne))
	}
	return dims, nil
}

// sortByName sorts the numbers 0..n-1 by name. It is an error, with the name, if one occurs twice.
func sortByName(n int, name func(int32) string) (order []int32, err error) {
	order = make([]int32, n)
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return strings.Compare(name(a), name(b)) })
	for i := 1; i < n; i++ {
		if name(order[i-1]) == name(order[i]) {
			return nil, fmt.Errorf("%.100q", name(order[i]))
		}
	}
	return order, nil
}
