package proc

// This file handles signals on behalf of a command. Signals that were ignored when this process
// started (nohup) stay ignored.

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// withoutIgnored returns those signals that are not ignored.
func withoutIgnored(signals []syscall.Signal) []os.Signal {
	var rest []os.Signal
	for _, s := range signals {
		if !signal.Ignored(s) {
			rest = append(rest, s)
		}
	}
	return rest
}

// Relay catches signals to this process and passes them on to a command. Ignored signals stay
// ignored; the command inherits that.
type Relay struct{ signals chan os.Signal }

// NewRelay starts to catch signals. Signals that arrive before Run are kept for it. The caller must
// call Stop.
func NewRelay(signals ...syscall.Signal) *Relay {
	r := &Relay{make(chan os.Signal, 16)}
	if caught := withoutIgnored(signals); len(caught) > 0 {
		signal.Notify(r.signals, caught...)
	}
	return r
}

// Run passes signals to send until ctx is done, except for signals that a terminal has sent to the
// command, too. Signals that arrive after Run are dropped.
func (r *Relay) Run(ctx context.Context, send func(syscall.Signal)) {
	for {
		select {
		case s := <-r.signals:
			if sig, ok := s.(syscall.Signal); ok && !fromTerminal(sig) {
				send(sig)
			}
		case <-ctx.Done():
			return
		}
	}
}

// Stop restores the signals' former effect.
func (r *Relay) Stop() { signal.Stop(r.signals) }

// fromTerminal guesses whether the terminal has sent a signal to its whole foreground process
// group, if that is ours; then the command has received it, too. (The same signal sent by kill
// cannot be distinguished.)
func fromTerminal(s syscall.Signal) bool {
	if s != syscall.SIGINT && s != syscall.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false // this process has no controlling terminal
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}
