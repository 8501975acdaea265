package capture

// This file defines the common interface of the two capturers: probes in the kernel, and a library
// inside the target.

import (
	"context"

	"tensorcast/capture/preload"
	"tensorcast/ebpf"
	"tensorcast/event"
)

// capturer observes a target. Its methods are specified at those of Capture with the same names.
type capturer interface {
	// Run passes events to handle until ctx is done, then the remaining ones.
	Run(ctx context.Context, handle func(event.Event) error) error
	Counters() (event.Counters, error)
	Libraries() []string
	WantInputs(wanted bool) error
	Describe(pid int) event.TargetInfo
	Explain() error
	// Detach, after Run, removes what slows the target down.
	Detach() error
	Close() error
}

// probes is the capturer in the kernel.
type probes struct{ *ebpf.Tracer }

func (p probes) Libraries() []string { return p.Attached() }
func (p probes) Explain() error      { return p.Ready() }

// library is the capturer inside the target.
type library struct {
	*preload.Session
	pid int
}

func (l library) Run(ctx context.Context, handle func(event.Event) error) error {
	return l.Session.Run(ctx, l.pid, handle)
}
func (l library) Describe(pid int) event.TargetInfo { return l.Target(pid) }
func (l library) Explain() error                    { return l.Session.Explain() }
func (l library) WantInputs(bool) error             { return nil } // it has none
// Detach has nothing to do: once Run has returned, the library reports nothing more.
func (l library) Detach() error { return nil }
