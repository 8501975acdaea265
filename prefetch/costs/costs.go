package costs

// This file measures what the levers on the page cache cost on a file: by single pages, and by large folios where its
// file system has them. It chooses what to read and makes medians of rounds; costs_round.go has a round.

import (
	gocontext "context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/stats"
	"tensorcast/internal/uring"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
)

// Way is how pages are read, and found by whoever uses them.
type Way string

const (
	WayPages  Way = "pages"  // single pages (FADV_WILLNEED)
	WayFolios Way = "folios" // large folios, in a target that has not touched that part of the file since it mapped it: one fault maps a folio as a whole
	// WayFoliosByPage: large folios in a target that has touched that part before, as after a warm-up. Its page
	// tables are there, and each page of a folio gets an entry in them.
	WayFoliosByPage Way = "folios-by-page"
)

// Costs are what it costs to read a file, to touch what was read, and to page that out.
type Costs struct {
	Folio    int64  `json:"folio_bytes"`         // of a large folio; 0 if they are not to be had
	NoFolios string `json:"no_folios,omitempty"` // why not
	Ways     []Cost `json:"ways"`                // pages first
	// Left is how many of the bytes that were read could not be dropped, as another process uses them now.
	Left int64 `json:"left,omitempty"`
}

// Cost is what one way costs. Times are those of processors, in this process and in the kernel for it, io_uring's
// workers included, in microseconds per MiB; interrupts and the kernel's own threads are not in them. All but Rounds
// are medians of the rounds.
type Cost struct {
	Way       Way     `json:"way"`
	Rounds    int     `json:"rounds"`
	Bytes     int64   `json:"bytes"` // that a round read
	Read      float64 `json:"read_us_per_mib"`
	Touch     float64 `json:"touch_us_per_mib"` // the target's part
	Faults    float64 `json:"faults_per_mib"`   // of the target
	PageOut   float64 `json:"page_out_us_per_mib"`
	Bandwidth float64 `json:"bytes_per_second"` // of reading
	InFolios  float64 `json:"in_folios"`        // the share of what was touched, and paged out, that lay in large folios
	Whole     float64 `json:"mapped_whole"`     // the share of it that was in large folios which the target mapped by one entry each
}

// Sum is what a MiB costs that is read, used once and paged out, in microseconds.
func (c Cost) Sum() float64 { return c.Read + c.Touch + c.PageOut }

const (
	// costPart is the most that a round reads, besides a folio behind each lane, and costRounds how many there are of
	// each way, unless they take longer than costTime: then one is enough.
	costPart   = 64 << 20
	costRounds = 5
	costTime   = 10 * time.Second
	// spareShare of what memory has to spare is read at once, so that nothing has to leave for it.
	spareShare = 4
)

// MeasureCosts measures on a file, which this process must own or be allowed to write: only then does the kernel say
// what of it is in memory, and page it out. This process plays the target, by a mapping of its own. It reads parts
// that are not in memory, a few hundred MiB in all but no more at once than a share of what memory has to spare, and
// drops what it read. What is in memory stays as it is; only what another process reads of the same parts meanwhile,
// and has not touched by the end of a round, goes with the rest.
//
// The error says why nothing could be measured; it wraps ErrUnreadable if the file cannot be read, and ctx's error if
// that is done.
func Measure(ctx gocontext.Context, at proc.Place) (*Costs, error) {
	spare, level, err := spareMemory()
	if err != nil {
		return nil, fmt.Errorf("ask how much memory is free: %w", err)
	}
	return measureWithin(ctx, at, costLimits{part: costPart, rounds: costRounds, spare: spare, level: level})
}

// costLimits bound what is read.
type costLimits struct {
	part   int64 // at once
	rounds int
	spare  int64 // bytes of memory, as bounded by level
	level  string
}

// spareMemory is how much more memory this process may take: at the limits of its cgroup and those above, what is not
// used; of the host's available memory, what is not left to others anyhow. (Where all of the host's memory is page
// cache, the kernel drops what is coldest of it for what is read.)
func spareMemory() (bytes int64, level string, err error) {
	host, err := cgroup.Host()
	if err != nil {
		return 0, "", err
	}
	bytes, level = host.Available-room.UsualFloor(host.Total), "the host"
	group, err := cgroup.Find(os.Getpid())
	if errors.Is(err, cgroup.ErrNoController) {
		return bytes, level, nil
	}
	if err != nil {
		return 0, "", err
	}
	levels, err := group.Levels()
	if err != nil {
		return 0, "", err
	}
	for _, l := range levels {
		if l.Headroom() < bytes {
			bytes, level = l.Headroom(), l.Name
		}
	}
	return bytes, level, nil
}

// costing measures on one file. For one goroutine.
type costing struct {
	file  *pages.File
	queue uring.Queue
	unit  int64 // bytes of a block: a large folio, if there are any
	lanes []lane
	next  int   // of lanes
	left  int64 // see Costs.Left
	sum   byte  // of what was touched: loads whose values nobody uses need not be made
}

func measureWithin(ctx gocontext.Context, at proc.Place, limits costLimits) (c *Costs, err error) {
	// Faults are counted for this thread, and a ring's work belongs to the thread that submitted it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c = &Costs{}
	folio := pagecache.FolioBytes()
	if folio == 0 {
		c.NoFolios = "this kernel has none"
	}
	if folio > limits.part {
		c.NoFolios = fmt.Sprintf("this machine's are of %s, more than is read to measure", humanize.IBytes(uint64(folio)))
		folio = 0
	}
	m := &costing{unit: max(folio, pages.MinBlock)}
	part := min(limits.part, limits.spare/spareShare) / m.unit * m.unit
	if part <= 0 {
		return nil, fmt.Errorf("too little memory to measure: %s has %s to spare, and it takes %s", limits.level, humanize.IBytes(uint64(max(limits.spare, 0))), humanize.IBytes(uint64(spareShare*m.unit)))
	}
	if err := m.checkSize(at); err != nil {
		return nil, err
	}
	if m.file, err = pages.OpenFile(at, folio); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.file.Close()) }()
	if m.queue, err = uring.Open(pages.QueueEntries); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.queue.Close()) }()
	ways := []Way{WayPages}
	if folio > 0 {
		if err := m.file.Probe(); err != nil {
			return nil, err
		}
		if c.Folio = m.file.FolioBytes; c.Folio == 0 {
			c.NoFolios = whyNoFolios()
		} else {
			ways = append(ways, WayFolios, WayFoliosByPage)
		}
	}
	if err := m.findLanes(ctx, max(part/lanesAtOnce/m.unit, 1)*m.unit, part*int64(limits.rounds*len(ways))); err != nil {
		return nil, err
	}
	c.Ways, err = m.measure(ctx, ways, part, limits.rounds)
	if err != nil {
		return nil, err
	}
	c.Left = m.left
	return c, nil
}

// checkSize refuses a file that has no whole block.
func (m *costing) checkSize(at proc.Place) error {
	f, err := at.Open()
	if err != nil {
		return fmt.Errorf("open the model: %w", err)
	}
	info, err := f.Stat()
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("stat the model: %w", err)
	}
	if info.Size() < m.unit {
		return fmt.Errorf("%s has %s: too little to measure, which takes %s", at.Path, humanize.IBytes(uint64(info.Size())), humanize.IBytes(uint64(m.unit)))
	}
	return nil
}

// whyNoFolios says why a file seems to have no large folios.
func whyNoFolios() string {
	if _, err := pagecache.Huge(make([]byte, pages.PageSize)); errors.Is(err, errors.ErrUnsupported) {
		return "this kernel does not say whether a file has any (Linux 6.7 does)"
	}
	return "its file system gives none"
}

// measure makes rounds, of each way in turn, so that what changes meanwhile concerns all ways alike.
func (m *costing) measure(ctx gocontext.Context, ways []Way, part int64, rounds int) ([]Cost, error) {
	start := time.Now()
	samples := make([][]Cost, len(ways))
	for i := 0; i < rounds && (i == 0 || time.Since(start) < costTime); i++ {
		for w, way := range ways {
			s, err := m.round(ctx, way, m.take(part))
			if errors.Is(err, errDisturbed) {
				continue
			}
			if err != nil {
				return nil, err
			}
			samples[w] = append(samples[w], s)
		}
	}
	costs := make([]Cost, 0, len(ways))
	for w, way := range ways {
		if len(samples[w]) == 0 {
			return nil, fmt.Errorf("measure on %s: %w", m.file.Path, errDisturbed)
		}
		c := Cost{Way: way, Rounds: len(samples[w])}
		median := func(of func(Cost) float64) float64 {
			values := make([]float64, 0, len(samples[w]))
			for _, s := range samples[w] {
				values = append(values, of(s))
			}
			return stats.Median(values)
		}
		c.Bytes = int64(median(func(s Cost) float64 { return float64(s.Bytes) }))
		c.Read = median(func(s Cost) float64 { return s.Read })
		c.Touch = median(func(s Cost) float64 { return s.Touch })
		c.Faults = median(func(s Cost) float64 { return s.Faults })
		c.PageOut = median(func(s Cost) float64 { return s.PageOut })
		c.Bandwidth = median(func(s Cost) float64 { return s.Bandwidth })
		c.InFolios = median(func(s Cost) float64 { return s.InFolios })
		c.Whole = median(func(s Cost) float64 { return s.Whole })
		costs = append(costs, c)
	}
	return costs, nil
}

// lane is a run of whole blocks of which nothing is in memory. Lanes are read at the same time, so that the disk
// always has work.
type lane struct {
	pages.Range
	guard int64 // bytes behind it of which nothing is in memory either: a large folio is read with what follows it
}

// all is a lane with what may be read behind it.
func (l lane) all() pages.Range { return pages.Range{Offset: l.Offset, Length: l.Length + l.guard} }

// findLanes looks for lanes of at most length bytes each, of total bytes together.
func (m *costing) findLanes(ctx gocontext.Context, length, total int64) error {
	f := m.file
	var found, resident int64
	var run pages.Range
	end := func(guard int64) {
		if run.Length > 0 {
			m.lanes = append(m.lanes, lane{run, guard})
			found += run.Length
		}
		run = pages.Range{}
	}
	for at := int64(0); at < f.Size && found < total; at += m.unit {
		if err := ctx.Err(); err != nil {
			return err
		}
		block := pages.Range{Offset: at, Length: min(m.unit, f.Size-at)}
		there, err := pagecache.Resident(f.File, block.Offset, block.Length)
		if err != nil {
			return err
		}
		resident += min(there, block.Length)
		switch free := there == 0; {
		case free && block.Length == m.unit && run.Length < length: // it grows
			if run.Length == 0 {
				run.Offset = at
			}
			run.Length += m.unit
		case free:
			end(block.Length)
		case there >= block.Length:
			end(0)
		default: // a part of what follows would be read
			run.Length -= m.unit
			end(m.unit)
		}
	}
	end(0) // at the end of the file, unless enough were found
	switch {
	case len(m.lanes) > 0:
		return nil
	case resident >= f.Size:
		return fmt.Errorf("all of %s is in memory: what it costs to read can only be measured on what is not", f.Path)
	default:
		return fmt.Errorf("of %s, %s of %s are in memory, here and there: there is no part that is not and is large enough to measure", f.Path, humanize.IBytes(uint64(resident)), humanize.IBytes(uint64(f.Size)))
	}
}

// take returns the next lanes, of part bytes at most but one at least; each once, and from the beginning again where
// all have been taken.
func (m *costing) take(part int64) []lane {
	var taken []lane
	for range m.lanes {
		l := m.lanes[m.next%len(m.lanes)]
		if len(taken) > 0 && l.Length > part {
			break
		}
		taken = append(taken, l)
		part -= l.Length
		m.next++
	}
	return taken
}
