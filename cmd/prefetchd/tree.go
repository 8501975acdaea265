package main

// This file helps a process or what computes below it: a server may only start others that compute, like a llama-server
// with a directory of models.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/visible"
	"tensorcast/prefetch/auto"
	"tensorcast/prefetch/monitor"
	"tensorcast/prefetch/serve"
	"tensorcast/processes"
)

// execFlag is the value of --exec. From this flag on, the first word that is no flag begins the command, and all that
// follows belongs to it.
type execFlag struct {
	on    *bool
	flags *pflag.FlagSet
}

func addExecFlag(f *pflag.FlagSet, on *bool) {
	f.Var(&execFlag{on, f}, "exec", "start the command that follows, and help it from its first touch of the model on")
	f.Lookup("exec").NoOptDefVal = "true"
}

func (e *execFlag) String() string { return strconv.FormatBool(e.on != nil && *e.on) }

func (e *execFlag) Type() string { return "bool" }

func (e *execFlag) Set(text string) (err error) {
	if *e.on, err = strconv.ParseBool(text); err == nil {
		e.flags.SetInterspersed(!*e.on)
	}
	return err
}

// areNumbers says whether there are arguments, and all are process ids.
func areNumbers(args []string) bool {
	for _, a := range args {
		if n, err := strconv.ParseInt(a, 10, 32); err != nil || n <= 0 {
			return false
		}
	}
	return len(args) > 0
}

// onePID returns the process that is meant by --pid and the numbers that follow it. pidof prints all processes of a
// name: a server and those that it has started. Then the server is meant.
func onePID(pid int, more []string) (int, error) {
	if len(more) == 0 {
		return pid, nil
	}
	pids, texts := []int{pid}, []string{strconv.Itoa(pid)}
	for _, text := range more {
		n, err := strconv.Atoi(text)
		if err != nil {
			return 0, cli.Usagef("unexpected argument %q", text)
		}
		pids, texts = append(pids, n), append(texts, text)
	}
	top, ok, err := processes.Topmost(pids)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, cli.Usagef("none of the processes %s has started the others: give one of them, or use --auto",
			strings.Join(texts, ", "))
	}
	return top, nil
}

// waitForName waits until a process with a name, or one that it has started, computes. It returns the topmost process
// with that name.
func waitForName(cmd *cobra.Command, o *options, name string) (pid int, err error) {
	live := newLive(cmd.ErrOrStderr(), o.statusLogger(cmd.ErrOrStderr()))
	defer live.close()
	log := o.logger(live, o.logLevel())
	finder, err := processes.NewFinder(processes.Selection{Names: []string{name}})
	if err != nil {
		return 0, err
	}
	search := beginSearch(cmd.Context(), monitor.Search{Names: []string{name}}, live, o.runDir, log)
	defer func() { err = errors.Join(err, search.close()) }()
	c, err := finder.Wait(cmd.Context())
	if errors.Is(err, processes.ErrNone) {
		return 0, fmt.Errorf("%v before a process named %s came", context.Cause(cmd.Context()), name)
	} else if err != nil {
		return 0, fmt.Errorf("wait for %s: %w", name, err)
	}
	log.Info("found", "target", c.PID, "name", c.Name)
	live.note("helping process %d %s", c.PID, visible.Line(c.Name))
	return c.Root, nil
}

// isForOne says whether one process is to be looked at.
func (o *options) isForOne() bool { return o.dry || o.plan != "" }

// chooseOne replaces a process that only starts others by the one that computes, where one process is to be looked at.
func (o *options) chooseOne() error {
	if !o.isForOne() || o.helper {
		return nil
	}
	found, err := processes.Computing(o.pid)
	if err != nil || len(found) == 0 {
		return err // if nobody computes, the process itself is waited for, or refused
	}
	if len(found) > 1 {
		return cli.Usagef("process %d computes nothing itself: --dry-run and --plan are for one of those below it: %s",
			o.pid, listCandidates(found))
	}
	o.pid = found[0].PID
	return nil
}

// listCandidates names processes in one line.
func listCandidates(all []processes.Candidate) string {
	var names []string
	for _, c := range all {
		names = append(names, fmt.Sprintf("%d %s", c.PID, c.Name))
	}
	return strings.Join(names, ", ")
}

// below helps what a process starts, as long as nothing is done for the process itself. nil helps nothing.
type below struct {
	cmd   *cobra.Command
	o     options
	waits atomic.Bool // nothing is done for the process itself now

	stop    context.CancelFunc
	running sync.WaitGroup
	helped  int // valid after running, like err
	err     error
}

// belowInterval is how often it is looked for what a process starts, beside the help for the process itself. Most never
// start one that computes, and each look wakes this program.
const belowInterval = 2 * time.Second

// newBelow prepares to help what a process starts. so is how the process itself will be helped.
func newBelow(cmd *cobra.Command, o *options, so *serve.Options) *below {
	if o.helper || o.isForOne() || o.fabric != "" {
		return nil
	}
	b := &below{cmd: cmd, o: *o}
	b.waits.Store(true)
	tell := so.OnStatus
	so.OnStatus = func(r monitor.Report) {
		b.waits.Store(!isUsing(r.Status.Activity))
		if tell != nil {
			tell(r)
		}
	}
	return b
}

// start begins to help what the process pid starts. With root it helps the process itself like these. The caller must
// call end or waitForRoot.
func (b *below) start(ctx context.Context, pid int, root bool, stderr io.Writer) error {
	if b == nil {
		return nil
	}
	finder, err := processes.NewFinder(processes.Selection{Root: pid})
	if err != nil {
		return err
	}
	b.o.pid = 0 // each message says which target it is about
	log := b.o.logger(stderr, b.o.logLevel())
	ao, err := b.o.helpersOptions(b.cmd, b.cmd.Flags(), stderr, log)
	if err != nil {
		return err
	}
	if b.o.runDir == "" && b.o.Budget > 0 {
		ao.MaxHelpers = 1 // nobody could be told that the share is another one
	}
	if root {
		log.Info("the process computes nothing itself: those that it has started are helped", "parent", pid)
	} else {
		ao.Beside, ao.Interval = pid, belowInterval
		ao.Skip = func() bool { return !b.waits.Load() }
	}
	ctx, stop := context.WithCancel(ctx)
	b.stop = stop
	b.running.Go(func() { b.helped, b.err = auto.Run(ctx, finder, ao) })
	return nil
}

// onlyStarts says whether a process computes nothing itself, as far as can be told, but others below it do. With --wait
// that is not asked: the process itself is helped at once, in case that it is about to load its model.
func (b *below) onlyStarts(pid int) (bool, error) {
	if b == nil || b.o.wait {
		return false, nil
	}
	found, err := processes.Computing(pid)
	return len(found) > 0 && found[0].PID != pid, err
}

// end ends all helpers, and says how many there were.
func (b *below) end() (helped int, err error) {
	if b == nil || b.stop == nil {
		return 0, nil
	}
	b.stop()
	b.running.Wait()
	return b.helped, b.err
}

// waitForRoot waits until a process ends, or ctx does, and ends all helpers.
func (b *below) waitForRoot(ctx context.Context, pid int) error {
	err := waitForEnd(ctx, pid)
	_, endErr := b.end()
	return errors.Join(err, endErr)
}

// waitForEnd waits until a process ends, or ctx does.
func waitForEnd(ctx context.Context, pid int) error {
	p, err := proc.Open(pid)
	if errors.Is(err, proc.ErrNoProcess) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = p.Wait(ctx); ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, p.Close())
}
