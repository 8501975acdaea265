package gguf

// This file reads the bytes of the metadata from front to back, through one small window. Copying
// them into new memory would take longer than parsing them.

import (
	"errors"
	"fmt"
	"io"
)

// pieceBytes is how much is read at once. It fits the second-level cache, and bounds what is read
// beyond the end of the metadata.
const pieceBytes = 64 << 10

// source is a window of a file.
type source struct {
	r     io.ReaderAt
	size  int64 // of the file
	piece int64 // reads end at multiples of piece
	buf   []byte
	from  int64 // file offset of buf's start
}

// bytesAt returns at least n bytes from off on, and whatever else the window holds. The caller has
// checked the bounds. The bytes are valid until the next call.
func (s *source) bytesAt(off, n int64) ([]byte, error) {
	if have := s.from + int64(len(s.buf)); off >= s.from && n <= have-off {
		return s.buf[off-s.from:], nil
	}
	end := min(s.size, (off+n+s.piece-1)/s.piece*s.piece)
	if int64(cap(s.buf)) < end-off {
		s.buf = make([]byte, end-off)
	}
	s.from, s.buf = off, s.buf[:end-off]
	if err := s.read(s.buf, off); err != nil {
		s.buf = s.buf[:0]
		return nil, err
	}
	return s.buf, nil
}

// windowFrom returns the part of the window from off on, which may be empty.
func (s *source) windowFrom(off int64) []byte {
	if off < s.from || off > s.from+int64(len(s.buf)) {
		return nil
	}
	return s.buf[off-s.from:]
}

// read fills b with the file's bytes from off on.
func (s *source) read(b []byte, off int64) error {
	n, err := s.r.ReadAt(b, off)
	switch {
	case n == len(b): // ReadAt may return EOF along with the last bytes
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return fmt.Errorf("%w: it ended at byte %d while it was read, it had %d bytes before", ErrTruncated,
			off+int64(n), s.size)
	}
	return fmt.Errorf("bytes %d to %d: %w", off, off+int64(len(b)), err)
}
