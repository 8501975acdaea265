package serve

// This file finds out how much memory other models want, whose targets compute at present. Otherwise two prefetchds
// would each count on all the memory that their targets have together.

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/prefetch/monitor"
)

const (
	// neighboursInterval is how often the other prefetchds are asked.
	neighboursInterval = time.Second
	// leastComputing is the share of a processor from which on a target computes.
	leastComputing = 0.02
	// computingTime is how long a target that has computed is counted. A chat pauses for longer, and then its model's
	// memory is of more use to others.
	computingTime = 10 * time.Second
)

// neighbours knows what the other prefetchds' models want. Its methods are safe for concurrent use.
type neighbours struct {
	target int
	list   func(ctx context.Context) ([]monitor.Report, error)

	// asked says that need was called since the others were asked last. A prefetchd that waits for its target does not
	// ask them.
	asked atomic.Bool

	mu     sync.Mutex
	others map[int]neighbour // by target
}

// neighbour is what is known of another prefetchd's target.
type neighbour struct {
	group      string    // where its room is bounded, see groupOf
	bytes      int64     // that it would like to have in memory
	computed   float64   // seconds of processor time so far
	looked     time.Time // when that was so
	computesAt time.Time // when it was seen to compute last
}

// watch asks the other prefetchds until ctx ends.
func (n *neighbours) watch(ctx context.Context) {
	tick := time.NewTicker(neighboursInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if n.asked.Swap(false) {
			n.look(ctx, time.Now(), processorTime)
		}
	}
}

// look asks them once. An answer that is wrong is left out, as is a target that has ended.
func (n *neighbours) look(ctx context.Context, now time.Time, processorTime func(pid int) (float64, error)) {
	reports, _ := n.list(ctx)
	found := map[int]neighbour{}
	for i := range reports {
		r := &reports[i]
		if r.Target == 0 || r.Target == n.target || r.Status.Needs <= 0 {
			continue
		}
		computed, err := processorTime(r.Target)
		if err != nil {
			continue
		}
		was, known := n.others[r.Target] // only this goroutine writes
		is := neighbour{groupOf(r.Status.Level), r.Status.Needs, computed, now, was.computesAt}
		if known && computed-was.computed >= leastComputing*now.Sub(was.looked).Seconds() {
			is.computesAt = now
		}
		found[r.Target] = is
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.others = found
}

// need is how many bytes the models of others that compute at present would like to have in memory at a level.
func (n *neighbours) need(level string) (bytes int64) {
	group := groupOf(level)
	n.asked.Store(true)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.others {
		isKnown := time.Since(o.looked) < computingTime // nobody may have asked for long
		if isKnown && o.group == group && !o.computesAt.IsZero() && o.looked.Sub(o.computesAt) < computingTime {
			bytes += o.bytes
		}
	}
	return bytes
}

// groupOf returns the control group of a level (room.Room.Level), without which of its limits it is: a group's
// several limits bound the same memory.
func groupOf(level string) string {
	if at := strings.LastIndexByte(level, ' '); at >= 0 {
		return level[:at]
	}
	return level
}

// processorTime is how long a process has computed.
func processorTime(pid int) (seconds float64, err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	if err != nil {
		return 0, err
	}
	return stat.CPUTime(), nil
}
