package main

// This file is `prefetchd status`. It shows what the prefetchds of this machine are doing.

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
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
		Long: `Show what running prefetchds do. For each there is a line that says whom it helps, for how long, how
fast that process is, and what is kept in memory; and one with the model's file and the phase of the
control loop. A prefetchd that still looks for processes (--wait NAME, --auto) says which, whom it
helps, and who waits for its turn. With --json everything that is known is printed, as an array.
With --metrics it prints the text format of Prometheus, to be scraped as a file. Each prefetchd also
serves its metrics on its socket: curl --unix-socket /run/prefetchd/TARGET.sock
http://prefetchd/metrics (and /status for JSON).

Exit status: 0, also if none runs; 1 if one cannot be asked, or with --pid if none helps that
process; 2 for wrong usage.`,
		Example: `  sudo prefetchd status
  sudo prefetchd status --json --pid $(pidof llama-server)
  sudo prefetchd status --metrics > /var/lib/node_exporter/prefetchd.prom`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON && metrics {
				return cli.Usagef("give --json or --metrics, not both")
			}
			all, err := monitor.List(cmd.Context(), dir)
			if cmd.Flags().Changed("pid") {
				all = selectTarget(all, pid)
				if err == nil && len(all) == 0 {
					return fmt.Errorf("no prefetchd helps process %d", pid)
				}
			}
			if writeErr := writeStatus(cmd.OutOrStdout(), all, asJSON, metrics); writeErr != nil {
				return writeErr
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&pid, "pid", "p", 0, "show only the one that helps process `N`")
	f.StringVar(&dir, "run-dir", monitor.Dir, "directory of the sockets of running prefetchds")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVar(&metrics, "metrics", false, "print Prometheus's text format")
	return cmd
}

// selectTarget returns only the report on one target.
func selectTarget(all []monitor.Report, target int) []monitor.Report {
	for i := range all {
		if all[i].Target == target {
			return all[i : i+1]
		}
	}
	return nil
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
