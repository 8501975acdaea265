package proc

// This file takes signals on behalf of a command, and leaves those alone that were ignored when this process started (nohup).

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// heeded are those of the signals that are not ignored.
func heeded(signals []syscall.Signal) []os.Signal {
	var of []os.Signal
	for _, s := range signals {
		if !signal.Ignored(s) {
			of = append(of, s)
		}
	}
	return of
}

// Relay takes signals that this process gets, to pass them on to a command. Those that are being ignored stay ignored: the command, which
// inherits that, is to ignore them too.
type Relay struct{ signals chan os.Signal }

// NewRelay begins to take signals; those that come before Run wait. Stop it.
func NewRelay(signals ...syscall.Signal) *Relay {
	r := &Relay{make(chan os.Signal, 16)}
	if heeded := heeded(signals); len(heeded) > 0 {
		signal.Notify(r.signals, heeded...)
	}
	return r
}

// Run hands signals to send until ctx is done, save those that a terminal has sent to the command, too. Signals that come later have no effect.
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

// Stop gives the signals their former effect again.
func (r *Relay) Stop() { signal.Stop(r.signals) }

// fromTerminal says whether a signal is one that a terminal sends to the whole process group in its foreground, and that group is
// ours: then the command has got it by itself. (The same signal sent by kill cannot be told apart.)
func fromTerminal(s syscall.Signal) bool {
	if s != syscall.SIGINT && s != syscall.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false // no terminal controls us
	}
	defer tty.Close()
	foreground, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}
