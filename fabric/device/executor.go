package device

// This file executes the jobs of a client: it checks a descriptor, which is a copy, and does what it says.
// product.go has products.

import (
	"context"
	"errors"
	"sync/atomic"

	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/gguf"
)

// handle is a client's reference to a weight.
type handle struct {
	weight  *weight
	pins    int
	vectors uint64 // how many vectors it was multiplied with
}

// executor does the jobs of one client. It is for one goroutine.
type executor struct {
	arena       []byte // the client's
	store       *store
	pool        *fabric.Pool
	workers     int
	tokens      *atomic.Uint64 // counter of all clients, see Status.Tokens
	mostVectors uint64         // the largest number of vectors of a handle

	handles    map[uint64]*handle
	lastHandle uint64

	// Working memory of products. Vectors of each shape are kept, so that a token's products allocate nothing.
	kept    map[vectorShape][]*fabric.Activations
	vectors []*fabric.Activations // of the current product
	dst     [][]float32           // its results, parts of y
	y       []float32
	x       []float32 // a vector of the client's
	q       []int8
	scale   []float32
}

// close drops the client's handles.
func (e *executor) close() {
	for id, h := range e.handles {
		e.store.release(h.weight, h.pins)
		delete(e.handles, id)
	}
}

// execute executes d, and fills in c. It asks cancelled between parts of long jobs.
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
			_ = e.store.pin(h.weight, -1) // only pinning can fail
		}
	}
}

// findHeld gives the client a handle of a held weight. It returns a status.
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
	c.Value = e.newHandle(w)
	return 0
}

// upload makes or finds a weight, and gives the client a handle of it. It returns a status.
func (e *executor) upload(d *Descriptor, c *Completion, cancelled func() bool) int32 {
	if len(e.handles) >= maxHandles {
		return statusNoMemory
	}
	var w *weight
	var status int32
	switch d.Op {
	case OpFrame:
		w, status = e.uploadFrame(d)
	case OpBlocks:
		w, status = e.uploadBlocks(d, cancelled)
	default:
		w, status = e.uploadPlanes(d)
	}
	if status != 0 {
		return status
	}
	c.Value = e.newHandle(w)
	return 0
}

// newHandle makes a handle of a weight, whose reference becomes the handle's.
func (e *executor) newHandle(w *weight) uint64 {
	e.lastHandle++
	e.handles[e.lastHandle] = &handle{weight: w}
	return e.lastHandle
}

// uploadFrame makes or finds the weight of OpFrame. Its status is 0, or that of an error.
func (e *executor) uploadFrame(d *Descriptor) (*weight, int32) {
	b := arenaBytes(e.arena, d.W, d.WBytes)
	if b == nil {
		return nil, statusFault
	}
	m, sum, err := readFrame(b, d.Flags, e.store.pool.Total())
	if err != nil {
		return nil, uploadStatus(err)
	}
	w, err := e.store.addUpload(sum, m, weightForm{})
	return w, uploadStatus(err)
}

// uploadBlocks makes or finds the weight of OpBlocks.
func (e *executor) uploadBlocks(d *Descriptor, cancelled func() bool) (*weight, int32) {
	size := blocksBytes(d)
	if size == 0 || size != d.WBytes {
		return nil, statusInvalid
	}
	if size > uint64(e.store.pool.Total()) && isCodes(d) {
		return nil, statusNoMemory
	}
	b := arenaBytes(e.arena, d.W, size)
	if b == nil {
		return nil, statusFault
	}
	b, sum := copyBlocks(b, d)
	if w := e.store.findUpload(sum); w != nil {
		return w, 0
	}
	m, f, err := e.readBlocks(b, d, e.store.pool.Total(), cancelled)
	if err != nil {
		return nil, uploadStatus(err)
	}
	w, err := e.store.addUpload(sum, m, f)
	return w, uploadStatus(err)
}

// uploadPlanes makes or finds the weight of OpPlanes.
func (e *executor) uploadPlanes(d *Descriptor) (*weight, int32) {
	trits := uint64(d.Rows) * uint64(d.Cols)
	if d.Rows == 0 || d.Cols == 0 || d.Rows > maxDim || d.Cols > maxDim || trits > maxTrits || d.Planes == 0 ||
		d.Planes > maxPlanes {
		return nil, statusInvalid
	}
	if uint64(layoutOf(d.Flags).RowBytes(int(d.Cols)))*uint64(d.Rows) > uint64(e.store.pool.Total())/uint64(d.Planes) {
		return nil, statusNoMemory
	}
	b := arenaBytes(e.arena, d.W, (trits+4)/5*uint64(d.Planes))
	if b == nil {
		return nil, statusFault
	}
	var scales []byte
	if d.Flags&FlagScales != 0 {
		if d.Block == 0 {
			return nil, statusInvalid
		}
		blocks := (uint64(d.Cols) + uint64(d.Block) - 1) / uint64(d.Block) * uint64(d.Rows)
		if scales = arenaBytes(e.arena, d.Scale, 2*blocks); scales == nil {
			return nil, statusFault
		}
	}
	m, sum, err := readPlanes(b, scales, d)
	if err != nil {
		return nil, uploadStatus(err)
	}
	w, err := e.store.addUpload(sum, m, weightForm{})
	return w, uploadStatus(err)
}

// uploadStatus is the status of an upload's error; 0 if that is nil.
func uploadStatus(err error) int32 {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFull):
		return statusNoMemory
	case errors.Is(err, context.Canceled):
		return statusCancelled
	case errors.Is(err, errBound):
		return statusRange
	case errors.Is(err, decompose.ErrInexact), errors.Is(err, gguf.ErrNoDecoder):
		return statusNoPlanes
	}
	return statusBadFrame
}
