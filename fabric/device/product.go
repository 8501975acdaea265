package device

// This file executes jobs: it checks a descriptor's copy and does what it says.

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync/atomic"

	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
	"tensorcast/gguf"
)

// handle is a client's reference to a weight.
type handle struct {
	weight  *weight
	pins    int
	vectors uint64 // that it was multiplied with
}

// shape is of a vector that is quantised.
type vectorShape struct{ cols, block int }

// mostShapes is of how many shapes vectors are kept: models have three or four. Vectors of more than mostKept values are kept alone, so that a client cannot have the device fill its memory with them.
const (
	maxShapes     = 16
	maxKeptValues = 1 << 20
)

// executor does the jobs of one client. It is for one goroutine.
type executor struct {
	arena       []byte
	store       *store
	pool        *fabric.Pool
	workers     int
	tokens      *atomic.Uint64 // of all clients
	mostVectors uint64         // vectors of a handle

	handles    map[uint64]*handle
	lastHandle uint64

	kept    map[vectorShape][]*fabric.Activations // kept, so that a token's products, of which some are shorter, allocate nothing
	vectors []*fabric.Activations                 // of the current product
	dst     [][]float32
	x       []float32
	q       []int8
	scale   []float32
	y       []float32
}

// close drops the client's handles.
func (e *executor) close() {
	for id, h := range e.handles {
		e.store.release(h.weight, h.pins)
		delete(e.handles, id)
	}
}

// do executes d. cancelled is asked between parts of long jobs.
func (e *executor) execute(d *Descriptor, c *Completion, cancelled func() bool) {
	switch d.Op {
	case OpEmpty:
	case OpFrame, OpPlanes, OpBlocks:
		c.Status = e.upload(d, c, cancelled)
	case OpFind:
		c.Status = e.findHeld(d, c)
	case OpProduct:
		c.Status = e.multiply(d, c, cancelled)
	default:
		h := e.handles[d.Handle]
		switch {
		case h == nil:
			c.Status = statusNoHandle
		case d.Op == OpRelease:
			delete(e.handles, d.Handle)
			e.store.release(h.weight, h.pins)
		case d.Op == OpPin:
			if err := e.store.pin(h.weight, 1); err != nil {
				c.Status = statusNoMemory
				return
			}
			h.pins++
		case h.pins == 0:
			c.Status = statusInvalid
		default:
			h.pins--
			_ = e.store.pin(h.weight, -1) // fails only if it pins
		}
	}
}

// find gives the client a handle of what is held.
func (e *executor) findHeld(d *Descriptor, c *Completion) int32 {
	if len(e.handles) >= maxHandles {
		return statusNoMemory
	}
	w, err := e.store.findHeld(location{d.X, d.XStride, d.W, d.WBytes, gguf.Type(d.XType), d.Rows, d.Cols}, d.Scale)
	switch {
	case errors.Is(err, errLoading):
		return statusLoading
	case err != nil:
		return statusNotHeld
	}
	e.lastHandle++
	e.handles[e.lastHandle] = &handle{weight: w}
	c.Value = e.lastHandle
	return 0
}

func (e *executor) upload(d *Descriptor, c *Completion, cancelled func() bool) int32 {
	if len(e.handles) >= maxHandles {
		return statusNoMemory
	}
	var m *fabric.Matrix
	var w *weight
	var f weightForm
	var sum [32]byte
	var err error
	if d.Op == OpFrame {
		b := arenaBytes(e.arena, d.W, d.WBytes)
		if b == nil {
			return statusFault
		}
		m, sum, err = readFrame(b, d.Flags, e.store.pool.Total())
	} else if d.Op == OpBlocks {
		size := blocksBytes(d)
		if size == 0 || size != d.WBytes {
			return statusInvalid
		}
		if size > uint64(e.store.pool.Total()) && isCodes(d) {
			return statusNoMemory
		}
		b := arenaBytes(e.arena, d.W, size)
		if b == nil {
			return statusFault
		}
		b, sum = copyBlocks(b, d)
		if w = e.store.findUpload(sum); w == nil {
			m, f, err = e.readBlocks(b, d, e.store.pool.Total(), cancelled)
		}
	} else {
		trits := uint64(d.Rows) * uint64(d.Cols)
		if d.Rows == 0 || d.Cols == 0 || d.Rows > maxDim || d.Cols > maxDim || trits > maxTrits || d.Planes == 0 || d.Planes > maxPlanes {
			return statusInvalid
		}
		if uint64(layoutOf(d.Flags).RowBytes(int(d.Cols)))*uint64(d.Rows) > uint64(e.store.pool.Total())/uint64(d.Planes) {
			return statusNoMemory
		}
		b := arenaBytes(e.arena, d.W, (trits+4)/5*uint64(d.Planes))
		if b == nil {
			return statusFault
		}
		var scales []byte
		if d.Flags&FlagScales != 0 {
			if d.Block == 0 {
				return statusInvalid
			}
			blocks := (uint64(d.Cols) + uint64(d.Block) - 1) / uint64(d.Block) * uint64(d.Rows)
			if scales = arenaBytes(e.arena, d.Scale, 2*blocks); scales == nil {
				return statusFault
			}
		}
		m, sum, err = readPlanes(b, scales, d)
	}
	if err == nil && w == nil {
		w, err = e.store.addUpload(sum, m, f)
	}
	switch {
	case errors.Is(err, errFull):
		return statusNoMemory
	case errors.Is(err, context.Canceled):
		return statusCancelled
	case errors.Is(err, errBound):
		return statusRange
	case errors.Is(err, decompose.ErrInexact), errors.Is(err, gguf.ErrNoDecoder):
		return statusNoPlanes
	case err != nil:
		return statusBadFrame
	}
	e.lastHandle++
	e.handles[e.lastHandle] = &handle{weight: w}
	c.Value = e.lastHandle
	return 0
}

// tile is how many vectors are multiplied at a time: weights are read once for each tile.
const tileVectors = 64

// exactFloat is the largest sum that float32 holds exactly, with all sums of parts.
const maxExactFloat = 1 << 24

func (e *executor) multiply(d *Descriptor, c *Completion, cancelled func() bool) int32 {
	h := e.handles[d.Handle]
	if h == nil {
		return statusNoHandle
	}
	m := h.weight.matrix
	cols, rows, n := uint64(m.Cols), uint64(m.Rows), uint64(d.N)
	// Rows and Cols say what the client believes; that it lays out its memory for another shape is worth telling.
	if uint64(d.Rows) != rows || uint64(d.Cols) != cols || n == 0 || n > maxVectors || cols > maxValues/n || rows > maxValues/n {
		return statusInvalid
	}
	var size uint64
	block := 256
	switch d.XType {
	case TypePT5:
		size = (cols + 4) / 5
	case TypeInt8:
		size = cols
	case TypeFloat32:
		size = 4 * cols
	default:
		return statusInvalid
	}
	if d.XType == TypeFloat32 || d.Flags&FlagScales != 0 {
		if block = int(d.Block); block != 32 && block != 256 {
			return statusInvalid
		}
	}
	if d.Flags&FlagScales != 0 && d.XType != TypeInt8 || d.YType != TypeFloat32 && d.YType != TypeInt32 || d.X%4 != 0 && d.XType == TypeFloat32 {
		return statusInvalid
	}
	limit, plain := largestWeight(m)
	if d.YType == TypeInt32 && (!plain || d.XType == TypeFloat32 || d.Flags&FlagScales != 0) {
		return statusInvalid
	}
	xs, ys := arenaVectors(e.arena, d.X, n, size, d.XStride), arenaVectors(e.arena, d.Y, n, 4*rows, d.YStride)
	if xs == nil || ys == nil {
		return statusFault
	}
	var scales []byte
	blocks := (m.Cols + block - 1) / block
	if d.Flags&FlagScales != 0 {
		if scales = arenaBytes(e.arena, d.Scale, n*uint64(blocks)*4); scales == nil {
			return statusFault
		}
	}

	u, err := e.store.beginProduct(h.weight, d.Flags&FlagDegrade != 0)
	if errors.Is(err, errGone) {
		return statusGone
	}
	if err != nil {
		return statusNoMemory
	}
	defer e.store.endProduct(h.weight)
	for first := 0; first < int(n); first += tileVectors {
		if cancelled() {
			return statusCancelled
		}
		count := min(tileVectors, int(n)-first)
		if err := e.prepareVectors(m, count, block); err != nil {
			return statusInvalid
		}
		for i := range count {
			at := uint64(first+i) * d.XStride
			var scale []byte
			if scales != nil {
				scale = scales[(first+i)*blocks*4 : (first+i+1)*blocks*4]
			}
			sum, ok := e.loadVector(e.vectors[i], xs[at:at+size], d.XType, scale)
			if !ok {
				return statusBadFrame
			}
			if d.YType == TypeInt32 && sum > maxExactFloat/limit {
				return statusRange
			}
		}
		e.pool.GEMM(u.operand, e.dst[:count], e.vectors[:count])
		for i := range count {
			to := ys[uint64(first+i)*d.YStride:][:4*rows]
			if d.YType == TypeFloat32 {
				copy(to, bytesOf(e.dst[i]))
				continue
			}
			for r, v := range e.dst[i] {
				binary.NativeEndian.PutUint32(to[4*r:], uint32(int32(v)))
			}
		}
	}
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

// largest returns the largest magnitude that a weight can have, and whether the matrix is integers: no scales, no minima.
func largestWeight(m *fabric.Matrix) (limit uint64, plain bool) {
	plain = m.Min.Block == 0
	for i := range m.Terms {
		t := &m.Terms[i]
		plain = plain && t.Scales.Block == 0
		p := uint64(1)
		for range t.Planes {
			p *= 3
		}
		limit += p/2 + uint64(max(t.Center, -t.Center))
	}
	return max(limit, 1), plain
}

// prepare makes room for count vectors.
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

func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// load copies a vector out of the client's memory. sum is the sum of the magnitudes of its integers; ok is false if it is malformed.
func (e *executor) loadVector(a *fabric.Activations, b []byte, of uint32, scale []byte) (sum uint64, ok bool) {
	if of == TypeFloat32 {
		e.x = resized(e.x, a.Cols)
		copy(bytesOf(e.x), b)
		exponents := uint32(0)
		for _, v := range e.x {
			exponents |= math.Float32bits(v)>>23&0xff + 1
		}
		if exponents > 0xff { // infinite or not a number: no scale can be made of it
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
