package device

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/fabric"
	"tensorcast/gguf"
)

// newStoreAndPool makes what an executor needs.
func newStoreAndPool(f *testing.F) (*store, *fabric.Pool) {
	s, err := newStore(1<<20, 1<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	p := fabric.NewPool(2)
	context.AfterFunc(f.Context(), p.Close)
	return s, p
}

// FuzzDescriptors executes whatever a client may write to its ring and its arena. There must be no crash, and
// nothing may be left in the end.
func FuzzDescriptors(f *testing.F) {
	var b [DescriptorBytes]byte
	var seed []byte
	for _, d := range []Descriptor{
		{Op: OpPlanes, Rows: 3, Cols: 7, Planes: 2},
		{Op: OpProduct, Handle: 1, Rows: 3, Cols: 7, N: 2, X: 64, XStride: 8, Y: 128, YStride: 12,
			XType: TypeInt8, YType: TypeInt32},
		{Op: OpProduct, Flags: FlagDegrade, Handle: 1, Rows: 3, Cols: 7, N: 1, X: 64, Y: 128,
			XType: TypeFloat32, YType: TypeFloat32, Block: 32},
		{Op: OpPin, Handle: 1},
		{Op: OpFind, W: 64, WBytes: 3 * 4 * 34, X: 1, XStride: 2, Scale: 3, Rows: 3, Cols: 128,
			XType: uint32(gguf.Q8_0)},
		{Op: OpPlanes, Flags: FlagScales | FlagTwoBit, Rows: 3, Cols: 70, Planes: 1, Block: 64, Scale: 512},
		{Op: OpRelease, Handle: 1},
		{Op: OpBlocks, WBytes: 3 * 2 * 18, Rows: 3, Cols: 128, XType: uint32(gguf.Q2_0), W: 64},
		{Op: OpBlocks, WBytes: 3 * 4 * 34, Rows: 3, Cols: 128, XType: uint32(gguf.Q8_0), W: 64},
		{Op: OpBlocks, Flags: FlagFast | FlagTwoBit, WBytes: 3 * 128 * 2, Rows: 3, Cols: 128,
			XType: uint32(gguf.F16), W: 64},
		{Op: OpBlocks, WBytes: 3 * 54, Rows: 3, Cols: 256, XType: uint32(gguf.TQ1_0), W: 64},
		{Op: OpProduct, Handle: 3, Rows: 3, Cols: 128, N: 5, X: 1024, XStride: 512, Y: 8192, YStride: 12,
			XType: TypeFloat32, YType: TypeFloat32, Block: 32},
		{Op: OpProduct, Handle: 4, Rows: 3, Cols: 128, N: 5, X: 1024, XStride: 512, Y: 8192, YStride: 12,
			XType: TypeFloat32, YType: TypeFloat32, Block: 32},
		{Op: OpProduct, Handle: 5, Rows: 3, Cols: 128, N: 1, X: 1024, Y: 8192, XType: TypeFloat32,
			YType: TypeFloat32, Block: 32},
	} {
		d.Encode(&b)
		seed = append(seed, b[:]...)
	}
	f.Add(seed, []byte{121, 121, 0, 242})
	_, frame := frame(f, 3, 3, 70, 2)
	d := Descriptor{Op: OpFrame, WBytes: uint64(len(frame))}
	d.Encode(&b)
	f.Add(b[:], frame)
	s, p := newStoreAndPool(f)
	f.Fuzz(func(t *testing.T, jobs, arena []byte) {
		e := executor{arena: make([]byte, 64<<10), store: s, pool: p, workers: 2, tokens: new(atomic.Uint64),
			handles: map[uint64]*handle{}}
		copy(e.arena, arena)
		for n := 0; len(jobs) >= DescriptorBytes && n < 32; n++ {
			var d Descriptor
			var c Completion
			if d.decode((*[DescriptorBytes]byte)(jobs)) {
				e.execute(&d, &c, func() bool { return false })
			}
			jobs = jobs[DescriptorBytes:]
		}
		e.close()
		if s.pool.Used() != 0 || s.hostBytes != 0 || len(s.uploads) != 0 {
			t.Errorf("%d bytes in the pool, %d on the host, %d weights; want none", s.pool.Used(), s.hostBytes,
				len(s.uploads))
		}
	})
}

// FuzzRing has a client write anything to its memory while the device serves it. The device must drop the
// client or go on, and nothing may be left in the end. Each four bytes of moves are an offset and what is
// written there.
func FuzzRing(f *testing.F) {
	f.Add(uint8(1), []byte{wordSubmitted / 4, 0, 3, 0, wordDoorbell / 4, 0, 1, 0}, []byte{})
	f.Add(uint8(3), []byte{wordSubmitted / 4, 0, 255, 255, wordReaped / 4, 0, 9, 0, wordAsleep / 4, 0, 7, 0,
		wordTaken / 4, 0, 1, 1}, []byte{0, 0, 0, 0})
	var b [DescriptorBytes]byte
	d := Descriptor{Op: OpBlocks, WBytes: 3 * 2 * 18, Rows: 3, Cols: 128, XType: uint32(gguf.Q2_0)}
	d.Encode(&b)
	f.Add(uint8(1), []byte{wordSubmitted / 4, 0, 1, 0}, b[:])
	s, p := newStoreAndPool(f)
	f.Fuzz(func(t *testing.T, entries uint8, moves, jobs []byte) {
		var counts jobCounts
		c, err := newClient(16<<10, 2<<(entries%4))
		if err != nil {
			t.Fatal(err)
		}
		c.counts = &counts
		e := &c.executor
		e.store, e.pool, e.workers, e.tokens = s, p, 2, &counts.tokens
		copy(c.submissions, jobs)
		broke := make(chan error, 1)
		go func() { broke <- c.run() }() // until c.stop
		for n := 0; len(moves) >= 4 && n < 64; n++ {
			at := int(binary.LittleEndian.Uint16(moves)) * 4 % len(c.memory)
			wordAt(c.memory, at).Store(uint32(int32(int16(binary.LittleEndian.Uint16(moves[2:])))))
			wakeAll(wordAt(c.memory, wordDoorbell))
			moves = moves[4:]
		}
		c.stop()
		<-broke
		if err := c.close(); err != nil {
			t.Error(err)
		}
		if s.pool.Used() != 0 || s.hostBytes != 0 || len(s.uploads) != 0 {
			t.Errorf("%d bytes in the pool, %d on the host, %d weights; want none", s.pool.Used(), s.hostBytes,
				len(s.uploads))
		}
	})
}

// FuzzHello sends anything to a device instead of a hello. A refused hello leaves no client, and others are served
// afterwards.
func FuzzHello(f *testing.F) {
	d, path := start(f, Options{PoolBytes: 1 << 20, ArenaBytes: 1 << 20, Clients: 4})
	hello := func(kind uint32, arena uint64, entries uint32) []byte {
		b := make([]byte, helloBytes)
		binary.NativeEndian.PutUint64(b[0:], Magic)
		binary.NativeEndian.PutUint32(b[8:], Version)
		binary.NativeEndian.PutUint32(b[12:], kind)
		binary.NativeEndian.PutUint64(b[16:], arena)
		binary.NativeEndian.PutUint32(b[24:], entries)
		return b
	}
	f.Add(hello(kindOpen, 4096, 8))
	f.Add(hello(kindStatus, 0, 0))
	f.Add(hello(kindOpen, 1<<63, 1<<31))
	f.Add(hello(9, 4096, 3))
	f.Add([]byte("a word"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			t.Skip()
		}
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if len(b) == 0 {
			return // an empty packet looks like an end
		}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		answer, oob := make([]byte, 64<<10), make([]byte, 64)
		n, rights, _, _, err := c.ReadMsgUnix(answer, oob)
		if err != nil {
			t.Fatalf("%x: no answer: %v", b, err)
		}
		if n == 0 || (rights > 0 && (n != helloBytes || len(b) != helloBytes)) {
			t.Errorf("%x: an answer of %d bytes with %d bytes of rights", b, n, rights)
		}
		if rights > 0 {
			m, err := unix.ParseSocketControlMessage(oob[:rights])
			if err != nil {
				t.Fatal(err)
			}
			for i := range m {
				fds, err := unix.ParseUnixRights(&m[i])
				if err != nil {
					t.Fatal(err)
				}
				for _, fd := range fds {
					_ = unix.Close(fd)
				}
			}
		}
		_ = c.Close()
		// Earlier clients may still be leaving.
		for end := time.Now().Add(10 * time.Second); d.Status().Clients > 2; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v", d.Status())
			}
		}
		if _, err := Ask(t.Context(), path); err != nil {
			t.Error(err)
		}
	})
}

// FuzzFrame uploads anything as a frame.
func FuzzFrame(f *testing.F) {
	_, b := frame(f, 1, 5, 130, 3)
	f.Add(b)
	f.Add(b[:100])
	s, p := newStoreAndPool(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		e := executor{arena: append(make([]byte, 0, len(b)+64), b...), store: s, pool: p, workers: 2,
			tokens: new(atomic.Uint64), handles: map[uint64]*handle{}}
		var c Completion
		e.execute(&Descriptor{Op: OpFrame, WBytes: uint64(len(b))}, &c, func() bool { return false })
		if (c.Status == 0) != (len(e.handles) == 1) {
			t.Errorf("status %d, %d handles", c.Status, len(e.handles))
		}
		e.close()
		if s.pool.Used() != 0 || s.hostBytes != 0 || len(s.uploads) != 0 {
			t.Errorf("%d bytes in the pool, %d on the host, %d weights; want none", s.pool.Used(), s.hostBytes,
				len(s.uploads))
		}
	})
}
