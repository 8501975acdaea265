package main

// This file runs a capture from its beginning to its end.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"tensorcast/event"
	"tensorcast/internal/invoker"
	"tensorcast/internal/proc"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// capture is one run.
type capture struct {
	options
	user     *invoker.User // whose the output is; nil: ours
	target   target
	capturer capturer
	recorder *trace.Session
	csv      io.Closer // nil if there is none to close
	display  *display
	modest   bool // our threads give way
}

// run traces, and returns the exit status of what was traced.
func run(ctx context.Context, o options, args []string) (status int, err error) {
	c := capture{options: o, display: newDisplay(o)}
	defer c.display.Close()
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(c.display.Log(), &slog.HandlerOptions{Level: level}))
	if c.user, err = invoker.Find(os.Environ()); err != nil {
		return 0, err
	}
	if c.target, c.capturer, err = begin(ctx, o, c.user, args, c.tick, log); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.capturer.Close()) }()
	if err := c.user.Do(func() error { return c.open(args, log) }); err != nil {
		return 0, errors.Join(err, c.target.Abandon())
	}
	if c.csv != nil {
		defer func() { err = errors.Join(err, c.user.Do(c.csv.Close)) }()
	}
	return c.run(ctx)
}

// open opens the output.
func (c *capture) open(args []string, log *slog.Logger) error {
	if c.pid != 0 {
		args = proc.CommandLine(int(c.pid))
	}
	ro := trace.RecorderOptions{
		Command: args, PID: c.target.PID(), Log: log, Counters: c.capturer.Counters, Libraries: c.capturer.Libraries, Target: c.capturer.Describe,
		Detail: c.detail.String(), RotateBytes: c.rotate.bytes, RotateEvery: c.rotate.every, RotateKeep: c.keep, Follow: c.follow,
	}
	if c.preload {
		ro.Detail = tables.DetailPreload
	}
	switch {
	case c.out == toStdout:
		ro.CSV = os.Stdout
	case c.options.csv:
		file, err := os.Create(c.out)
		if err != nil {
			return fmt.Errorf("write CSV: %w", err)
		}
		ro.CSV, c.csv = file, file
	default:
		ro.Dir = c.out
	}
	var err error
	c.recorder, err = trace.NewSession(ro)
	return err
}

// tick is called now and then between events, by the goroutine that handles them.
func (c *capture) tick() error {
	status := c.recorder.Status()
	if !c.modest && status.Steps > 0 { // what comes before, probes and models, is not to take longer
		giveWay()
		c.modest = true
	}
	c.display.Show(status)
	return c.recorder.Flush()
}

// run lets the target go, and is over when the target is.
func (c *capture) run(ctx context.Context) (int, error) {
	ended, end := context.WithCancel(ctx)
	defer end()
	broken, fail := context.WithCancel(ctx)
	defer fail()
	recorded := make(chan error, 1)
	go func() {
		err := c.user.Do(func() error { return c.capturer.Run(ended, c.recorder.Handle) })
		if err != nil { // whatever went wrong here, the target goes on at full speed
			_ = c.capturer.Detach()
			if c.pid == 0 {
				fmt.Fprintf(c.display.Log(), "tracer: %v (the command goes on, untraced)\n", err) // its end may be far away
			}
			fail()
		}
		recorded <- err
	}()
	status, waitErr := c.target.Run(broken)
	end()
	runErr := <-recorded
	c.display.Close()
	var metas []*tables.Meta
	finishErr := c.user.Do(func() (err error) {
		metas, err = c.recorder.Finish(runErr)
		return err
	})
	if runErr != nil || finishErr != nil { // then only what there is to read is worth a summary
		metas = slices.DeleteFunc(metas, func(m *tables.Meta) bool { return m.Rows == 0 })
	}
	if err := summarise(os.Stderr, c.options, metas); err != nil {
		return 0, err
	}
	switch {
	case waitErr != nil:
		return 0, errors.Join(waitErr, runErr)
	case runErr != nil && c.pid == 0:
		return exitFailure, nil // it was said when it happened
	case runErr != nil:
		return 0, runErr
	case errors.Is(finishErr, event.ErrNoDecode), finishErr != nil && errors.Is(c.capturer.Why(), event.ErrOldGGML):
		return c.nothingSeen(status, finishErr)
	case finishErr != nil:
		return 0, finishErr
	}
	if c.strict {
		if err := strict(metas); err != nil {
			return 0, err
		}
	}
	return status, nil
}

// nothingSeen says why no decode was seen, or no op of any. A command that failed has its own reasons, and its own status.
func (c *capture) nothingSeen(status int, err error) (int, error) {
	if why := c.capturer.Why(); why != nil {
		err = why
	}
	if errors.Is(err, event.ErrNoGGML) && !c.follow {
		err = fmt.Errorf("%w If it starts one, add --follow", err)
	}
	if status != 0 {
		fmt.Fprintln(os.Stderr, "tracer:", err)
		return status, nil
	}
	return 0, err
}

// strict fails for captures that miss anything. The counters are those of all processes together.
func strict(metas []*tables.Meta) error {
	for _, m := range metas {
		if n := m.Counters.Lost(); n > 0 {
			return fmt.Errorf("%d events were lost: use a larger --buffer", n)
		}
		if n := m.Counters.Incomplete(); n > 0 {
			return fmt.Errorf("%d ops could not be read whole: --json tells why (its counters)", n)
		}
	}
	return nil
}
