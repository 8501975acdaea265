package fabric

// This file reads frames. It checks everything in a header before using it, and allocates memory
// only as bytes arrive.

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"

	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// FrameReader reads the frames of a stream one after the other. It does not read beyond the current
// frame. It is for one goroutine. To read a file with several goroutines, give each a reader of its
// own that starts at the offset of a frame.
type FrameReader struct {
	r     io.Reader
	name  string  // of the current frame
	m     *Matrix // the current matrix, without elements of planes and scales; nil if there is no payload to read
	forms []int   // forms of m's scales, those of Min last
	rest  int64   // bytes of payload and checksum that have not been read
	err   error   // an error after which the stream cannot be read any further

	crc hash.Hash32
	buf *bufio.Reader
}

// NewFrameReader returns a reader of the frames in r. If r is an io.Seeker, frames are skipped by
// seeking.
func NewFrameReader(r io.Reader) *FrameReader { return &FrameReader{r: r} }

// Next skips the rest of the current frame and reads the header of the next one. The error is
// io.EOF if the stream ends there. Other errors are the stream's, or wrap ErrNotFrame, ErrVersion,
// ErrTruncated, ErrChecksum or ErrFrame. After an error, every call returns the same error.
//
// The payload of a skipped frame is not checked.
func (f *FrameReader) Next() (*FrameInfo, error) {
	if f.err == nil {
		f.err = f.skipRest()
	}
	if f.err != nil {
		return nil, f.err
	}
	info, err := f.readHeader()
	if err != nil {
		if err != io.EOF {
			err = fmt.Errorf("read a frame's header: %w", err)
		}
		f.err = err
		return nil, err
	}
	return info, nil
}

// skipRest moves to the end of the current frame.
func (f *FrameReader) skipRest() error {
	n := f.rest
	f.m, f.rest = nil, 0
	if n == 0 {
		return nil
	}
	if s, ok := f.r.(io.Seeker); ok {
		// Seeking beyond the end is not an error. So the last byte is read, which is an error if it
		// is missing.
		if _, err := s.Seek(n-1, io.SeekCurrent); err == nil {
			n = 1
		}
	}
	if _, err := io.CopyN(io.Discard, f.r, n); err != nil {
		return fmt.Errorf("skip frame %.100q: %w", f.name, asTruncated(err))
	}
	return nil
}

// asTruncated turns an unexpected io.EOF into ErrTruncated.
func asTruncated(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return ErrTruncated
	}
	return err
}

// readHeader reads the next header and prepares f for reading the payload.
func (f *FrameReader) readHeader() (*FrameInfo, error) {
	b, err := readHeaderBytes(f.r)
	if err != nil {
		return nil, err
	}
	name, m, forms, err := decodeHeader(b)
	if err != nil {
		return nil, err
	}
	_, want, err := listSections(m, forms)
	if err != nil {
		return nil, err
	}
	if payload := binary.LittleEndian.Uint64(b[24:]); payload != uint64(want) {
		return nil, fmt.Errorf("%w: a payload of %d bytes, where the shape needs %d", ErrFrame, payload, want)
	}
	f.name, f.m, f.forms, f.rest = name, m, forms, want+crcBytes
	info := &FrameInfo{
		Name: f.name, Rows: m.Rows, Cols: m.Cols, Layout: m.Layout, Origin: m.Origin, Exact: m.Exact,
		Bytes: int64(len(b)) + crcBytes + f.rest,
	}
	for i := range m.Terms {
		info.Planes = append(info.Planes, len(m.Terms[i].Planes))
	}
	return info, nil
}

// readHeaderBytes reads a header, checks its magic number, byte order, version, size and checksum,
// and returns it without the checksum.
func readHeaderBytes(r io.Reader) ([]byte, error) {
	b := make([]byte, preludeBytes)
	n, err := io.ReadFull(r, b)
	if n == 0 {
		return nil, err
	}
	if k := min(n, len(frameMagic)); string(b[:k]) != frameMagic[:k] {
		return nil, fmt.Errorf("%w: it begins % x", ErrNotFrame, b[:k])
	}
	if err != nil {
		return nil, asTruncated(err)
	}
	u16, u32 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32
	switch mark := u32(b[8:]); {
	case binary.BigEndian.Uint32(b[8:]) == frameMark:
		return nil, fmt.Errorf("%w: its byte order is big-endian", ErrVersion)
	case mark != frameMark:
		return nil, fmt.Errorf("%w: its mark of byte order is %#08x", ErrFrame, mark)
	}
	if v := u16(b[12:]); v != frameVersion {
		return nil, fmt.Errorf("%w: it is of version %d, not %d", ErrVersion, v, frameVersion)
	}
	size := u32(b[16:])
	if size > frameHeaderMax || size < preludeBytes || size%frameAlign != 0 {
		return nil, fmt.Errorf("%w: a header of %d bytes", ErrFrame, size)
	}
	whole := bytes.NewBuffer(b)
	if n, err := io.CopyN(whole, r, int64(size)-preludeBytes); err != nil {
		return nil, fmt.Errorf("%d bytes of %d: %w", preludeBytes+n, size, asTruncated(err))
	}
	b = whole.Bytes()
	b, sum := b[:size-crcBytes], u32(b[size-crcBytes:])
	if got := crc32.Checksum(b, castagnoli); got != sum {
		return nil, fmt.Errorf("%w: it is %#08x, the bytes' is %#08x", ErrChecksum, sum, got)
	}
	return b, nil
}

// decodeHeader decodes and checks a header from readHeaderBytes. It returns the frame's name, its
// matrix without elements of planes and scales, and the forms of the scales, those of Min last. The
// checksum of the header was right, so the bytes are those that were written. But it need not have
// been a trustworthy program that wrote them.
func decodeHeader(b []byte) (name string, m *Matrix, forms []int, err error) {
	u16, u32, u64 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	size := len(b) + crcBytes
	flags, rows, cols := u16(b[14:]), u64(b[32:]), u64(b[40:])
	terms, nameLen := int(u16(b[54:])), int(u16(b[56:]))
	switch {
	case flags&^flagExact != 0 || u32(b[20:])|u32(b[60:])|uint32(u16(b[58:])) != 0:
		return "", nil, nil, fmt.Errorf("%w: reserved bits are set", ErrFrame)
	case rows > maxFrameDim || cols > maxFrameDim:
		return "", nil, nil, fmt.Errorf("%w: %d rows of %d columns", ErrFrame, rows, cols)
	case trit.Layout(b[53]) != trit.PT5:
		return "", nil, nil, fmt.Errorf("%w: planes stored as %v", ErrFrame, trit.Layout(b[53]))
	case terms > maxFrameTerms || headerBytes(nameLen, terms) != size:
		return "", nil, nil, fmt.Errorf("%w: a header of %d bytes for %d terms and a name of %d bytes",
			ErrFrame, size, terms, nameLen)
	}
	m = &Matrix{
		Rows: int(rows), Cols: int(cols), Layout: trit.Layout(b[52]), Origin: gguf.Type(u32(b[48:])),
		Exact: flags&flagExact != 0, Terms: make([]Term, terms),
	}
	forms = make([]int, terms+1)
	for i := range terms + 1 {
		t := &Term{}
		if i < terms {
			t = &m.Terms[i]
		}
		r := b[preludeBytes+i*recordBytes:]
		planes := u32(r)
		t.Center = int32(u32(r[4:]))
		if forms[i], err = readForm(&t.Scales, u32(r[8:]), u64(r[16:]), m.Cols); err != nil {
			return "", nil, nil, err
		}
		if u32(r[12:]) != 0 || planes > maxFramePlanes || i == terms && (planes != 0 || t.Center != 0) {
			return "", nil, nil, fmt.Errorf("%w: reserved bits are set, or %d planes, in record %d",
				ErrFrame, planes, i)
		}
		if i == terms {
			m.Min = t.Scales
		} else {
			t.Planes = make([][]byte, planes)
		}
	}
	name = string(b[preludeBytes+(terms+1)*recordBytes:][:nameLen])
	for _, zero := range b[preludeBytes+(terms+1)*recordBytes+nameLen:] {
		if zero != 0 {
			return "", nil, nil, fmt.Errorf("%w: bytes after the name", ErrFrame)
		}
	}
	if err := checkHeader(name, m); err != nil {
		return "", nil, nil, err
	}
	return name, m, forms, nil
}

// readForm sets s to scales without elements, in the form that a record has. It returns the form.
func readForm(s *Scales, form uint32, block uint64, cols int) (int, error) {
	if block > math.MaxInt {
		return 0, fmt.Errorf("%w: scales in blocks of %d", ErrFrame, block)
	}
	s.Block = int(block)
	switch form {
	case scalesHalf:
		s.Half = []uint16{}
	case scalesSub:
		s.Sub, s.Super = []int8{}, []uint16{}
	}
	got, err := s.form(cols)
	if err == nil && uint32(got) != form {
		err = fmt.Errorf("%w: no such form of scales: %d", ErrFrame, form)
	}
	return got, err
}

// Matrix reads the payload of the frame whose header Next has returned. It can be called once per
// frame. The planes get the given layout. If it is 0, they get the layout of the matrix that was
// written.
//
// Errors are the stream's, or wrap one of these: ErrTruncated; ErrChecksum; trit.ErrInvalid, with
// the position of the invalid byte; ErrFrame. After the last three, the next frame can be read.
//
// Memory is allocated as bytes arrive, or at once if the stream is an io.Seeker that has them all.
// It is at most eight times the size of the data plus half a MiB. For this limit, data is counted
// in groups of 64 bytes, so that it is higher if rows are shorter than a group.
func (f *FrameReader) Matrix(layout trit.Layout) (*Matrix, error) {
	if f.err != nil {
		return nil, f.err
	}
	if f.m == nil {
		return nil, errors.New("read a frame: its header was not read, or its payload was")
	}
	m := f.m
	if layout != 0 {
		m.Layout = layout
	}
	if !m.Layout.Valid() {
		return nil, fmt.Errorf("read frame %.100q: no such layout: %v", f.name, layout)
	}
	list, payload, err := listSections(m, f.forms)
	if err != nil {
		return nil, fmt.Errorf("read frame %.100q as %v: %w", f.name, layout, err)
	}
	f.m, f.rest = nil, 0
	if err := f.readPayload(m, list, payload); err != nil {
		return nil, fmt.Errorf("read frame %.100q: %w", f.name, err)
	}
	return m, nil
}

// readPayload reads the payload and its checksum. Errors that leave the stream inside the frame are
// stored in f.err.
func (f *FrameReader) readPayload(m *Matrix, list []section, payload int64) error {
	if f.buf == nil {
		f.crc, f.buf = crc32.New(castagnoli), bufio.NewReaderSize(nil, 4*pieceBytes)
	}
	f.crc.Reset()
	f.buf.Reset(io.TeeReader(io.LimitReader(f.r, payload), f.crc))
	p := payloadReader{buf: f.buf, complete: f.remaining() >= payload}
	for i := range list {
		if err := p.readSection(&list[i], m); err != nil {
			p.recordFault(fmt.Errorf("%v: %w", &list[i], err))
		}
	}
	if err := p.readZeros(payload - p.n); err != nil {
		p.recordFault(err)
	}
	var sum [crcBytes]byte
	if p.err == nil {
		_, p.err = io.CopyN(io.Discard, f.buf, payload-p.n)
	}
	if p.err == nil {
		_, p.err = io.ReadFull(f.r, sum[:])
	}
	if p.err != nil {
		f.err = fmt.Errorf("read frame %.100q: %w", f.name, asTruncated(p.err))
		return asTruncated(p.err)
	}
	// A wrong checksum takes precedence over other faults in the bytes.
	if got, want := f.crc.Sum32(), binary.LittleEndian.Uint32(sum[:]); got != want {
		return fmt.Errorf("%w: it is %#08x, the payload's is %#08x", ErrChecksum, want, got)
	}
	return p.fault
}

// remaining returns how many bytes the stream still has, or 0 if that is unknown.
func (f *FrameReader) remaining() int64 {
	s, ok := f.r.(io.Seeker)
	if !ok {
		return 0
	}
	at, err := s.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	end, err := s.Seek(0, io.SeekEnd)
	if _, back := s.Seek(at, io.SeekStart); err != nil || back != nil {
		return 0 // if seeking back fails, reading will fail, too
	}
	return end - at
}

// payloadReader reads a payload in pieces.
type payloadReader struct {
	buf      *bufio.Reader
	complete bool  // the stream is known to have the whole payload
	n        int64 // bytes read so far
	err      error // error of the stream
	fault    error // first error in the bytes
}

// recordFault stores the first error in the bytes.
func (p *payloadReader) recordFault(err error) {
	if p.fault == nil {
		p.fault = err
	}
}

// next returns the next n bytes, at most pieceBytes. They are valid until the next call.
func (p *payloadReader) next(n int) ([]byte, error) {
	if p.fault != nil {
		return nil, p.fault
	}
	if p.err != nil {
		return nil, p.err
	}
	b, err := p.buf.Peek(n)
	if err != nil {
		p.err = err
		return nil, err
	}
	p.n += int64(n)
	_, err = p.buf.Discard(n)
	return b, err
}

// readZeros reads n bytes, at most pieceBytes, which must be zeros.
func (p *payloadReader) readZeros(n int64) error {
	b, err := p.next(int(n))
	if err != nil {
		return err
	}
	for i, v := range b {
		if v != 0 {
			return fmt.Errorf("%w: byte %d of the payload is padding, but %#02x", ErrFrame, p.n-n+int64(i), v)
		}
	}
	return nil
}

// extend makes s longer by n elements. In the end s will have total elements. If the stream is
// known to have all of them, they are allocated at once. Otherwise at most four times what has
// arrived is allocated.
func extend[T any](s []T, n, total int, complete bool) []T {
	if len(s)+n > cap(s) {
		room := total
		if !complete {
			room = min(total, max(4*len(s), len(s)+n, 4096))
		}
		s = append(make([]T, 0, room), s...)
	}
	return s[:len(s)+n]
}

// readSection reads a section and the zeros behind it.
func (p *payloadReader) readSection(s *section, m *Matrix) error {
	switch {
	case s.half != nil:
		for at := 0; at < s.count; {
			n := min(s.count-at, pieceBytes/2)
			b, err := p.next(2 * n)
			if err != nil {
				return err
			}
			*s.half = extend(*s.half, n, s.count, p.complete)
			for i := range (*s.half)[at:] {
				(*s.half)[at+i] = binary.LittleEndian.Uint16(b[2*i:])
			}
			at += n
		}
	case s.sub != nil:
		for at := 0; at < s.count; {
			n := min(s.count-at, pieceBytes)
			b, err := p.next(n)
			if err != nil {
				return err
			}
			*s.sub = extend(*s.sub, n, s.count, p.complete)
			for i := range (*s.sub)[at:] {
				(*s.sub)[at+i] = int8(b[i])
			}
			at += n
		}
	default:
		total := m.Rows * m.Layout.RowBytes(m.Cols)
		for r := range m.Rows {
			for at := 0; at < m.Cols; at += 5 * pieceBytes {
				n := min(5*pieceBytes, m.Cols-at)
				b, err := p.next(trit.PT5.RowBytes(n))
				if err != nil {
					return err
				}
				size := m.Layout.RowBytes(n)
				*s.trits = extend(*s.trits, size, total, p.complete)
				if err := trit.Convert((*s.trits)[len(*s.trits)-size:], m.Layout, b, trit.PT5, n); err != nil {
					return fmt.Errorf("row %d, column %d on: %w", r, at, err)
				}
			}
		}
	}
	return p.readZeros(padding(p.n))
}
