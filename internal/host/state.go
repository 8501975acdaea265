package host

// This file says what a machine does at a moment, so that a measurement can tell whether others worked beside it.

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/procfs"
)

// State is what the machine did at a moment. What the system does not report is 0.
type State struct {
	Time time.Time `json:"time"`
	// Load is the load average over the minute before.
	Load float64 `json:"load"`
	// Available is how much memory programs could still get, in bytes.
	Available int64 `json:"available_bytes"`
	// Busy is the share of the time of all processors that was not idle while the state was taken, without Steal. Steal
	// is the share in which a hypervisor gave the processors to others.
	Busy  float64 `json:"busy_share"`
	Steal float64 `json:"steal_share"`
}

// Watch looks at the machine for a time in which the caller does nothing, so that Busy is what others do. It fails only
// with the context's error.
func Watch(ctx context.Context, during time.Duration) (State, error) {
	return watch(ctx, during, procfs.DefaultMountPoint)
}

func watch(ctx context.Context, during time.Duration, mount string) (State, error) {
	before := readTimes(mount)
	select {
	case <-time.After(during):
	case <-ctx.Done():
		return State{}, context.Cause(ctx)
	}
	s := State{Time: time.Now()}
	if before != nil {
		if after := readTimes(mount); after != nil {
			s.setShares(before, after)
		}
	}
	proc, err := procfs.NewFS(mount)
	if err != nil {
		return s, nil
	}
	if load, err := proc.LoadAvg(); err == nil && load.Load1 >= 0 && load.Load1 <= math.MaxFloat64 {
		s.Load = load.Load1
	}
	memory, err := proc.Meminfo()
	if err == nil && memory.MemAvailableBytes != nil && *memory.MemAvailableBytes <= math.MaxInt64 {
		s.Available = int64(*memory.MemAvailableBytes)
	}
	return s, nil
}

// readTimes reads the times of all processors since the start of the machine, in seconds; nil if they are not reported.
func readTimes(mount string) *procfs.CPUStat {
	proc, err := procfs.NewFS(mount)
	if err != nil {
		return nil
	}
	stat, err := proc.Stat()
	if err != nil {
		return nil
	}
	return &stat.CPUTotal
}

// setShares computes the shares of what passed between two readings. The kernel has guests' times in User and Nice.
func (s *State) setShares(before, after *procfs.CPUStat) {
	sum := func(c *procfs.CPUStat) (busy, all float64) {
		busy = c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ
		return busy, busy + c.Idle + c.Iowait + c.Steal
	}
	busy0, all0 := sum(before)
	busy1, all1 := sum(after)
	if passed := all1 - all0; passed > 0 { // a counter may go backwards in a container
		s.Busy = min(max((busy1-busy0)/passed, 0), 1)
		s.Steal = min(max((after.Steal-before.Steal)/passed, 0), 1)
	}
}
