package device

// This file executes products.

import (
	"encoding/binary"
	"errors"
	"math"

	"tensorcast/fabric"
	"tensorcast/fabric/kernel"
)

// vectorShape is that of a quantised vector.
type vectorShape struct{ cols, block int }

const (
	// maxShapes is the number of shapes of which vectors are kept. Models have three or four.
	maxShapes = 16
	// maxKeptValues is the number of values from which on the vectors of a product are kept alone, so that a
	// client cannot have the device fill its memory with them.
	maxKeptValues = 1 << 20
)

// tileVectors is how many vectors are multiplied at a time: weights are read once for each tile.
const tileVectors = 64

// maxExactFloat is the largest magnitude up to which float32 holds all integers.
const maxExactFloat = 1 << 24

// operands are the vectors, scales and results of a product, in the client's memory.
type operands struct {
	n, block       int    // vectors, and columns that share a factor
	xBytes, yBytes uint64 // of a vector, and of its result
	scaleBytes     int    // of a vector's factors
	xs, ys, scales []byte // vectors and results, strided; scales are nil if there are none
	limit          uint64 // the largest magnitude of a weight
}

// checkProduct checks a product with the matrix m, and finds its operands. Its status is 0, or says what is wrong.
func (e *executor) checkProduct(d *Descriptor, m *fabric.Matrix) (o operands, status int32) {
	cols, rows, n := uint64(m.Cols), uint64(m.Rows), uint64(d.N)
	// Rows and Cols are what the client takes the shape for. If it is wrong, its memory is laid out wrongly.
	if uint64(d.Rows) != rows || uint64(d.Cols) != cols || n == 0 || n > maxVectors || cols > maxValues/n ||
		rows > maxValues/n {
		return o, statusInvalid
	}
	o = operands{n: int(n), block: 256, yBytes: 4 * rows}
	switch d.XType {
	case TypePT5:
		o.xBytes = (cols + 4) / 5
	case TypeInt8:
		o.xBytes = cols
	case TypeFloat32:
		o.xBytes = 4 * cols
	default:
		return o, statusInvalid
	}
	hasScales := d.Flags&FlagScales != 0
	if d.XType == TypeFloat32 || hasScales {
		if o.block = int(d.Block); o.block != 32 && o.block != 256 {
			return o, statusInvalid
		}
	}
	if hasScales && d.XType != TypeInt8 || d.YType != TypeFloat32 && d.YType != TypeInt32 || d.X%4 != 0 &&
		d.XType == TypeFloat32 {
		return o, statusInvalid
	}
	var isInteger bool
	o.limit, isInteger = largestWeight(m)
	if d.YType == TypeInt32 && (!isInteger || d.XType == TypeFloat32 || hasScales) {
		return o, statusInvalid
	}
	o.xs, o.ys = arenaVectors(e.arena, d.X, n, o.xBytes, d.XStride), arenaVectors(e.arena, d.Y, n, o.yBytes, d.YStride)
	if o.xs == nil || o.ys == nil {
		return o, statusFault
	}
	o.scaleBytes = 4 * ((m.Cols + o.block - 1) / o.block)
	if hasScales {
		if o.scales = arenaBytes(e.arena, d.Scale, n*uint64(o.scaleBytes)); o.scales == nil {
			return o, statusFault
		}
	}
	return o, 0
}

// multiply computes a product. It returns a status.
func (e *executor) multiply(d *Descriptor, c *Completion, cancelled func() bool) int32 {
	h := e.handles[d.Handle]
	if h == nil {
		return statusNoHandle
	}
	m := h.weight.matrix
	o, status := e.checkProduct(d, m)
	if status != 0 {
		return status
	}
	u, err := e.store.beginProduct(h.weight, d.Flags&FlagDegrade != 0)
	if errors.Is(err, errGone) {
		return statusGone
	}
	if err != nil {
		return statusNoMemory
	}
	defer e.store.endProduct(h.weight)
	for first := 0; first < o.n; first += tileVectors {
		if cancelled() {
			return statusCancelled
		}
		count := min(tileVectors, o.n-first)
		if err := e.prepareVectors(m, count, o.block); err != nil {
			return statusInvalid
		}
		if status := e.loadVectors(d, &o, first, count); status != 0 {
			return status
		}
		e.pool.GEMM(u.operand, e.dst[:count], e.vectors[:count])
		e.storeResults(d, &o, first, count)
	}
	n := uint64(o.n)
	if h.vectors += n; h.vectors > e.mostVectors {
		e.tokens.Add(h.vectors - e.mostVectors)
		e.mostVectors = h.vectors
	}
	c.Planes = uint32(u.planes)
	c.Ops = h.weight.tritsPerPlane * uint64(u.planes) * n
	c.Zeros = u.zeros * n
	c.Bytes = u.bytes * uint64((n+tileVectors-1)/tileVectors)
	c.Lanes = uint32(kernel.Stripe * e.workers)
	return 0
}

// loadVectors copies count vectors, from the first on, out of the client's memory. It returns a status.
func (e *executor) loadVectors(d *Descriptor, o *operands, first, count int) int32 {
	for i := range count {
		at := uint64(first+i) * d.XStride
		var scale []byte
		if o.scales != nil {
			scale = o.scales[(first+i)*o.scaleBytes : (first+i+1)*o.scaleBytes]
		}
		sum, ok := e.loadVector(e.vectors[i], o.xs[at:at+o.xBytes], d.XType, scale)
		if !ok {
			return statusBadFrame
		}
		if d.YType == TypeInt32 && sum > maxExactFloat/o.limit {
			return statusRange
		}
	}
	return 0
}

// storeResults copies the results of count vectors, from the first on, to the client's memory.
func (e *executor) storeResults(d *Descriptor, o *operands, first, count int) {
	for i := range count {
		to := o.ys[uint64(first+i)*d.YStride:][:o.yBytes]
		if d.YType == TypeFloat32 {
			copy(to, bytesOf(e.dst[i]))
			continue
		}
		for r, v := range e.dst[i] {
			binary.NativeEndian.PutUint32(to[4*r:], uint32(int32(v)))
		}
	}
}

// largestWeight returns the largest magnitude that a weight can have, and whether the weights are integers:
// without scales and minima.
func largestWeight(m *fabric.Matrix) (limit uint64, isInteger bool) {
	isInteger = m.Min.Block == 0
	for i := range m.Terms {
		t := &m.Terms[i]
		isInteger = isInteger && t.Scales.Block == 0
		p := uint64(1)
		for range t.Planes {
			p *= 3
		}
		limit += p/2 + uint64(max(t.Center, -t.Center))
	}
	return max(limit, 1), isInteger
}

// prepareVectors makes room for count vectors and their results.
func (e *executor) prepareVectors(m *fabric.Matrix, count, block int) error {
	of := vectorShape{m.Cols, block}
	if e.vectors = e.kept[of]; e.vectors == nil && len(e.kept) >= maxShapes || count*m.Cols > maxKeptValues {
		clear(e.kept)
	}
	for len(e.vectors) < count {
		a, err := fabric.NewActivations(m.Cols, block)
		if err != nil {
			return err
		}
		e.vectors = append(e.vectors, a)
	}
	if e.kept == nil {
		e.kept = map[vectorShape][]*fabric.Activations{}
	}
	e.kept[of] = e.vectors
	e.y = resized(e.y, count*m.Rows)
	e.dst = resized(e.dst, count)
	for i := range count {
		e.dst[i] = e.y[i*m.Rows : (i+1)*m.Rows]
	}
	return nil
}

// resized returns a slice of n elements in the memory of s, or in new memory if that is too small.
func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// loadVector copies the vector b of a type out of the client's memory, with its factors (nil: none). sum is the
// sum of the magnitudes of its integers. ok is false if the vector is malformed.
func (e *executor) loadVector(a *fabric.Activations, b []byte, of uint32, scale []byte) (sum uint64, ok bool) {
	if of == TypeFloat32 {
		e.x = resized(e.x, a.Cols)
		copy(bytesOf(e.x), b)
		exponents := uint32(0) // more than 8 bits if one of the values is infinite or not a number
		for _, v := range e.x {
			exponents |= math.Float32bits(v)>>23&0xff + 1
		}
		if exponents > 0xff { // then they have no scale
			return 0, false
		}
		a.Quantize(e.x)
		return 0, true
	}
	e.q = resized(e.q, a.Cols)
	if of == TypePT5 {
		if unpackAt(e.q, b, 0) != nil {
			return 0, false
		}
	} else {
		for i := range e.q {
			e.q[i] = int8(b[i])
		}
	}
	for _, v := range e.q {
		sum += uint64(max(int(v), -int(v)))
	}
	var factors []float32
	if scale != nil {
		e.scale = resized(e.scale, len(scale)/4)
		for i := range e.scale {
			e.scale[i] = math.Float32frombits(binary.NativeEndian.Uint32(scale[4*i:]))
		}
		factors = e.scale
	}
	a.Set(e.q, factors)
	return sum, true
}
