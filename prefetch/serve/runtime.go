package serve

// This file keeps the memory of Go's runtime small, which the target pays for, and keeps the runtime from stopping a
// thread that runs before all others.

import (
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/prefetch/room"
)

const (
	// collectInterval is how often garbage is collected in any case. One megabyte accumulates meanwhile, two where
	// experts are chosen.
	collectInterval = 2 * time.Second
	// urgentLimit is the memory at which Go's runtime collects by itself even while the thread is urgent, because a
	// target may send anything. Predictors take a third of it at most.
	urgentLimit = 64 << 20
)

// goRuntime has the settings of Go's runtime that follow what the server does. It is for the server's thread.
type goRuntime struct {
	log         *slog.Logger
	urgent      bool // this thread runs before all others
	gcPercent   int  // Go's settings before that
	memoryLimit int64
	collectedAt time.Time
	collecting  atomic.Bool
}

// setUrgent has this thread run before all others, or not. This may be refused.
func (r *goRuntime) setUrgent(urgent bool) {
	if err := room.SetUrgent(urgent); err != nil {
		r.log.Debug("chosen experts are read a little later", "error", err)
		return
	}
	if urgent == r.urgent {
		return
	}
	r.urgent = urgent
	if urgent {
		r.gcPercent, r.memoryLimit = debug.SetGCPercent(-1), debug.SetMemoryLimit(urgentLimit)
	} else {
		debug.SetGCPercent(r.gcPercent)
		debug.SetMemoryLimit(r.memoryLimit)
	}
}

// leaveUrgent undoes setUrgent, if it had an effect.
func (r *goRuntime) leaveUrgent() {
	if r.urgent {
		r.setUrgent(false)
	}
}

// collect collects garbage now and then, and so gives the memory back to the system that setting up took. Go's runtime
// would keep it for garbage to come. On a busy machine a collection takes long, and counts what is allocated meanwhile
// as in use. Then the runtime waits for up to 9 MB before it collects again, where less than one is in use.
//
// While this thread is urgent, it waits for the collection, and Go's runtime does not collect by itself. A collection
// looks through this thread's stack, too. If the thread came back from a system call meanwhile, it would take the
// processor from the collecting thread, and then wait for it without leaving the processor: for a second, until Linux
// takes it away.
func (r *goRuntime) collect() {
	if time.Since(r.collectedAt) < collectInterval || !r.collecting.CompareAndSwap(false, true) {
		return
	}
	r.collectedAt = time.Now()
	collect := debug.FreeOSMemory
	if r.urgent {
		collect = runtime.GC // the target would wait for FreeOSMemory's other work
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		collect()
		r.collecting.Store(false)
	}()
	if r.urgent {
		<-done
	}
}

// ownMemory is this process's anonymous memory in bytes; 0 if that is not known.
func ownMemory() int64 {
	p, err := procfs.Self()
	if err != nil {
		return 0
	}
	status, err := p.NewStatus()
	if err != nil {
		return 0
	}
	return int64(status.RssAnon)
}
