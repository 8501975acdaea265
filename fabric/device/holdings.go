package device

// This file decides which tensors are held: the wishes, the room, and what gives way when there is too little of it.

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tensorcast/fabric"
)

// holdings are the tensors that a device holds. Its methods may be called concurrently. Its mutex is taken
// before the store's.
type holdings struct {
	store   *store
	workers int           // goroutines that change planes
	changed chan struct{} // there is more room, or there are other wishes: the loader must look again

	mu        sync.Mutex
	announced bool // something is, or will be, held
	known     int  // tensors that Hold was told of
	tensors   []heldTensor
	held      map[int]bool // by index: which tensors are in tensors
	room      uint64       // bytes that they may take of the pool

	wish         []int // indices of the tensors to hold; the last one gives way first
	wishes       int   // how often wish was set; 0: all tensors are wished for
	wishExpected bool  // the loader waits for the first wish

	left, givenUp, lowered, raised int // see Holding
}

func newHoldings(s *store, room uint64, workers int) *holdings {
	return &holdings{store: s, workers: workers, room: room, held: map[int]bool{}, changed: make(chan struct{}, 1)}
}

// heldTensor is a tensor that is held.
type heldTensor struct {
	index      int // of the tensors that Hold was told of
	locations  []location
	fileBytes  uint64 // of its matrices in the file
	poolBytes  uint64 // of its planes and factors
	lacksPlane bool   // it would have more planes if there were room
	belowBound bool   // it has more error than the form's bound allows
	leastSNR   float64
}

// addWeight counts a matrix of the tensor.
func (t *heldTensor) addWeight(w *weight) {
	t.poolBytes += w.poolBytes()
	t.lacksPlane = t.lacksPlane || w.form.canRefine
	t.belowBound = t.belowBound || w.form.belowBound
	t.leastSNR = leastSNR(t.leastSNR, w.form.snr)
}

// leastSNR is the lesser of two ratios in decibels; 0 stands for no ratio.
func leastSNR(a, b float64) float64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

func (h *holdings) announce() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.announced = true
}

func (h *holdings) expectWish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wishExpected = true
}

// setWish says which tensors to hold, and lets go of the others, see Device.Wish.
func (h *holdings) setWish(which []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wish = slices.Clone(which)
	h.wishes++
	position := make(map[int]int, len(which))
	for n, i := range which {
		position[i] = n
	}
	h.tensors = slices.DeleteFunc(h.tensors, func(t heldTensor) bool {
		_, wanted := position[t.index]
		if !wanted {
			h.letGo(&t)
		}
		return !wanted
	})
	slices.SortStableFunc(h.tensors, func(a, b heldTensor) int { return position[a.index] - position[b.index] })
	h.wakeLoader()
}

// awaitFirstWish waits for the first wish, if there is to be one. The error is that of ctx.
func (h *holdings) awaitFirstWish(ctx context.Context) error {
	for {
		h.mu.Lock()
		waits := h.wishExpected && h.wishes == 0
		h.mu.Unlock()
		if !waits {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.changed:
		}
	}
}

// wishRevision changes whenever the wishes do.
func (h *holdings) wishRevision() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.wishes
}

// wishedOrder returns the indices of the tensors to hold, of known ones, and the revision of this wish.
func (h *holdings) wishedOrder(known int) (revision int, order []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known = known
	if h.wishes > 0 {
		for _, i := range h.wish {
			if i < known {
				order = append(order, i)
			}
		}
		return h.wishes, order
	}
	for i := range known {
		order = append(order, i)
	}
	return 0, order
}

// letGo ends the holding of a tensor, which the caller takes out of h.tensors. h.mu is held.
func (h *holdings) letGo(t *heldTensor) {
	delete(h.held, t.index)
	for _, l := range t.locations {
		h.store.dropHeld(l)
	}
}

// wakeLoader has the loader look again. h.mu is held.
func (h *holdings) wakeLoader() {
	select {
	case h.changed <- struct{}{}:
	default: // it will look anyway
	}
}

// isHeld reports whether a tensor is held.
func (h *holdings) isHeld(index int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[index]
}

// setLeft says how many wanted tensors are not held.
func (h *holdings) setLeft(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = n
}

// setRoom changes how many bytes the tensors may take, and has them give way, see Device.Room.
func (h *holdings) setRoom(bytes uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	grown := bytes > h.room
	h.room = bytes
	h.lowerPrecision(bytes, false)
	h.lowerPrecision(bytes, true)
	taken := h.poolBytes()
	for n := len(h.tensors) - 1; n >= 0 && taken > bytes; n-- {
		t := &h.tensors[n]
		h.letGo(t)
		taken -= t.poolBytes
		h.tensors = h.tensors[:n]
		h.left++
		h.givenUp++
	}
	if grown {
		h.wakeLoader()
	}
}

// lowerPrecision takes planes from tensors that have one more than they need, the last ones first, until all
// tensors take at most so many bytes, or none has a plane to spare. If memory is short, planes to spare are
// those that the bound for that allows to lose. It uses several goroutines. h.mu is held.
func (h *holdings) lowerPrecision(bytes uint64, short bool) {
	taken := h.poolBytes()
	var lowered []int
	var weights []*weight
	for n := len(h.tensors) - 1; n >= 0 && taken > bytes; n-- {
		spare, of := h.sparePlanes(&h.tensors[n], short)
		if spare > 0 {
			lowered, weights = append(lowered, n), append(weights, of...)
			taken -= spare
		}
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(h.workers, len(weights)) {
		wait.Go(func() {
			for i := int(next.Add(1)); i <= len(weights); i = int(next.Add(1)) {
				h.store.coarsenWeight(weights[i-1])
			}
		})
	}
	wait.Wait()
	for _, n := range lowered {
		h.refreshTensor(&h.tensors[n])
	}
	h.lowered += len(lowered)
}

// sparePlanes returns the weights of a tensor that have a plane to spare, see lowerPrecision, and how many
// bytes these planes take. h.mu is held.
func (h *holdings) sparePlanes(t *heldTensor, short bool) (bytes uint64, of []*weight) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	for _, l := range t.locations {
		if w := h.store.heldMatrices[l].weight; w != nil && w.form.canCoarsen && (short || !w.form.coarsenIfShort) {
			m := w.matrix
			bytes += uint64(fabric.BandsBytes(m.Rows, m.Cols, 3) - fabric.BandsBytes(m.Rows, m.Cols, 2))
			of = append(of, w)
		}
	}
	return bytes, of
}

// refreshTensor counts a tensor's matrices again after their planes have changed. h.mu is held.
func (h *holdings) refreshTensor(t *heldTensor) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	t.poolBytes, t.lacksPlane, t.belowBound, t.leastSNR = 0, false, false, 0
	for _, l := range t.locations {
		if w := h.store.heldMatrices[l].weight; w != nil {
			t.addWeight(w)
		}
	}
}

// poolBytes is how many bytes of the pool all tensors take. h.mu is held.
func (h *holdings) poolBytes() uint64 {
	n := uint64(0)
	for i := range h.tensors {
		n += h.tensors[i].poolBytes
	}
	return n
}

// fits reports whether a tensor that is being loaded, and has so many bytes already, may get n more.
func (h *holdings) fits(has, n uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	taken := h.poolBytes() + has
	return taken <= h.room && n <= h.room-taken
}

// makeRoom is fits, but takes planes to spare from other tensors if that gives enough room.
func (h *holdings) makeRoom(has, n uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	taken, spare := h.poolBytes(), uint64(0)
	if taken+has+n <= h.room {
		return true
	}
	for i := range h.tensors {
		s, _ := h.sparePlanes(&h.tensors[i], false)
		spare += s
	}
	if taken-spare+has+n > h.room {
		return false
	}
	h.lowerPrecision(h.room-has-n, false)
	return true
}

// addTensor adds a tensor whose matrices the store holds. It reports false if the room has shrunk since they were read.
func (h *holdings) addTensor(t heldTensor) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.poolBytes+h.poolBytes() > h.room {
		return false
	}
	h.tensors = append(h.tensors, t)
	h.held[t.index] = true
	return true
}

// replaceWeight gives the matrix at l, of a held tensor, the planes of by. It drops by instead if the matrix is
// not held any more, there is no room, or by is not good; in the last case the matrix is not tried again.
func (h *holdings) replaceWeight(index int, l location, by *weight, good bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := slices.IndexFunc(h.tensors, func(t heldTensor) bool { return t.index == index })
	h.store.mu.Lock()
	w := h.store.heldMatrices[l].weight
	if w != nil && !good {
		w.form.canRefine = false
	}
	h.store.mu.Unlock()
	if n < 0 || w == nil || !good || h.poolBytes()+by.poolBytes()-w.poolBytes() > h.room {
		h.store.dropWeight(by)
		return
	}
	h.store.exchangePlanes(w, by)
	if h.refreshTensor(&h.tensors[n]); !h.tensors[n].lacksPlane {
		h.raised++
	}
}

// status says what is held; nil if nothing ever was to be.
func (h *holdings) status() *Holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.announced {
		return nil
	}
	s := &Holding{
		Tensors: len(h.tensors), Left: h.left, GivenUp: h.givenUp, Lowered: h.lowered, Raised: h.raised, Room: h.room,
		Which: make([]byte, (h.known+7)/8),
	}
	for i := range h.held {
		s.Which[i/8] |= 1 << (i % 8)
	}
	for i := range h.tensors {
		t := &h.tensors[i]
		s.Bytes += t.fileBytes
		s.Planes += t.poolBytes
		if t.lacksPlane {
			s.Coarser++
		}
		if t.belowBound {
			s.Below++
		}
		s.Decibels = leastSNR(s.Decibels, t.leastSNR)
	}
	s.Loading = h.store.isLoading()
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		s.Faults = uint64(usage.Majflt)
	}
	return s
}
