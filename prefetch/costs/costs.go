// Package costs measures what the levers on the page cache cost on a file, and what the disk delivers.
package costs

// This file measures on a file: by single pages, and by large folios where its file system has them. It chooses
// what to read, and takes the medians of rounds. costs_round.go makes a round.

import (
	"context"
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

// Way is how pages are read, and in which state the target finds them.
type Way string

// All ways.
const (
	WayPages Way = "pages" // single pages (FADV_WILLNEED)
	// WayFolios is large folios, in a target that has not touched that part of the file since it mapped the file.
	// Then one fault maps a folio as a whole.
	WayFolios Way = "folios"
	// WayFoliosByPage is large folios, in a target that has touched that part before, for example in a warm-up.
	// Then its page tables exist, and each page of a folio gets an entry in them.
	WayFoliosByPage Way = "folios-by-page"
)

// Costs are what it costs to read a file, to touch what was read, and to page that out.
type Costs struct {
	Folio    int64  `json:"folio_bytes"`         // of a large folio; 0 if there are none
	NoFolios string `json:"no_folios,omitempty"` // why there are none
	Ways     []Cost `json:"ways"`                // pages first
	// Left is how many of the bytes that were read could not be dropped, because another process uses them now.
	Left int64 `json:"left,omitempty"`
}

// Cost is what one way costs. Times are processor time in microseconds per MiB, of this process and of the kernel
// for it, including io_uring's workers. They do not have interrupts and the kernel's own threads. All but Rounds
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
	// InFolios is the share of what was touched, and paged out, that lay in large folios.
	InFolios float64 `json:"in_folios"`
	// Whole is the share of it that lay in large folios which the target mapped by one entry each.
	Whole float64 `json:"mapped_whole"`
}

// Sum is what it costs to read a MiB, use it once and page it out, in microseconds.
func (c Cost) Sum() float64 { return c.Read + c.Touch + c.PageOut }

const (
	// maxRoundBytes is how much a round reads at most, besides a folio behind each lane.
	maxRoundBytes = 64 << 20
	// maxRounds is how many rounds there are of each way. If they take longer than maxMeasureTime, one is enough.
	maxRounds      = 5
	maxMeasureTime = 10 * time.Second
	// A spareShare of the spare memory is read at once, so that nothing has to leave memory for it.
	spareShare = 4
)

// Measure measures on a file. This process must own the file, or be allowed to write it: only then does the kernel
// say what of it is in memory, and page it out. This process plays the target, by a mapping of its own. It reads
// parts that are not in memory, a few hundred MiB in all, but no more at once than a share of the spare memory. It
// drops what it has read. What is in memory before stays there. What another process reads of the same parts
// meanwhile is dropped, too, if that process has not touched it by the end of a round.
//
// The error says why nothing could be measured. It wraps pages.ErrUnreadable if the file cannot be read, and ctx's
// error if that is done.
func Measure(ctx context.Context, at proc.Place) (*Costs, error) {
	spare, level, err := SpareMemory()
	if err != nil {
		return nil, fmt.Errorf("ask how much memory is free: %w", err)
	}
	return measureWithin(ctx, at, costLimits{part: maxRoundBytes, rounds: maxRounds, spare: spare, level: level})
}

// costLimits bound what is read.
type costLimits struct {
	part   int64 // at once
	rounds int
	spare  int64 // bytes of memory, as bounded by level
	level  string
}

// SpareMemory is how many more bytes of memory this process may take. At the limits of its cgroup and those above,
// that is what is not used. On the host, it is the available memory, less what is left to others anyway. (Where all
// of the host's memory is page cache, the kernel drops the coldest part of it for what is read.)
func SpareMemory() (bytes int64, level string, err error) {
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

// costing measures on one file. It is for one goroutine.
type costing struct {
	file  *pages.File
	queue uring.Queue
	unit  int64  // bytes of a block: a large folio, if there are any
	lanes []lane // all that were found
	next  int    // index of the lane to take next, modulo their number
	left  int64  // see Costs.Left
	sum   byte   // takes what is loaded: the compiler drops a load whose value is not used
}

// measureWithin is Measure within limits.
func measureWithin(ctx context.Context, at proc.Place, limits costLimits) (c *Costs, err error) {
	// Faults are counted for this thread, and a ring's work belongs to the thread that submitted it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c = &Costs{}
	folio := pagecache.FolioBytes()
	if folio == 0 {
		c.NoFolios = "this kernel has none"
	}
	if folio > limits.part {
		c.NoFolios = fmt.Sprintf("this machine's are of %s, more than is read to measure", formatBytes(folio))
		folio = 0
	}
	m := &costing{unit: max(folio, pages.MinBlock)}
	part := min(limits.part, limits.spare/spareShare) / m.unit * m.unit
	if part <= 0 {
		return nil, fmt.Errorf("too little memory to measure: %s has %s to spare, and it takes %s",
			limits.level, formatBytes(limits.spare), formatBytes(spareShare*m.unit))
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
	laneBytes := max(part/lanesAtOnce/m.unit, 1) * m.unit
	if err := m.findLanes(ctx, laneBytes, part*int64(limits.rounds*len(ways))); err != nil {
		return nil, err
	}
	c.Ways, err = m.measureWays(ctx, ways, part, limits.rounds)
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
		return fmt.Errorf("%s has %s: too little to measure, which takes %s",
			at.Path, formatBytes(info.Size()), formatBytes(m.unit))
	}
	return nil
}

func formatBytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// whyNoFolios says why a file seems to have no large folios.
func whyNoFolios() string {
	if _, err := pagecache.Huge(make([]byte, pages.PageSize)); errors.Is(err, errors.ErrUnsupported) {
		return "this kernel does not say whether a file has any (Linux 6.7 does)"
	}
	return "its file system gives none"
}

// measureWays makes rounds, of each way in turn, so that what changes meanwhile affects all ways alike.
func (m *costing) measureWays(ctx context.Context, ways []Way, part int64, rounds int) ([]Cost, error) {
	start := time.Now()
	samples := make([][]Cost, len(ways))
	for i := 0; i < rounds && (i == 0 || time.Since(start) < maxMeasureTime); i++ {
		for w, way := range ways {
			s, err := m.measureRound(ctx, way, m.takeLanes(part))
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
		costs = append(costs, medianCost(way, samples[w]))
	}
	return costs, nil
}

// medianCost has the medians of the rounds of a way.
func medianCost(way Way, rounds []Cost) Cost {
	median := func(of func(Cost) float64) float64 {
		values := make([]float64, 0, len(rounds))
		for _, r := range rounds {
			values = append(values, of(r))
		}
		return stats.Median(values)
	}
	return Cost{
		Way:       way,
		Rounds:    len(rounds),
		Bytes:     int64(median(func(c Cost) float64 { return float64(c.Bytes) })),
		Read:      median(func(c Cost) float64 { return c.Read }),
		Touch:     median(func(c Cost) float64 { return c.Touch }),
		Faults:    median(func(c Cost) float64 { return c.Faults }),
		PageOut:   median(func(c Cost) float64 { return c.PageOut }),
		Bandwidth: median(func(c Cost) float64 { return c.Bandwidth }),
		InFolios:  median(func(c Cost) float64 { return c.InFolios }),
		Whole:     median(func(c Cost) float64 { return c.Whole }),
	}
}

// lane is a run of whole blocks of which nothing is in memory. Lanes are read at the same time, so that the disk
// always has work.
type lane struct {
	pages.Range
	guard int64 // bytes behind it that are not in memory either: a large folio is read with what follows it
}

// withGuard is a lane with what may be read behind it.
func (l lane) withGuard() pages.Range {
	return pages.Range{Offset: l.Offset, Length: l.Length + l.guard}
}

// findLanes looks for lanes of at most length bytes each, until they have total bytes together.
func (m *costing) findLanes(ctx context.Context, length, total int64) error {
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
		there, err := f.Resident(block)
		if err != nil {
			return err
		}
		resident += min(there, block.Length)
		switch free := there == 0; {
		case free && block.Length == m.unit && run.Length < length: // the run grows
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
		return fmt.Errorf("of %s, %s of %s are in memory, here and there: "+
			"there is no part that is not and is large enough to measure",
			f.Path, formatBytes(resident), formatBytes(f.Size))
	}
}

// takeLanes returns the next lanes: at most part bytes of them, but at least one lane. After the last lane it
// begins with the first one again, but no call returns a lane twice.
func (m *costing) takeLanes(part int64) []lane {
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
