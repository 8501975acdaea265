package main

// This file is `prefetchd top`: a live view of what the prefetchds of this machine do.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tensorcast/internal/cli"
	"tensorcast/prefetch/monitor"
	"tensorcast/prefetch/top"
)

// The size of a frame where the terminal does not say its own.
const usualColumns, usualRows = 80, 24

// topFPS is how often the terminal is drawn at most. Only what has changed is written.
const topFPS = 10

// topOptions are the values of the flags of top.
type topOptions struct {
	dir  string
	pid  int
	once bool
}

func newTopCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch running prefetchds live",
		Long: `Watch what the prefetchds of this machine do, in a terminal of 80 columns or more. You can start and
end it at any time. It asks the prefetchds at their sockets once a second, and changes nothing unless
you press a key that does.

For each process that is helped, which is called the target, it shows:

  speed     tokens per second with help, without help and at most, and a chart of the last five minutes
  memory    how much of the model is kept, how much is read ahead, and what limits the memory for both
  disk      what prefetchd reads from disk, and what the target's own page faults read
  file      the model's file as a strip that shows what is kept; for a mixture also its experts
  events    what prefetchd does and why, and the last events

Keys: tab goes to the next prefetchd. + and - change how much may be kept. p leaves the target alone,
and p again helps it again. ? explains the screen, and q quits.

With --once it prints one frame of each prefetchd as text, and ends. That takes a little more than a
second, because a rate needs two looks. There are no colours in a pipe, or where NO_COLOR is set.

Exit status: 0 done, also if no prefetchd runs; 1 if they cannot be asked, or with --pid if none helps
that process; 2 for wrong usage.`,
		Example: `  sudo prefetchd top                                   # until q or Ctrl-C
  sudo prefetchd top --once
  sudo prefetchd top --once --pid $(pidof llama-server)`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 && (o.pid <= 0 || !areNumbers(args)) { // numbers, as pidof prints them
				return cli.Usagef("unexpected argument %q: say whose prefetchd is meant with --pid", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			isWanted, err := o.selection(cmd, args)
			if err != nil {
				return err
			}
			source := top.Sockets(cmd.Context(), o.dir, isWanted)
			survey, err := source.TakeSurvey()
			if errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("%w: only the user that prefetchd runs as may ask, so try sudo", err)
			}
			if isWanted != nil && err == nil && len(survey.Reports) == 0 {
				return fmt.Errorf("no prefetchd helps process %d, or one that it has started", o.pid)
			}
			if o.once {
				return printFrame(cmd.Context(), cmd.OutOrStdout(), source)
			}
			return watch(cmd.Context(), cmd.OutOrStdout(), source)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&o.pid, "pid", "p", 0, "show only prefetchds that help the process with the id `N`, or one that it has started")
	f.StringVar(&o.dir, "run-dir", monitor.Dir, "`DIR` of the sockets of running prefetchds")
	f.BoolVar(&o.once, "once", false, "print one frame as text, and end")
	return cmd
}

// selection says which prefetchds are wanted; nil if all are.
func (o *topOptions) selection(cmd *cobra.Command, args []string) (isWanted func(*monitor.Report) bool, err error) {
	if !cmd.Flags().Changed("pid") {
		return nil, nil
	}
	if o.pid, err = onePID(o.pid, args); err != nil {
		return nil, err
	}
	return func(r *monitor.Report) bool {
		found, err := selectTargets([]monitor.Report{*r}, o.pid)
		return err == nil && len(found) > 0
	}, nil
}

// watch shows the live view until somebody quits it, or ctx ends.
func watch(ctx context.Context, out io.Writer, source top.Source) error {
	screen, ok := cli.Raw(out).(*os.File)
	if !ok || !cli.IsTerminal(out) {
		return cli.Usagef("standard output is no terminal: use --once")
	}
	_, err := tea.NewProgram(top.New(source, usualColumns, usualRows),
		tea.WithContext(ctx), tea.WithOutput(screen), tea.WithoutSignalHandler(), tea.WithFPS(topFPS)).Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("show the live view: %w", err)
	}
	return nil
}

// printFrame prints one frame of each prefetchd. It asks twice, as rates need two looks, and as a prefetchd makes what
// only a picture needs when it was asked for it.
func printFrame(ctx context.Context, out io.Writer, source top.Source) error {
	model := top.New(source, columnsOf(out), 0)
	model.Update(model.Survey())
	if model.IsEmpty() {
		return writeFrame(out, model)
	}
	const within = top.Interval + 200*time.Millisecond // a prefetchd that sleeps looks once a second
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(within):
	}
	model.Update(model.Survey())
	return writeFrame(out, model)
}

// writeFrame writes a frame with the colours that the output shows.
func writeFrame(out io.Writer, model *top.Model) error {
	if cli.IsTerminal(out) {
		out = cli.Raw(out) // what others chose was made visible, and the colours are to take effect
	}
	if _, err := io.WriteString(colorprofile.NewWriter(out, os.Environ()), model.Once()); err != nil {
		return err
	}
	return model.Err()
}

// columnsOf is how many columns an output has: those of the terminal, or of the variable COLUMNS, or 80.
func columnsOf(out io.Writer) int {
	if f, ok := cli.Raw(out).(*os.File); ok && cli.IsTerminal(out) {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 && n <= 1000 {
		return n
	}
	return usualColumns
}
