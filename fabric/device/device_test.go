package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/fabric"
	"tensorcast/fabric/frametest"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
	"tensorcast/gguf/half"
)

var kills = flag.Int("kills", 60, "clients that TestKilledClients kills")

// trits are n random trits.
func trits(r *rand.Rand, n int) []int8 {
	t := make([]int8, n)
	for i := range t {
		t[i] = int8(r.IntN(3) - 1)
	}
	return t
}

// packed packs trits as a PT-5 stream.
func packed(t []int8) []byte {
	b := make([]byte, trit.PT5.RowBytes(len(t)))
	trit.PT5.Pack(b, t)
	return b
}

// upload puts planes at the start of the arena and uploads them.
func upload(t testing.TB, c *testClient, rows, cols int, planes ...[]int8) uint64 {
	t.Helper()
	at := 0
	for _, p := range planes {
		at += copy(c.arena[at:], packed(p))
	}
	r := c.do(Descriptor{Op: OpPlanes, Rows: uint32(rows), Cols: uint32(cols), Planes: uint32(len(planes))})
	if r.Status != 0 {
		t.Fatalf("upload: %v", unix.Errno(-r.Status))
	}
	return r.Value
}

// TestIntegers multiplies planes without scales by integers of both types: results are exact.
func TestIntegers(t *testing.T) {
	_, path := start(t, Options{PoolBytes: 64 << 20})
	c, err := dial(path, 8<<20, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	r := rand.New(rand.NewPCG(1, 2))
	const x, y = 4 << 20, 6 << 20
	for _, shape := range [][4]int{{1, 1, 1, 1}, {3, 7, 2, 1}, {5, 321, 1, 2}, {64, 1000, 70, 3}, {257, 333, 3, 4}} {
		rows, cols, n, count := shape[0], shape[1], shape[2], shape[3]
		weights := make([]int64, rows*cols)
		var planes [][]int8
		for p, f := 0, int64(1); p < count; p, f = p+1, f*3 {
			planes = append(planes, trits(r, rows*cols))
			for i, v := range planes[p] {
				weights[i] += f * int64(v)
			}
		}
		h := upload(t, c, rows, cols, planes...)
		for _, of := range []uint32{TypePT5, TypeInt8} {
			in := make([][]int8, n)
			stride := cols + 3
			for i := range in {
				in[i] = trits(r, cols)
				if of == TypeInt8 {
					for j := range in[i] {
						in[i][j] = int8(r.IntN(256) - 128)
					}
					for j, v := range in[i] {
						c.arena[x+i*stride+j] = byte(v)
					}
				} else {
					copy(c.arena[x+i*stride:], packed(in[i]))
				}
			}
			got := c.do(Descriptor{Op: OpProduct, Tag: 77, Handle: h, Rows: uint32(rows), Cols: uint32(cols),
				N: uint32(n), X: x, XStride: uint64(stride), Y: y,
				YStride: uint64(4*rows + 8), XType: of, YType: TypeInt32})
			if got.Status != 0 || got.Tag != 77 || got.Planes != uint32(count) || got.Ops != uint64(rows*cols*n*count) {
				t.Fatalf("%v: %+v, want tag 77, %d planes, %d operations", shape, got, count, rows*cols*n*count)
			}
			zeros := 0
			for _, p := range planes {
				for _, v := range p {
					if v == 0 {
						zeros++
					}
				}
			}
			if got.Zeros != uint64(zeros*n) {
				t.Errorf("%v: %d zeros, want %d", shape, got.Zeros, zeros*n)
			}
			for i := range in {
				for row := range rows {
					want := int64(0)
					for j, v := range in[i] {
						want += int64(v) * weights[row*cols+j]
					}
					if v := int32(binary.NativeEndian.Uint32(c.arena[y+i*(4*rows+8)+4*row:])); int64(v) != want {
						t.Fatalf("%v, type %d, vector %d, row %d: %d, want %d", shape, of, i, row, v, want)
					}
				}
			}
		}
		for _, want := range []int32{0, statusNoHandle} {
			if r := c.do(Descriptor{Op: OpRelease, Handle: h}); r.Status != want {
				t.Errorf("release: status %d, want %d", r.Status, want)
			}
		}
	}
	if st, err := Ask(t.Context(), path); err != nil || st.PoolUsed != 0 || st.Weights != 0 ||
		st.Clients != 1 || st.Products != 10 || st.PoolExtents != 1 {
		t.Errorf("status %+v, error %v; want an empty pool, one client, 10 products", st, err)
	}
}

// frame returns a matrix with scales, and its frame.
func frame(t testing.TB, seed uint64, rows, cols, planes int) (*fabric.Matrix, []byte) {
	r := rand.New(rand.NewPCG(seed, 3))
	m := &fabric.Matrix{Rows: rows, Cols: cols, Layout: trit.PT5Striped, Terms: make([]fabric.Term, 1)}
	row := m.Layout.RowBytes(cols)
	for range planes {
		b := make([]byte, rows*row)
		for i := range rows {
			m.Layout.Pack(b[i*row:(i+1)*row], trits(r, cols))
		}
		m.Terms[0].Planes = append(m.Terms[0].Planes, b)
	}
	half := make([]uint16, rows*((cols+63)/64))
	for i := range half {
		half[i] = 0x2c00 + uint16(r.IntN(1024))
	}
	m.Terms[0].Scales = fabric.Scales{Block: 64, Half: half}
	return m, frametest.Encode(t, "a tensor", m)
}

// TestFrames: two clients upload one frame, which is kept once, and products are those of package fabric.
func TestFrames(t *testing.T) {
	d, path := start(t, Options{PoolBytes: 64 << 20})
	var clients [2]*testClient
	for i := range clients {
		c, err := dial(path, 8<<20, 4)
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		clients[i] = c
	}
	m, b := frame(t, 1, 130, 640, 2)
	x := make([]float32, m.Cols)
	r := rand.New(rand.NewPCG(5, 5))
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	o, err := fabric.NewOperand(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		copy(c.arena, b)
		up := c.do(Descriptor{Op: OpFrame, WBytes: uint64(len(b))})
		if up.Status != 0 {
			t.Fatal(unix.Errno(-up.Status))
		}
		for i, v := range x {
			binary.NativeEndian.PutUint32(c.arena[1<<20+4*i:], math.Float32bits(v))
		}
		for _, block := range []int{32, 256} {
			a, err := fabric.NewActivations(m.Cols, block)
			if err != nil {
				t.Fatal(err)
			}
			a.Quantize(x)
			want := make([]float32, m.Rows)
			o.GEMV(want, a, &fabric.Scratch{})
			job := Descriptor{Op: OpProduct, Handle: up.Value, Rows: 130, Cols: 640, N: 1, X: 1 << 20,
				Y: 2 << 20, XType: TypeFloat32, YType: TypeFloat32, Block: uint32(block)}
			check := func(what string) {
				t.Helper()
				if r := c.do(job); r.Status != 0 {
					t.Fatal(what, unix.Errno(-r.Status))
				}
				for i := range want {
					if got := math.Float32frombits(binary.NativeEndian.Uint32(c.arena[2<<20+4*i:])); got != want[i] {
						t.Fatalf("%s: row %d: %v, want %v", what, i, got, want[i])
					}
				}
			}
			check("float32")
			job.XType, job.Flags, job.Scale, job.X = TypeInt8, FlagScales, 3<<20, 4<<20
			for i, v := range a.Q[:m.Cols] {
				c.arena[4<<20+i] = byte(v)
			}
			for i, v := range a.Scale {
				binary.NativeEndian.PutUint32(c.arena[3<<20+4*i:], math.Float32bits(v))
			}
			check("int8 with factors")
		}
	}
	if st := d.Status(); st.Weights != 1 || st.Shared != 1 {
		t.Errorf("two clients with one frame: %+v, want one weight, shared once", st)
	}
	clients[0].close()
	waitFor(t, d, func(s Status) bool { return s.Clients == 1 && s.Weights == 1 })
	clients[1].close()
	waitFor(t, d, func(s Status) bool {
		return s.Clients == 0 && s.Weights == 0 && s.PoolUsed == 0 &&
			s.HostBytes == 0
	})
}

// waitFor waits until a device has a status, for at most 20 s.
func waitFor(t testing.TB, d *Device, ok func(Status) bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(d.Status()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after 20 s, the status is %+v", d.Status())
		}
	}
}

// TestResidency has three weights of three planes, 16 KiB each, and a pool for five planes.
func TestResidency(t *testing.T) {
	d, path := start(t, Options{PoolBytes: 5 * 16384, HostBytes: 1 << 20})
	c, err := dial(path, 1<<20, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	r := rand.New(rand.NewPCG(7, 7))
	const rows, cols = 256, 320
	var handles []uint64
	var planes [3][3][]int8
	for i := range planes {
		for p := range planes[i] {
			planes[i][p] = trits(r, rows*cols)
		}
		handles = append(handles, upload(t, c, rows, cols, planes[i][:]...))
	}
	in := make([]int8, cols)
	for i := range in {
		in[i] = int8(r.IntN(20) - 10)
		c.arena[512<<10+i] = byte(in[i])
	}
	product := func(i int, flags uint32) Completion {
		t.Helper()
		got := c.do(Descriptor{Op: OpProduct, Flags: flags, Handle: handles[i], Rows: rows, Cols: cols, N: 1,
			X: 512 << 10, Y: 600 << 10, XType: TypeInt8, YType: TypeInt32})
		if got.Status != 0 {
			t.Fatal(unix.Errno(-got.Status))
		}
		for row := range rows {
			want, f := 0, 1
			for p := range 3 {
				for j, v := range in {
					if p >= 3-int(got.Planes) {
						want += f * int(v) * int(planes[i][p][row*cols+j])
					}
				}
				f *= 3
			}
			if v := int32(binary.NativeEndian.Uint32(c.arena[600<<10+4*row:])); int(v) != want {
				t.Fatalf("weight %d with %d planes, row %d: %d, want %d", i, got.Planes, row, v, want)
			}
		}
		return got
	}
	// The last upload has all of its planes, the others only their highest.
	for i, want := range []uint32{1, 1, 3} {
		if got := product(i, FlagDegrade); got.Planes != want {
			t.Errorf("weight %d: %d planes, want %d", i, got.Planes, want)
		}
	}
	if s := d.Status(); s.Evictions != 4 || s.Degraded != 2 || s.PoolUsed != 5*16384 {
		t.Errorf("%+v, want 4 evictions, 2 degraded products, a full pool", s)
	}
	for range 2 {
		for i := range handles {
			if got := product(i, 0); got.Planes != 3 {
				t.Errorf("weight %d: %d planes, want 3", i, got.Planes)
			}
		}
	}
	// Pinned planes stay.
	if r := c.do(Descriptor{Op: OpPin, Handle: handles[0]}); r.Status != 0 {
		t.Fatal(r.Status)
	}
	if r := c.do(Descriptor{Op: OpPin, Handle: handles[1]}); r.Status != statusNoMemory {
		t.Errorf("pinned more than there is room for: status %d, want %d", r.Status, statusNoMemory)
	}
	if r := c.do(Descriptor{Op: OpProduct, Handle: handles[1], Rows: rows, Cols: cols, N: 1, X: 512 << 10,
		Y: 600 << 10, XType: TypeInt8, YType: TypeInt32}); r.Status != statusNoMemory {
		t.Errorf("a product without room: status %d, want %d", r.Status, statusNoMemory)
	}
	misses := d.Status().Misses
	product(0, 0)
	if got := d.Status().Misses; got != misses {
		t.Errorf("%d misses of a pinned weight, want 0", got-misses)
	}
	for _, want := range []int32{0, statusInvalid} {
		if r := c.do(Descriptor{Op: OpUnpin, Handle: handles[0]}); r.Status != want {
			t.Errorf("unpin: status %d, want %d", r.Status, want)
		}
	}
	product(1, 0)
}

// TestRefused has parameters and descriptors with something wrong in each.
func TestRefused(t *testing.T) {
	_, path := start(t, Options{PoolBytes: 8 << 20, ArenaBytes: 1 << 20})
	for _, bad := range [][2]uint64{{0, 8}, {2 << 20, 8}, {math.MaxUint64, 8}, {4096, 0}, {4096, 3}, {4096, 8192}} {
		if _, err := dial(path, bad[0], uint32(bad[1])); !errors.Is(err, unix.EINVAL) {
			t.Errorf("arena and entries %v: error %v, want EINVAL", bad, err)
		}
	}
	c, err := dial(path, 1<<20, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	h := upload(t, c, 3, 7, make([]int8, 21))
	good := Descriptor{Op: OpProduct, Handle: h, Rows: 3, Cols: 7, N: 1, X: 4096, Y: 8192, XType: TypeInt8,
		YType: TypeInt32}
	for _, b := range []struct {
		what   string
		change func(*Descriptor)
		status int32
	}{
		{"nothing wrong", func(d *Descriptor) {}, 0},
		{"an operation that is none", func(d *Descriptor) { d.Op = opEnd }, statusInvalid},
		{"a flag that is none", func(d *Descriptor) { d.Flags = flagsEnd }, statusInvalid},
		{"another's handle", func(d *Descriptor) { d.Handle++ }, statusNoHandle},
		{"another shape", func(d *Descriptor) { d.Rows++ }, statusInvalid},
		{"no vectors", func(d *Descriptor) { d.N = 0 }, statusInvalid},
		{"all vectors", func(d *Descriptor) { d.N = math.MaxUint32 }, statusInvalid},
		{"x outside", func(d *Descriptor) { d.X = 1<<20 - 6 }, statusFault},
		{"x wraps", func(d *Descriptor) { d.X = math.MaxUint64 - 2 }, statusFault},
		{"y outside", func(d *Descriptor) { d.Y = 1 << 20 }, statusFault},
		{"a stride that wraps", func(d *Descriptor) { d.N, d.XStride, d.YStride = 4, 1<<62, 12 }, statusFault},
		{"vectors in each other", func(d *Descriptor) { d.N, d.XStride, d.YStride = 4, 6, 12 }, statusFault},
		{"float32 to integers", func(d *Descriptor) { d.XType, d.Block = TypeFloat32, 32 }, statusInvalid},
		{"blocks of 33", func(d *Descriptor) { d.XType, d.YType, d.Block = TypeFloat32, TypeFloat32, 33 },
			statusInvalid},
		{"planes of no rows", func(d *Descriptor) { d.Op, d.Rows, d.Planes = OpPlanes, 0, 1 }, statusInvalid},
		{"planes outside", func(d *Descriptor) { d.Op, d.Rows, d.Cols, d.Planes = OpPlanes, 1, 6<<20, 1 }, statusFault},
		{"too large planes", func(d *Descriptor) { d.Op, d.Rows, d.Cols, d.Planes = OpPlanes, 1<<20, 1, 6 },
			statusNoMemory},
		{"no frame", func(d *Descriptor) { *d = Descriptor{Op: OpFrame, WBytes: 4096} }, statusBadFrame},
	} {
		d := good
		b.change(&d)
		if got := c.do(d); got.Status != b.status {
			t.Errorf("%s: status %d, want %d", b.what, got.Status, b.status)
		}
	}
	// A sum that float32 may not hold is refused.
	const cols = 1 << 18
	h = upload(t, c, 1, cols, slices.Repeat([]int8{1}, cols))
	for i := range cols {
		c.arena[512<<10+i] = 127
	}
	big := Descriptor{Op: OpProduct, Handle: h, Rows: 1, Cols: cols, N: 1, X: 512 << 10, Y: 0, XType: TypeInt8,
		YType: TypeInt32}
	if r := c.do(big); r.Status != statusRange {
		t.Errorf("a large sum: status %d, want %d", r.Status, statusRange)
	}
}

// TestCancel cancels a job that has not begun.
func TestCancel(t *testing.T) {
	d, path := start(t, Options{PoolBytes: 8 << 20})
	c, err := dial(path, 1<<20, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	// The ring of completions is full. A job that is submitted then waits, and can be cancelled.
	for range 4 {
		c.submit(&Descriptor{})
	}
	waitFor(t, d, func(s Status) bool { return s.Jobs == 4 })
	c.submit(&Descriptor{Tag: 9})
	wordAt(c.memory, int(c.subs)+descriptorCancel).Store(1)
	for range 4 {
		if r := c.wait(); r.Status != 0 {
			t.Errorf("%+v, want status 0", r)
		}
	}
	if r := c.wait(); r.Tag != 9 || r.Status != statusCancelled {
		t.Errorf("%+v, want tag 9 and status %d", r, statusCancelled)
	}
	if r := c.do(Descriptor{Tag: 10}); r.Tag != 10 || r.Status != 0 {
		t.Errorf("%+v, want tag 10 and status 0", r)
	}
}

// TestBrokenRing: a client with an impossible ring is dropped.
func TestBrokenRing(t *testing.T) {
	d, path := start(t, Options{PoolBytes: 8 << 20})
	for _, w := range []int{wordSubmitted, wordReaped} {
		c, err := dial(path, 1<<20, 4)
		if err != nil {
			t.Fatal(err)
		}
		wordAt(c.memory, w).Store(1 << 30)
		c.ring()
		var b [1]byte
		if n, _ := c.conn.Read(b[:]); n != 0 {
			t.Errorf("%d bytes from the device, want an end", n)
		}
		c.close()
	}
	waitFor(t, d, func(s Status) bool { return s.Clients == 0 })
}

// TestOneDevice: a socket has one device, in a private directory, and as many clients as its options allow.
func TestOneDevice(t *testing.T) {
	_, path := start(t, Options{PoolBytes: 4096, Clients: 1})
	if _, err := Listen(path, Options{PoolBytes: 4096}); !errors.Is(err, ErrRunning) {
		t.Errorf("a second device: error %v, want %v", err, ErrRunning)
	}
	c, err := dial(path, 4096, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if _, err := dial(path, 4096, 2); !errors.Is(err, unix.EUSERS) {
		t.Errorf("a second client of one: error %v, want EUSERS", err)
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(open+"/s", Options{PoolBytes: 4096}); err == nil {
		t.Error("a socket in a directory that others can enter is accepted")
	}
	if _, err := Ask(t.Context(), open+"/s"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Ask without a device: error %v, want %v", err, ErrNotRunning)
	}
}

// TestIdle: a device without clients ends by itself.
func TestIdle(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := Listen(dir+"/s", Options{PoolBytes: 4096, Idle: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := errors.Join(d.Serve(ctx), d.Close()); err != nil || ctx.Err() != nil {
		t.Errorf("Serve: error %v; the context: %v; want none", err, ctx.Err())
	}
}

// TestKilledClients: clients that hang up in the middle of anything leave nothing behind, and do not disturb
// another client.
func TestKilledClients(t *testing.T) {
	d, path := start(t, Options{PoolBytes: 64 << 20})
	worker, err := dial(path, 1<<20, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.close()
	r := rand.New(rand.NewPCG(11, 11))
	const rows, cols = 200, 300
	w := trits(r, rows*cols)
	h := upload(t, worker, rows, cols, w)
	in := trits(r, cols)
	copy(worker.arena[512<<10:], packed(in))
	want := make([]int32, rows)
	for i := range want {
		for j, v := range in {
			want[i] += int32(v) * int32(w[i*cols+j])
		}
	}
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	waitFor(t, d, func(s Status) bool { return s.Clients == 1 })
	fds, routines, used := files(), runtime.NumGoroutine(), d.Status().PoolUsed
	for i := range *kills {
		c, err := dial(path, 1<<20, 8)
		if err != nil {
			t.Fatal(err)
		}
		h2 := upload(t, c, rows, cols, trits(r, rows*cols))
		c.do(Descriptor{Op: OpPin, Handle: h2})
		job := Descriptor{Op: OpProduct, Handle: h2, Rows: rows, Cols: cols, N: 64, X: 4096, XStride: cols,
			Y: 200 << 10, YStride: 4 * rows, XType: TypeInt8, YType: TypeInt32}
		for range i % 8 {
			c.submit(&job)
		}
		c.close()
		got := worker.do(Descriptor{Op: OpProduct, Handle: h, Rows: rows, Cols: cols, N: 1, X: 512 << 10,
			Y: 600 << 10, XType: TypePT5, YType: TypeInt32})
		if got.Status != 0 {
			t.Fatalf("after %d clients: %+v", i+1, got)
		}
		for j, v := range want {
			if g := int32(binary.NativeEndian.Uint32(worker.arena[600<<10+4*j:])); g != v {
				t.Fatalf("after %d clients: row %d: %d, want %d", i+1, j, g, v)
			}
		}
	}
	waitFor(t, d, func(s Status) bool {
		return s.Clients == 1 && s.Weights == 1 && s.PoolUsed == used && s.HostBytes == 0
	})
	end := time.Now().Add(10 * time.Second)
	for ; files() > fds || runtime.NumGoroutine() > routines; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d open files and %d goroutines, want %d and %d", files(), runtime.NumGoroutine(), fds, routines)
		}
	}
}

// BenchmarkEmpty is the round trip of a job that does nothing. The device sleeps before each.
func BenchmarkEmpty(b *testing.B) {
	_, path := start(b, Options{PoolBytes: 4096})
	c, err := dial(path, 4096, 8)
	if err != nil {
		b.Fatal(err)
	}
	defer c.close()
	var times []time.Duration
	for b.Loop() {
		for wordAt(c.memory, wordAsleep).Load() == 0 {
			runtime.Gosched()
		}
		time.Sleep(100 * time.Microsecond)
		begun := time.Now()
		c.do(Descriptor{})
		times = append(times, time.Since(begun))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "us-median")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e3, "us-p99")
}

// TestBlocks: blocks of Q2_0 are multiplied as package fabric does it, are shared, and come back after they
// were evicted.
func TestBlocks(t *testing.T) {
	const rows, cols, n = 150, 192, 6
	d, path := start(t, Options{PoolBytes: 8 << 10}) // room for one of the two below
	c, err := dial(path, 1<<20, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	r := rand.New(rand.NewPCG(5, 6))
	upload := func(blocks []byte) uint64 {
		copy(c.arena, blocks)
		got := c.do(Descriptor{Op: OpBlocks, WBytes: uint64(len(blocks)), Rows: rows, Cols: cols,
			XType: uint32(gguf.Q2_0)})
		if got.Status != 0 {
			t.Fatal(unix.Errno(-got.Status))
		}
		return got.Value
	}
	var handles []uint64
	var all [][]byte
	for range 2 {
		blocks := make([]byte, rows*cols/64*18)
		for i := range blocks {
			blocks[i] = byte(r.Uint32())
			if i%18 == 1 {
				blocks[i] = 0x2c // a scale of some 1/16
			}
		}
		all = append(all, blocks)
		handles = append(handles, upload(blocks))
	}
	upload(all[1])
	if s := d.Status(); s.Shared != 1 || s.Weights != 2 || s.Evictions == 0 {
		t.Errorf("%+v, want two weights, one of them shared, and evictions", s)
	}
	const x, y = 64 << 10, 128 << 10
	var vectors []*fabric.Activations
	for i := range n {
		v := make([]float32, cols)
		for j := range v {
			v[j] = r.Float32() - 0.5
			binary.NativeEndian.PutUint32(c.arena[x+4*(i*cols+j):], math.Float32bits(v[j]))
		}
		a, err := fabric.NewActivations(cols, 32)
		if err != nil {
			t.Fatal(err)
		}
		a.Quantize(v)
		vectors = append(vectors, a)
	}
	for i, h := range handles {
		got := c.do(Descriptor{Op: OpProduct, Handle: h, Rows: rows, Cols: cols, N: n, X: x, XStride: 4 * cols,
			Y: y, YStride: 4 * rows, XType: TypeFloat32, YType: TypeFloat32, Block: 32})
		zeros := 0
		for b := 0; b < len(all[i]); b++ {
			for k := 0; k < 8 && b%18 >= 2; k += 2 {
				if all[i][b]>>k&3 == 1 {
					zeros++
				}
			}
		}
		if got.Status != 0 || got.Ops != rows*cols*n || got.Zeros != uint64(zeros*n) ||
			got.Bytes != uint64(len(all[i])) {
			t.Errorf("%+v, want %d zeros", got, zeros*n)
		}
		o, err := fabric.NewCodes(rows, cols, all[i])
		if err != nil {
			t.Fatal(err)
		}
		want := make([][]float32, n)
		for j := range want {
			want[j] = make([]float32, rows)
		}
		o.GEMM(want, vectors, &fabric.Scratch{})
		for j, w := range want {
			for k, v := range w {
				if f := math.Float32frombits(binary.NativeEndian.Uint32(c.arena[y+4*(j*rows+k):])); f != v {
					t.Fatalf("weights %d, vector %d, row %d: %v, want %v", i, j, k, f, v)
				}
			}
		}
	}
	for _, bad := range []Descriptor{
		{Op: OpBlocks, Rows: rows, Cols: cols, XType: uint32(gguf.I32)},
		{Op: OpBlocks, Rows: rows, Cols: cols, XType: 1000},
		{Op: OpBlocks, WBytes: rows * cols / 32 * 34, Rows: rows, Cols: cols, XType: uint32(gguf.Q8_0),
			Flags: FlagFast | FlagBalanced},
		{Op: OpBlocks, Rows: rows, Cols: 100, XType: uint32(gguf.Q2_0)},
		{Op: OpBlocks, Rows: 0, Cols: cols, XType: uint32(gguf.Q2_0)},
		{Op: OpBlocks, WBytes: rows * cols / 64 * 18, Rows: rows, Cols: cols, XType: uint32(gguf.Q2_0), W: 1<<20 - 64},
		{Op: OpBlocks, WBytes: rows*cols/64*18 - 1, Rows: rows, Cols: cols, XType: uint32(gguf.Q2_0)},
		{Op: OpBlocks, WBytes: 1 << 42 / 64 * 18 * 64, Rows: 1 << 24, Cols: 1 << 24, XType: uint32(gguf.Q2_0)},
		{Op: OpProduct, Handle: handles[0], Rows: rows, Cols: cols, N: 1, X: x, Y: y, XType: TypeInt8,
			YType: TypeInt32},
	} {
		if got := c.do(bad); got.Status >= 0 {
			t.Errorf("%+v: status %d, want an error", bad, got.Status)
		}
	}
}

// TestBlocksAsPlanes: weights of other types become planes. They are exact, or, for a client that allows an
// error, as few as keep that error.
func TestBlocksAsPlanes(t *testing.T) {
	const rows, cols = 96, 512
	d, path := start(t, Options{PoolBytes: 4 << 20})
	c, err := dial(path, 1<<20, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	r := rand.New(rand.NewPCG(7, 8))
	x := make([]float32, cols)
	const xAt, yAt = 768 << 10, 800 << 10
	for i := range x {
		x[i] = float32(r.NormFloat64())
		binary.NativeEndian.PutUint32(c.arena[xAt+4*i:], math.Float32bits(x[i]))
	}
	for _, test := range []struct {
		kind     gguf.Type
		flags    uint32
		planes   uint32
		decibels float64 // least ratio of products to their error, which activations have as well
		status   int32
	}{
		{kind: gguf.TQ1_0, planes: 1, decibels: 40},
		{kind: gguf.TQ2_0, flags: FlagTwoBit, planes: 1, decibels: 40},
		{kind: gguf.TQ2_0, flags: FlagFast, planes: 1, decibels: 40},
		{kind: gguf.Q4_0, planes: 3, decibels: 40},
		{kind: gguf.Q4_K, planes: 3, decibels: 40},
		{kind: gguf.Q8_0, flags: FlagTwoBit, planes: 6, decibels: 40},
		{kind: gguf.Q8_0, flags: FlagBalanced, planes: 3, decibels: 23},
		{kind: gguf.Q8_0, flags: FlagFast | FlagTwoBit, planes: 2, decibels: 15},
		{kind: gguf.F16, flags: FlagFast, planes: 2, decibels: 15},
		{kind: gguf.F16, status: statusNoPlanes},
	} {
		name := fmt.Sprintf("%v, flags %d", test.kind, test.flags)
		blocks := randomBlocks(r, test.kind, rows*cols)
		copy(c.arena, blocks)
		up := Descriptor{Op: OpBlocks, WBytes: uint64(len(blocks)), Flags: test.flags, Rows: rows, Cols: cols,
			XType: uint32(test.kind)}
		shared := d.Status().Shared
		got := c.do(up)
		if got.Status != test.status {
			t.Errorf("%s: status %v, want %v", name, unix.Errno(-got.Status), unix.Errno(-test.status))
		}
		if got.Status != 0 {
			continue
		}
		if again := c.do(up); again.Status != 0 || d.Status().Shared != shared+1 {
			t.Errorf("%s: the second upload: status %d, want that it shares the first", name, again.Status)
		}
		got = c.do(Descriptor{Op: OpProduct, Handle: got.Value, Rows: rows, Cols: cols, N: 1, X: xAt, Y: yAt,
			XType: TypeFloat32, YType: TypeFloat32, Block: 32})
		if got.Status != 0 || got.Planes != test.planes {
			t.Errorf("%s: %d planes, status %d; want %d planes", name, got.Planes, got.Status, test.planes)
			continue
		}
		w := make([]float32, rows*cols)
		if err := gguf.Dequantize(w, test.kind, blocks); err != nil {
			t.Fatal(err)
		}
		signal, noise := 0.0, 0.0
		for i := range rows {
			want := 0.0
			for j, v := range x {
				want += float64(v) * float64(w[i*cols+j])
			}
			off := float64(math.Float32frombits(binary.NativeEndian.Uint32(c.arena[yAt+4*i:]))) - want
			signal, noise = signal+want*want, noise+off*off
		}
		if seen := 10 * math.Log10(signal/noise); !(seen >= test.decibels) {
			t.Errorf("%s: %.1f dB, want at least %.1f", name, seen, test.decibels)
		}
	}
	// Weights that are not numbers are refused, and the device goes on.
	copy(c.arena, bytes.Repeat([]byte{0, 0x7e}, rows*cols))
	if got := c.do(Descriptor{Op: OpBlocks, WBytes: 2 * rows * cols, Flags: FlagFast, Rows: rows, Cols: cols,
		XType: uint32(gguf.F16)}); got.Status != statusBadFrame {
		t.Errorf("weights that are not numbers: status %d, want %d", got.Status, statusBadFrame)
	}
}

// randomBlocks makes n weights of a type. Their bytes are random, but scales are moderate.
func randomBlocks(r *rand.Rand, kind gguf.Type, n int) []byte {
	if kind == gguf.F16 {
		b := make([]byte, 0, 2*n)
		for range n {
			b = binary.LittleEndian.AppendUint16(b, half.Round(float32(r.NormFloat64())))
		}
		return b
	}
	size := int(kind.BlockBytes())
	b := make([]byte, n/int(kind.BlockElems())*size)
	for at := 0; at < len(b); at += size {
		block := b[at : at+size]
		for i := range block {
			switch kind {
			case gguf.TQ2_0: // four codes below 3
				for k := 0; k < 8; k += 2 {
					block[i] |= byte(r.IntN(3)) << k
				}
			case gguf.TQ1_0: // five trits, or four in the last bytes before the scale, as a fraction of 256
				code := r.IntN(243)
				if i >= 48 {
					code = 3 * (code % 81)
				}
				block[i] = byte((code*256 + 242) / 243)
			default:
				block[i] = byte(r.Uint32())
			}
		}
		const scale = 0x2c // of 1/16 and more
		switch kind {
		case gguf.TQ1_0, gguf.TQ2_0:
			block[size-1] = scale
		case gguf.Q4_K:
			block[1], block[3] = scale, scale
		default:
			block[1] = scale
		}
	}
	return b
}
