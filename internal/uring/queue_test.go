package uring

// This file tests the guarantees of both implementations on the running kernel.

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forEach runs test with each implementation.
func forEach(t *testing.T, test func(t *testing.T, open func(entries uint32, opts ...Option) Queue)) {
	t.Run("io_uring", func(t *testing.T) {
		test(t, func(entries uint32, opts ...Option) Queue { return newRing(t, entries, opts...) })
	})
	t.Run("system calls", func(t *testing.T) {
		test(t, func(entries uint32, opts ...Option) Queue {
			p := newPool(entries, opts...)
			t.Cleanup(func() { p.Close() })
			return p
		})
	})
}

// newRing returns a ring that the end of the test closes. It skips the test where io_uring is
// refused, except in CI.
func newRing(t testing.TB, entries uint32, opts ...Option) *Ring {
	t.Helper()
	ring, err := New(entries, opts...)
	switch {
	case errors.Is(err, ErrRefused) && os.Getenv("CI") == "":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { ring.Close() })
	return ring
}

// createOnDisk creates a file of random content that is on the disk and not in the page cache. It
// skips the test if the directories that a test may write to are all in memory.
func createOnDisk(t testing.TB, size int64) (*os.File, []byte) {
	t.Helper()
	dir := t.TempDir()
	if isInMemory(t, dir) {
		var err error
		if dir, err = os.MkdirTemp(".", "testdata-"); err != nil {
			t.Skipf("%s is in memory, and here nothing can be written: %v", os.TempDir(), err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		if isInMemory(t, dir) {
			t.Skip("no directory on a disk: set TMPDIR to one")
		}
	}
	content := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(content)
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	return f, content
}

func isInMemory(t testing.TB, dir string) bool {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC
}

// cachedBytes returns how many bytes of a part of f are in the page cache.
func cachedBytes(t *testing.T, f *os.File, offset, length int64) int64 {
	t.Helper()
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: uint64(offset), Len: uint64(length)}, &stat, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Skipf("cachestat: %v (Linux 6.5 has it)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return int64(stat.Cache) * int64(os.Getpagesize())
}

// checkNearly checks how many bytes are cached. A kernel that reclaims what is cold (DAMON) may have taken a few pages.
func checkNearly(t *testing.T, when string, cached, want int64) {
	t.Helper()
	if cached > want || cached < want*15/16 {
		t.Errorf("%s %d bytes are cached, want %d or a few pages less", when, cached, want)
	}
}

// submit submits and fails the test unless that passes on want operations.
func submit(t *testing.T, q Queue, want int) {
	t.Helper()
	if n, err := q.Submit(); n != want || err != nil {
		t.Fatalf("Submit: %d, %v; want %d", n, err, want)
	}
}

// reap reaps and fails the test on an error.
func reap(t *testing.T, q Queue, wait int) []Completion {
	t.Helper()
	done, err := q.Reap(wait, nil)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// Many more reads than fit into the queue, of any length at any offset: each completes once, with
// the right bytes.
func TestRead(t *testing.T) {
	forEach(t, func(t *testing.T, open func(uint32, ...Option) Queue) {
		const reads, longest = 2000, 100_000
		f, content := createOnDisk(t, 4<<20+1234)
		q := open(8)

		random := rand.New(rand.NewPCG(1, 2))
		offsets, bufs := make([]int, reads), make([][]byte, reads)
		for i := range offsets {
			offsets[i] = random.IntN(len(content) - longest)
			bufs[i] = make([]byte, random.IntN(longest))
		}
		seen := make([]bool, reads)
		verify := func(done []Completion) {
			for _, c := range done {
				buf, want := bufs[c.Tag], content[offsets[c.Tag]:]
				if seen[c.Tag] {
					t.Fatalf("read %d completed twice", c.Tag)
				}
				if seen[c.Tag] = true; c.Err != nil || c.N != len(buf) || !bytes.Equal(buf, want[:len(buf)]) {
					t.Fatalf("read %d of %d bytes at %d: %d, %v, or the wrong bytes",
						c.Tag, len(buf), offsets[c.Tag], c.N, c.Err)
				}
			}
		}
		full := 0
		for i := range reads {
			for !q.Read(int(f.Fd()), bufs[i], int64(offsets[i]), uint64(i)) {
				full++
				before := q.InFlight()
				done := reap(t, q, 1)
				if len(done) == 0 || q.InFlight() != before-len(done) {
					t.Fatalf("%d in flight, %d reaped, then %d in flight", before, len(done), q.InFlight())
				}
				verify(done)
			}
		}
		if verify(reap(t, q, reads)); q.InFlight() != 0 {
			t.Errorf("InFlight = %d after waiting for all, want 0", q.InFlight())
		}
		for i, ok := range seen {
			if !ok {
				t.Errorf("read %d never completed", i)
			}
		}
		if full == 0 {
			t.Error("the queue was never full")
		}
		if done := reap(t, q, 5); len(done) != 0 {
			t.Errorf("completions %v without operations, want none", done)
		}
	})
}

// The queue takes a certain number of operations before Submit and before Reap. Reap submits the
// operations that it waits for.
func TestFull(t *testing.T) {
	forEach(t, func(t *testing.T, open func(uint32, ...Option) Queue) {
		f, _ := createOnDisk(t, 4096)
		q := open(4)
		fill := func() (n int) {
			for q.Read(int(f.Fd()), make([]byte, 16), 0, 0) {
				n++
			}
			return n
		}
		for range 2 {
			if n := fill(); n != 4 {
				t.Fatalf("%d operations fit before Submit, want 4", n)
			}
			submit(t, q, 4)
		}
		if n := fill(); n != 0 || q.InFlight() != 8 {
			t.Fatalf("%d more fit beside 8 in flight, now %d in flight; want 0, 8", n, q.InFlight())
		}
		if q.Fadvise(int(f.Fd()), 0, 4096, unix.FADV_WILLNEED, 0) ||
			q.Fadvise(-1, 0, 4096, unix.FADV_WILLNEED, 0) {
			t.Error("a full queue accepted advice")
		}
		if done := reap(t, q, 8); len(done) != 8 {
			t.Fatalf("reaped %d of 8", len(done))
		}
		if fill(); len(reap(t, q, 1)) == 0 {
			t.Error("Reap did not submit the queued operations")
		}
	})
}

func TestReadEndsAndErrors(t *testing.T) {
	forEach(t, func(t *testing.T, open func(uint32, ...Option) Queue) {
		f, content := createOnDisk(t, 10_000)
		badFD, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 700) // a number that is not reused soon
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(badFD)
		fd := int(f.Fd())
		q := open(16)

		// Each function queues an operation with a tag.
		type enqueue func(tag uint64) bool
		read := func(fd int, buf []byte, offset int64) enqueue {
			return func(tag uint64) bool { return q.Read(fd, buf, offset, tag) }
		}
		advise := func(fd int, offset, length int64, advice int) enqueue {
			return func(tag uint64) bool { return q.Fadvise(fd, offset, length, advice, tag) }
		}
		long := make([]byte, 8192)
		tests := []struct {
			name    string
			enqueue enqueue
			n       int
			err     error
		}{
			{"short at the end", read(fd, long, 4096), 10_000 - 4096, nil},
			{"at the end", read(fd, make([]byte, 8), 10_000), 0, nil},
			{"nothing", read(fd, nil, 0), 0, nil},
			{"descriptor closed", read(badFD, make([]byte, 8), 0), 0, unix.EBADF},
			{"descriptor negative", read(-1, make([]byte, 8), 0), 0, unix.EBADF},
			{"descriptor beyond 32 bits", read(fd+1<<32, make([]byte, 8), 0), 0, unix.EBADF},
			{"file position", read(fd, make([]byte, 8), -1), 0, unix.EINVAL},
			{"advice", advise(fd, 0, 0, unix.FADV_RANDOM), 0, nil},
			{"no such advice", advise(fd, 0, 0, 99), 0, unix.EINVAL},
			{"advice to a closed descriptor", advise(badFD, 0, 0, unix.FADV_WILLNEED), 0, unix.EBADF},
			{"advice on too much", advise(fd, 0, MaxLength+1, unix.FADV_WILLNEED), 0, unix.EINVAL},
			// The lower 32 bits of this length are 4096.
			{"advice on far too much", advise(fd, 0, 1<<32+4096, unix.FADV_WILLNEED), 0, unix.EINVAL},
			{"advice on less than nothing", advise(fd, 0, -4096, unix.FADV_WILLNEED), 0, unix.EINVAL},
			{"advice before the file", advise(fd, math.MinInt64, 1, unix.FADV_WILLNEED), 0, unix.EINVAL},
		}
		for i, test := range tests {
			if !test.enqueue(uint64(i)) {
				t.Fatalf("%s: not queued", test.name)
			}
		}
		// All are submitted at once. An operation that the kernel rejects must not stop those after it.
		done := reap(t, q, len(tests))
		if len(done) != len(tests) {
			t.Fatalf("%d of %d completed", len(done), len(tests))
		}
		for _, c := range done {
			if test := tests[c.Tag]; c.N != test.n || !errors.Is(c.Err, test.err) {
				t.Errorf("%s: %d, %v; want %d, %v", test.name, c.N, c.Err, test.n, test.err)
			}
		}
		if !bytes.Equal(long[:10_000-4096], content[4096:]) {
			t.Error("the short read has the wrong bytes")
		}
	})
}

// WILLNEED reads the pages of its range and no others. DONTNEED drops them.
func TestFadvise(t *testing.T) {
	forEach(t, func(t *testing.T, open func(uint32, ...Option) Queue) {
		const piece, pieces = 64 << 10, 64
		f, content := createOnDisk(t, 2*pieces*piece)
		q := open(16)
		if n := cachedBytes(t, f, 0, int64(len(content))); n != 0 {
			t.Fatalf("%d bytes are cached at the beginning, want 0", n)
		}

		// Every other piece, from the end.
		for i := pieces - 1; i >= 0; i-- {
			for !q.Fadvise(int(f.Fd()), int64(2*i*piece), piece, unix.FADV_WILLNEED, uint64(i)) {
				reap(t, q, 1)
			}
		}
		reap(t, q, q.InFlight())
		advised := int64(0)
		for i := range int64(pieces) {
			n := cachedBytes(t, f, 2*i*piece, piece)
			if n == 0 {
				t.Errorf("piece %d: nothing is cached", i)
			}
			advised += n
			if n := cachedBytes(t, f, (2*i+1)*piece, piece); n != 0 {
				t.Errorf("behind piece %d: %d bytes cached, want 0", i, n)
			}
		}
		checkNearly(t, "after the advice", advised, pieces*piece)

		// These reads reuse the submission entries of the advice. Nothing of the advice may remain
		// there.
		buf := make([]byte, len(content))
		for i := range 2 * pieces {
			for !q.Read(int(f.Fd()), buf[i*piece:][:piece], int64(i*piece), uint64(i)) {
				for _, c := range reap(t, q, 1) {
					if c.Err != nil {
						t.Fatal(c.Err)
					}
				}
			}
		}
		if reap(t, q, q.InFlight()); !bytes.Equal(buf, content) {
			t.Error("wrong bytes")
		}
		checkNearly(t, "after reading all", cachedBytes(t, f, 0, int64(len(content))), int64(len(content)))

		q.Fadvise(int(f.Fd()), 0, int64(len(content)), unix.FADV_DONTNEED, 7)
		if done := reap(t, q, 1); len(done) != 1 || done[0] != (Completion{Tag: 7}) {
			t.Errorf("completions of DONTNEED: %+v, want one with tag 7", done)
		}
		if n := cachedBytes(t, f, 0, int64(len(content))); n != 0 {
			t.Errorf("%d bytes are still cached, want 0", n)
		}
	})
}

// After Close with operations in flight nothing uses the buffers any more, and no descriptor is
// left. The test reads with O_DIRECT, because only then the disk itself writes to the buffers.
func TestCloseInFlight(t *testing.T) {
	forEach(t, func(t *testing.T, open func(uint32, ...Option) Queue) {
		const piece, operations, submitted = 512 << 10, 32, 24
		f, _ := createOnDisk(t, operations*piece)
		fd := openDirect(t, f)
		before := countDescriptors(t)
		memory := mapAnonymous(t, 5*operations*piece)
		buf := func(i int) []byte { return memory[i*piece:][:piece] }
		for round := range 5 {
			q := open(operations)
			for i := range operations {
				if i%4 == 0 {
					q.Fadvise(int(f.Fd()), int64(i*piece), piece, unix.FADV_WILLNEED, 0)
				} else {
					q.Read(fd, buf(round*operations+i), int64(i*piece), 0)
				}
				if i == submitted-1 {
					submit(t, q, submitted)
				}
			}
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			for i := range submitted {
				clear(buf(round*operations + i))
			}

			if q.Close() != nil || q.Read(fd, buf(0), 0, 0) || q.Fadvise(fd, 0, 1, 0, 0) || q.InFlight() != 0 {
				t.Error("a closed queue accepted operations")
			}
			if _, err := q.Submit(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Submit after Close: error %v, want %v", err, os.ErrClosed)
			}
			if _, err := q.Reap(1, nil); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Reap after Close: error %v, want %v", err, os.ErrClosed)
			}
		}
		if after := countDescriptors(t); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
		if !bytes.Equal(memory, make([]byte, len(memory))) {
			t.Error("a buffer was written to after Close, or by a read that was not submitted")
		}
	})
}

// openDirect opens f once more, for reads that do not go through the page cache.
func openDirect(t testing.TB, f *os.File) int {
	t.Helper()
	fd, err := unix.Open(f.Name(), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("open with O_DIRECT: %v", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// mapAnonymous returns zeroed memory that begins at a page.
func mapAnonymous(t testing.TB, size int) []byte {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(memory) })
	return memory
}

// countDescriptors counts this process's open descriptors.
func countDescriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// BenchmarkRead reads with O_DIRECT at several depths: a disk delivers its bandwidth only to many
// reads at once.
func BenchmarkRead(b *testing.B) {
	const size, block = 256 << 20, 256 << 10
	f, _ := createOnDisk(b, size)
	fd, memory := openDirect(b, f), mapAnonymous(b, 32*block)

	read := func(b *testing.B, q Queue, depth int) {
		b.SetBytes(size)
		var free []uint64
		for i := range depth {
			free = append(free, uint64(i))
		}
		var done []Completion
		for b.Loop() {
			for offset := int64(0); offset < size || q.InFlight() > 0; {
				for ; len(free) > 0 && offset < size; offset += block {
					tag := free[len(free)-1]
					if !q.Read(fd, memory[tag*block:][:block], offset, tag) {
						b.Fatalf("no room at depth %d", depth)
					}
					free = free[:len(free)-1]
				}
				var err error
				if done, err = q.Reap(1, done[:0]); err != nil {
					b.Fatal(err)
				}
				for _, c := range done {
					if c.Err != nil || c.N != block {
						b.Fatalf("%d bytes, %v", c.N, c.Err)
					}
					free = append(free, c.Tag)
				}
			}
		}
	}
	for depth := 1; depth <= 32; depth *= 2 {
		b.Run(fmt.Sprintf("io_uring/depth=%d", depth), func(b *testing.B) {
			read(b, newRing(b, uint32(depth)), depth)
		})
	}
	for depth := 1; depth <= 32; depth *= 2 {
		b.Run(fmt.Sprintf("posix_fadvise/depth=%d", depth), func(b *testing.B) {
			p := newPool(uint32(depth), WithWorkers(depth))
			defer p.Close()
			read(b, p, depth)
		})
	}
}

// Madvise applies its advice in order, reports the first error, and completes once.
func TestMadvise(t *testing.T) {
	forEach(t, func(t *testing.T, open func(uint32, ...Option) Queue) {
		const size = 4 << 20
		f, _ := createOnDisk(t, size)
		mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mem)
		q := open(8)
		advices := []int{unix.MADV_RANDOM, unix.MADV_POPULATE_READ, unix.MADV_DONTNEED}
		if !q.Madvise(mem[:size/2], advices, 7) || !q.Madvise(mem[size/2:], []int{-1, unix.MADV_RANDOM}, 8) {
			t.Fatal("an empty queue did not accept advice")
		}
		done := reap(t, q, q.InFlight())
		if len(done) != 2 || q.InFlight() != 0 {
			t.Fatalf("%d completions, then %d operations in flight; want 2, 0", len(done), q.InFlight())
		}
		for _, c := range done {
			if c.Tag == 7 && c.Err != nil || c.Tag == 8 && !errors.Is(c.Err, unix.EINVAL) {
				t.Errorf("call %d: error %v, want none for 7 and EINVAL for 8", c.Tag, c.Err)
			}
		}
		if n := cachedBytes(t, f, 0, size/2); n != size/2 {
			t.Errorf("%d bytes were read, want %d", n, size/2)
		}
		// Close waits for operations in flight, also if several of them have one completion.
		other := open(8)
		if !other.Madvise(mem, []int{unix.MADV_POPULATE_READ, unix.MADV_DONTNEED}, 1) {
			t.Fatal("an empty queue did not accept advice")
		}
		submit(t, other, other.InFlight())
		if !other.Madvise(mem, []int{unix.MADV_POPULATE_READ, unix.MADV_DONTNEED}, 2) {
			t.Fatal("the queue did not accept advice while other advice was in flight")
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		for q.Madvise(mem, []int{unix.MADV_RANDOM, unix.MADV_NORMAL}, 9) { // until it is full
		}
		if n := len(reap(t, q, q.InFlight())); n == 0 || q.InFlight() != 0 {
			t.Errorf("%d completions of a full queue, then %d operations in flight; want some, 0", n, q.InFlight())
		}
	})
}
