package fabric

// This file multiplies by many vectors at once, such as those of a prompt. It decodes some rows and
// multiplies them by a panel of vectors, in tiles of rows and vectors. The panel stays in the
// second-level cache.

import "tensorcast/fabric/kernel"

const (
	// minTiled is the number of vectors from which on tiles of codes are faster than products one
	// by one.
	minTiled = 4
	// minTiledPlanes is this number for planes. They have faster loops for one vector and decode
	// more slowly (see BenchmarkGEMM and BenchmarkPrompt).
	minTiledPlanes = 128
	// panelVectors is the number of vectors in a panel. A vector of 4096 columns takes 6 KB.
	panelVectors = 64
)

// panel is some vectors in the form that tiles and bands need, one after the other.
type panel struct {
	quads int // per vector
	lanes int // of biases and scales per quad
	x     []int8
	bias  []int32
	scale []float32
}

// grow makes room for n vectors of the given number of quads.
func (p *panel) grow(n, quads, lanes int) {
	p.quads, p.lanes = quads, lanes
	grow(&p.x, n*quads*kernel.Quad)
	grow(&p.bias, n*quads*lanes)
	grow(&p.scale, n*quads*lanes)
}

// vector returns the part of the panel that belongs to vector i.
func (p *panel) vector(i int) (x []int8, bias []int32, scale []float32) {
	cols, lanes := p.quads*kernel.Quad, p.quads*p.lanes
	return p.x[i*cols : (i+1)*cols], p.bias[i*lanes : (i+1)*lanes], p.scale[i*lanes : (i+1)*lanes]
}

// arrange fills the panel for products with codes, where a lane has 16 neighbouring columns, and 1
// is subtracted from each code.
func (p *panel) arrange(level kernel.Level, vectors []*Activations) {
	p.grow(len(vectors), ceilDiv(vectors[0].Cols, kernel.Quad), kernel.QuadLanes)
	for i, a := range vectors {
		x, bias, scale := p.vector(i)
		level.Arrange(x, a.Q[:len(x)])
		const per = kernel.Quad / kernel.QuadLanes
		sums := a.sums[:len(bias)*per/4]
		for l := range bias {
			four := sums[4*l : 4*l+4]
			bias[l] = -(four[0] + four[1] + four[2] + four[3])
		}
		clear(scale)
		for b, f := range a.Scale {
			to := scale[b*a.Block/per : min((b+1)*a.Block/per, len(scale))]
			for l := range to {
				to[l] = f
			}
		}
	}
}

// fillForPlanes fills the panel for products with decoded planes, where the number add has to be
// added to each weight. Vectors are in blocks of 256.
func (p *panel) fillForPlanes(vectors []*Activations, add int32) {
	p.grow(len(vectors), ceilDiv(vectors[0].Cols, kernel.Quad), kernel.QuadLanes)
	for i, a := range vectors {
		x, bias, scale := p.vector(i)
		copy(x, a.Q)
		setBias(bias, a.sums[:len(x)/4], kernel.Quad, add)
		for l := range scale {
			scale[l] = a.Scale[l/kernel.QuadLanes]
		}
	}
}

// multiplyTiles computes rows first to end-1 of products with the panel, and adds them to dst. It
// calls decode for the weights and factors of a few rows at a time. weights has room for one more
// group behind the last row.
func (s *Scratch) multiplyTiles(p *panel, dst [][]float32, first, end int, multiply func(*kernel.Tile),
	decode func(weights []byte, factors []float32, r, rows int)) {
	t := &s.tile
	const slack = 320 // trits of a group, in any layout
	*t = kernel.Tile{
		Weights: grow(&s.weights, kernel.TileRows*p.quads*kernel.Quad+slack),
		Factors: grow(&s.factors, kernel.TileRows*p.quads*kernel.QuadLanes),
		Quads:   p.quads, X: p.x, Bias: p.bias, Scale: p.scale, Vectors: len(dst),
		Dst: grow(&s.results, kernel.TileRows*len(dst)),
	}
	for r := first; r < end; r += kernel.TileRows {
		t.Rows = min(kernel.TileRows, end-r)
		decode(t.Weights, t.Factors, r, t.Rows)
		multiply(t)
		for i, d := range dst {
			result := t.Dst[i*kernel.TileRows:][:kernel.TileRows]
			if to := d[r:end]; len(to) >= kernel.TileRows {
				for j, v := range result {
					to[j] += v
				}
			} else {
				for j := range to {
					to[j] += result[j]
				}
			}
		}
	}
	*t = kernel.Tile{}
}

// usesTiles reports whether the product of a term with n vectors is computed in tiles. This needs
// dense planes only, and whole quads as blocks of scales.
func (o *Operand) usesTiles(t *term, block, ratio, n int) bool {
	planes := len(t.dense)
	return n >= minTiledPlanes && planes > 0 && planes <= o.level.MaxTilePlanes() && len(t.sparse) == 0 &&
		block == kernel.Quad && ratio > 0
}

// multiplyTiled adds rows first to end-1 of the product of a term with an even number of vectors to
// dst.
func (o *Operand) multiplyTiled(dst [][]float32, first, end int, t *term, x []*Activations, s *Scratch) {
	m := o.m
	blocks := ceilDiv(m.Cols, t.Scales.Block)
	ratio := t.Scales.Block / kernel.Quad
	scales := grow(&s.part, 2*blocks)
	ones := scales[blocks:]
	for i := range ones {
		ones[i] = 1
	}
	for len(x) > 0 {
		n := min(len(x), panelVectors)
		s.panel.fillForPlanes(x[:n], t.Center-kernel.Offset(len(t.dense)))
		quads := s.panel.quads
		decode := func(weights []byte, factors []float32, r, rows int) {
			// Rows are decoded in order, as the last group of a row may reach into the next row.
			for i := range rows {
				for j, b := range t.dense {
					s.planes[j] = b[(r+i)*o.rowBytes : (r+i+1)*o.rowBytes]
				}
				o.level.Decode(m.Layout, weights[i*quads*kernel.Quad:], s.planes[:len(t.dense)], o.rowBytes)
				o.expandScales(scales[:blocks], blocks, &t.Scales, r+i, 1, ones, s)
				for q := range quads {
					f, v := (*[kernel.QuadLanes]float32)(factors[(i*quads+q)*kernel.QuadLanes:]), scales[q/ratio]
					for l := range f {
						f[l] = v
					}
				}
			}
		}
		s.multiplyTiles(&s.panel, dst[:n], first, end, o.level.MultiplyTile, decode)
		dst, x = dst[n:], x[n:]
	}
}
