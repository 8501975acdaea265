package cli

// This file owns what signals do to a command.

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Interrupted is the cause of a context that a signal ended. It is a [context.Canceled].
type Interrupted struct{ Signal syscall.Signal }

func (e *Interrupted) Error() string { return "interrupted by " + unix.SignalName(e.Signal) }
func (e *Interrupted) Unwrap() error { return context.Canceled }

// oneRequest is how long signals count as one: timeout(1) signals a process and then its process group, which it is in.
const oneRequest = 300 * time.Millisecond

// Signals returns a context that ends when the process is told to end, with [Interrupted] as its cause: by SIGINT, SIGTERM, or SIGHUP. The
// command then ends in order, with outputs that are whole or not there. A second signal, at least 300 ms later, ends the process at
// once with exit code 128 + its number; temporary files and started processes may stay. stop gives the signals back, and waits.
//
// SIGHUP that is ignored when the process starts stays ignored: that is how nohup keeps a command alive. SIGINT is heard even if it
// is ignored then. A shell without job control, which is every script's, starts background jobs with SIGINT ignored so that they outlive
// a Ctrl-C that ends the script; but then `kill -INT $!` would not end them either, and a measurement that goes on unseen spoils
// the next one. So Ctrl-C in a script also ends the commands that it runs in the background; setsid(1) keeps one out of the terminal's reach.
func Signals(parent context.Context) (ctx context.Context, stop func()) {
	return signals(parent, func(s syscall.Signal) { os.Exit(128 + int(s)) })
}

// FirstSignal is Signals for a command that has much to write after it was told to end: further signals have no effect until stop.
func FirstSignal(parent context.Context) (ctx context.Context, stop func()) {
	return signals(parent, func(syscall.Signal) {})
}

// signals calls again for each signal after the first.
func signals(parent context.Context, again func(syscall.Signal)) (ctx context.Context, stop func()) {
	heard := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) {
		heard = append(heard, unix.SIGHUP)
	}
	came := make(chan os.Signal, 8)
	signal.Notify(came, heard...)
	ctx, cancel := context.WithCancelCause(parent)
	stopping, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-came:
			cancel(&Interrupted{s.(syscall.Signal)})
		case <-stopping:
			return
		}
		first := time.Now()
		for {
			select {
			case s := <-came:
				if time.Since(first) >= oneRequest {
					again(s.(syscall.Signal))
				}
			case <-stopping:
				return
			}
		}
	}()
	return ctx, sync.OnceFunc(func() {
		signal.Stop(came)
		close(stopping)
		<-ended
		cancel(nil)
	})
}
