package costs

// This file tests, on the running kernel, what Measure measures, and that it leaves the page cache as it was.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/internal/uring"
	"tensorcast/prefetch/pages"
)

// costFile is a file of which nothing is in memory.
type costFile struct {
	*os.File
	t         *testing.T
	size      int64
	readParts [][2]int64 // offsets and lengths of what readIn has read
}

func newCostFile(t *testing.T, size int64) *costFile {
	t.Helper()
	testenv.NeedMachine(t)
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "model"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if left, err := pagecache.Drop(t.Context(), f); err != nil {
		t.Fatal(err)
	} else if left > 0 {
		t.Skipf("%d bytes stay in memory: this file system does not give its pages back", left)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	return &costFile{File: f, t: t, size: size}
}

// readIn reads a part of the file into memory, and nothing else.
func (f *costFile) readIn(offset, length int64) {
	f.t.Helper()
	f.readParts = append(f.readParts, [2]int64{offset, length})
	if _, err := f.ReadAt(make([]byte, length), offset); err != nil {
		f.t.Fatal(err)
	}
}

// residentPages tells of each page whether it is in memory.
func (f *costFile) residentPages() []bool {
	f.t.Helper()
	there := make([]bool, f.size/pages.PageSize)
	for i := range there {
		n, err := pagecache.Resident(f.File, int64(i)*pages.PageSize, pages.PageSize)
		if err != nil {
			f.t.Fatal(err)
		}
		there[i] = n > 0
	}
	return there
}

// checkUnchanged checks that the same pages are in memory after do as before. A kernel that reclaims what is cold
// by itself (DAMON) may take a page at any time. So do is tried several times: a do that takes a page takes one
// each time.
func (f *costFile) checkUnchanged(what string, do func()) {
	f.t.Helper()
	went := 0
	for range 4 {
		for _, p := range f.readParts {
			if _, err := f.ReadAt(make([]byte, p[1]), p[0]); err != nil {
				f.t.Fatal(err)
			}
		}
		before := f.residentPages()
		do()
		came := 0
		went = 0
		for i, there := range f.residentPages() {
			switch {
			case there && !before[i]:
				came++
			case !there && before[i]:
				went++
			}
		}
		if came > 0 {
			f.t.Errorf("%s: %d pages came into memory and stay, want 0", what, came)
		}
		if went == 0 {
			return
		}
	}
	f.t.Errorf("%s: %d pages that were in memory have gone, want 0", what, went)
}

// limits are those of a small measurement, which leaves memory alone.
var limits = costLimits{part: 4 * mib, rounds: 2, spare: 1 << 40, level: "nobody"}

// Each way is measured on pages or folios as it should be. Afterwards the same pages are in memory as before.
func TestMeasure(t *testing.T) {
	f := newCostFile(t, 32*mib+5*pages.PageSize)
	f.readIn(5*mib+pages.PageSize, 3*pages.PageSize)
	f.readIn(10*mib, 4*mib)
	f.readIn(23*mib-pages.PageSize, pages.PageSize)
	f.readIn(32*mib, pages.PageSize)
	var c *Costs
	f.checkUnchanged("measured", func() {
		var err error
		if c, err = measureWithin(t.Context(), locate(t, f.Name()), limits); err != nil {
			t.Fatal(err)
		}
	})
	if c.Left != 0 {
		t.Errorf("%d bytes are left, want 0", c.Left)
	}
	var ways []Way
	for _, w := range c.Ways {
		ways = append(ways, w.Way)
		t.Logf("%+v", w)
		least := min(w.Read, w.Touch, w.PageOut, w.Faults, w.Bandwidth)
		if w.Rounds < 1 || w.Rounds > limits.rounds || least <= 0 {
			t.Errorf("a figure that cannot be: %+v", w)
		}
		if most := limits.part + 8*2*mib; w.Bytes < 2*mib || w.Bytes > most {
			t.Errorf("%s: a round read %d bytes, want at most %d and what follows lanes", w.Way, w.Bytes, limits.part)
		}
	}
	if c.Folio == 0 {
		if c.NoFolios == "" || !slices.Equal(ways, []Way{WayPages}) {
			t.Errorf("without large folios: ways %v because of %q, want only %s, and a reason",
				ways, c.NoFolios, WayPages)
		}
		t.Skipf("no large folios: %s", c.NoFolios)
	}
	if !slices.Equal(ways, []Way{WayPages, WayFolios, WayFoliosByPage}) || c.NoFolios != "" {
		t.Fatalf("ways %v, no folios because of %q; want all ways", ways, c.NoFolios)
	}
	pages, folios, byPage := c.Ways[0], c.Ways[1], c.Ways[2]
	if pages.InFolios != 0 || folios.InFolios <= 0.5 || byPage.InFolios <= 0.5 {
		t.Errorf("shares in large folios: read by pages %.2f, by folios %.2f and %.2f; want 0, and more than half",
			pages.InFolios, folios.InFolios, byPage.InFolios)
	}
	// A fault maps a folio as a whole only where there is no page table yet.
	if pages.Whole != 0 || folios.Whole <= 0.5 || byPage.Whole != 0 {
		t.Errorf("shares mapped as a whole: pages %.2f, folios %.2f, folios by page %.2f; want 0, more than half, 0",
			pages.Whole, folios.Whole, byPage.Whole)
	}
	if 2*folios.Faults >= pages.Faults {
		t.Errorf("%.1f faults per MiB of folios, want less than half of %.1f as of pages", folios.Faults, pages.Faults)
	}
	// Pages usually take ten times as long.
	if folios.PageOut >= pages.PageOut {
		t.Errorf("paging out takes %.0f us per MiB in folios, want less than %.0f as in pages",
			folios.PageOut, pages.PageOut)
	}
}

// Where measuring is not possible, Measure says why, and changes nothing.
func TestMeasureRefuses(t *testing.T) {
	whole := newCostFile(t, 8*mib)
	whole.readIn(0, whole.size)
	scattered := newCostFile(t, 8*mib)
	for at := int64(0); at < scattered.size; at += mib / 2 {
		scattered.readIn(at, pages.PageSize)
	}
	small := newCostFile(t, 3*pages.PageSize)
	empty := newCostFile(t, 0)
	absent := newCostFile(t, 8*mib)
	other := locate(t, absent.Name())
	other.ID.Ino++
	short := limits
	short.spare, short.level = mib, "/a/b memory.max"
	for _, tc := range []struct {
		name   string
		file   *costFile
		at     proc.Place
		limits costLimits
		want   string
	}{
		{"all in memory", whole, locate(t, whole.Name()), limits, " in memory"},
		{"some of each part in memory", scattered, locate(t, scattered.Name()), limits, "here and there"},
		{"small", small, locate(t, small.Name()), limits, "too little to measure"},
		{"empty", empty, locate(t, empty.Name()), limits, "too little to measure"},
		{"no memory", absent, locate(t, absent.Name()), short, "/a/b memory.max has 1.0 MiB to spare"},
		{"another file", absent, other, limits, proc.ErrOtherFile.Error()},
	} {
		tc.file.checkUnchanged(tc.name, func() {
			c, err := measureWithin(t.Context(), tc.at, tc.limits)
			if err == nil || c != nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %+v, %v; want an error with %q", tc.name, c, err, tc.want)
			}
		})
	}
}

// countdown is a context that is done once Err was called a number of times.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// Wherever Measure is interrupted, nothing is left behind.
func TestMeasureInterrupted(t *testing.T) {
	f := newCostFile(t, 16*mib)
	f.readIn(5*mib, mib)
	interrupted := 0
	for asked := 0; ; asked += 1 + asked/2 {
		var err error
		f.checkUnchanged(fmt.Sprintf("asked %d times", asked), func() {
			limits := costLimits{part: 2 * mib, rounds: 1, spare: 1 << 40}
			_, err = measureWithin(&countdown{t.Context(), asked}, locate(t, f.Name()), limits)
		})
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("asked %d times: %v, want %v", asked, err, context.Canceled)
		}
		interrupted++
	}
	if interrupted < 5 {
		t.Errorf("it was interrupted at %d points, want at least 5", interrupted)
	}
}

// newCosting prepares to measure on a file, and chooses no lanes.
func newCosting(f *costFile) *costing {
	f.t.Helper()
	file, err := pages.OpenFile(locate(f.t, f.Name()), pagecache.FolioBytes())
	if err != nil {
		f.t.Fatal(err)
	}
	queue, err := uring.Open(pages.QueueEntries)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := errors.Join(queue.Close(), file.Close()); err != nil {
			f.t.Error(err)
		}
	})
	return &costing{file: file, queue: queue, unit: max(file.FolioBytes, pages.MinBlock)}
}

// What comes into memory between the choice of lanes and their reading is neither touched nor dropped.
func TestMeasureDisturbed(t *testing.T) {
	f := newCostFile(t, 32*mib)
	m := newCosting(f)
	if err := m.findLanes(t.Context(), 8*mib, 1<<40); err != nil {
		t.Fatal(err)
	}
	for _, l := range m.lanes {
		f.readIn(l.Offset, pages.PageSize)
	}
	f.checkUnchanged("a page in every lane", func() {
		if _, err := m.measureRound(t.Context(), WayPages, m.lanes); !errors.Is(err, errDisturbed) {
			t.Errorf("every lane has a page in memory: %v, want %v", err, errDisturbed)
		}
	})
}

// A file that somebody truncates ends the measurement, not the process.
func TestMeasureTruncated(t *testing.T) {
	f := newCostFile(t, 16*mib)
	m := newCosting(f)
	if err := m.findLanes(t.Context(), 4*mib, 1<<40); err != nil {
		t.Fatal(err)
	}
	target := pages.File{Mapped: m.file.Mapped, Size: m.file.Size}
	if err := target.MapAligned(m.file.FolioBytes); err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(target.Reserved)
	if err := os.Truncate(f.Name(), 2*mib); err != nil {
		t.Fatal(err)
	}
	if err := m.touchPages(target.Part(pages.Range{Offset: 0, Length: 4 * mib})); !errors.Is(err, pages.ErrUnreadable) {
		t.Errorf("touching what was truncated: %v, want %v", err, pages.ErrUnreadable)
	}
	for _, way := range []Way{WayPages, WayFolios, WayFoliosByPage} {
		if _, err := m.measureRound(t.Context(), way, m.lanes); !errors.Is(err, pages.ErrUnreadable) {
			t.Errorf("%s: %v, want %v", way, err, pages.ErrUnreadable)
		}
	}
}

// Lanes are found where there are any. Nothing of them is in memory, and nothing of what is read with them from
// behind them.
func TestFindLanes(t *testing.T) {
	const blocks, length = 14, 3
	f := newCostFile(t, blocks*2*mib+3*pages.PageSize)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 20 {
		if left, err := pagecache.Drop(t.Context(), f.File); left > 0 || err != nil {
			t.Fatalf("%d bytes stay, %v", left, err)
		}
		m := newCosting(f)
		if m.unit != 2*mib {
			t.Skipf("blocks of %d", m.unit)
		}
		var kinds [blocks + 1]byte // 'e'mpty, 'p'artly in memory, 'f'ull
		for b := range kinds {
			kinds[b] = "eeepf"[random.IntN(5)]
			at := int64(b) * m.unit
			switch kinds[b] {
			case 'p':
				f.readIn(at+pages.PageSize, pages.PageSize)
			case 'f':
				f.readIn(at, min(m.unit, f.size-at))
			}
		}
		text := string(kinds[:])
		err := m.findLanes(t.Context(), length*m.unit, 1<<40)
		covered := strings.Repeat(".", len(kinds))
		mark := func(from, end int64, as string) {
			for b := from / m.unit; b*m.unit < end; b++ {
				if text[b] != 'e' || covered[b] != '.' {
					t.Errorf("%s: block %d is taken as %s, taken already: %s", text, b, as, covered)
				}
				covered = covered[:b] + as + covered[b+1:]
			}
		}
		for _, l := range m.lanes {
			aligned := l.Offset%m.unit == 0 && l.Length%m.unit == 0
			if l.Length < m.unit || l.Length > length*m.unit || !aligned || l.End()+l.guard > f.size {
				t.Errorf("%s: lane %+v, want up to %d whole blocks of the file", text, l, length)
			}
			mark(l.Offset, l.End(), "L")
			mark(l.End(), l.End()+l.guard, "G")
			if next := l.End() / m.unit; l.guard == 0 && text[next] != 'f' {
				t.Errorf("%s: what follows lane %+v may be read with it", text, l)
			}
		}
		// An empty block with an empty or a full one behind it suffices.
		possible := strings.Contains(text, "ee") || strings.Contains(text, "ef")
		if possible != (len(m.lanes) > 0) || possible != (err == nil) {
			t.Errorf("%s: lanes %s, %v; want lanes: %v", text, covered, err, possible)
		}
		if i == 0 && possible { // no more lanes than are asked for
			m.lanes = nil
			if err := m.findLanes(t.Context(), length*m.unit, 1); err != nil || len(m.lanes) != 1 {
				t.Errorf("%s: %d lanes for a byte, want 1, %v", text, len(m.lanes), err)
			}
		}
	}
}

// Lanes are taken in order, as many as fit.
func TestTakeLanes(t *testing.T) {
	m := &costing{}
	for _, length := range []int64{4, 4, 2, 8} {
		m.lanes = append(m.lanes, lane{Range: pages.Range{Offset: int64(len(m.lanes)), Length: length}})
	}
	for i, want := range [][]int64{{0, 1}, {2}, {3}, {0, 1}} { // of 8 bytes
		var got []int64
		for _, l := range m.takeLanes(8) {
			got = append(got, l.Offset)
		}
		if !slices.Equal(got, want) {
			t.Errorf("call %d: lanes %v, want %v", i, got, want)
		}
	}
	if got := m.takeLanes(1); len(got) != 1 {
		t.Errorf("%d lanes of a part that is smaller than a lane, want 1", len(got))
	}
	if got := m.takeLanes(100); len(got) != 4 {
		t.Errorf("%d lanes of a part that is larger than all, want 4", len(got))
	}
}
