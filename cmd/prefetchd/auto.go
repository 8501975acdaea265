package main

// This file helps each process that it finds by a prefetchd of its own: --auto.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tensorcast/internal/cli"
	"tensorcast/internal/config"
	"tensorcast/internal/proc"
	"tensorcast/internal/sizes"
	"tensorcast/prefetch"
	"tensorcast/prefetch/auto"
	"tensorcast/prefetch/monitor"
	"tensorcast/processes"
)

// defaultMost is the default of --most. Each helped process takes a process of prefetchd.
const defaultMost = 8

// helperFlag is for the prefetchds that --auto starts: what it cannot help is no failure to whoever
// started --auto.
const helperFlag = "for-auto"

// addAutoFlags adds the flags of --auto.
func addAutoFlags(f *pflag.FlagSet, o *options) {
	f.BoolVar(&o.auto, "auto", false, "help every process that computes with ggml, as they come and go, "+
		"each by a prefetchd of its own. --budget is divided evenly among those that use it")
	f.StringArrayVar(&o.names, "name", nil, "with --auto: help only processes with this `NAME`, and those that they start. It is "+
		"the name of a program (llama-server), or of a systemd unit (ollama.service). May be repeated (default: all)")
	f.StringArrayVar(&o.never, "never", nil, "with --auto: do not help processes with this `NAME`, nor those that they start, "+
		"whatever --name says. May be repeated")
	f.BoolVar(&o.helper, helperFlag, false, "")
	_ = f.MarkHidden(helperFlag) // it fails only if there is no such flag
	f.IntVar(&o.most, "most", defaultMost, "help at most `N` processes at once, with --auto or among the children of one process. "+
		"Others wait until one has ended")
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
	case (o.Budget > 0 || len(o.caps) > 0) && o.runDir == "":
		return cli.Usagef("--auto divides --budget by way of --run-dir, which is empty")
	case slices.Contains(o.names, ""):
		return cli.Usagef("--name is empty")
	case slices.Contains(o.never, ""):
		return cli.Usagef("--never is empty")
	}
	return nil
}

// selection says which processes --auto helps.
func (o *options) selection() processes.Selection {
	return processes.Selection{Names: o.names, Never: o.never}
}

// helpAll helps all processes that it finds, until the command's context ends. given are the flags of the command line,
// and inForce all settings: both are needed to read the configuration anew.
func helpAll(cmd *cobra.Command, o *options, given *pflag.FlagSet, inForce []config.Setting) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("needs root: sudo prefetchd --auto")
	}
	if err := proc.CheckMount(); err != nil {
		return err
	}
	live := newLive(cmd.ErrOrStderr(), o.statusLogger(cmd.ErrOrStderr()))
	defer live.close()
	log := o.logger(live, o.logLevel())
	for _, s := range inForce {
		if s.Origin.Source == config.File {
			log.Info("settings are read from a file", "file", s.Origin.Where)
			break
		}
	}
	finder, err := processes.NewFinder(o.selection())
	if err != nil {
		return err
	}
	if o.runDir != "" {
		if err := monitor.Sweep(o.runDir); err != nil {
			log.Debug("sockets of killed prefetchds are left", "why", err)
		}
	}
	ao, err := o.helpersOptions(cmd, cmd.Flags(), live, log)
	if err != nil {
		return err
	}
	search := beginSearch(cmd.Context(), monitor.Search{Names: o.names, All: true}, live, o.runDir, log)
	defer func() { err = errors.Join(err, search.close()) }()
	ao.OnChange = search.set
	r := &reloader{cmd: cmd, given: given, inForce: inForce, stderr: live, log: log, search: search}
	ao.Updates = r.start(cmd.Context())
	defer r.stop()
	_, err = auto.Run(cmd.Context(), finder, ao)
	return err
}

// helpersOptions returns how helpers are run, each of them this program again, with the flags of this one.
func (o *options) helpersOptions(
	cmd *cobra.Command, flags *pflag.FlagSet, stderr io.Writer, log *slog.Logger,
) (auto.Options, error) {
	self, err := os.Executable()
	if err != nil {
		return auto.Options{}, fmt.Errorf("find this program: %w", err)
	}
	passed := helperFlags(flags)
	dir := o.runDir
	return auto.Options{
		MaxHelpers: o.most, Budget: o.Budget,
		Out: cmd.OutOrStdout(), Err: stderr, NoPrefix: o.log == logJSON, Log: log,
		Helper: func(c processes.Candidate, budget int64) []string {
			args := append([]string{self, "--" + helperFlag, fmt.Sprint("--pid=", c.PID)}, passed...)
			if c.GGML { // it has ggml, but the library that computes may be loaded a moment later
				args = append(args, "--wait")
			}
			if budget > 0 {
				args = append(args, "--budget="+sizes.Format(budget))
			}
			return args
		},
		Using: func(ctx context.Context) (map[int]bool, error) {
			all, err := monitor.List(ctx, dir)
			using := map[int]bool{}
			for i := range all {
				using[all[i].Target] = isUsing(all[i].Status.Activity)
			}
			return using, err
		},
		Cap: o.candidateCap(),
		SetShare: func(ctx context.Context, target int, bytes int64) error {
			return monitor.SetBudget(ctx, dir, target, bytes)
		},
	}, nil
}

// isUsing says whether a prefetchd uses memory for its target: not while that has not decoded, or needs no help.
func isUsing(a prefetch.Activity) bool { return a != prefetch.Waiting && a != prefetch.Idle }

// helperFlags returns the flags with a value of their own that are passed on to each helper.
func helperFlags(f *pflag.FlagSet) (args []string) {
	f.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "auto", "name", "never", "most", "budget", "budget-of", "wait", "pid", "exec", "as-root", configFlag:
			return // they say who is helped, and with how much, or have been read
		}
		args = append(args, fmt.Sprintf("--%s=%s", f.Name, f.Value))
	})
	return args
}
