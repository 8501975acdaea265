// Command prefetchd keeps the right bytes of a model in memory for a running, unmodified llama.cpp.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/ebpf"
	"tensorcast/event"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/monitor"
	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/readahead"
	"tensorcast/prefetch/room"
	"tensorcast/prefetch/serve"
)

type options struct {
	pid         int
	exec        bool
	asRoot      bool
	strategy    string
	guesses     string
	around      string // what is done about the target's own readahead
	pattern     string
	plan        string
	learned     string
	ask         string
	dry         bool
	noJoin      bool
	wait        bool
	auto        bool
	names       []string
	most        int
	json        bool
	log         string
	verbose     bool
	leave       int64
	fabric      string // profile; empty: no
	fabricError string
	prefetch.Options
}

func main() {
	ctx, stop := cli.Signals(context.Background())
	code := cli.Run(ctx, command(stop), os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command is the command line. unheard lets signals take their usual effect, instead of ending the context: with --exec they are the command's.
func command(unheard func()) *cobra.Command {
	o := options{strategy: plan.StrategyNames()[0], guesses: prefetch.SpeculationNames()[0], around: readahead.Choices()[0], log: logText}
	cmd := &cobra.Command{
		Use:   "prefetchd (--pid N | --wait NAME | --auto | --exec [flags] -- command [argument...])",
		Short: "Keep the right bytes of a model in memory for a running llama.cpp",
		Long: `Keep the right bytes of a model in memory for a running, unmodified llama.cpp.
Learns from the warm-up or the first generated token what each token reads, keeps as much of it as fits in memory, and reads the
rest ahead of its use (io_uring), paging out behind. Joins the target's memory cgroup, keeps to the least
headroom of that cgroup, its ancestors and the host, and ends with the target, releasing everything.

Of a mixture of experts, what every token reads is kept first, and experts in what room is left. When a router has chosen,
those of its experts that are missing are read at once, beside each other, and those that are likely to be chosen last
give way. While the disk is idle, experts that the next layer is likely to choose are read before it has chosen, if tokens
turn out to be faster for it: that is tried with tokens by turns (--speculate auto), and again now and then. With
--learned what it found out about the routers is kept for the next time.
The target's own faults read around themselves what nobody asked for, up to twice the disk's readahead. While it is helped
they read little, if prefetchd was there when it loaded its model: --readahead.

What is kept is not locked: the kernel takes it when somebody needs memory, and prefetchd gives way for a while. With
--lock it cannot (experts are not locked): then the kernel may have to kill a process of the cgroup instead, the target
among them.

Tokens with help are compared with tokens without, and help that does not win is given up. Where there is nothing to win
(the model fits, its weights are not read from the file), it says why, sleeps, and looks again now and then.

While the target loads its model, that is read ahead of it at the disk's bandwidth, and what the first token reads stays. Which
weights are read in which order is guessed from the file; what the target then reads is learned instead if it differs.
With --pattern it is what analyze found out; the pattern of another model is refused. With --exec prefetchd starts the
command itself, and reads the head of the file that its arguments name (*.gguf) while probes are set.

The command runs as the user who typed sudo, with that user's groups, HOME, PATH and environment; --as-root runs it as
root. It keeps its standard streams, terminal and process group. SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are
passed on to it, unless the terminal has sent them to both. It must become llama.cpp itself (a shell's exec may): what it
starts is not helped.

With --keep-warm what a model needs that fits is read back when others took it from memory, as long as its process computes
nothing: the first request after a quiet night does not wait for the disk. What is taken again soon is read back ever less often.

With --fabric an emulated device in the command's memory holds part of the weights in fewer bytes, with a stated error (accurate:
none; balanced: 23.5 dB; fast: 15 dB), and computes with them, so that less is read from disk for each token: the text changes.
The device gives way to others, and the kernel ends it before the command.

With --dry-run it learns, or takes from --pattern, what a token reads, measures the room and the disk (reads below the
page cache for a moment, beside those of the target), says what would be kept and how many tokens per second are
expected (not of a mixture of experts, where that depends on what routers choose), and ends: nothing is kept. --plan writes that, or what is kept in the end, as CSV: file, offset_bytes,
size_bytes, tensor_name, visits (times that a token reads it from disk if it is streamed), state (kept or streamed).
Experts, which come and go, are not in it.

Needs root. The model must be read through a file mapping: start llama.cpp with --no-repack, without --no-mmap.
A process that holds no ggml is refused; --wait sleeps until it has loaded it. --wait NAME sleeps until a process of that
name has. --auto goes on: it looks each second for new processes that map a library of ggml, or a *.gguf, and starts a
prefetchd for each (--most at once), which has the flags that --auto has, and ends with its process.

In a container it needs what it needs on the host: eBPF (no user namespace of its own), /proc of its PID namespace, and
the target's memory cgroup, or --budget. From the host it helps a target in a container.

Exit status: with --pid, --wait and --auto 0 when the target ended or prefetchd was interrupted, 1 on failure, 2 for wrong usage. With --exec
the command's own (128+n if signal n ended it), also if helping it failed; 127 if there is no such program, 126 if it
cannot be run, 1 if it was not started for another reason, 2 for wrong usage.`,
		Example: `  sudo prefetchd --exec -- llama-cli -m model.gguf --no-repack -p "hi" -n 32
  sudo prefetchd --exec --fabric=fast -- llama-cli -m model.gguf --no-repack -p "hi" -n 32
  sudo prefetchd --pid $(pidof llama-server)
  sudo prefetchd --wait --pid $!
  sudo prefetchd --wait llama-server
  sudo prefetchd --auto --name llama-server --budget 12GB
  sudo prefetchd --pid $(pidof llama-server) --pattern analysis/pattern.json
  sudo prefetchd status`,
		Args: func(_ *cobra.Command, args []string) error { return o.check(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.auto {
				return o.logged(cmd.ErrOrStderr(), nil, helpAll(cmd, o))
			}
			if o.pid == 0 && !o.exec {
				var err error
				if o.pid, err = waitFor(cmd, args[0]); err != nil {
					return o.logged(cmd.ErrOrStderr(), nil, err)
				}
			}
			if o.exec {
				unheard()
				return o.advise(runCommand(cmd, o, args))
			}
			s, err := run(cmd, o)
			return o.logged(cmd.ErrOrStderr(), s, o.advise(err))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.SetInterspersed(false)
	f.IntVarP(&o.pid, "pid", "p", 0, "help the running process `N`")
	f.BoolVar(&o.exec, "exec", false, "start the command that follows, and help it from the first touch of its model on")
	f.BoolVar(&o.asRoot, "as-root", false, "with --exec, run the command as root, not as the user who typed sudo")
	f.BoolVar(&o.wait, "wait", false, "wait until the process has loaded ggml; else one that has not is refused. Without --pid: wait for a process with the name that follows")
	autoFlags(f, &o)
	f.StringVar(&o.pattern, "pattern", "", "begin with the pattern in `FILE`, which analyze wrote (pattern.json)")
	cli.EnumVar(cmd, &o.strategy, "strategy", "", plan.StrategyNames(),
		"auto (hold what fits, stream the rest), pin or stream alone, pattern (as auto, by --pattern only); both is auto's former name")
	cli.EnumVar(cmd, &o.guesses, "speculate", "", prefetch.SpeculationNames(),
		"read experts that are likely to be chosen next while the disk is idle: auto (where measured tokens are faster for it), off, on (do not measure)")
	f.StringVar(&o.learned, "learned", "", "keep what is learned of a mixture's routing in `DIR`, and begin with it the next time")
	f.BoolVar(&o.Lock, "lock", false, "lock what is held (mlock), but for experts: the kernel cannot take it back, not even when it must kill a process instead")
	cli.SizeVar(f, &o.Budget, "budget", "never keep more of the model in memory than `SIZE` (600MB, 2GiB); the limits of cgroups and host hold besides")
	cli.SizeVar(f, &o.leave, "leave", "leave `SIZE` of the host's available memory to other programs (chosen: more while they wait for memory)")
	cli.SizeVar(f, &o.Window, "window", "`SIZE` of what is read ahead and not yet paged out (chosen)")
	f.BoolVar(&o.KeepWarm, "keep-warm", false, "read back what fits when others took it, as long as the target computes nothing: a server's next request finds it in memory")
	cli.EnumVar(cmd, &o.fabric, "fabric", "", profileNames(), "with --exec: have an emulated device hold weights of the model in fewer bytes and with a stated error")
	f.Lookup("fabric").NoOptDefVal = profileNames()[0]
	f.StringVar(&o.fabricError, "error", "", "with --fabric: the least ratio of products to their error instead of a profile's, `20dB`")
	f.BoolVar(&o.Always, "always", false, "help without measuring whether it wins: to study a strategy")
	f.BoolVar(&o.noJoin, "no-join", false, "stay in the own cgroup: pages read ahead are then not charged to the target's")
	f.StringVar(&o.ask, "run-dir", monitor.Dir, "where prefetchd status finds this one; empty: nowhere")
	f.BoolVar(&o.json, "json", false, "print the summary as JSON (with --exec on standard error: standard output is the command's)")
	cli.EnumVar(cmd, &o.log, "log", "", []string{logText, logJSON}, "what is told on standard error: text, or json (an object for each line: time, level, msg, target, and status or summary); not with --exec")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say what is being done")
	readaheadFlags(cmd, &o)
	planFlags(f, &o)
	cmd.AddCommand(newDoctorCommand(), newStatusCommand(), newFabricCommand(), guardianCommand())
	objects := ebpf.Objects()
	maps.Copy(objects, readahead.Objects())
	cli.Objects(cmd, objects)
	return cmd
}

// advise adds to an error which flag of prefetchd helps.
func (o *options) advise(err error) error {
	switch {
	case errors.Is(err, event.ErrNoGGML) && !o.wait && !o.exec:
		return fmt.Errorf("%w If it loads it later, add --wait", err)
	case errors.Is(err, cgroup.ErrHidden):
		return fmt.Errorf("%w: mount the cgroup hierarchy here, run this on the host, or say with --budget how much of the model to keep in memory", err)
	}
	return err
}

// check says in one line what is wrong with the arguments.
func (o *options) check(args []string) error {
	switch {
	case o.auto:
		return o.checkAuto(args)
	case len(o.names) > 0:
		return cli.Usagef("--name is for --auto; `prefetchd --wait NAME` waits for one process")
	case o.fabricError != "" && o.fabric == "":
		return cli.Usagef("--error is for --fabric")
	case o.exec && o.pid != 0:
		return cli.Usagef("give --exec or --pid, not both")
	case o.exec && len(args) == 0:
		return cli.Usagef("say which command to start: prefetchd --exec -- llama-cli -m model.gguf")
	case o.exec && o.wait:
		return cli.Usagef("--wait is for --pid: a command is waited for anyway")
	case o.exec && o.log == logJSON:
		return cli.Usagef("with --exec standard error is the command's, too: --log json is for --pid, --wait and --auto")
	case o.exec && o.dry:
		return cli.Usagef("--dry-run is for --pid: start the command without prefetchd")
	case o.exec && o.plan == toStdout:
		return cli.Usagef("with --exec standard output is the command's: name a file after --plan")
	case o.exec:
		return nil
	case o.fabric != "":
		return cli.Usagef("--fabric is for --exec: the command has to load %s when it starts", backendName)
	case o.asRoot:
		return cli.Usagef("--as-root is for --exec: not with --pid")
	case o.wait && o.pid == 0 && len(args) == 1 && args[0] != "":
		return nil
	case len(args) > 0:
		return cli.Usagef("unexpected argument %q: say which process to help with --pid, or start a command with --exec", args[0])
	case o.pid <= 0:
		return cli.Usagef("say which process to help: prefetchd --pid N, or start it: prefetchd --exec -- command")
	}
	return nil
}

// prepare checks what does not depend on the target, and says how it is helped.
func (o *options) prepare(live *live) (serve.Options, error) {
	var err error
	if o.Strategy, err = plan.ParseStrategy(o.strategy); err != nil {
		return serve.Options{}, cli.Usage(err)
	}
	o.Experts.Speculate = prefetch.Speculation(o.guesses)
	if o.Strategy.Traits().OnlyStored && o.pattern == "" {
		return serve.Options{}, cli.Usagef("--strategy pattern needs --pattern FILE")
	}
	if o.Stored, err = readPattern(o.pattern); err != nil {
		return serve.Options{}, err
	}
	if err := proc.CheckMount(); err != nil {
		return serve.Options{}, err
	}
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	log := o.logger(live, level)
	if o.Lock {
		log.Warn("what is locked the kernel cannot take: if another program in the target's cgroup needs more memory at once than is left, it may kill the target")
	}
	return serve.Options{
		PID: o.pid, Late: o.wait || o.exec, Join: !o.noJoin, Dry: o.dry, Leave: o.leave, Readahead: readahead.Choice(o.around), Guardian: guardian(), Learned: o.learned, Ask: o.ask, Prefetch: o.Options, Tell: live.tell, Log: log,
	}, nil
}

// run helps a process. The summary is not nil where there is something to tell of.
func run(cmd *cobra.Command, o options) (*prefetch.Summary, error) {
	live := newLive(cmd.ErrOrStderr(), o.events(cmd.ErrOrStderr()))
	defer live.close()
	so, err := o.prepare(live)
	if err != nil {
		return nil, err
	}
	plan, err := openPlan(&o, cmd.OutOrStdout())
	if err != nil {
		return nil, err
	}
	if plan != nil {
		so.Planned = plan.take
	}
	s, err := serve.Run(cmd.Context(), so)
	live.close()
	if err == nil && o.dry && s.PerToken == 0 && s.Idle == "" {
		err = errors.New("the target generated no token: nothing was learned")
	}
	if err := plan.finish(err); err != nil {
		return nil, err
	}
	if o.dry && !o.json {
		return nil, reportDry(cmd, &o, s)
	}
	if o.log == logJSON && !o.json {
		return &s, nil
	}
	return &s, report(cmd.OutOrStdout(), cmd.ErrOrStderr(), o, s)
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

// report prints the summary: as JSON to one writer, as text to the other.
func report(asJSON, asText io.Writer, o options, s prefetch.Summary) error {
	if s.Level == room.LevelBudget {
		s.Level = "--budget"
	}
	if o.json {
		return cli.WriteJSON(asJSON, s)
	}
	if s.Idle != "" && s.Tokens == 0 {
		return nil // that was told
	}
	if s.PerToken == 0 {
		_, err := fmt.Fprintln(asText, "prefetchd: the target generated no token: nothing was learned")
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
	_, err := fmt.Fprintf(asText, "prefetchd: %d tokens at %.2f tok/s%s; of %s that each token reads, %s kept, %s streamed per token (%s in all), %d late; room for %s (%s); %s\n",
		s.Tokens, s.TokensPerSec, expected, bytes(s.PerToken), bytes(s.Pinned), bytes(perToken), bytes(streamed), s.Late, bytes(s.Room), s.Level, s.Queue)
	if err == nil && s.Experts != nil {
		_, err = fmt.Fprintf(asText, "prefetchd: %s\n", aboutExperts(s.Experts, s.Tokens))
	}
	if line := aboutReadahead(s.Readahead); err == nil && line != "" {
		_, err = fmt.Fprintf(asText, "prefetchd: %s\n", line)
	}
	if err != nil || s.Streamed == 0 {
		return err
	}
	b := s.Beyond
	_, err = fmt.Fprintf(asText, "prefetchd: memory that keeps nothing: window %s, reserve %s, left free %s, prefetchd itself %s, unused %s; read again per token: needed twice %s, taken by the kernel %s, swept %s\n",
		bytes(b.Window), bytes(b.Reserve), bytes(b.LeftFree), bytes(b.Own), bytes(b.Unused), bytes(b.Twice), bytes(b.Taken), bytes(b.Swept))
	return err
}

// aboutExperts says what was done for a mixture's experts, in a number of tokens.
func aboutExperts(x *mixture.Summary, tokens int) string {
	bytes := func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	about := fmt.Sprintf("of %s of experts %s kept, room for %s", bytes(x.All), bytes(x.Kept), bytes(x.Room))
	if x.Chosen == 0 || tokens == 0 {
		return about
	}
	about += fmt.Sprintf("; of %d that were chosen %.1f %% were in memory, for the others %s read per token (%s in all); %s of others, which misses had brought, paged out",
		x.Chosen, 100*float64(x.Chosen-x.Missed)/float64(x.Chosen), bytes(x.Read/int64(tokens)), bytes(x.Read), bytes(x.Strays))
	if s := x.Speculation; s != nil {
		about += fmt.Sprintf("; read before they were chosen (%s): %s per token (%s in all, %s of it for experts that then were)",
			s.State, bytes(s.Read/int64(tokens)), bytes(s.Read), bytes(s.Used))
	}
	return about
}
