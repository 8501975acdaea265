package fabric

// This file multiplies planes in the order in which ggml adds, so that results are ggml's bit for bit.

import (
	"fmt"

	"tensorcast/fabric/kernel"
	"tensorcast/gguf"
)

// superCols is the number of columns of a super-block.
const superCols = 256

// HasGGMLOrder reports whether NewOrdered accepts m, i.e. whether m is an exact decomposition of Q8_0,
// Q4_0, Q6_K or Q4_K.
func HasGGMLOrder(m *Matrix) bool {
	if !m.Exact || len(m.Terms) != 1 {
		return false
	}
	t := &m.Terms[0]
	hasSub := func(s *Scales, block int) bool { return s.Block == block && s.Sub != nil && m.Cols%superCols == 0 }
	switch m.Origin {
	case gguf.Q8_0, gguf.Q4_0:
		return t.Scales.Half != nil && t.Scales.Block == kernel.OrderCols && m.Cols%kernel.OrderCols == 0 &&
			m.Min.Block == 0
	case gguf.Q4_K:
		return len(t.Planes) <= kernel.SmallPlanes && hasSub(&t.Scales, 32) && hasSub(&m.Min, 32)
	case gguf.Q6_K:
		return len(t.Planes) <= kernel.SmallPlanes && hasSub(&t.Scales, 16) && m.Min.Block == 0
	}
	return false
}

// NewOrdered does what NewOperand does, for a matrix for which HasGGMLOrder is true. Activations should
// be in the blocks in which ggml quantises for the type: 32 for Q8_0 and Q4_0, otherwise 256. Then
// products, of one vector or of many, are those of ggml's ggml_vec_dot_q8_0_q8_0, _q4_0_q8_0,
// _q4_K_q8_K and _q6_K_q8_K bit for bit, as its x86 builds for AVX2 and later compute them. This
// takes longer than other orders.
func NewOrdered(m *Matrix) (*Operand, error) {
	if !HasGGMLOrder(m) {
		return nil, fmt.Errorf("%w: ggml's order is not known for %v", ErrOperand, m.Origin)
	}
	o, err := NewOperand(m)
	if err == nil {
		o.ordered = superCols
		if m.Terms[0].Scales.Half != nil {
			o.ordered = kernel.OrderCols
		}
	}
	return o, err
}

// multiplyOrdered computes rows first to end-1 of the products with x, which is in blocks of o.ordered.
func (o *Operand) multiplyOrdered(dst [][]float32, first, end int, x []*Activations, s *Scratch) {
	m, t := o.m, &o.m.Terms[0]
	add := t.Center - kernel.Offset(len(t.Planes))
	per := m.Cols / 32 // scales of a row that are integers
	if m.Origin == gguf.Q6_K {
		add, per = add+32, m.Cols/16 // ggml subtracts 32 separately
	}
	blocks := m.Cols / o.ordered
	grow(&s.vectors, max(len(x), len(s.vectors)))
	for i, x := range x {
		v := &s.vectors[i]
		setBias(grow(&v.bias, len(x.sums)), x.sums, 32, add)
		if o.ordered == kernel.OrderCols {
			continue
		}
		negated := grow(&v.with, blocks)
		for b, f := range x.Scale[:blocks] {
			negated[b] = -f
		}
		fours := m.Cols / per / 4
		for p := range grow(&v.parts, per) {
			var sum int32
			for _, f := range x.sums[p*fours:][:fours] {
				sum += f
			}
			v.parts[p] = int16(sum)
		}
	}
	trits, _ := m.Layout.Group()
	pitch := o.groups * trits
	batch := max(1, min(batchRows, batchFactors/blocks, batchWeights/pitch))
	grow(&s.weights, batch*pitch)
	factors, minima := grow(&s.factors, batch*blocks), grow(&s.part, batch*blocks)
	p := &s.ordered
	*p = kernel.OrderedSuper{
		Ordered: kernel.Ordered{Weights: s.weights, Pitch: pitch, Blocks: blocks, Factors: factors},
		Sixteen: m.Origin == gguf.Q6_K,
	}
	if m.Min.Block != 0 {
		p.MinFactors = minima
	}
	for r := first; r < end; r += batch {
		n := min(batch, end-r)
		for i, b := range t.Planes {
			s.planes[i] = b[r*o.rowBytes : (r+n)*o.rowBytes]
		}
		o.level.Decode(m.Layout, s.weights, s.planes[:len(t.Planes)], n*o.rowBytes)
		for i, x := range x {
			v := &s.vectors[i]
			p.Count, p.X, p.Bias, p.Dst = n, x.Q, v.bias, dst[i][r:r+n]
			if o.ordered == kernel.OrderCols {
				o.expandScales(factors, blocks, &t.Scales, r, n, x.Scale, s)
				o.level.MultiplyOrdered(&p.Ordered)
				continue
			}
			o.expandScales(factors, blocks, &Scales{Block: superCols, Half: t.Scales.Super}, r, n, x.Scale, s)
			p.Sub, p.Sums = t.Scales.Sub[r*per:(r+n)*per], v.parts
			if m.Min.Block != 0 {
				o.expandScales(minima, blocks, &Scales{Block: superCols, Half: m.Min.Super}, r, n, v.with, s)
				p.Min = m.Min.Sub[r*per : (r+n)*per]
			}
			o.level.MultiplyOrderedSuper(p)
		}
	}
	*p = kernel.OrderedSuper{}
}
