// Package serve helps one target from now until it ends: it attaches probes to it, hands their events to a
// prefetch.Controller, and where there is nothing to win it takes the probes away, sleeps, and looks again now and
// then.
package serve

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/capture"
	"tensorcast/event"
	"tensorcast/holding"
	"tensorcast/internal/proc"
	"tensorcast/moe"
	"tensorcast/moe/hidden"
	"tensorcast/prefetch"
	"tensorcast/prefetch/costs"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/monitor"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/readahead"
	"tensorcast/prefetch/room"
)

// Options say whom to help, and how.
type Options struct {
	PID  int  // the target; Start sets it
	Late bool // the target may load ggml later; else one that has none is an error
	// Elsewhere, if not nil, says that some of the target's weights are computed elsewhere, so that it reads less
	// than its file has: what it reads is learned, nothing is guessed or read before. What Elsewhere returns changes
	// when that has changed. It may be called any time.
	Elsewhere func() uint64
	Join      bool // this process joins the target's memory cgroup, so that it pays there for what it reads
	// Dry plans only: Run ends with what would be held, or with why nothing would be (Summary.Idle).
	Dry bool
	// Leave is how many bytes of the host's available memory are left to others; 0 chooses (see
	// prefetch.MemoryOptions).
	Leave int64
	// Readahead is what is done about what the target's own faults read around themselves, if its model is a mixture
	// of experts; "": nothing, and nothing is told of it. Guardian is the command that starts this program again as
	// the guardian of that, see readahead.Guard, and of what KernelPages.SetGuardian asks for; nil: there is none.
	Readahead readahead.Choice
	Guardian  []string
	// Learned is a directory in which what is learned of a mixture's routing is kept for the next target with that
	// model; "": nothing is.
	Learned string
	// Prefetch is what a Controller is made with. Its Memory, Models, Weights, Touched, Dry, Judge, Begin, Urgent,
	// Guess, Own and Log are set here.
	Prefetch prefetch.Options
	// Ask is a directory in which a socket is made at which this help can be asked what it does (package monitor);
	// "": it cannot. It helps all the same if that fails.
	Ask string
	// Tell is called with what is being done, several times a second while the target decodes; nil: nobody asks.
	Tell func(prefetch.Status)
	// Planned is called in the end with what is held and streamed; nil: nobody asks.
	Planned func([]prefetch.Part)
	Log     *slog.Logger
}

const (
	// tick is how often the control loop looks while it is busy.
	tick = time.Millisecond
	// lookInterval is how often it is asked whether there is something to win by now.
	lookInterval = time.Second
	// tellInterval is how often Tell is called at most.
	tellInterval = 250 * time.Millisecond
)

// server is the help for one target.
type server struct {
	o          Options
	command    *capture.Capture // what was started, until it was run
	early      early
	controller *prefetch.Controller
	memory     *room.ProcessMemory
	readahead  *readahead.Target // nil if it is not to be changed
	covered    bool              // so it was asked to, see follow
	eased      ease
	pages      *pages.Kernel
	settled    bool
	unloaded   bool // the probes of the command's start were removed
	target     *capture.Capture
	inputs     bool // target tells what routers read
	learned    learned
	told       time.Time
	monitor    *monitor.Server // nil: nobody can ask
	budget     atomic.Int64    // as it was set last
	urgently   bool            // this thread runs before all others
	collected  time.Time       // when garbage was collected last
	collecting atomic.Bool     // that is being done
	percent    int             // Go's settings for that before
	limit      int64
}

// Run helps until the target ends, or ctx does; both are no error. It locks its goroutine to a thread for as long, as
// priority belongs to a thread, and the kernel's workers for io_uring inherit that of the thread that submits. Errors
// are those of capture.Attach, cgroup.ErrHidden without a budget, and others; the target goes on as if nothing had
// been.
func Run(ctx context.Context, o Options) (s prefetch.Summary, err error) {
	return (&server{o: o}).run(ctx)
}

// Target is a command that was started to be helped.
type Target struct {
	server  *server
	capture *capture.Capture
	head    *head
}

// head reads the head of the command's model.
type head struct {
	*pages.Head // nil if there is none
	stop        context.CancelFunc
	reading     sync.WaitGroup
	closed      error // valid after reading
}

// early is what is known before a command runs: how much room there is, and how many bytes its models have; 0 if that
// is not known.
type early struct {
	room  room.Room
	bytes int64
}

// readHead begins to do so.
func readHead(ctx context.Context, args []string, o *Options) (*head, early, error) {
	h := &head{stop: func() {}}
	var e early
	// The command begins in this process's cgroup.
	memory, err := room.NewProcessMemory(os.Getpid(), room.MemoryOptions{Leave: o.Leave, TrustHost: o.Prefetch.Budget > 0, Log: o.Log})
	if err != nil {
		return nil, e, err
	}
	e.room, err = memory.Room(0, 0)
	h.reading.Go(func() { h.closed = memory.Close() }) // it waits for all CPUs, 20 ms on two busy ones
	if err != nil {
		return nil, e, errors.Join(err, h.close())
	}
	if o.Elsewhere != nil {
		return h, e, nil
	}
	most := plan.Keepable(e.room)
	if budget := o.Prefetch.Budget; budget > 0 {
		most = min(most, budget)
	}
	if h.Head = pages.OpenNamedHead(args, most); h.Head == nil {
		return h, e, nil
	}
	e.bytes = h.NamedBytes()
	ctx, h.stop = context.WithCancel(ctx)
	h.reading.Go(func() { h.Read(ctx) })
	return h, e, nil
}

func (h *head) close() error {
	h.stop()
	h.reading.Wait()
	if h.Head == nil {
		return h.closed
	}
	return errors.Join(h.closed, h.Head.Close())
}

// Start starts a command, stopped behind its execve, so that it is helped from its first touch of the model on. While
// probes are set, the head of the model that its arguments name is read. Where that fits for sure, the command runs
// at once instead, and is observed only when it does not fit any more: probes take two tenths of a second of a
// processor. signals are passed on to it, see capture.Options. The errors are those of capture.Start, and
// cgroup.ErrHidden. The caller must call Close.
func Start(ctx context.Context, cmd *exec.Cmd, signals []syscall.Signal, o Options) (t *Target, err error) {
	v := &server{o: o}
	v.easeWatch()
	defer func() {
		if err != nil {
			err = errors.Join(err, v.endEase())
		}
	}()
	h, e, err := readHead(ctx, cmd.Args, &o)
	if err != nil {
		return nil, err
	}
	if !o.Dry && o.Planned == nil && o.Elsewhere == nil && o.Prefetch.IsAmple(e.bytes, e.room) {
		c, err := capture.Launch(cmd, signals)
		if err != nil {
			return nil, errors.Join(err, h.close())
		}
		v.o.PID, v.o.Late, v.command, v.early, v.unloaded = c.PID(), true, c, e, true
		return &Target{v, c, h}, nil
	}
	opts := v.observing()
	opts.Signals = signals
	c, err := capture.Start(ctx, cmd, opts)
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	v.o.PID, v.command = c.PID(), c
	return &Target{v, c, h}, nil
}

// Help lets the command run, and helps until it ends, as Run does. On an error the command goes on without help, if
// it runs: see Runs.
func (t *Target) Help(ctx context.Context) (prefetch.Summary, error) { return t.server.run(ctx) }

// Runs says whether Help has let the command run. If not, Close ends it before its first instruction.
func (t *Target) Runs() bool { return t.server.command == nil }

// Wait waits, if the command runs, until it ends, and returns its exit status as a shell would.
func (t *Target) Wait(ctx context.Context) (status int, err error) { return t.capture.Wait(ctx) }

// Explain says, after Help and Wait, why nothing of the command was seen, see capture.Capture.Explain; nil if
// something was, or nothing stood in the way.
func (t *Target) Explain() error {
	if t.server.unloaded || t.server.seen() {
		return nil
	}
	return t.capture.Explain()
}

// Close ends the command if it still runs.
func (t *Target) Close() error {
	return errors.Join(t.capture.Close(), t.head.close(), t.server.endEase())
}

// run helps the target from now on.
func (v *server) run(ctx context.Context) (s prefetch.Summary, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o := v.o
	process, err := proc.Open(o.PID)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, process.Close()) }()
	claim, err := room.Claim(process)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, claim.Close()) }()
	// Early: the target may load its model already.
	if v.readahead = v.newReadahead(process); v.readahead != nil {
		defer func() { s.Readahead = v.readahead.End() }()
	}
	v.budget.Store(o.Prefetch.Budget)
	if o.Ask != "" && !o.Dry {
		if v.monitor, err = monitor.Listen(o.Ask, o.PID, v.budget.Store, o.Log); err != nil {
			o.Log.Info("prefetchd status will not tell of this", "why", err)
			err = nil
		} else {
			defer func() { err = errors.Join(err, v.monitor.Close()) }()
		}
	}
	memory, err := room.NewProcessMemory(o.PID, room.MemoryOptions{Leave: o.Leave, TrustHost: o.Prefetch.Budget > 0, Log: o.Log})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	v.memory = memory
	pages, err := pages.NewKernel(o.PID, o.Log)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, pages.Close()) }()
	v.pages = pages
	pages.SetGuardian(o.Guardian)
	p := o.Prefetch
	p.Memory, p.Log = v.memory, o.Log
	p.Target.Models, p.Target.Weights = models.MappedBy(o.PID), models.ReadWeights
	examiner := holding.New(o.PID)
	p.Target.Judge = func() error { return v.judge(ctx, examiner) }
	if o.Dry {
		p.Dry = costs.Bandwidth
	} else if o.Elsewhere == nil { // else nothing is read while the target loads, so nothing need be guessed
		p.Target.Touched = process.TouchedAt
	}
	p.Host.Begin = func() {
		// If faults are to read little already, before this process joins the target's cgroup, in which the guardian
		// is not to be.
		if err := v.follow(); err != nil {
			o.Log.Debug("large folios are read two at a time", "error", err)
		}
		if o.Join {
			if v.readahead != nil {
				v.readahead.Prepare()
			}
			// Not before: what this process takes until then, and where there is nothing to win, is not the target's
			// to pay.
			v.memory.Join(ctx)
		}
	}
	p.Host.Memory, p.Target.Elsewhere = ownMemory, o.Elsewhere
	p.Host.Urgent = func() { v.urgent(true) }
	p.Experts.Predict = v.newPredictor
	p.Share = v.budget.Load
	v.controller = prefetch.New(pages, p)
	defer func() {
		if v.urgently {
			v.urgent(false)
		}
	}()
	defer v.keep()
	if o.Planned != nil {
		defer func() { o.Planned(v.controller.Parts()) }()
	}
	for first := true; ; first = false {
		var stood *prefetch.StandBack
		if first && v.early.bytes > 0 {
			stood = v.controller.Early(v.early.bytes, v.early.room)
			v.command.Let()
			v.command = nil
			v.watched() // behind it: the command does not wait for what it may never need
		} else {
			stood, err = v.help(ctx)
		}
		if err != nil || stood == nil || o.Dry {
			return v.controller.Summary(), err
		}
		v.tell(true)
		v.urgent(false)
		debug.FreeOSMemory() // whoever pays for this process may be the target's neighbour
		v.memory.Leave()
		if err := v.rest(); err != nil {
			return v.controller.Summary(), err
		}
		ended, err := v.idle(ctx, process)
		if err != nil || ended {
			return v.controller.Summary(), err
		}
		if err := pages.Wake(); err != nil {
			return v.controller.Summary(), err
		}
	}
}

// predictorBytes bounds what predictors of experts take of the target's memory: one that goes by ids, and besides what
// one by inputs learns. The routers' copies, of a byte for each weight, come to that.
const predictorBytes = 4 << 20

// newPredictor predicts which experts are chosen, by what routers read if these are found in the model's file; else by the
// chosen experts alone.
func (v *server) newPredictor(r mixture.Routers, path string, id event.FileID) mixture.Predictor {
	v.keep() // there was one before, if the target was left alone for a while
	p, routers, err := readRouters(r, path, id)
	if err != nil {
		v.o.Log.Info("experts are predicted by those that were chosen before", "why", err)
		return moe.NewIDs(moe.Shape{Layers: len(r.Blocks), Experts: r.Experts, K: r.Chosen}, []int{1, 2}, predictorBytes)
	}
	v.begin(p, routers)
	return p
}

// errOtherRouters says that a file does not have the routers that were observed: the model has other files, too.
var errOtherRouters = errors.New("the file has other routers than those that were observed")

// readRouters makes a predictor that goes by what routers and attention read.
func readRouters(r mixture.Routers, path string, id event.FileID) (*hidden.Predictor, *hidden.Routers, error) {
	m, err := models.OpenPart(path, id)
	if err != nil {
		return nil, nil, err
	}
	routers, err := hidden.Read(m)
	if err != nil {
		return nil, nil, err
	}
	if !slices.Equal(routers.Blocks, r.Blocks) || routers.Experts != r.Experts {
		return nil, nil, errOtherRouters
	}
	p, err := hidden.New(routers, hidden.Options{Attention: true, Bytes: predictorBytes, IDs: predictorBytes})
	return p, routers, err
}

// urgent changes how this thread is scheduled, which may be refused.
func (v *server) urgent(urgent bool) {
	if err := room.SetUrgent(urgent); err != nil {
		v.o.Log.Debug("chosen experts are read a little later", "error", err)
		return
	}
	if urgent == v.urgently {
		return
	}
	v.urgently = urgent
	if urgent {
		v.percent, v.limit = debug.SetGCPercent(-1), debug.SetMemoryLimit(urgentLimit)
	} else {
		debug.SetGCPercent(v.percent)
		debug.SetMemoryLimit(v.limit)
	}
}

const (
	// collectInterval is how often garbage is collected in any case: one megabyte comes together meanwhile, two where
	// experts are chosen.
	collectInterval = 2 * time.Second
	// urgentLimit is where Go's runtime collects when it likes all the same: a target may send anything. Predictors
	// take a third of it at most.
	urgentLimit = 64 << 20
)

// collect has garbage collected now and then. What setting up took goes back to the system so, too: the target pays
// for that. Go's runtime would keep it for garbage to come. On a busy machine collecting takes long, and counts what
// is allocated meanwhile as in use: then it waits for up to 9 MB before it collects again, where less than one is in
// use.
//
// While this thread runs before all others, it waits for that, and Go's runtime does not collect when it likes. There
// it would look through this thread's stack, too. If this thread comes back from a system call meanwhile, it takes
// the processor from whoever does that, and then waits for him without leaving it: for a second, until Linux takes it
// away.
func (v *server) collect() {
	if time.Since(v.collected) < collectInterval || !v.collecting.CompareAndSwap(false, true) {
		return
	}
	v.collected = time.Now()
	free := debug.FreeOSMemory
	if v.urgently {
		free = runtime.GC // nobody waits for the rest of it
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		free()
		v.collecting.Store(false)
	}()
	if v.urgently {
		<-done
	}
}

// judge says why a target cannot be helped, by how it holds its model. What is not known yet, or too little to
// matter, the events will tell.
func (v *server) judge(ctx context.Context, e *holding.Examiner) error {
	h, err := e.Examine(ctx, holding.Options{Others: true})
	if err != nil {
		v.o.Log.Debug("cannot find out how the target holds its model", "error", err)
		return nil
	}
	const unknownRoom = -1 // the controller knows it
	for _, f := range h.Judge(unknownRoom, false).Findings {
		switch f.Reason {
		case holding.NoModel, holding.Undecided, holding.FileChanged, holding.Negligible:
			continue
		}
		if f.Blocks {
			return errors.New(f.Text)
		}
	}
	return nil
}

// help attaches to the target and works until the target or ctx ends, or there is nothing to win: then it says so.
func (v *server) help(ctx context.Context) (stood *prefetch.StandBack, err error) {
	target := v.command
	started := target != nil
	if !started {
		if target, err = capture.Attach(v.o.PID, v.observing()); err != nil {
			if (v.settled || v.early.bytes > 0) && errors.Is(err, proc.ErrNoProcess) { // it was helped before, or needed no help, and has ended
				err = nil
			}
			return nil, err
		}
		defer func() { err = errors.Join(err, target.Close()) }()
	}
	if !v.settled {
		if err := room.Settle(v.o.Log, v.o.Elsewhere != nil); err != nil {
			return nil, err
		}
		v.settled = true
	}
	if started {
		if err := v.tick(); err != nil { // it has no model yet: what it maps is seen to be new
			return nil, err
		}
		v.watched()
		v.command = nil
	}
	v.target, v.inputs = target, true
	err = target.Run(ctx, v.handle)
	switch {
	case errors.As(err, &stood):
		if started { // it is closed when the command has ended
			v.unloaded = true
			return stood, target.Unload()
		}
		return stood, nil
	case errors.Is(err, prefetch.ErrPlanned):
		return nil, nil
	case err != nil && !errors.Is(err, proc.ErrNoProcess): // the target has ended, as it may
		return nil, err
	case !started && !v.seen() && ctx.Err() == nil:
		return nil, target.Explain()
	}
	return nil, nil
}

// seen says whether the target was seen to compute. A guess is followed without that.
func (v *server) seen() bool {
	s := v.controller.Summary()
	return s.PerToken > 0 && (s.Tokens > 0 || !s.Guessed)
}

// observing is how a target is observed.
func (v *server) observing() capture.Options {
	inputs := 1
	if v.o.Dry || !v.o.Prefetch.Experts.Speculate.Speculates() {
		inputs = 0
	}
	return capture.Options{
		Interval: tick, Tick: v.tick, Pause: v.pause, Late: v.o.Late, Small: true, Selected: true, Inputs: inputs, InputRows: 1, AtOnce: true,
		Log: v.o.Log,
	}
}

// idle sleeps until there is something to win, or the target or ctx has ended.
func (v *server) idle(ctx context.Context, process *proc.Process) (ended bool, err error) {
	for {
		sleep, cancel := context.WithTimeout(ctx, lookInterval)
		err := process.Wait(sleep)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
			return true, nil
		case !errors.Is(err, context.DeadlineExceeded):
			return false, err
		}
		again, err := v.controller.Look()
		if errors.Is(err, proc.ErrNoProcess) || errors.Is(err, fs.ErrNotExist) {
			continue // it is ending
		}
		if again || err != nil {
			return false, err
		}
		if err := v.warm(ctx, rested(v.o.PID)); err != nil {
			return false, err
		}
	}
}

// warm reads back what others took of a model that fits. It is charged to the target.
func (v *server) warm(ctx context.Context, rested func() bool) error {
	if cold, err := v.controller.Cold(); !cold || err != nil || !rested() {
		return err
	}
	if err := v.pages.Wake(); err != nil {
		return err
	}
	v.memory.Join(ctx)
	err := v.controller.Warm(func() bool { return ctx.Err() == nil && rested() })
	v.memory.Leave()
	v.tell(true)
	return errors.Join(err, v.pages.Rest())
}

const (
	// restWatch is how often it is asked how long a target has computed, which the kernel counts in steps of 10 ms.
	restWatch = 50 * time.Millisecond
	// restShare of a processor is what a server that waits for requests takes at most.
	restShare = 0.5
)

// rested returns a function that says whether the process pid computes nothing, as far as is known since it was
// called last. The first call looks for restWatch.
func rested(pid int) func() bool {
	var at time.Time
	var computed float64
	look := func() bool {
		p, err := procfs.NewProc(pid)
		if err != nil {
			return false
		}
		stat, err := p.Stat()
		if err != nil {
			return false
		}
		now, took := time.Now(), stat.CPUTime()-computed
		passed := now.Sub(at).Seconds()
		at, computed = now, stat.CPUTime()
		return took < restShare*passed
	}
	rests := true
	return func() bool {
		if at.IsZero() {
			look()
			time.Sleep(restWatch)
		}
		if rests && time.Since(at) >= restWatch {
			rests = look()
		}
		return rests
	}
}

// pause is how long tick need not be called.
func (v *server) pause() time.Duration {
	return v.controller.Pause()
}

func (v *server) tick() error {
	err := v.controller.Tick()
	if err == nil {
		err = v.follow()
	}
	v.tell(false)
	v.collect()
	if wants := v.controller.WantsInputs(); err == nil && v.target != nil && wants != v.inputs {
		v.inputs = wants
		err = v.target.TellInputs(wants)
	}
	return err
}

// tell says what is being done, unless that was done a moment ago.
func (v *server) tell(now bool) {
	if v.o.Tell == nil && v.monitor == nil || !now && time.Since(v.told) < tellInterval {
		return
	}
	v.told = time.Now()
	s := v.controller.Status()
	if v.o.Tell != nil {
		v.o.Tell(s)
	}
	if v.monitor != nil {
		v.monitor.Tell(s)
	}
}

// ownMemory is this process's anonymous memory in bytes; 0 if that cannot be told.
func ownMemory() int64 {
	p, err := procfs.Self()
	if err != nil {
		return 0
	}
	status, err := p.NewStatus()
	if err != nil {
		return 0
	}
	return int64(status.RssAnon)
}
