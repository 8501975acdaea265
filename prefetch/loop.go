package prefetch

// This file is the control loop: it learns what a token reads, then keeps what is held and the window in step with the target.

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/readahead"
	"tensorcast/prefetch/room"
)

// Options of a Controller.
type Options struct {
	Strategy Strategy // nil: Auto
	Memory   room.Memory
	// Budget caps the bytes of the model in memory, whatever Memory says; 0: no cap.
	Budget int64
	// Share, if not nil, is asked for that cap instead, which may change; it must be safe for concurrent use.
	Share func() int64
	// Window is how many bytes may be read ahead or wait to be paged out; 0 chooses.
	Window int64
	// Lock locks what is held: nobody can reclaim it, not even when the target needs memory to live. Else it is kept: read, and never paged out from here, but the
	// kernel takes it when somebody needs the memory.
	Lock bool
	// Always helps without comparing with tokens without help: it is given up only where everything fits.
	Always bool
	// KeepWarm is for a target that waits for requests: what fits is read back by Warm when others took it.
	KeepWarm bool
	// Dry, if not nil, makes it a dry run: once a cycle is known it is planned for, nothing is held or streamed, and Handle or Tick return ErrPlanned. Dry measures what the disk delivers
	// of blocks of a file, as Bandwidth does.
	Dry func(at proc.Place, blocks []pages.Range) (perSecond float64, err error)
	// Stored, if not nil, is a cycle to begin with, before the target has decoded. Models lists what the target maps at the time: until that is the cycle's model it is
	// asked now and then.
	Stored *pattern.Cycle
	Models func() (Model, error)
	// Touched tells which addresses the target has in its page tables: then it is also helped while it loads the model, with a guess (see pattern.Guess) if Stored is nil. nil: it is
	// not. It has no effect with Lock: what is locked for a wrong guess would be missing to the load.
	Touched func(addresses []uint64) ([]bool, error)
	// Weights tells where the weights of a file lie, as ReadWeights does: nothing else is read or held, whatever the target says. nil: only the files' sizes bound what
	// is read.
	Weights func(path string, id event.FileID) (Weights, error)
	// Judge, if not nil, says why the target cannot be helped, by how it holds its model: nil if it can. It is asked when a cycle is known, and when paging out has no effect.
	Judge func() error
	// Begin, if not nil, is called when there seems to be something to win, before anything of the model is read; and again after a StandBack.
	Begin func()
	// Urgent, if not nil, is called when experts are to be helped: what is read for them the target waits for, so whoever handles its events should get a processor at once.
	Urgent func()
	// Speculate says whether experts are read before their router has chosen them, by what Guess guesses; nil: nobody does. See Guesser.
	Speculate Speculation
	Guess     func(Routers) Guesser
	// Elsewhere, if not nil, changes whenever the target may have begun to read other weights than before, as some are computed elsewhere: what it reads is learned anew then.
	Elsewhere func() uint64
	// Routes, if not nil, says which experts are computed elsewhere, of those that the target's ops may read.
	Routes Routes
	// Own, if not nil, is how many bytes of memory this process takes for itself.
	Own func() int64
	Log *slog.Logger
	Now func() time.Time // the clock; nil: time.Now
}

// Routes knows where a mixture's experts are computed. Its call must not take long. Layers have the numbers that they have in the model.
type Routes interface {
	// Elsewhere says whether an expert is computed elsewhere.
	Elsewhere(layer, expert int32) bool
}

const (
	// budgetInterval is how often limits are looked at.
	budgetInterval = 50 * time.Millisecond
	// outsideShare times as much outside the model's file as in it leaves nothing to help with: norms are never copied.
	outsideShare = 8
	// firstPace is taken for the time between two looks of the loop at first, and slowPace for any longer one: the thread was not wanted, or the machine stood still.
	firstPace, slowPace = time.Millisecond, 4 * time.Millisecond
	// defaultWindow holds what the disk delivers while the slowest part of the loop runs, several times over.
	defaultWindow = 16 << 20
)

// Controller keeps the model of one target in memory as far as it fits. Feed it with the target's events, and call Tick
// as often as Pause says.
type Controller struct {
	opts  Options
	pages pages.Levers
	now   func() time.Time
	files map[event.FileID]int // as Pages numbers them
	known []knownFile

	contexts contexts
	meter    meter
	ticked   time.Time     // when this loop looked last
	pace     time.Duration // the usual time between two looks
	help     *helping      // nil until a cycle is known
	room     room.Room
	checked  time.Time
	census   census
	squeeze  squeeze

	seek      seek
	load      *loading  // nil unless the target loads what is followed
	guessed   bool      // what is followed was guessed, and the target has not read it yet
	elsewhere uint64    // as Options.Elsewhere said last
	busy      time.Time // see Pause
	heard     time.Time // when the last event came
	mapsAt    time.Time // when the target was last asked whether it still maps what is followed
	watch     watchdog
	short     string     // why memory was short when something said so last,
	shortAt   time.Time  // at shortAt
	shrunk    time.Time  // when memory was given back last
	judgeAt   time.Time  // when Judge is to be asked again, see Look
	stood     *StandBack // the last one; nil while there is something to win, for all that is known

	followed      time.Time // when the first blocks were held
	sum           Summary
	decodingNanos int64
	swept         int64 // bytes that were paged out unused
	unreadable    bool  // a block that cannot be read was told of
	refused       bool  // a read of what is no weight was told of
	begun         bool  // Begin was called
	atToken       account
}

// account is how the memory was used when a token ended. A target that is ending frees its own memory: what there is room for then says nothing about its tokens.
type account struct {
	room   room.Room
	window int64
	beyond Beyond
}

func (c *Controller) account() account {
	return account{c.room, c.help.window.bytes, c.beyond()}
}

// Summary says what a Controller did.
type Summary struct {
	Strategy     string   `json:"strategy"`
	Tokens       int      `json:"tokens"`                  // generated while prefetching
	TokensPerSec float64  `json:"tokens_per_sec"`          // over these
	Expected     float64  `json:"expected_tokens_per_sec"` // with what was held in the end, from the disk's bandwidth as measured here and the time that ops compute beside what is read; 0 if not known
	Disk         float64  `json:"disk_bytes_per_sec"`      // that the disk was seen to deliver, over a tenth of a second or more
	Pinned       int64    `json:"pinned_bytes"`            // held at the end
	Streamed     int64    `json:"streamed_bytes"`          // read ahead
	Window       int64    `json:"window_bytes"`
	PerToken     int64    `json:"weight_bytes_per_token"` // that each token reads and this process can help with
	Room         int64    `json:"room_bytes"`
	Level        string   `json:"bounded_by"`
	Late         int      `json:"late"`              // visits that the target reached first
	Shrunk       int      `json:"shrunk"`            // times that memory was given back
	Taken        int64    `json:"taken_bytes"`       // that were kept, and that the kernel took for others
	Warmed       int64    `json:"warmed_bytes"`      // that fit, were taken by others, and were read back (Options.KeepWarm)
	Beyond       Beyond   `json:"beyond"`            // why more was streamed than has no room
	Experts      *Experts `json:"experts,omitempty"` // nil unless the model has some that are helped
	Learned      int      `json:"learned"`           // cycles that were followed, one after the other
	Stored       bool     `json:"stored_pattern"`    // the first of them was Options.Stored
	Guessed      bool     `json:"guessed_pattern"`   // the first of them was a guess
	Idle         string   `json:"idle"`              // why there was nothing to win in the end; empty if there was
	Queue        string   `json:"queue"`
	StageSec     float64  `json:"stage_seconds"`  // spent on asking for reads
	EvictSec     float64  `json:"evict_seconds"`  // spent on paging out
	FollowSec    float64  `json:"follow_seconds"` // since the first blocks were held

	// Readahead is what was done about what the target's own faults read around themselves; nil if nothing was to be. Who feeds the controller fills it in.
	Readahead *readahead.Told `json:"readahead,omitempty"`
}

// New makes a Controller that works on pages, which it does not close.
func New(pages pages.Levers, opts Options) *Controller {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Strategy == nil {
		opts.Strategy = Auto{}
	}
	files := map[event.FileID]int{}
	file := func(id event.FileID) (int, bool) { i, known := files[id]; return i, known }
	return &Controller{opts: opts, pages: pages, now: opts.Now, files: files, contexts: newContexts(file), pace: firstPace}
}

// Summary describes the work so far.
func (c *Controller) Summary() Summary {
	s := c.sum
	s.Strategy, s.Queue = c.opts.Strategy.Name(), c.pages.Name()
	last := c.room
	if h := c.help; h != nil {
		a := c.atToken
		if a.room == (room.Room{}) { // there was no token yet
			a = c.account()
		}
		last = a.room
		s.Pinned, s.Window, s.PerToken, s.Disk = h.heldBytes, a.window, h.schedule.Bytes, c.meter.best
		s.Streamed += h.streamed
		s.Late += h.late
		s.Beyond = a.beyond
		if c.opts.Own != nil {
			s.Beyond.Own = c.opts.Own()
		}
		if h.experts == nil { // else it depends on what the router chooses
			s.Expected = perSecond(h.predict(a.window, h.timesLately(), c.meter.best))
		} else {
			s.Experts = h.experts.summary(c.sum.Experts)
		}
	}
	s.Room, s.Level = last.Bytes, last.Level
	if c.stood != nil {
		s.Idle = c.stood.Error()
	}
	if !c.followed.IsZero() {
		s.FollowSec = c.now().Sub(c.followed).Seconds()
	}
	if c.decodingNanos > 0 {
		s.TokensPerSec = float64(s.Tokens) / (float64(c.decodingNanos) / 1e9)
	}
	return s
}

// Handle takes the target's next event.
func (c *Controller) Handle(ev event.Event) error {
	c.heard = c.now()
	switch e := ev.(type) {
	case event.FileSeen:
		file, err := c.open(e.Path, e.ID)
		if err != nil {
			return err
		}
		c.files[e.File] = file
	case event.DecodeBegin:
		c.decodeBegin(e)
	case event.DecodeEnd:
		return c.decodeEnd(e)
	case *event.Op:
		return c.op(e)
	case event.Selected:
		return c.selected(e)
	case event.RouterInput:
		c.routerInput(e)
	}
	return nil
}

func (c *Controller) decodeBegin(e event.DecodeBegin) {
	d := c.contexts.begin(e)
	h := c.help
	if h == nil || h.decode != 0 && h.tid != e.TID || d.context.foreign {
		return // nothing is known yet, or another context decodes at the same time: one of them is followed, or it has another cycle
	}
	begun := int64(0)
	if e.Tokens == 1 {
		begun = e.Time
	}
	h.begin(e.TID, e.Decode, begun, d.context == c.contexts.main)
}

func (c *Controller) decodeEnd(e event.DecodeEnd) error {
	d := c.contexts.end(e)
	if d == nil {
		return nil
	}
	if h := c.help; h != nil && h.decode == e.Decode && h.tid == e.TID {
		h.decode, h.rested = 0, c.now()
		h.end(e.Time)
		switch {
		case h.met > 0:
			if c.contexts.main == nil { // the cycle came from a file: this is the context that has it
				c.contexts.main = d.context
			}
			if h.begun != 0 {
				if err := c.token(e.Time - h.begun); err != nil {
					return err
				}
			}
		case d.context == c.contexts.main:
			d.context.forget()
			if err := c.giveUp("a decode read nothing of what was learned"); err != nil {
				return err
			}
		default:
			d.context.foreign = true
		}
	}
	if next := c.contexts.decoded(d.context); next != nil {
		if err := c.follow(next, "the context that was followed decodes no more"); err != nil {
			return err
		}
	}
	before := c.help
	if err := c.learn(d); err != nil || c.help == nil || c.help == before || !c.watch.aside || d.begun == 0 {
		return err
	}
	return c.token(e.Time - d.begun) // what was learned from is a token without help
}

func (c *Controller) op(o *event.Op) (err error) {
	d := c.contexts.open[o.TID]
	if d == nil || d.decode != o.Decode {
		return nil
	}
	if d.lesson != nil {
		d.lesson.Op(o)
	}
	followed := c.help != nil && c.help.decode == o.Decode && c.help.tid == o.TID
	if !followed && d.lesson == nil {
		return nil
	}
	pattern.ReadsOf(o, func(source int, r pattern.CycleRead) bool {
		s := &o.Sources[source]
		file, known := c.files[s.File]
		if !known {
			return true
		}
		base := s.Data - uint64(s.Offset)
		if d.lesson != nil {
			if _, known := d.lesson.bases[file]; !known {
				d.lesson.bases[file] = base
			}
		}
		if followed && !r.Gathers() && c.help.done(place{file, r.Offset}, o, r.Nanos) {
			if c.help.begun != 0 {
				c.help.glance.see(c.help.now-1, c.help.reads, o, r.Nanos)
			}
			if c.help.bases[file] != base {
				followed, err = c.mappedElsewhere(d, file, base)
			}
		}
		return err == nil
	})
	return err
}

// mappedElsewhere is told that a decode reads a file of the cycle at another address than the one that is known. It says whether the decode is still followed.
func (c *Controller) mappedElsewhere(d *decode, file int, base uint64) (followed bool, err error) {
	switch {
	case c.help.bases[file] == 0: // the cycle came from a file, before the model was mapped
		c.mapped(file, base)
		return true, nil
	case d.context == c.contexts.main:
		d.context.forget()
		return false, c.giveUp("the model was mapped anew")
	}
	// Another context with a mapping of its own: the model was loaded a second time, or again.
	c.help.decode = 0
	d.context.forget()
	d.context.foreign, d.context.elsewhere = true, true
	return false, nil
}

// mapped notes where the target maps a file.
func (c *Controller) mapped(file int, base uint64) {
	c.help.bases[file] = base
	c.pages.Map(file, base)
}

// giveUp releases everything. The next decode of a few tokens is learned from.
func (c *Controller) giveUp(why string) error {
	h := c.help
	if h == nil {
		return nil
	}
	c.opts.Log.Info("learning anew", "why", why)
	c.sum.Streamed += h.streamed
	c.sum.Late += h.late
	if h.experts != nil {
		h.experts.forget()
		c.sum.Experts = h.experts.summary(c.sum.Experts)
	}
	c.help, c.contexts.main, c.contexts.stored, c.atToken = nil, nil, nil, account{}
	c.guessed = false
	if err := c.endLoad(); err != nil {
		return err
	}
	for b, held := range h.held {
		if !held {
			continue
		}
		if err := c.pages.Release(h.schedule.Blocks[b]); err != nil {
			return err
		}
	}
	return nil
}

// learn takes the first whole decode of a few tokens of a context as the cycle of all: the warm-up, or the first generated token.
func (c *Controller) learn(d *decode) error {
	l := d.lesson
	if l == nil {
		if c.help == nil && d.context.cycle != nil { // the one that was followed was given up
			return c.follow(d.context, "")
		}
		return nil
	}
	l.End()
	cycle := c.checkReads(l.Cycle())
	if cycle != nil && c.opts.Routes != nil {
		c.addExperts(cycle)
	}
	if outside := l.Outside(); (c.help == nil || c.guessed) && outside.Reads > 0 && (cycle == nil || outside.Bytes > outsideShare*bytesOf(cycle)) {
		return c.standBack(&StandBack{Reason: Outside, Err: event.OutsideError(outside.Reads, outside.Bytes)})
	}
	if cycle == nil {
		return nil
	}
	guessed := c.guessed
	c.guessed = false
	x := d.context
	x.cycle, x.bases = cycle, l.bases
	switch stored := c.contexts.stored; {
	case c.onlyStored() && stored == nil && c.contexts.main == nil:
		x.forget()
		return nil
	case c.help == nil:
		return c.follow(x, "")
	case stored != nil && (x == c.contexts.main || c.contexts.main == nil && sameFiles(stored, x.cycle)):
		c.contexts.stored = nil
		if !sameReads(stored, x.cycle) {
			if c.onlyStored() {
				return c.standBack(&StandBack{Reason: Differs, Err: errOtherReads})
			}
			return c.follow(x, errOtherReads.Error())
		}
		c.contexts.main = x
		if guessed {
			return c.winnable()
		}
	case x.elsewhere: // the mapping that was made last is the one that is in use, as far as can be told
		return c.follow(x, "the model was mapped anew")
	case x.foreign && bytesOf(x.cycle) > c.help.schedule.Bytes:
		return c.follow(x, "another context reads more")
	}
	return nil
}

// onlyStored says that nothing is followed but what is stored.
func (c *Controller) onlyStored() bool { _, only := c.opts.Strategy.(Pattern); return only }

var errOtherReads = errors.New("the target does not read what the pattern says")

// checkReads is a cycle without reads that are no weights of their file, which is told of once; nil if nothing is left that every token reads, or more than a
// token can read.
func (c *Controller) checkReads(cycle *pattern.Cycle) *pattern.Cycle {
	if cycle == nil {
		return nil
	}
	var whole int64
	cycle.Reads = slices.DeleteFunc(cycle.Reads, func(r pattern.CycleRead) bool {
		f := &c.known[r.File]
		if !f.holds(&r) {
			c.refuse("the target reads what is no weight of its model file, it seems: it is left to it", "tensor", r.Tensor, "offset", r.Offset, "bytes", r.Length, "file size", f.size)
			return true
		}
		if !r.Gathers() && whole <= maxCycleBytes {
			whole += r.Length
		}
		return false
	})
	if whole > maxCycleBytes {
		c.refuse("the target reads more than any token of a model can: it is left alone")
		return nil
	}
	if whole == 0 {
		return nil
	}
	return cycle
}

// readsOther says whether the target may have begun to read other weights since it was asked last. Then no context's cycle is known any more.
func (c *Controller) readsOther() bool {
	if c.opts.Elsewhere == nil {
		return false
	}
	now := c.opts.Elsewhere()
	if now == c.elsewhere {
		return false
	}
	c.elsewhere = now
	for _, x := range c.contexts.known {
		x.forget()
	}
	return true
}

// refuse tells, once, that the target says something impossible.
func (c *Controller) refuse(what string, args ...any) {
	if !c.refused {
		c.refused = true
		c.opts.Log.Warn(what, args...)
	}
}

// follow begins to help a context whose cycle is known. why is told if another one, or another cycle, was being followed.
func (c *Controller) follow(x *context, why string) error {
	if err := c.giveUp(why); err != nil {
		return err
	}
	c.contexts.follow(x)
	return c.start(x.cycle, x.bases)
}

// start makes the schedule of a cycle and begins to hold blocks. bases are where the target maps the files; 0 is not known yet.
func (c *Controller) start(cycle *pattern.Cycle, bases map[int]uint64) error {
	if err := c.checkRoom(); err != nil {
		return err
	}
	window := c.windowFor(c.room.Bytes)
	unit := c.pages.Block()
	block := blockFor(cycle, unit)
	h := newHelping(NewSchedule(cycle, block, window/2))
	h.cycle, h.unit, h.block = cycle, unit, block
	if x := newExperts(cycle, h.schedule.Blocks, c.pages.Piece); x != nil {
		h.routed = x.all
		if _, pin := c.opts.Strategy.(Pin); !pin { // that reads nothing ahead
			h.experts = x
		}
	}
	if len(h.schedule.Reads) == 0 {
		return nil
	}
	c.help = h
	h.window.bytes = c.windowFor(c.room.Bytes)
	for file, base := range bases {
		c.mapped(file, base)
	}
	c.sum.Learned++
	if c.load == nil {
		if err := c.winnable(); err != nil {
			return err
		}
	}
	h.wantMore(c.opts.Strategy.Plan(c.input(c.room.Bytes)).Hold)
	if c.opts.Dry != nil {
		return c.dry()
	}
	if c.opts.Begin != nil && !c.begun {
		c.begun = true
		c.opts.Begin()
	}
	if h.experts != nil && c.opts.Urgent != nil {
		c.opts.Urgent()
	}
	c.watch = newWatchdog(c.contexts.stored == nil && !c.opts.Always)
	if !c.watch.aside && len(bases) > 0 && c.load == nil {
		if err := c.takeHold(); err != nil {
			return err
		}
	}
	c.opts.Log.Info("learned the pattern", "reads", len(h.schedule.Reads), "bytes", h.schedule.Bytes, "blocks", len(h.schedule.Blocks),
		"room", c.room.Bytes, "bounded by", c.room.Level, "window", window)
	return nil
}

// winnable stands back if the target cannot be helped, or needs no help.
func (c *Controller) winnable() error {
	if err := c.judge(); err != nil {
		return err
	}
	if fits, err := c.fits(); err != nil {
		return err
	} else if fits != nil {
		return c.standBack(fits)
	}
	return nil
}

// leastBlocks is how many blocks a cycle is cut in at least, if they are not to be smaller than MinBlock.
const leastBlocks = 64

// blockFor is the size of a cycle's blocks, where the pages are best read in units: a small model's are smaller, so that a part of it can be held.
func blockFor(cycle *pattern.Cycle, unit int64) int64 {
	if unit > pages.MinBlock && bytesOf(cycle)/unit < leastBlocks {
		return pages.MinBlock
	}
	return unit
}

// Use begins with a cycle that was stored, before the target has decoded. Files are those of the cycle, in the order of cycle.Files, where they can be opened and
// where the target maps them (0 where that is not known). What the target then reads is compared with it once, and learned instead if it differs.
func (c *Controller) Use(cycle *pattern.Cycle, files []Mapped) error {
	mine := &pattern.Cycle{Files: cycle.Files, Reads: slices.Clone(cycle.Reads)}
	at := map[int]uint64{}
	numbers := make([]int, len(files))
	var loading []loadFile
	for i, f := range files {
		var err error
		if numbers[i], err = c.open(f.Path, f.ID); err != nil {
			return err
		}
		if f.Base != 0 {
			at[numbers[i]] = f.Base
			loading = append(loading, loadFile{file: numbers[i], base: f.Base})
		}
	}
	var whole int64
	for i := range mine.Reads {
		r := &mine.Reads[i]
		r.File = numbers[r.File]
		if !c.known[r.File].holds(r) {
			return fmt.Errorf("the pattern reads %d bytes at %d as %q, which are no weight of its model", r.Length, r.Offset, r.Tensor)
		}
		if whole += r.Length; whole > maxCycleBytes {
			return errors.New("the pattern reads more than any token of a model can")
		}
	}
	c.contexts.stored = mine
	c.sum.Stored = !c.guessed
	c.loads(loading)
	return c.start(mine, at)
}

// checkRoom asks how much memory there is.
func (c *Controller) checkRoom() error {
	c.checked = c.now()
	if err := c.count(); err != nil {
		return err
	}
	var locked int64
	if c.help != nil && c.opts.Lock {
		locked = c.help.heldBytes
	}
	now, err := c.opts.Memory.Room(c.census.total, locked)
	if err != nil {
		return err
	}
	now.Bytes -= now.Margin()
	budget := c.opts.Budget
	if c.opts.Share != nil {
		budget = c.opts.Share()
	}
	if budget > 0 && budget < now.Bytes {
		now.Bytes, now.Level = budget, room.LevelBudget
	}
	now.Bytes = c.explain(now.Bytes)
	c.room = now
	if now.Level != c.atToken.room.Level { // the target was moved, or something else bounds it
		c.atToken = account{}
	}
	if c.help != nil {
		c.help.window.bytes = c.windowFor(now.Bytes)
		c.shareRoom()
	}
	return nil
}

// Keepable is how many bytes of a model can be kept in a room.
func Keepable(r room.Room) int64 {
	bytes := r.Bytes - r.Margin()
	return max(bytes-windowIn(bytes, defaultWindow), 0)
}

// opBlocks, or an opShare of what a token reads, bounds what of the window is for the ops: what a large weight (output.weight) has behind it is paged out while it is being read, see within. That comes
// in steps, and late where the target runs ahead: a model of 4 GB, of whose ops 16 blocks stream, was 1.27 times as fast with 24 blocks in all than with 14, for a hundredth more bytes.
const (
	opBlocks = 8
	opShare  = 96
)

// windowFor is the window in a room: what is streamed of the op that is under way and of the next one, and what keeps the disk busy, see busyBlocks. More would be taken from
// what is held; less would have the disk wait for the target. Where single pages are read, it is what the disk delivers while the slowest part of the loop runs, several times
// over.
func (c *Controller) windowFor(room int64) int64 {
	if c.opts.Window > 0 {
		return windowIn(room, c.opts.Window)
	}
	h := c.help
	if h == nil || h.block <= pages.MinBlock {
		return windowIn(room, defaultWindow)
	}
	return h.schedule.window(room, h.block, c.busyBlocks())
}

// window is that of a schedule in blocks of so many bytes, see windowFor.
func (s *Schedule) window(room, block, busy int64) int64 {
	var largest int64
	for _, r := range s.Reads {
		largest = max(largest, r.Length)
	}
	share := 1 - float64(max(room-defaultWindow, 0))/float64(s.Bytes)
	blocks := int64(math.Ceil(max(share, 0) * float64(largest) / float64(block)))
	return windowIn(room, (min(2*blocks, max(opBlocks, s.Bytes/opShare/block))+busy)*block)
}

// busyBlocks is how many blocks are being read, or wait for that, or for the target, besides those of the ops that the window is for: as many as are read at once, and what the disk
// delivers between two looks of this loop, which gets a processor only now and then beside the target's threads, and one.
func (c *Controller) busyBlocks() int64 {
	return busyBlocks(c.pages.AtOnce(), c.meter.best, c.pace, c.help.block)
}

func busyBlocks(atOnce int, perSecond float64, pace time.Duration, block int64) int64 {
	return int64(atOnce) + int64(math.Ceil(perSecond*pace.Seconds()/float64(block))) + 1
}

// paceShare of the time between two looks is what the last one counts for.
const paceShare = 256

// keepPace notes when this loop looks, while the target decodes.
func (c *Controller) keepPace() {
	now := c.now()
	if !c.ticked.IsZero() && c.help.decode != 0 {
		c.pace += (min(now.Sub(c.ticked), slowPace) - c.pace) / paceShare
	}
	c.ticked = now
}

// windowIn bounds a window in a room: a quarter of it, or what is left beside 32 MiB, but no more than half. With less than the ops under way need, the target overtakes it.
func windowIn(room, window int64) int64 {
	return max(min(window, max(room/4, min(room/2, room-32<<20))), 0)
}

// Tick does what is due. It does not wait for the disk, save for blocks that are to be held.
func (c *Controller) Tick() error {
	if err := c.look(); err != nil {
		return err
	}
	if c.readsOther() {
		if err := c.giveUp("what is computed elsewhere has changed"); err != nil {
			return err
		}
	}
	if c.help == nil {
		return nil
	}
	if err := c.pages.Poll(); err != nil {
		return err
	}
	c.keepPace()
	c.meter.tick(c.now(), c.help.ahead+int64(c.help.advised)*c.help.block)
	if err := c.pages.Delivers(c.meter.best); err != nil {
		return err
	}
	// A limit that has just been lowered leaves the target only what is not locked: milliseconds count.
	change := c.opts.Memory.Changed()
	// What is read and paged out for experts moves usage all the time: that is looked at now and then.
	changed := change.Look && !(change.Used && c.help.experts != nil)
	if change.Short != "" {
		c.short, c.shortAt = change.Short, c.now()
	}
	if c.pages.Block() != c.help.unit {
		if c.contexts.main != nil {
			c.contexts.main.forget()
		}
		return c.giveUp("the file is read in other blocks now")
	}
	if changed || c.now().Sub(c.checked) > budgetInterval {
		if err := c.adjust(); err != nil {
			return err
		}
	}
	if err := c.checkMapped(); err != nil || c.help == nil {
		return err
	}
	if c.load != nil {
		return c.stageLoading()
	}
	if c.watch.aside {
		return nil
	}
	if err := c.holdWhileResting(); err != nil {
		return err
	}
	if err := c.sweep(); err != nil {
		return err
	}
	h := c.help
	begun := c.now()
	if err := c.behind(); err != nil {
		return err
	}
	if err := c.trail(); err != nil {
		return err
	}
	evicted := c.now()
	before := h.streamed
	err := c.ahead()
	c.meter.add(h.streamed - before)
	if err == nil {
		err = c.speculate()
	}
	c.sum.EvictSec += evicted.Sub(begun).Seconds()
	c.sum.StageSec += c.now().Sub(evicted).Seconds()
	return err
}
