package trace

// This file joins events with the models' structure and turns them into rows of a capture.

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/trace/tables"
)

// RecorderOptions configure a Recorder or a Session.
type RecorderOptions struct {
	Dir     string   // capture directory; if empty, none is written
	Command []string // the target's command line, for capture.json
	PID     int
	Log     *slog.Logger
	// Counters returns the capturer's counters. It is called at flushes and at the end.
	Counters func() (event.Counters, error)
	// Libraries returns the files in which the capturer has probes.
	Libraries func() []string
	// Target returns what is known about a process's ggml. It is called at flushes and at the end.
	Target func(pid int) event.TargetInfo
	// Surroundings tells what limits a process's memory, and of the disk with a model; nil leaves
	// what it told before. It is asked when a model is read, then every few seconds, and when the
	// capture ends (over).
	Surroundings func(pid int, model string, over bool) (*tables.Memory, *tables.Disk)
	// Detail says what the capturer observes, one of tables.Detail...; DetailOp if empty.
	Detail string
	// CSV, if not nil, receives a line per row of the access table while the target runs: timestamp
	// (s), token, tensor_name, data_ptr, bytes_accessed. It is flushed when a decode ends.
	CSV io.Writer
	// A new segment of the tables begins when the current one has RotateBytes or was begun
	// RotateEvery ago (0: never), if possible between two steps. The newest RotateKeep segments are
	// kept; 0 keeps all.
	RotateBytes int64
	RotateEvery time.Duration
	RotateKeep  int
	// NoTokenIDs leaves out of the capture what tells the tokens: their ids, which rows of their
	// embeddings were read, and the arguments of the command, which may hold the prompt. Warm-ups
	// are told from prompts all the same.
	NoTokenIDs bool
	// Hidden says that routers' inputs are observed, for one in so many tokens; they make the
	// hidden table.
	Hidden int
	// Follow makes a Session record each process that decodes in its own directory, Dir/<pid>.
	Follow bool
}

// Recorder turns the events of one process into a capture. It is not safe for concurrent use. The
// capture directory is created when the first weight of a model is read, so a run that fails before
// that does not replace an older capture. Memory use is bounded by the models' size and does not
// grow with time.
type Recorder struct {
	opts  RecorderOptions
	meta  tables.Meta
	begun int64 // ns, CLOCK_MONOTONIC
	now   func() time.Time
	csv   *csvStream // nil if not asked for
	// create creates the capture, when the first weight is read.
	create func(*tables.Meta, []tables.StructureRow) (*Writer, error)

	flushed, rotated time.Time
	over             bool    // Finish was called
	w                *Writer // nil until a model is read
	models           []*model
	files            map[event.FileID]*part // nil for a file that belongs to no model
	rows             []tables.StructureRow
	contexts         map[uint64]*contextState
	steps            map[int32]*step // open steps by thread
	tokenIDs         int             // in them
	current          *step           // the one of them that had the latest op
	recent           [1 << 10]numbered
	early            []tables.StepRow // steps that ended before a weight was read
	stepOver         bool
	outside          map[string]int64
	orphans          int    // ops without a known decode
	reads            []read // scratch: the reads of an op without a memo
	accesses         []tables.Access
	selected         []int32 // scratch: distinct ids of an op
	unknownIDs       uint64  // ops whose ids were none yet when they were read
	served           uint64  // accesses emitted so far
	events           uint64
	phase            tables.Phase

	pending pendingPageIns
	held    []heldPageIn
	rereads *rereadAccount // nil until page-ins are observed
	dropped uint64         // page-ins of models' files that were dropped
}

// contextState is the state of a llama_context.
type contextState struct {
	index     int32
	prompted  bool
	generated int32 // steps of the generation phase so far
	used      uint64
}

// numbered maps a decode to its step.
type numbered struct {
	decode uint32
	step   int32
}

// read is the part of an access row that is the same each time an op reads one of its sources.
type read struct {
	tables.Access
	part   *part // nil if the source is in no model file
	slices int64 // rows or experts that the source has, if the op gathers
	stride int64 // bytes of each
	embeds bool  // the rows are token embeddings
}

// resolved is what a Recorder keeps in an op's memo: the reads of the op.
type resolved struct {
	by    *Recorder
	files int // how many files were known when they were resolved
	reads []read
}

// choice is what a layer tells of a batch's tokens once: the experts that they chose, or the values
// at a point.
type choice struct {
	layer int32
	point event.Point
	chose bool
}

// step is the open decode of a thread.
type step struct {
	tables.StepRow
	decode uint32
	// llama.cpp splits a large batch into parts, and computes them one after the other.
	base   int32             // batch position of the current part's first token
	tokens int32             // tokens of the current part
	looked uint32            // the graph that looked up its tokens' embeddings; 0 if none did
	told   map[choice]uint32 // the graph that told of it last, in the current part
	blind  bool              // the token ids of a graph are missing
	// first is set during a context's first decode while it may still be a warm-up; the token ids decide.
	first *contextState
}

const (
	// maxWarmupTokens: a warm-up decodes BOS and EOS, or the one of them that the model has.
	maxWarmupTokens = 2

	flushInterval = 5 * time.Second
	maxContexts   = 4096    // contexts remembered at a time; a server may create one per request
	maxOutside    = 1 << 16 // tensors outside a mapping that are counted separately
	maxEarly      = 1024
	maxSteps      = 4096    // open at a time, in as many threads
	maxTokenIDs   = 1 << 21 // kept of the steps that are open
	maxTokens     = 1 << 24 // in a batch
	maxRecorded   = 64      // models
	// A structure row and its tensor take some 300 bytes. Models have up to a few thousand tensors.
	maxStructureRows = 1 << 19
)

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
		files: map[event.FileID]*part{}, contexts: map[uint64]*contextState{}, steps: map[int32]*step{},
		outside: map[string]int64{},
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
	if r.opts.NoTokenIDs && len(line) > 1 {
		line = line[:1]
	}
	r.meta.Command = line
}

// Handle processes the next event.
func (r *Recorder) Handle(ev event.Event) error {
	r.events++
	switch e := ev.(type) {
	case event.FileSeen:
		return r.fileSeen(e)
	case event.DecodeBegin:
		return r.decodeBegin(e)
	case event.DecodeEnd:
		return r.decodeEnd(e)
	case *event.Op:
		return r.op(e)
	case event.RouterInput:
		return r.routerInput(e)
	case event.PageIn:
		return r.pageIn(e)
	}
	return nil
}

// Flush writes buffered rows unless it did so within the last five seconds, and begins a new
// segment if that is due. Call it now and then during a decode, too, because a decode may take
// long.
func (r *Recorder) Flush() error {
	if err := r.flush(); err != nil || r.csv == nil {
		return err
	}
	return r.csv.flush()
}

func (r *Recorder) flush() error {
	if r.w == nil {
		return nil
	}
	now := r.now()
	if r.rotationDue(now) {
		if err := r.describe(); err != nil {
			return err
		}
		r.flushed, r.rotated = now, now
		return r.w.Rotate(&r.meta, r.opts.RotateKeep)
	}
	if now.Sub(r.flushed) < flushInterval {
		return nil
	}
	r.flushed = now
	if err := r.describe(); err != nil {
		return err
	}
	return r.w.Flush(&r.meta)
}

// rotationDue prefers a moment between steps. As steps of several contexts may overlap without end,
// it stops waiting at twice the limit.
func (r *Recorder) rotationDue(now time.Time) bool {
	size, age := r.w.SegmentBytes(), now.Sub(r.rotated)
	over := func(times int64) bool {
		return r.opts.RotateBytes > 0 && size >= times*r.opts.RotateBytes || r.opts.RotateEvery > 0 &&
			age >= time.Duration(times)*r.opts.RotateEvery
	}
	return over(1) && len(r.steps) == 0 || over(2)
}

func (r *Recorder) context(address uint64) *contextState {
	c := r.contexts[address]
	if c == nil {
		if len(r.contexts) >= maxContexts {
			r.forgetContext()
		}
		c = &contextState{index: int32(r.meta.Contexts)}
		r.meta.Contexts++
		r.contexts[address] = c
	}
	c.used = r.events
	return c
}

// forgetContext drops the context whose last decode is longest ago.
func (r *Recorder) forgetContext() {
	var oldest uint64
	for address, c := range r.contexts {
		if o := r.contexts[oldest]; o == nil || c.used < o.used {
			oldest = address
		}
	}
	delete(r.contexts, oldest)
}

func (r *Recorder) decodeBegin(e event.DecodeBegin) error {
	if s := r.steps[e.TID]; s != nil { // its end event was lost
		if err := r.endStep(s, tables.NotObserved); err != nil {
			return err
		}
	}
	if len(r.steps) >= maxSteps { // no program decodes in so many threads: most have ended in a decode
		for _, s := range r.steps {
			if err := r.endStep(s, tables.NotObserved); err != nil {
				return err
			}
		}
	}
	if e.Tokens < 0 || e.Tokens > maxTokens {
		e.Tokens = -1
	}
	c := r.context(e.Context)
	s := &step{
		StepRow: tables.StepRow{
			Step: int32(r.meta.Steps), PID: e.PID, Thread: e.TID, Context: c.index, Tokens: e.Tokens, Token: -1,
			Sequences: e.Sequences, Begin: e.Time - r.begun, End: tables.NotObserved, Derived: e.Derived,
		},
		decode: e.Decode,
	}
	r.meta.Steps++
	parallel := e.Tokens > 1 && int(e.Tokens) == len(e.Sequences)
	switch {
	case e.Warmup:
		s.Phase = tables.PhaseWarmup
	case c.prompted && (e.Tokens == 1 || parallel):
		s.Phase = tables.PhaseGeneration
		s.Token = c.generated
		c.generated++
		r.meta.Tokens += int(e.Tokens)
	default:
		s.Phase = tables.PhasePrompt
		if !c.prompted && e.Tokens <= maxWarmupTokens {
			s.first = c
		}
		c.prompted = true
	}
	r.phase = s.Phase
	r.steps[e.TID] = s
	r.recent[int(e.Decode)%len(r.recent)] = numbered{e.Decode, s.Step}
	return nil
}

func (r *Recorder) decodeEnd(e event.DecodeEnd) error {
	if s := r.steps[e.TID]; s != nil && s.decode == e.Decode {
		if err := r.endStep(s, e.Time-r.begun); err != nil {
			return err
		}
		r.stepOver = true
	}
	if r.csv != nil {
		if err := r.csv.flush(); err != nil {
			return err
		}
	}
	return r.flush()
}

// endStep closes a thread's step.
func (r *Recorder) endStep(s *step, end int64) error {
	delete(r.steps, s.Thread)
	r.current = nil
	s.End = end
	r.tokenIDs -= len(s.TokenIDs)
	if s.blind {
		s.TokenIDs = nil
	}
	err := r.releasePageIns(func(h *heldPageIn) (string, bool) { return "", h.Decode == s.decode })
	if err != nil {
		return err
	}
	switch {
	case r.w != nil:
		return r.w.Step(&s.StepRow)
	case r.opts.Dir != "" && len(r.early) < maxEarly:
		r.early = append(r.early, s.StepRow)
	}
	return nil
}

// stepOf returns the step of a decode of this process; -1 if there is none or it was too long ago.
func (r *Recorder) stepOf(decode uint32) int32 {
	if n := r.recent[int(decode)%len(r.recent)]; decode != 0 && n.decode == decode {
		return n.step
	}
	return -1
}

// decoding reports whether a decode is open.
func (r *Recorder) decoding(decode uint32) bool {
	for _, s := range r.steps {
		if s.decode == decode {
			return true
		}
	}
	return false
}

func (r *Recorder) fileSeen(e event.FileSeen) error {
	if _, known := r.files[e.File]; known {
		return nil
	}
	for _, m := range r.models {
		for _, p := range m.parts {
			if p.id == e.ID {
				r.files[e.File] = p
				return r.knownFile(e.File)
			}
		}
	}
	opened, split, err := openModel(e.Path, e.ID)
	if err == nil && (len(r.models) == maxRecorded || len(r.rows)+opened.Tensors() > maxStructureRows) {
		err = fmt.Errorf("with its %d tensors the capture would have %d models with %d tensors, more than it holds",
			opened.Tensors(), len(r.models)+1, len(r.rows)+opened.Tensors())
	}
	switch {
	case errors.Is(err, gguf.ErrNotGGUF):
		r.opts.Log.Debug("not a model", "file", e.Path)
		r.files[e.File] = nil
		return r.knownFile(e.File)
	case err != nil && len(r.models) > 0:
		r.opts.Log.Warn("the target reads weights of another file, which is not recorded", "file", e.Path, "error", err)
		r.files[e.File] = nil
		return r.knownFile(e.File)
	case err != nil:
		return fmt.Errorf("read the structure of the model: %w", err)
	}
	rows, err := r.addModel(opened, split, hostless(e.Path, cmp.Or(e.PID, int32(r.opts.PID))))
	if err != nil {
		return err
	}
	r.rows = append(r.rows, rows...)
	for _, m := range r.models {
		for _, p := range m.parts {
			if p.id == e.ID {
				r.files[e.File] = p
			}
		}
	}
	if err := r.write(rows); err != nil {
		return err
	}
	return r.knownFile(e.File)
}

// addModel adds a file that is seen for the first time: as a new model (with the parts that belong
// to it), or as a part of a known one. It returns its structure rows.
func (r *Recorder) addModel(opened *gguf.Model, split splitKey, path string) ([]tables.StructureRow, error) {
	files, err := identify(opened)
	if err != nil {
		return nil, err
	}
	for i, m := range r.models {
		if m.accepts(opened, split) {
			info := &r.meta.Models[i]
			info.Bytes += opened.Size()
			info.Tensors += opened.Tensors()
			info.Files = append(info.Files, files...)
			return m.add(opened.Files, len(r.rows)), nil
		}
	}
	m := newModel(len(r.models), opened)
	m.split = split
	r.models = append(r.models, m)
	r.meta.Models = append(r.meta.Models, tables.ModelInfo{
		Path: path, Fingerprint: files[0].Fingerprint, Bytes: opened.Size(), Tensors: opened.Tensors(), Files: files,
	})
	return m.add(opened.Files, len(r.rows)), nil
}

// write creates the capture directory, or adds rows to its structure table.
func (r *Recorder) write(rows []tables.StructureRow) error {
	if r.opts.Dir == "" {
		return nil
	}
	if err := r.describe(); err != nil {
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
		return r.pageInsCome()
	}
	return nil
}

func (r *Recorder) op(o *event.Op) error {
	s := r.current
	if s == nil || s.Thread != o.TID {
		s = r.steps[o.TID]
		r.current = s
	}
	if s == nil || s.decode != o.Decode {
		r.orphans++ // the capture began during a decode, or the decode's begin was lost
		return nil
	}
	reads, err := r.resolve(o)
	if err != nil {
		return err
	}
	var selected []int32 // nil: not known
	if o.IDs != nil {
		if selected, err = r.gathered(o, reads); err != nil {
			return err
		}
	}
	r.accesses = r.accesses[:0]
	most := 0 // index of the access that reads most
	for i := range reads {
		rd := &reads[i]
		if rd.embeds && len(o.IDs) > 0 && len(o.IDs) <= maxTokens {
			s.look(o.Graph, len(o.IDs))
		}
		if rd.embeds && !r.opts.NoTokenIDs { // collect the step's token ids
			s.blind = s.blind || selected == nil || r.tokenIDs+len(o.IDs) > maxTokenIDs
			if !s.blind {
				before := len(s.TokenIDs)
				for _, id := range o.IDs {
					if id >= 0 {
						s.TokenIDs = append(s.TokenIDs, id)
					}
				}
				r.tokenIDs += len(s.TokenIDs) - before
			}
		}
		if rd.part == nil {
			continue
		}
		r.accesses = append(r.accesses, rd.Access)
		a := &r.accesses[len(r.accesses)-1]
		if err := r.access(a, o, s, rd, selected); err != nil {
			return err
		}
		if a.Bytes > r.accesses[most].Bytes {
			most = len(r.accesses) - 1
		}
	}
	for i := range r.accesses {
		a := &r.accesses[i]
		a.Stall = o.Stall
		if o.Stall > 0 && i != most {
			a.Stall = 0
		}
		if err := r.writeAccess(a); err != nil {
			return err
		}
	}
	if o.Stall > 0 && len(r.accesses) > 0 {
		if r.rereads == nil {
			r.rereads = &rereadAccount{}
		}
		r.rereads.stall(r.accesses[most].Tensor, o.Stall)
	}
	if err := r.writeBuffers(o, s); err != nil {
		return err
	}
	return r.opCame(o)
}

// resolve finds the sources of an op in the models.
func (r *Recorder) resolve(o *event.Op) ([]read, error) {
	if o.Memo != nil {
		if known, ok := o.Memo.Value.(*resolved); ok && known.by == r && known.files == len(r.files) {
			return known.reads, nil
		}
	}
	reads := r.reads[:0]
	if o.Memo != nil {
		reads = nil
	}
	for i := range o.Sources {
		rd, err := r.resolveSource(o, &o.Sources[i])
		if err != nil {
			return nil, err
		}
		reads = append(reads, rd)
	}
	if o.Memo != nil {
		o.Memo.Value = &resolved{by: r, files: len(r.files), reads: reads}
	} else {
		r.reads = reads
	}
	return reads, nil
}

func (r *Recorder) resolveSource(o *event.Op, src *event.Source) (read, error) {
	rd := read{embeds: o.GatherDim == 1 && !o.ByExpert && src.Name == event.TokenEmbeddings}
	if !src.InFile {
		return rd, r.outsideSource(o, src)
	}
	p := r.files[src.File]
	if p == nil {
		return rd, nil
	}
	t, err := findTensor(src, p.file, p.model.files())
	if err != nil {
		return rd, fmt.Errorf("op %s: %w", o.Name, err)
	}
	row := p.rows[t]
	rd.part = p
	rd.Access = tables.Access{Op: o.Name, Tensor: row, DataPtr: src.Data, Offset: src.Offset, Bytes: src.Bytes(),
		Layer: r.rows[row].Layer}
	rd.slices, rd.stride = src.Slices(o.GatherDim)
	p.model.sawLayer(int(rd.Layer))
	return rd, nil
}

// gathered returns the distinct ids of an op, in order of first occurrence: each is the number of a
// slice that the op's first source has. Negative ids are left out, as a fork of ggml gathers
// nothing by them. It returns nil if the ids are not known: when a graph is reported before it
// runs, those that it is about to compute are not there yet.
func (r *Recorder) gathered(o *event.Op, reads []read) ([]int32, error) {
	r.selected = distinct(r.selected[:0], o.IDs)
	if o.GatherDim <= 0 || len(reads) == 0 || reads[0].part == nil {
		return r.selected, nil
	}
	for _, id := range r.selected {
		if int64(id) < reads[0].slices {
			continue
		}
		if o.Duration < 0 {
			r.unknownIDs++
			return nil, nil
		}
		return nil, fmt.Errorf("%w: op %s gathers slice %d of %s, which has %d", event.ErrLayout, o.Name, id,
			r.rows[reads[0].Tensor].Name, reads[0].slices)
	}
	return r.selected, nil
}

func (r *Recorder) writeAccess(a *tables.Access) error {
	r.served++
	if r.csv != nil {
		if err := r.csv.access(a, r.rows[a.Tensor].Name); err != nil {
			return err
		}
	}
	if r.w == nil {
		return nil
	}
	return r.w.Access(a)
}

func (r *Recorder) writeBuffers(o *event.Op, s *step) error {
	if r.w == nil {
		return nil
	}
	for i := range o.Buffers {
		b := &o.Buffers[i]
		if b.Bytes() >= event.MaxBytes {
			return fmt.Errorf("%w: op %s touches %q of type %v with %v elements", event.ErrLayout, o.Name, b.Name,
				b.Type, b.NE)
		}
		row := tables.BufferRow{
			Timestamp: o.Time - r.begun, Step: s.Step, Op: o.Name, Seq: int64(o.Seq), Buffer: b.Name, Root: b.Root,
			Kind: tables.KindOf(b), Write: b.Write, DataPtr: b.Data, Bytes: b.Bytes(),
		}
		if err := r.w.Buffer(&row); err != nil {
			return err
		}
	}
	return nil
}

func (r *Recorder) outsideSource(o *event.Op, src *event.Source) error {
	if _, known := r.outside[src.Name]; known || len(r.outside) >= maxOutside {
		return nil
	}
	n := src.Bytes()
	if n >= event.MaxBytes || !isPrintable(src.Name) {
		return fmt.Errorf("%w: op %s reads %q of type %v with %v elements", event.ErrLayout, o.Name, src.Name,
			src.Type, src.NE)
	}
	r.outside[src.Name] = n
	if len(r.models) == 1 { // with several models it is unknown which one the weight belongs to
		r.models[0].sawLayer(layerOf(src.Name))
	}
	return nil
}

// access completes the row of one source.
func (r *Recorder) access(a *tables.Access, o *event.Op, s *step, rd *read, selected []int32) error {
	a.Timestamp, a.Duration = o.Time-r.begun, max(o.Duration, tables.NotObserved)
	a.Step, a.Token, a.Phase, a.Thread, a.Context = s.Step, s.Token, s.Phase, o.TID, s.Context
	if o.GatherDim <= 0 || o.GatherDim > 3 {
		return nil
	}
	if s.first != nil && !o.ByExpert && selected != nil {
		if slices.Equal(o.IDs, rd.part.model.warmup) {
			s.Phase, s.first.prompted = tables.PhaseWarmup, false
			r.phase = s.Phase
		}
		s.first = nil
		a.Phase = s.Phase
	}
	if selected == nil {
		a.Bytes = min(a.Bytes, min(gatherable(o, s, rd.part.model), rd.slices)*rd.stride)
		return nil
	}
	a.Bytes = min(a.Bytes, min(int64(len(selected)), rd.slices)*rd.stride)
	switch {
	case o.ByExpert:
		a.Experts = selected
		return r.route(o, s, a.Layer)
	case len(selected) == 1 && !r.opts.NoTokenIDs:
		a.Offset += int64(selected[0]) * rd.stride
	}
	return nil
}

// gatherable is how many rows or experts the batch's tokens gather, or at most can.
func gatherable(o *event.Op, s *step, m *model) int64 {
	if o.Selects > 0 {
		return int64(o.Selects)
	}
	n := max(int64(s.Tokens), 1)
	if o.ByExpert {
		if m.used == 0 || s.Phase == tables.PhaseWarmup { // the warm-up uses all experts
			return 1 << 32
		}
		n *= int64(m.used)
	}
	return n
}

// look notes that a graph looks up the embeddings of so many tokens: a part of the batch begins.
func (s *step) look(graph uint32, tokens int) {
	if s.looked != graph {
		s.looked = graph
		s.begin(tokens)
	}
}

// enter notes that a graph tells something of so many tokens, and reports whether that was told
// before. A part of the batch may be several graphs, with a GPU for instance. Where the embeddings
// are not looked up (the target may pass them), it begins with the first that is told, and the next
// one when that is told again.
func (s *step) enter(what choice, graph uint32, tokens int) (again bool) {
	last, known := s.told[what]
	if known && (last == graph || s.looked != 0) {
		return true
	}
	if known || s.tokens == 0 {
		s.begin(tokens)
	}
	if s.told == nil {
		s.told = map[choice]uint32{}
	}
	s.told[what] = graph
	return false
}

func (s *step) begin(tokens int) {
	s.base = min(s.base+s.tokens, maxTokens) // no real batch comes near
	s.tokens = int32(tokens)
	clear(s.told)
}

// position is the index within the batch of a row of so many that a layer has in the current part;
// or tables.NoPosition. The last layers of many models compute only the tokens whose output is
// wanted. If that is one, of one sequence, it is the last.
func (s *step) position(row, rows int) int32 {
	switch {
	case rows == int(s.tokens):
		return s.base + int32(row)
	case rows == 1 && len(s.Sequences) <= 1:
		return s.base + s.tokens - 1
	}
	return tables.NoPosition
}

// routerInput writes a row of the hidden table. The warm-up, which uses all experts, has none.
func (r *Recorder) routerInput(e event.RouterInput) error {
	if r.meta.Hidden == nil {
		r.meta.Hidden = &tables.Hidden{}
	}
	h := r.meta.Hidden
	s := r.steps[e.TID]
	switch {
	case s == nil || s.decode != e.Decode || s.Phase == tables.PhaseWarmup, e.Layer < 0, len(e.Values) == 0 ||
		len(e.Values) > tables.MaxHidden,
		e.Row < 0 || e.Row >= e.Rows || e.Rows > maxTokens, h.Values != 0 && h.Values != len(e.Values):
		h.LeftOut++
		return nil
	}
	s.enter(choice{layer: e.Layer, point: e.Point}, e.Graph, e.Rows)
	if r.w == nil {
		h.LeftOut++
		return nil
	}
	h.Values = len(e.Values)
	h.Rows++
	return r.w.Hidden(&tables.HiddenRow{Step: s.Step, Token: s.Token, Layer: e.Layer, Point: e.Point,
		Position: s.position(e.Row, e.Rows), Values: e.Values})
}

// route writes the routing of a layer, once per part of the batch, because gate, up and down use
// the same choice. The warm-up uses all experts, so it has no routing.
func (r *Recorder) route(o *event.Op, s *step, layer int32) error {
	if o.IDRows == 0 || s.enter(choice{layer: layer, chose: true}, o.Graph, o.IDRows) || r.w == nil ||
		s.Phase == tables.PhaseWarmup {
		return nil
	}
	slots := max(len(o.IDs)/o.IDRows, 1)
	for i, expert := range o.IDs {
		if expert < 0 {
			continue
		}
		row := tables.Route{Step: s.Step, Token: s.Token, Layer: layer, Slot: int32(i % slots), Expert: expert,
			Position: s.position(i/slots, o.IDRows)}
		if err := r.w.Route(&row); err != nil {
			return err
		}
	}
	return nil
}

// distinct appends each id that is not negative once, in order of first occurrence, to out, which
// must be empty. The result is not nil.
func distinct(out, ids []int32) []int32 {
	if out == nil {
		out = make([]int32, 0, min(len(ids), 64))
	}
	if len(ids) <= 32 { // the usual case: the experts of a token
		for _, id := range ids {
			if id >= 0 && !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
		return out
	}
	seen := make(map[int32]bool, len(ids))
	for _, id := range ids {
		if id >= 0 && !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

// describe updates meta.
func (r *Recorder) describe() error {
	r.meta.Seconds = r.now().Sub(r.meta.Started).Seconds()
	if r.opts.Libraries != nil {
		r.meta.Libraries = r.opts.Libraries()
	}
	if r.opts.Target != nil {
		r.meta.Target = r.opts.Target(r.meta.PID)
	}
	if r.opts.Surroundings != nil && len(r.meta.Models) > 0 {
		memory, disk := r.opts.Surroundings(r.meta.PID, r.meta.Models[0].Path, r.over)
		if memory != nil {
			r.meta.Memory = memory
		}
		if disk != nil {
			r.meta.Disk = disk
		}
	}
	r.meta.Outside = tables.Outside{Tensors: len(r.outside)}
	for name, size := range r.outside {
		r.meta.Outside.Bytes += size
		if r.meta.Outside.Example == "" || name < r.meta.Outside.Example {
			r.meta.Outside.Example = name
		}
	}
	for i, m := range r.models {
		m.describeLayers(&r.meta.Models[i], r.stepOver)
	}
	r.meta.Rows = int64(r.served)
	if r.rereads != nil {
		r.meta.Rereads = r.rereads.summary(r.rows, rereadTop)
	}
	if r.opts.Counters != nil {
		var err error
		if r.meta.Counters, err = r.opts.Counters(); err != nil {
			return err
		}
	}
	r.meta.Counters.PageInsDropped = r.dropped + r.pending.lost
	r.meta.Counters.Clipped += r.unknownIDs
	return nil
}

// Finish ends the capture and returns its description. Call it once, after the last event. cause is
// why the capture stopped early, nil if it did not. With the errors ErrOutside and ErrNoDecode the
// capture is still valid and holds what was seen.
func (r *Recorder) Finish(cause error) (*tables.Meta, error) {
	open := make([]*step, 0, len(r.steps))
	for _, s := range r.steps {
		open = append(open, s)
	}
	slices.SortFunc(open, func(a, b *step) int { return cmp.Compare(a.Step, b.Step) })
	var errs []error
	for _, s := range open {
		errs = append(errs, r.endStep(s, tables.NotObserved))
	}
	if r.csv != nil {
		errs = append(errs, r.csv.flush())
	}
	r.over = true
	errs = append(errs, r.describe())
	if r.w != nil {
		errs = append(errs, r.w.Close(&r.meta, cause == nil && cmp.Or(errs...) == nil))
	} else {
		r.meta.Dir = ""
	}
	if err := cmp.Or(errs...); err != nil { // the first: the others follow from it, or are the same
		return nil, err
	}
	if r.orphans > 0 {
		r.opts.Log.Warn("ops came before the first whole decode and were left out", "ops", r.orphans)
	}
	switch {
	case r.meta.Outside.Tensors > 0:
		return &r.meta, event.OutsideError(r.meta.Outside.Tensors, r.meta.Outside.Bytes)
	case r.meta.Steps == 0:
		return &r.meta, fmt.Errorf("%w: the target ended, or the capture did, before llama_decode was called",
			event.ErrNoDecode)
	case len(r.models) == 0:
		return &r.meta, fmt.Errorf("%w: no op of the %d decodes read a weight from a mapped file: do the layers run on a GPU? Use -ngl 0", event.ErrOutside, r.meta.Steps)
	}
	return &r.meta, nil
}
