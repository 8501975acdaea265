package accounting

// This file defines which sums of an account must be equal.

import (
	"errors"
	"fmt"
)

// Check returns an error that names every sum that is wrong. Lost ops are no error as long as the
// counters include them.
func (a *Account) Check() error {
	n, c := a.Count, a.Counters
	var wrong []error
	equal := func(what string, got, want uint64) {
		if got != want {
			wrong = append(wrong, fmt.Errorf("%s: %d, not %d", what, got, want))
		}
	}
	// A missed hit may be that of any op on any thread.
	equal("hits and recursion misses, against threads x ops that ran", c.Hits+c.Misses, uint64(n.Ops*n.Threads))
	equal("received + lost + filtered (+ unfinished and unreadable), against hits",
		c.Received+c.OpsLost+c.Filtered()+c.Unfinished+c.Faults, c.Hits)
	equal("received, against sent", c.Received, c.OpsSent)
	if c.Misses == 0 && c.Faults == 0 {
		equal("filtered for another thread", c.OtherThreads, uint64(n.Ops*(n.Threads-1)))
		equal("filtered for want of a weight", c.NoWeight, uint64(n.Ops-n.WeightOps))
		equal("received + lost + unfinished, against ops with a weight that ran", c.Received+c.OpsLost+c.Unfinished,
			uint64(n.WeightOps))
	}
	if c.Lost() == 0 && c.Incomplete() == 0 && c.Unfinished == 0 {
		equal("rows, against ops with a weight that ran", uint64(a.Rows), uint64(n.WeightOps))
		equal("steps, against graphs", uint64(a.Steps), uint64(n.Graphs))
	}
	return errors.Join(wrong...)
}
