package fabric

// This file multiplies matrices by vectors of float32, without quantising these.

import (
	"fmt"

	"tensorcast/fabric/kernel"
)

// GEMVFloat multiplies the matrix by x: dst[r] = sum over c of W[r,c] * x[c], all in float32. It takes two to six times as long as GEMV. It
// panics if dst does not have Rows values or x not Cols. It does not allocate if s has been used for a product of this kind before.
func (o *Operand) GEMVFloat(dst, x []float32, s *Scratch) {
	m := o.m
	if len(dst) != m.Rows || len(x) != m.Cols {
		panic(fmt.Sprintf("fabric: %d rows of %d columns times %d values into %d", m.Rows, m.Cols, len(x), len(dst)))
	}
	clear(dst)
	if o.codes != nil {
		o.multiplyCodesFloat(dst, x, s)
		return
	}
	if o.bands != nil {
		padded := grow(&s.x32, kernel.BandBlocks(m.Cols)*kernel.BandBlock)
		clear(padded[copy(padded, x):])
		o.multiplyBandsFloat(dst, padded, s)
		return
	}
	grow(&s.vectors, max(1, len(s.vectors)))
	trits, _ := m.Layout.Group()
	weights := o.groups * trits // of a row
	padded := grow(&s.x32, weights)
	clear(padded[copy(padded, x):])
	for i := range m.Terms {
		o.multiplyFloat(dst, &m.Terms[i], padded, s)
	}
	if m.Min.Block != 0 {
		with := grow(&s.vectors[0].with, ceilDiv(m.Cols, m.Min.Block))
		for b := range with {
			var sum float64
			for _, v := range x[b*m.Min.Block : min((b+1)*m.Min.Block, len(x))] {
				sum += float64(v)
			}
			with[b] = float32(sum)
		}
		o.subtractProducts(dst, 0, with, s)
	}
}

func (o *Operand) multiplyFloat(dst []float32, t *Term, x []float32, s *Scratch) {
	m := o.m
	block, blocks := t.Scales.Block, ceilDiv(m.Cols, max(t.Scales.Block, 1))
	if blocks == 1 || block == 0 { // the kernels' blocks are multiples of 16
		block, blocks = len(x), 1
	}
	pitch := ceilDiv(len(x), block)
	batch := max(1, min(batchFactors/pitch, batchWeights/len(x)))
	clear(grow(&s.factors, batch*pitch+overread))
	grow(&s.weights, batch*len(x))
	with := grow(&s.vectors[0].with, blocks)
	for i := range with {
		with[i] = 1
	}
	f := &s.float
	*f = kernel.FloatRows{
		Weights: s.weights, Pitch: len(x), Stripes: len(x) / kernel.Stripe, X: x, Add: t.Center - kernel.Offset(len(t.Planes)),
		Block: block, Factors: s.factors, FactorPitch: pitch,
	}
	if t.Scales.Block == 0 {
		s.factors[0], f.FactorPitch = 1, 0
	}
	for r := 0; r < m.Rows; r += batch {
		f.Count = min(batch, m.Rows-r)
		for i, b := range t.Planes {
			s.planes[i] = b[r*o.rowBytes : (r+f.Count)*o.rowBytes]
		}
		o.level.Decode(m.Layout, s.weights, s.planes[:len(t.Planes)], f.Count*o.rowBytes)
		if t.Scales.Block != 0 {
			o.expand(s.factors, pitch, &t.Scales, r, f.Count, with, s)
		}
		f.Dst = dst[r : r+f.Count]
		o.level.DotFloat(f)
	}
}
