package device

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/fabric/kernel"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// TestHold: held weights are found by where they lie in their file, and multiplied like uploaded ones. They are
// let go and come back. Nothing is left in the end.
func TestHold(t *testing.T) {
	const cols, yAt, xAt = 512, 900 << 10, 800 << 10
	d, path := start(t, Options{PoolBytes: 16 << 20, Workers: 2})
	r := rand.New(rand.NewPCG(3, 4))
	kinds := []struct {
		Extent
		bound float64
	}{
		{Extent{Type: gguf.Q8_0, Rows: 300, Cols: cols}, 15},
		{Extent{Type: gguf.Q2_0, Rows: 40, Cols: cols}, 0},
		{Extent{Type: gguf.Q4_K, Rows: 70, Cols: cols}, 15},
		{Extent{Type: gguf.Q8_0, Rows: 33, Cols: cols}, 15},
	}
	file := []byte("something before it")
	var tensors []Tensor
	for i := range kinds {
		k := &kinds[i]
		k.Offset = int64(len(file))
		file = append(file, randomBlocks(r, k.Type, k.Rows*cols)...)
		tensors = append(tensors, Tensor{string(rune('a' + i)), []Extent{k.Extent}})
	}
	tensors = append(tensors, Tensor{"not fitted", []Extent{{Offset: 0, Type: gguf.F32, Rows: 2, Cols: 32}}})
	name := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(name, file, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	c, err := dial(path, 1<<20, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	find := func(e *Extent) Completion {
		b := file[e.Offset:][:e.bytes()]
		s := newSampleHash(uint64(len(b)))
		s.write(b[:len(b)/3]) // pieces do not matter
		s.write(b[len(b)/3:])
		return c.do(Descriptor{Op: OpFind, W: uint64(e.Offset), WBytes: e.bytes(), X: st.Dev, XStride: st.Ino,
			Scale: s.sum, Rows: uint32(e.Rows), Cols: uint32(e.Cols), XType: uint32(e.Type)})
	}
	for i := range cols {
		binary.NativeEndian.PutUint32(c.arena[xAt+4*i:], math.Float32bits(float32(r.NormFloat64())))
	}
	product := func(handle uint64, rows int) ([]byte, int32) {
		got := c.do(Descriptor{Op: OpProduct, Handle: handle, Rows: uint32(rows), Cols: cols, N: 1, X: xAt,
			Y: yAt, XType: TypeFloat32, YType: TypeFloat32, Block: 32})
		return slices.Clone(c.arena[yAt : yAt+4*rows]), got.Status
	}
	if got := find(&kinds[0].Extent); got.Status != statusNotHeld {
		t.Errorf("before anything is to be held: status %v, want %v", unix.Errno(-got.Status),
			unix.Errno(-statusNotHeld))
	}
	d.WillHold()
	if got := find(&kinds[0].Extent); got.Status != statusLoading {
		t.Errorf("before it is held: status %v, want %v", unix.Errno(-got.Status), unix.Errno(-statusLoading))
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- d.Hold(ctx, f, tensors, Form{Bound: 15, Layout: trit.TwoBit}) }()
	settled := func(n int) {
		t.Helper()
		waitFor(t, d, func(s Status) bool { return !s.Holding.Loading && s.Holding.Tensors == n })
	}
	settled(len(kinds))
	s := d.Status()
	if h := s.Holding; h.Left != 1 || h.Planes == 0 || int(h.Planes) > s.PoolUsed || h.Bytes == 0 || s.Moved != 0 {
		t.Errorf("%+v, %d bytes of the pool, %d moved; want one tensor left, and none moved", *h, s.PoolUsed, s.Moved)
	}
	var handles []uint64
	for _, k := range kinds {
		got := find(&k.Extent)
		if got.Status != 0 {
			t.Fatalf("%v: %v", k.Type, unix.Errno(-got.Status))
		}
		handles = append(handles, got.Value)
		b := file[k.Offset:][:k.bytes()]
		copy(c.arena, b)
		sent := c.do(Descriptor{Op: OpBlocks, WBytes: uint64(len(b)), Flags: FlagFast | FlagTwoBit,
			Rows: uint32(k.Rows), Cols: cols, XType: uint32(k.Type)})
		want, status := product(sent.Value, k.Rows)
		if sent.Status != 0 || status != 0 {
			t.Fatalf("%v: %d, %d", k.Type, sent.Status, status)
		}
		if y, status := product(got.Value, k.Rows); status != 0 || !slices.Equal(y, want) {
			t.Errorf("%v: status %d, or another product than that of uploaded weights", k.Type, status)
		}
		c.do(Descriptor{Op: OpRelease, Handle: sent.Value})
	}
	for what, change := range map[string]func(*Extent){
		"another offset": func(e *Extent) { e.Offset += 34 },
		"fewer rows":     func(e *Extent) { e.Rows-- },
		"another type":   func(e *Extent) { e.Type = gguf.Q8_1 },
	} {
		e := kinds[0].Extent
		if change(&e); find(&e).Status != statusNotHeld {
			t.Errorf("%s is found, want that it is not", what)
		}
	}
	file[kinds[1].Offset] ^= 1
	if got := find(&kinds[1].Extent); got.Status != statusNotHeld {
		t.Errorf("a client that has other bytes there: status %v, want %v",
			unix.Errno(-got.Status), unix.Errno(-statusNotHeld))
	}
	file[kinds[1].Offset] ^= 1

	// The last tensors are let go first.
	if err := GiveRoom(t.Context(), path, s.Holding.Planes-1); err != nil {
		t.Fatal(err)
	}
	if h := d.Status().Holding; h.Tensors != len(kinds)-1 || h.GivenUp != 1 || h.Planes >= s.Holding.Planes ||
		d.Status().PoolUsed >= s.PoolUsed {
		t.Errorf("with less room: %+v, want one tensor less", *h)
	}
	if _, status := product(handles[3], kinds[3].Rows); status != statusGone {
		t.Errorf("a product with a weight that was let go: status %v, want %v", unix.Errno(-status),
			unix.Errno(-statusGone))
	}
	if got := c.do(Descriptor{Op: OpPin, Handle: handles[3]}); got.Status == 0 {
		t.Error("a weight that was let go is pinned, want an error")
	}
	if _, status := product(handles[0], kinds[0].Rows); status != 0 {
		t.Errorf("a product with a held weight: status %v, want 0", unix.Errno(-status))
	}
	d.Room(0)
	if s := d.Status(); s.Holding.Tensors != 0 || s.PoolUsed != 0 {
		t.Errorf("without room: %+v, %d bytes of the pool; want none", *s.Holding, s.PoolUsed)
	}
	d.Room(16 << 20)
	settled(len(kinds))
	if got := find(&kinds[3].Extent); got.Status != 0 {
		t.Errorf("a weight that came back: status %v, want 0", unix.Errno(-got.Status))
	}
	for _, h := range handles {
		c.do(Descriptor{Op: OpRelease, Handle: h})
	}

	// Nothing is found of a file that was written to.
	if err := os.Chtimes(name, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if got := find(&kinds[0].Extent); got.Status != statusNotHeld {
		t.Errorf("a weight of a file that was changed: status %v, want %v",
			unix.Errno(-got.Status), unix.Errno(-statusNotHeld))
	}
	stop()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("Hold: %v", err)
	}
	d.Room(0)
	c.close()
	waitFor(t, d, func(s Status) bool { return s.Clients == 0 })
	if s := d.Status(); s.PoolUsed != 0 || s.PoolExtents != 1 {
		t.Errorf("%d bytes of the pool are taken, %d free extents; want 0, 1", s.PoolUsed, s.PoolExtents)
	}
}

// The size of holdRig's matrices, and where its vector and the product are in the client's arena.
const rigRows, rigCols, rigX, rigY = 700, 1024, 800 << 10, 900 << 10

// holdRig is a device that is to hold four tensors of a file, each a matrix, in two or three planes, and a
// client that multiplies with them.
type holdRig struct {
	d          *Device
	path       string
	form       Form
	c          *testClient
	f          *os.File
	st         unix.Stat_t
	file       []byte
	tensors    []Tensor
	two, three uint64 // bytes of a tensor in so many planes
}

// newHoldRig makes a rig. It skips the test where planes do not come and go one by one.
func newHoldRig(t *testing.T, form Form) *holdRig {
	t.Helper()
	if !kernel.Best().HasBands(3) {
		t.Skip("needs AVX2 and assembly: only planes that are multiplied as bands come and go one by one")
	}
	d, path := start(t, Options{PoolBytes: 16 << 20, Workers: 2})
	h := &holdRig{d: d, path: path, form: form}
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 4 {
		e := Extent{Offset: int64(len(h.file)), Type: gguf.Q8_0, Rows: rigRows, Cols: rigCols}
		h.file = append(h.file, randomBlocks(r, e.Type, rigRows*rigCols)...)
		h.tensors = append(h.tensors, Tensor{string(rune('a' + i)), []Extent{e}})
	}
	e := &h.tensors[0].Matrices[0]
	h.two, h.three = form.Bytes(e, 2), form.Bytes(e, 3)
	name := filepath.Join(t.TempDir(), "model")
	err := os.WriteFile(name, h.file, 0o600)
	if err == nil {
		h.f, err = os.Open(name)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.f.Close() })
	if err := unix.Fstat(int(h.f.Fd()), &h.st); err != nil {
		t.Fatal(err)
	}
	if h.c, err = dial(path, 1<<20, 8); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.c.close)
	for i := range rigCols {
		binary.NativeEndian.PutUint32(h.c.arena[rigX+4*i:], math.Float32bits(float32(r.NormFloat64())))
	}
	return h
}

// hold has the device hold the tensors until the caller calls end.
func (h *holdRig) hold(t *testing.T) (end func()) {
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	h.d.WillHold()
	go func() { over <- h.d.Hold(ctx, h.f, h.tensors, h.form) }()
	return func() {
		t.Helper()
		stop()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("Hold: %v", err)
		}
	}
}

// settled waits until the device reads nothing, and ok accepts what it holds.
func (h *holdRig) settled(t *testing.T, ok func(*Holding) bool) (now Holding) {
	t.Helper()
	waitFor(t, h.d, func(s Status) bool {
		now = *s.Holding
		return !now.Loading && ok(&now)
	})
	return now
}

// find returns a handle of a tensor.
func (h *holdRig) find(t *testing.T, i int) uint64 {
	t.Helper()
	e := &h.tensors[i].Matrices[0]
	s := newSampleHash(e.bytes())
	s.write(h.file[e.Offset:][:e.bytes()])
	got := h.c.do(Descriptor{Op: OpFind, W: uint64(e.Offset), WBytes: e.bytes(), X: h.st.Dev, XStride: h.st.Ino,
		Scale: s.sum, Rows: rigRows, Cols: rigCols, XType: uint32(e.Type)})
	if got.Status != 0 {
		t.Fatalf("tensor %d: %v", i, unix.Errno(-got.Status))
	}
	return got.Value
}

// product multiplies, and returns how many planes were used.
func (h *holdRig) product(handle uint64) (planes uint32, y []byte, status int32) {
	got := h.c.do(Descriptor{Op: OpProduct, Handle: handle, Rows: rigRows, Cols: rigCols, N: 1, X: rigX,
		Y: rigY, XType: TypeFloat32, YType: TypeFloat32, Block: 32})
	return got.Planes, slices.Clone(h.c.arena[rigY : rigY+4*rigRows]), got.Status
}

// TestWish: a device holds what it is told to, and says which tensors that are. Weights that are not wished for
// any more are let go. Clients see that what is held has changed.
func TestWish(t *testing.T) {
	r := newHoldRig(t, Form{Bound: 15, Layout: trit.PT5Striped})
	r.d.WillWish()
	end := r.hold(t)
	defer end()
	if h := r.d.Status().Holding; !h.Loading || h.Tensors != 0 {
		t.Errorf("before anything is wished for: %+v, want loading, and no tensors", h)
	}
	changes := func() uint32 {
		if got := r.c.do(Descriptor{Op: OpEmpty}); got.Status != 0 {
			t.Fatal(got.Status)
		}
		return wordAt(r.c.memory, wordHeld).Load()
	}
	var gone uint64
	last := changes()
	for _, test := range []struct {
		wish []int
		bits byte
	}{{[]int{3, 1, 1000}, 0b1010}, {[]int{0, 1}, 0b0011}, {nil, 0}, {[]int{2}, 0b0100}} {
		if err := Wish(t.Context(), r.path, test.wish); err != nil {
			t.Fatal(err)
		}
		r.settled(t, func(h *Holding) bool { return len(h.Which) == 1 && h.Which[0] == test.bits })
		if now := changes(); now == last {
			t.Errorf("wish %v: the word held is still %d, want another value", test.wish, now)
		} else {
			last = now
		}
		switch test.bits {
		case 0b1010:
			gone = r.find(t, 3)
		case 0b0011:
			if _, _, status := r.product(gone); status != statusGone {
				t.Errorf("a product with a weight that is not wished for any more: status %d, want %d", status,
					statusGone)
			}
		}
	}
	// With less room, the last tensors of the wish are let go first.
	if err := Wish(t.Context(), r.path, []int{2, 0, 1}); err != nil {
		t.Fatal(err)
	}
	r.settled(t, func(h *Holding) bool { return h.Which[0] == 0b0111 })
	r.d.Room(2 * r.two)
	r.settled(t, func(h *Holding) bool { return h.Which[0] == 0b0101 })
}

// TestHoldFiner: third planes give way before tensors are let go, while products go on. With room again, both
// come back, and products are what they were.
func TestHoldFiner(t *testing.T) {
	r := newHoldRig(t, Form{Bound: 15, Layout: trit.PT5Striped, Finer: true})
	d, two, three := r.d, r.two, r.three
	// There is room for three tensors with three planes, and a fourth with two.
	d.Room(3*three + two)
	end := r.hold(t)
	settled := func(tensors, coarser int) {
		t.Helper()
		r.settled(t, func(h *Holding) bool { return h.Tensors == tensors && h.Coarser == coarser })
	}
	var handles []uint64
	planes := func(i int) (uint32, []byte, int32) { return r.product(handles[i]) }
	settled(4, 1)
	var fine [4][]byte
	for i := range r.tensors {
		handles = append(handles, r.find(t, i))
		p, y, status := planes(i)
		if want := []uint32{3, 3, 3, 2}[i]; p != want || status != 0 {
			t.Fatalf("tensor %d: %d planes, %d", i, p, status)
		}
		fine[i] = y
	}

	// While the first is multiplied, it loses and gets its third plane again and again.
	flips := make(chan struct{})
	go func() {
		defer close(flips)
		for range 5 {
			d.Room(4 * two)
			d.Room(3*three + two)
			for d.Status().Holding.Coarser > 1 {
				time.Sleep(time.Millisecond)
			}
		}
	}()
	var coarse []byte
	for done := false; !done; {
		select {
		case <-flips:
			done = true
		default:
		}
		p, y, status := planes(0)
		switch {
		case status != 0:
			t.Fatal(unix.Errno(-status))
		case p == 3 && !slices.Equal(y, fine[0]):
			t.Fatal("three planes have another product than before")
		case p == 2 && coarse == nil:
			coarse = y
		case p == 2 && !slices.Equal(y, coarse):
			t.Fatal("two planes have another product than before")
		}
	}

	// First planes give way, then tensors.
	if err := GiveRoom(t.Context(), r.path, 4*two); err != nil {
		t.Fatal(err)
	}
	if s := d.Status(); s.Holding.Tensors != 4 || s.Holding.Coarser != 4 || s.Holding.GivenUp != 0 ||
		s.Holding.Planes != 4*two || s.PoolUsed > int(4*two)+4*pageBytes {
		t.Errorf("with less room: %+v, %d bytes of the pool; want four tensors of two planes", *s.Holding, s.PoolUsed)
	}
	if p, y, status := planes(0); p != 2 || status != 0 || coarse != nil && !slices.Equal(y, coarse) {
		t.Errorf("after that: %d planes, status %d; want 2 planes, and the product of before", p, status)
	}
	d.Room(2 * two)
	if h := d.Status().Holding; h.Tensors != 2 || h.GivenUp != 2 {
		t.Errorf("with hardly any room: %+v, want two tensors", *h)
	}
	if _, _, status := planes(3); status != statusGone {
		t.Errorf("a product with what is gone: %v", unix.Errno(-status))
	}
	d.Room(4 * three)
	settled(4, 0)
	handles[3] = r.find(t, 3)
	if p, _, status := planes(3); p != 3 || status != 0 {
		t.Errorf("with room again: %d planes, status %d; want 3 planes", p, status)
	}
	if p, y, _ := planes(0); p != 3 || !slices.Equal(y, fine[0]) {
		t.Errorf("with room again: %d planes, or another product than before; want 3 planes", p)
	}
	end()
	d.Room(0)
	r.c.close()
	waitFor(t, d, func(s Status) bool { return s.Clients == 0 })
	if s := d.Status(); s.PoolUsed != 0 || s.PoolExtents != 1 {
		t.Errorf("%d bytes of the pool are taken, %d free extents; want 0, 1", s.PoolUsed, s.PoolExtents)
	}
}

// TestHoldShort: while memory is short, weights that need three planes for their bound lose one before tensors
// are let go. The status says so. With room again, they have the products of before. No weight loses such a
// plane so that more tensors can be held.
func TestHoldShort(t *testing.T) {
	r := newHoldRig(t, Form{Bound: 23.5, Short: 15, Layout: trit.PT5Striped, Finer: true})
	d, form, two, three := r.d, r.form, r.two, r.three
	d.Room(4*three - 1)
	end := r.hold(t)
	settled := func(tensors, below int) Holding {
		t.Helper()
		return r.settled(t, func(h *Holding) bool { return h.Tensors == tensors && h.Below == below })
	}
	if h := settled(3, 0); h.Decibels < form.Bound || h.Coarser != 0 {
		t.Errorf("held: %+v, want the bound kept, and no tensor with a plane less", h)
	}
	handle := r.find(t, 0)
	product := func() (uint32, []byte) {
		t.Helper()
		p, y, status := r.product(handle)
		if status != 0 {
			t.Fatal(unix.Errno(-status))
		}
		return p, y
	}
	planes, fine := product()
	d.Room(3 * two)
	h := d.Status().Holding
	if p, _ := product(); planes != 3 || p != 2 || h.Tensors != 3 || h.GivenUp != 0 || h.Below != 3 ||
		h.Decibels < form.Short || h.Decibels >= form.Bound {
		t.Errorf("with less room: %d planes, %+v; want 2 planes, three tensors below the bound", p, *h)
	}
	d.Room(2 * two)
	if h := d.Status().Holding; h.Tensors != 2 || h.GivenUp != 1 || h.Below != 2 {
		t.Errorf("with still less: %+v, want two tensors", *h)
	}
	// First the held tensors get their planes back, then there are more tensors.
	d.Room(2*three + two)
	settled(2, 0)
	if p, y := product(); p != 3 || !slices.Equal(y, fine) {
		t.Errorf("with room again: %d planes, or another product than before; want 3 planes", p)
	}
	d.Room(4 * three)
	if h := settled(4, 0); h.Decibels < form.Bound {
		t.Errorf("with all the room: %+v, want the bound kept", h)
	}
	end()
}

// TestHoldRefused: extents that are no matrix of the file are refused.
func TestHoldRefused(t *testing.T) {
	d, _ := start(t, Options{PoolBytes: 1 << 20})
	name := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(name, make([]byte, 3400), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for what, e := range map[string]Extent{
		"behind the end":  {Offset: 3300, Type: gguf.Q8_0, Rows: 10, Cols: 32},
		"before it":       {Offset: -34, Type: gguf.Q8_0, Rows: 1, Cols: 32},
		"no rows":         {Type: gguf.Q8_0, Cols: 32},
		"too many rows":   {Type: gguf.Q8_0, Rows: 1 << 40, Cols: 32},
		"half a block":    {Type: gguf.Q8_0, Rows: 1, Cols: 48},
		"no type":         {Type: 1 << 20, Rows: 1, Cols: 32},
		"a wrapped place": {Offset: math.MaxInt64, Type: gguf.Q8_0, Rows: 1, Cols: 32},
	} {
		if err := d.Hold(t.Context(), f, []Tensor{{what, []Extent{e}}},
			Form{Bound: 15, Layout: trit.TwoBit}); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want that it is refused", what, err)
		}
	}
}
