package trace

// This file reads the messages of an Arrow stream. Nothing that a file states is believed before it
// is checked: Arrow's own reader allocates whatever length it finds, unpacks without limit, and
// panics on much that contradicts itself. It gets only messages that were checked here, and
// unpacked; so it neither decompresses nor starts goroutines.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	"github.com/klauspost/compress/zstd"

	"tensorcast/internal/regular"
	"tensorcast/trace/tables"
)

// ErrDamaged says that a file of a capture holds something that no tracer writes.
var ErrDamaged = errors.New("damaged")

// What a table may hold. Batches have up to 32768 rows, which take 3 MB, or 30 MB if each lists 256
// experts; those of the hidden table are ended at 8 MiB; dictionaries have up to 98303 names of 63
// bytes.
const (
	maxHead       = 1 << 20  // bytes of a message's metadata
	maxBatch      = 32 << 20 // bytes of a batch, unpacked
	maxDictionary = 16 << 20 // bytes of a dictionary, unpacked

	// A table unpacks to at most unpackedFree bytes and unpackedRatio times its size: what a small
	// file can cost is bounded. Tables of short cycles, which repeat most, unpack to some 200 times
	// their size.
	unpackedFree  = 64 << 20
	unpackedRatio = 2048

	maxColumns  = 256 // of a table, with the items of lists
	maxNesting  = 4   // of lists
	maxMetadata = 64  // keys of a schema, and of a column
)

// Of the Arrow format (format/Message.fbs and format/Schema.fbs): the numbers of fields, and values.
const (
	continuation = 0xFFFFFFFF // begins a message

	messageVersion, messageKind, messageHeader, messageBody                               = 0, 1, 2, 3
	schemaFields, schemaMetadata                                                          = 1, 2
	fieldName, fieldType, fieldOfType, fieldDictionary, fieldChildren, fieldMetadata      = 0, 2, 3, 4, 5, 6
	listSize                                                                              = 0
	batchLength, batchNodes, batchBuffers, batchCompression, batchVariadic                = 0, 1, 2, 3, 4
	dictionaryID, dictionaryData, dictionaryDelta                                         = 0, 1, 2
	compressionCodec, compressionMethod                                                   = 0, 1
	typeInt, typeFloatingPoint, typeUTF8, typeBool, typeList                         byte = 2, 3, 5, 6, 12
	typeFixedSizeList                                                                byte = 16
	codecZstd                                                                        byte = 1

	structBytes = 16 // of a node (length, nulls) and of a buffer (offset, length)
)

// messages reads a table's file message by message. It is an ipc.MessageReader; for a survey, next
// suffices, which reads no bodies. It is not safe for concurrent use.
type messages struct {
	file     *os.File
	size     int64 // of the file when it was opened; a running tracer may append
	at       int64
	number   int   // of messages so far
	unpacked int64 // bytes so far
	zstd     *zstd.Decoder
	err      error // that ended the stream: io.EOF at its mark, io.ErrUnexpectedEOF where it was cut
	msg      *ipc.Message
}

// message is what was read and checked of one.
type message struct {
	kind     ipc.MessageType
	head     []byte // the metadata
	version  int16
	body     span // in the file
	batch    *batch
	id       int64             // of a dictionary
	metadata map[string]string // of a schema
}

// batch describes columns, one after the other.
type batch struct {
	rows    int64
	nodes   []span // length and number of nulls
	buffers []span // in the body
	packed  bool
}

// span is two numbers: most often the offset and the length of something.
type span struct{ offset, length int64 }

func openMessages(path string) (*messages, error) {
	f, err := regular.OpenHere(path)
	if err != nil {
		return nil, fmt.Errorf("open table: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open table: %w", err)
	}
	return &messages{file: f, size: info.Size()}, nil
}

func (m *messages) close() {
	if m.zstd != nil {
		m.zstd.Close()
	}
	m.file.Close() // it was only read
}

// guard makes an error of a panic in do. Arrow and flatbuffers panic where what they read
// contradicts itself.
func guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = damage("it contradicts itself (%.200v)", p)
		}
	}()
	return do()
}

func damage(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// next reads and checks what the next message says of itself. The error is also in m.err.
func (m *messages) next() (*message, error) {
	if m.err != nil {
		return nil, m.err
	}
	var msg *message
	m.err = guard(func() (err error) {
		msg, err = m.read()
		return err
	})
	if m.err != nil && errors.Is(m.err, ErrDamaged) {
		m.err = fmt.Errorf("%w (message %d)", m.err, m.number)
	}
	m.number++
	return msg, m.err
}

func (m *messages) read() (*message, error) {
	prefix, err := m.bytes(8)
	if err != nil {
		return nil, err
	}
	switch begin, n := binary.LittleEndian.Uint32(prefix), int32(binary.LittleEndian.Uint32(prefix[4:])); {
	case begin == 0: // the file system has kept the length and lost the bytes
		return nil, io.ErrUnexpectedEOF
	case begin != continuation:
		return nil, damage("it does not begin like a message")
	case n == 0 && m.at < m.size:
		return nil, damage("%d bytes follow its end", m.size-m.at)
	case n == 0:
		return nil, io.EOF
	case n < 0 || n > maxHead:
		return nil, damage("a message with %d bytes of metadata", n)
	default:
		msg := &message{}
		if msg.head, err = m.bytes(int(n)); err != nil {
			return nil, err
		}
		if err := msg.parse(); err != nil {
			return nil, err
		}
		msg.body.offset = m.at
		if msg.body.length > m.size-m.at {
			return nil, io.ErrUnexpectedEOF
		}
		m.at += msg.body.length
		return msg, nil
	}
}

// bytes reads the next n bytes. The error is io.ErrUnexpectedEOF if there are fewer.
func (m *messages) bytes(n int) ([]byte, error) {
	if int64(n) > m.size-m.at {
		return nil, io.ErrUnexpectedEOF
	}
	b := make([]byte, n)
	if _, err := m.file.ReadAt(b, m.at); err != nil {
		return nil, cut(err)
	}
	m.at += int64(n)
	return b, nil
}

// cut is what the end of a file is that was longer before.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// flat is a table of a flatbuffer. Its methods panic where the buffer contradicts itself.
type flat struct{ flatbuffers.Table }

func root(b []byte) flat {
	return flat{flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}}
}

// slot is where a table's index says where a field is.
func slot(field int) flatbuffers.VOffsetT { return flatbuffers.VOffsetT(4 + 2*field) }

// child is the table in a field.
func (t flat) child(field int) (flat, bool) {
	o := flatbuffers.UOffsetT(t.Offset(slot(field)))
	if o == 0 {
		return flat{}, false
	}
	return flat{flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(t.Pos + o)}}, true
}

// vector is the vector in a field, of n elements of some bytes each, which all lie in the buffer.
func (t flat) vector(field, elementBytes int) (begin flatbuffers.UOffsetT, n int) {
	o := flatbuffers.UOffsetT(t.Offset(slot(field)))
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

// spans are the elements of a vector of structs.
func (t flat) spans(field int) []span {
	begin, n := t.vector(field, structBytes)
	all := make([]span, n)
	for i := range all {
		at := begin + flatbuffers.UOffsetT(i*structBytes)
		all[i] = span{t.GetInt64(at), t.GetInt64(at + 8)}
	}
	return all
}

// text is shared with the buffer.
func (t flat) text(field int) []byte {
	o := t.Offset(slot(field))
	if o == 0 {
		return nil
	}
	return t.ByteVector(flatbuffers.UOffsetT(o) + t.Pos)
}

func (m *message) parse() error {
	t := root(m.head)
	m.kind, m.version = ipc.MessageType(t.GetByteSlot(slot(messageKind), 0)), t.GetInt16Slot(slot(messageVersion), 0)
	m.body.length = t.GetInt64Slot(slot(messageBody), 0)
	header, ok := t.child(messageHeader)
	if !ok {
		return damage("a message without content")
	}
	most := int64(0)
	switch m.kind {
	case ipc.MessageSchema:
		var c schemaCheck
		if err := errors.Join(c.fields(header, schemaFields, maxNesting),
			c.metadata(header, schemaMetadata)); err != nil {
			return err
		}
		m.metadata = map[string]string{}
		for kv := range header.children(schemaMetadata) {
			m.metadata[string(kv.text(0))] = string(kv.text(1))
		}
	case ipc.MessageRecordBatch:
		most = maxBatch
	case ipc.MessageDictionaryBatch:
		most = maxDictionary
		m.id = header.GetInt64Slot(slot(dictionaryID), 0)
		if header.GetByteSlot(slot(dictionaryDelta), 0) != 0 {
			return damage("a dictionary that continues another one")
		}
		if header, ok = header.child(dictionaryData); !ok {
			return damage("a dictionary without content")
		}
	default:
		return damage("a message of kind %d", m.kind)
	}
	// A compressed buffer is longer than it was by a few bytes at most, save for very short ones.
	if m.body.length < 0 || m.body.length > most+maxHead {
		return damage("a message of %d bytes", m.body.length)
	}
	if m.kind == ipc.MessageSchema {
		return nil
	}
	var err error
	m.batch, err = parseBatch(header, m.body.length, most)
	return err
}

// schemaCheck checks what Arrow copies of a schema. Parts of a flatbuffer may share bytes, so that
// their sizes together are not bounded by its size.
type schemaCheck struct{ columns, text int }

// fields checks the columns of a schema, or the items of a list: that they are of types of which
// tables are made.
func (c *schemaCheck) fields(t flat, field, nesting int) error {
	for f := range t.children(field) {
		if c.columns++; c.columns > maxColumns || nesting == 0 {
			return damage("more than %d columns, or lists of lists", maxColumns)
		}
		typ := f.GetByteSlot(slot(fieldType), 0)
		_, indexed := f.child(fieldDictionary)
		switch {
		case typ == typeUTF8:
		case typ == typeFixedSizeList && !indexed:
			size := int32(0)
			if list, ok := f.child(fieldOfType); ok {
				size = list.GetInt32Slot(slot(listSize), 0)
			}
			if size <= 0 || size > tables.MaxHidden {
				return damage("a column of lists of %d values", size)
			}
		case indexed, typ != typeInt && typ != typeFloatingPoint && typ != typeBool && typ != typeList:
			return damage("a column of type %d", typ)
		}
		if err := errors.Join(c.copied(f.text(fieldName)), c.metadata(f, fieldMetadata),
			c.fields(f, fieldChildren, nesting-1)); err != nil {
			return err
		}
	}
	return nil
}

func (c *schemaCheck) metadata(t flat, field int) error {
	if _, n := t.vector(field, flatbuffers.SizeUOffsetT); n > maxMetadata {
		return damage("metadata of %d keys", n)
	}
	for kv := range t.children(field) {
		if err := errors.Join(c.copied(kv.text(0)), c.copied(kv.text(1))); err != nil {
			return err
		}
	}
	return nil
}

func (c *schemaCheck) copied(text []byte) error {
	if c.text += len(text); c.text > maxHead {
		return damage("names and metadata of more than %d bytes", maxHead)
	}
	return nil
}

// parseBatch reads the description of a batch whose body has so many bytes, and at most most when
// it is unpacked.
func parseBatch(t flat, body, most int64) (*batch, error) {
	b := &batch{rows: t.GetInt64Slot(slot(batchLength), 0), nodes: t.spans(batchNodes), buffers: t.spans(batchBuffers)}
	if _, n := t.vector(batchVariadic, 8); n > 0 {
		return nil, damage("a batch with a column of views")
	}
	if c, ok := t.child(batchCompression); ok {
		if codec, method := c.GetByteSlot(slot(compressionCodec), 0),
			c.GetByteSlot(slot(compressionMethod), 0); codec != codecZstd || method != 0 {
			return nil, damage("a batch compressed by method %d with codec %d", method, codec)
		}
		b.packed = true
	}
	if b.rows < 0 || b.rows > most {
		return nil, damage("a batch of %d rows", b.rows)
	}
	for _, n := range b.nodes {
		if length, nulls := n.offset, n.length; length < 0 || length > most || nulls < 0 || nulls > length {
			return nil, damage("a column of %d values, %d of them null", length, nulls)
		}
	}
	rest := body // buffers do not overlap
	for _, s := range b.buffers {
		if s.offset < 0 || s.length < 0 || s.offset > body || s.length > body-s.offset || s.length > rest {
			return nil, damage("a buffer of %d bytes at byte %d of %d", s.length, s.offset, body)
		}
		rest -= s.length
	}
	return b, nil
}

// Message implements ipc.MessageReader: it reads the next message and unpacks it.
func (m *messages) Message() (*ipc.Message, error) {
	msg, err := m.next()
	if err != nil {
		return nil, err
	}
	body := make([]byte, msg.body.length)
	if _, err := m.file.ReadAt(body, msg.body.offset); err != nil {
		m.err = cut(err)
		return nil, m.err
	}
	head := msg.head
	if msg.batch != nil {
		if body, err = m.unpack(msg, body); err != nil {
			m.err = fmt.Errorf("%w (message %d)", err, m.number-1)
			return nil, m.err
		}
		head = msg.unpacked(int64(len(body)))
	}
	m.Release()
	m.msg = ipc.NewMessage(memory.NewBufferBytes(head), memory.NewBufferBytes(body))
	return m.msg, nil
}

// Retain and Release implement ipc.MessageReader. There is one user.
func (m *messages) Retain() {}

func (m *messages) Release() {
	if m.msg != nil {
		m.msg.Release()
		m.msg = nil
	}
}

// unpack returns a body without compression, in which it places the batch's buffers.
func (m *messages) unpack(msg *message, body []byte) ([]byte, error) {
	most := int64(maxBatch)
	if msg.kind == ipc.MessageDictionaryBatch {
		most = maxDictionary
	}
	sizes := make([]int64, len(msg.batch.buffers)) // unpacked
	total := int64(0)
	for i, s := range msg.batch.buffers {
		sizes[i] = s.length
		if msg.batch.packed && s.length > 0 {
			if s.length < 8 {
				return nil, damage("a compressed buffer of %d bytes", s.length)
			}
			if sizes[i] = int64(binary.LittleEndian.Uint64(body[s.offset:])); sizes[i] == -1 { // it did not get smaller
				sizes[i] = s.length - 8
			}
		}
		if sizes[i] < 0 || sizes[i] > most-total {
			return nil, damage("a batch of more than %d MiB", most>>20)
		}
		total += (sizes[i] + 7) &^ 7 // buffers are aligned
	}
	if m.unpacked += total; m.unpacked > unpackedFree+unpackedRatio*m.size {
		return nil, damage("%d bytes unpack to more than %d", m.size, unpackedFree+unpackedRatio*m.size)
	}
	out := make([]byte, 0, total)
	for i, s := range msg.batch.buffers {
		at := len(out)
		msg.batch.buffers[i] = span{int64(at), sizes[i]}
		from := body[s.offset : s.offset+s.length]
		switch {
		case len(from) == 0:
			continue
		case !msg.batch.packed:
			out = append(out, from...)
		case int64(binary.LittleEndian.Uint64(from)) == -1:
			out = append(out, from[8:]...)
		default:
			end := at + int(sizes[i])
			got, err := m.decompress(from[8:], out[at:at:end])
			if err != nil {
				return nil, damage("a buffer that does not unpack: %w", err)
			}
			if len(got) != int(sizes[i]) {
				return nil, damage("a buffer that unpacks to %d bytes, and says %d", len(got), sizes[i])
			}
			out = out[:end]
		}
		out = out[:(len(out)+7)&^7]
	}
	return out, nil
}

// decompress unpacks into out, as far as its capacity goes.
func (m *messages) decompress(packed, out []byte) ([]byte, error) {
	if m.zstd == nil {
		var err error
		m.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(maxBatch), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return nil, err
		}
	}
	return m.zstd.DecodeAll(packed, out)
}

// unpacked is the metadata of the batch without compression, for a body of so many bytes.
func (m *message) unpacked(body int64) []byte {
	b := flatbuffers.NewBuilder(1024)
	spans := func(all []span) flatbuffers.UOffsetT {
		b.StartVector(structBytes, len(all), 8)
		for i := len(all) - 1; i >= 0; i-- {
			b.PrependInt64(all[i].length)
			b.PrependInt64(all[i].offset)
		}
		return b.EndVector(len(all))
	}
	nodes, buffers := spans(m.batch.nodes), spans(m.batch.buffers)
	b.StartObject(batchVariadic + 1)
	b.PrependInt64Slot(batchLength, m.batch.rows, 0)
	b.PrependUOffsetTSlot(batchNodes, nodes, 0)
	b.PrependUOffsetTSlot(batchBuffers, buffers, 0)
	header := b.EndObject()
	if m.kind == ipc.MessageDictionaryBatch {
		b.StartObject(dictionaryDelta + 1)
		b.PrependInt64Slot(dictionaryID, m.id, 0)
		b.PrependUOffsetTSlot(dictionaryData, header, 0)
		header = b.EndObject()
	}
	b.StartObject(messageBody + 1)
	b.PrependInt16Slot(messageVersion, m.version, 0)
	b.PrependByteSlot(messageKind, byte(m.kind), 0)
	b.PrependUOffsetTSlot(messageHeader, header, 0)
	b.PrependInt64Slot(messageBody, body, 0)
	b.Finish(b.EndObject())
	return b.FinishedBytes()
}
