package main

// This file runs a capture from its beginning to its end.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"syscall"

	"tensorcast/capture"
	"tensorcast/event"
	"tensorcast/internal/cli"
	"tensorcast/internal/invoker"
	"tensorcast/internal/outfile"
	"tensorcast/internal/proc"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// passedOn are the signals that a command gets from tracer.
var passedOn = []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}

// session is one run.
type session struct {
	options
	user     *invoker.User // whose the output is; nil: ours
	capture  *capture.Capture
	recorder *trace.Session
	csv      *outfile.File // nil if there is none
	display  *display
	stdout   io.Writer
	stderr   io.Writer
	modest   bool // our threads give way
}

// run traces, and returns the exit status of what was traced.
func run(ctx context.Context, o options, args []string) (status int, err error) {
	s := session{options: o, display: newDisplay(o), stdout: cli.Safe(os.Stdout), stderr: cli.Safe(os.Stderr)}
	defer s.display.Close()
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(s.display.Log(), &slog.HandlerOptions{Level: level}))
	if s.user, err = invoker.Find(os.Environ()); err != nil {
		return 0, err
	}
	if o.pid != 0 { // further signals have no effect: what was captured is written to its end
		var stop func()
		ctx, stop = cli.FirstSignal(ctx)
		defer stop()
	}
	if err := s.begin(ctx, args, log); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.capture.Close()) }()
	defer func() { s.csv.Discard() }() // unless it has been committed
	if err := s.user.Do(func() error { return s.open(ctx, args, log) }); err != nil {
		return 0, err
	}
	return s.run(ctx)
}

// begin starts the command, or finds the process.
func (s *session) begin(ctx context.Context, args []string, log *slog.Logger) (err error) {
	opts := capture.Options{
		Preload: s.preload, Detail: capturedAs[s.detail], Buffers: s.buffers, Inputs: s.hidden, PerfEvents: s.perf, Follow: s.follow, RingBytes: int(s.ringKiB) << 10,
		Tick: s.tick, Signals: passedOn, Log: log,
	}
	if s.pid != 0 {
		s.capture, err = capture.Attach(int(s.pid), opts)
		return err
	}
	user := s.user
	if s.asRoot {
		user = nil
	}
	cmd, err := user.Command(args)
	if err != nil {
		return err
	}
	s.capture, err = capture.Start(ctx, cmd, opts)
	return err
}

// open opens the output. Standard output is waited for until ctx ends.
func (s *session) open(ctx context.Context, args []string, log *slog.Logger) error {
	if s.pid != 0 {
		args = proc.CommandLine(int(s.pid))
	}
	ro := trace.RecorderOptions{
		Command: args, PID: s.capture.PID(), Log: log, Counters: s.capture.Counters, Libraries: s.capture.Libraries, Target: s.capture.Describe,
		Detail: s.detail, RotateBytes: s.rotate.bytes, RotateEvery: s.rotate.every, RotateKeep: s.keep, Follow: s.follow,
		NoTokenIDs: s.noTokenIDs, Hidden: s.hidden, Surroundings: (&surroundings{probe: !s.noProbe, cache: cacheFile(), log: log}).tell,
	}
	if s.preload {
		ro.Detail = tables.DetailPreload
	}
	var err error
	switch {
	case s.out == toStdout:
		ro.CSV = cli.Unblocked(ctx, s.stdout)
	case s.options.csv:
		if s.csv, err = outfile.Create(s.out); err != nil {
			return err
		}
		ro.CSV = s.csv
	default:
		ro.Dir = s.out
	}
	s.recorder, err = trace.NewSession(ro)
	return err
}

// tick is called now and then between events, by the goroutine that handles them.
func (s *session) tick() error {
	status := s.recorder.Status()
	if !s.modest && status.Steps > 0 { // not before: attaching probes and loading the model should be fast
		proc.GiveWay()
		s.modest = true
	}
	s.display.Show(status)
	return s.recorder.Flush()
}

// run lets the target run, and returns when it has ended.
func (s *session) run(ctx context.Context) (int, error) {
	runErr := s.user.Do(func() error { return s.capture.Run(ctx, s.recorder.Handle) })
	if runErr != nil && s.pid == 0 {
		fmt.Fprintf(s.display.Log(), "tracer: %s (the command goes on, untraced)\n", cli.Message(s.advise(runErr))) // its end may be far away
	}
	status, waitErr := s.capture.Wait(ctx)
	s.display.Close()
	var metas []*tables.Meta
	finishErr := s.user.Do(func() (err error) {
		metas, err = s.recorder.Finish(runErr)
		if s.csv != nil && runErr == nil && (err == nil || errors.Is(err, event.ErrOutside)) { // what was seen is whole
			return errors.Join(err, s.csv.Commit())
		}
		return err
	})
	if runErr != nil || finishErr != nil { // after an error, a summary is worth printing only if something was captured
		metas = slices.DeleteFunc(metas, func(m *tables.Meta) bool { return m.Rows == 0 })
	}
	if finishErr == nil || errors.Is(finishErr, event.ErrOutside) {
		finishErr = errors.Join(finishErr, s.user.Do(func() error { return s.export(ctx, metas) }))
	}
	summary := s.stderr
	if s.json && !s.stdoutUsed() {
		summary = s.stdout
	}
	if err := summarise(summary, s.options, metas); err != nil {
		return 0, err
	}
	switch {
	case waitErr != nil:
		return 0, errors.Join(waitErr, runErr)
	case runErr != nil && s.pid == 0:
		return cli.Failure, nil // the error has been printed already
	case runErr != nil:
		return 0, runErr
	case errors.Is(finishErr, event.ErrNoDecode), finishErr != nil && errors.Is(s.capture.Explain(), event.ErrOldGGML):
		return s.nothingSeen(status)
	case finishErr != nil:
		return 0, finishErr
	}
	if s.strict {
		if err := strict(metas); err != nil {
			return 0, err
		}
	}
	return status, nil
}

// export writes the captures' tables as Parquet, if that was asked for.
func (s *session) export(ctx context.Context, metas []*tables.Meta) error {
	for _, m := range metas {
		if !s.parquet || m.Dir == "" {
			continue
		}
		c, err := trace.Open(m.Dir)
		if err != nil {
			return fmt.Errorf("export to Parquet: %w", err)
		}
		if _, err := c.ExportTo(ctx, m.Dir); err != nil {
			return fmt.Errorf("export to Parquet (the capture itself is whole): %w", err)
		}
	}
	return nil
}

// nothingSeen says why no decode was seen, or no op of any. A command that failed has its own reasons, and its own status.
func (s *session) nothingSeen(status int) (int, error) {
	err := s.capture.Explain()
	if err == nil {
		err = fmt.Errorf("%w: %s before llama_decode was called", event.ErrNoDecode, cmp.Or(s.capture.Ending(), "the capture ended"))
	}
	if status != 0 {
		fmt.Fprintln(s.stderr, "tracer:", cli.Message(s.advise(err)))
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
