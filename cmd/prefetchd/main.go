// Command prefetchd keeps the right bytes of a model in memory for a running, unmodified llama.cpp.
package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/event"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/serve"
)

type options struct {
	pid      int
	strategy string
	pattern  string
	plan     string
	dry      bool
	noJoin   bool
	wait     bool
	json     bool
	verbose  bool
	leave    int64
	prefetch.Options
}

func main() { cli.Main(command()) }

func command() *cobra.Command {
	o := options{strategy: prefetch.StrategyNames()[0]}
	cmd := &cobra.Command{
		Use:   "prefetchd --pid N",
		Short: "Keep the right bytes of a model in memory for a running llama.cpp",
		Long: `Keep the right bytes of a model in memory for a running, unmodified llama.cpp.
Learns from the warm-up or the first generated token what each token reads, keeps as much of it as fits in memory, and reads the
rest ahead of its use (io_uring), paging out behind. Joins the target's memory cgroup, keeps to the least
headroom of that cgroup, its ancestors and the host, and ends with the target, releasing everything.

Of a mixture of experts, what every token reads is kept first, and experts in what room is left. When a router has chosen,
those of its experts that are missing are read at once, beside each other, and those that are likely to be chosen last
give way.

What is kept is not locked: the kernel takes it when somebody needs memory, and prefetchd gives way for a while. With
--lock it cannot (experts are not locked): then the kernel may have to kill a process of the cgroup instead, the target
among them.

Tokens with help are compared with tokens without, and help that does not win is given up. Where there is nothing to win
(the model fits, its weights are not read from the file), it says why, sleeps, and looks again now and then.

With --pattern it begins with what analyze found out, as soon as the target maps the model, before its first token. The
pattern of another model is refused. If the target then reads something else, that is learned instead.

With --dry-run it learns, or takes from --pattern, what a token reads, measures the room and the disk (reads below the
page cache for a moment, beside those of the target), says what would be kept and how many tokens per second are
expected (not of a mixture of experts, where that depends on what routers choose), and ends: nothing is kept. --plan writes that, or what is kept in the end, as CSV: file, offset_bytes,
size_bytes, tensor_name, visits (times that a token reads it from disk if it is streamed), state (kept or streamed).
Experts, which come and go, are not in it.

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
		"auto (hold what fits, stream the rest), pin or stream alone, pattern (as auto, by --pattern only); both is auto's former name")
	f.BoolVar(&o.Lock, "lock", false, "lock what is held (mlock), but for experts: the kernel cannot take it back, not even when it must kill a process instead")
	cli.SizeVar(f, &o.Budget, "budget", "never keep more of the model in memory than `SIZE` (600MB, 2GiB); the limits of cgroups and host hold besides")
	cli.SizeVar(f, &o.leave, "leave", "leave `SIZE` of the host's available memory to other programs (chosen: more while they wait for memory)")
	cli.SizeVar(f, &o.Window, "window", "`SIZE` of what is read ahead and not yet paged out (chosen)")
	f.BoolVar(&o.Always, "always", false, "help without measuring whether it wins: to study a strategy")
	f.BoolVar(&o.noJoin, "no-join", false, "stay in the own cgroup: pages read ahead are then not charged to the target's")
	f.BoolVar(&o.json, "json", false, "print the summary as JSON")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say what is being done")
	planFlags(f, &o)
	cmd.AddCommand(newDoctorCommand())
	return cmd
}

// advise adds to an error which flag of prefetchd helps.
func (o *options) advise(err error) error {
	switch {
	case errors.Is(err, event.ErrNoGGML) && !o.wait:
		return fmt.Errorf("%w If it loads it later, add --wait", err)
	case errors.Is(err, cgroup.ErrHidden):
		return fmt.Errorf("%w: mount the cgroup hierarchy here, run this on the host, or say with --budget how much of the model to keep in memory", err)
	}
	return err
}

func run(cmd *cobra.Command, o options) (err error) {
	if o.Strategy, err = prefetch.ParseStrategy(o.strategy); err != nil {
		return cli.Usage(err)
	}
	if _, only := o.Strategy.(prefetch.Pattern); only && o.pattern == "" {
		return cli.Usagef("--strategy pattern needs --pattern FILE")
	}
	if o.Stored, err = readPattern(o.pattern); err != nil {
		return err
	}
	if err := proc.CheckMount(); err != nil {
		return err
	}
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	live := newLive(cmd.ErrOrStderr())
	defer live.close()
	log := slog.New(slog.NewTextHandler(live, &slog.HandlerOptions{Level: level}))
	if o.Lock {
		log.Warn("what is locked the kernel cannot take: if another program in the target's cgroup needs more memory at once than is left, it may kill the target")
	}
	plan, err := openPlan(&o, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	s, err := serve.Run(cmd.Context(), serve.Options{PID: o.pid, Late: o.wait, Join: !o.noJoin, Dry: o.dry, Leave: o.leave, Prefetch: o.Options, Tell: live.tell, Planned: plan.take, Log: log})
	live.close()
	if err == nil && o.dry && s.PerToken == 0 && s.Idle == "" {
		err = errors.New("the target generated no token: nothing was learned")
	}
	if err := plan.finish(err); err != nil {
		return err
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
	if o.dry {
		return reportDry(cmd, &o, s)
	}
	if s.Idle != "" && s.Tokens == 0 {
		return nil // that was told
	}
	if s.PerToken == 0 {
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), "prefetchd: the target generated no token: nothing was learned")
		return err
	}
	streamed := s.Streamed
	if s.Experts != nil {
		streamed -= s.Experts.Read // a line of its own tells of them
	}
	perToken := int64(0)
	if s.Tokens > 0 {
		perToken = streamed / int64(s.Tokens)
	}
	expected := ""
	if s.Expected > 0 {
		expected = fmt.Sprintf(" (%.2f expected)", s.Expected)
	}
	bytes := func(n int64) string { return humanize.IBytes(uint64(n)) }
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "prefetchd: %d tokens at %.2f tok/s%s; of %s that each token reads, %s kept, %s streamed per token (%s in all), %d late; room for %s (%s); %s\n",
		s.Tokens, s.TokensPerSec, expected, bytes(s.PerToken), bytes(s.Pinned), bytes(perToken), bytes(streamed), s.Late, bytes(s.Room), s.Level, s.Queue)
	if err == nil && s.Experts != nil {
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "prefetchd: %s\n", aboutExperts(s.Experts, s.Tokens))
	}
	if err != nil || s.Streamed == 0 {
		return err
	}
	b := s.Beyond
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "prefetchd: memory that keeps nothing: window %s, reserve %s, left free %s, prefetchd itself %s, unused %s; read again per token: needed twice %s, taken by the kernel %s, swept %s\n",
		bytes(b.Window), bytes(b.Reserve), bytes(b.LeftFree), bytes(b.Own), bytes(b.Unused), bytes(b.Twice), bytes(b.Taken), bytes(b.Swept))
	return err
}

// aboutExperts says what was done for a mixture's experts, in a number of tokens.
func aboutExperts(x *prefetch.Experts, tokens int) string {
	bytes := func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	about := fmt.Sprintf("of %s of experts %s kept, room for %s", bytes(x.All), bytes(x.Kept), bytes(x.Room))
	if x.Chosen == 0 || tokens == 0 {
		return about
	}
	return about + fmt.Sprintf("; of %d that were chosen %.1f %% were in memory, for the others %s read per token (%s in all); %s of others, which misses had brought, paged out",
		x.Chosen, 100*float64(x.Chosen-x.Missed)/float64(x.Chosen), bytes(x.Read/int64(tokens)), bytes(x.Read), bytes(x.Strays))
}
