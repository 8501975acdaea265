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
		Long: `Keep the right bytes of a model in memory for a running, unmodified llama.cpp. That llama.cpp is
called the target here. From the warm-up, or from the first generated token, prefetchd learns what
each token reads. It keeps as much of that in memory as fits. It reads the rest from disk just
before the target uses it, and pages it out (drops it from memory) right after. prefetchd joins the
target's memory control group, in short its cgroup. It takes no more memory than is left in that
cgroup, in the cgroups above it and on the machine. When the target ends, prefetchd releases
everything and ends, too.

Whom it helps: --pid N helps the running process N. --wait NAME helps the process of that name. If
none runs, it waits until one has loaded ggml, the library with which llama.cpp computes. NAME is
the name of a program, or of a systemd unit such as ollama.service. --auto helps every process that
computes with ggml, whatever its name is: each second it looks for new processes that map the code
of ggml, or a GGUF file. --exec starts the command that follows, and helps it from its first touch
of the model on.

A process also stands for its children, those that it has started and those that it starts later.
So --pid, --wait NAME and --exec also help what computes below a llama-server with --models-dir, or
below an Ollama. They do so until that server ends. Each process that is helped has a prefetchd of
its own, which has the same flags and ends with it. --budget is divided among the processes that
compute.

How the target must be started: it must read its model through a file mapping, as llama.cpp does by
default (--load-mode mmap). Even then llama.cpp copies weights of some types while it loads them.
The copies make prompts faster, but they take the memory of these weights a second time. With
--no-repack nothing is copied. --exec warns if the copies are larger than the memory. prefetchd
refuses a process without ggml.

Is help worth it? prefetchd compares tokens with help to tokens without it, and gives up help that
does not win. There is nothing to win if the model fits into memory, or if its weights are not read
from the file. Then prefetchd says why, sleeps, and looks again from time to time.

Others need memory: pages that prefetchd keeps are not locked. When other programs need memory, the
kernel takes these pages, and prefetchd gives way for a while. With --lock the kernel cannot take
them. It may then have to kill a process of the cgroup instead, even the target. Experts are never
locked.

While the target loads its model, prefetchd reads the model ahead of it at the disk's bandwidth, and
keeps what the first token reads. It guesses from the file in which order weights are read. If the
target reads in another order, prefetchd learns that order. With --pattern it takes the order that
analyze found, and refuses the pattern of another model. With --exec the command's arguments may
name the model (*.gguf). Then prefetchd reads the model's beginning while it sets its probes, which
are the places where it observes the target.

Readahead: when a page of the model is missing, the kernel also reads pages around it that nobody
asked for, up to twice the disk's readahead. While prefetchd helps the target, it makes these reads
small. --readahead says how. All of it is undone at the end, also if prefetchd is killed:

  auto      as fd, if more than 512 KiB are read around a page
  leave     change nothing
  fd        change the open file through which the target loads its model. This needs --exec or
            --wait. The disk's own readahead is small for some ten microseconds.
  inject    stop one thread of the target, and make it advise the kernel (MADV_RANDOM). This works
            after the load, too. It needs x86-64, and a target without a debugger and without
            seccomp. A helper process, the guardian, does it. If that is killed at that moment, the
            target crashes.

A mixture of experts is a model in which, for each token and layer, a router chooses a few of many
experts. prefetchd first keeps the weights that every token reads, and keeps experts in the
remaining memory. When a router has chosen, the experts that are missing are read at once, all at
the same time. The experts that are least likely to be chosen give way. With --speculate on,
prefetchd also reads experts that the next layer is likely to choose, while the disk is idle. That
is off by default, because tokens were not faster with it where it was measured. With --learned,
prefetchd keeps what it learns about the routers for the next run.

The next run of a mixture begins with the experts that the last run used most. They are read first,
into memory that is free, while the target waits for nothing. --no-hot leaves that out. For a model
that never ran here, --imatrix FILE says which experts these are.

With --keep-warm, prefetchd reads pages of the model back that other programs have taken. It does
that for a model that fits, and while the target computes nothing. So the first request after a
quiet night does not wait for the disk. Pages that are soon taken again are read back less and less
often. With --keep-warm=30m this ends when the target has computed nothing for 30 minutes. It goes
on when the target computes again.

With --fabric an emulated device holds part of the weights in fewer bytes, and computes with them.
So each token reads less from disk, but the text changes. The device uses memory of the command's
cgroup, and gives it back when others need it. If the kernel must kill a process for memory, it
kills the device before the command. A profile says how large the error of the products may be:

  accurate  no error
  balanced  23.5 dB below the products. A small real model had 14 % more perplexity with it.
  fast      15 dB below the products. The same model wrote useless text with it.

With --dry-run prefetchd learns what a token reads, or takes that from --pattern. It measures the
free memory and the disk. Then it prints what it would keep, and how many tokens per second that
should give, and ends. For a mixture of experts it gives no speed, because that depends on what
routers choose. --plan writes as CSV what is kept at the end, or with --dry-run what would be kept.
The columns are file, offset_bytes, size_bytes, tensor_name, visits and state. The state is kept or
streamed, and visits is how often a token reads the part from disk if it is streamed. Experts are
not in it, because they change all the time.

The command of --exec runs as the user who typed sudo, with that user's groups, HOME, PATH and
environment. With --as-root it runs as root. It keeps its standard streams, terminal and process
group. prefetchd passes SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 on to it, unless the
terminal has sent the signal to both.

prefetchd needs root. In a container it needs the same as on the host: eBPF, the /proc of its PID
namespace, and the target's memory cgroup or --budget. Where the container has a user namespace of
its own, the kernel refuses eBPF. From the host, prefetchd can help a target in a container.

Settings for all runs are in ` + configPath + `, or in the environment.
prefetchd config shows them.

Exit status with --pid, --wait and --auto: 0 if the target ended or prefetchd was interrupted; 1 if
prefetchd failed, or was interrupted before a process of that NAME came; 2 for wrong usage.
With --exec the exit status is that of the command, also if helping it failed. It is 128+n if signal
n ended the command, 127 if there is no such program, and 126 if the program cannot be run. It is 1
if the command was not started for another reason, and 2 for wrong usage.`,
		Example: `  sudo prefetchd --exec -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  sudo prefetchd --exec --fabric=fast -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  sudo prefetchd --pid $(pidof llama-server)          # this and the next four end with the server, or with Ctrl-C
  llama-server -m model.gguf --no-repack & sudo prefetchd --wait --pid $!
  sudo prefetchd --wait llama-server --budget 12GB
  sudo prefetchd --wait ollama
  sudo prefetchd --pid $(pidof llama-server) --pattern analysis/pattern.json
  sudo prefetchd --auto --name llama-server --budget 12GB          # until Ctrl-C
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
	f.IntVarP(&o.pid, "pid", "p", 0, "help the running process with the id `N`, or those that it starts to compute for it")
	addExecFlag(f, &o.exec)
	f.BoolVar(&o.asRoot, "as-root", false, "with --exec: run the command as root, not as the user who typed sudo")
	f.BoolVar(&o.wait, "wait", false, "with --pid: wait until the process has loaded ggml. Otherwise a process without ggml "+
		"is refused. Without --pid: wait for a process of the program or systemd unit whose name follows")
	addAutoFlags(f, o)
	f.StringVar(&o.pattern, "pattern", "", "begin with the pattern in `FILE`, which analyze wrote (pattern.json)")
	cli.EnumVar(cmd, &o.strategy, "strategy", "", plan.StrategyNames(),
		"how the model is held: auto keeps what fits and streams the rest, pin only keeps, stream only streams, and "+
			"pattern does as auto, but only by --pattern. To stream is to read just before the use, and to page out "+
			"right after. both is the former name of auto")
	cli.EnumVar(cmd, &o.guesses, "speculate", "", prefetch.SpeculationNames(),
		"whether experts that are likely to be chosen next are read while the disk is idle: off, on, or auto. auto is "+
			"what was measured to be best, which is off")
	f.StringVar(&o.learned, "learned", "",
		"keep what is learned about the routers of a mixture of experts in `DIR`, and begin with it the next time")
	f.BoolVar(&o.noHot, "no-hot", false, "do not remember in --run-dir which experts of a mixture a run used most, "+
		"and do not read those of the last run first")
	f.StringVar(&o.imatrix, "imatrix", "", "if no last run is known, first read the experts that an importance matrix counts "+
		"most. `FILE` is a GGUF file of llama-imatrix")
	f.BoolVar(&o.Lock, "lock", false, "lock kept pages (mlock), except experts. The kernel then cannot take them, "+
		"even if it must kill a process instead")
	cli.AmountVar(f, &o.budget, "budget", "never keep more of the model in memory than `SIZE`, such as 600MB, 2GiB, or 60% of "+
		"the machine's memory. The limits of cgroups and of the machine count as well (default: only these limits)")
	f.Var((*capsFlag)(&o.caps), "budget-of", "the same for one program, systemd unit or model's file: `NAME=SIZE`, such as "+
		"ollama.service=8GiB or *-70B-*.gguf=50%. May be repeated. The least SIZE that applies counts")
	cli.SizeVar(f, &o.leave, "leave", "leave `SIZE` of the machine's available memory to other programs "+
		"(default: prefetchd chooses, and leaves more while they wait for memory)")
	cli.SizeVar(f, &o.Window, "window",
		"the most that is read ahead and not yet paged out, a `SIZE` (default: prefetchd chooses)")
	f.Var(&warmFlag{&o.KeepWarm, &o.warmFor}, "keep-warm", "while the target computes nothing, read back pages "+
		"that others took of a model that fits. So a server's next request finds them in memory. With a `TIME`, as in "+
		"--keep-warm=30m, only for so long after the target has computed last (default: off)")
	f.Lookup("keep-warm").NoOptDefVal = "true"
	cli.EnumVar(cmd, &o.fabric, "fabric", "", profileNames(),
		"with --exec: let an emulated device hold weights of the model in fewer bytes, with the error of this profile. "+
			"--fabric alone is balanced (default: no device)")
	f.Lookup("fabric").NoOptDefVal = profileNames()[0]
	f.StringVar(&o.fabricError, "error", "",
		"with --fabric: the least ratio of products to their error, in `DECIBELS` such as 20dB (default: the profile's)")
	f.BoolVar(&o.Always, "always", false, "help without measuring whether help wins. This is for studying a strategy")
	f.BoolVar(&o.noJoin, "no-join", false,
		"do not join the target's cgroup. Pages that are read ahead are then not charged to it")
	f.StringVar(&o.runDir, "run-dir", monitor.Dir, "`DIR` of the socket by which prefetchd status finds this prefetchd, "+
		"and of what is remembered of a mixture's experts. If it is empty, there is neither")
	f.BoolVar(&o.json, "json", false,
		"print the summary as JSON. With --exec it goes to standard error, because standard output is the command's")
	cli.EnumVar(cmd, &o.log, "log", "", []string{logText, logJSON}, "format of standard error: text or json, not with "+
		"--exec. In json each line is an object with time, level, msg, target, and status or summary")
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
