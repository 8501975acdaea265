package proc

// This file lists the processes that a process has started.

import (
	"fmt"

	"github.com/prometheus/procfs"
)

// Started is a process, and the one that has started it.
type Started struct{ PID, Parent int }

// Below lists the processes that a process has started, and those that these have started, and so on. A parent comes
// before its children. A process whose parent has ended is not below anybody any more.
func Below(pid int) ([]Started, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	children := map[int][]int{}
	for _, p := range all {
		if stat, err := p.Stat(); err == nil { // else it has ended
			children[stat.PPID] = append(children[stat.PPID], p.PID)
		}
	}
	var below []Started
	seen := map[int]bool{pid: true}
	for parents := []int{pid}; len(parents) > 0; parents = parents[1:] {
		for _, child := range children[parents[0]] {
			if !seen[child] {
				seen[child] = true
				below = append(below, Started{child, parents[0]})
				parents = append(parents, child)
			}
		}
	}
	return below, nil
}
