package fabric

// This file multiplies matrices by quantised vectors. It prepares operands and computes the
// products of planes.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
)

// ErrOperand is wrapped by the errors of NewOperand and of the functions that make other operands.
var ErrOperand = errors.New("not a matrix that can be multiplied")

// Operand is a matrix prepared for multiplication. Any number of goroutines may use it.
type Operand struct {
	m        *Matrix
	groups   int // groups per row
	rowBytes int
	level    kernel.Level
	terms    []term
	// Some operands have blocks of Q2_0 (codes) or bands instead of terms. Then m has only the
	// shape, and groups and rowBytes are 0.
	codes      []byte
	bands      []byte
	bandPlanes int
	// ordered is the Block of activations with which products are in ggml's order; 0 if there is none.
	ordered int
}

// NewOperand checks m and prepares it for products. m must not change afterwards. The planes'
// layout must be trit.PT5Striped or trit.TwoBit. A term may have at most 6 planes and a Center of
// -32768 to 32768. The integers of a term with 6 planes (without Center) must be in -128 to 127, as
// those of Q8_0 are. Otherwise the error wraps ErrOperand.
//
// NewOperand reads the planes to find zeros that are worth skipping. If the last plane is nearly
// all zeros, it is replaced by a list of its other trits, of 2 bytes each. If many groups are zero
// in all planes of a term, a byte per group tells the product which groups to skip.
func NewOperand(m *Matrix) (*Operand, error) {
	return newOperand(m, measuredThresholds)
}

func newOperand(m *Matrix, limits thresholds) (*Operand, error) {
	o := &Operand{m: m, level: kernel.Best()}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOperand, err)
	}
	for i := range m.Terms {
		o.terms = append(o.terms, o.planTerm(&m.Terms[i], limits))
	}
	return o, nil
}

// check returns an error if the kernels do not support the matrix. It also sets rowBytes and groups.
func (o *Operand) check() error {
	m := o.m
	switch {
	case m.Rows < 1 || m.Cols < 1:
		return fmt.Errorf("%d rows of %d columns", m.Rows, m.Cols)
	case m.Layout != trit.PT5Striped && m.Layout != trit.TwoBit:
		return fmt.Errorf("there are no kernels for planes that are %v", m.Layout)
	}
	o.rowBytes = m.Layout.RowBytes(m.Cols)
	o.groups = o.rowBytes / groupBytes
	for i := range m.Terms {
		t := &m.Terms[i]
		if len(t.Planes) < 1 || len(t.Planes) > kernel.MaxPlanes ||
			t.Center < -maxOperandCenter || t.Center > maxOperandCenter {
			return fmt.Errorf("term %d has %d planes, center %d", i, len(t.Planes), t.Center)
		}
		for p, b := range t.Planes {
			if len(b) != m.Rows*o.rowBytes {
				return fmt.Errorf("term %d, plane %d: %d bytes for %d rows of %d", i, p, len(b), m.Rows, o.rowBytes)
			}
		}
		if err := t.Scales.check(m.Rows, m.Cols); err != nil {
			return fmt.Errorf("term %d: %w", i, err)
		}
		if len(t.Planes) == kernel.MaxPlanes && !o.fitsByte(t) {
			return fmt.Errorf("term %d has integers that do not fit a byte", i)
		}
	}
	if err := m.Min.check(m.Rows, m.Cols); err != nil {
		return fmt.Errorf("minima: %w", err)
	}
	return nil
}

const (
	groupBytes       = 64      // size of a group in the layouts that have kernels
	maxOperandCenter = 1 << 15 // with this limit the integers of a block fit into 32 bits
)

// check returns an error if the number of scales does not fit the shape of a matrix.
func (s *Scales) check(rows, cols int) error {
	form, err := s.form(cols)
	if err != nil || form == scalesNone {
		return err
	}
	blocks, supers := rows*ceilDiv(cols, s.Block), rows*ceilDiv(cols, 256)
	if form == scalesHalf && len(s.Half) != blocks ||
		form == scalesSub && (len(s.Sub) != blocks || len(s.Super) != supers) {
		return fmt.Errorf("%d, %d and %d scales in blocks of %d for %d rows of %d columns",
			len(s.Half), len(s.Sub), len(s.Super), s.Block, rows, cols)
	}
	return nil
}

// fitsByte reports whether the sums of six planes are in -128..127. Products compute these sums
// modulo 256, so other sums would be wrong. The sums of the low five planes are in -121..121. So
// only positions where the sixth plane is not 0 need to be checked.
func (o *Operand) fitsByte(t *Term) bool {
	const low = kernel.MaxPlanes - 1
	const zeros = 0x0101010101010101
	trits, _ := o.m.Layout.Group()
	sums, top := make([]byte, o.groups*trits), make([]byte, o.groups*trits)
	var planes [kernel.MaxPlanes][]byte
	for r := range o.m.Rows {
		for p := range planes {
			planes[p] = t.Planes[p][r*o.rowBytes:]
		}
		o.level.Decode(o.m.Layout, sums, planes[:low], o.rowBytes)
		o.level.Decode(o.m.Layout, top, planes[low:], o.rowBytes)
		for i := 0; i < len(top); i += 8 {
			if binary.NativeEndian.Uint64(top[i:]) == zeros {
				continue
			}
			for j, d := range top[i : i+8] {
				if v := int(sums[i+j]) - 121 + 243*(int(d)-1); v < -128 || v > 127 {
					return false
				}
			}
		}
	}
	return true
}

// Scratch is working memory of products. The zero value is ready to use. It grows as needed and is
// then reused without allocation. It is for one goroutine at a time.
type Scratch struct {
	vectors []vector
	factors []float32
	// part has the factors of larger blocks, or results before the scales of their rows are applied
	// and these scales.
	part    []float32
	weights []byte
	planes  [kernel.MaxPlanes][]byte
	one     [1]float32
	scales  kernel.Scales
	product kernel.Product
	rows    kernel.Rows
	sparse  kernel.SparseRows
	ordered kernel.OrderedSuper

	panel   panel
	codes   kernel.Codes
	bands   kernel.Bands
	tile    kernel.Tile
	results []float32 // of a row of tiles

	// The arguments of GEMV, as slices.
	dst [1][]float32
	x   [1]*Activations
}

// vector is what a term's product computes from the activations first.
type vector struct {
	bias  []int32
	with  []float32 // what the scales are multiplied by: the factors of the activations
	parts []int16   // sums of the activations in columns that share an integer as scale
}

// The limits of a batch of rows. It shares the first-level cache with the vector.
const (
	batchFactors = 2048     // factors
	batchWeights = 32 << 10 // decoded weights, of a byte each
	batchRows    = 64

	overread = 15 // factors that the kernels read beyond the last one
)

// grow gives *p the length n, and returns it. What it holds is undefined.
func grow[T any](p *[]T, n int) []T {
	if cap(*p) < n {
		*p = make([]T, n)
	}
	*p = (*p)[:n]
	return *p
}

// GEMV multiplies the matrix by x: dst[r] = sum over c of W[r,c] * x[c], where x[c] is Q[c] *
// Scale[c/Block]. Within a block, the products of integers and Q are summed exactly. The blocks are
// summed in float32. GEMV panics if dst does not have Rows values or x does not have Cols. It does
// not allocate if s has been used for a product of this kind before.
func (o *Operand) GEMV(dst []float32, x *Activations, s *Scratch) {
	s.dst[0], s.x[0] = dst, x
	o.GEMM(s.dst[:], s.x[:], s)
	s.dst[0], s.x[0] = nil, nil
}

// GEMM multiplies the matrix by each vector of x, into the element of dst with the same index. The
// results are those of GEMV, except for the order in which floats are summed. Weights are decoded
// only once. All vectors must have the same Block.
func (o *Operand) GEMM(dst [][]float32, x []*Activations, s *Scratch) {
	o.checkShapes(dst, x)
	if !o.needsArranging() {
		o.multiply(dst, 0, o.m.Rows, x, s)
		return
	}
	for len(x) > 0 {
		n := min(len(x), panelVectors)
		o.arrange(&s.panel, x[:n])
		o.multiplyArranged(dst[:n], 0, o.m.Rows, &s.panel, s)
		dst, x = dst[n:], x[n:]
	}
}

// needsArranging reports whether vectors have to be put into another order, once for all rows.
func (o *Operand) needsArranging() bool { return o.codes != nil || o.bands != nil }

// arrange fills the panel with x, in the order that the operand needs.
func (o *Operand) arrange(p *panel, x []*Activations) {
	if o.codes != nil {
		p.arrange(o.level, x)
	} else {
		p.fillForBands(x, kernel.BandOffset(o.bandPlanes))
	}
}

// multiplyArranged computes rows first to end-1 of the products with a panel's vectors. first is a
// multiple of rowsTogether.
func (o *Operand) multiplyArranged(dst [][]float32, first, end int, p *panel, s *Scratch) {
	if o.codes != nil {
		o.multiplyCodes(dst, first, end, p, s)
	} else {
		o.multiplyBands(dst, first, end, p, s)
	}
}

// rowsTogether is a multiple of the number of rows that are stored or multiplied together, in any form.
const rowsTogether = kernel.TileRows * BandRows

// checkShapes panics if the operands and results of a product do not fit each other.
func (o *Operand) checkShapes(dst [][]float32, x []*Activations) {
	if len(dst) != len(x) {
		panic(fmt.Sprintf("fabric: %d results of %d vectors", len(dst), len(x)))
	}
	for i, x0 := range x {
		if len(dst[i]) != o.m.Rows || x0.Cols != o.m.Cols || x0.Block != x[0].Block {
			panic(fmt.Sprintf("fabric: %d rows of %d columns times %d values in blocks of %d (vector 0: %d) into %d",
				o.m.Rows, o.m.Cols, x0.Cols, x0.Block, x[0].Block, len(dst[i])))
		}
	}
}

// multiply computes rows first to end-1 of the products with x.
func (o *Operand) multiply(dst [][]float32, first, end int, x []*Activations, s *Scratch) {
	if len(x) == 0 {
		return
	}
	if o.ordered == x[0].Block {
		o.multiplyOrdered(dst, first, end, x, s)
		return
	}
	for _, d := range dst {
		clear(d[first:end])
	}
	grow(&s.vectors, max(len(x), len(s.vectors)))
	for i := range o.terms {
		o.multiplyTerm(dst, first, end, &o.terms[i], x, s)
	}
	for i, d := range dst {
		o.subtractMin(d[first:end], first, x[i], s)
	}
}

// granule returns the number n of columns that share both a scale and an activation's factor, and
// how many of these granules share a scale. ratio is 0 if a whole row shares a scale.
func granule(scales *Scales, cols int, x *Activations) (n, ratio int) {
	if scales.Block == 0 || scales.Block >= cols {
		return x.Block, 0
	}
	n = scales.Block
	for b := x.Block; b != 0; {
		n, b = b, n%b
	}
	return n, scales.Block / n
}

// multiplyTerm adds rows first to end-1 of a term's products with x to dst.
func (o *Operand) multiplyTerm(dst [][]float32, first, end int, t *term, x []*Activations, s *Scratch) {
	m := o.m
	block, ratio := granule(&t.Scales, m.Cols, x[0])
	if o.usesTiles(t, block, ratio, len(x)) {
		even := len(x) &^ 1
		o.multiplyTiled(dst[:even], first, end, t, x[:even], s)
		if dst, x = dst[even:], x[even:]; len(x) == 0 {
			return
		}
	}
	blocks, pitch := ceilDiv(m.Cols, block), ceilDiv(len(x[0].Q), block)
	s.prepareVectors(x, blocks, pitch, block, t.Center-kernel.Offset(len(t.dense)))
	trits, _ := m.Layout.Group()
	weights := o.groups * trits // per row
	batch := min(batchRows, batchFactors/pitch)
	if n := o.level.BatchRows(len(t.dense), block); n > 0 {
		batch = min(n, end-first)
	}
	// If there is a single-pass loop for one plane, decoding the plane for each vector is as fast
	// as reading decoded weights. Then a batch only keeps rows in the cache.
	decodeOnce := len(x) > 1 && len(t.dense) > 0 && (len(t.dense) > 1 || !o.level.HasSinglePass(1, block))
	if decodeOnce {
		batch = min(batch, batchWeights/weights)
	}
	batch = max(1, batch)
	// Kernels read factors beyond the last column and multiply them by 0. So these factors must be
	// finite.
	clear(grow(&s.factors, batch*pitch+overread))
	grow(&s.weights, max(batch, batchWeights/weights)*weights)
	s.one[0] = 1
	p, q, z := &s.product, &s.rows, &s.sparse
	*p = kernel.Product{
		Layout: m.Layout, Planes: s.planes[:len(t.dense)], Groups: o.groups, Block: block, Weights: s.weights,
	}
	*q = kernel.Rows{
		Weights: s.weights, Pitch: weights, Stripes: weights / kernel.Stripe, Block: block,
		Small: len(t.dense) <= kernel.SmallPlanes,
	}
	*z = kernel.SparseRows{Shift: uint32(bits.TrailingZeros(uint(block)))}
	for r := first; r < end; r += batch {
		n := min(batch, end-r)
		for i, b := range t.dense {
			s.planes[i] = b[r*o.rowBytes : (r+n)*o.rowBytes]
		}
		if decodeOnce {
			o.level.Decode(m.Layout, s.weights, p.Planes, n*o.rowBytes)
		}
		if t.skip != nil {
			p.Skip = t.skip[r*o.groups : (r+n)*o.groups]
		}
		for i := range x {
			v := &s.vectors[i]
			factors, factorPitch := s.factors, pitch
			switch {
			case ratio == 0:
				factors, factorPitch = v.with, 0
			case ratio == 1:
				o.expandScales(factors, pitch, &t.Scales, r, n, v.with[:blocks], s)
			default:
				o.expandLargeScales(factors, pitch, &t.Scales, r, n, ratio, v.with[:blocks], s)
			}
			to := dst[i][r : r+n]
			if ratio == 0 && t.Scales.Block != 0 {
				to = grow(&s.part, 2*n)[:n]
				clear(to)
			}
			switch {
			case len(t.dense) == 0:
			case decodeOnce:
				q.Count, q.X, q.Bias, q.Factors, q.FactorPitch, q.Dst = n, x[i].Q, v.bias, factors, factorPitch, to
				o.level.Dot(q)
			default:
				p.Count, p.X, p.Bias, p.Factors, p.FactorPitch, p.Dst = n, x[i].Q, v.bias, factors, factorPitch, to
				o.level.Multiply(p)
			}
			for j := range t.sparse {
				plane := &t.sparse[j]
				z.Begin, z.Entries, z.Weight, z.Count = plane.begin[r:r+n+1], plane.entries, plane.weight, n
				z.X, z.Factors, z.FactorPitch, z.Dst = x[i].Q, factors, factorPitch, to
				o.level.DotSparse(z)
			}
			if ratio == 0 && t.Scales.Block != 0 {
				scale := s.part[n : 2*n]
				o.expandScales(scale, 1, &t.Scales, r, n, s.one[:], s)
				for j, f := range to {
					dst[i][r+j] += f * scale[j]
				}
			}
		}
	}
}

// prepareVectors computes what a term's product needs of each vector: the bias for weights to which
// weight is added, and the factors of blocks of block columns, padded with zeros to pitch and what
// the kernels read beyond.
func (s *Scratch) prepareVectors(x []*Activations, blocks, pitch, block int, weight int32) {
	for i, x := range x {
		v := &s.vectors[i]
		setBias(grow(&v.bias, len(x.sums)), x.sums, block, weight)
		with := grow(&v.with, pitch+overread)
		clear(with[blocks:])
		for b := range blocks {
			with[b] = x.Scale[b*block/x.Block]
		}
	}
}

// setBias writes the sums of activations times weight to dst, by lanes. weight is what has to be
// added to each weight. There are lanes for each stripe, or, if blocks are larger than a stripe,
// for each block.
func setBias(dst, sums []int32, block int, weight int32) {
	const lanes = kernel.Stripe / 4
	if block <= kernel.Stripe {
		for i, v := range sums {
			dst[i] = v * weight
		}
		return
	}
	clear(dst)
	for i := 0; i < len(sums); i += lanes {
		b := dst[i/(block/4)*lanes:][:lanes]
		for j, v := range sums[i : i+lanes] {
			b[j] += v * weight
		}
	}
}

// expandScales writes the products of with and the scales of n rows, from r on, to dst.
func (o *Operand) expandScales(dst []float32, pitch int, scales *Scales, r, n int, with []float32, s *Scratch) {
	blocks := ceilDiv(o.m.Cols, scales.Block)
	e := &s.scales
	*e = kernel.Scales{Rows: n, Blocks: blocks, With: with}
	if scales.Half != nil {
		e.Half = scales.Half[r*blocks : (r+n)*blocks]
	} else {
		e.Supers, e.Per = ceilDiv(o.m.Cols, 256), 256/scales.Block
		e.Sub, e.Super = scales.Sub[r*blocks:(r+n)*blocks], scales.Super[r*e.Supers:(r+n)*e.Supers]
	}
	o.level.Expand(dst, pitch, e)
}

// expandLargeScales does the same for scales that cover ratio blocks each.
func (o *Operand) expandLargeScales(dst []float32, pitch int, scales *Scales, r, n, ratio int, with []float32,
	s *Scratch) {
	blocks := ceilDiv(o.m.Cols, scales.Block)
	part := grow(&s.part, 2*blocks)
	ones := part[blocks:]
	for i := range ones {
		ones[i] = 1
	}
	for i := range n {
		o.expandScales(part, blocks, scales, r+i, 1, ones, s)
		for b, w := range with {
			dst[i*pitch+b] = part[b/ratio] * w
		}
	}
}

// subtractMin subtracts the minima times the sums of their blocks of activations, for the rows from
// first on.
func (o *Operand) subtractMin(dst []float32, first int, x *Activations, s *Scratch) {
	scales := &o.m.Min
	if scales.Block == 0 {
		return
	}
	blocks := ceilDiv(o.m.Cols, scales.Block)
	with := grow(&s.vectors[0].with, blocks)
	clear(with)
	step, _ := granule(scales, o.m.Cols, x)
	for c := 0; c < o.m.Cols; c += step {
		var sum int32
		for _, v := range x.sums[c/4 : min(c+step, len(x.Q))/4] {
			sum += v
		}
		with[c/scales.Block] += float32(sum) * x.Scale[c/x.Block]
	}
	o.subtractProducts(dst, first, with, s)
}

// subtractProducts subtracts the sum of a row's minima times with, for the rows from first on.
func (o *Operand) subtractProducts(dst []float32, first int, with []float32, s *Scratch) {
	scales, blocks := &o.m.Min, len(with)
	batch := max(1, min(batchRows, batchFactors/blocks, len(dst)))
	factors := grow(&s.factors, batch*blocks)
	for r := 0; r < len(dst); r += batch {
		n := min(batch, len(dst)-r)
		o.expandScales(factors, blocks, scales, first+r, n, with, s)
		o.level.SubtractSums(dst[r:r+n], factors, blocks, blocks)
	}
}
