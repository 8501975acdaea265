package device

// This file turns uploaded frames and planes into matrices. It reads the client's memory once, from start to
// end, and checks what it has read: the client may change it at any time.

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"tensorcast/fabric"
	"tensorcast/fabric/trit"
)

// errMalformed says that an upload is not what it should be.
var errMalformed = errors.New("malformed upload")

// layoutOf is the layout in which planes are kept, by the flags of an upload.
func layoutOf(flags uint32) trit.Layout {
	if flags&FlagTwoBit != 0 {
		return trit.TwoBit
	}
	return trit.PT5Striped
}

// readFrame decodes a frame, whose planes may take limit bytes in all. It returns the SHA-256 by which equal
// uploads are found.
func readFrame(b []byte, flags uint32, limit int) (*fabric.Matrix, [sha256.Size]byte, error) {
	var sum [sha256.Size]byte
	h := sha256.New()
	layout := layoutOf(flags)
	h.Write([]byte{'f', byte(layout)})
	r := fabric.NewFrameReader(io.TeeReader(bytes.NewReader(b), h))
	info, err := r.Next()
	if err == io.EOF {
		err = errMalformed
	}
	if err != nil {
		return nil, sum, err
	}
	planes := 0
	for _, n := range info.Planes {
		planes += n
	}
	// Rows take whole groups in memory, so that a small frame can be a large matrix.
	if size := layout.RowBytes(info.Cols); size > limit/max(1, info.Rows)/max(1, planes) {
		return nil, sum, errFull
	}
	m, err := r.Matrix(layout)
	if err != nil {
		return nil, sum, err
	}
	h.Sum(sum[:0])
	return m, sum, nil
}

// readPlanes decodes the planes of d, which are b, and its scales, which may be nil. It returns the SHA-256 by
// which equal uploads are found.
func readPlanes(b, scales []byte, d *Descriptor) (*fabric.Matrix, [sha256.Size]byte, error) {
	var sum [sha256.Size]byte
	layout := layoutOf(d.Flags)
	rows, cols := int(d.Rows), int(d.Cols)
	m := &fabric.Matrix{Rows: rows, Cols: cols, Layout: layout, Terms: make([]fabric.Term, 1)}
	h := sha256.New()
	head := binary.LittleEndian.AppendUint32([]byte{'p', byte(layout), byte(d.Planes)}, d.Rows)
	head = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(head, d.Cols), d.Block)
	h.Write(head)
	if scales != nil {
		s := bytes.Clone(scales)
		h.Write(s)
		half := make([]uint16, len(s)/2)
		for i := range half {
			half[i] = binary.LittleEndian.Uint16(s[2*i:])
		}
		m.Terms[0].Scales = fabric.Scales{Block: int(d.Block), Half: half}
	}
	size, rowBytes := len(b)/int(d.Planes), layout.RowBytes(cols)
	row := make([]int8, cols)
	chunk := make([]byte, cols/5+2)
	for p := range int(d.Planes) {
		stream := b[p*size : (p+1)*size]
		plane := make([]byte, rows*rowBytes)
		for r := range rows {
			first := r * cols
			n := copy(chunk, stream[first/5:min(size, (first+cols+4)/5)])
			if err := unpackAt(row, chunk[:n], first%5); err != nil {
				return nil, sum, fmt.Errorf("plane %d, row %d: %w", p, r, err)
			}
			layout.Pack(plane[r*rowBytes:(r+1)*rowBytes], row)
			h.Write(plane[r*rowBytes : (r+1)*rowBytes])
		}
		m.Terms[0].Planes = append(m.Terms[0].Planes, plane)
	}
	h.Sum(sum[:0])
	return m, sum, nil
}

// unpackAt reads len(dst) trits of a PT-5 stream, without the first skip trits of its first byte. b must hold them all.
func unpackAt(dst []int8, b []byte, skip int) error {
	i := 0
	for _, c := range b {
		if c >= 243 {
			return fmt.Errorf("%w: byte %d is no code of five trits", errMalformed, c)
		}
		for _, t := range &digitsOfCode[c] {
			if skip > 0 {
				skip--
				continue
			}
			if i == len(dst) {
				return nil
			}
			dst[i] = t
			i++
		}
	}
	return nil
}

// digitsOfCode are the five trits of each code.
var digitsOfCode = func() (d [243][5]int8) {
	for c := range d {
		for v, i := c, 0; i < 5; v, i = v/3, i+1 {
			d[c][i] = int8(v%3) - 1
		}
	}
	return d
}()
