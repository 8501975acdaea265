package pressure

// This file tests the disk measurement on a real disk, against what the kernel says was read.

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// diskFile makes a file of random bytes on a disk, not in the page cache.
func diskFile(t *testing.T, size int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "model"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	content := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(content)
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	fd, _, err := openDirect(f.Name())
	if errors.Is(err, ErrNoDirectIO) {
		t.Skipf("%v: set TMPDIR to a directory on a disk", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return f
}

// cachedBytes returns how much of f is in the page cache.
func cachedBytes(t *testing.T, f *os.File) int64 {
	t.Helper()
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &stat, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Skipf("cachestat: %v (Linux 6.5 has it)", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return int64(stat.Cache) * int64(os.Getpagesize())
}

// diskBytes returns how much this process has had read from disks.
func diskBytes(t *testing.T) int64 {
	t.Helper()
	self, err := procfs.Self()
	if err != nil {
		t.Fatal(err)
	}
	io, err := self.IO()
	if err != nil {
		t.Skipf("the kernel does not account for I/O: %v", err)
	}
	return int64(io.ReadBytes)
}

// What is read comes from the disk, whether the file is cached or not, and leaves the page cache as it is.
func TestDiskBandwidth(t *testing.T) {
	const size = 16<<20 + 1000
	f := diskFile(t, size)
	for _, test := range []struct {
		name   string
		cached int64
	}{{"cold", 0}, {"cached", 16<<20 + 4096}} {
		t.Run(test.name, func(t *testing.T) {
			// Where other tests use up the memory, the kernel may take a page away at once.
			for try := 0; test.cached > 0 && try < 5 && cachedBytes(t, f) != test.cached; try++ {
				if _, err := os.ReadFile(f.Name()); err != nil {
					t.Fatal(err)
				}
			}
			if n := cachedBytes(t, f); n != test.cached {
				t.Fatalf("%d bytes cached before, want %d", n, test.cached)
			}
			before := diskBytes(t)
			got, err := DiskBandwidth(t.Context(), f.Name(), []Extent{{0, size}}, DiskOptions{
				Settings:  []DiskSetting{{128 << 10, 1}, {128 << 10, 4}, {256 << 10, 1}, {256 << 10, 4}},
				PointTime: 50 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			onDisk := diskBytes(t) - before
			// The kernel may take a few pages away meanwhile.
			if n := cachedBytes(t, f); n > test.cached || n < test.cached*15/16 {
				t.Errorf("%d bytes cached after, want %d", n, test.cached)
			}

			var sum int64
			var settings []DiskSetting
			best := DiskPoint{}
			for _, p := range got.Points {
				settings = append(settings, p.DiskSetting)
				// A fast disk gives all of it. Where the point before stopped inside a block, the
				// last block is read in part again.
				if p.Bytes <= 0 || p.Bytes >= size+int64(p.Block) || p.Elapsed <= 0 ||
					p.BytesPerSecond != float64(p.Bytes)/p.Elapsed.Seconds() {
					t.Errorf("%+v", p)
				}
				if p.BytesPerSecond > best.BytesPerSecond {
					best = p
				}
				sum += p.Bytes
			}
			if want := []DiskSetting{{128 << 10, 1}, {128 << 10, 4}, {256 << 10, 1},
				{256 << 10, 4}}; !reflect.DeepEqual(settings, want) {
				t.Errorf("points %v, want %v", settings, want)
			}
			if got.Best != best {
				t.Errorf("best %+v, want %+v", got.Best, best)
			}
			if onDisk < sum {
				t.Errorf("%d bytes counted, of which %d came from a disk; want all", sum, onDisk)
			}
			if got.Queue == "" || got.Alignment < os.Getpagesize() {
				t.Errorf("queue %q, alignment %d; want a name and at least a page", got.Queue, got.Alignment)
			}
		})
	}
}

// Given time, a point reads each page of the extents once, and nothing else.
func TestDiskBandwidthReadsExtentsOnce(t *testing.T) {
	f := diskFile(t, 1<<20+1000)
	got, err := DiskBandwidth(t.Context(), f.Name(), []Extent{
		{100_000, 300_000},  // 98304 to 401408, two blocks and a bit
		{400_000, 32},       // in the same page
		{400_032, 9_600},    // up to 413696
		{1 << 20, 1000},     // at the end of the file: no whole page
		{32, 64}, {4095, 0}, // 0 to 4096
	}, DiskOptions{Settings: []DiskSetting{{128 << 10, 1}, {128 << 10, 3}}, PointTime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if got.Alignment != 4096 {
		t.Skipf("alignment %d: the numbers are for 4096", got.Alignment)
	}
	for _, p := range got.Points {
		if want := int64(413696 - 98304 + 1000 + 4096); p.Bytes != want {
			t.Errorf("depth %d: %d bytes read, want %d", p.Depth, p.Bytes, want)
		}
	}
}

func TestScan(t *testing.T) {
	s, err := newScan([]Extent{{8192, 10_000}, {0, 100}}, 20_000, 4096)
	if err != nil {
		t.Fatal(err)
	}
	want := []Extent{{8192, 8192}, {16384, 4096}, {0, 4096}, {8192, 8192}}
	for i, w := range want {
		if got := s.next(8192); got != w {
			t.Errorf("block %d: %+v, want %+v", i, got, w)
		}
	}
	// The next block size goes on where this one stopped.
	if got := s.next(4096); got != (Extent{16384, 4096}) {
		t.Errorf("then %+v, want 4096 bytes at 16384", got)
	}
}

// Small and large requests, alone and many at once, and no more buffers than a small machine has.
func TestGrid(t *testing.T) {
	seen := map[DiskSetting]bool{}
	for _, s := range Grid() {
		if s.Block*s.Depth > gridInFlight || seen[s] {
			t.Errorf("%+v is too much, or twice", s)
		}
		seen[s] = true
	}
	for _, s := range []DiskSetting{{128 << 10, 1}, {128 << 10, 32}, {2 << 20, 32}, {8 << 20, 1}, {8 << 20, 8}} {
		if !seen[s] {
			t.Errorf("%+v is not in the grid", s)
		}
	}
}

func TestFastest(t *testing.T) {
	var r DiskResult
	for i, speed := range []float64{300, 100, 500, 300} {
		r.Points = append(r.Points, DiskPoint{DiskSetting: DiskSetting{4096, i}, BytesPerSecond: speed})
	}
	if got, want := r.Fastest(3), []DiskSetting{{4096, 2}, {4096, 0}, {4096, 3}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := r.Fastest(9); len(got) != 4 {
		t.Errorf("of four the best nine are %v, want all four", got)
	}
}

func TestDiskBandwidthErrors(t *testing.T) {
	f := diskFile(t, 10_000)
	whole := []Extent{{0, 10_000}}
	tests := []struct {
		name    string
		path    string
		extents []Extent
		opts    DiskOptions
		want    string
	}{
		{"no extents", f.Name(), nil, DiskOptions{}, "no bytes"},
		{"empty extents", f.Name(), []Extent{{5, 0}}, DiskOptions{}, "no bytes"},
		{"beyond the end", f.Name(), []Extent{{9_000, 1_001}}, DiskOptions{}, "the file has 10000"},
		{"wraps", f.Name(), []Extent{{9_000, 1<<63 - 1}}, DiskOptions{}, "the file has 10000"},
		{"negative", f.Name(), []Extent{{-1, 10}}, DiskOptions{}, "the file has 10000"},
		{"depth", f.Name(), whole, DiskOptions{Settings: []DiskSetting{{4096, 0}}}, "depth of 0"},
		{"depth too large", f.Name(), whole, DiskOptions{Settings: []DiskSetting{{4096, 1 << 40}}}, "want 1 to 256"},
		{"block", f.Name(), whole, DiskOptions{Settings: []DiskSetting{{1000, 1}}}, "multiple of"},
		{"time", f.Name(), whole, DiskOptions{PointTime: -1}, "time of -1ns"},
		{"directory", filepath.Dir(f.Name()), whole, DiskOptions{}, "not a regular file"},
		{"device", os.DevNull, whole, DiskOptions{}, "not a regular file"},
	}
	for _, test := range tests {
		_, err := DiskBandwidth(t.Context(), test.path, test.extents, test.opts)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.path) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	if _, err := DiskBandwidth(t.Context(), f.Name()+"-not", whole, DiskOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v, want ErrNotExist", err)
	}

	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := DiskBandwidth(t.Context(), fifo, whole, DiskOptions{}); err == nil ||
		!strings.Contains(err.Error(), "regular file") {
		t.Errorf("FIFO: %v, want an error that it is no regular file", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := DiskBandwidth(ctx, f.Name(), whole, DiskOptions{PointTime: time.Hour}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("cancelled: %v, want context.Canceled", err)
	}
}

// Memory is not a disk, even if it takes O_DIRECT.
func TestDiskBandwidthInMemory(t *testing.T) {
	const shm = "/dev/shm"
	var stat unix.Statfs_t
	if err := unix.Statfs(shm, &stat); err != nil || stat.Type != unix.TMPFS_MAGIC {
		t.Skipf("%s is no tmpfs: %v", shm, err)
	}
	f, err := os.CreateTemp(shm, "tensorcast-*")
	if err != nil {
		t.Skip(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := f.Truncate(8192); err != nil {
		t.Fatal(err)
	}
	if _, err := DiskBandwidth(t.Context(), f.Name(), []Extent{{0, 8192}}, DiskOptions{}); !errors.Is(err,
		ErrNoDirectIO) {
		t.Errorf("%v, want ErrNoDirectIO", err)
	}
}
