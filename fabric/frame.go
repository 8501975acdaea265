package fabric

// This file describes frames, the format in which matrices are stored and transferred: the limits
// of the header, and the order and sizes of the sections. TFMBS_DEVICE_SPEC.md specifies the
// format. The reader is in frame_read.go. Programs outside this package write frames; package
// frametest does so for tests.

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"unicode/utf8"

	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// Errors of frames wrap one of these or trit.ErrInvalid, or are errors of the stream.
var (
	// ErrNotFrame says that the stream holds something else where a frame should begin.
	ErrNotFrame = errors.New("not a frame")

	// ErrVersion says that a frame has a version or byte order that this package does not support.
	ErrVersion = errors.New("not a version of frames that can be read")

	// ErrTruncated says that the stream ends within a frame.
	ErrTruncated = errors.New("truncated")

	// ErrChecksum says that bytes of a frame differ from those that were written.
	ErrChecksum = errors.New("wrong checksum")

	// ErrFrame says that a frame is inconsistent or exceeds the limits.
	ErrFrame = errors.New("malformed frame")
)

const (
	frameMagic   = "\x89TFMBS\r\n"
	frameMark    = 0x0a0b0c0d // shows the byte order
	frameVersion = 1

	frameAlign   = 64 // alignment of the lengths of the header and of each section
	preludeBytes = 64 // size of the fixed part of the header
	recordBytes  = 24 // size of the record of a term, and of Min
	crcBytes     = 4

	flagExact = 1

	// Limits. A header within them is at most frameHeaderMax bytes, and the sum of a term and its
	// center fits into 32 bits.
	maxFrameName   = 65535
	maxFrameTerms  = 64
	maxFramePlanes = 16 // per term
	maxFrameDim    = math.MaxInt32
	maxCenter      = 1 << 30
	frameHeaderMax = (preludeBytes + (maxFrameTerms+1)*recordBytes + maxFrameName + crcBytes + frameAlign - 1) /
		frameAlign * frameAlign
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Forms of scales in a record.
const (
	scalesNone = iota
	scalesHalf
	scalesSub
)

// form returns the form of s. It is an error if s has none of the forms that Scales describes, for
// rows of cols columns.
func (s *Scales) form(cols int) (int, error) {
	switch {
	case s.Half == nil && s.Sub == nil && s.Super == nil:
		if s.Block != 0 {
			return 0, fmt.Errorf("%w: no scales in blocks of %d", ErrFrame, s.Block)
		}
		return scalesNone, nil
	case s.Half != nil && s.Sub == nil && s.Super == nil:
		if s.Block == 16 || s.Block == 32 || s.Block > 0 && (s.Block%64 == 0 || s.Block >= cols) {
			return scalesHalf, nil
		}
	case s.Half == nil && s.Sub != nil && s.Super != nil:
		if s.Block >= 16 && s.Block <= 256 && 256%s.Block == 0 {
			return scalesSub, nil
		}
	default:
		return 0, fmt.Errorf("%w: scales of two forms", ErrFrame)
	}
	return 0, fmt.Errorf("%w: scales in blocks of %d", ErrFrame, s.Block)
}

// section is a part of a frame's payload: count elements of size bytes. One of the pointers half,
// sub and trits says where the elements are in memory.
type section struct {
	term, plane int // -1 if it belongs to none
	count       int
	size        int
	half        *[]uint16
	sub         *[]int8
	trits       *[]byte // rows of trits; in the frame they are count bytes of PT5
}

func (s *section) String() string {
	what := "the minima's scales"
	if s.plane >= 0 {
		return fmt.Sprintf("plane %d of term %d", s.plane, s.term)
	}
	if s.term >= 0 {
		what = fmt.Sprintf("the scales of term %d", s.term)
	}
	return what
}

// padding is the number of zeros that follow n bytes, up to the next multiple of frameAlign.
func padding(n int64) int64 { return -n & (frameAlign - 1) }

// listSections lists the payload of m. The shape, layout, forms of scales and numbers of planes of
// m must be set. It also returns the payload's length, from the end of the header to the checksum.
// It is an error if anything is too large for an int, in the frame or in memory.
func listSections(m *Matrix, forms []int) (list []section, payload int64, err error) {
	total := uint64(0)
	add := func(s section, perRow int) error {
		hi, count := bits.Mul64(uint64(m.Rows), uint64(perRow))
		if hi != 0 || count > math.MaxInt64>>8 {
			return fmt.Errorf("%w: %d rows of %d in %v", ErrFrame, m.Rows, perRow, &s)
		}
		bytes := count * uint64(s.size)
		bytes += uint64(padding(int64(bytes)))
		if bytes > math.MaxInt-total {
			return fmt.Errorf("%w: larger than memory", ErrFrame)
		}
		total += bytes
		s.count = int(count)
		list = append(list, s)
		return nil
	}
	addScales := func(s *Scales, form, term int) error {
		blocks := ceilDiv(m.Cols, max(s.Block, 1))
		switch form {
		case scalesHalf:
			return add(section{term: term, plane: -1, size: 2, half: &s.Half}, blocks)
		case scalesSub:
			if err := add(section{term: term, plane: -1, size: 1, sub: &s.Sub}, blocks); err != nil {
				return err
			}
			return add(section{term: term, plane: -1, size: 2, half: &s.Super}, ceilDiv(m.Cols, 256))
		}
		return nil
	}
	for i := range m.Terms {
		if err := addScales(&m.Terms[i].Scales, forms[i], i); err != nil {
			return nil, 0, err
		}
	}
	if err := addScales(&m.Min, forms[len(m.Terms)], -1); err != nil {
		return nil, 0, err
	}
	if hi, lo := bits.Mul64(uint64(m.Rows), uint64(m.Layout.RowBytes(m.Cols))); hi != 0 || lo > math.MaxInt {
		return nil, 0, fmt.Errorf("%w: a plane of %d x %d is larger than memory", ErrFrame, m.Rows, m.Cols)
	}
	for i := range m.Terms {
		for p := range m.Terms[i].Planes {
			plane := section{term: i, plane: p, size: 1, trits: &m.Terms[i].Planes[p]}
			if err := add(plane, trit.PT5.RowBytes(m.Cols)); err != nil {
				return nil, 0, err
			}
		}
	}
	if total > math.MaxInt64-frameHeaderMax-frameAlign {
		return nil, 0, fmt.Errorf("%w: larger than a file", ErrFrame)
	}
	// The checksum occupies the last bytes of a unit of frameAlign.
	return list, int64(total) + frameAlign - crcBytes, nil
}

// ceilDiv returns a / b, rounded up.
func ceilDiv(a, b int) int {
	if a%b != 0 {
		return a/b + 1
	}
	return a / b
}

// checkHeader checks what a header says about a matrix, except for its sizes.
func checkHeader(name string, m *Matrix) error {
	switch {
	case name == "" || len(name) > maxFrameName || !utf8.ValidString(name):
		return fmt.Errorf("%w: the name is not 1 to %d bytes of UTF-8", ErrFrame, maxFrameName)
	case m.Rows < 1 || m.Cols < 1 || m.Rows > maxFrameDim || m.Cols > maxFrameDim:
		return fmt.Errorf("%w: %d rows of %d columns", ErrFrame, m.Rows, m.Cols)
	case !m.Layout.Valid():
		return fmt.Errorf("%w: no such layout: %v", ErrFrame, m.Layout)
	case !m.Origin.Valid():
		return fmt.Errorf("%w: no such type: %v", ErrFrame, m.Origin)
	case len(m.Terms) < 1 || len(m.Terms) > maxFrameTerms:
		return fmt.Errorf("%w: %d terms", ErrFrame, len(m.Terms))
	}
	for i := range m.Terms {
		t := &m.Terms[i]
		if len(t.Planes) < 1 || len(t.Planes) > maxFramePlanes || t.Center < -maxCenter || t.Center > maxCenter {
			return fmt.Errorf("%w: term %d has %d planes, center %d", ErrFrame, i, len(t.Planes), t.Center)
		}
	}
	return nil
}

// headerBytes is the length of a header with a name of the given number of bytes and the given
// number of terms.
func headerBytes(name, terms int) int {
	n := preludeBytes + (terms+1)*recordBytes + name + crcBytes
	return n + int(padding(int64(n)))
}

// pieceBytes is how many bytes of a row of PT5 are converted at a time: whole groups of every layout.
const pieceBytes = 64 << 10

// FrameInfo is the information in a frame's header.
type FrameInfo struct {
	Name       string
	Rows, Cols int
	Layout     trit.Layout // layout of the matrix that was written
	Origin     gguf.Type
	Exact      bool
	Planes     []int // number of planes of each term
	Bytes      int64 // size of the whole frame
}
