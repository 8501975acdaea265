package trace

// This file parses and checks the metadata of a message of an Arrow stream.

import (
	"errors"
	"slices"

	"github.com/apache/arrow/go/v17/arrow/ipc"
	flatbuffers "github.com/google/flatbuffers/go"

	"tensorcast/trace/tables"
)

// What a table may hold. Batches have up to 32768 rows, which take 3 MB, or 30 MB if each lists 256
// experts. Batches of the hidden table end at 8 MiB. Dictionaries have up to 98303 names of 63 bytes.
const (
	maxHead       = 1 << 20  // bytes of a message's metadata
	maxBatch      = 32 << 20 // bytes of a batch, unpacked
	maxDictionary = 16 << 20 // bytes of a dictionary, unpacked

	maxColumns  = 256 // of a table, with the items of lists
	maxNesting  = 4   // of lists
	maxMetadata = 64  // keys of a schema, and of a column
)

// Numbers of fields, and values, in the Arrow format (format/Message.fbs and format/Schema.fbs).
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

	pairBytes = 16 // a node (length, nulls) or a buffer (offset, length)
)

// message is a message of a stream, parsed and checked.
type message struct {
	kind     ipc.MessageType
	head     []byte // the metadata
	version  int16
	body     span // in the file
	batch    *batch
	id       int64             // of a dictionary
	metadata map[string]string // of a schema
}

// batch describes the columns of a record batch or a dictionary, one after the other.
type batch struct {
	rows    int64
	nodes   []node
	buffers []span // in the body
	packed  bool   // the buffers are compressed
}

// node describes a column.
type node struct{ length, nulls int64 }

// span is a range of bytes.
type span struct{ offset, length int64 }

// parse fills in everything but head and the body's offset from head.
func (m *message) parse() error {
	t := rootTable(m.head)
	m.kind = ipc.MessageType(t.GetByteSlot(slotOf(messageKind), 0))
	m.version = t.GetInt16Slot(slotOf(messageVersion), 0)
	m.body.length = t.GetInt64Slot(slotOf(messageBody), 0)
	header, ok := t.child(messageHeader)
	if !ok {
		return damageError("a message without content")
	}
	maxUnpacked := int64(0)
	switch m.kind {
	case ipc.MessageSchema:
		var c schemaChecker
		if err := errors.Join(c.fields(header, schemaFields, maxNesting),
			c.metadata(header, schemaMetadata)); err != nil {
			return err
		}
		m.metadata = map[string]string{}
		for kv := range header.children(schemaMetadata) {
			m.metadata[string(kv.text(0))] = string(kv.text(1))
		}
	case ipc.MessageRecordBatch:
		maxUnpacked = maxBatch
	case ipc.MessageDictionaryBatch:
		maxUnpacked = maxDictionary
		m.id = header.GetInt64Slot(slotOf(dictionaryID), 0)
		if header.GetByteSlot(slotOf(dictionaryDelta), 0) != 0 {
			return damageError("a dictionary that continues another one")
		}
		if header, ok = header.child(dictionaryData); !ok {
			return damageError("a dictionary without content")
		}
	default:
		return damageError("a message of kind %d", m.kind)
	}
	// Compression makes a buffer longer by a few bytes at most, save for very short ones.
	if m.body.length < 0 || m.body.length > maxUnpacked+maxHead {
		return damageError("a message of %d bytes", m.body.length)
	}
	if m.kind == ipc.MessageSchema {
		return nil
	}
	var err error
	m.batch, err = parseBatch(header, m.body.length, maxUnpacked)
	return err
}

// schemaChecker bounds what Arrow copies of a schema. Parts of a flatbuffer may share bytes, so the sum
// of their sizes is not bounded by its size.
type schemaChecker struct{ columns, text int }

// fields checks that the columns of a schema, or the items of a list, have types that occur in tables.
func (c *schemaChecker) fields(t flat, field, nesting int) error {
	for f := range t.children(field) {
		if c.columns++; c.columns > maxColumns || nesting == 0 {
			return damageError("more than %d columns, or lists of lists", maxColumns)
		}
		typ := f.GetByteSlot(slotOf(fieldType), 0)
		_, indexed := f.child(fieldDictionary)
		switch {
		case typ == typeUTF8:
		case typ == typeFixedSizeList && !indexed:
			size := int32(0)
			if list, ok := f.child(fieldOfType); ok {
				size = list.GetInt32Slot(slotOf(listSize), 0)
			}
			if size <= 0 || size > tables.MaxHidden {
				return damageError("a column of lists of %d values", size)
			}
		case indexed, typ != typeInt && typ != typeFloatingPoint && typ != typeBool && typ != typeList:
			return damageError("a column of type %d", typ)
		}
		if err := errors.Join(c.countText(f.text(fieldName)), c.metadata(f, fieldMetadata),
			c.fields(f, fieldChildren, nesting-1)); err != nil {
			return err
		}
	}
	return nil
}

func (c *schemaChecker) metadata(t flat, field int) error {
	if _, n := t.vector(field, flatbuffers.SizeUOffsetT); n > maxMetadata {
		return damageError("metadata of %d keys", n)
	}
	for kv := range t.children(field) {
		if err := errors.Join(c.countText(kv.text(0)), c.countText(kv.text(1))); err != nil {
			return err
		}
	}
	return nil
}

func (c *schemaChecker) countText(text []byte) error {
	if c.text += len(text); c.text > maxHead {
		return damageError("names and metadata of more than %d bytes", maxHead)
	}
	return nil
}

// parseBatch reads and checks the description of a batch. The batch's body has so many bytes, and at
// most maxUnpacked when it is unpacked.
func parseBatch(t flat, body, maxUnpacked int64) (*batch, error) {
	b := &batch{rows: t.GetInt64Slot(slotOf(batchLength), 0)}
	if _, n := t.vector(batchVariadic, 8); n > 0 {
		return nil, damageError("a batch with a column of views")
	}
	if c, ok := t.child(batchCompression); ok {
		codec, method := c.GetByteSlot(slotOf(compressionCodec), 0), c.GetByteSlot(slotOf(compressionMethod), 0)
		if codec != codecZstd || method != 0 {
			return nil, damageError("a batch compressed by method %d with codec %d", method, codec)
		}
		b.packed = true
	}
	if b.rows < 0 || b.rows > maxUnpacked {
		return nil, damageError("a batch of %d rows", b.rows)
	}
	for _, pair := range t.pairs(batchNodes) {
		n := node{length: pair[0], nulls: pair[1]}
		if n.length < 0 || n.length > maxUnpacked || n.nulls < 0 || n.nulls > n.length {
			return nil, damageError("a column of %d values, %d of them null", n.length, n.nulls)
		}
		b.nodes = append(b.nodes, n)
	}
	rest := body // buffers do not overlap
	for _, pair := range t.pairs(batchBuffers) {
		s := span{offset: pair[0], length: pair[1]}
		if s.offset < 0 || s.length < 0 || s.offset > body || s.length > body-s.offset || s.length > rest {
			return nil, damageError("a buffer of %d bytes at byte %d of %d", s.length, s.offset, body)
		}
		rest -= s.length
		b.buffers = append(b.buffers, s)
	}
	return b, nil
}

// encodeUnpackedHead returns the metadata of the batch without compression, for a body of so many bytes.
func (m *message) encodeUnpackedHead(body int64) []byte {
	b := flatbuffers.NewBuilder(1024) // it is filled from the end
	b.StartVector(pairBytes, len(m.batch.nodes), 8)
	for _, n := range slices.Backward(m.batch.nodes) {
		b.PrependInt64(n.nulls)
		b.PrependInt64(n.length)
	}
	nodes := b.EndVector(len(m.batch.nodes))
	b.StartVector(pairBytes, len(m.batch.buffers), 8)
	for _, s := range slices.Backward(m.batch.buffers) {
		b.PrependInt64(s.length)
		b.PrependInt64(s.offset)
	}
	buffers := b.EndVector(len(m.batch.buffers))
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
