package trace

// This file reads the messages of an Arrow stream and unpacks them. Nothing that a file states is
// believed before it is checked: Arrow's own reader allocates whatever length it finds, unpacks without
// limit, and panics on much that contradicts itself. It gets only messages that were checked (see
// message.go) and unpacked here, so it neither decompresses nor starts goroutines.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/klauspost/compress/zstd"

	"tensorcast/internal/regular"
)

// ErrDamaged means that a file of a capture holds something that no tracer writes.
var ErrDamaged = errors.New("damaged")

// A table unpacks to at most unpackedFree bytes plus unpackedRatio times its size, which bounds what a
// small file can cost. Tables of short cycles repeat most. They unpack to some 200 times their size.
const (
	unpackedFree  = 64 << 20
	unpackedRatio = 2048
)

// messageReader reads a table's file message by message. It is an ipc.MessageReader. For a survey, next
// suffices, which reads no bodies. It is not safe for concurrent use.
type messageReader struct {
	file     *os.File
	size     int64 // of the file when it was opened; a running tracer may append
	offset   int64 // of the next message
	count    int   // messages read so far
	unpacked int64 // bytes unpacked so far
	zstd     *zstd.Decoder
	err      error        // what ended the stream: io.EOF at its mark, io.ErrUnexpectedEOF where it was cut
	msg      *ipc.Message // the latest
}

func openMessages(path string) (*messageReader, error) {
	f, err := regular.OpenHere(path)
	if err != nil {
		return nil, fmt.Errorf("open table: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open table: %w", err)
	}
	return &messageReader{file: f, size: info.Size()}, nil
}

func (m *messageReader) close() {
	if m.zstd != nil {
		m.zstd.Close()
	}
	m.file.Close() // it was only read
}

// recoverDamage calls do and turns a panic in it into an error. Arrow and flatbuffers panic where what
// they read contradicts itself.
func recoverDamage(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = damageError("it contradicts itself (%.200v)", p)
		}
	}()
	return do()
}

// damageError returns an ErrDamaged that says what is wrong.
func damageError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// next reads and checks the metadata of the next message, and skips its body. The error is also kept in
// m.err.
func (m *messageReader) next() (*message, error) {
	if m.err != nil {
		return nil, m.err
	}
	var msg *message
	m.err = recoverDamage(func() (err error) {
		msg, err = m.readMessage()
		return err
	})
	if m.err != nil && errors.Is(m.err, ErrDamaged) {
		m.err = fmt.Errorf("%w (message %d)", m.err, m.count)
	}
	m.count++
	return msg, m.err
}

func (m *messageReader) readMessage() (*message, error) {
	prefix, err := m.readBytes(8)
	if err != nil {
		return nil, err
	}
	switch begin, n := binary.LittleEndian.Uint32(prefix), int32(binary.LittleEndian.Uint32(prefix[4:])); {
	case begin == 0: // the file system has kept the length and lost the bytes
		return nil, io.ErrUnexpectedEOF
	case begin != continuation:
		return nil, damageError("it does not begin like a message")
	case n == 0 && m.offset < m.size:
		return nil, damageError("%d bytes follow its end", m.size-m.offset)
	case n == 0:
		return nil, io.EOF
	case n < 0 || n > maxHead:
		return nil, damageError("a message with %d bytes of metadata", n)
	default:
		msg := &message{}
		if msg.head, err = m.readBytes(int(n)); err != nil {
			return nil, err
		}
		if err := msg.parse(); err != nil {
			return nil, err
		}
		msg.body.offset = m.offset
		if msg.body.length > m.size-m.offset {
			return nil, io.ErrUnexpectedEOF
		}
		m.offset += msg.body.length
		return msg, nil
	}
}

// readBytes reads the next n bytes. The error is io.ErrUnexpectedEOF if there are fewer.
func (m *messageReader) readBytes(n int) ([]byte, error) {
	if int64(n) > m.size-m.offset {
		return nil, io.ErrUnexpectedEOF
	}
	b := make([]byte, n)
	if _, err := m.file.ReadAt(b, m.offset); err != nil {
		return nil, asTruncated(err)
	}
	m.offset += int64(n)
	return b, nil
}

// asTruncated turns the end of a file that was longer before into io.ErrUnexpectedEOF.
func asTruncated(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Message implements ipc.MessageReader: it reads the next message and unpacks it.
func (m *messageReader) Message() (*ipc.Message, error) {
	msg, err := m.next()
	if err != nil {
		return nil, err
	}
	body := make([]byte, msg.body.length)
	if _, err := m.file.ReadAt(body, msg.body.offset); err != nil {
		m.err = asTruncated(err)
		return nil, m.err
	}
	head := msg.head
	if msg.batch != nil {
		if body, err = m.unpack(msg, body); err != nil {
			m.err = fmt.Errorf("%w (message %d)", err, m.count-1)
			return nil, m.err
		}
		head = msg.encodeUnpackedHead(int64(len(body)))
	}
	m.Release()
	m.msg = ipc.NewMessage(memory.NewBufferBytes(head), memory.NewBufferBytes(body))
	return m.msg, nil
}

// Retain and Release implement ipc.MessageReader. They need no count, because there is one user.
func (m *messageReader) Retain() {}

func (m *messageReader) Release() {
	if m.msg != nil {
		m.msg.Release()
		m.msg = nil
	}
}

// unpack returns the message's body without compression. The batch's buffers then lie in that.
func (m *messageReader) unpack(msg *message, body []byte) ([]byte, error) {
	sizes, total, err := unpackedSizes(msg, body)
	if err != nil {
		return nil, err
	}
	if m.unpacked += total; m.unpacked > unpackedFree+unpackedRatio*m.size {
		return nil, damageError("%d bytes unpack to more than %d", m.size, unpackedFree+unpackedRatio*m.size)
	}
	out := make([]byte, 0, total)
	for i, s := range msg.batch.buffers {
		begin := len(out)
		msg.batch.buffers[i] = span{int64(begin), sizes[i]}
		from := body[s.offset : s.offset+s.length]
		switch {
		case len(from) == 0:
			continue
		case !msg.batch.packed:
			out = append(out, from...)
		case int64(binary.LittleEndian.Uint64(from)) == -1:
			out = append(out, from[8:]...)
		default:
			end := begin + int(sizes[i])
			got, err := m.decompress(from[8:], out[begin:begin:end])
			if err != nil {
				return nil, damageError("a buffer that does not unpack: %w", err)
			}
			if len(got) != int(sizes[i]) {
				return nil, damageError("a buffer that unpacks to %d bytes, and says %d", len(got), sizes[i])
			}
			out = out[:end]
		}
		out = out[:(len(out)+7)&^7]
	}
	return out, nil
}

// unpackedSizes returns how many bytes each buffer of a batch has when it is unpacked, and how many all
// of them take together. A compressed buffer begins with its unpacked size (8 bytes, little endian), or
// with -1 if compression did not make it smaller.
func unpackedSizes(msg *message, body []byte) (sizes []int64, total int64, err error) {
	maxUnpacked := int64(maxBatch)
	if msg.kind == ipc.MessageDictionaryBatch {
		maxUnpacked = maxDictionary
	}
	sizes = make([]int64, len(msg.batch.buffers))
	for i, s := range msg.batch.buffers {
		sizes[i] = s.length
		if msg.batch.packed && s.length > 0 {
			if s.length < 8 {
				return nil, 0, damageError("a compressed buffer of %d bytes", s.length)
			}
			if sizes[i] = int64(binary.LittleEndian.Uint64(body[s.offset:])); sizes[i] == -1 {
				sizes[i] = s.length - 8
			}
		}
		if sizes[i] < 0 || sizes[i] > maxUnpacked-total {
			return nil, 0, damageError("a batch of more than %d MiB", maxUnpacked>>20)
		}
		total += (sizes[i] + 7) &^ 7 // buffers are aligned
	}
	return sizes, total, nil
}

// decompress unpacks into out, up to its capacity.
func (m *messageReader) decompress(packed, out []byte) ([]byte, error) {
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
