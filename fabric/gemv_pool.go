package fabric

// This file distributes a product's rows over goroutines.

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Pool is a group of goroutines that compute products together. It does not allocate after the first product of a kind. Several goroutines
// may use it; they wait for each other. Close ends its goroutines.
type Pool struct {
	mu      sync.Mutex // held during a product
	begin   chan struct{}
	done    chan struct{}
	workers sync.WaitGroup
	scratch []Scratch
	dst     [1][]float32
	x       [1]*Activations
	panel   panel
	job     job
}

// job is the current product.
type job struct {
	o     *Operand
	dst   [][]float32
	x     []*Activations
	panel *panel // that x was arranged in, or nil
	chunk int    // rows that a goroutine takes at a time
	next  atomic.Int64
}

// NewPool returns a pool of n goroutines. The caller of a product is one of them, so n-1 are started. 0 means GOMAXPROCS.
func NewPool(n int) *Pool {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	p := &Pool{begin: make(chan struct{}), done: make(chan struct{}), scratch: make([]Scratch, n)}
	for i := range n - 1 {
		p.workers.Go(func() {
			for range p.begin {
				p.job.run(&p.scratch[i+1])
				p.done <- struct{}{}
			}
		})
	}
	return p
}

// Close ends the goroutines once current products are complete. The pool must not be used afterwards.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.begin)
	p.workers.Wait()
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
	j := &p.job
	j.o, j.dst, j.x, j.panel = o, dst, x, of
	j.chunk = ceilDiv(max(minChunk, ceilDiv(o.m.Rows, chunksPerWorker*len(p.scratch))), rowsTogether) * rowsTogether
	j.next.Store(0)
	others := min(len(p.scratch), ceilDiv(o.m.Rows, j.chunk)) - 1
	for range others {
		p.begin <- struct{}{}
	}
	j.run(&p.scratch[0])
	for range others {
		<-p.done
	}
	j.o, j.dst, j.x, j.panel = nil, nil, nil, nil
}

func (j *job) run(s *Scratch) {
	for {
		end := int(j.next.Add(int64(j.chunk)))
		first := end - j.chunk
		if first >= j.o.m.Rows {
			return
		}
		if end = min(end, j.o.m.Rows); j.panel != nil {
			j.o.multiplyArranged(j.dst, first, end, j.panel, s)
		} else {
			j.o.multiply(j.dst, first, end, j.x, s)
		}
	}
}
