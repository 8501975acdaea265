package device

// This file keeps weights: which of their planes are in the pool, what gives way if room is needed, who uses them.

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tensorcast/fabric"
	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
)

// plane is one plane of a weight: in the pool, on the host, or (host nil, resident false) not yet anywhere.
type plane struct {
	term, index int
	bytes       []byte // in the pool if resident, else on the host
	resident    bool
	zeros       uint64 // trits that are 0
}

// weight is an uploaded matrix. All fields but the first four are guarded by the store's mutex.
type weight struct {
	sum    [sha256.Size]byte
	matrix *fabric.Matrix // its Planes are filled in for each operand
	trits  uint64         // of a plane
	form   form

	uses
	planes  []plane
	refs    int // handles of all clients
	pins    int
	busy    int  // products that read it
	changes bool // its planes are about to be changed: products wait
	operand *fabric.Operand
	used    int      // planes that operand has
	zeros   uint64   // zeros of these
	bytes   uint64   // of these
	pieces  [][]byte // of the pool, with the factors of a matrix that is held
	gone    bool     // it was held, and is not any more: products with it fail
}

// form says what a weight's planes are.
type form struct {
	codes   bool   // the only one is blocks of Q2_0
	ordered bool   // they are exact, and multiplied in ggml's order
	bands   int    // if it is not 0, the only one is bands of so many planes, see fabric.PackBands,
	zeros   uint64 // of which so many trits are 0
	low     uint64 // and so many of the lowest one
	// What is held: coarser says that it has a plane more than it needs, finer that it would have one if there were room.
	coarser, finer bool
	// short says that the form's bound needs that plane, so that it goes only when memory is short, below that it has gone.
	short, below bool
	snr, less    float64 // ratio of signal to noise in decibels, as it is and without the lowest plane; 0: not known, or no noise
}

// planes is for how many planes one of the weight's counts.
func (f *form) planes() int { return max(f.bands, 1) }

// top reports whether p is the highest plane of its term: without it, nothing is left of the term.
func (w *weight) top(p *plane) bool { return p.index == len(w.matrix.Terms[p.term].Planes)-1 }

// store has the weights of all clients. Its methods may be called concurrently.
type store struct {
	mu      sync.Mutex
	pool    *Pool
	host    int    // bytes of planes outside of the pool
	limit   int    // of host
	clock   uint64 // products, and uploads
	all     map[[sha256.Size]byte]*weight
	held    map[place]held
	loading bool          // more may be held soon
	changed atomic.Uint32 // how often held has changed
	zero    map[trit.Layout]*zeroPlanes
	still   *sync.Cond    // a weight is busy no more, or changes no more
	ended   chan struct{} // a product has ended, and not all planes are in the pool
	counts  storeCounts
	log     *slog.Logger
}

// storeCounts is what happened.
type storeCounts struct {
	Hits      uint64 `json:"residency_hits"`   // planes that a product found in the pool
	Misses    uint64 `json:"residency_misses"` // planes that were brought back for a product, which waited
	Ahead     uint64 `json:"residency_ahead"`  // planes that were brought back before a product needed them
	Evictions uint64 `json:"evictions"`
	Degraded  uint64 `json:"degraded"` // products that used fewer planes
	Shared    uint64 `json:"shared"`   // uploads of what was there
	Moved     uint64 `json:"bytes_moved"`
}

func newStore(pool, host int, log *slog.Logger) (*store, error) {
	p, err := NewPool(pool)
	if err != nil {
		return nil, err
	}
	s := &store{pool: p, limit: host, all: map[[sha256.Size]byte]*weight{}, held: map[place]held{}, zero: map[trit.Layout]*zeroPlanes{}, ended: make(chan struct{}, 1), log: log}
	s.still = sync.NewCond(&s.mu)
	return s, nil
}

// close frees everything. Nothing may be in use.
func (s *store) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, z := range s.zero {
		errs = append(errs, z.close())
	}
	return errors.Join(append(errs, s.pool.Close())...)
}

// errFull says that weights fit neither the pool nor the host's share.
var errFull = errors.New("no room for weights")

// errGone says that a weight was held, and its memory was needed.
var errGone = errors.New("it is held no more")

// share finds the weight that was uploaded before with this sum, and takes a reference to it; nil if there is none.
func (s *store) share(sum [sha256.Size]byte) *weight {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.all[sum]
	if w != nil {
		w.refs++
		s.counts.Shared++
	}
	return w
}

// add takes m, which is the caller's no more, or finds the weight that is equal. The caller has a reference to the result.
func (s *store) add(sum [sha256.Size]byte, m *fabric.Matrix, f form) (*weight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.all[sum]; w != nil {
		w.refs++
		s.counts.Shared++
		return w, nil
	}
	w := &weight{sum: sum, matrix: m, trits: uint64(m.Rows) * uint64(m.Cols), form: f, refs: 1}
	for t := range m.Terms {
		for i, b := range m.Terms[t].Planes {
			w.planes = append(w.planes, plane{term: t, index: i, bytes: b, zeros: w.zerosOf(b)})
			s.host += len(b)
		}
	}
	// An operand checks the matrix. Planes are still where the upload was decoded to.
	if _, err := w.newOperand(m); err != nil {
		s.forget(w)
		return nil, err
	}
	w.busy++ // it does not displace itself
	s.clock++
	w.touched(s.clock)
	for i := len(w.planes) - 1; i >= 0; i-- {
		if err := s.bring(&w.planes[i]); err != nil {
			break // what finds no room stays on the host
		}
	}
	w.busy--
	if s.host > s.limit {
		s.forget(w)
		return nil, errFull
	}
	s.all[sum] = w
	return w, nil
}

func (w *weight) newOperand(m *fabric.Matrix) (*fabric.Operand, error) {
	switch {
	case w.form.codes:
		return fabric.NewCodes(m.Rows, m.Cols, m.Terms[0].Planes[0])
	case w.form.bands > 0:
		return fabric.NewBands(m.Rows, m.Cols, w.form.bands, m.Terms[0].Planes[0])
	case w.form.ordered:
		return fabric.NewOrdered(m)
	}
	return fabric.NewOperand(m)
}

// zerosOf counts the weights of a plane that are 0.
func (w *weight) zerosOf(plane []byte) uint64 {
	m := w.matrix
	if w.form.bands > 0 {
		return w.form.zeros
	}
	if !w.form.codes {
		return countZeros(m.Layout, plane, m.Layout.RowBytes(m.Cols), m.Rows, m.Cols)
	}
	var per [256]uint8 // codes of 1 in a byte of four
	for c := range per {
		for i := 0; i < 8; i += 2 {
			if c>>i&3 == 1 {
				per[c]++
			}
		}
	}
	var n uint64
	for ; len(plane) > 0; plane = plane[kernel.CodeBlock:] {
		for _, c := range plane[2:kernel.CodeBlock] { // behind the scale
			n += uint64(per[c])
		}
	}
	return n
}

// forget frees w's planes.
func (s *store) forget(w *weight) {
	for i := range w.planes {
		p := &w.planes[i]
		if p.resident {
			s.give(p)
		} else {
			s.host -= len(p.bytes)
		}
	}
	for _, b := range w.pieces {
		s.giveBack(b)
	}
	w.planes, w.pieces, w.operand = nil, nil, nil
	if s.all[w.sum] == w {
		delete(s.all, w.sum)
	}
}

func (s *store) give(p *plane) { s.giveBack(p.bytes) }

func (s *store) giveBack(b []byte) {
	if err := s.pool.Give(b); err != nil {
		s.log.Error("free a plane", "err", err) // never happens; the pool is as it was
	}
}

// release takes a reference back, of which the caller had pinned times.
func (s *store) release(w *weight, pinned int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.pins -= pinned
	if w.refs--; w.refs == 0 {
		s.forget(w)
	}
}

// pin changes how often w is pinned.
func (s *store) pin(w *weight, by int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.gone {
		return errGone
	}
	if by > 0 {
		w.busy++
		err := s.complete(w)
		w.busy--
		if err != nil {
			return err
		}
	}
	w.pins += by
	return nil
}

// bring moves a plane into the pool, evicting others if need be.
func (s *store) bring(p *plane) error {
	for {
		b, err := s.pool.Take(len(p.bytes))
		if err == nil {
			copy(b, p.bytes)
			s.host -= len(b)
			s.counts.Moved += uint64(len(b))
			p.bytes, p.resident = b, true
			return nil
		}
		if !s.evict(0) {
			return err
		}
	}
}

// evict moves one plane to the host: of those that are neither pinned nor in use, one that is not the highest of its term if there is any; of these, the
// one that is expected to be used last, and the lowest of a weight. If that is not after a time, it stays.
func (s *store) evict(after uint64) bool {
	var victim *plane
	var of *weight
	for _, w := range s.all {
		if w.busy > 0 || w.pins > 0 {
			continue
		}
		for i := range w.planes {
			p := &w.planes[i]
			if p.resident && (victim == nil || s.before(w, p, of, victim)) {
				victim, of = p, w
			}
		}
	}
	if victim == nil || of.next(s.clock) <= after {
		return false
	}
	host := slices.Clone(victim.bytes)
	s.give(victim)
	victim.bytes, victim.resident = host, false
	s.host += len(host)
	s.counts.Evictions++
	s.counts.Moved += uint64(len(host))
	of.operand = nil
	return true
}

func (s *store) before(w *weight, p *plane, v *weight, q *plane) bool {
	if a, b := w.top(p), v.top(q); a != b {
		return b
	}
	if a, b := w.next(s.clock), v.next(s.clock); a != b {
		return a > b
	}
	return p.index < q.index
}

// complete brings all planes into the pool. w must be busy.
func (s *store) complete(w *weight) error {
	for i := len(w.planes) - 1; i >= 0; i-- {
		if p := &w.planes[i]; !p.resident {
			if err := s.bring(p); err != nil {
				return err
			}
			s.counts.Misses++
			w.operand = nil
		} else {
			s.counts.Hits++
		}
	}
	return nil
}

// use is what a product takes of a weight.
type use struct {
	operand *fabric.Operand
	planes  int
	zeros   uint64
	bytes   uint64
}

// begin prepares w for a product; end must follow if there is no error. With degrade, low planes that are not in the pool are left out.
func (s *store) begin(w *weight, degrade bool) (use, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w.changes {
		s.still.Wait()
	}
	if w.gone {
		return use{}, errGone
	}
	w.busy++
	err := s.prepare(w, degrade)
	if err != nil {
		w.busy--
		return use{}, err
	}
	s.clock++
	w.touched(s.clock)
	if w.used < len(w.planes) {
		s.counts.Degraded++
	}
	return use{w.operand, w.used * w.form.planes(), w.zeros, w.bytes}, nil
}

func (s *store) prepare(w *weight, degrade bool) error {
	tops := true
	for i := range w.planes {
		if p := &w.planes[i]; w.top(p) && !p.resident {
			tops = false
		}
	}
	if degrade && tops {
		if w.operand != nil {
			s.counts.Hits += uint64(w.used)
			return nil
		}
		err := s.build(w)
		if err == nil || !errors.Is(err, fabric.ErrOperand) {
			s.counts.Hits += uint64(w.used)
			return err
		}
		// Without its low planes, a weight of six may leave the range of a byte.
	}
	if err := s.complete(w); err != nil {
		return err
	}
	if w.operand != nil && w.used == len(w.planes) {
		return nil
	}
	return s.build(w)
}

// build makes the operand of the planes that are in the pool.
func (s *store) build(w *weight) error {
	m := *w.matrix
	m.Terms = slices.Clone(m.Terms)
	used, zeros, bytes := 0, uint64(0), uint64(0)
	for t := range m.Terms {
		m.Terms[t].Planes = slices.Clone(m.Terms[t].Planes)
	}
	for i := range w.planes {
		p := &w.planes[i]
		b := p.bytes
		if p.resident {
			used, zeros, bytes = used+1, zeros+p.zeros, bytes+uint64(len(b))
		} else {
			z := s.zero[m.Layout]
			if z == nil {
				z = &zeroPlanes{code: zeroCode(m.Layout), fd: -1}
				s.zero[m.Layout] = z
			}
			var err error
			if b, err = z.bytes(len(b)); err != nil {
				return err
			}
		}
		m.Terms[p.term].Planes[p.index] = b
	}
	o, err := w.newOperand(&m)
	if err != nil {
		return err
	}
	w.operand, w.used, w.zeros, w.bytes = o, used, zeros, bytes
	return nil
}

// end follows begin.
func (s *store) end(w *weight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle(w)
	if s.host > 0 {
		select {
		case s.ended <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// idle says that one product or change less uses w. s.mu is held.
func (s *store) idle(w *weight) {
	if w.busy--; w.busy > 0 {
		return
	}
	if w.gone {
		s.forget(w)
	}
	s.still.Broadcast()
}

// change has its caller change w's planes, alone: it waits for the products that read them. changedPlanes must follow. s.mu is held; it is free while this waits.
func (s *store) change(w *weight) {
	for w.changes {
		s.still.Wait()
	}
	w.changes = true
	for w.busy > 0 {
		s.still.Wait()
	}
	w.busy++
}

func (s *store) changedPlanes(w *weight) {
	w.operand, w.changes = nil, false
	s.idle(w)
}

// coarsen takes the lowest plane out of a weight that has one more than it needs, where it lies.
func (s *store) coarsen(w *weight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(w)
	defer s.changedPlanes(w)
	if w.gone || !w.form.coarser {
		return
	}
	p := &w.planes[0]
	s.mu.Unlock()
	less := fabric.CoarsenBands(p.bytes, w.matrix.Rows, w.matrix.Cols)
	s.mu.Lock()
	var err error
	if p.bytes, err = s.pool.Shrink(p.bytes, len(less)); err != nil {
		s.log.Error("give a plane's memory back", "err", err) // never happens
		p.bytes = less
	}
	w.form = form{bands: 2, zeros: w.form.zeros - w.form.low, finer: true, below: w.form.short, snr: w.form.less}
	p.zeros = w.form.zeros
}

// exchange puts the planes of by, which nobody else knows, in the place of w's, and frees these.
func (s *store) exchange(w, by *weight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(w)
	defer s.changedPlanes(w)
	w.planes, by.planes = by.planes, w.planes
	w.pieces, by.pieces = by.pieces, w.pieces
	w.form, by.form = by.form, w.form
	by.refs = 0
	s.forget(by)
}

// zeroPlanes are planes of zeros of any size that take 2 MiB of memory: a memory file, mapped again and again in a row.
type zeroPlanes struct {
	code byte
	fd   int // -1: not made yet
	view []byte
	old  [][]byte // shorter views, which operands may still read
}

const zeroStep = 2 << 20

func zeroCode(l trit.Layout) byte {
	var b [64]byte
	l.Pack(b[:l.RowBytes(1)], []int8{0})
	return b[0]
}

func (z *zeroPlanes) bytes(n int) ([]byte, error) {
	if n <= len(z.view) {
		return z.view[:n:n], nil
	}
	if z.fd < 0 {
		fd, b, err := memoryFile(zeroStep)
		if err != nil {
			return nil, err
		}
		for i := range b {
			b[i] = z.code
		}
		if err := unix.Munmap(b); err != nil {
			return nil, fmt.Errorf("unmap a plane of zeros: %w", err)
		}
		z.fd = fd
	}
	size := roundUp(n, zeroStep)
	view, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve a plane of zeros: %w", err)
	}
	for off := 0; off < size; off += zeroStep {
		_, _, e := unix.Syscall6(unix.SYS_MMAP, address(view)+uintptr(off), zeroStep, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED, uintptr(z.fd), 0)
		if e != 0 {
			_ = unix.Munmap(view)
			return nil, fmt.Errorf("map a plane of zeros: %w", e)
		}
	}
	if z.view != nil {
		z.old = append(z.old, z.view)
	}
	z.view = view
	return view[:n:n], nil
}

func (z *zeroPlanes) close() error {
	var errs []error
	for _, v := range append(z.old, z.view) {
		if v != nil {
			errs = append(errs, unix.Munmap(v))
		}
	}
	if z.fd >= 0 {
		errs = append(errs, unix.Close(z.fd))
	}
	return errors.Join(errs...)
}

// countZeros counts the trits of a plane that are 0, without those beyond the rows' ends.
func countZeros(l trit.Layout, b []byte, rowBytes, rows, cols int) uint64 {
	var per [256]uint64 // zeros that a byte stands for
	switch l {
	case trit.TwoBit:
		for c := range per {
			for i := 0; i < 8; i += 2 {
				if c>>i&3 == 1 {
					per[c]++
				}
			}
		}
	default:
		for c := range 243 {
			for v, i := c, 0; i < 5; v, i = v/3, i+1 {
				if v%3 == 1 {
					per[c]++
				}
			}
		}
	}
	var n uint64
	for _, c := range b {
		n += per[c]
	}
	trits, bytes := l.Group()
	return n - uint64(rows)*uint64(rowBytes/bytes*trits-cols)
}
