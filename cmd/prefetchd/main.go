// Command prefetchd keeps the right bytes of a model in memory for a running, unmodified llama.cpp.
package main

// This file has the command line, and helps one process.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tensorcast/ebpf"
	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
	"tensorcast/internal/sizes"
	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/hot"
	"tensorcast/prefetch/monitor"
	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/readahead"
	"tensorcast/prefetch/room"
	"tensorcast/prefetch/serve"
)

// options are the values of the flags; see command for their meanings.
type options struct {
	// Which process is helped.
	pid    int
	exec   bool
	asRoot bool
	wait   bool
	auto   bool
	names  []string
	never  []string
	most   int
	helper bool // it was started by --auto

	// How it is helped.
	strategy    string
	guesses     string // the value of --speculate
	around      string // the value of --readahead
	pattern     string
	learned     string
	noHot       bool
	imatrix     string
	noJoin      bool
	budget      sizes.Amount // Budget is the same in bytes, after configure
	caps        room.Caps
	hostMemory  int64         // bytes, of which shares are; 0: there are none
	warmFor     time.Duration // with KeepWarm: how long after the target's last computing; 0: always
	leave       int64
	fabric      string // a profile; empty without --fabric
	fabricError string
	dry         bool
	prefetch.Options

	// What is reported.
	plan       string
	configFile string
	runDir     string
	json       bool
	log        string
	verbose    bool
}

func main() {
	ctx, stop := cli.Signals(context.Background())
	code := cli.Run(ctx, command(stop), os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command returns the command line. restoreSignals gives signals their usual effect again, instead of
// ending the context. It is called with --exec, where signals are passed on to the command.
func command(restoreSignals func()) *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:   "prefetchd (--pid N | --wait NAME | --auto | --exec [flags] -- command [argument...])",
		Short: "Keep the right bytes of a model in memory for a running llama.cpp",
		Long: `Keep the right bytes of a model in memory for a running, unmodified llama.cpp, which is called
the target here. prefetchd learns from the warm-up or the first generated token what each token
reads. It keeps as much of that in memory as fits. The rest it reads from disk just before the
target uses it, and pages it out right after. It joins the target's memory cgroup, and takes no more
memory than that cgroup, those above it and the host have left. It ends with the target and releases
everything.

Whom it helps: --pid N helps a process that runs. --wait NAME helps the process of that name that
runs, or sleeps until one has loaded ggml. NAME is that of a program, or of a systemd unit
(ollama.service). --auto helps every process that computes with ggml: each second it looks for new
processes that map code of ggml, or a GGUF file, whatever these are called. --exec starts the
command that follows, and helps it from its first touch of the model on.

A process stands for those that it has started, and those that it starts later. So --pid, --wait
NAME and --exec help what computes below a llama-server with --models-dir, or below an Ollama, until
that process itself ends. Each process that is helped has a prefetchd of its own, with the same
flags, which ends with it. --budget is divided among those that compute.

How the target must be started: it must read its model through a file mapping, as llama.cpp does by
default (--load-mode mmap). Weights of some types are copied when they are loaded all the same. That
makes prompts faster, but takes the size of these weights again. With --no-repack they are not
copied. --exec warns of copies that are larger than the memory. A process without ggml is refused.

Is help worth it? Tokens with help are compared with tokens without it, and help that does not win
is given up. Where there is nothing to win, prefetchd says why, sleeps, and looks again from time to
time. That is so if the model fits, or if its weights are not read from the file.

Others need memory: pages that are kept are not locked. The kernel takes them when others need
memory, and prefetchd gives way for a while. With --lock the kernel cannot take them. Then it may
have to kill a process of the cgroup instead, even the target. Experts are never locked.

While the target loads its model, prefetchd reads the model ahead of it at the disk's bandwidth, and
keeps what the first token reads. It guesses from the file in which order weights are read, and
learns anew if the target reads differently. With --pattern the order comes from analyze. The
pattern of another model is refused. With --exec prefetchd reads the beginning of the model that the
command's arguments name (*.gguf) while it sets probes.

The target's own page faults also read pages around themselves that nobody asked for, up to twice
the disk's readahead. While the target is helped they are made to read little. --readahead says how,
and all of it is undone at the end, also if prefetchd is killed:

  auto      fd, if faults read more than 512 KiB
  leave     no change
  fd        through the open file with which the target loads its model. It takes --exec or --wait,
            and the disk's own readahead is small for some ten microseconds.
  inject    also after the load: one thread of the target is stopped and made to advise MADV_RANDOM.
            This works only on x86-64, without a debugger and seccomp. If prefetchd's guardian is
            killed at that moment, the target crashes.

A mixture of experts: weights that every token reads are kept first, and experts in the remaining
room. When a router has chosen, its experts that are missing are read at once, beside each other,
and the experts that are least likely to be chosen give way. With --speculate on, experts that the
next layer is likely to choose are read before it has chosen, while the disk is idle. That is off by
default, because tokens were not faster with it where it was measured. With --learned, what
prefetchd learns about the routers is kept for the next time.

The next run of a mixture begins with the experts that the last run used most: they are read first,
into the room that there is, while the target waits for nothing. --no-hot leaves that out. For a
model that never ran here, --imatrix FILE says which experts these are.

With --keep-warm, pages of a model that fits are read back when others took them, while the target
computes nothing. So the first request after a quiet night does not wait for the disk. Pages that
are soon taken again are read back less and less often. With --keep-warm=30m prefetchd stops that
when the target has computed nothing for so long, until it computes again.

With --fabric an emulated device holds part of the weights in fewer bytes, and computes with them.
So each token reads less from disk, but the text changes. The error is stated: accurate has none,
that of balanced is 23.5 dB below the products, and that of fast is 15 dB. With a small real model
balanced raised perplexity by 14 %, and fast made the text useless. The device uses memory of the
command's cgroup, gives it back when others need it, and is killed before the command.

With --dry-run prefetchd learns what a token reads, or takes that from --pattern. It measures the
room and the disk, and prints what would be kept and the expected tokens per second. Then it ends,
and nothing is kept. Of a mixture of experts no speed is expected, because that depends on what
routers choose. --plan writes what would be kept, or what is kept at the end, as CSV: file,
offset_bytes, size_bytes, tensor_name, visits (how often a token reads it from disk if it is
streamed), state (kept or streamed). Experts are not in it, because they change all the time.

The command of --exec runs as the user who typed sudo, with that user's groups, HOME, PATH and
environment. --as-root runs it as root. It keeps its standard streams, terminal and process group.
SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to it, unless the terminal has
sent them to both.

It needs root. In a container it needs the same as on the host: eBPF (no user namespace of its own),
/proc of its PID namespace, and the target's memory cgroup, or --budget. From the host it can help a
target in a container.

Settings for all runs are in ` + configPath + `, or in the environment: see
prefetchd config.

Exit status with --pid, --wait and --auto: 0 when the target ended or prefetchd was interrupted; 1
on failure, also if it was interrupted before a process of that NAME came; 2 for wrong usage.
With --exec it is the status of the command (128+n if signal n ended it), also if helping it failed;
127 if there is no such program, 126 if it cannot be run, 1 if it was not started for another
reason, 2 for wrong usage.`,
		Example: `  sudo prefetchd --exec -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  sudo prefetchd --exec --fabric=fast -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  sudo prefetchd --pid $(pidof llama-server)
  sudo prefetchd --wait --pid $!
  sudo prefetchd --wait llama-server --budget 12GB
  sudo prefetchd --wait ollama
  sudo prefetchd --auto --name llama-server --budget 12GB
  sudo prefetchd --pid $(pidof llama-server) --pattern analysis/pattern.json
  sudo prefetchd status`,
		Args: cobra.ArbitraryArgs, // checked when all settings are known
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.helper || o.auto && !cli.HasTerminal() {
				// From now on, because a service may be told to reload when it has just begun. Whoever sends SIGHUP to
				// all prefetchds means --auto, which ends its helpers itself.
				cli.TakeHangups(cmd.Context())
			}
			given, err := copyFlags(cmd.Flags())
			if err != nil {
				return err
			}
			inForce, err := o.configure(cmd.Flags(), o.uses)
			if err == nil {
				err = o.check(args)
			}
			if err != nil {
				return o.logResult(cmd.ErrOrStderr(), nil, err)
			}
			if (o.auto || o.wait) && !o.helper {
				if err := checkMachine(true, o.logger(cmd.ErrOrStderr(), slog.LevelWarn)); err != nil {
					return o.logResult(cmd.ErrOrStderr(), nil, err)
				}
			}
			if o.auto {
				err := whileChecking(cmd, func() error { return helpAll(cmd, o, given, inForce) })
				return o.logResult(cmd.ErrOrStderr(), nil, err)
			}
			if o.exec {
				restoreSignals()
				return o.advise(runCommand(cmd, *o, args))
			}
			if o.pid == 0 {
				err = whileChecking(cmd, func() (err error) {
					o.pid, err = waitForName(cmd, o, args[0])
					return err
				})
			} else {
				o.pid, err = onePID(o.pid, args)
			}
			if err == nil {
				err = o.chooseOne()
			}
			if err != nil {
				return o.logResult(cmd.ErrOrStderr(), nil, err)
			}
			s, err := run(cmd, *o)
			return o.logResult(cmd.ErrOrStderr(), s, o.advise(err))
		},
	}
	o.addFlags(cmd)
	cmd.AddCommand(newDoctorCommand(), newStatusCommand(), newTopCommand(), newConfigCommand(), newExporterCommand(),
		newFabricCommand(), newGuardianCommand())
	objects := ebpf.Objects()
	maps.Copy(objects, readahead.Objects())
	cli.AddBPFVersions(cmd, objects)
	return cmd
}

// newOptions returns the defaults.
func newOptions() *options {
	return &options{
		strategy: plan.StrategyNames()[0],
		guesses:  prefetch.SpeculationNames()[0],
		around:   readahead.Choices()[0],
		log:      logText,
	}
}

// newFlags returns flags that set options. None is given yet.
func newFlags() (*pflag.FlagSet, *options) {
	o, cmd := newOptions(), &cobra.Command{}
	o.addFlags(cmd)
	return cmd.Flags(), o
}

// addFlags adds all flags of prefetchd itself.
func (o *options) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&o.pid, "pid", "p", 0, "help the running process `N`, or what it starts to compute for it")
	addExecFlag(f, &o.exec)
	f.BoolVar(&o.asRoot, "as-root", false, "with --exec, run the command as root, not as the user who typed sudo")
	f.BoolVar(&o.wait, "wait", false, "wait until the process has loaded ggml; without --wait, a process without ggml "+
		"is refused. Without --pid, wait for a process whose program or systemd unit has the name that follows")
	addAutoFlags(f, o)
	f.StringVar(&o.pattern, "pattern", "", "begin with the pattern in `FILE`, which analyze wrote (pattern.json)")
	cli.EnumVar(cmd, &o.strategy, "strategy", "", plan.StrategyNames(),
		"auto (keep what fits, stream the rest), pin (only keep), stream (only stream), pattern (as auto, by "+
			"--pattern only); both is auto's former name")
	cli.EnumVar(cmd, &o.guesses, "speculate", "", prefetch.SpeculationNames(),
		"read experts that are likely to be chosen next while the disk is idle: "+
			"off, on, or auto, which is what was measured to be best: off")
	f.StringVar(&o.learned, "learned", "",
		"keep what is learned about a mixture's routing in `DIR`, and begin with it the next time")
	f.BoolVar(&o.noHot, "no-hot", false, "do not remember (in --run-dir) which experts of a mixture a run used most, "+
		"and do not read those of the last run first")
	f.StringVar(&o.imatrix, "imatrix", "", "read the experts first that the importance matrix in `FILE` counts most, if "+
		"the last run is not known (a GGUF file of llama-imatrix)")
	f.BoolVar(&o.Lock, "lock", false, "lock kept pages (mlock), except experts: "+
		"the kernel cannot take them, even if it must kill a process instead")
	cli.AmountVar(f, &o.budget, "budget", "never keep more of the model in memory than `SIZE` (600MB, 2GiB, or 60% of "+
		"the machine's memory); the limits of cgroups and host apply as well")
	f.Var((*capsFlag)(&o.caps), "budget-of", "the same for one program, systemd unit or model's file: `NAME=SIZE` "+
		"(ollama.service=8GiB, *-70B-*.gguf=50%); may be repeated, and the least that applies counts")
	cli.SizeVar(f, &o.leave, "leave", "leave `SIZE` of the host's available memory to other programs "+
		"(default: chosen, and more while they wait for memory)")
	cli.SizeVar(f, &o.Window, "window",
		"`SIZE` of the pages that are read ahead and not yet paged out (default: chosen)")
	f.Var(&warmFlag{&o.KeepWarm, &o.warmFor}, "keep-warm", "read back pages of a model that fits when others took "+
		"them, while the target computes nothing: a server's next request finds them in memory; with `TIME` (30m) only "+
		"for so long after the target has computed last")
	f.Lookup("keep-warm").NoOptDefVal = "true"
	cli.EnumVar(cmd, &o.fabric, "fabric", "", profileNames(),
		"with --exec: let an emulated device hold weights of the model in fewer bytes and with a stated error")
	f.Lookup("fabric").NoOptDefVal = profileNames()[0]
	f.StringVar(&o.fabricError, "error", "",
		"with --fabric: the least ratio of products to their error instead of a profile's, `20dB`")
	f.BoolVar(&o.Always, "always", false, "help without measuring whether it wins, to study a strategy")
	f.BoolVar(&o.noJoin, "no-join", false,
		"do not join the target's cgroup: then pages that are read ahead are not charged to it")
	f.StringVar(&o.runDir, "run-dir", monitor.Dir, "directory of the socket by which prefetchd status finds this one, "+
		"and of what is remembered of a mixture's experts; empty: neither")
	f.BoolVar(&o.json, "json", false,
		"print the summary as JSON, with --exec on standard error, because standard output is the command's")
	cli.EnumVar(cmd, &o.log, "log", "", []string{logText, logJSON}, "format of standard error: text, or json "+
		"(an object for each line: time, level, msg, target, and status or summary); not with --exec")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log more details")
	addReadaheadFlags(cmd, o)
	addPlanFlags(f, o)
	addConfigFlags(f, o)
}

// advise adds advice to an error: which flag of prefetchd helps.
func (o *options) advise(err error) error {
	switch {
	case errors.Is(err, event.ErrNoGGML) && !o.wait && !o.exec && !o.helper:
		return fmt.Errorf("%w If it loads it later, add --wait", err)
	case errors.Is(err, cgroup.ErrHidden):
		return fmt.Errorf("%w: mount the cgroup hierarchy here, run this on the host, "+
			"or say with --budget how much of the model to keep in memory", err)
	}
	return err
}

// check returns an error of one line about wrong arguments.
func (o *options) check(args []string) error {
	switch {
	case o.auto:
		return o.checkAuto(args)
	case len(o.names) > 0:
		return cli.Usagef("--name is for --auto; `prefetchd --wait NAME` waits for one process")
	case len(o.never) > 0:
		return cli.Usagef("--never is for --auto")
	case o.fabricError != "" && o.fabric == "":
		return cli.Usagef("--error is for --fabric")
	case o.exec && o.pid != 0:
		return cli.Usagef("give --exec or --pid, not both")
	case o.exec && len(args) == 0:
		return cli.Usagef("say which command to start: prefetchd --exec -- llama-cli -m model.gguf")
	case o.exec && o.wait:
		return cli.Usagef("--wait is for --pid: a command is waited for anyway")
	case o.exec && o.log == logJSON:
		return cli.Usagef("with --exec standard error is the command's, too: " +
			"--log json is for --pid, --wait and --auto")
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
	case o.pid > 0 && areNumbers(args): // as pidof prints them
		return nil
	case len(args) > 0:
		return cli.Usagef("unexpected argument %q: say which process to help with --pid, "+
			"or start a command with --exec", args[0])
	case o.pid <= 0:
		return cli.Usagef("say which process to help: prefetchd --pid N, or start it: prefetchd --exec -- command")
	}
	return nil
}

// prepare checks everything that does not depend on the target, and returns the options for helping it.
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
	var counts hot.Counts
	if o.imatrix != "" {
		if counts, err = hot.ReadImatrix(o.imatrix); err != nil {
			return serve.Options{}, fmt.Errorf("read the importance matrix: %w", gguf.ExplainOpen(err))
		}
	}
	if err := proc.CheckMount(); err != nil {
		return serve.Options{}, err
	}
	log := o.logger(live, o.logLevel())
	if o.Lock {
		log.Warn("the kernel cannot take locked pages: if another program in the target's cgroup needs more memory " +
			"at once than is left, it may kill the target")
	}
	return serve.Options{
		PID: o.pid, Late: o.wait || o.exec, Join: !o.noJoin, Dry: o.dry, Leave: o.leave,
		Readahead: readahead.Choice(o.around), Guardian: guardianArgs(), LearnedDir: o.learned, SocketDir: o.runDir,
		ForgetExperts: o.noHot, Imatrix: counts, Cap: o.capOf(), WarmFor: o.warmFor,
		Prefetch: o.Options, OnStatus: live.show, Log: log,
	}, nil
}

// run helps a process. With --log json, the summary is not nil if there is one to log.
func run(cmd *cobra.Command, o options) (*prefetch.Summary, error) {
	live := newLive(cmd.ErrOrStderr(), o.statusLogger(cmd.ErrOrStderr()))
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
		so.OnPlanned = plan.setParts
	}
	live.say(func(time.Time) string { return fmt.Sprintf("looking at process %d", o.pid) })
	below := newBelow(cmd, &o, &so)
	root, err := below.onlyStarts(o.pid)
	if err == nil {
		err = below.start(cmd.Context(), o.pid, root, live)
	}
	if err != nil {
		return nil, err
	}
	if root {
		return nil, below.waitForRoot(cmd.Context(), o.pid)
	}
	s, err := serve.Run(cmd.Context(), so)
	helped, belowErr := below.end()
	live.close()
	if helped > 0 && s.PerToken == 0 &&
		(err == nil || errors.Is(err, event.ErrNoGGML) || errors.Is(err, proc.ErrNoProcess)) {
		return nil, belowErr // the process itself only started others, and has ended
	}
	err = errors.Join(err, belowErr)
	if err == nil && o.dry && s.PerToken == 0 && s.Idle == "" {
		err = errors.New("no decode of the target was seen as a whole: nothing was learned")
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

// readPattern reads a stored cycle; nil without a path.
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
