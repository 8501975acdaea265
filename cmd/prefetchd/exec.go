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
	"tensorcast/prefetch"
	"tensorcast/prefetch/serve"
)

// passedOn are the signals that the command gets from prefetchd.
var passedOn = []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}

// As shells have it.
const (
	statusNotRun   = 126
	statusNotFound = 127
)

// runCommand starts a command and helps it. The error is a cli.Exit with the command's status where that is not 0.
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
	if cli.IsTerminal(os.Stdout) { // what is told would be written across the command's text
		so.Tell = nil
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
		so.Planned = plan.take
	}
	command, err := user.Command(args)
	if err != nil {
		return &cli.Exit{Code: statusOf(err), Err: err}
	}
	if o.fabric != "" {
		d, e := o.handOver(command, user, live, so.Log)
		if e != nil {
			return e
		}
		if d != nil {
			defer func() { err = errors.Join(err, d.close()) }()
			so.Elsewhere, so.Prefetch.Experts.Routes = d.changes, d.experts
			tell := so.Tell
			so.Tell = func(s prefetch.Status) {
				d.told(s)
				if tell != nil {
					tell(s)
				}
			}
		}
	}
	target, err := serve.Start(ctx, command, passedOn, so)
	if failed := (*proc.StartError)(nil); errors.As(err, &failed) {
		return &cli.Exit{Code: statusOf(err), Err: err}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	s, helpErr := target.Help(ctx)
	if helpErr != nil && !target.Runs() {
		return helpErr
	}
	if helpErr != nil { // its end may be far away
		fmt.Fprintf(live, "prefetchd: %s (the command goes on, without help)\n", cli.Message(o.advise(helpErr)))
	}
	status, err := target.Wait(ctx)
	live.close()
	if err != nil {
		return err
	}
	if helpErr == nil {
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

// statusOf is that of a command that could not be executed.
func statusOf(err error) int {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOEXEC) {
		return statusNotRun
	}
	return statusNotFound
}
