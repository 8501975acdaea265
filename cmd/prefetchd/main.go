// Command prefetchd keeps the right bytes of a model in memory for a running, unmodified llama.cpp.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/capture"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
	"tensorcast/prefetch"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

type options struct {
	pid      int
	strategy string
	budget   string
	window   string
	noJoin   bool
	json     bool
	verbose  bool
}

func main() {
	var o options
	accepted := false
	root := &cobra.Command{
		Use:   "prefetchd --pid N",
		Short: "Keep the right bytes of a model in memory for a running llama.cpp",
		Long: `Keep the right bytes of a model in memory for a running, unmodified llama.cpp.
Learns from the warm-up or the first generated token what each token reads, pins as much of it as fits (mlock), and reads the
rest ahead of its use (io_uring), paging out behind. Joins the target's memory cgroup, keeps to the least
headroom of that cgroup, its ancestors and the host, and ends with the target, releasing everything.

Needs root. The model must be read through a file mapping: start llama.cpp with --no-repack, without --no-mmap.

Exit status: 0 when the target ended or prefetchd was interrupted, 1 on failure, 2 for wrong usage.`,
		Example:      "  sudo prefetchd --pid $(pidof llama-server)",
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.pid <= 0 {
				return errors.New("say which process to help: prefetchd --pid N")
			}
			strategy, err := prefetch.ParseStrategy(o.strategy)
			if err != nil {
				return err
			}
			budget, err := size("budget", o.budget)
			if err != nil {
				return err
			}
			window, err := size("window", o.window)
			if err != nil {
				return err
			}
			accepted = true
			return run(cmd.Context(), o, prefetch.Options{Strategy: strategy, Budget: budget, Window: window})
		},
	}
	f := root.Flags()
	f.IntVarP(&o.pid, "pid", "p", 0, "help the running process `N`")
	f.StringVar(&o.strategy, "strategy", "both", strings.Join(prefetch.StrategyNames(), ", "))
	f.StringVar(&o.budget, "budget", "", "never keep more of the model in memory than `SIZE` (600MB, 2GiB); the limits of cgroups and host hold besides")
	f.StringVar(&o.window, "window", "", "`SIZE` of what is read ahead and not yet paged out (chosen)")
	f.BoolVar(&o.noJoin, "no-join", false, "stay in the own cgroup: pages read ahead are then not charged to the target's")
	f.BoolVar(&o.json, "json", false, "print the summary as JSON")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say what is being done")
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "prefetchd:", err)
		if accepted {
			os.Exit(exitFailure)
		}
		os.Exit(exitUsage)
	}
}

func size(flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 || n > 1<<62 {
		return 0, fmt.Errorf("--%s %q is not a size such as 600MB or 2GiB", flag, text)
	}
	return int64(n), nil
}

// tick is how often the control loop looks.
const tick = time.Millisecond

func run(ctx context.Context, o options, po prefetch.Options) (err error) {
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()

	// Priority belongs to a thread, and the kernel's workers for io_uring inherit that of the thread that submits.
	runtime.LockOSThread()
	group, err := cgroup.Find(o.pid)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("process %d: %w", o.pid, proc.ErrNoProcess)
	}
	if err != nil {
		log.Warn("no memory cgroup: only the host's memory bounds the budget", "error", err)
	}
	memory, err := prefetch.NewCgroupMemory(group)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	po.Memory, po.Log = memory, log
	pages, err := prefetch.NewKernelPages(o.pid, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pages.Close()) }()
	controller := prefetch.New(pages, po)
	target, err := capture.Attach(o.pid, capture.Options{Interval: tick, Tick: controller.Tick, Late: true, Small: true, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if err := prefetch.Settle(group, !o.noJoin, log); err != nil {
		return err
	}

	err = target.Run(ctx, controller.Handle)
	s := controller.Summary()
	if err != nil && !errors.Is(err, proc.ErrNoProcess) { // the target has ended, as it may
		return err
	}
	if s.PerToken == 0 {
		if err := target.Explain(); err != nil {
			return err
		}
	}
	return report(o, s)
}

func report(o options, s prefetch.Summary) error {
	if o.json {
		return json.NewEncoder(os.Stdout).Encode(s)
	}
	if s.PerToken == 0 {
		_, err := fmt.Fprintln(os.Stderr, "prefetchd: the target generated no token: nothing was learned")
		return err
	}
	perToken := int64(0)
	if s.Tokens > 0 {
		perToken = s.Streamed / int64(s.Tokens)
	}
	bytes := func(n int64) string { return humanize.IBytes(uint64(n)) }
	_, err := fmt.Fprintf(os.Stderr, "prefetchd: %d tokens at %.2f tok/s; of %s that each token reads, %s pinned, %s streamed per token (%s in all), %d late; room for %s (%s); %s\n",
		s.Tokens, s.TokensPerSec, bytes(s.PerToken), bytes(s.Pinned), bytes(perToken), bytes(s.Streamed), s.Late, bytes(s.Room), s.Level, s.Queue)
	return err
}
