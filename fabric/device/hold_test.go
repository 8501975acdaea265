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

	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// TestHold: what the device reads of a file is found there, and multiplied like what a client sends; it is let go and comes back; nothing is left in the end.
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
		s := newSampler(uint64(len(b)))
		s.write(b[:len(b)/3]) // pieces do not matter
		s.write(b[len(b)/3:])
		return c.do(Descriptor{Op: OpFind, W: uint64(e.Offset), WBytes: e.bytes(), X: st.Dev, XStride: st.Ino, Scale: s.sum, Rows: uint32(e.Rows), Cols: uint32(e.Cols), XType: uint32(e.Type)})
	}
	for i := range cols {
		binary.NativeEndian.PutUint32(c.arena[xAt+4*i:], math.Float32bits(float32(r.NormFloat64())))
	}
	product := func(handle uint64, rows int) ([]byte, int32) {
		got := c.do(Descriptor{Op: OpProduct, Handle: handle, Rows: uint32(rows), Cols: cols, N: 1, X: xAt, Y: yAt, XType: TypeFloat32, YType: TypeFloat32, Block: 32})
		return slices.Clone(c.arena[yAt : yAt+4*rows]), got.Status
	}
	if got := find(&kinds[0].Extent); got.Status != statusNotHeld {
		t.Errorf("before anything is to be held: %v", unix.Errno(-got.Status))
	}
	d.WillHold()
	if got := find(&kinds[0].Extent); got.Status != statusLoading {
		t.Errorf("before it is held: %v", unix.Errno(-got.Status))
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
		t.Errorf("%+v, %d bytes of the pool, %d moved", *h, s.PoolUsed, s.Moved)
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
		sent := c.do(Descriptor{Op: OpBlocks, WBytes: uint64(len(b)), Flags: FlagFast | FlagTwoBit, Rows: uint32(k.Rows), Cols: cols, XType: uint32(k.Type)})
		want, status := product(sent.Value, k.Rows)
		if sent.Status != 0 || status != 0 {
			t.Fatalf("%v: %d, %d", k.Type, sent.Status, status)
		}
		if y, status := product(got.Value, k.Rows); status != 0 || !slices.Equal(y, want) {
			t.Errorf("%v: another product than that of what a client sends (%d)", k.Type, status)
		}
		c.do(Descriptor{Op: OpRelease, Handle: sent.Value})
	}
	for what, change := range map[string]func(*Extent){
		"another place": func(e *Extent) { e.Offset += 34 }, "fewer rows": func(e *Extent) { e.Rows-- }, "another type": func(e *Extent) { e.Type = gguf.Q8_1 },
	} {
		e := kinds[0].Extent
		if change(&e); find(&e).Status != statusNotHeld {
			t.Errorf("%s is found", what)
		}
	}
	file[kinds[1].Offset] ^= 1
	if got := find(&kinds[1].Extent); got.Status != statusNotHeld {
		t.Errorf("a client that has other bytes there: %v", unix.Errno(-got.Status))
	}
	file[kinds[1].Offset] ^= 1

	// The last ones go first.
	if err := GiveRoom(t.Context(), path, s.Holding.Planes-1); err != nil {
		t.Fatal(err)
	}
	if h := d.Status().Holding; h.Tensors != len(kinds)-1 || h.GivenUp != 1 || h.Planes >= s.Holding.Planes || d.Status().PoolUsed >= s.PoolUsed {
		t.Errorf("with less room: %+v", *h)
	}
	if _, status := product(handles[3], kinds[3].Rows); status != statusGone {
		t.Errorf("a product with what is gone: %v", unix.Errno(-status))
	}
	if got := c.do(Descriptor{Op: OpPin, Handle: handles[3]}); got.Status == 0 {
		t.Error("what is gone is pinned")
	}
	if _, status := product(handles[0], kinds[0].Rows); status != 0 {
		t.Errorf("a product with what is held: %v", unix.Errno(-status))
	}
	d.Room(0)
	if s := d.Status(); s.Holding.Tensors != 0 || s.PoolUsed != 0 {
		t.Errorf("without room: %+v, %d bytes of the pool", *s.Holding, s.PoolUsed)
	}
	d.Room(16 << 20)
	settled(len(kinds))
	if got := find(&kinds[3].Extent); got.Status != 0 {
		t.Errorf("what came back is not found: %v", unix.Errno(-got.Status))
	}
	for _, h := range handles {
		c.do(Descriptor{Op: OpRelease, Handle: h})
	}

	// A file that was written to is another.
	if err := os.Chtimes(name, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if got := find(&kinds[0].Extent); got.Status != statusNotHeld {
		t.Errorf("of a file that was changed: %v", unix.Errno(-got.Status))
	}
	stop()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("Hold: %v", err)
	}
	d.Room(0)
	c.close()
	waitFor(t, d, func(s Status) bool { return s.Clients == 0 })
	if s := d.Status(); s.PoolUsed != 0 || s.PoolExtents != 1 {
		t.Errorf("%d bytes of the pool are left, in %d extents", s.PoolUsed, s.PoolExtents)
	}
}

// TestHoldRefused: what is no matrix of the file is not read.
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
		if err := d.Hold(t.Context(), f, []Tensor{{what, []Extent{e}}}, Form{Bound: 15, Layout: trit.TwoBit}); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
