package fabric

// This file distributes a product's rows over goroutines.

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Pool is a group of goroutines that compute products together. It does not allocate after the first product of a kind. Several goroutines
// may use it; they wait for each other. Close ends its goroutines.
//
// A product does not wait for goroutines, only for rows that one of them has taken: one that gets no processor in time takes none.
type Pool struct {
	mu      sync.Mutex // held during a product
	workers sync.WaitGroup
	scratch []Scratch
	dst     [1][]float32
	x       [1]*Activations
	panel   panel
	look    time.Duration // before a goroutine sleeps

	job   job           // written while nobody has a portion
	state atomic.Uint64 // the number of the product in the upper half, and how many portions nobody has taken in the lower
	done  atomic.Uint32 // portions

	sleeping sync.Mutex
	work     sync.Cond    // there is another product, or the pool is closed
	finished sync.Cond    // all portions are done
	sleepers atomic.Int32 // on work
	waits    atomic.Bool  // on finished
	closed   atomic.Bool
}

// job is the current product.
type job struct {
	o        *Operand
	dst      [][]float32
	x        []*Activations
	panel    *panel // that x was arranged in, or nil
	chunk    int    // rows of a portion
	portions uint32
}

// lookTime is how long a goroutine looks whether there is something to do before it sleeps: being woken takes as long as a small product.
const lookTime = 30 * time.Microsecond

// NewPool returns a pool of n goroutines. The caller of a product is one of them, so n-1 are started. 0 means GOMAXPROCS.
func NewPool(n int) *Pool {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	p := &Pool{scratch: make([]Scratch, n)}
	if n <= runtime.GOMAXPROCS(0) {
		p.look = lookTime // else it would look while others wait for a processor
	}
	p.work.L, p.finished.L = &p.sleeping, &p.sleeping
	for i := range n - 1 {
		p.workers.Go(func() {
			for seen := uint32(0); p.await(seen); {
				seen = uint32(p.state.Load() >> 32)
				p.run(seen, &p.scratch[i+1])
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
	p.work.Broadcast()
	p.sleeping.Unlock()
	p.workers.Wait()
}

// lookFor reports whether f became true within the time that a goroutine looks.
func (p *Pool) lookFor(f func() bool) bool {
	for begun := time.Now(); ; {
		for range 64 {
			if f() {
				return true
			}
		}
		if time.Since(begun) >= p.look {
			return false
		}
	}
}

// await waits for another product than number seen; false: the pool is closed.
func (p *Pool) await(seen uint32) bool {
	other := func() bool { return uint32(p.state.Load()>>32) != seen || p.closed.Load() }
	if !p.lookFor(other) {
		p.sleeping.Lock()
		p.sleepers.Add(1)
		for !other() {
			p.work.Wait()
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

// Each goroutine takes several portions of rows, so that one that starts late does less. A portion must have enough weights that the
// preparation for it (once per vector, with as many steps as columns) is cheap in comparison.
const (
	chunksPerWorker = 4
	minChunk        = 64 // rows
)

func (p *Pool) multiply(o *Operand, dst [][]float32, x []*Activations) {
	o.checkShapes(dst, x)
	if !o.arranges() {
		p.share(o, dst, x, nil)
		return
	}
	for len(x) > 0 {
		n := min(len(x), panelVectors)
		o.arrange(&p.panel, x[:n])
		p.share(o, dst[:n], x[:n], &p.panel)
		dst, x = dst[n:], x[n:]
	}
}

// share has all goroutines compute rows.
func (p *Pool) share(o *Operand, dst [][]float32, x []*Activations, of *panel) {
	chunk := ceilDiv(max(minChunk, ceilDiv(o.m.Rows, chunksPerWorker*len(p.scratch))), rowsTogether) * rowsTogether
	p.job = job{o, dst, x, of, chunk, uint32(ceilDiv(o.m.Rows, chunk))}
	p.done.Store(0)
	number := uint32(p.state.Load()>>32) + 1
	p.state.Store(uint64(number)<<32 | uint64(p.job.portions))
	if p.job.portions > 1 && p.sleepers.Load() > 0 {
		p.sleeping.Lock()
		p.work.Broadcast()
		p.sleeping.Unlock()
	}
	p.run(number, &p.scratch[0])
	all := func() bool { return p.done.Load() == p.job.portions }
	if !p.lookFor(all) {
		p.sleeping.Lock()
		p.waits.Store(true)
		for !all() {
			p.finished.Wait()
		}
		p.waits.Store(false)
		p.sleeping.Unlock()
	}
	p.job = job{}
}

// run computes portions of a product until all are taken.
func (p *Pool) run(number uint32, s *Scratch) {
	for {
		v := p.state.Load()
		if uint32(v>>32) != number || uint32(v) == 0 {
			return
		}
		if !p.state.CompareAndSwap(v, v-1) {
			continue
		}
		j := &p.job // it stays until this portion is done
		portions := j.portions
		first := int(portions-uint32(v)) * j.chunk
		if end := min(first+j.chunk, j.o.m.Rows); j.panel != nil {
			j.o.multiplyArranged(j.dst, first, end, j.panel, s)
		} else {
			j.o.multiply(j.dst, first, end, j.x, s)
		}
		if p.done.Add(1) == portions && p.waits.Load() {
			p.sleeping.Lock()
			p.finished.Signal()
			p.sleeping.Unlock()
		}
	}
}
