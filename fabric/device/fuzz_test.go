package device

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"tensorcast/fabric"
)

// executorFor is a client's executor with a small arena that begins with text.
func executorFor(f *testing.F) (*store, *fabric.Pool) {
	s, err := newStore(1<<20, 1<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	p := fabric.NewPool(2)
	context.AfterFunc(f.Context(), p.Close)
	return s, p
}

// FuzzDescriptors executes whatever a client may write in its ring, over whatever is in its arena: never a crash, and in the end nothing is left.
func FuzzDescriptors(f *testing.F) {
	var b [DescriptorBytes]byte
	var seed []byte
	for _, d := range []Descriptor{
		{Op: OpPlanes, Rows: 3, Cols: 7, Planes: 2},
		{Op: OpProduct, Handle: 1, Rows: 3, Cols: 7, N: 2, X: 64, XStride: 8, Y: 128, YStride: 12, XType: TypeInt8, YType: TypeInt32},
		{Op: OpProduct, Flags: FlagDegrade, Handle: 1, Rows: 3, Cols: 7, N: 1, X: 64, Y: 128, XType: TypeFloat32, YType: TypeFloat32, Block: 32},
		{Op: OpPin, Handle: 1},
		{Op: OpPlanes, Flags: FlagScales | FlagTwoBit, Rows: 3, Cols: 70, Planes: 1, Block: 64, Scale: 512},
		{Op: OpRelease, Handle: 1},
		{Op: OpBlocks, Rows: 3, Cols: 128, XType: BlocksQ2_0, W: 64},
		{Op: OpProduct, Handle: 3, Rows: 3, Cols: 128, N: 5, X: 1024, XStride: 512, Y: 8192, YStride: 12, XType: TypeFloat32, YType: TypeFloat32, Block: 32},
	} {
		d.Encode(&b)
		seed = append(seed, b[:]...)
	}
	f.Add(seed, []byte{121, 121, 0, 242})
	_, frame := frame(f, 3, 3, 70, 2)
	d := Descriptor{Op: OpFrame, WBytes: uint64(len(frame))}
	d.Encode(&b)
	f.Add(b[:], frame)
	s, p := executorFor(f)
	f.Fuzz(func(t *testing.T, jobs, arena []byte) {
		e := executor{arena: make([]byte, 64<<10), store: s, pool: p, workers: 2, tokens: new(atomic.Uint64), handles: map[uint64]*handle{}}
		copy(e.arena, arena)
		for n := 0; len(jobs) >= DescriptorBytes && n < 32; n++ {
			var d Descriptor
			var c Completion
			if d.decode((*[DescriptorBytes]byte)(jobs)) {
				e.do(&d, &c, func() bool { return false })
			}
			jobs = jobs[DescriptorBytes:]
		}
		e.close()
		if s.pool.Used() != 0 || s.host != 0 || len(s.all) != 0 {
			t.Errorf("%d bytes in the pool, %d on the host, %d weights", s.pool.Used(), s.host, len(s.all))
		}
	})
}

// FuzzFrame uploads what may be a frame.
func FuzzFrame(f *testing.F) {
	_, b := frame(f, 1, 5, 130, 3)
	f.Add(b)
	f.Add(b[:100])
	s, p := executorFor(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		e := executor{arena: append(make([]byte, 0, len(b)+64), b...), store: s, pool: p, workers: 2, tokens: new(atomic.Uint64), handles: map[uint64]*handle{}}
		var c Completion
		e.do(&Descriptor{Op: OpFrame, WBytes: uint64(len(b))}, &c, func() bool { return false })
		if (c.Status == 0) != (len(e.handles) == 1) {
			t.Errorf("status %d, %d handles", c.Status, len(e.handles))
		}
		e.close()
		if s.pool.Used() != 0 || s.host != 0 || len(s.all) != 0 {
			t.Errorf("%d bytes in the pool, %d on the host, %d weights", s.pool.Used(), s.host, len(s.all))
		}
	})
}
