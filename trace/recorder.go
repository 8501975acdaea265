package trace

// This file is the life of a recorder: its options and state, how it starts, passes events on,
// flushes and rotates the tables, keeps the description up to date, and finishes. What an event means
// for the capture is in the record_*.go files.

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/trace/tables"
)

// RecorderOptions configure a Recorder or a Session.
type RecorderOptions struct {
	// What is captured, and where to.

	Dir     string   // capture directory; if empty, none is written
	Command []string // the target's command line, for capture.json
	PID     int
	// Detail is what the capturer observes, one of tables.Detail...; DetailOp if empty.
	Detail string
	// Follow makes a Session record each process that decodes in its own directory, Dir/<pid>.
	Follow bool
	// Hidden means that routers' inputs are observed, for one in so many tokens. They make the hidden
	// table.
	Hidden int
	// NoTokenIDs leaves out of the capture whatever reveals the tokens: their ids, which rows of their
	// embeddings were read, and the arguments of the command, which may hold the prompt. Warm-ups are
	// still told from prompts.
	NoTokenIDs bool

	// How the tables are split. A new segment begins when the current one has RotateBytes or was begun
	// RotateEvery ago (0: never), if possible between two steps. The newest RotateKeep segments are
	// kept; 0 keeps all.

	RotateBytes int64
	RotateEvery time.Duration
	RotateKeep  int

	// Other outputs.

	Log *slog.Logger
	// Advise says how a process with this command line is to be started so that weights are read from its model's file.
	// It is called if they were not. nil: for any llama.cpp.
	Advise func(command []string) string
	// CSV, if not nil, receives a line per row of the access table while the target runs: timestamp
	// (s), token, tensor_name, data_ptr, bytes_accessed. It is flushed when a decode ends.
	CSV io.Writer

	// What else the description says. Each function may be nil.

	// Counters returns the capturer's counters. It is called at flushes and at the end.
	Counters func() (event.Counters, error)
	// Libraries returns the files in which the capturer has probes.
	Libraries func() []string
	// Target returns what is known about a process's ggml. It is called at flushes and at the end.
	Target func(pid int) event.TargetInfo
	// Surroundings returns what a process has of its machine. What is not known leaves what was known before.
	// It is called when a model is read, then at flushes, and when the capture ends (over).
	Surroundings func(pid int, model Seen, over bool) Surroundings
}

// Surroundings are what a process has of its machine. What is not known is nil or 0.
type Surroundings struct {
	Memory *tables.Memory // what limits its memory
	Disk   *tables.Disk   // the disk that holds its model
	// MemoryRate is how many bytes per second all processors read from memory together.
	MemoryRate float64
}

// Seen is what the capturer has seen of the first model's first file.
type Seen struct {
	Path string
	// Device is the number by which the kernel knows the device that holds it: major<<20 | minor. It is
	// not stat's on btrfs, nor on overlayfs, where it is that of the layer below. 0: not known yet.
	Device uint64
	// BytesPerSecond is the most that was read from disk of any model for a while, by all processes
	// together. 0: that is not observed, or it was little.
	BytesPerSecond float64
}

// Recorder turns the events of one process into a capture. It is not safe for concurrent use. The
// capture directory is created when the first weight of a model is read, so a run that fails before
// that does not replace an older capture. Memory use is bounded by the models' size and does not grow
// with time.
type Recorder struct {
	opts    RecorderOptions
	meta    tables.Meta
	command []string // of the process, whole
	begun   int64    // ns, CLOCK_MONOTONIC
	now     func() time.Time

	// Outputs.

	csv *csvStream // nil if not asked for
	w   *Writer    // nil until a model is read
	// create creates the capture, when the first weight is read.
	create           func(*tables.Meta, []tables.StructureRow) (*Writer, error)
	flushed, rotated time.Time
	rowsWritten      uint64 // accesses emitted so far
	over             bool   // Finish was called

	// Models (record_models.go).

	models     []*model
	files      map[event.FileID]*modelPart // nil for a file that belongs to no model
	unrecorded int                         // files that belong to no model, and could not be read
	rows       []tables.StructureRow

	readRate readRate // what all page-ins of models were read at

	// Steps (record_steps.go).

	contexts contexts
	steps    openSteps
	numbers  stepNumbers
	early    []tables.StepRow // steps that ended before a weight was read
	stepOver bool             // a step has ended
	phase    tables.Phase     // of the latest step

	// Ops (record_ops.go). The slices are reused for each op.

	reads    []sourceRead // the reads of an op without a memo
	accesses []tables.Access
	selected []int32 // distinct ids of an op

	// Page-ins (pagein.go).

	pending pendingPageIns
	held    []heldPageIn
	rereads *rereadAccount // nil until page-ins are observed

	// What the capture lacks.

	outside outsideWeights
	lost    losses
}

// losses counts what could not be recorded.
type losses struct {
	orphans    int    // ops without a known decode
	unknownIDs uint64 // ops whose ids had not been computed yet when they were read
	pageIns    uint64 // page-ins of models' files that were dropped
}

const flushInterval = 5 * time.Second

// NewRecorder returns a Recorder for a capture that begins now.
func NewRecorder(opts RecorderOptions) (*Recorder, error) {
	clock, err := startClock()
	if err != nil {
		return nil, err
	}
	var stream *csvStream
	if opts.CSV != nil {
		if stream, err = newCSVStream(opts.CSV); err != nil {
			return nil, err
		}
	}
	r := newRecorder(opts, clock, stream)
	r.create = func(meta *tables.Meta, rows []tables.StructureRow) (*Writer, error) {
		return Create(opts.Dir, meta, rows)
	}
	return r, nil
}

// clock is the start of a capture by two clocks.
type clock struct {
	started time.Time
	begun   int64 // ns, CLOCK_MONOTONIC
}

func startClock() (clock, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return clock{}, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return clock{time.Now(), now.Nano()}, nil
}

func newRecorder(opts RecorderOptions, c clock, stream *csvStream) *Recorder {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	r := &Recorder{
		opts: opts, begun: c.begun, now: time.Now, csv: stream, flushed: c.started,
		files: map[event.FileID]*modelPart{}, outside: outsideWeights{},
		contexts: contexts{known: map[uint64]*contextState{}},
		steps:    openSteps{byThread: map[int32]*step{}},
	}
	r.meta = tables.Meta{
		Started: c.started, PID: opts.PID, Host: thisHost(), Models: []tables.ModelInfo{},
		Detail: cmp.Or(opts.Detail, tables.DetailOp), NoTokenIDs: opts.NoTokenIDs, Dir: opts.Dir,
	}
	if opts.Hidden > 0 {
		r.meta.Hidden = &tables.Hidden{Every: opts.Hidden}
	}
	r.setCommand(opts.Command)
	return r
}

// setCommand notes the command line of the process.
func (r *Recorder) setCommand(line []string) {
	r.command = line
	if r.opts.NoTokenIDs && len(line) > 1 {
		line = line[:1]
	}
	r.meta.Command = line
}

// Handle processes the next event.
func (r *Recorder) Handle(ev event.Event) error {
	switch e := ev.(type) {
	case event.FileSeen:
		return r.recordFile(e)
	case event.DecodeBegin:
		return r.beginStep(e)
	case event.DecodeEnd:
		return r.recordDecodeEnd(e)
	case *event.Op:
		return r.recordOp(e)
	case event.RouterInput:
		return r.recordRouterInput(e)
	case event.PageIn:
		return r.recordPageIn(e)
	}
	return nil
}

// Flush writes buffered rows unless it did so within the last five seconds, and begins a new segment
// if that is due. Call it now and then during a decode, too, because a decode may take long.
func (r *Recorder) Flush() error {
	if err := r.flushTables(); err != nil || r.csv == nil {
		return err
	}
	return r.csv.flush()
}

func (r *Recorder) flushTables() error {
	if r.w == nil {
		return nil
	}
	now := r.now()
	if r.isRotationDue(now) {
		if err := r.updateMeta(); err != nil {
			return err
		}
		r.flushed, r.rotated = now, now
		return r.w.Rotate(&r.meta, r.opts.RotateKeep)
	}
	if now.Sub(r.flushed) < flushInterval {
		return nil
	}
	r.flushed = now
	if err := r.updateMeta(); err != nil {
		return err
	}
	return r.w.Flush(&r.meta)
}

// isRotationDue prefers a moment between steps. As steps of several contexts may overlap without end,
// it stops waiting at twice the limit.
func (r *Recorder) isRotationDue(now time.Time) bool {
	size, age := r.w.SegmentBytes(), now.Sub(r.rotated)
	exceeds := func(times int64) bool {
		return r.opts.RotateBytes > 0 && size >= times*r.opts.RotateBytes ||
			r.opts.RotateEvery > 0 && age >= time.Duration(times)*r.opts.RotateEvery
	}
	return exceeds(1) && r.steps.count() == 0 || exceeds(2)
}

// openTables creates the capture directory when the first model is known. Later it adds the rows of
// further models to the structure table.
func (r *Recorder) openTables(rows []tables.StructureRow) error {
	if r.opts.Dir == "" {
		return nil
	}
	if err := r.updateMeta(); err != nil {
		return err
	}
	if r.w != nil {
		return r.w.Extend(&r.meta, rows)
	}
	var err error
	if r.w, err = r.create(&r.meta, rows); err != nil {
		return err
	}
	r.rotated = r.now()
	for i := range r.early {
		if err := r.w.Step(&r.early[i]); err != nil {
			return err
		}
	}
	r.early = nil
	if r.rereads != nil || r.meta.Detail == tables.DetailOpIO {
		return r.notePageInsObserved()
	}
	return nil
}

// updateMeta brings the description up to date.
func (r *Recorder) updateMeta() error {
	r.meta.Seconds = r.now().Sub(r.meta.Started).Seconds()
	if r.opts.Libraries != nil {
		r.meta.Libraries = r.opts.Libraries()
	}
	if r.opts.Target != nil {
		r.meta.Target = r.opts.Target(r.meta.PID)
	}
	if r.opts.Surroundings != nil && len(r.meta.Models) > 0 {
		around := r.opts.Surroundings(r.meta.PID, r.seen(), r.over)
		r.meta.Memory = cmp.Or(around.Memory, r.meta.Memory)
		r.meta.Disk = cmp.Or(around.Disk, r.meta.Disk)
		r.meta.Host.MemoryBytesPerSecond = cmp.Or(around.MemoryRate, r.meta.Host.MemoryBytesPerSecond)
	}
	r.meta.Outside = r.outside.summary()
	for i, m := range r.models {
		m.describeLayers(&r.meta.Models[i], r.stepOver)
	}
	r.meta.Rows = int64(r.rowsWritten)
	if r.rereads != nil {
		r.meta.Rereads = r.rereads.summary(r.rows, rereadTop)
	}
	var counters event.Counters // without a capturer, only what is lost here
	if r.opts.Counters != nil {
		var err error
		if counters, err = r.opts.Counters(); err != nil {
			return err
		}
	}
	r.meta.Counters = counters
	r.meta.Counters.PageInsDropped = r.lost.pageIns + r.pending.lost
	r.meta.Counters.Clipped += r.lost.unknownIDs
	return nil
}

// seen returns what was seen of the first model.
func (r *Recorder) seen() Seen {
	s := Seen{Path: r.meta.Models[0].Path, BytesPerSecond: r.readRate.best}
	for id, p := range r.files {
		if p != nil && p == r.models[0].parts[0] {
			s.Device = id.Dev
		}
	}
	return s
}

// Finish ends the capture and returns its description. Call it once, after the last event. cause is
// why the capture stopped early, nil if it did not. With the errors ErrOutside and ErrNoDecode the
// capture is still valid and holds what was seen. ErrNoDecode comes with ErrLost if a decode may have
// been missed because of that.
func (r *Recorder) Finish(cause error) (*tables.Meta, error) {
	if err := r.closeTables(cause); err != nil {
		return nil, err
	}
	if r.lost.orphans > 0 {
		r.opts.Log.Warn("ops came before the first whole decode and were left out", "ops", r.lost.orphans)
	}
	switch {
	case r.meta.Outside.Tensors > 0:
		advice := ""
		if r.opts.Advise != nil {
			advice = r.opts.Advise(r.command)
		}
		return &r.meta, event.OutsideError(r.meta.Outside.Tensors, r.meta.Outside.Bytes, advice)
	case r.meta.Steps == 0 && r.meta.Counters.Lost() > 0:
		return &r.meta, fmt.Errorf("%w, but %d %w, and the beginning of a decode may be among them",
			event.ErrNoDecode, r.meta.Counters.Lost(), event.ErrLost)
	case r.meta.Steps == 0:
		return &r.meta, fmt.Errorf("%w: the target ended, or the capture did, before llama_decode was called",
			event.ErrNoDecode)
	case len(r.models) == 0:
		return &r.meta, fmt.Errorf("%w: no op of the %d decodes read a weight from a mapped file: "+
			"do the layers run on a GPU? Use -ngl 0", event.ErrOutside, r.meta.Steps)
	}
	return &r.meta, nil
}

// closeTables ends the open steps and writes everything that is buffered. It returns the first error:
// the others follow from it, or are the same.
func (r *Recorder) closeTables(cause error) error {
	var errs []error
	for _, s := range r.steps.sorted() {
		errs = append(errs, r.endStep(s, tables.NotObserved))
	}
	if r.csv != nil {
		errs = append(errs, r.csv.flush())
	}
	r.over = true
	errs = append(errs, r.updateMeta())
	if r.w != nil {
		errs = append(errs, r.w.Close(&r.meta, cause == nil && cmp.Or(errs...) == nil))
	} else {
		r.meta.Dir = ""
	}
	return cmp.Or(errs...)
}
