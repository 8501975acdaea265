// Package serve helps one target from now until it ends. It attaches probes to the target and hands their events to
// a prefetch.Controller. Where there is nothing to win it removes the probes, sleeps, and looks again now and then.
package serve

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"tensorcast/holding"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
	"tensorcast/prefetch"
	"tensorcast/prefetch/costs"
	"tensorcast/prefetch/hot"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/monitor"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/readahead"
	"tensorcast/prefetch/room"
)

// Options say whom to help, and how.
type Options struct {
	// PID is the target. Start sets it.
	PID int
	// Late says that the target may load ggml later. Otherwise a target without ggml is an error.
	Late bool
	// Elsewhere, if not nil, says that some of the target's weights are computed elsewhere. Then it reads less than
	// its file has: what it reads is learned, and nothing is guessed or read before. The number that Elsewhere
	// returns changes when the weights that are computed elsewhere have changed. It may be called at any time.
	Elsewhere func() uint64

	// What this process may use.

	// Join lets this process join the target's memory cgroup, so that it pays there for what it reads.
	Join bool
	// Leave is how many bytes of the host's available memory are left to others; 0 chooses (see
	// room.MemoryOptions).
	Leave int64

	// Cap, if not nil, says how many bytes of the target's models are kept at most, besides Prefetch.Budget; 0 sets no
	// bound. It is asked at the beginning, and when the target is found to map other models: these are their paths.
	Cap func(target int, models []string) int64

	// What is done.

	// Dry only plans. Run ends with what would be held, or with why nothing would be (Summary.Idle).
	Dry bool
	// Readahead says what is done about what the target's own faults read around themselves, if its model is a
	// mixture of experts. "" does nothing, and the summary does not mention it.
	Readahead readahead.Choice
	// Guardian is the command that starts this program again as the guardian of a changed readahead (see
	// readahead.Guard and pages.Kernel.SetGuardian); nil: there is none.
	Guardian []string
	// LearnedDir is a directory that keeps what is learned of a mixture's routing, for the next target with that
	// model; "" keeps nothing.
	LearnedDir string
	// ForgetExperts says that it is neither kept nor used how often a mixture's experts were chosen in the last run.
	// Otherwise that is kept in a subdirectory of SocketDir, if there is one (see hot.Store).
	ForgetExperts bool
	// Imatrix, if not nil, counts choices of experts. It is used for a model whose last run is not known.
	Imatrix hot.Counts
	// WarmFor ends Prefetch.KeepWarm when the target has computed nothing for so long, until it computes again; 0: it
	// does not end.
	WarmFor time.Duration
	// Prefetch is what the Controller is made with. Run sets these fields itself and ignores what is in them:
	// Memory, Share, Paused, Dry, Log, Experts.Predict, Experts.Known, Experts.Keep, and all of Target and Host.
	Prefetch prefetch.Options

	// Who is told.

	// SocketDir is a directory in which a socket is made. At it this help can be asked what it does (see package
	// monitor). A socket that cannot be made is logged, and is no error. "" makes none.
	SocketDir string
	// OnStatus is called with what is being done, several times a second while the target decodes; nil: nobody asks.
	// What only the socket tells is not in the report (see monitor.Report).
	OnStatus func(monitor.Report)
	// OnPlanned is called in the end with what is held and streamed; nil: nobody asks.
	OnPlanned func([]prefetch.Part)
	Log       *slog.Logger
}

// server is the help for one target. All but budget, most and paused is for one goroutine, which stays on one thread.
type server struct {
	opts    Options
	command command // zero for a process that was running already

	process    *proc.Process
	kills      cgroup.Kills     // in the target's group, since the help began
	judged     *holding.Holding // how the target held its model when it was looked at last; nil: it was not
	foreseen   string           // what to do against copies that do not fit in memory; "" if none were foreseen
	words      []string         // the target's command line, as it was seen last
	libraries  []string         // files of ggml that were seen in the target
	memory     *room.ProcessMemory
	pages      *pages.Kernel
	controller *prefetch.Controller
	budget     atomic.Int64 // bytes, as it was set last; 0: no bound
	most       atomic.Int64 // bytes, as Options.Cap says; 0: no bound
	rest       restMeter
	paused     atomic.Bool // somebody wants the target to be left alone

	neighbours *neighbours // nil: they cannot be asked

	probes  probes
	faults  faults
	runtime goRuntime
	status  statusReporter
	routing routingFile
}

func newServer(o Options) *server { return &server{opts: o, runtime: goRuntime{log: o.Log}} }

// Run helps until the target ends, or ctx does; neither is an error. It locks its goroutine to a thread for as
// long: priority belongs to a thread, and the kernel's workers for io_uring inherit that of the thread that
// submits. Errors are those of capture.Attach, cgroup.ErrHidden without a budget, and others. After an error the
// target goes on as if nothing had been.
func Run(ctx context.Context, o Options) (sum prefetch.Summary, err error) {
	return newServer(o).run(ctx)
}

// run helps the target from now on.
func (s *server) run(ctx context.Context) (sum prefetch.Summary, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o := &s.opts
	if s.process, err = proc.Open(o.PID); err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, s.process.Close()) }()
	s.noteCommandLine()
	s.kills = cgroup.WatchKills(o.PID)
	defer s.explainKill()
	claim, err := room.Claim(s.process)
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, claim.Close()) }()
	// As early as possible, because the target may be loading its model already.
	if o.changesReadahead() {
		s.faults.target = readahead.New(s.process, o.Readahead, o.Guardian, o.Log)
		defer func() { sum.Readahead = s.faults.target.End() }()
	}
	s.budget.Store(o.Prefetch.Budget)
	s.rest.pid = o.PID
	if o.Cap != nil {
		s.status.tellModels = s.setCap
		s.setCap(nil)
	}
	s.status.open(o, monitor.Controls{Budget: s.budget.Store, Pause: s.paused.Store})
	defer func() { err = errors.Join(err, s.status.close()) }()
	if s.memory, err = room.NewProcessMemory(o.PID, o.memoryOptions()); err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, s.memory.Close()) }()
	if s.pages, err = pages.NewKernel(o.PID, o.Log); err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, s.pages.Close()) }()
	s.pages.SetGuardian(o.Guardian)
	defer s.watchNeighbours(ctx)()
	s.controller = prefetch.New(s.pages, s.controllerOptions(ctx))
	defer s.runtime.leaveUrgent()
	defer s.saveRouting()
	defer s.controller.KeepScores()
	if o.OnPlanned != nil {
		defer func() { o.OnPlanned(s.controller.Parts()) }()
	}
	err = s.helpAndSleep(ctx)
	return s.controller.Summary(), err
}

// watchNeighbours begins to ask the other prefetchds, which answer in the directory in which this one answers. The
// caller must call stop.
func (s *server) watchNeighbours(ctx context.Context) (stop func()) {
	if s.status.monitor == nil {
		return func() {}
	}
	dir := s.opts.SocketDir
	s.neighbours = &neighbours{
		target: s.opts.PID,
		list:   func(ctx context.Context) ([]monitor.Report, error) { return monitor.ListOthers(ctx, dir, s.opts.PID) },
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { s.neighbours.watch(ctx) })
	return func() {
		cancel()
		watching.Wait()
	}
}

// helpAndSleep helps while there is something to win, and sleeps while there is not, until the target or ctx ends.
func (s *server) helpAndSleep(ctx context.Context) (err error) {
	var stood *prefetch.StandBack
	if s.command.isUnobserved() {
		stood = s.runUnobserved()
	} else if stood = s.spare(); stood == nil {
		stood, err = s.help(ctx)
	}
	for err == nil && stood != nil && !s.opts.Dry {
		s.reportStatus(true)
		s.runtime.setUrgent(false)
		debug.FreeOSMemory() // the group that pays for this process may have other members, which need the memory
		s.memory.Leave()
		if err := s.suspend(); err != nil {
			return err
		}
		ended, err := s.sleep(ctx)
		if err != nil || ended {
			return err
		}
		if err := s.pages.Wake(); err != nil {
			return err
		}
		if stood, err = s.help(ctx); err != nil {
			return err
		}
	}
	return err
}

// spare stands back from a process that runs already, before it is observed, if others pay for its model. Setting
// probes takes some tenths of a second of a processor. The result is nil if that is not so, and where it cannot be
// found out: what comes next says why.
func (s *server) spare() *prefetch.StandBack {
	o := &s.opts
	if s.command.started || o.Dry || o.OnPlanned != nil || o.Elsewhere != nil {
		return nil
	}
	stood, err := s.controller.Spare()
	if err != nil {
		o.Log.Debug("cannot find out whether others pay for the model", "error", err)
		return nil
	}
	return stood
}

// setCap bounds what is kept by the models that the target maps.
func (s *server) setCap(models []string) { s.most.Store(s.opts.Cap(s.opts.PID, models)) }

// share is how many bytes may be kept; 0 sets no bound. It may be called at any time.
func (s *server) share() int64 {
	budget, most := s.budget.Load(), s.most.Load()
	if budget == 0 || most > 0 && most < budget {
		return most
	}
	return budget
}

// reportStatus reports what is being done: now, or unless that was just done.
func (s *server) reportStatus(mustBeNow bool) {
	if !mustBeNow && !s.status.isDue() {
		return
	}
	s.noteCommandLine()
	if c := s.probes.capture; c != nil {
		s.libraries = c.Libraries()
	}
	s.status.pass(s.controller, func() bool { return s.probes.capture == nil || len(s.probes.capture.Libraries()) > 0 })
}

// memoryOptions are those with which the target's memory is followed. A budget bounds it where its limits are
// hidden.
func (o *Options) memoryOptions() room.MemoryOptions {
	return room.MemoryOptions{Leave: o.Leave, TrustHost: o.Prefetch.Budget > 0, Log: o.Log}
}

// controllerOptions completes Options.Prefetch.
func (s *server) controllerOptions(ctx context.Context) prefetch.Options {
	o := &s.opts
	p := o.Prefetch
	p.Memory, p.Share, p.Log = s.memory, s.share, o.Log
	p.Paused = func() bool { return s.paused.Load() && s.command.pending == nil } // a command has to be let run first
	if s.neighbours != nil {
		p.Neighbours = s.neighbours.need
	}
	examiner := holding.New(o.PID)
	p.Target = prefetch.Target{
		Models:    models.MappedBy(o.PID),
		Weights:   models.ReadWeights,
		Judge:     func() error { return s.judge(ctx, examiner) },
		Advise:    s.adviseMapped,
		Elsewhere: o.Elsewhere,
	}
	p.Dry = nil
	if o.Dry {
		p.Dry = costs.Bandwidth
	} else if o.Elsewhere == nil { // otherwise nothing is read while the target loads, and nothing need be guessed
		p.Target.Touched = s.process.TouchedAt
	}
	p.Experts.Predict = s.newPredictor
	p.Experts.Known, p.Experts.Keep = nil, nil
	if !o.Dry && o.Elsewhere == nil { // experts that are computed elsewhere change what is chosen here
		h := newHotExperts(o)
		p.Experts.Known, p.Experts.Keep = h.known, h.keep
	}
	p.Host = prefetch.Host{
		Begin:  func() { s.prepareToRead(ctx) },
		Urgent: func() { s.runtime.setUrgent(true) },
		Memory: ownMemory,
	}
	return p
}

// prepareToRead is called before anything of the model is read.
func (s *server) prepareToRead(ctx context.Context) {
	s.kills.Follow(s.opts.PID) // a shell may have joined another group before it became the target
	// If faults are to read little already, then before this process joins the target's cgroup: the guardian is not
	// to be in there.
	if err := s.adjustFaults(); err != nil {
		s.opts.Log.Debug("large folios are read two at a time", "error", err)
	}
	if !s.opts.Join {
		return
	}
	if !s.command.started && s.foreseeForProcess() {
		// In that group the kernel would end this process first, and nobody could say why the target was ended.
		s.opts.Join = false
		return
	}
	if s.faults.target != nil {
		s.faults.target.Prepare()
	}
	// No earlier than this. The target is not to pay for what this process takes until now, or for a help that
	// finds nothing to win.
	s.memory.Join(ctx)
}

// judge says why a target cannot be helped, by how it holds its model. It returns nil for what is not known yet, or
// is too little to matter: the events will tell.
func (s *server) judge(ctx context.Context, e *holding.Examiner) error {
	h, err := e.Examine(ctx, holding.Options{Others: true})
	if err != nil {
		s.opts.Log.Debug("cannot find out how the target holds its model", "error", err)
		return nil
	}
	s.judged = h
	s.kills.Follow(s.opts.PID)
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
