package device

// This file holds weights of a model file for clients that have the file mapped: the device reads them itself, a part at a time, and clients find them by where they lie. So a
// client need not send them, and what it has in memory of the file may go.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// Extent is where the weights of a matrix lie in a file: rows of blocks of a type, as in a GGUF file.
type Extent struct {
	Offset     int64
	Type       gguf.Type
	Rows, Cols int // Cols is a multiple of 32
}

// bytes is the extent's length; 0 if there is no such matrix.
func (e *Extent) bytes() uint64 {
	if e.Offset < 0 || e.Rows < 0 || e.Cols < 0 || e.Rows > maxDim || e.Cols > maxDim {
		return 0
	}
	return blocksBytes(&Descriptor{Rows: uint32(e.Rows), Cols: uint32(e.Cols), XType: uint32(e.Type)})
}

// Tensor is what is held or not held as a whole: a matrix, or several, as those of an expert.
type Tensor struct {
	Name     string
	Matrices []Extent
}

// Form is how weights are held.
type Form struct {
	// Bound is the least ratio of a matrix's products to their error in decibels: as few planes are fitted as keep it. 0: none, so that the planes are exact.
	Bound float64
	// Layout of the planes: PT5Striped is the smaller, TwoBit the faster.
	Layout trit.Layout
	// Finer gives weights for which two planes are enough a third one while there is room for it, where both are multiplied as bands.
	Finer bool
	// Short is the bound while memory is short, if it is less: weights that need three planes for Bound may lose the lowest one then, where both are multiplied as bands. 0: they keep it, or go.
	Short float64
}

// MayBeFiner reports whether weights that need so many planes may have one more.
func (f *Form) MayBeFiner(planes int) bool {
	return f.Finer && f.Bound > 0 && planes == 2 && kernel.Best().HasBands(3)
}

// MayBeCoarser reports whether weights that need so many planes may lose one while memory is short.
func (f *Form) MayBeCoarser(planes int) bool {
	return f.Short > 0 && f.Short < f.Bound && planes == 3 && kernel.Best().HasBands(3)
}

// codes reports whether e is multiplied as it lies.
func (e *Extent) codes() bool { return e.Type == gguf.Q2_0 && e.Cols%kernel.CodeCols == 0 }

// Bytes is about how many bytes of memory e takes with so many planes.
func (f *Form) Bytes(e *Extent, planes int) uint64 {
	switch {
	case e.codes():
		return e.bytes()
	case f.Bound > 0 && kernel.Best().HasBands(planes):
		return uint64(fabric.BandsBytes(e.Rows, e.Cols, planes))
	}
	weights := uint64(e.Rows) * uint64(e.Cols)
	return uint64(f.Layout.RowBytes(e.Cols))*uint64(e.Rows)*uint64(planes) + 2*weights/fitBlock
}

// place is by what clients find a matrix.
type place struct {
	dev, ino, offset, bytes uint64
	of                      gguf.Type
	rows, cols              uint32
}

// heldFile is a file of which weights are held.
type heldFile struct {
	file *os.File
	was  fs.FileInfo
}

// unchanged reports whether the file is as it was when weights of it were read.
func (h *heldFile) unchanged() bool {
	now, err := h.file.Stat()
	return err == nil && now.Size() == h.was.Size() && now.ModTime().Equal(h.was.ModTime())
}

// held is a matrix that is held.
type held struct {
	w      *weight
	file   *heldFile
	sample uint64
}

// Holding says what is held.
type Holding struct {
	Tensors int    `json:"tensors"`  // that are held whole
	Left    int    `json:"left"`     // that are not: there was no room, or the form's bound cannot be kept
	Bytes   uint64 `json:"bytes"`    // of the file that the held ones are
	Planes  uint64 `json:"planes"`   // bytes of their planes and factors
	Loading bool   `json:"loading"`  // more may be held soon
	GivenUp int    `json:"given_up"` // tensors that were held, and whose memory others needed
	Coarser int    `json:"coarser"`  // tensors that are held with a plane less than they would have if there were room
	Below   int    `json:"below"`    // those of them that have more error than the form's bound allows, as memory is short
	Lowered int    `json:"lowered"`  // how often a tensor lost a plane, because others needed its memory
	Raised  int    `json:"raised"`   // how often one got a third plane, when there was room again
	Faults  uint64 `json:"faults"`   // pages of this process that had to be read from disk since it began
	Room    uint64 `json:"room"`     // bytes that planes and factors may take
	Which   []byte `json:"which"`    // a bit for each of the tensors that Hold was told of, from the lowest of a byte on: 1 where it is held whole

	Decibels float64 `json:"least_snr_db"` // the least ratio of products to their error among the held; 0: nothing is held, or without error
}

// sampleParts and samplePart say which bytes of a matrix are compared with the client's, besides the file's identity: of each of so many parts the first bytes.
const (
	sampleParts = 4
	samplePart  = 32
)

// sampler hashes them (FNV-1a), of a matrix that comes in pieces.
type sampler struct {
	bytes, at, sum uint64
}

func newSampler(bytes uint64) *sampler { return &sampler{bytes: bytes, sum: 0xcbf29ce484222325} }

func (s *sampler) write(b []byte) {
	end := s.at + uint64(len(b))
	for i := range uint64(sampleParts) {
		first := s.bytes / sampleParts * i
		for k := max(first, s.at); k < min(first+samplePart, s.bytes, end); k++ {
			s.sum = (s.sum ^ uint64(b[k-s.at])) * 0x100000001b3
		}
	}
	s.at = end
}

// errNotHeld says that a matrix is not held for now.
var errNotHeld = errors.New("it is not held")

// errLoading says that it may soon be held.
var errLoading = errors.New("it is not held yet")

// find takes a reference to the weight at p for a client.
func (s *store) find(p place, sample uint64) (*weight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[p]
	switch {
	case ok && h.sample == sample && h.file.unchanged():
		h.w.refs++
		return h.w, nil
	case !ok && s.loading:
		return nil, errLoading
	}
	return nil, errNotHeld
}

// hold makes w known at p. The reference to it is the store's from now on, and it is pinned: nobody's upload displaces it.
func (s *store) hold(p place, h held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.w.pins++
	s.held[p] = h
	s.changed.Add(1)
}

// letGo ends the holding of a matrix. Its memory is free as soon as no product reads it; clients' handles of it are stale.
func (s *store) letGo(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[p]
	if !ok {
		return
	}
	delete(s.held, p)
	s.changed.Add(1)
	h.w.pins--
	h.w.refs--
	h.w.gone = true
	if h.w.busy == 0 {
		s.forget(h.w)
	}
}

// pieceBytes is how much of a file is read at a time.
const pieceBytes = 4 << 20

// Hold reads tensors of a GGUF file and holds them, in this order or that of [Device.Wish], as long as there is room; what finds none, or cannot keep the form's bound, is left out. A tensor that finds none takes that
// of others' third planes (Form.Finer), of the last ones first. Clients that ask for what is not
// held yet, before all was tried once, are told so. Then it waits for [Device.Room] to give more room, or for other wishes, and goes on, until ctx ends: that is its error. Call it at most once, before or while
// Serve runs. It uses several goroutines. The file must stay open as long as the device; its offset is not changed.
func (d *Device) Hold(ctx context.Context, file *os.File, tensors []Tensor, form Form) error {
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("hold weights of %s: %w", file.Name(), err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return fmt.Errorf("hold weights of %s: it is no regular file", file.Name())
	}
	for i := range tensors {
		for _, e := range tensors[i].Matrices {
			if n := e.bytes(); n == 0 || uint64(e.Offset) > uint64(info.Size()) || n > uint64(info.Size())-uint64(e.Offset) {
				return fmt.Errorf("hold %s of %s: %v, %d rows of %d columns at %d is no matrix of this file", tensors[i].Name, file.Name(), e.Type, e.Rows, e.Cols, e.Offset)
			}
		}
	}
	d.WillHold()
	l := &loader{d: d, file: &heldFile{file, info}, dev: uint64(st.Dev), ino: st.Ino, form: form}
	defer d.loading(false)
	if err := d.awaitWish(ctx); err != nil {
		return err
	}
	never := make([]bool, len(tensors)) // what cannot be held, however much room there is
	fail := func(i int, err error) error {
		return fmt.Errorf("hold %s of %s: %w", tensors[i].Name, file.Name(), err)
	}
	for {
		wishes, order := d.wishes(len(tensors))
		// What has more error than it should have comes before what is not held.
		for _, i := range order {
			if err := l.raise(ctx, i, &tensors[i], true); err != nil {
				return fail(i, err)
			}
		}
		left, full := 0, 0
		for _, i := range order {
			if d.holds(i) {
				continue
			}
			left++
			if never[i] || full == mostFull || d.wished() != wishes {
				continue
			}
			err := l.tensor(ctx, i, &tensors[i])
			switch {
			case err == nil:
				left, full = left-1, 0
			case errors.Is(err, errFull):
				full++
			case errors.Is(err, errBound), errors.Is(err, decompose.ErrInexact), errors.Is(err, decompose.ErrNotFinite), errors.Is(err, gguf.ErrNoDecoder), errors.Is(err, fabric.ErrOperand):
				d.o.Log.Info("not held", "tensor", tensors[i].Name, "why", err)
				never[i] = true
			default:
				return fail(i, err)
			}
		}
		if d.wished() != wishes {
			continue
		}
		d.loading(false)
		d.mu.Lock()
		d.left = left
		d.mu.Unlock()
		for _, i := range order {
			if err := l.raise(ctx, i, &tensors[i], false); err != nil {
				return fail(i, err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.more:
		}
	}
}

// mostFull is how many tensors in a row find no room until the others are not tried: some of them are read for that.
const mostFull = 12

// Wish says which of the tensors that Hold is told of are to be held, by their indices, and in which order: what comes last is let go first. Others that are held are let go. Before the first call it is all of them, in their order.
func (d *Device) Wish(which []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wish = slices.Clone(which)
	d.wishCount++
	at := make(map[int]int, len(which))
	for n, i := range which {
		at[i] = n
	}
	d.groups = slices.DeleteFunc(d.groups, func(g group) bool {
		_, wanted := at[g.index]
		if !wanted {
			d.letGo(&g)
		}
		return !wanted
	})
	slices.SortStableFunc(d.groups, func(a, b group) int { return at[a.index] - at[b.index] })
	d.wake()
}

// WillWish says that Wish will be called: Hold begins with that.
func (d *Device) WillWish() {
	d.mu.Lock()
	d.willWish = true
	d.mu.Unlock()
}

// awaitWish waits for the first wish, if there is to be one.
func (d *Device) awaitWish(ctx context.Context) error {
	for {
		d.mu.Lock()
		waits := d.willWish && d.wishCount == 0
		d.mu.Unlock()
		if !waits {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.more:
		}
	}
}

// wished counts calls of Wish.
func (d *Device) wished() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wishCount
}

// wishes are the indices of tensors that are to be held, of so many.
func (d *Device) wishes(of int) (count int, order []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tensors = of
	if d.wishCount > 0 {
		for _, i := range d.wish {
			if i < of {
				order = append(order, i)
			}
		}
		return d.wishCount, order
	}
	for i := range of {
		order = append(order, i)
	}
	return 0, order
}

// letGo ends the holding of a tensor. d.mu is held.
func (d *Device) letGo(g *group) {
	delete(d.held, g.index)
	for _, p := range g.places {
		d.store.letGo(p)
	}
}

// wake has Hold look again. d.mu is held.
func (d *Device) wake() {
	select {
	case d.more <- struct{}{}:
	default: // it will look anyway
	}
}

func (d *Device) loading(is bool) {
	d.store.mu.Lock()
	d.store.loading = is
	d.store.mu.Unlock()
}

// WillHold says that Hold will be called: clients that ask before are told to ask again.
func (d *Device) WillHold() {
	d.mu.Lock()
	d.willHold = true
	d.mu.Unlock()
	d.loading(true)
}

// holds reports whether a tensor, by its index, is held.
func (d *Device) holds(index int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held[index]
}

// Room changes how many bytes of the pool what is held may take. If that is less than it takes, precision goes first: tensors that have a plane more than they need lose it, the last ones first, then
// those that need it for the form's bound, but not for that of when memory is short. If that is not enough, tensors are let go, the last ones first. What they took is given back to the system as soon as no product reads it.
func (d *Device) Room(bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	grown := bytes > d.room
	d.room = bytes
	d.lower(bytes, false)
	d.lower(bytes, true)
	taken := d.taken()
	for n := len(d.groups) - 1; n >= 0 && taken > bytes; n-- {
		g := &d.groups[n]
		d.letGo(g)
		taken -= g.planes
		d.groups = d.groups[:n]
		d.left++
		d.givenUp++
	}
	if grown {
		d.wake()
	}
}

// lower takes planes from tensors that have one more than they need, or, if memory is short, than they need then, the last ones first, until all take no more than bytes, or none has any. It uses
// several goroutines. d.mu is held.
func (d *Device) lower(bytes uint64, short bool) {
	taken := d.taken()
	var from []int
	var weights []*weight
	for n := len(d.groups) - 1; n >= 0 && taken > bytes; n-- {
		spare, of := d.spare(&d.groups[n], short)
		if spare > 0 {
			from, weights = append(from, n), append(weights, of...)
			taken -= spare
		}
	}
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(d.o.Workers, len(weights)) {
		wait.Go(func() {
			for i := int(next.Add(1)); i <= len(weights); i = int(next.Add(1)) {
				d.store.coarsen(weights[i-1])
			}
		})
	}
	wait.Wait()
	for _, n := range from {
		d.measure(&d.groups[n])
	}
	d.lowered += len(from)
}

// spare is how many bytes a tensor takes for planes that it does not need, or, if memory is short, does not need then, and its weights that have them. d.mu is held.
func (d *Device) spare(g *group, short bool) (bytes uint64, of []*weight) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	for _, p := range g.places {
		if w := d.store.held[p].w; w != nil && w.form.coarser && (short || !w.form.short) {
			m := w.matrix
			bytes += uint64(fabric.BandsBytes(m.Rows, m.Cols, 3) - fabric.BandsBytes(m.Rows, m.Cols, 2))
			of = append(of, w)
		}
	}
	return bytes, of
}

// measure brings a tensor's size up to date. d.mu is held.
func (d *Device) measure(g *group) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	g.planes, g.coarser, g.below, g.snr = 0, false, false, 0
	for _, p := range g.places {
		if w := d.store.held[p].w; w != nil {
			g.add(w)
		}
	}
}

// holding reads what is held; nil if nothing ever was to be. d.mu is held.
func (d *Device) holding() *Holding {
	if !d.willHold {
		return nil
	}
	h := &Holding{Tensors: len(d.groups), Left: d.left, GivenUp: d.givenUp, Lowered: d.lowered, Raised: d.raised, Room: d.room, Which: make([]byte, (d.tensors+7)/8)}
	for i := range d.held {
		h.Which[i/8] |= 1 << (i % 8)
	}
	for _, g := range d.groups {
		h.Bytes += g.bytes
		h.Planes += g.planes
		if g.coarser {
			h.Coarser++
		}
		if g.below {
			h.Below++
		}
		h.Decibels = leastOf(h.Decibels, g.snr)
	}
	d.store.mu.Lock()
	h.Loading = d.store.loading
	d.store.mu.Unlock()
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) == nil {
		h.Faults = uint64(u.Majflt)
	}
	return h
}

// loader reads weights of one file.
type loader struct {
	d        *Device
	file     *heldFile
	dev, ino uint64
	form     Form
	buffer   []byte
}

func (l *loader) place(e *Extent) place {
	return place{l.dev, l.ino, uint64(e.Offset), e.bytes(), e.Type, uint32(e.Rows), uint32(e.Cols)}
}

// tensor holds all matrices of a tensor, or none.
func (l *loader) tensor(ctx context.Context, index int, t *Tensor) (err error) {
	g := group{index: index}
	defer func() {
		if err != nil {
			for _, p := range g.places {
				l.d.store.letGo(p)
			}
		}
	}()
	planes, may, all := 0, false, false // all of it may have a plane more
	for i := range t.Matrices {
		e := &t.Matrices[i]
		if planes == 0 || l.form.Bound > 0 {
			if planes, may, err = l.planes(ctx, e); err != nil {
				return err
			}
		}
		if i == 0 {
			var least, most uint64
			for k := range t.Matrices {
				least += l.form.Bytes(&t.Matrices[k], planes)
				most += l.form.Bytes(&t.Matrices[k], planes+1)
			}
			if all = may && l.d.fits(0, most); !all && !l.d.makeRoom(0, least) {
				return errFull
			}
		}
		finer := may && all && l.d.fits(g.planes, l.form.Bytes(e, planes+1))
		if !finer && !l.d.makeRoom(g.planes, l.form.Bytes(e, planes)) {
			return errFull
		}
		w, sample, err := l.matrix(ctx, e, planes, finer)
		if err != nil {
			return err
		}
		w.form.finer = may && w.form.bands == planes
		p := l.place(e)
		l.d.store.hold(p, held{w, l.file, sample})
		g.places = append(g.places, p)
		g.bytes += p.bytes
		g.add(w)
	}
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	if g.planes += l.d.taken(); g.planes > l.d.room { // there was more when this began
		return errFull
	}
	g.planes -= l.d.taken()
	l.d.groups = append(l.d.groups, g)
	l.d.held[index] = true
	return nil
}

// raise gives the matrices of a tensor that is held the third planes that they may have, as long as there is room, or only those that need them (below). That they cannot have them is no error.
func (l *loader) raise(ctx context.Context, index int, t *Tensor, below bool) error {
	for i := range t.Matrices {
		e := &t.Matrices[i]
		p := l.place(e)
		lacks, needs := l.d.lacks(p)
		if !lacks || below && !needs || !l.d.fits(0, l.form.Bytes(e, 3)-l.form.Bytes(e, 2)) {
			continue
		}
		by, _, snr, err := l.fill(ctx, e, 3, !needs)
		if errors.Is(err, errFull) { // of the pool, which both take for a moment
			continue
		}
		if err != nil {
			return err
		}
		l.d.replace(index, p, by, snr >= l.form.Bound && by.form.coarser && by.form.short == needs)
	}
	return nil
}

// lacks reports whether what is held at p would have a plane more if there were room, and whether it needs it for the form's bound.
func (d *Device) lacks(p place) (lacks, needs bool) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	w := d.store.held[p].w
	return w != nil && w.form.finer, w != nil && w.form.below
}

// replace puts by in the place of what a tensor holds at p, if that is held still, there is room, and it is good; else it is dropped.
func (d *Device) replace(index int, p place, by *weight, good bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := slices.IndexFunc(d.groups, func(g group) bool { return g.index == index })
	d.store.mu.Lock()
	w := d.store.held[p].w
	if w != nil && !good {
		w.form.finer = false
	}
	d.store.mu.Unlock()
	if n < 0 || w == nil || !good || d.taken()+by.size()-w.size() > d.room {
		d.store.drop(by)
		return
	}
	d.store.exchange(w, by)
	if d.measure(&d.groups[n]); !d.groups[n].coarser {
		d.raised++
	}
}

// makeRoom reports whether a tensor of which so many bytes are held may get n more. Others lose planes that they do not need for that, if that is enough.
func (d *Device) makeRoom(has, n uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken, spare := d.taken(), uint64(0)
	if taken+has+n <= d.room {
		return true
	}
	for i := range d.groups {
		s, _ := d.spare(&d.groups[i], false)
		spare += s
	}
	if taken-spare+has+n > d.room {
		return false
	}
	d.lower(d.room-has-n, false)
	return true
}

// taken is how much of the room is. d.mu is held.
func (d *Device) taken() uint64 {
	n := uint64(0)
	for i := range d.groups {
		n += d.groups[i].planes
	}
	return n
}

// fits reports whether a tensor of which so many bytes are held may get n more.
func (d *Device) fits(has, n uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.taken() + has
	return t <= d.room && n <= d.room-t
}

// group is a tensor that is held.
type group struct {
	index         int // of the tensors that Hold was told of
	places        []place
	bytes, planes uint64
	coarser       bool // it would have more planes if there were room
	below         bool // it has more error than the form's bound allows
	snr           float64
}

// add counts a matrix of it.
func (g *group) add(w *weight) {
	g.planes += w.size()
	g.coarser = g.coarser || w.form.finer
	g.below = g.below || w.form.below
	g.snr = leastOf(g.snr, w.form.snr)
}

// leastOf is the less of two ratios, of which 0 is none.
func leastOf(a, b float64) float64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// planes is how many planes e needs, by some of its rows, and whether it may have one more, without which it still is as the form wants it.
func (l *loader) planes(ctx context.Context, e *Extent) (n int, finer bool, err error) {
	switch {
	case e.codes():
		return 1, false, nil
	case l.form.Bound == 0:
		return decompose.ExactPlanes(e.Type), false, nil
	}
	row := e.bytes() / uint64(e.Rows)
	rows := min(e.Rows, sampleRows)
	sample := make([]byte, uint64(rows)*row)
	for i := range rows {
		if err := l.read(sample[uint64(i)*row:uint64(i+1)*row], e, uint64(i*e.Rows/rows)*row); err != nil {
			return 0, false, err
		}
	}
	for planes := 1; planes <= mostFitted; planes++ {
		if planes == decompose.ExactPlanes(e.Type) {
			return planes, false, nil
		}
		_, seen, err := decompose.Lossy(ctx, e.Type, rows, e.Cols, sample, l.fit(planes), decompose.Options{Workers: l.d.o.Workers})
		if err != nil {
			return 0, false, err
		}
		if seen.SNR() < l.form.Bound {
			continue
		}
		if l.form.MayBeFiner(planes) && planes+1 != decompose.ExactPlanes(e.Type) {
			_, seen, err := decompose.Lossy(ctx, e.Type, rows, e.Cols, sample, l.fit(planes+1), decompose.Options{Workers: l.d.o.Workers, Coarser: true})
			if err != nil {
				return 0, false, err
			}
			finer = coarserSNR(seen) >= l.form.Bound
		}
		return planes, finer, nil
	}
	return 0, false, fmt.Errorf("%d planes: %w", mostFitted, errBound)
}

// coarserSNR is the ratio of signal to noise, in decibels, without the lowest plane.
func coarserSNR(e decompose.Error) float64 {
	return decompose.Error{Signal: e.Signal, Noise: e.Coarser}.SNR()
}

func (l *loader) fit(planes int) decompose.Fit {
	return decompose.Fit{Planes: planes, Block: fitBlock, Shared: true}
}

// read reads part of an extent, from offset at of it on.
func (l *loader) read(b []byte, e *Extent, at uint64) error {
	if _, err := l.file.file.ReadAt(b, e.Offset+int64(at)); err != nil {
		return fmt.Errorf("read weights: %w", err)
	}
	return nil
}

// matrix reads a matrix into the pool. If the rows that were looked at did not tell of the worst, there are more planes than the caller expects. finer: there is one more than it needs.
func (l *loader) matrix(ctx context.Context, e *Extent, planes int, finer bool) (*weight, uint64, error) {
	if finer {
		planes++
	}
	for {
		w, sample, snr, err := l.fill(ctx, e, planes, finer)
		switch {
		case err != nil:
			return nil, 0, err
		case l.form.Bound == 0 || snr >= l.form.Bound || e.codes() || planes == decompose.ExactPlanes(e.Type):
			return w, sample, nil
		}
		l.d.store.drop(w)
		if planes++; planes > mostFitted {
			return nil, 0, fmt.Errorf("%d planes: %w", mostFitted, errBound)
		}
	}
}

// fill makes a weight of so many planes in the pool, a piece of the file at a time. finer: of one more than it needs, if it turns out so.
func (l *loader) fill(ctx context.Context, e *Extent, planes int, finer bool) (_ *weight, sample uint64, snr float64, err error) {
	s, bytes := l.d.store, e.bytes()
	row := int(bytes) / e.Rows
	step := max(1, pieceBytes/row/fabric.BandRows) * fabric.BandRows
	l.buffer = sized(l.buffer, min(step, e.Rows)*row)
	var into filling
	f := form{codes: e.codes()}
	least := l.form.Bound // without the lowest plane
	if !finer && l.form.MayBeCoarser(planes) {
		finer, f.short, least = true, true, l.form.Short
	}
	defer func() {
		if err != nil {
			into.undo(s)
		}
	}()
	sampled := newSampler(bytes)
	var off decompose.Error
	for first := 0; first < e.Rows; first += step {
		n := min(step, e.Rows-first)
		b := l.buffer[:n*row]
		if err := l.read(b, e, uint64(first*row)); err != nil {
			return nil, 0, 0, err
		}
		// Where the target maps them as well, pages stay that it uses.
		_ = unix.Fadvise(int(l.file.file.Fd()), e.Offset+int64(first*row), int64(len(b)), unix.FADV_DONTNEED)
		sampled.write(b)
		if f.codes {
			if first == 0 {
				if err := into.whole(s, e, kernel.CodeCols, int(bytes)); err != nil {
					return nil, 0, 0, err
				}
			}
			copy(into.m.Terms[0].Planes[0][first*row:], b)
			continue
		}
		o := decompose.Options{Layout: l.form.Layout, Workers: l.d.o.Workers}
		var part *fabric.Matrix
		if l.form.Bound == 0 || planes == decompose.ExactPlanes(e.Type) {
			part, err = decompose.Exact(ctx, e.Type, n, e.Cols, b, o)
		} else {
			var its decompose.Error
			o.Coarser = finer
			part, its, err = decompose.Lossy(ctx, e.Type, n, e.Cols, b, l.fit(planes), o)
			off.Add(its)
		}
		if err != nil {
			return nil, 0, 0, err
		}
		f.ordered = l.form.Bound == 0 && fabric.HasOrder(part)
		if !f.ordered && fabric.TakesBands(part) {
			its := formOfBands(part)
			if first == 0 {
				if err := into.whole(s, e, kernel.BandBlock, fabric.BandsBytes(e.Rows, e.Cols, its.bands)); err != nil {
					return nil, 0, 0, err
				}
			}
			f.bands = its.bands
			f.zeros += its.zeros
			f.low += its.low
			finer = finer && fabric.CoarserBands(part)
			fabric.PackBands(into.m.Terms[0].Planes[0][fabric.BandsBytes(first, e.Cols, f.bands):], part, l.d.o.Workers)
			continue
		}
		if first == 0 {
			if err := into.begin(s, part, e.Rows); err != nil {
				return nil, 0, 0, err
			}
		}
		if err := into.rows(part, first); err != nil {
			return nil, 0, 0, err
		}
	}
	if f.coarser = finer && f.bands > 0 && coarserSNR(off) >= least; f.coarser {
		f.less = coarserSNR(off)
	}
	f.short = f.short && f.coarser
	if off.Noise > 0 {
		f.snr = off.SNR()
	}
	w, err := s.adopt(&into, f)
	return w, sampled.sum, off.SNR(), err
}

// filling is a matrix of which planes and factors lie in the pool, and whose rows come a few at a time.
type filling struct {
	m      fabric.Matrix
	pieces [][]byte // of the pool, other than planes
}

// whole takes room for a matrix whose only plane has so many bytes.
func (f *filling) whole(s *store, e *Extent, block, bytes int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.pool.Take(bytes)
	if err != nil {
		return errFull
	}
	f.m = *whole(e.Rows, e.Cols, block, b)
	return nil
}

// begin takes room for rows that are like those of part.
func (f *filling) begin(s *store, part *fabric.Matrix, rows int) error {
	f.m = *part
	f.m.Rows, f.m.Terms = rows, nil
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range part.Terms {
		t := part.Terms[i]
		t.Planes = nil
		for _, p := range part.Terms[i].Planes {
			b, err := s.pool.Take(len(p) / part.Rows * rows)
			if err != nil {
				f.m.Terms = append(f.m.Terms, t)
				return errFull
			}
			t.Planes = append(t.Planes, b)
		}
		f.m.Terms = append(f.m.Terms, t)
		if err := f.scales(s, &f.m.Terms[i].Scales, &part.Terms[i].Scales, part.Rows, rows); err != nil {
			return err
		}
	}
	return f.scales(s, &f.m.Min, &part.Min, part.Rows, rows)
}

// scales takes room for factors.
func (f *filling) scales(s *store, to, from *fabric.Scales, had, rows int) error {
	room := func(n int) ([]byte, error) {
		if n == 0 {
			return nil, nil
		}
		b, err := s.pool.Take(n / had * rows)
		if err != nil {
			return nil, errFull
		}
		f.pieces = append(f.pieces, b)
		return b, nil
	}
	half, err := room(2 * len(from.Half))
	if err != nil {
		return err
	}
	sub, err := room(len(from.Sub))
	if err != nil {
		return err
	}
	super, err := room(2 * len(from.Super))
	if err != nil {
		return err
	}
	to.Half, to.Sub, to.Super = of[uint16](half), of[int8](sub), of[uint16](super)
	return nil
}

// of sees memory of the pool, which begins at pages, as numbers of another type; nil if there is none.
func of[T int8 | uint16](b []byte) []T {
	var t T
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// rows copies some rows, from the row first on.
func (f *filling) rows(part *fabric.Matrix, first int) error {
	if len(part.Terms) != len(f.m.Terms) {
		return fmt.Errorf("rows of %d terms in a matrix of %d", len(part.Terms), len(f.m.Terms))
	}
	for i := range part.Terms {
		to, from := &f.m.Terms[i], &part.Terms[i]
		if len(to.Planes) != len(from.Planes) || to.Center != from.Center {
			return errors.New("rows of a matrix differ in their planes")
		}
		for p, b := range from.Planes {
			copy(to.Planes[p][len(b)/part.Rows*first:], b)
		}
		copyRows(&to.Scales, &from.Scales, part.Rows, first)
	}
	copyRows(&f.m.Min, &part.Min, part.Rows, first)
	return nil
}

// copyRows copies the factors of had rows to those from the row first on.
func copyRows(to, from *fabric.Scales, had, first int) {
	copy(to.Half[len(from.Half)/had*first:], from.Half)
	copy(to.Sub[len(from.Sub)/had*first:], from.Sub)
	copy(to.Super[len(from.Super)/had*first:], from.Super)
}

// undo gives everything back.
func (f *filling) undo(s *store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range f.m.Terms {
		for _, p := range f.m.Terms[i].Planes {
			s.giveBack(p)
		}
	}
	for _, p := range f.pieces {
		s.giveBack(p)
	}
	*f = filling{}
}

// adopt makes a weight of a matrix that is filled. The caller has a reference to it; f is empty afterwards.
func (s *store) adopt(f *filling, is form) (*weight, error) {
	m := f.m
	w := &weight{matrix: &m, trits: uint64(m.Rows) * uint64(m.Cols), form: is, refs: 1}
	if _, err := w.newOperand(&m); err != nil {
		return nil, err
	}
	for t := range m.Terms {
		for i, b := range m.Terms[t].Planes {
			w.planes = append(w.planes, plane{term: t, index: i, bytes: b, resident: true, zeros: w.zerosOf(b)})
		}
	}
	w.pieces = f.pieces
	*f = filling{}
	return w, nil
}

// drop takes back the only reference to a weight that adopt made and nobody found.
func (s *store) drop(w *weight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.refs = 0
	s.forget(w)
}

// size is how many bytes of the pool w takes.
func (w *weight) size() uint64 {
	n := uint64(0)
	for i := range w.planes {
		n += uint64(len(w.planes[i].bytes))
	}
	for _, p := range w.pieces {
		n += uint64(len(p))
	}
	return n
}
