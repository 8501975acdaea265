package serve

// This file tests which other models count as read at present.

import (
	"context"
	"errors"
	"testing"
	"time"

	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

func TestNeighbours(t *testing.T) {
	report := func(target int, level string, bytes int64) monitor.Report {
		return monitor.Report{Target: target, Status: prefetch.Status{Needs: bytes, Level: level}}
	}
	reports := []monitor.Report{
		report(7, "/a memory.max", 1000), // the own target
		report(8, "/a memory.max", 100), report(9, "/a memory.high", 10), report(10, "/a b memory.max", 1),
		report(11, "host", 5), report(12, "/a memory.max", 0), report(13, "/a memory.max", 2000), report(0, "", 0),
	}
	computed := map[int]float64{8: 50, 9: 60, 10: 70, 11: 80, 12: 90}
	processorTime := func(pid int) (float64, error) {
		if seconds, known := computed[pid]; known {
			return seconds, nil
		}
		return 0, errors.New("no such process")
	}
	n := &neighbours{target: 7, list: func(context.Context) ([]monitor.Report, error) { return reports, nil }}
	now := time.Now()
	look := func(after time.Duration, computing ...int) {
		now = now.Add(after)
		for _, pid := range computing {
			computed[pid] += after.Seconds() / 10
		}
		n.look(t.Context(), now, processorTime)
	}
	expect := func(when string, want map[string]int64) {
		t.Helper()
		for level, bytes := range want {
			if got := n.need(level); got != bytes {
				t.Errorf("%s: %q needs %d, want %d", when, level, got, bytes)
			}
		}
	}
	expect("before anybody was asked", map[string]int64{"/a memory.max": 0})
	look(0)
	expect("after one look", map[string]int64{"/a memory.max": 0})
	look(time.Second, 8, 10)
	expect("two compute", map[string]int64{
		"/a memory.max": 100, "/a memory.high": 100, "/a b memory.max": 1, "host": 0,
	})
	look(9*time.Second, 9)
	expect("one began, one paused", map[string]int64{"/a memory.max": 110})
	look(time.Second)
	expect("one paused for long", map[string]int64{"/a memory.max": 10, "/a b memory.max": 0})
	delete(computed, 9)
	look(time.Second)
	expect("it has ended", map[string]int64{"/a memory.max": 0})
}
