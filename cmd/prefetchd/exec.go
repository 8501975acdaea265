package main

// This file starts a command and helps it until it ends.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
	"tensorcast/internal/invoker"
	"tensorcast/internal/proc"
	"tensorcast/prefetch/monitor"
	"tensorcast/prefetch/serve"
)

// relayedSignals are the signals that prefetchd passes on to its command.
var relayedSignals = []syscall.Signal{
	syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2,
}

// Exit statuses for a command that cannot be run, as shells use them.
const (
	statusNotRun   = 126
	statusNotFound = 127
)

// runCommand starts a command and helps it. If the command's status is not 0, the error is a
// cli.Exit with it.
func runCommand(cmd *cobra.Command, o options, args []string) (err error) {
	ctx := cmd.Context()
	if early := (*cli.Interrupted)(nil); errors.As(context.Cause(ctx), &early) {
		return early
	}
	ctx = context.WithoutCancel(ctx)
	stderr := cmd.ErrOrStderr()
	live := newLive(stderr, nil)
	defer live.close()
	so, err := o.prepare(live)
	if err != nil {
		return err
	}
	if cli.IsTerminal(os.Stdout) { // the status would be mixed with the command's text
		so.OnStatus = nil
	}
	var user *invoker.User
	if !o.asRoot {
		if user, err = invoker.Find(os.Environ()); err != nil {
			return err
		}
	}
	plan, err := openPlan(&o, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	defer func() { err = plan.finish(err) }()
	if plan != nil {
		so.OnPlanned = plan.setParts
	}
	command, err := user.Command(args)
	if err != nil {
		return &cli.Exit{Code: startStatus(err), Err: err}
	}
	if o.fabric != "" {
		d, e := o.handOver(command, user, live, so.Log)
		if e != nil {
			return e
		}
		if d != nil {
			defer func() { err = errors.Join(err, d.close()) }()
			so.Elsewhere, so.Prefetch.Experts.Routes = d.changes, d.experts
			tell := so.OnStatus
			so.OnStatus = func(r monitor.Report) {
				d.noteStatus(r.Status)
				if tell != nil {
					tell(r)
				}
			}
		}
	}
	below := newBelow(cmd, &o, &so)
	target, err := serve.Start(ctx, command, relayedSignals, so)
	if failed := (*proc.StartError)(nil); errors.As(err, &failed) {
		return &cli.Exit{Code: startStatus(err), Err: err}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if err := below.start(ctx, target.PID(), false, live); err != nil {
		return err
	}
	s, helpErr := target.Help(ctx)
	if helpErr != nil && !target.Runs() {
		_, err := below.end()
		return errors.Join(helpErr, err)
	}
	if helpErr != nil {
		// Print the error now, because the end of the command may be far away.
		fmt.Fprintf(live, "prefetchd: %s (the command goes on, without help)\n", cli.Message(o.advise(helpErr)))
	}
	status, err := target.Wait(ctx)
	helped, belowErr := below.end()
	live.close()
	err = errors.Join(err, belowErr)
	if err != nil {
		return err
	}
	if helpErr == nil && (helped == 0 || s.PerToken > 0) { // otherwise the command itself only started others
		if err := target.Explain(); err != nil {
			fmt.Fprintln(stderr, "prefetchd:", cli.Message(o.advise(err)))
		} else if err := report(stderr, stderr, o, s); err != nil {
			return err
		}
	}
	if status != cli.OK {
		return &cli.Exit{Code: status}
	}
	return nil
}

// startStatus is the exit status for a command that could not be executed.
func startStatus(err error) int {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOEXEC) {
		return statusNotRun
	}
	return statusNotFound
}
