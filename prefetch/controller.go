package prefetch

// This file is the control loop: it learns what a token reads, then keeps the pins and the window in step with the target.

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/internal/uring"
)

// Strategy says which levers are used.
type Strategy int

const (
	Both   Strategy = iota // pin what fits, stream the rest
	Pin                    // pin what fits; the target reads the rest by itself
	Stream                 // pin nothing
)

// ParseStrategy reads a strategy's name: both, pin or stream.
func ParseStrategy(s string) (Strategy, error) {
	i := slices.Index(strategyNames, s)
	if i < 0 {
		return 0, fmt.Errorf("strategy %q is not one of both, pin, stream", s)
	}
	return Strategy(i), nil
}

var strategyNames = []string{"both", "pin", "stream"}

func (s Strategy) String() string { return strategyNames[s] }

// Options of a Controller.
type Options struct {
	Strategy Strategy
	Memory   Memory
	// Budget caps the bytes of the model in memory, whatever Memory says; 0: no cap.
	Budget int64
	// Window is how many bytes may be read ahead or wait to be paged out; 0 chooses.
	Window int64
	Log    *slog.Logger
}

const (
	// queueEntries is how many requests may be under way.
	queueEntries = 128
	// pinsAhead is how many blocks are being read while one is locked: the disk's bandwidth needs several.
	pinsAhead = 16
	// budgetInterval is how often limits are looked at.
	budgetInterval = 50 * time.Millisecond
	// spareChecks is how many looks in a row must find room before more is pinned.
	spareChecks = 10
	// slack is how far pins may be above their target before they are given back, half of the least that is left free.
	slack = 6 << 20
	// pinSlice bounds how long one tick pins.
	pinSlice = 4 * time.Millisecond
)

// phase of the control loop
type phase int

const (
	learning phase = iota
	pinning
	following
)

// Controller keeps the model of one target in memory as far as it fits. Feed it with the target's events, and call Tick
// about every millisecond.
type Controller struct {
	opts   Options
	target *proc.Process
	queue  uring.Queue
	files  []*modelFile
	byID   map[event.FileID]int
	phase  phase

	learned map[int32]*lesson // by thread, while learning
	plan    *plan
	index   map[place][]int // reads by where they begin

	// now is the target's position: token*len(reads) + the read that is under way.
	now    int64
	decode uint32 // the decode that is followed, of thread tid; 0 between decodes
	tid    int32
	met    int     // reads of the plan met in it
	stream []visit // in order; visit i of token n begins at n*len(reads) + from
	next   int64   // the visit to stage next: token*len(stream) + i
	staged []staged
	ahead  int64 // bytes of staged
	last   int64 // position of the visit staged last
	toDrop []int // blocks to page out before following

	toPin   []int // blocks, in the order of pinning
	advised int   // how many of toPin are being read
	pinned  int64

	spare    []int64 // what could be pinned besides, at the last looks
	window   int64
	room     Room
	checked  time.Time
	countAt  time.Time // when what is resident is to be counted next
	resident int64

	completions []uring.Completion
	followed    time.Time // when the first pins were in place
	sum         Summary
	decodeBegin int64
}

// lesson is the sequence of reads of the decode that a thread is in.
type lesson struct {
	decode       uint32
	reads        []Read
	outside      int // weights that were read from copies in memory
	outsideBytes int64
}

// lessonTokens is the largest batch to learn from. A larger one may go through the model in several passes, of which only the last
// goes all the way.
const lessonTokens = 8

type place struct {
	file   int
	offset int64
}

// staged is a visit that was read ahead, or met in memory, and is to be paged out once it is over.
type staged struct {
	block int
	end   int64 // position behind its last read
}

// Summary says what a Controller did.
type Summary struct {
	Strategy      string  `json:"strategy"`
	Tokens        int     `json:"tokens"`         // generated while prefetching
	TokensPerSec  float64 `json:"tokens_per_sec"` // over these
	Pinned        int64   `json:"pinned_bytes"`   // at the end
	Streamed      int64   `json:"streamed_bytes"` // read ahead
	Window        int64   `json:"window_bytes"`
	PerToken      int64   `json:"weight_bytes_per_token"` // that each token reads and this process can help with
	Room          int64   `json:"room_bytes"`
	Level         string  `json:"bounded_by"`
	Late          int     `json:"late"`   // visits that the target reached first
	Shrunk        int     `json:"shrunk"` // times that pins were given back
	Queue         string  `json:"queue"`
	StageSec      float64 `json:"stage_seconds"`  // spent on asking for reads
	EvictSec      float64 `json:"evict_seconds"`  // spent on paging out
	FollowSec     float64 `json:"follow_seconds"` // since the first pins were in place
	decodingNanos int64
}

// New prepares to help the process pid. Close it.
func New(pid int, opts Options) (*Controller, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	target, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	queue, err := uring.Open(queueEntries)
	if err != nil {
		return nil, errors.Join(err, target.Close())
	}
	return &Controller{opts: opts, target: target, queue: queue, byID: map[event.FileID]int{}, learned: map[int32]*lesson{}}, nil
}

// Close releases all pins and descriptors.
func (c *Controller) Close() error {
	errs := []error{c.queue.Close()}
	for _, f := range c.files {
		errs = append(errs, f.close())
	}
	c.files = nil
	return errors.Join(append(errs, c.target.Close())...)
}

// Summary describes the work so far.
func (c *Controller) Summary() Summary {
	s := c.sum
	s.Strategy, s.Pinned, s.Window, s.Queue = c.opts.Strategy.String(), c.pinned, c.window, c.queue.Name()
	s.Room, s.Level = c.room.Bytes, c.room.Level
	if !c.followed.IsZero() {
		s.FollowSec = time.Since(c.followed).Seconds()
	}
	if s.decodingNanos > 0 {
		s.TokensPerSec = float64(s.Tokens) / (float64(s.decodingNanos) / 1e9)
	}
	return s
}

// Handle takes the target's next event.
func (c *Controller) Handle(ev event.Event) error {
	switch e := ev.(type) {
	case event.FileSeen:
		f, err := openModelFile(e.Path)
		if err != nil {
			return err
		}
		c.byID[e.File] = len(c.files)
		c.files = append(c.files, f)
	case event.DecodeBegin:
		if c.phase == learning {
			if e.Tokens > 0 && e.Tokens <= lessonTokens {
				c.learned[e.TID] = &lesson{decode: e.Decode}
			}
			return nil
		}
		if c.decode != 0 && c.tid != e.TID {
			return nil // another context decodes at the same time: one of them is followed
		}
		c.decode, c.tid, c.met, c.decodeBegin = e.Decode, e.TID, 0, 0
		if e.Tokens == 1 {
			c.decodeBegin = e.Time
		}
		c.nextToken()
	case event.DecodeEnd:
		if c.phase == learning {
			return c.learn(c.learned[e.TID], e.Decode)
		}
		if c.decode != e.Decode {
			return nil
		}
		c.decode = 0
		if c.decodeBegin != 0 {
			c.sum.Tokens++
			c.sum.decodingNanos += e.Time - c.decodeBegin
		}
		if c.met == 0 {
			return c.forget("a decode read nothing of what was learned")
		}
	case *event.Op:
		return c.op(e)
	}
	return nil
}

func (c *Controller) op(o *event.Op) error {
	if o.GatherDim > 0 {
		return nil // rows and experts that depend on the token are the target's own business
	}
	for i := range o.Sources {
		s := &o.Sources[i]
		l := c.learned[o.TID]
		if c.phase == learning && (l == nil || l.decode != o.Decode) || c.phase != learning && c.decode != o.Decode {
			continue
		}
		file, ok := c.byID[s.File]
		switch {
		case c.phase == learning && !s.InFile:
			l.outside++
			l.outsideBytes += s.Bytes()
		case !ok || !s.InFile:
		case c.phase == learning:
			l.reads = append(l.reads, Read{File: file, Offset: s.Offset, Length: s.Bytes(), Address: s.Data})
		default:
			if err := c.done(place{file, s.Offset}, s.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// done notes that the target has read the weight at a place, mapped at address.
func (c *Controller) done(at place, address uint64) error {
	reads := c.index[at]
	if len(reads) == 0 {
		return nil
	}
	if c.plan.reads[reads[0]].Address != address {
		return c.forget("the model was mapped anew")
	}
	c.met++
	n := int64(len(c.plan.reads))
	token, read := c.now/n, int(c.now%n)
	i, _ := slices.BinarySearch(reads, read)
	if i == len(reads) { // it begins again: a batch of several graphs
		token++
		i = 0
	}
	c.now = token*n + int64(reads[i]) + 1
	return nil
}

// forget gives everything up and learns anew: the target has loaded a model again, or another one.
func (c *Controller) forget(why string) error {
	c.opts.Log.Info("learning anew", "why", why)
	for _, i := range c.plan.where(true) {
		b := &c.plan.blocks[i]
		if err := c.files[b.file].unpin(b.offset, b.length); err != nil {
			return err
		}
	}
	c.plan, c.index, c.stream, c.staged, c.toPin, c.toDrop, c.spare = nil, nil, nil, nil, nil, nil, nil
	c.pinned, c.ahead, c.next, c.now, c.advised, c.decode = 0, 0, 0, 0, 0, 0
	c.phase, c.learned = learning, map[int32]*lesson{}
	return nil
}

// nextToken moves on to the first read of the next token.
func (c *Controller) nextToken() {
	if n := int64(len(c.plan.reads)); c.now%n != 0 {
		c.now += n - c.now%n
	}
}

// learn takes the first whole decode of a few tokens as the pattern of all: the warm-up, or the first generated token.
func (c *Controller) learn(l *lesson, decode uint32) error {
	if l == nil || l.decode != decode {
		return nil
	}
	if l.outside > 0 {
		return event.OutsideError(l.outside, l.outsideBytes)
	}
	if len(l.reads) == 0 {
		return nil
	}
	c.learned = nil
	if err := c.checkRoom(); err != nil {
		return err
	}
	c.plan = newPlan(l.reads, c.window/2)
	c.sum.PerToken = c.plan.bytes
	c.index = map[place][]int{}
	for i, r := range l.reads {
		at := place{r.File, r.Offset}
		c.index[at] = append(c.index[at], i)
	}
	c.opts.Log.Info("learned the pattern", "reads", len(l.reads), "bytes", c.plan.bytes, "blocks", len(c.plan.blocks),
		"room", c.room.Bytes, "bounded by", c.room.Level, "window", c.window)
	if c.opts.Strategy != Stream {
		c.toPin, _ = c.plan.spread(c.plan.where(false), c.pinTarget())
	}
	c.phase = pinning
	return nil
}

// checkRoom asks how much memory there is, and chooses the window. What is resident is counted less often: that walks all
// pages of the model, and is to take no more than a fiftieth of the time.
func (c *Controller) checkRoom() error {
	c.checked = time.Now()
	if c.checked.After(c.countAt) {
		c.resident = 0
		for _, f := range c.files {
			n, err := f.resident()
			if err != nil {
				return err
			}
			c.resident += n
		}
		c.countAt = time.Now().Add(max(4*budgetInterval, 50*time.Since(c.checked)))
	}
	room, err := c.opts.Memory.Room(c.resident, c.pinned)
	if err != nil {
		return err
	}
	// Some is left free: the target's own memory grows, and per-CPU batches blur the counters.
	room.Bytes -= max(12<<20, room.Limit/128)
	if c.opts.Budget > 0 && c.opts.Budget < room.Bytes {
		room.Bytes, room.Level = c.opts.Budget, "--budget"
	}
	c.room = room
	c.window = c.opts.Window
	if c.window == 0 {
		c.window = defaultWindow
	}
	c.window = max(min(c.window, room.Bytes/4), 0)
	return nil
}

// defaultWindow holds what the disk delivers while the slowest part of the loop runs, several times over.
const defaultWindow = 16 << 20

// pinTarget is how many bytes may be pinned.
func (c *Controller) pinTarget() int64 { return max(c.room.Bytes-c.window, 0) }

// Tick does what is due. It does not wait for the disk, save for pages that are being pinned.
func (c *Controller) Tick() error {
	if c.phase == learning {
		return nil
	}
	if err := c.reap(); err != nil {
		return err
	}
	// A limit that has just been lowered leaves the target only what is not pinned: milliseconds count. What was resident
	// has been reclaimed for it.
	changed := c.opts.Memory.Changed()
	if changed {
		c.countAt = time.Time{}
	}
	if changed || time.Since(c.checked) > budgetInterval {
		if err := c.adjust(); err != nil {
			return err
		}
	}
	if c.phase == pinning {
		if err := c.pinSome(); err != nil || c.phase == pinning {
			return err
		}
	}
	if c.opts.Strategy == Pin {
		return nil
	}
	if err := c.dropSome(); err != nil {
		return err
	}
	begun := time.Now()
	if err := c.evict(); err != nil {
		return err
	}
	evicted := time.Now()
	err := c.stage()
	c.sum.EvictSec += evicted.Sub(begun).Seconds()
	c.sum.StageSec += time.Since(evicted).Seconds()
	return err
}

// pinSome reads the blocks to pin, several at a time, and locks them in order.
func (c *Controller) pinSome() error {
	begun := time.Now()
	for len(c.toPin) > 0 && time.Since(begun) < pinSlice {
		for c.advised < min(len(c.toPin), pinsAhead) {
			b := &c.plan.blocks[c.toPin[c.advised]]
			if !c.readAhead(b) {
				break
			}
			c.advised++
		}
		if _, err := c.queue.Submit(); err != nil {
			return err
		}
		if err := c.pinBlock(c.toPin[0]); err != nil {
			return err
		}
		c.toPin = c.toPin[1:]
		c.advised = max(c.advised-1, 0)
	}
	if len(c.toPin) > 0 {
		return nil
	}
	c.opts.Log.Info("pinned", "bytes", c.pinned)
	c.phase = following
	if c.opts.Strategy != Pin && c.stream == nil {
		c.toDrop = c.plan.where(false)
	}
	if c.followed.IsZero() {
		c.followed = time.Now()
	}
	c.restream()
	return nil
}

func (c *Controller) pinBlock(i int) error {
	b := &c.plan.blocks[i]
	if err := c.files[b.file].pin(b.offset, b.length); err != nil {
		return err
	}
	b.pinned = true
	c.pinned += b.length
	return nil
}

// restream lists what is to be streamed, after pins have changed.
func (c *Controller) restream() {
	c.stream = c.plan.streamed()
	c.next = 0
	c.staged = slices.DeleteFunc(c.staged, func(s staged) bool {
		if !c.plan.blocks[s.block].pinned {
			return false
		}
		c.ahead -= c.plan.blocks[s.block].length
		return true
	})
	if c.opts.Strategy != Pin {
		c.skip()
	}
}

// dropSome pages out what the target had read by itself before it was followed.
func (c *Controller) dropSome() error {
	begun := time.Now()
	for len(c.toDrop) > 0 && time.Since(begun) < pinSlice {
		if i := c.toDrop[0]; !c.plan.blocks[i].pinned && !c.isStaged(i) {
			if err := c.discard(i); err != nil {
				return err
			}
		}
		c.toDrop = c.toDrop[1:]
	}
	return nil
}

func (c *Controller) isStaged(i int) bool {
	return slices.ContainsFunc(c.staged, func(s staged) bool { return s.block == i })
}

// discard frees a block's pages.
func (c *Controller) discard(i int) error {
	b := &c.plan.blocks[i]
	if err := c.target.PageOut(b.address, b.length); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil // the target has ended
		}
		return err
	}
	return c.files[b.file].drop(b.offset, b.length)
}

// at is the visit that number n of the stream stands for, and the positions of its first and behind its last read.
func (c *Controller) at(n int64) (v visit, from, end int64) {
	token := n / int64(len(c.stream))
	v = c.stream[n%int64(len(c.stream))]
	reads := int64(len(c.plan.reads))
	return v, token*reads + int64(v.from), token*reads + int64(v.to) + 1
}

// skip passes over visits that are over, or staged.
func (c *Controller) skip() {
	if len(c.stream) == 0 {
		return
	}
	if token := c.now / int64(len(c.plan.reads)); c.next < token*int64(len(c.stream)) {
		c.next = token * int64(len(c.stream))
	}
	for {
		if _, from, end := c.at(c.next); end > c.now && (len(c.staged) == 0 || from > c.last) {
			return
		}
		c.next++
	}
}

// evict pages out the visits that are over. A block on the border of two weights may be staged for a later visit too:
// it stays for that one.
func (c *Controller) evict() error {
	var over []int
	c.staged = slices.DeleteFunc(c.staged, func(s staged) bool {
		if s.end > c.now {
			return false
		}
		c.ahead -= c.plan.blocks[s.block].length
		over = append(over, s.block)
		return true
	})
	for _, i := range over {
		if c.isStaged(i) {
			continue
		}
		if err := c.discard(i); err != nil {
			return err
		}
	}
	return nil
}

// stage reads ahead of the target as far as the window goes.
func (c *Controller) stage() error {
	if len(c.stream) == 0 {
		return nil
	}
	queued := false
	for {
		v, from, end := c.at(c.next)
		b := &c.plan.blocks[v.block]
		if c.ahead > 0 && c.ahead+b.length > c.window {
			break
		}
		// What is over was read by the target itself: it only waits to be paged out.
		if end > c.now {
			if !c.readAhead(b) {
				break
			}
			queued = true
			c.sum.Streamed += b.length
		} else {
			c.sum.Late++
		}
		c.staged = append(c.staged, staged{v.block, end})
		c.last = from
		c.ahead += b.length
		c.next++
	}
	if !queued {
		return nil
	}
	_, err := c.queue.Submit()
	return err
}

// readAhead queues the reading of a block into the page cache. It returns false if the queue is full.
func (c *Controller) readAhead(b *block) bool {
	f := c.files[b.file]
	if int64(c.queue.InFlight())+(b.length+f.piece-1)/f.piece > queueEntries {
		return false
	}
	for at := b.offset; at < b.offset+b.length; at += f.piece {
		if !c.queue.Fadvise(int(f.file.Fd()), at, min(f.piece, b.offset+b.length-at), unix.FADV_WILLNEED, 0) {
			return false // what is missing the target reads by itself
		}
	}
	return true
}

// reap collects finished reads. A read that failed is no reason to stop: the target will read for itself.
func (c *Controller) reap() error {
	var err error
	c.completions, err = c.queue.Reap(0, c.completions[:0])
	if err != nil {
		return err
	}
	for _, done := range c.completions {
		if done.Err != nil {
			c.opts.Log.Warn("a read ahead failed", "error", done.Err)
		}
	}
	return nil
}

// adjust follows limits that change and a target that grows: pins beyond the budget are given back at once, room that
// has come free is used.
func (c *Controller) adjust() error {
	if err := c.checkRoom(); err != nil {
		return err
	}
	if c.opts.Strategy == Stream || c.phase != following {
		return c.adjustPinning()
	}
	target := min(c.pinTarget(), c.plan.bytes)
	if c.pinned > target+slack {
		c.spare = nil
		give, _ := c.plan.spread(c.plan.where(true), c.pinned-target+minBlock)
		for _, i := range give {
			if err := c.unpin(i); err != nil {
				return err
			}
		}
		c.sum.Shrunk++
		c.opts.Log.Info("gave pins back", "pinned", c.pinned, "room", c.room.Bytes, "bounded by", c.room.Level)
		c.restream()
		return nil
	}
	// The counters are blurred: what was free for a while is free.
	c.spare = append(c.spare, target-c.pinned)
	if len(c.spare) < spareChecks {
		return nil
	}
	least := slices.Min(c.spare)
	c.spare = nil
	if least < 4*minBlock {
		return nil
	}
	c.toPin, _ = c.plan.spread(c.plan.where(false), least-minBlock)
	c.phase, c.advised = pinning, 0
	c.opts.Log.Info("pinning more", "pinned", c.pinned, "bytes", least)
	return nil
}

// adjustPinning stops pinning where the budget has shrunk meanwhile.
func (c *Controller) adjustPinning() error {
	target := c.pinTarget()
	if c.pinned > target {
		c.sum.Shrunk++
	}
	for c.pinned > target {
		pinned := c.plan.where(true)
		if len(pinned) == 0 {
			return nil
		}
		c.toPin = nil
		if err := c.unpin(pinned[len(pinned)-1]); err != nil {
			return err
		}
	}
	return nil
}

func (c *Controller) unpin(i int) error {
	b := &c.plan.blocks[i]
	if err := c.files[b.file].unpin(b.offset, b.length); err != nil {
		return err
	}
	b.pinned = false
	c.pinned -= b.length
	return c.discard(i)
}
