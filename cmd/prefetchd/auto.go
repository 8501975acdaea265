package main

// This file finds processes to help: --auto, and --wait with a name.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/visible"
	"tensorcast/prefetch/auto"
	"tensorcast/prefetch/monitor"
)

// defaultMost is the default of --most. Each helped process takes a process of prefetchd.
const defaultMost = 8

// helperFlag is for the prefetchds that --auto starts: what it cannot help is no failure to whoever
// started --auto.
const helperFlag = "for-auto"

// addAutoFlags adds the flags of --auto.
func addAutoFlags(f *pflag.FlagSet, o *options) {
	f.BoolVar(&o.auto, "auto", false, "help every process that computes with ggml, as they come and go, "+
		"each by a prefetchd of its own; --budget is divided evenly among them")
	f.StringArrayVar(&o.names, "name", nil,
		"with --auto, only processes with this `NAME` (llama-server); may be repeated")
	f.BoolVar(&o.helper, helperFlag, false, "")
	_ = f.MarkHidden(helperFlag) // it fails only if there is no such flag
	f.IntVar(&o.most, "most", defaultMost, "with --auto, help `N` processes at once: others wait until one has ended")
}

// checkAuto returns an error about wrong arguments with --auto.
func (o *options) checkAuto(args []string) error {
	switch {
	case o.pid != 0 || o.exec:
		return cli.Usagef("--auto finds whom to help: not with --pid or --exec")
	case len(args) > 0:
		return cli.Usagef("unexpected argument %q: --auto --name NAME helps processes of that name", args[0])
	case o.dry || o.plan != "":
		return cli.Usagef("--dry-run and --plan are for --pid: of one process")
	case o.pattern != "":
		return cli.Usagef("--pattern is of one model: not with --auto")
	case o.most < 1:
		return cli.Usagef("--most is %d, want 1 or more", o.most)
	case o.Budget > 0 && o.runDir == "":
		return cli.Usagef("--auto divides --budget by way of --run-dir, which is empty")
	case slices.Contains(o.names, ""):
		return cli.Usagef("--name is empty")
	}
	return nil
}

// helpAll helps all processes that it finds, until the command's context ends.
func helpAll(cmd *cobra.Command, o options) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("needs root: sudo prefetchd --auto")
	}
	if err := proc.CheckMount(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	live := newLive(cmd.ErrOrStderr(), o.statusLogger(cmd.ErrOrStderr()))
	defer live.close()
	log := o.logger(live, o.logLevel())
	finder, err := auto.NewFinder(o.names...)
	if err != nil {
		return err
	}
	if o.runDir != "" {
		if err := monitor.Sweep(o.runDir); err != nil {
			log.Debug("sockets of killed prefetchds are left", "why", err)
		}
	}
	search := beginSearch(cmd.Context(), monitor.Search{Names: o.names, All: true}, live, o.runDir, log)
	defer func() { err = errors.Join(err, search.close()) }()
	passed := helperFlags(cmd.Flags(), &o)
	return auto.Run(cmd.Context(), finder, auto.Options{
		MaxHelpers: o.most, Budget: o.Budget,
		Out: cmd.OutOrStdout(), Err: live, NoPrefix: o.log == logJSON, OnChange: search.set, Log: log,
		Helper: func(c auto.Candidate, budget int64) []string {
			args := append([]string{self, "--" + helperFlag, fmt.Sprint("--pid=", c.PID)}, passed...)
			if c.Loaded { // it has ggml, but the library that computes may be loaded a moment later
				args = append(args, "--wait")
			}
			if budget > 0 {
				args = append(args, fmt.Sprint("--budget=", budget))
			}
			return args
		},
		SetShare: func(ctx context.Context, target int, bytes int64) error {
			return monitor.SetBudget(ctx, o.runDir, target, bytes)
		},
	})
}

// helperFlags returns the given flags that are passed on to each helper.
func helperFlags(f *pflag.FlagSet, o *options) (args []string) {
	f.Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		switch f.Name {
		case "auto", "name", "most", "budget", "wait":
			return
		case "leave": // the text of a size would be rounded
			value = fmt.Sprint(o.leave)
		case "window":
			value = fmt.Sprint(o.Window)
		}
		args = append(args, fmt.Sprintf("--%s=%s", f.Name, value))
	})
	return args
}

// waitForName waits for a process with a name.
func waitForName(cmd *cobra.Command, o *options, name string) (pid int, err error) {
	live := newLive(cmd.ErrOrStderr(), o.statusLogger(cmd.ErrOrStderr()))
	defer live.close()
	log := o.logger(live, o.logLevel())
	finder, err := auto.NewFinder(name)
	if err != nil {
		return 0, err
	}
	search := beginSearch(cmd.Context(), monitor.Search{Names: []string{name}}, live, o.runDir, log)
	defer func() { err = errors.Join(err, search.close()) }()
	c, err := finder.Wait(cmd.Context())
	if errors.Is(err, auto.ErrNone) {
		return 0, fmt.Errorf("%v before a process named %s came", context.Cause(cmd.Context()), name)
	} else if err != nil {
		return 0, fmt.Errorf("wait for %s: %w", name, err)
	}
	log.Info("found", "target", c.PID, "name", c.Name)
	live.note("helping process %d %s", c.PID, visible.Line(c.Name))
	return c.PID, nil
}
