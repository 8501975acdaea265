package cli

// This file defines how signals end a command.

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Interrupted is the cause of a context that a signal has ended. It wraps [context.Canceled].
type Interrupted struct{ Signal syscall.Signal }

func (e *Interrupted) Error() string { return "interrupted by " + unix.SignalName(e.Signal) }
func (e *Interrupted) Unwrap() error { return context.Canceled }

// oneRequest is the time within which two signals count as one. timeout(1) signals a process and
// then its process group, which contains the process as well.
const oneRequest = 300 * time.Millisecond

// Signals returns a context that ends at SIGINT, SIGTERM or SIGHUP, with [Interrupted] as its
// cause. The command should then end in order, with outputs that are complete or do not exist. A
// second signal, at least 300 ms later, ends the process at once with exit code 128 + its number.
// Then temporary files and started processes may remain. stop restores the signals' effect, and
// waits for the goroutine.
//
// If SIGHUP is ignored when the process starts, it stays ignored. That is how nohup keeps a command
// alive.
//
// SIGINT is handled even if it is ignored at the start. Shells without job control (all scripts)
// start background jobs with SIGINT ignored, so that a Ctrl-C that ends the script does not end the
// jobs. But then `kill -INT $!` would not end them either, and a measurement that continues unseen
// disturbs the next one. As a consequence, Ctrl-C in a script also ends these commands in its
// background. setsid(1) prevents that.
func Signals(parent context.Context) (ctx context.Context, stop func()) {
	return signals(parent, func(s syscall.Signal) { os.Exit(128 + int(s)) })
}

// FirstSignal is Signals for a command that has much to write after the first signal. Further
// signals have no effect until stop.
func FirstSignal(parent context.Context) (ctx context.Context, stop func()) {
	return signals(parent, func(syscall.Signal) {})
}

// hangupsKey is the key of a context's *hangups.
type hangupsKey struct{}

// hangups passes on SIGHUP to whoever takes it.
type hangups struct {
	taken   atomic.Bool
	arrived chan struct{}
}

// TakeHangups has SIGHUP no longer end the context, which Signals has made. Each one is told on the returned channel
// instead, where several that come at once may count as one. So a service reads its configuration anew. Without
// Signals, or if SIGHUP is ignored, nothing comes.
//
// A program that has a terminal must not do that: there SIGHUP says that the terminal is gone.
func TakeHangups(ctx context.Context) <-chan struct{} {
	h, ok := ctx.Value(hangupsKey{}).(*hangups)
	if !ok {
		return nil
	}
	h.taken.Store(true)
	return h.arrived
}

// HasTerminal says whether this process has a controlling terminal.
func HasTerminal() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd) // nothing was read or written
	return true
}

// signals implements Signals and FirstSignal. It calls onSecond for each signal after the first.
func signals(parent context.Context, onSecond func(syscall.Signal)) (ctx context.Context, stop func()) {
	hang := &hangups{arrived: make(chan struct{}, 1)}
	parent = context.WithValue(parent, hangupsKey{}, hang)
	caught := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) {
		caught = append(caught, unix.SIGHUP)
	}
	arrived := make(chan os.Signal, 8)
	signal.Notify(arrived, caught...)
	ctx, cancel := context.WithCancelCause(parent)
	stopping, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var first time.Time // zero: the context has not ended
		for {
			select {
			case s := <-arrived:
				switch {
				case s == unix.SIGHUP && hang.taken.Load():
					select {
					case hang.arrived <- struct{}{}:
					default: // one is waiting to be seen
					}
				case first.IsZero():
					first = time.Now()
					cancel(&Interrupted{s.(syscall.Signal)})
				case time.Since(first) >= oneRequest:
					onSecond(s.(syscall.Signal))
				}
			case <-stopping:
				return
			}
		}
	}()
	return ctx, sync.OnceFunc(func() {
		signal.Stop(arrived)
		close(stopping)
		<-ended
		cancel(nil)
	})
}
