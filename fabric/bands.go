package fabric

// This file multiplies matrices in bands, i.e. five rows whose planes share bytes (see package
// kernel). Bands take as much memory as planes in PT-5 and are multiplied faster. But a single
// plane of them can neither be read nor be left out.

import (
	"fmt"
	"sync"
	"sync/atomic"

	"tensorcast/fabric/kernel"
)

// BandRows is the number of rows of a band.
const BandRows = kernel.BandRows

// CanPackBands reports whether m can be packed into bands and is multiplied faster that way on this
// processor. Such a matrix has one term of two or three planes, with a half as factor for each 32
// columns. Fitted planes with one shared factor have this form.
func CanPackBands(m *Matrix) bool {
	if len(m.Terms) != 1 || m.Min.Block != 0 || m.Rows < 1 || m.Cols < 1 {
		return false
	}
	t := &m.Terms[0]
	return kernel.Best().HasBands(len(t.Planes)) && t.Center == 0 && t.Scales.Block == kernel.BandBlock &&
		len(t.Scales.Half) == m.Rows*ceilDiv(m.Cols, kernel.BandBlock)
}

// BandsBytes is the size in bytes of the bands of rows of cols weights, with 2 or 3 planes.
func BandsBytes(rows, cols, planes int) int {
	return ceilDiv(rows, BandRows) * kernel.BandBytes(cols, planes)
}

// PackBands writes m to dst, which has BandsBytes bytes, with the given number of goroutines.
// CanPackBands must be true for m. PackBands panics if NewOperand would refuse m.
func PackBands(dst []byte, m *Matrix, workers int) {
	o := Operand{m: m, level: kernel.Best()}
	if err := o.check(); err != nil {
		panic(fmt.Sprintf("fabric: pack bands: %v", err))
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	for range max(1, workers) {
		wait.Go(func() {
			p := packer{o: &o}
			for {
				band := int(next.Add(1)) - 1
				if band*BandRows >= m.Rows {
					return
				}
				p.pack(dst, band)
			}
		})
	}
	wait.Wait()
}

// packer packs bands. It is for one goroutine.
type packer struct {
	o       *Operand
	decoded []byte
	weights [BandRows][]byte
	halfs   [BandRows][]uint16
}

// pack packs one band.
func (p *packer) pack(dst []byte, band int) {
	m, t := p.o.m, &p.o.m.Terms[0]
	planes, blocks, used := len(t.Planes), kernel.BandBlocks(m.Cols), ceilDiv(m.Cols, kernel.BandBlock)
	trits, _ := m.Layout.Group()
	grow(&p.decoded, p.o.groups*trits)
	var row [kernel.MaxPlanes][]byte
	for i := range p.weights {
		w, h := grow(&p.weights[i], blocks*kernel.BandBlock), grow(&p.halfs[i], blocks)
		r, known := band*BandRows+i, 0
		clear(h)
		if r < m.Rows {
			for k, b := range t.Planes {
				row[k] = b[r*p.o.rowBytes:][:p.o.rowBytes]
			}
			p.o.level.Decode(m.Layout, p.decoded, row[:planes], p.o.rowBytes)
			known = copy(w, p.decoded[:m.Cols])
			copy(h, t.Scales.Half[r*used:(r+1)*used])
		}
		for c := range w[known:] {
			w[known+c] = byte(kernel.Offset(planes))
		}
	}
	size := kernel.BandBytes(m.Cols, planes)
	kernel.PackBand(dst[band*size:][:size], &p.weights, &p.halfs, blocks, planes)
}

// CanCoarsenBands reports whether the bands of m can lose their lowest plane, see CoarsenBands.
// CanPackBands must be true for m.
func CanCoarsenBands(m *Matrix) bool {
	if len(m.Terms[0].Planes) != 3 {
		return false
	}
	for _, h := range m.Terms[0].Scales.Half {
		if h > kernel.MaxCoarsenFactor { // or negative
			return false
		}
	}
	return true
}

// CoarsenBands removes the lowest plane from b, bands of three planes, in place. CanCoarsenBands must
// have been true for their matrix. It returns the bands of two planes, which are the beginning of
// b. Nobody may read b meanwhile.
func CoarsenBands(b []byte, rows, cols int) []byte {
	three, two := kernel.BandBytes(cols, 3), kernel.BandBytes(cols, 2)
	for band := range ceilDiv(rows, BandRows) {
		kernel.CoarsenBand(b[band*two:][:two], b[band*three:][:three], kernel.BandBlocks(cols))
	}
	return b[:BandsBytes(rows, cols, 2)]
}

// NewBands returns an operand of bands that PackBands wrote. They must not change as long as the
// operand is used. It supports the same products as other operands. The error wraps ErrOperand.
func NewBands(rows, cols, planes int, bands []byte) (*Operand, error) {
	switch {
	case rows < 1 || cols < 1 || cols > maxCols || planes != 2 && planes != 3:
		return nil, fmt.Errorf("%w: bands of %d rows of %d columns, %d planes", ErrOperand, rows, cols, planes)
	case len(bands)%kernel.BandBytes(cols, planes) != 0,
		len(bands)/kernel.BandBytes(cols, planes) != ceilDiv(rows, BandRows):
		return nil, fmt.Errorf("%w: %d bytes of bands for %d rows of %d columns, %d planes",
			ErrOperand, len(bands), rows, cols, planes)
	}
	m := &Matrix{Rows: rows, Cols: cols}
	return &Operand{m: m, level: kernel.Best(), bands: bands, bandPlanes: planes}, nil
}

// fillForBands fills the panel for products with bands, whose kernels add the number add to each
// weight. The vectors are padded to a number that can be multiplied together.
func (p *panel) fillForBands(vectors []*Activations, add int32) {
	quads := kernel.BandSupers(kernel.BandBlocks(vectors[0].Cols)) * kernel.SuperCols / kernel.Quad
	p.grow(len(vectors)+kernel.BandVectors-1, quads, kernel.Quad/kernel.BandBlock)
	for i, a := range vectors {
		x, bias, scale := p.vector(i)
		clear(x)
		blocks := ceilDiv(a.Cols, kernel.BandBlock)
		kernel.ArrangeBlocks(x, a.Q[:blocks*kernel.BandBlock])
		clear(bias[blocks:])
		clear(scale[blocks:])
		for b := range blocks {
			var sum int32
			for _, v := range a.sums[b*kernel.BandBlock/4 : (b+1)*kernel.BandBlock/4] {
				sum += v
			}
			bias[b], scale[b] = -add*sum, a.Scale[b*kernel.BandBlock/a.Block]
		}
	}
	// The results of the padding are not used. But it is set to 0, as some other values would make
	// the product slow.
	clear(p.x[len(vectors)*p.quads*kernel.Quad:])
	clear(p.bias[len(vectors)*p.quads*p.lanes:])
	clear(p.scale[len(vectors)*p.quads*p.lanes:])
}

// multiplyBands computes rows first to end-1 of the products with the vectors of p. first is the
// first row of a band.
func (o *Operand) multiplyBands(dst [][]float32, first, end int, p *panel, s *Scratch) {
	size, blocks := kernel.BandBytes(o.m.Cols, o.bandPlanes), kernel.BandBlocks(o.m.Cols)
	begin, count := first/BandRows, ceilDiv(end-first, BandRows)
	cols, lanes := p.quads*kernel.Quad, p.quads*p.lanes
	b := &s.bands
	*b = kernel.Bands{Planes: o.bandPlanes, Blocks: blocks, Pitch: size}
	// A band stays in the first-level cache for all vectors.
	step := count
	if len(dst) > kernel.BandVectors {
		step = 1
	}
	b.Dst = grow(&s.results, step*kernel.BandVectors*8)
	for n := 0; n < count; n += step {
		b.Bytes, b.Count = o.bands[(begin+n)*size:], step
		for v := 0; v < len(dst); v += b.Vectors {
			switch left := len(dst) - v; {
			case left > 2:
				b.Vectors = 4
			default:
				b.Vectors = left
			}
			b.X, b.Bias, b.Scale = p.x[v*cols:], p.bias[v*lanes:], p.scale[v*lanes:]
			o.level.MultiplyBands(b)
			for i, d := range dst[v:min(v+b.Vectors, len(dst))] {
				for k := range step {
					r := (begin + n + k) * BandRows
					copy(d[r:min(r+BandRows, end)], b.Dst[(k*b.Vectors+i)*8:][:BandRows])
				}
			}
		}
	}
	*b = kernel.Bands{}
}
