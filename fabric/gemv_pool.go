package fabric

// This file distributes the rows of a product over goroutines.

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Pool is a group of goroutines that compute products together. It does not allocate after the
// first product of a kind. Several goroutines may use a pool; their products are computed one after
// the other. Close ends its goroutines.
//
// A product does not wait for goroutines, but only for rows that a goroutine has taken. A goroutine
// that gets no processor in time takes no rows.
type Pool struct {
	mu      sync.Mutex // held during a product
	workers sync.WaitGroup
	scratch []Scratch
	dst     [1][]float32
	x       [1]*Activations
	panel   panel
	// spinTime is how long a goroutine checks for something to do before it sleeps.
	spinTime time.Duration

	job job // written while nobody has a portion
	// state has the number of the product in the upper half. The lower half is how many portions
	// nobody has taken.
	state atomic.Uint64
	done  atomic.Uint32 // portions that are done

	sleeping    sync.Mutex
	newProduct  sync.Cond    // there is another product, or the pool is closed
	finished    sync.Cond    // all portions are done
	sleepers    atomic.Int32 // goroutines that wait for newProduct
	callerWaits atomic.Bool  // the caller waits for finished
	closed      atomic.Bool
}

// job is the current product.
type job struct {
	o        *Operand
	dst      [][]float32
	x        []*Activations
	panel    *panel // the panel in which x was arranged, or nil
	chunk    int    // rows of a portion
	portions uint32 // number of portions
}

// defaultSpinTime is how long a goroutine checks for something to do before it sleeps. Waking it up
// takes as long as a small product.
const defaultSpinTime = 30 * time.Microsecond

// NewPool returns a pool of n goroutines. The caller of a product is one of them, so n-1 are
// started. If n is 0, it is GOMAXPROCS.
func NewPool(n int) *Pool {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	p := &Pool{scratch: make([]Scratch, n)}
	if n <= runtime.GOMAXPROCS(0) {
		p.spinTime = defaultSpinTime // with more goroutines, spinning would take processors away from others
	}
	p.newProduct.L, p.finished.L = &p.sleeping, &p.sleeping
	for i := range n - 1 {
		p.workers.Go(func() {
			for seen := uint32(0); p.waitForProduct(seen); {
				seen = uint32(p.state.Load() >> 32)
				p.computePortions(seen, &p.scratch[i+1])
			}
		})
	}
	return p
}

// Close ends the goroutines once current products are complete. The pool must not be used afterwards.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed.Store(true)
	p.sleeping.Lock()
	p.newProduct.Broadcast()
	p.sleeping.Unlock()
	p.workers.Wait()
}

// spinUntil reports whether f became true within the spin time.
func (p *Pool) spinUntil(f func() bool) bool {
	for start := time.Now(); ; {
		for range 64 {
			if f() {
				return true
			}
		}
		if time.Since(start) >= p.spinTime {
			return false
		}
	}
}

// waitForProduct waits for a product with another number than seen. It returns false if the pool is
// closed.
func (p *Pool) waitForProduct(seen uint32) bool {
	isNew := func() bool { return uint32(p.state.Load()>>32) != seen || p.closed.Load() }
	if !p.spinUntil(isNew) {
		p.sleeping.Lock()
		p.sleepers.Add(1)
		for !isNew() {
			p.newProduct.Wait()
		}
		p.sleepers.Add(-1)
		p.sleeping.Unlock()
	}
	return !p.closed.Load()
}

// GEMV is Operand.GEMV. Each row is computed by one goroutine, so the result is the same, bit for bit.
func (p *Pool) GEMV(o *Operand, dst []float32, x *Activations) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dst[0], p.x[0] = dst, x
	p.multiply(o, p.dst[:], p.x[:])
	p.dst[0], p.x[0] = nil, nil
}

// GEMM is Operand.GEMM.
func (p *Pool) GEMM(o *Operand, dst [][]float32, x []*Activations) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.multiply(o, dst, x)
}

// Each goroutine takes several portions of rows, so that one that starts late does less. A portion
// must have enough weights to make its preparation cheap in comparison. This is done once per
// vector and has as many steps as columns.
const (
	chunksPerWorker = 4
	minChunk        = 64 // rows
)

// multiply computes a product. p.mu must be locked.
func (p *Pool) multiply(o *Operand, dst [][]float32, x []*Activations) {
	o.checkShapes(dst, x)
	if !o.needsArranging() {
		p.distribute(o, dst, x, nil)
		return
	}
	for len(x) > 0 {
		n := min(len(x), panelVectors)
		o.arrange(&p.panel, x[:n])
		p.distribute(o, dst[:n], x[:n], &p.panel)
		dst, x = dst[n:], x[n:]
	}
}

// distribute computes a product with all goroutines. of is the panel in which the vectors were
// arranged, or nil.
func (p *Pool) distribute(o *Operand, dst [][]float32, x []*Activations, of *panel) {
	chunk := max(minChunk, ceilDiv(o.m.Rows, chunksPerWorker*len(p.scratch)))
	chunk = ceilDiv(chunk, rowsTogether) * rowsTogether
	p.job = job{o, dst, x, of, chunk, uint32(ceilDiv(o.m.Rows, chunk))}
	p.done.Store(0)
	number := uint32(p.state.Load()>>32) + 1
	p.state.Store(uint64(number)<<32 | uint64(p.job.portions))
	if p.job.portions > 1 && p.sleepers.Load() > 0 {
		p.sleeping.Lock()
		p.newProduct.Broadcast()
		p.sleeping.Unlock()
	}
	p.computePortions(number, &p.scratch[0])
	allDone := func() bool { return p.done.Load() == p.job.portions }
	if !p.spinUntil(allDone) {
		p.sleeping.Lock()
		p.callerWaits.Store(true)
		for !allDone() {
			p.finished.Wait()
		}
		p.callerWaits.Store(false)
		p.sleeping.Unlock()
	}
	p.job = job{}
}

// computePortions computes portions of a product until all are taken.
func (p *Pool) computePortions(number uint32, s *Scratch) {
	for {
		v := p.state.Load()
		if uint32(v>>32) != number || uint32(v) == 0 {
			return
		}
		if !p.state.CompareAndSwap(v, v-1) {
			continue
		}
		j := &p.job // the job does not change before this portion is done
		portions := j.portions
		first := int(portions-uint32(v)) * j.chunk
		if end := min(first+j.chunk, j.o.m.Rows); j.panel != nil {
			j.o.multiplyArranged(j.dst, first, end, j.panel, s)
		} else {
			j.o.multiply(j.dst, first, end, j.x, s)
		}
		if p.done.Add(1) == portions && p.callerWaits.Load() {
			p.sleeping.Lock()
			p.finished.Signal()
			p.sleeping.Unlock()
		}
	}
}
