package auto

// This file tests that it is told who is helped and who waits.

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"

	"tensorcast/internal/testenv"
	"tensorcast/processes"
	"tensorcast/processes/processestest"
)

// Who is helped and who waits is told at the beginning, and when it changes.
func TestTell(t *testing.T) {
	const name = "tell-target"
	processestest.Program(t, name, true) // skips the test where there is no compiler, before anything runs
	f := newFinder(t, name)
	var mu sync.Mutex
	var told []string
	hasTold := func(what string) bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told) > 0 && told[len(told)-1] == what
	}
	pids := func(all []processes.Candidate) (list []int) {
		for _, c := range all {
			list = append(list, c.PID)
		}
		return list
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() {
		_, err := Run(ctx, f, Options{
			MaxHelpers: 1, Out: io.Discard, Err: io.Discard, Log: slog.New(slog.DiscardHandler),
			Helper: func(c processes.Candidate, _ int64) []string {
				return []string{"sh", "-c", fmt.Sprintf("while kill -0 %d 2>/dev/null; do sleep 0.05; done", c.PID)}
			},
			OnChange: func(helped, waiting []processes.Candidate) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprint(pids(helped), pids(waiting)))
			},
		})
		ran <- err
	}()
	testenv.WaitFor(t, "nobody to be helped", func() bool { return hasTold("[] []") })
	target := startTargets(t, name, true, 1)[0]
	first := target.PID()
	testenv.WaitFor(t, "the first to be helped", func() bool { return hasTold(fmt.Sprint([]int{first}, []int{})) })
	second := startTargets(t, name, true, 1)[0].PID()
	testenv.WaitFor(t, "the second to wait", func() bool { return hasTold(fmt.Sprint([]int{first}, []int{second})) })
	target.End()
	testenv.WaitFor(t, "the second to be helped", func() bool { return hasTold(fmt.Sprint([]int{second}, []int{})) })
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for i := 1; i < len(told); i++ {
		if told[i] == told[i-1] {
			t.Errorf("%s was told twice, one after the other", told[i])
		}
	}
}
