package trace

// These tests read tables that were made to harm the reader.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	"golang.org/x/sys/unix"

	"tensorcast/internal/regular"
)

// zeros returns a table with one column, in batches of zeros.
func zeros(t *testing.T, rows, batches int, options ...ipc.Option) []byte {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "zero", Type: arrow.PrimitiveTypes.Int64}}, tableMetadata(""))
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues(make([]int64, rows), nil)
	rec := b.NewRecord()
	defer rec.Release()
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, append(options, ipc.WithSchema(schema))...)
	for range batches {
		check(t, w.Write(rec))
	}
	check(t, w.Close())
	return buf.Bytes()
}

// framed returns a message with these metadata, and n bytes of body.
func framed(head []byte, n int) []byte {
	b := binary.LittleEndian.AppendUint32(nil, continuation)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(head)))
	return append(append(b, head...), make([]byte, n)...)
}

// built returns a message of a kind with the header that make builds.
func built(kind ipc.MessageType, body int64, make func(b *flatbuffers.Builder) flatbuffers.UOffsetT) []byte {
	b := flatbuffers.NewBuilder(256)
	header := make(b)
	b.StartObject(4)
	b.PrependByteSlot(messageKind, byte(kind), 0)
	b.PrependUOffsetTSlot(messageHeader, header, 0)
	b.PrependInt64Slot(messageBody, body, 0)
	b.Finish(b.EndObject())
	return b.FinishedBytes()
}

// nested returns a schema with one column, whose two children are both the column itself.
func nested() []byte {
	var field flatbuffers.UOffsetT
	head := built(ipc.MessageSchema, 0, func(b *flatbuffers.Builder) flatbuffers.UOffsetT {
		b.StartVector(4, 2, 4)
		b.PrependUint32(0)
		b.PrependUint32(0)
		children := b.EndVector(2)
		b.StartObject(6)
		b.PrependByteSlot(fieldType, typeList, 0)
		b.PrependUOffsetTSlot(fieldChildren, children, 0)
		field = b.EndObject()
		b.StartVector(4, 1, 4)
		b.PrependUOffsetT(field)
		fields := b.EndVector(1)
		b.StartObject(2)
		b.PrependUOffsetTSlot(schemaFields, fields, 0)
		return b.EndObject()
	})
	top := rootTable(head)
	schema, _ := top.child(messageHeader)
	for f := range schema.children(schemaFields) {
		begin, n := f.vector(fieldChildren, 4)
		for i := range flatbuffers.UOffsetT(n) {
			binary.LittleEndian.PutUint32(head[begin+4*i:], uint32(f.Pos-(begin+4*i)))
		}
	}
	return head
}

// fixed returns a schema with one column of lists of so many values.
func fixed(size int32) []byte {
	return built(ipc.MessageSchema, 0, func(b *flatbuffers.Builder) flatbuffers.UOffsetT {
		b.StartObject(1)
		b.PrependInt32Slot(listSize, size, 0)
		list := b.EndObject()
		b.StartObject(6)
		b.PrependByteSlot(fieldType, typeFixedSizeList, 0)
		b.PrependUOffsetTSlot(fieldOfType, list, 0)
		field := b.EndObject()
		b.StartVector(4, 1, 4)
		b.PrependUOffsetT(field)
		fields := b.EndVector(1)
		b.StartObject(2)
		b.PrependUOffsetTSlot(schemaFields, fields, 0)
		return b.EndObject()
	})
}

// lists returns a table with one column and one batch, which holds two lists of three halves. The
// batch claims to hold so many lists and halves.
func lists(t *testing.T, rows, values int64) []byte {
	t.Helper()
	typ := arrow.FixedSizeListOfNonNullable(3, arrow.FixedWidthTypes.Float16)
	schema := arrow.NewSchema([]arrow.Field{{Name: "values", Type: typ}}, nil)
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(schema))
	none := array.NewRecordBuilder(memory.DefaultAllocator, schema).NewRecord()
	defer none.Release()
	check(t, w.Write(none)) // the schema is written with it
	n := 8 + binary.LittleEndian.Uint32(buf.Bytes()[4:])
	m := message{
		kind: ipc.MessageRecordBatch, version: 4,
		batch: &batch{rows: rows, nodes: []node{{rows, 0}, {values, 0}}, buffers: []span{{}, {}, {0, 2 * values}}},
	}
	return append(append(bytes.Clone(buf.Bytes()[:n]), framed(m.encodeUnpackedHead(16), 16)...), 0xff, 0xff, 0xff,
		0xff, 0, 0,
		0, 0)
}

// many returns a message whose header has a list that claims to have n elements.
func many(kind ipc.MessageType, field int, n uint32) []byte {
	return built(kind, 0, func(b *flatbuffers.Builder) flatbuffers.UOffsetT {
		b.StartVector(4, 1, 4)
		b.PrependUint32(0)
		list := b.EndVector(1)
		binary.LittleEndian.PutUint32(b.Bytes[len(b.Bytes)-int(list):], n)
		b.StartObject(6)
		b.PrependUOffsetTSlot(field, list, 0)
		return b.EndObject()
	})
}

// batchOf returns a batch of these buffers, in a body of so many bytes.
func batchOf(rows, body int64, buffers ...span) []byte {
	return batchOfNulls(0, rows, body, buffers...)
}

// batchOfNulls is batchOf, and claims that so many of the values are null.
func batchOfNulls(nulls, rows, body int64, buffers ...span) []byte {
	m := message{
		kind: ipc.MessageRecordBatch, version: 4,
		batch: &batch{rows: rows, nodes: []node{{rows, nulls}}, buffers: buffers},
	}
	return m.encodeUnpackedHead(body)
}

func delta() []byte {
	return built(ipc.MessageDictionaryBatch, 0, func(b *flatbuffers.Builder) flatbuffers.UOffsetT {
		b.StartObject(3)
		b.PrependByteSlot(dictionaryDelta, 1, 0)
		return b.EndObject()
	})
}

// All these tables are refused at little cost. Arrow's reader alone panics on some, and takes
// gigabytes or overflows the stack for others.
func TestHostileTables(t *testing.T) {
	one := zeros(t, 10, 1)
	schema := one[:8+binary.LittleEndian.Uint32(one[4:])]
	with := func(parts ...[]byte) []byte {
		return append(append(bytes.Clone(schema), bytes.Join(parts, nil)...), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0)
	}
	zstd := ipc.WithZstd()
	unsaid := zeros(t, 1000, 1, zstd) // the size that a buffer says it unpacks to is 8000
	binary.LittleEndian.PutUint64(unsaid[bytes.Index(unsaid, []byte{0x40, 0x1f, 0, 0, 0, 0, 0, 0}):], 7000)
	for name, tc := range map[string]struct {
		table []byte
		says  string
	}{
		"not a table": {[]byte("no Arrow at all, but long enough"), "it does not begin like a message"},
		"negative metadata": {with([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x80}),
			"a message with -2147483648 bytes of metadata"},
		"metadata of a gigabyte": {with([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x40}),
			"a message with 1073741824 bytes of metadata"},
		"metadata of nothing": {with(framed(make([]byte, 8), 0)), "a message without content"},
		"metadata of ones":    {with(framed(bytes.Repeat([]byte{0xff}, 64), 0)), "it contradicts itself"},
		"a body of an exabyte": {with(framed(batchOf(10, 1<<60, span{}, span{0, 80}), 0)),
			"a message of 1152921504606846976 bytes"},
		"a negative body": {with(framed(batchOf(10, -1, span{}, span{0, 80}), 0)), "a message of -1 bytes"},
		"no content": {with(framed(built(ipc.MessageRecordBatch, 0,
			func(*flatbuffers.Builder) flatbuffers.UOffsetT { return 0 }), 0)), "a message without content"},
		"a tensor": {with(framed(many(ipc.MessageTensor, 1, 1), 0)), "a message of kind 4"},
		"columns without end": {framed(many(ipc.MessageSchema, schemaFields, math.MaxUint32), 0),
			"a list of 4294967295 elements"},
		"metadata without end": {framed(many(ipc.MessageSchema, schemaMetadata, math.MaxUint32), 0),
			"a list of 4294967295 elements"},
		"columns within columns":  {framed(nested(), 0), "lists of lists"},
		"lists of no value":       {framed(fixed(0), 0), "a column of lists of 0 values"},
		"lists of negative size":  {framed(fixed(-1), 0), "a column of lists of -1 values"},
		"lists without end":       {framed(fixed(math.MaxInt32), 0), "a column of lists of 2147483647 values"},
		"fewer values than lists": {lists(t, 3, 6), "has 6 values for 3 rows of 3"},
		"nodes without end": {with(framed(many(ipc.MessageRecordBatch, batchNodes, math.MaxUint32), 0)),
			"a list of 4294967295 elements"},
		"views": {with(framed(many(ipc.MessageRecordBatch, batchVariadic, 0x10000000), 0)),
			"a list of 268435456 elements"},
		"negative rows":    {with(framed(batchOf(-1, 0), 0)), "a batch of -1 rows"},
		"rows without end": {with(framed(batchOf(1<<40, 0), 0)), "a batch of 1099511627776 rows"},
		"more rows than values": {with(framed(batchOf(11, 80, span{}, span{0, 80}), 80)),
			"has not as many values as rows"},
		"more rows than bits": {with(framed(batchOfNulls(1, 10, 88, span{0, 1}, span{8, 80}), 88)),
			"says in 1 bytes which of 10 values are null"},
		"a buffer beyond": {with(framed(batchOf(10, 80, span{}, span{8, 80}), 80)),
			"a buffer of 80 bytes at byte 8 of 80"},
		"a buffer far beyond": {with(framed(batchOf(10, 80, span{}, span{math.MaxInt64, 80}), 80)),
			"a buffer of 80 bytes at byte 9223372036854775807 of 80"},
		"a negative buffer": {with(framed(batchOf(10, 80, span{}, span{0, -80}), 80)), "a buffer of -80 bytes"},
		"buffers that overlap": {with(framed(batchOf(10, 80, span{0, 80}, span{0, 80}), 80)),
			"a buffer of 80 bytes at byte 0 of 80"},
		"a dictionary continued":  {with(framed(delta(), 0)), "a dictionary that continues another one"},
		"a batch too large":       {zeros(t, maxBatch/8+1, 1, zstd), "a batch of more than 32 MiB"},
		"many large batches":      {zeros(t, maxBatch/8, 4, zstd), "unpack to more than"},
		"not the size that it is": {unsaid, "a buffer that "},
		"another compression":     {zeros(t, 1000, 1, ipc.WithLZ4()), "compressed by method 0 with codec 0"},
		"something behind":        {append(bytes.Clone(one), 1), "1 bytes follow its end"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), AccessFile)
			check(t, os.WriteFile(path, tc.table, 0o600))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var last error
			for rec, err := range readRecords(path, true) {
				if last = err; err != nil {
					break
				}
				if err := checkArray(rec.Column(0), false); err != nil {
					last = fmt.Errorf("access.arrows is %w: %w", ErrDamaged, err)
					break
				}
			}
			runtime.ReadMemStats(&after)
			if !errors.Is(last, ErrDamaged) || !strings.Contains(last.Error(), tc.says) ||
				!strings.HasPrefix(last.Error(), "access.arrows is damaged: ") || len(last.Error()) > 500 {
				t.Errorf("error %v, want %q", last, tc.says)
			}
			most := uint64(4 << 20)
			if strings.Contains(name, "large") {
				most = 4*unpackedFree + 4*unpackedRatio*uint64(len(tc.table))
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > most {
				t.Errorf("it takes %d bytes; want at most %v", got, most)
			}
		})
	}
}

// Write leaves a buffer as it is if compression does not make it smaller. Both kinds of buffers
// read back the same.
func TestUnpack(t *testing.T) {
	for _, rows := range []int{0, 1, 3, 1000, 1 << 17} {
		for _, options := range [][]ipc.Option{
			nil, {ipc.WithZstd()}, {ipc.WithZstd(), ipc.WithMinSpaceSavings(0.9999)},
		} {
			path := filepath.Join(t.TempDir(), AccessFile)
			check(t, os.WriteFile(path, zeros(t, rows, 2, options...), 0o600))
			n := 0
			for rec, err := range readRecords(path, true) {
				check(t, err)
				values := rec.Column(0).(*array.Int64).Int64Values()
				if len(values) != rows || rows > 0 && values[rows-1] != 0 {
					t.Errorf("got %d values, want %d zeros", len(values), rows)
				}
				n++
			}
			if n != 2 {
				t.Errorf("%d batches; want 2", n)
			}
		}
	}
}

// Only regular files of the directory are opened. A FIFO would block for ever, and a symbolic link
// may lead anywhere.
func TestOnlyRegularFiles(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"fifo": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link": func(path string) error { return os.Symlink("/dev/zero", path) },
		"dir":  func(path string) error { return os.Mkdir(path, 0o700) },
		"elsewhere": func(path string) error {
			return errors.Join(os.Rename(path+".was", path+".elsewhere"), os.Symlink(path+".elsewhere", path))
		},
	} {
		for _, file := range []string{MetaFile, StructureFile, AccessFile, StepFile, RouteFile} {
			t.Run(name+" "+file, func(t *testing.T) {
				dir := t.TempDir()
				writeCapture(t, dir, testRows(3), nil)
				check(t, os.Rename(filepath.Join(dir, file), filepath.Join(dir, file+".was")))
				check(t, make(filepath.Join(dir, file)))
				done := inBackground(func() error { _, err := Open(dir); return err })
				select {
				case err := <-done:
					if !errors.Is(err, regular.ErrNotRegular) || !strings.Contains(err.Error(), file) {
						t.Errorf("error %v; want %v, text with %v", err, regular.ErrNotRegular, file)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("it blocks")
				}
			})
		}
	}
	// The directory itself may be a link.
	dir := t.TempDir()
	writeCapture(t, filepath.Join(dir, "capture"), testRows(3), nil)
	check(t, os.Symlink("capture", filepath.Join(dir, "link")))
	if rows, err := readRows(open(t, filepath.Join(dir, "link"))); err != nil || len(rows) != 3 {
		t.Errorf("%d rows, %v; want 3", len(rows), err)
	}
}

func inBackground(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// A file may shrink while it is read, or a file system may have filled its end with zeros. It then
// counts as cut there.
func TestShrinkingTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), AccessFile)
	table := zeros(t, 1000, 3)
	check(t, os.WriteFile(path, table, 0o600))
	m, err := openMessages(path)
	check(t, err)
	defer m.close()
	check(t, os.Truncate(path, 100))
	for err == nil {
		_, err = m.Message()
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v; want %v", err, io.ErrUnexpectedEOF)
	}
	check(t, os.WriteFile(path, append(table[:len(table)-8-400], make([]byte, 4096)...), 0o600))
	n := 0
	for _, err := range readRecords(path, false) {
		if err != nil {
			t.Log(err) // the last batch is made of zeros, or damaged
		}
		n++
	}
	if n < 2 {
		t.Errorf("%d batches; want at least 2", n)
	}
}
