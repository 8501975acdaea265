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
	"tensorcast/internal/disk"
	"tensorcast/internal/invoker"
	"tensorcast/internal/outfile"
	"tensorcast/internal/proc"
	"tensorcast/internal/visible"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// relayedSignals are the signals that tracer passes on to its command.
var relayedSignals = []syscall.Signal{
	syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2,
}

// session is one run of tracer.
type session struct {
	options
	user     *invoker.User // the owner of the output; nil: the user of this process
	capture  *capture.Capture
	recorder *trace.Session
	csv      *outfile.File // nil if there is none
	display  *display
	stdout   io.Writer
	stderr   io.Writer
	gaveWay  bool // proc.GiveWay has been called
	children offspring
}

// run traces, and returns the exit status of the traced command.
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
	if o.pid != 0 { // further signals have no effect, so that the capture is written completely
		var stop func()
		ctx, stop = cli.FirstSignal(ctx)
		defer stop()
	}
	if s.pid != 0 {
		if err := s.followBelow(); err != nil {
			return 0, err
		}
	}
	if err := s.startTarget(ctx, args, log); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.capture.Close()) }()
	defer func() { s.csv.Discard() }() // has no effect once it was committed
	if err := s.user.Do(func() error { return s.openOutput(ctx, args, log) }); err != nil {
		return 0, err
	}
	return s.run(ctx)
}

// startTarget starts the command, or attaches to the process.
func (s *session) startTarget(ctx context.Context, args []string, log *slog.Logger) (err error) {
	opts := capture.Options{
		Preload: s.preload, Detail: probeDetails[s.detail], Buffers: s.buffers, Inputs: s.hidden,
		PerfEvents: s.perf, Follow: s.follow, RingBytes: int(s.ringKiB) << 10,
		Tick: s.tick, Signals: relayedSignals, Log: log,
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

// openOutput opens the output. Writes to standard output wait for their reader until ctx ends.
func (s *session) openOutput(ctx context.Context, args []string, log *slog.Logger) error {
	if s.pid != 0 {
		args = proc.CommandLine(int(s.pid))
	}
	around := &surroundings{probe: !s.noProbe, again: s.probeAgain, speeds: disk.UserSpeeds(), log: log}
	ro := trace.RecorderOptions{
		Command: args, PID: s.capture.PID(), Log: log, Advise: s.adviseLoading(args, s.capture.Libraries),
		Counters: s.capture.Counters, Libraries: s.capture.Libraries, Target: s.capture.Describe,
		Detail: s.detail, Follow: s.follow, NoTokenIDs: s.noTokenIDs, Hidden: s.hidden,
		RotateBytes: s.rotate.bytes, RotateEvery: s.rotate.every, RotateKeep: s.keep,
		Surroundings: around.describe,
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

// tick is called from time to time between events, by the goroutine that handles them.
func (s *session) tick() error {
	status := s.recorder.Status()
	if !s.gaveWay && status.Steps > 0 { // not earlier, because attaching probes and loading the model should be fast
		proc.GiveWay()
		s.gaveWay = true
	}
	s.display.Show(status)
	s.lookForChildren(status.Steps)
	return s.recorder.Flush()
}

// run lets the target run, and returns when it has ended.
func (s *session) run(ctx context.Context) (int, error) {
	runErr := s.user.Do(func() error { return s.capture.Run(ctx, s.recorder.Handle) })
	if runErr != nil && s.pid == 0 {
		// Print the error now, because the end of the command may be far away.
		fmt.Fprintf(s.display.Log(), "tracer: %s (the command goes on, untraced)\n", cli.Message(s.advise(runErr)))
	}
	status, waitErr := s.capture.Wait(ctx)
	s.display.Close()
	var metas []*tables.Meta
	finishErr := s.user.Do(func() (err error) {
		metas, err = s.recorder.Finish(runErr)
		// The CSV is complete even if some events were outside of it.
		if s.csv != nil && runErr == nil && (err == nil || errors.Is(err, event.ErrOutside)) {
			return errors.Join(err, s.csv.Commit())
		}
		return err
	})
	if runErr != nil || finishErr != nil { // after an error, print a summary only if something was captured
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
	case errors.Is(finishErr, event.ErrNoDecode),
		finishErr != nil && errors.Is(s.capture.Explain(), event.ErrOldGGML):
		return s.explainNothing(status, finishErr)
	case finishErr != nil:
		return 0, finishErr
	}
	if s.strict {
		if err := checkComplete(metas); err != nil {
			return 0, err
		}
	}
	return status, nil
}

// export also writes the captures' tables as Parquet, with --parquet.
func (s *session) export(ctx context.Context, metas []*tables.Meta) error {
	for _, m := range metas {
		if !s.parquet || m.Dir == "" {
			continue
		}
		c, err := trace.Open(m.Dir)
		if err != nil {
			return fmt.Errorf("export to Parquet: %w", err)
		}
		if _, err := c.ExportTables(ctx, m.Dir); err != nil {
			return fmt.Errorf("export to Parquet (the capture itself is whole): %w", err)
		}
	}
	return nil
}

// explainNothing explains why no decode, or no op, was seen. finishErr is what the session's end returned.
// If the command itself failed, its exit status is kept.
func (s *session) explainNothing(status int, finishErr error) (int, error) {
	err := s.capture.Explain()
	if c := s.children.computing; c.PID != 0 && !errors.Is(err, event.ErrOldGGML) {
		err = fmt.Errorf("%w in the process itself: process %d (%s), which it started, %w", event.ErrNoDecode,
			c.PID, visible.Line(c.Name), errChildComputes)
	} else if err == nil && errors.Is(finishErr, event.ErrLost) {
		err = finishErr
	} else if err == nil {
		err = fmt.Errorf("%w: %s before llama_decode was called",
			event.ErrNoDecode, cmp.Or(s.capture.Ending(), "the capture ended"))
	}
	if status != 0 {
		fmt.Fprintln(s.stderr, "tracer:", cli.Message(s.advise(err)))
		return status, nil
	}
	return 0, err
}

// checkComplete fails if anything is missing in the captures (--strict). The counters are those of
// all processes together.
func checkComplete(metas []*tables.Meta) error {
	for _, m := range metas {
		if n := m.Counters.Lost(); n > 0 {
			return fmt.Errorf("%d %w", n, event.ErrLost)
		}
		if n := m.Counters.Incomplete(); n > 0 {
			return fmt.Errorf("%d ops could not be read whole: --json tells why (its counters)", n)
		}
	}
	return nil
}
