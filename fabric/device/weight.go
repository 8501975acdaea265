package device

// This file describes a weight: its planes, the form in which they are kept, and how zeros in them are counted.

import (
	"crypto/sha256"

	"tensorcast/fabric"
	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
)

// plane is one plane of a weight.
type plane struct {
	term, index int    // of the matrix, and of the term: 0 is the lowest
	bytes       []byte // in the pool if resident, else on the host
	resident    bool
	zeros       uint64 // trits that are 0
}

// weight is a matrix that was uploaded, or is held. All fields but the first three are guarded by the store's mutex.
type weight struct {
	digest        [sha256.Size]byte // of what was uploaded
	matrix        *fabric.Matrix    // its Planes are filled in for each operand
	tritsPerPlane uint64

	form weightForm
	useHistory
	planes   []plane
	pieces   [][]byte // of the pool, with the factors of a matrix that is held
	refs     int      // handles of all clients, and one of the store if it is held
	pins     int
	users    int  // products that read it, and others who need its planes where they are
	changing bool // its planes are about to be changed: products wait
	letGo    bool // it was held, and is not any more: products with it fail

	operand    *fabric.Operand // of the planes in the pool; nil: to be made anew
	usedPlanes int             // planes that operand has
	usedZeros  uint64          // trits of these that are 0
	usedBytes  uint64          // of these
}

// weightForm says what a weight's planes are.
type weightForm struct {
	codes   bool // the only plane is blocks of Q2_0
	ordered bool // the planes are exact, and multiplied in ggml's order

	bands    int    // not 0: the only plane is bands of so many planes, see fabric.PackBands
	zeros    uint64 // trits of all these that are 0
	lowZeros uint64 // trits of the lowest one that are 0

	// The rest is of weights that are held.
	canCoarsen     bool // it has a plane that it can do without,
	coarsenIfShort bool // but the form's bound needs that plane, so that it goes only while memory is short
	canRefine      bool // it would have a plane more if there were room
	belowBound     bool // it has lost a plane that the form's bound needs
	// Ratios of signal to noise in decibels, as it is and without the lowest plane; 0: not known, or no noise.
	snr, coarserSNR float64
}

// planesPerPlane is how many planes each of the weight's planes stands for.
func (f *weightForm) planesPerPlane() int { return max(f.bands, 1) }

// isTop reports whether p is the highest plane of its term: without it, nothing is left of the term.
func (w *weight) isTop(p *plane) bool { return p.index == len(w.matrix.Terms[p.term].Planes)-1 }

// newOperand makes an operand of m, a matrix in the weight's form.
func (w *weight) newOperand(m *fabric.Matrix) (*fabric.Operand, error) {
	switch {
	case w.form.codes:
		return fabric.NewCodes(m.Rows, m.Cols, m.Terms[0].Planes[0])
	case w.form.bands > 0:
		return fabric.NewBands(m.Rows, m.Cols, w.form.bands, m.Terms[0].Planes[0])
	case w.form.ordered:
		return fabric.NewOrdered(m)
	}
	return fabric.NewOperand(m)
}

// poolBytes is how many bytes of the pool w takes, if all its planes are there.
func (w *weight) poolBytes() uint64 {
	n := uint64(0)
	for i := range w.planes {
		n += uint64(len(w.planes[i].bytes))
	}
	for _, p := range w.pieces {
		n += uint64(len(p))
	}
	return n
}

// countZeros counts the weights of a plane that are 0.
func (w *weight) countZeros(plane []byte) uint64 {
	m := w.matrix
	if w.form.bands > 0 {
		return w.form.zeros
	}
	if !w.form.codes {
		return countZeroTrits(m.Layout, plane, m.Layout.RowBytes(m.Cols), m.Rows, m.Cols)
	}
	var per [256]uint8 // how many of the four codes in a byte are 1, which stands for 0
	for c := range per {
		for i := 0; i < 8; i += 2 {
			if c>>i&3 == 1 {
				per[c]++
			}
		}
	}
	var n uint64
	for ; len(plane) > 0; plane = plane[kernel.CodeBlock:] {
		for _, c := range plane[2:kernel.CodeBlock] { // behind the scale
			n += uint64(per[c])
		}
	}
	return n
}

// countZeroTrits counts the trits of a plane that are 0, without those beyond the rows' ends.
func countZeroTrits(l trit.Layout, b []byte, rowBytes, rows, cols int) uint64 {
	var per [256]uint64 // zeros that a byte stands for
	switch l {
	case trit.TwoBit:
		for c := range per {
			for i := 0; i < 8; i += 2 {
				if c>>i&3 == 1 {
					per[c]++
				}
			}
		}
	default:
		for c := range 243 {
			for v, i := c, 0; i < 5; v, i = v/3, i+1 {
				if v%3 == 1 {
					per[c]++
				}
			}
		}
	}
	var n uint64
	for _, c := range b {
		n += per[c]
	}
	trits, bytes := l.Group()
	return n - uint64(rows)*uint64(rowBytes/bytes*trits-cols)
}
