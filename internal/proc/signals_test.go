package proc

// This file tests the relay of signals.

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"tensorcast/internal/testenv"
)

// raise sends this process a signal that is caught or ignored.
func raise(t *testing.T, s syscall.Signal) {
	t.Helper()
	if signal.Ignored(s) {
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		return
	}
	arrived := make(chan os.Signal, 1)
	signal.Notify(arrived, s)
	defer signal.Stop(arrived)
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		t.Fatal(err)
	}
	<-arrived // else it may arrive when nobody catches it any more
}

// A relay passes on the signals that arrive between NewRelay and the end of Run. Ignored signals
// stay ignored.
func TestRelay(t *testing.T) {
	signal.Ignore(syscall.SIGUSR2)
	defer signal.Reset(syscall.SIGUSR2)
	r := NewRelay(syscall.SIGUSR1, syscall.SIGUSR2)
	defer r.Stop()
	raise(t, syscall.SIGUSR1) // before Run
	raise(t, syscall.SIGUSR2)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var got []string
	received := func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(got, " ")
	}
	var running sync.WaitGroup
	running.Go(func() {
		r.Run(ctx, func(s syscall.Signal) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, s.String())
		})
	})
	const one = "user defined signal 1"
	testenv.WaitFor(t, "the signal that came early", func() bool { return received() == one })
	raise(t, syscall.SIGUSR1)
	testenv.WaitFor(t, "the next one", func() bool { return received() == one+" "+one })
	cancel()
	running.Wait()
	raise(t, syscall.SIGUSR1)
	if !signal.Ignored(syscall.SIGUSR2) || received() != one+" "+one {
		t.Errorf("got %q, SIGUSR2 ignored: %v; want %q, true", received(), signal.Ignored(syscall.SIGUSR2), one+" "+one)
	}
}
