package main

// This file is `prefetchd status`. It shows what the prefetchds of this machine are doing.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/visible"
	"tensorcast/prefetch/monitor"
)

func newStatusCommand() *cobra.Command {
	var dir string
	var pid int
	var asJSON, metrics bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what running prefetchds do",
		Long: `Show what running prefetchds do. For each prefetchd there are two lines. The first says which process
it helps, for how long, how fast that process is, and how much is kept in memory. The second has the
model's file and the phase of the control loop. A prefetchd with --wait NAME or --auto looks for
processes. It says for which ones, which of them it helps, and which wait for their turn.

With --json everything that is known is printed, as an array. With --metrics the metrics are printed, in
the text format of Prometheus, for a file that Prometheus reads. Each prefetchd also serves its metrics on
its socket, where TARGET is the process id of the process that it helps:

  curl --unix-socket /run/prefetchd/TARGET.sock http://prefetchd/metrics     # or /status, for JSON

Exit status: 0 done, also if no prefetchd runs; 1 if one cannot be asked, or with --pid if none helps
that process; 2 for wrong usage.`,
		Example: `  sudo prefetchd status
  sudo prefetchd status --json --pid $(pidof llama-server)
  sudo prefetchd status --metrics > /var/lib/node_exporter/prefetchd.prom`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 && (pid <= 0 || !areNumbers(args)) { // numbers, as pidof prints them
				return cli.Usagef("unexpected argument %q: say whose prefetchd is meant with --pid", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if asJSON && metrics {
				return cli.Usagef("give --json or --metrics, not both")
			}
			all, err := monitor.List(cmd.Context(), dir)
			if cmd.Flags().Changed("pid") {
				root, rootErr := onePID(pid, args)
				if rootErr != nil {
					return rootErr
				}
				if all, rootErr = selectTargets(all, root); rootErr != nil {
					return rootErr
				}
				if err == nil && len(all) == 0 {
					return fmt.Errorf("no prefetchd helps process %d, or one that it has started", root)
				}
			}
			if err != nil && len(all) == 0 && (!metrics || errors.Is(err, fs.ErrPermission)) {
				return explainAsking(err, dir) // whether one runs is not known
			}
			if metrics && !cmd.Flags().Changed("pid") {
				all = append(all, monitor.Down(err)...)
			}
			if writeErr := writeStatus(cmd.OutOrStdout(), all, asJSON, metrics); writeErr != nil {
				return writeErr
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&pid, "pid", "p", 0, "show only prefetchds that help the process with the id `N`, or one that it has started")
	f.StringVar(&dir, "run-dir", monitor.Dir, "`DIR` of the sockets of running prefetchds")
	f.BoolVar(&asJSON, "json", false, "print everything that is known as JSON, an array")
	f.BoolVar(&metrics, "metrics", false, "print metrics in the text format of Prometheus")
	return cmd
}

// explainAsking says in one line who may ask the prefetchds whose sockets are in a directory, if this user may not.
func explainAsking(err error, dir string) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("only the user who started the prefetchds of %s may ask them: run this as root (sudo)", dir)
	}
	return err
}

// selectTargets returns only the reports on a process, and on those that it has started.
func selectTargets(all []monitor.Report, root int) (selected []monitor.Report, err error) {
	below, err := proc.Below(root)
	if err != nil {
		return nil, err
	}
	for i := range all {
		target := all[i].Target
		isBelow := func(p proc.Started) bool { return p.PID == target }
		if target == root || slices.ContainsFunc(below, isBelow) {
			selected = append(selected, all[i])
		}
	}
	return selected, nil
}

// writeStatus prints reports in the requested format.
func writeStatus(w io.Writer, all []monitor.Report, asJSON, metrics bool) error {
	switch {
	case asJSON:
		if all == nil {
			all = []monitor.Report{} // in JSON [] instead of null
		}
		return cli.WriteJSON(w, all)
	case metrics:
		return monitor.WriteMetrics(w, all...)
	case len(all) == 0:
		_, err := fmt.Fprintln(w, "no prefetchd helps a process here")
		return err
	}
	now := time.Now()
	for i := range all {
		for _, line := range all[i].Describe(now) {
			if _, err := fmt.Fprintln(w, visible.Line(line)); err != nil {
				return err
			}
		}
	}
	return nil
}
