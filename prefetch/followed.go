package prefetch

// This file has the cycle that is followed, with all that belongs to it, and begins to follow one.

import (
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/follow"
	"tensorcast/prefetch/lookup"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/room"
)

// followed is a cycle that is followed, with which of its blocks are held and which are on their way. It ends
// as a whole when the cycle is given up (session.drop). It is large because the window, the held blocks and
// the cursor are moved together at every tick; each has a file of its own.
type followed struct {
	*session
	follow.Cursor
	window
	blocks
	glance  glance
	sweep   sweep
	resting resting
	loading *loading // nil unless the target loads the model
	mixture *mixture.Mixture
	hot     hot
	tables  *lookup.Tables // nil if there are none

	cycle    *pattern.Cycle
	schedule *plan.Schedule
	block    int64          // bytes of a block, in which the schedule was cut
	unit     int64          // bytes in which pages were best read then
	bases    map[int]uint64 // by file: where the target maps its first byte; 0 is not known yet
	twins    map[uint64]int // further addresses at which the target maps a file, with the file's number
	routed   int64          // bytes of experts, of which tokens read some
	began    time.Time      // when the last decode began,
	rested   time.Time      // and when it ended
}

func newFollowed(s *session, cycle *pattern.Cycle) *followed {
	unit := s.levers.BlockBytes()
	block := plan.BlockSize(cycle, unit)
	window := plan.BoundWindow(s.memory.room.Bytes, plan.DefaultWindow)
	if s.opts.Window > 0 {
		window = plan.BoundWindow(s.memory.room.Bytes, s.opts.Window)
	}
	whole := plan.NewSchedule(cycle, block, window/2)
	f := &followed{session: s, cycle: cycle, block: block, unit: unit, bases: map[int]uint64{}, twins: map[uint64]int{}}
	f.use(whole.Without(s.memory.census.isBorrowed))
	f.hot = s.findHot(cycle)
	f.tables = lookup.New(cycle, lookup.Options{Levers: s.levers, Refuse: s.refuse, Now: s.now})
	x := s.newMixture(f)
	if x != nil {
		f.routed = x.Size()
	}
	if x != nil && s.opts.Strategy.Traits().ReadsExperts {
		f.mixture = x
	}
	if len(f.schedule.Blocks) == 0 && f.routed > 0 { // the experts are to be helped, and need a schedule
		f.use(whole)
	}
	return f
}

// use makes a schedule the one that is followed.
func (f *followed) use(s *plan.Schedule) {
	f.schedule, f.Cursor, f.blocks = s, follow.NewCursor(s), newBlocks(len(s.Blocks))
	f.window, f.glance = newWindow(s), newGlance(s)
}

// start begins to follow a cycle. bases are where the target maps the files; 0 is not known yet. The result
// is a change to the phase that comes next. plain is a step that had no help just now; without tokens if there was
// none.
func (s *session) start(cycle *pattern.Cycle, bases map[int]uint64, why string, plain step) error {
	return s.startCycle(cycle, bases, nil, why, plain)
}

// startLoading begins to follow a cycle whose model the target may be loading.
func (s *session) startLoading(cycle *pattern.Cycle, bases map[int]uint64, files []loadFile, why string) error {
	return s.startCycle(cycle, bases, files, why, step{})
}

func (s *session) startCycle(
	cycle *pattern.Cycle, bases map[int]uint64, files []loadFile, why string, plain step,
) error {
	if err := s.memory.findBorrowed(); err != nil {
		return err
	}
	f := newFollowed(s, cycle)
	if len(f.schedule.Reads) == 0 {
		return nil
	}
	if len(f.schedule.Blocks) == 0 { // all of it is borrowed
		return s.standBack(&StandBack{Reason: Fits})
	}
	s.f = f
	f.window.bytes = f.windowIn(s.memory.room.Bytes)
	f.shareRoom()
	for file, base := range bases {
		f.setBase(file, base)
	}
	s.work.learned++
	if len(files) > 0 {
		f.loading = &loading{files: files, begun: s.now()}
	} else if err := s.judgeWinnable(); err != nil {
		return err
	}
	f.wantMore(s.opts.Strategy.Plan(f.planInput(s.memory.room.Bytes)).Hold)
	if s.opts.Dry != nil {
		return f.endDry()
	}
	if s.opts.Host.Begin != nil && !s.begun {
		s.begun = true
		s.opts.Host.Begin()
	}
	if f.mixture != nil && s.opts.Host.Urgent != nil {
		s.opts.Host.Urgent()
	}
	s.log.Info("learned the pattern",
		"reads", len(f.schedule.Reads), "bytes", f.schedule.Bytes, "blocks", len(f.schedule.Blocks),
		"room", s.memory.room.Bytes, "bounded by", s.memory.room.Level, "window", f.window.bytes)
	s.compared = newComparison()
	switch {
	case f.loading != nil:
		return &change{&loadPhase{f}, why}
	case s.contexts.Stored == nil && !s.opts.Always && !f.beginsKnown():
		return &change{&comparePhase{f: f, first: plain}, why}
	case len(bases) > 0:
		if err := f.takeHold(); err != nil {
			return err
		}
	}
	return f.help(why)
}

// help changes to the phase that helps.
func (f *followed) help(why string) error {
	if f.mixture != nil {
		return &change{&mixturePhase{streamPhase{f}}, why}
	}
	return &change{&streamPhase{f}, why}
}

// newMixture finds the experts of a cycle; nil if it has none.
func (s *session) newMixture(f *followed) *mixture.Mixture {
	opts := mixture.Options{
		Levers: s.levers, Keep: s.opts.Strategy.Traits().KeepsExperts, Routes: s.opts.Experts.Routes,
		IsBorrowed: s.memory.census.isBorrowed, Refuse: s.refuse, Now: s.now,
		Known: f.hot.known,
	}
	if predict := s.opts.Experts.Predict; predict != nil && s.opts.Experts.Speculate.Speculates() {
		opts.Predict = func(r mixture.Routers) mixture.Predictor {
			if r.File >= len(s.files) {
				return predict(r, "", event.FileID{})
			}
			return predict(r, s.files[r.File].path, s.files[r.File].id)
		}
	}
	return mixture.New(f.cycle, f.schedule.Blocks, opts)
}

// setBase notes where the target maps a file.
func (f *followed) setBase(file int, base uint64) {
	f.bases[file] = base
	f.levers.Map(file, base)
}

// isMappedTwice says whether the target maps a file at an address besides the one at which it is followed, because it
// has loaded a model twice. Then the same bytes are read, by whichever context.
func (f *followed) isMappedTwice(file int, base uint64) (bool, error) {
	if of, known := f.twins[base]; known {
		return of == file, nil
	}
	m, err := f.models()
	if err != nil {
		return false, err
	}
	for i := range m.Mapped {
		at := &m.Mapped[i]
		if at.ID == f.files[file].id && at.Has(base) && at.Has(f.bases[file]) {
			f.twins[base], f.twins[f.bases[file]] = file, file
			return true, nil
		}
	}
	return false, nil
}

// windowIn is the window, in bytes, in a room.
func (f *followed) windowIn(room int64) int64 {
	if f.opts.Window > 0 {
		return plan.BoundWindow(room, f.opts.Window)
	}
	if f.block <= pages.MinBlock {
		return plan.BoundWindow(room, plan.DefaultWindow)
	}
	busy := plan.BusyBlocks(f.levers.BlocksAtOnce(), f.meter.best, f.loop.pace, f.block)
	return f.schedule.Window(room, f.block, busy)
}

// planInput is what the strategy decides from, in a room of so many bytes.
func (f *followed) planInput(free int64) plan.Input {
	if f.opts.Lock {
		free = min(free, f.memory.room.Lockable+f.window.bytes)
	}
	if f.mixture != nil { // what is being used has to be in memory
		free -= f.mixture.Least()
	}
	if f.tables != nil {
		free -= f.tables.Kept()
	}
	return plan.Input{Schedule: f.schedule, Held: f.want, Room: free, Window: f.window.bytes}
}

// times are how long the ops of a token take by themselves.
func (f *followed) times() plan.OpTimes { return f.schedule.Times(f.held, f.window.bytes, &f.Seen) }

// fits returns why there is nothing to win, if all that the target reads has room by its limits (not by the
// caller's budget): what a token reads, or all of its files if other weights are computed elsewhere, and the
// other models that it maps, because their turn may come. Tables of which only rows are looked up do not count.
// It returns nil if it does not fit, or if nobody knows yet.
func (f *followed) fits() (*StandBack, error) {
	if f.loading != nil || f.seek.guessed { // it is not in memory yet, or the target may read it elsewhere
		return nil, nil
	}
	stood := &StandBack{Reason: Fits, Bytes: f.schedule.Bytes + f.routed}
	if f.opts.Target.Elsewhere != nil {
		// Between the weights that it reads lie those that it does not read. Its faults would read these as
		// well, and push out what it needs.
		seen := map[int]bool{}
		stood.Bytes = 0
		for _, b := range f.schedule.Blocks {
			if !seen[b.File] {
				seen[b.File] = true
				stood.Bytes += f.files[b.File].size
				if f.tables != nil {
					stood.Bytes -= f.tables.SizeIn(b.File)
				}
			}
		}
		stood.Bytes = max(stood.Bytes-f.memory.census.borrowedBytes, 0)
	}
	free := f.memory.room.Bytes - f.window.bytes
	if f.memory.room.Level == room.LevelBudget || free < stood.Bytes {
		return nil, nil
	}
	m, err := f.models()
	if err != nil {
		return nil, err
	}
	for i, at := range m.Mapped {
		reads := func(r pattern.CycleRead) bool { return f.files[r.File].id == at.ID }
		if !slices.ContainsFunc(f.cycle.Reads, reads) {
			stood.Bytes += m.Files[i].Size - m.TableBytes(i)
		}
	}
	if free < stood.Bytes {
		return nil, nil
	}
	return stood, nil
}

// mayFit reports whether a guess may prove right by which all but the tables fits. Then nothing of them is to be paged
// out.
func (f *followed) mayFit() bool {
	return f.seek.guessed && f.memory.room.Level != room.LevelBudget &&
		f.memory.room.Bytes-f.window.bytes >= f.schedule.Bytes+f.routed
}

// upkeep does what is due in every phase that follows a cycle: it looks whether the cycle is still what the
// target reads, collects reads, and follows the room for the model.
func (f *followed) upkeep() error {
	if err := f.seekModel(); err != nil {
		return err
	}
	if f.readsOther() {
		return f.giveUp("what is computed elsewhere has changed")
	}
	if why := f.memory.findChangeOfPayers(); why != "" {
		return f.giveUp(why)
	}
	if err := f.levers.Poll(); err != nil {
		return err
	}
	f.loop.note(f.now(), f.Decode != 0)
	pending := f.window.ahead + int64(f.resting.advised)*f.block
	if f.mixture != nil {
		pending += f.mixture.Staged()
	}
	f.meter.tick(f.now(), pending)
	if err := f.levers.NoteDiskRate(f.meter.best); err != nil {
		return err
	}
	due := f.memory.isDue(f.mixture != nil)
	if f.levers.BlockBytes() != f.unit {
		if f.contexts.Main != nil {
			f.contexts.Main.Forget()
		}
		return f.giveUp("the file is read in other blocks now")
	}
	if due {
		if err := f.adjust(); err != nil {
			return err
		}
	}
	return f.checkMapped()
}

// silence is how long the target is not heard of before it is asked, as often, whether it still maps what is
// followed. It may have executed another program, or unloaded the model, even in the middle of a decode.
const silence = 2 * time.Second

// checkMapped gives up what the target maps no more.
func (f *followed) checkMapped() error {
	now := f.now()
	if f.opts.Target.Models == nil || now.Sub(f.heard) < silence || now.Sub(f.askedMaps) < silence {
		return nil
	}
	f.askedMaps = now
	m, err := f.models()
	if err != nil {
		return err
	}
	for _, base := range f.bases {
		if base != 0 && !m.Maps(base) {
			f.contexts.Reset()
			f.seekAgain()
			return f.giveUp("the target maps the model no more")
		}
	}
	return nil
}
