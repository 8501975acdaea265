package capture

// This file makes one interface of the two capturers: probes in the kernel, and a library inside the target.

import (
	"context"

	"tensorcast/capture/preload"
	"tensorcast/ebpf"
	"tensorcast/event"
)

// capturer observes a target. Capture's methods of the same names say what is expected.
type capturer interface {
	// Run hands events to handle until ctx is done, then those that are under way.
	Run(ctx context.Context, handle func(event.Event) error) error
	Counters() (event.Counters, error)
	Libraries() []string
	Describe(pid int) event.TargetInfo
	Explain() error
	// Detach, after Run, lets the target go on at full speed.
	Detach() error
	Close() error
}

// probes observe from the kernel.
type probes struct{ *ebpf.Tracer }

func (p probes) Libraries() []string { return p.Attached() }
func (p probes) Explain() error      { return p.Ready() }

// library observes from inside.
type library struct {
	*preload.Session
	pid int
}

func (l library) Run(ctx context.Context, handle func(event.Event) error) error {
	return l.Session.Run(ctx, l.pid, handle)
}
func (l library) Describe(pid int) event.TargetInfo { return l.Target(pid) }
func (l library) Explain() error                    { return l.Seen() }
func (l library) Detach() error                     { return nil } // once Run has returned, the library reports nothing more
