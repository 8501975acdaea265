package fabric

// This file multiplies by many vectors at once, as a prompt has: some rows are decoded, then multiplied by a panel of vectors that stays in the
// second-level cache, in tiles of rows and vectors.

import "tensorcast/fabric/kernel"

const (
	minTiled       = 4   // vectors from which on tiles of codes are faster than products one by one
	minTiledPlanes = 128 // the same of planes, whose own loops are faster, and decoding slower: see BenchmarkGEMM and BenchmarkPrompt
	panelVectors   = 64  // vectors in a panel: 6 KB each for 4096 columns
)

// panel is some vectors in the form that tiles take, one after the other.
type panel struct {
	quads int // per vector
	lanes int // of biases and scales per quad
	x     []int8
	bias  []int32
	scale []float32
}

// grow makes room for n vectors of so many quads.
func (p *panel) grow(n, quads, lanes int) {
	p.quads, p.lanes = quads, lanes
	grow(&p.x, n*quads*kernel.Quad)
	grow(&p.bias, n*quads*lanes)
	grow(&p.scale, n*quads*lanes)
}

// of is the part of vector i.
func (p *panel) of(i int) (x []int8, bias []int32, scale []float32) {
	cols, lanes := p.quads*kernel.Quad, p.quads*p.lanes
	return p.x[i*cols : (i+1)*cols], p.bias[i*lanes : (i+1)*lanes], p.scale[i*lanes : (i+1)*lanes]
}

// arrange fills the panel for products with codes, where a lane has 16 neighbouring columns, and 1 is taken off each code.
func (p *panel) arrange(level kernel.Level, vectors []*Activations) {
	p.grow(len(vectors), ceilDiv(vectors[0].Cols, kernel.Quad), kernel.QuadLanes)
	for i, a := range vectors {
		x, bias, scale := p.of(i)
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

// inOrder fills it for products with decoded planes, to whose weights some number is added. Vectors are in blocks of 256.
func (p *panel) inOrder(vectors []*Activations, add int32) {
	p.grow(len(vectors), ceilDiv(vectors[0].Cols, kernel.Quad), kernel.QuadLanes)
	for i, a := range vectors {
		x, bias, scale := p.of(i)
		copy(x, a.Q)
		setBias(bias, a.sums[:len(x)/4], kernel.Quad, add)
		for l := range scale {
			scale[l] = a.Scale[l/kernel.QuadLanes]
		}
	}
}

// tiles computes rows first to end-1 of products with the panel, and adds them to dst. It has decode write the weights and factors of a few
// rows; weights has room for another group behind the last row.
func (s *Scratch) tiles(p *panel, dst [][]float32, first, end int, multiply func(*kernel.Tile), decode func(weights []byte, factors []float32, r, rows int)) {
	t := &s.tile
	const slack = 320 // trits of a group, in any layout
	*t = kernel.Tile{
		Weights: grow(&s.weights, kernel.TileRows*p.quads*kernel.Quad+slack), Factors: grow(&s.factors, kernel.TileRows*p.quads*kernel.QuadLanes),
		Quads: p.quads, X: p.x, Bias: p.bias, Scale: p.scale, Vectors: len(dst), Dst: grow(&s.results, kernel.TileRows*len(dst)),
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

// tiled tells whether a term's product with n vectors is computed in tiles: it has dense planes only, and a scale's block is whole quads.
func (o *Operand) tiled(t *term, block, ratio, n int) bool {
	planes := len(t.dense)
	return n >= minTiledPlanes && planes > 0 && planes <= o.level.MaxTilePlanes() && len(t.sparse) == 0 && block == kernel.Quad && ratio > 0
}

// multiplyTiled adds rows first to end-1 of the product with an even number of vectors to dst.
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
		s.panel.inOrder(x[:n], t.Center-kernel.Offset(len(t.dense)))
		quads := s.panel.quads
		s.tiles(&s.panel, dst[:n], first, end, o.level.MultiplyTile, func(weights []byte, factors []float32, r, rows int) {
			// In order, as a row's last group may reach into the next one.
			for i := range rows {
				for j, b := range t.dense {
					s.planes[j] = b[(r+i)*o.rowBytes : (r+i+1)*o.rowBytes]
				}
				o.level.Decode(m.Layout, weights[i*quads*kernel.Quad:], s.planes[:len(t.dense)], o.rowBytes)
				o.expand(scales[:blocks], blocks, &t.Scales, r+i, 1, ones, s)
				for q := range quads {
					f, v := (*[kernel.QuadLanes]float32)(factors[(i*quads+q)*kernel.QuadLanes:]), scales[q/ratio]
					for l := range f {
						f[l] = v
					}
				}
			}
		})
		dst, x = dst[n:], x[n:]
	}
}
