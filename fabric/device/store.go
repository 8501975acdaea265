package device

// This file keeps the weights of all clients: who uses them, how long they stay, and the memory that they take.

import (
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"tensorcast/fabric"
	"tensorcast/fabric/trit"
)

// store has the weights of all clients. Its methods may be called concurrently.
type store struct {
	mu        sync.Mutex
	pool      *Pool
	hostBytes int // bytes of planes outside of the pool
	hostLimit int // of hostBytes
	// How often weights were used, by products and uploads: the clock of useHistory.
	uses         uint64
	uploads      map[[sha256.Size]byte]*weight // by what was uploaded
	heldMatrices map[location]heldMatrix
	loading      bool          // more may be held soon
	heldChanges  atomic.Uint32 // how often heldMatrices has changed
	zeroPlanes   map[trit.Layout]*zeroPlaneSource
	idleCond     *sync.Cond    // a weight has no user any more, or changes no more
	productEnded chan struct{} // has an element if a product has ended, and not all planes are in the pool
	counts       residencyCounts
	log          *slog.Logger
}

// storeCounts counts what has happened to planes.
type residencyCounts struct {
	Hits      uint64 `json:"residency_hits"`   // planes that a product found in the pool
	Misses    uint64 `json:"residency_misses"` // planes that were brought back while a product waited
	Ahead     uint64 `json:"residency_ahead"`  // planes that were brought back before a product needed them
	Evictions uint64 `json:"evictions"`
	Degraded  uint64 `json:"degraded"`    // products that used fewer planes
	Shared    uint64 `json:"shared"`      // uploads that equal an earlier one
	Moved     uint64 `json:"bytes_moved"` // between host and pool
}

// newStore makes a store with a pool of so many bytes, and as many as host outside of it.
func newStore(pool, host int, log *slog.Logger) (*store, error) {
	p, err := NewPool(pool)
	if err != nil {
		return nil, err
	}
	s := &store{
		pool: p, hostLimit: host, uploads: map[[sha256.Size]byte]*weight{}, heldMatrices: map[location]heldMatrix{},
		zeroPlanes: map[trit.Layout]*zeroPlaneSource{}, productEnded: make(chan struct{}, 1), log: log,
	}
	s.idleCond = sync.NewCond(&s.mu)
	return s, nil
}

// close frees everything. Nothing may be in use.
func (s *store) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, z := range s.zeroPlanes {
		errs = append(errs, z.close())
	}
	return errors.Join(append(errs, s.pool.Close())...)
}

// errFull says that weights fit neither the pool nor the host's share.
var errFull = errors.New("no room for weights")

// errGone says that a weight was held, and was let go.
var errGone = errors.New("it is held no more")

// findUpload takes a reference to the weight that was uploaded before with this SHA-256; nil if there is none.
func (s *store) findUpload(sum [sha256.Size]byte) *weight {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.uploads[sum]
	if w != nil {
		w.refs++
		s.counts.Shared++
	}
	return w
}

// addUpload makes a weight of m, which is the caller's no more, or finds the weight that was uploaded before
// with this sum. The caller has a reference to the result. The error is errFull, or wraps fabric.ErrOperand.
func (s *store) addUpload(sum [sha256.Size]byte, m *fabric.Matrix, f weightForm) (*weight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.uploads[sum]; w != nil {
		w.refs++
		s.counts.Shared++
		return w, nil
	}
	w := &weight{digest: sum, matrix: m, tritsPerPlane: uint64(m.Rows) * uint64(m.Cols), form: f, refs: 1}
	for t := range m.Terms {
		for i, b := range m.Terms[t].Planes {
			w.planes = append(w.planes, plane{term: t, index: i, bytes: b, zeros: w.countZeros(b)})
			s.hostBytes += len(b)
		}
	}
	// Making an operand checks the matrix. The planes are still where the upload was decoded to.
	if _, err := w.newOperand(m); err != nil {
		s.freeWeight(w)
		return nil, err
	}
	w.users++ // it does not displace itself
	s.uses++
	w.record(s.uses)
	for i := len(w.planes) - 1; i >= 0; i-- {
		if err := s.moveToPool(&w.planes[i]); err != nil {
			break // what finds no room stays on the host
		}
	}
	w.users--
	if s.hostBytes > s.hostLimit {
		s.freeWeight(w)
		return nil, errFull
	}
	s.uploads[sum] = w
	return w, nil
}

// release gives back a reference and the caller's pins.
func (s *store) release(w *weight, pinned int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.pins -= pinned
	if w.refs--; w.refs == 0 {
		s.freeWeight(w)
	}
}

// pin changes how often w is pinned. To be pinned, all its planes must find room in the pool.
func (s *store) pin(w *weight, by int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.letGo {
		return errGone
	}
	if by > 0 {
		w.users++
		err := s.completePlanes(w)
		w.users--
		if err != nil {
			return err
		}
	}
	w.pins += by
	return nil
}

// dropWeight takes back the only reference to a weight that newHeldWeight made and nobody has found.
func (s *store) dropWeight(w *weight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.refs = 0
	s.freeWeight(w)
}

// freeWeight frees w's planes. s.mu is held.
func (s *store) freeWeight(w *weight) {
	for i := range w.planes {
		p := &w.planes[i]
		if p.resident {
			s.freePiece(p.bytes)
		} else {
			s.hostBytes -= len(p.bytes)
		}
	}
	for _, b := range w.pieces {
		s.freePiece(b)
	}
	w.planes, w.pieces, w.operand = nil, nil, nil
	if s.uploads[w.digest] == w {
		delete(s.uploads, w.digest)
	}
}

// freePiece gives a piece of the pool back. s.mu is held.
func (s *store) freePiece(b []byte) {
	if err := s.pool.Give(b); err != nil {
		s.log.Error("free a plane", "err", err) // never happens; the pool is as it was
	}
}
