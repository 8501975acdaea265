// Command prefetchd keeps the right bytes of a model in memory for a running, unmodified llama.cpp.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/capture"
	"tensorcast/event"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/pattern"
	"tensorcast/prefetch"
)

type options struct {
	pid      int
	strategy string
	pattern  string
	noJoin   bool
	wait     bool
	json     bool
	verbose  bool
	prefetch.Options
}

func main() { cli.Main(command()) }

func command() *cobra.Command {
	o := options{strategy: prefetch.StrategyNames()[0]}
	cmd := &cobra.Command{
		Use:   "prefetchd --pid N",
		Short: "Keep the right bytes of a model in memory for a running llama.cpp",
		Long: `Keep the right bytes of a model in memory for a running, unmodified llama.cpp.
Learns from the warm-up or the first generated token what each token reads, pins as much of it as fits (mlock), and reads the
rest ahead of its use (io_uring), paging out behind. Joins the target's memory cgroup, keeps to the least
headroom of that cgroup, its ancestors and the host, and ends with the target, releasing everything.

With --pattern it begins with what analyze found out, as soon as the target maps the model, before its first token. The
pattern of another model is refused. If the target then reads something else, that is learned instead.

Needs root. The model must be read through a file mapping: start llama.cpp with --no-repack, without --no-mmap.
A process that holds no ggml is refused; --wait sleeps until it has loaded it.

In a container it needs what it needs on the host: eBPF (no user namespace of its own), /proc of its PID namespace, and
the target's memory cgroup, or --budget. From the host it helps a target in a container.

Exit status: 0 when the target ended or prefetchd was interrupted, 1 on failure, 2 for wrong usage.`,
		Example: `  sudo prefetchd --pid $(pidof llama-server)
  sudo prefetchd --wait --pid $!
  sudo prefetchd --pid $(pidof llama-server) --pattern analysis/pattern.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unexpected argument %q: say which process to help with --pid", args[0])
			}
			if o.pid <= 0 {
				return cli.Usagef("say which process to help: prefetchd --pid N")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return o.advise(run(cmd, o)) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&o.pid, "pid", "p", 0, "help the running process `N`")
	f.BoolVar(&o.wait, "wait", false, "wait until the process has loaded ggml; else one that has not is refused")
	f.StringVar(&o.pattern, "pattern", "", "begin with the pattern in `FILE`, which analyze wrote (pattern.json)")
	cli.EnumVar(cmd, &o.strategy, "strategy", "", prefetch.StrategyNames(),
		"both (hold what fits, stream the rest), pin or stream alone")
	f.BoolVar(&o.Lock, "lock", false, "lock what is held (mlock): the kernel cannot take it back, not even when it must kill a process instead")
	cli.SizeVar(f, &o.Budget, "budget", "never keep more of the model in memory than `SIZE` (600MB, 2GiB); the limits of cgroups and host hold besides")
	cli.SizeVar(f, &o.Window, "window", "`SIZE` of what is read ahead and not yet paged out (chosen)")
	f.BoolVar(&o.noJoin, "no-join", false, "stay in the own cgroup: pages read ahead are then not charged to the target's")
	f.BoolVar(&o.json, "json", false, "print the summary as JSON")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say what is being done")
	return cmd
}

// tick is how often the control loop looks while it is busy.
const tick = time.Millisecond

// advise adds to an error which flag of prefetchd helps.
func (o *options) advise(err error) error {
	if errors.Is(err, event.ErrNoGGML) && !o.wait {
		return fmt.Errorf("%w If it loads it later, add --wait", err)
	}
	return err
}

func run(cmd *cobra.Command, o options) (err error) {
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	if o.Strategy, err = prefetch.ParseStrategy(o.strategy); err != nil {
		return cli.Usage(err)
	}
	if o.Stored, err = readPattern(o.pattern); err != nil {
		return err
	}

	if err := proc.CheckMount(); err != nil {
		return err
	}
	// Priority belongs to a thread, and the kernel's workers for io_uring inherit that of the thread that submits.
	runtime.LockOSThread()
	memory, err := prefetch.NewProcessMemory(o.pid, prefetch.MemoryOptions{TrustHost: o.Budget > 0, Log: log})
	if errors.Is(err, cgroup.ErrHidden) { // its limits apply, whatever they are
		return fmt.Errorf("%w: mount the cgroup hierarchy here, run this on the host, or say with --budget how much of the model to keep in memory", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	o.Memory, o.Log, o.Models = memory, log, prefetch.MappedModels(o.pid)
	o.Weights = prefetch.ReadWeights
	pages, err := prefetch.NewKernelPages(o.pid, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pages.Close()) }()
	controller := prefetch.New(pages, o.Options)
	target, err := capture.Attach(o.pid, capture.Options{Interval: tick, Tick: controller.Tick, Pause: controller.Pause, Late: o.wait, Small: true, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if err := prefetch.Settle(log); err != nil {
		return err
	}
	if !o.noJoin {
		memory.Join(cmd.Context())
	}

	err = target.Run(cmd.Context(), controller.Handle)
	s := controller.Summary()
	if err != nil && !errors.Is(err, proc.ErrNoProcess) { // the target has ended, as it may
		return err
	}
	if s.PerToken == 0 && cmd.Context().Err() == nil {
		if err := target.Explain(); err != nil {
			return err
		}
	}
	return report(cmd, o, s)
}

// readPattern reads a stored cycle; nil if there is no path.
func readPattern(path string) (*pattern.Cycle, error) {
	if path == "" {
		return nil, nil
	}
	f, err := regular.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the pattern: %w", err)
	}
	defer f.Close()
	c, err := pattern.ReadCycle(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

func report(cmd *cobra.Command, o options, s prefetch.Summary) error {
	if s.Level == prefetch.LevelBudget {
		s.Level = "--budget"
	}
	if o.json {
		return cli.WriteJSON(cmd.OutOrStdout(), s)
	}
	if s.PerToken == 0 {
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), "prefetchd: the target generated no token: nothing was learned")
		return err
	}
	perToken := int64(0)
	if s.Tokens > 0 {
		perToken = s.Streamed / int64(s.Tokens)
	}
	bytes := func(n int64) string { return humanize.IBytes(uint64(n)) }
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "prefetchd: %d tokens at %.2f tok/s; of %s that each token reads, %s pinned, %s streamed per token (%s in all), %d late; room for %s (%s); %s\n",
		s.Tokens, s.TokensPerSec, bytes(s.PerToken), bytes(s.Pinned), bytes(perToken), bytes(s.Streamed), s.Late, bytes(s.Room), s.Level, s.Queue)
	return err
}
