package main

// This file checks, before prefetchd waits for somebody to help, whether it could help anybody here.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tensorcast/ebpf"
	"tensorcast/internal/proc"
)

// ownCapabilities are the capabilities that prefetchd uses besides those of the probes.
var ownCapabilities = []struct {
	name   string
	number int
	needed bool   // without it nobody can be helped
	use    string // what it takes the capability for
}{
	{"CAP_SYS_NICE", unix.CAP_SYS_NICE, true, "page out what a target has read"},
	{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, false, "look at other users' processes, and have their faults read little"},
	{"CAP_DAC_READ_SEARCH", unix.CAP_DAC_READ_SEARCH, false, "open models of other users"},
	{"CAP_FOWNER", unix.CAP_FOWNER, false, "page out models of other users"},
}

// capabilityRequirements says which of ownCapabilities this process has.
func capabilityRequirements() ([]requirement, error) {
	have, err := proc.OwnCapabilities()
	if err != nil {
		return nil, err
	}
	all := make([]requirement, 0, len(ownCapabilities))
	for _, c := range ownCapabilities {
		r := requirement{Name: c.name, OK: have.Has(c.number), Needed: c.needed}
		if !r.OK {
			r.Detail = "it takes this to " + c.use + ": " + ebpf.DoCapability
		}
		all = append(all, r)
	}
	return all, nil
}

// whileChecking waits for somebody to help, with wait, and finds out meanwhile what takes some tenths of a second:
// whether the kernel takes the probes. Others come first, as a target may be computing. If nobody can be helped,
// wait's context ends, and that is the error.
func whileChecking(cmd *cobra.Command, wait func() error) error {
	before := cmd.Context()
	ctx, cancel := context.WithCancelCause(before)
	defer cancel(nil)
	cmd.SetContext(ctx)
	defer cmd.SetContext(before)
	thread, checked, done := make(chan int, 1), make(chan error, 1), make(chan struct{})
	defer close(done)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		thread <- unix.Gettid()
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, leastPriority) // otherwise it takes the time from a target
		err := checkMachine(false, slog.New(slog.DiscardHandler))
		if err != nil {
			cancel(err)
		}
		checked <- err
		<-done // no other thread is to get this one's number before
	}()
	err := wait()
	_ = unix.Setpriority(unix.PRIO_PROCESS, <-thread, 0) // now it is waited for
	return errors.Join(<-checked, err)
}

// leastPriority is the lowest of the kernel's (setpriority(2)).
const leastPriority = 19

// checkMachine says whether anybody can be helped here, before that is waited for. The error has a line for each
// thing without which nobody can. What is missing for some only is logged. quick leaves out what takes some tenths of a
// second, because a target may be loading its model already.
func checkMachine(quick bool, log *slog.Logger) error {
	if err := proc.CheckMount(); err != nil {
		return err
	}
	find := ebpf.FindObstacles
	if quick {
		find = ebpf.FindQuickObstacles
	}
	obstacles, err := find()
	if err != nil {
		return err
	}
	var missing []error
	for _, o := range obstacles {
		missing = append(missing, fmt.Errorf("%s: %s", o.What, o.Do))
	}
	own, err := capabilityRequirements()
	if err != nil {
		return err
	}
	for _, r := range own {
		switch {
		case r.OK:
		case r.Needed:
			missing = append(missing, fmt.Errorf("this process lacks %s: %s", r.Name, ebpf.DoCapability))
		case len(missing) == 0:
			log.Warn("this process lacks "+r.Name, "why", r.Detail)
		}
	}
	switch len(missing) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("nobody can be helped here: %w", missing[0])
	}
	return errors.Join(append([]error{errors.New("nobody can be helped here, because")}, missing...)...)
}
