package fabric

// This file multiplies matrices in bands: five rows whose planes share bytes, see package kernel. They take as much memory as planes in PT-5, and are multiplied faster, but no plane of
// them can be read or left out alone.

import (
	"fmt"
	"sync"
	"sync/atomic"

	"tensorcast/fabric/kernel"
)

// BandRows is the number of rows of a band.
const BandRows = kernel.BandRows

// TakesBands reports whether m can be packed into bands, and is multiplied faster so here: it has one term, of two or three planes, with a half as factor for each 32 columns. Fitted planes with
// one factor are so.
func TakesBands(m *Matrix) bool {
	if len(m.Terms) != 1 || m.Min.Block != 0 || m.Rows < 1 || m.Cols < 1 {
		return false
	}
	t := &m.Terms[0]
	return kernel.Best().HasBands(len(t.Planes)) && t.Center == 0 && t.Scales.Block == kernel.BandBlock && len(t.Scales.Half) == m.Rows*ceilDiv(m.Cols, kernel.BandBlock)
}

// BandsBytes is how many bytes bands of rows of cols weights take, of planes 2 or 3.
func BandsBytes(rows, cols, planes int) int {
	return ceilDiv(rows, BandRows) * kernel.BandBytes(cols, planes)
}

// PackBands writes m, which TakesBands, to dst, of BandsBytes. It uses so many goroutines. m must be one that NewOperand takes, else it panics.
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

// packer packs bands, for one goroutine.
type packer struct {
	o       *Operand
	decoded []byte
	weights [BandRows][]byte
	halfs   [BandRows][]uint16
}

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

// CoarserBands reports whether m, which TakesBands, can lose its lowest plane as bands, see CoarsenBands.
func CoarserBands(m *Matrix) bool {
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

// CoarsenBands takes the lowest plane out of bands of three planes, of a matrix that was CoarserBands, in place, and returns those of two, which are the beginning of b. Nobody may read b meanwhile.
func CoarsenBands(b []byte, rows, cols int) []byte {
	three, two := kernel.BandBytes(cols, 3), kernel.BandBytes(cols, 2)
	for band := range ceilDiv(rows, BandRows) {
		kernel.CoarsenBand(b[band*two:][:two], b[band*three:][:three], kernel.BandBlocks(cols))
	}
	return b[:BandsBytes(rows, cols, 2)]
}

// NewBands returns an operand of bands that PackBands wrote, which must not change as long as it is used. It can do what other operands can. The error wraps ErrOperand.
func NewBands(rows, cols, planes int, bands []byte) (*Operand, error) {
	switch {
	case rows < 1 || cols < 1 || cols > maxCols || planes != 2 && planes != 3:
		return nil, fmt.Errorf("%w: bands of %d rows of %d columns, %d planes", ErrOperand, rows, cols, planes)
	case len(bands)%kernel.BandBytes(cols, planes) != 0 || len(bands)/kernel.BandBytes(cols, planes) != ceilDiv(rows, BandRows):
		return nil, fmt.Errorf("%w: %d bytes of bands for %d rows of %d columns, %d planes", ErrOperand, len(bands), rows, cols, planes)
	}
	return &Operand{m: &Matrix{Rows: rows, Cols: cols}, level: kernel.Best(), bands: bands, bandPlanes: planes}, nil
}

// arrangeBlocks fills the panel for products with bands, whose kernels add some number to each weight. Vectors are filled up to one that can be multiplied together.
func (p *panel) arrangeBlocks(vectors []*Activations, add int32) {
	quads := kernel.BandSupers(kernel.BandBlocks(vectors[0].Cols)) * kernel.SuperCols / kernel.Quad
	p.grow(len(vectors)+kernel.BandVectors-1, quads, kernel.Quad/kernel.BandBlock)
	for i, a := range vectors {
		x, bias, scale := p.of(i)
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
	// Results of what is behind the last vector are not used, but it must not be what takes long.
	clear(p.x[len(vectors)*p.quads*kernel.Quad:])
	clear(p.bias[len(vectors)*p.quads*p.lanes:])
	clear(p.scale[len(vectors)*p.quads*p.lanes:])
}

// multiplyBands computes rows first to end-1; first is a band's first.
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
