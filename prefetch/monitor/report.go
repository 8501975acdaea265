package monitor

// This file defines what a prefetchd reports of itself.

import (
	"path"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/internal/systemd"
	"tensorcast/prefetch"
)

// Report is what a prefetchd does. Sizes are bytes.
type Report struct {
	PID    int `json:"pid"`        // of prefetchd
	Target int `json:"target_pid"` // whom it helps; 0: it looks for a target, see Search
	// Command is the name of the target's program, as the kernel has it (15 bytes). The target can choose it.
	Command string `json:"target_command"`
	// Unit is the systemd unit that the target belongs to, service or scope, the innermost one. It is empty if there is
	// none.
	Unit string `json:"target_unit"`
	// Models are the paths of the model files that the target maps. The target can choose these, too.
	Models []string        `json:"target_models"`
	Began  time.Time       `json:"began"` // when prefetchd began
	Status prefetch.Status `json:"status"`
	// IdleSince is when the target stopped computing, if that is some seconds ago. It is zero while it computes,
	// and where that is not known.
	IdleSince time.Time `json:"target_idle_since,omitzero"`
	// Search is what a prefetchd without a target looks for. It is nil for one with a target.
	Search   *Search        `json:"search,omitempty"`
	Faults   int64          `json:"target_major_faults"` // since the target was started; -1: it has ended
	OwnBytes int64          `json:"own_bytes"`           // prefetchd's anonymous memory
	Waits    MemoryPressure `json:"host_memory_pressure"`
	// TargetRead and OwnRead are how many bytes the target and prefetchd have had read from disk since they were
	// started (read_bytes of /proc/PID/io): by the target's faults, and for help. -1: that is not known.
	TargetRead int64 `json:"target_read_bytes"`
	OwnRead    int64 `json:"own_read_bytes"`
	// Paused says that somebody wants the target to be left alone for now.
	Paused bool `json:"paused"`
	// Detail is what a picture needs. It is nil unless it was asked for, and is not older than some seconds.
	Detail *prefetch.Detail `json:"detail,omitempty"`

	down bool // nobody answers as a prefetchd does, see Down
}

// Search says what a prefetchd looks for that has no target itself.
type Search struct {
	Names []string `json:"names"` // of the processes that it looks for; empty: all that compute with ggml
	All   bool     `json:"all"`   // it helps all of them (--auto), and not only the first
	// Helped are those that a prefetchd of their own helps, and Waiting those that wait until one of them has ended.
	Helped  []Process `json:"helped"`
	Waiting []Process `json:"waiting"`
}

// Process is a process that was found. It chooses its name itself.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// MemoryPressure is the share of the last ten seconds in which processes of the machine waited for memory, in percent
// (/proc/pressure/memory, Linux 4.20). -1 means that the kernel does not say.
type MemoryPressure struct {
	Some float64 `json:"some_avg10"` // at least one process waited
	Full float64 `json:"full_avg10"` // all processes waited
}

// lookUp fills in what is only known when somebody asks: what /proc says of the target and of this process.
func (r *Report) lookUp() {
	r.Faults, r.Waits = -1, MemoryPressure{-1, -1}
	r.TargetRead, r.OwnRead = readBytes(r.Target), readBytes(r.PID)
	if p, err := procfs.NewProc(r.Target); err == nil && r.Target != 0 {
		if stat, err := p.Stat(); err == nil {
			r.Command, r.Faults = stat.Comm, int64(stat.MajFlt)
		}
		r.Unit = unitOf(p)
	}
	if p, err := procfs.NewProc(r.PID); err == nil {
		if status, err := p.NewStatus(); err == nil {
			r.OwnBytes = int64(status.RssAnon)
		}
	}
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if psi, err := fs.PSIStatsForResource("memory"); err == nil && psi.Some != nil && psi.Full != nil {
			r.Waits = MemoryPressure{psi.Some.Avg10, psi.Full.Avg10}
		}
	}
}

// unitOf is the innermost service or scope of systemd that a process belongs to; "" if there is none.
func unitOf(p procfs.Proc) string {
	groups, err := p.Cgroups()
	if err != nil {
		return ""
	}
	for _, g := range groups {
		if units := systemd.Units(g.Path); len(units) > 0 {
			return path.Base(units[len(units)-1])
		}
	}
	return ""
}
