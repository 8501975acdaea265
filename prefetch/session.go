package prefetch

// This file has what all phases of one target share: its files, its contexts, what they read, and what was
// done so far.

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/pattern"
	"tensorcast/prefetch/follow"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
)

// session is what all phases of one target share.
type session struct {
	opts   Options
	levers pages.Levers
	now    func() time.Time
	log    *slog.Logger

	numbers  map[event.FileID]int // the levers' numbers of the files that events speak of
	files    []knownFile          // by the levers' number
	contexts follow.Contexts
	f        *followed // nil until a cycle is known
	seek     seek

	memory   memory
	meter    meter
	compared comparison
	loop     timing

	elsewhere  uint64 // what Target.Elsewhere said last
	heard      time.Time
	askedMaps  time.Time // when the target was last asked whether it still maps what is followed
	begun      bool      // Host.Begin was called
	refused    bool      // it was told that a target says something impossible
	unreadable bool      // it was told that a block cannot be read

	work    work
	token   usage // how memory was used when the last token ended
	history history
	journal journal
}

// knownFile is what is known about a file of the model.
type knownFile struct {
	id      event.FileID
	path    string // as it was opened
	size    int64
	weights models.Weights
	checked bool // weights is what the file says; otherwise only its size bounds what is read of it
}

func newSession(levers pages.Levers, opts Options) *session {
	s := &session{opts: opts, now: opts.Now, log: opts.Log, numbers: map[event.FileID]int{}}
	s.levers = &sparing{levers, &s.memory.census}
	s.contexts = follow.NewContexts(func(id event.FileID) (int, bool) {
		number, known := s.numbers[id]
		return number, known
	})
	s.memory.session = s
	s.loop.pace = plan.FirstPace
	return s
}

// openFile makes a file known, once, and returns its number.
func (s *session) openFile(path string, id event.FileID) (number int, err error) {
	number, size, err := s.levers.Open(path, id)
	if err != nil || number < len(s.files) {
		return number, err
	}
	f := knownFile{id: id, path: path, size: size}
	if s.opts.Target.Weights != nil {
		f.weights, err = s.opts.Target.Weights(path, id)
		if err != nil && !errors.Is(err, gguf.ErrNotGGUF) { // in another kind of file nothing is a weight
			return 0, err
		}
		f.checked = true
	}
	s.files = append(s.files, f)
	return number, nil
}

// holds says whether what is read lies within its file, and within one of the weights that the file says it
// has.
func (f *knownFile) holds(r *pattern.CycleRead) bool {
	return r.Offset >= 0 && r.Length > 0 && r.Length <= f.size && r.Offset <= f.size-r.Length &&
		(!f.checked || f.weights.Hold(r.Offset, r.End()))
}

// models are the model files that the target maps now.
func (s *session) models() (models.Model, error) {
	if s.opts.Target.Models == nil {
		return models.Model{}, nil
	}
	return s.opts.Target.Models()
}

// refuse tells, once, that the target says something impossible.
func (s *session) refuse(what string, args ...any) {
	if !s.refused {
		s.refused = true
		s.log.Warn(what, args...)
	}
}

// observe takes the target's next event, which every phase needs: it opens files, and follows decodes. The result is
// the step of the followed cycle that has ended now; without tokens if none has.
func (s *session) observe(e event.Event) (ended step, err error) {
	switch e := e.(type) {
	case event.FileSeen:
		number, err := s.openFile(e.Path, e.ID)
		if err != nil {
			return step{}, err
		}
		s.numbers[e.File] = number
	case event.DecodeBegin:
		s.beginDecode(e)
	case event.DecodeEnd:
		return s.endDecode(e)
	case *event.Op:
		return step{}, s.noteOp(e)
	}
	return step{}, nil
}

func (s *session) beginDecode(e event.DecodeBegin) {
	d := s.contexts.BeginDecode(e)
	f := s.f
	if f == nil || f.Decode != 0 && f.TID != e.TID || d.Context.Foreign {
		return // nothing is known yet, another context decodes at the same time, or this one has another cycle
	}
	begun := int64(0)
	if e.Tokens == 1 {
		begun = e.Time
	}
	f.began = s.now()
	f.BeginDecode(e.TID, e.Decode, begun, d.Context == s.contexts.Main)
	if f.mixture != nil {
		tokens := int(e.Tokens)
		if e.Warmup {
			tokens = 0
		}
		f.mixture.BeginDecode(tokens)
	}
}

func (s *session) endDecode(e event.DecodeEnd) (ended step, err error) {
	d := s.contexts.EndDecode(e)
	if d == nil {
		return step{}, nil
	}
	if f := s.f; f != nil && f.Decode == e.Decode && f.TID == e.TID {
		f.rested = s.now()
		f.EndDecode(e.Time)
		if f.mixture != nil {
			f.mixture.EndDecode()
		}
		switch {
		case e.Partial: // what it read is not known
		case f.HasMetCycle():
			if s.contexts.Main == nil { // the cycle came from a file: this is the context that has it
				s.contexts.Main = d.Context
			}
			ended = stepOf(d, e.Time)
			s.noteSpeed(ended, f.rested)
			if d.Context == s.contexts.Main && f.Unknown > f.cycle.Bytes()/unknownShare {
				d.Context.Rough = true // it reads more than was learned
			}
		case d.Context != s.contexts.Main:
			d.Context.Foreign = true
		case f.Met == 0:
			d.Context.Forget()
			return step{}, s.giveUp("a decode read nothing of what was learned")
		}
	}
	if next := s.contexts.CountDecode(d.Context); next != nil {
		return step{}, s.follow(next, "the context that was followed decodes no more", step{})
	}
	if s.f == nil { // it is learned from, and had no help
		s.noteSpeed(stepOf(d, e.Time), s.now())
	}
	return ended, s.learnFrom(d, e.Time)
}

// unknownShare of what a cycle reads may be read besides before it is learned again.
const unknownShare = 64

// stepOf is a decode as a step, which ended at a time in ns. The warm-up is none: it reads all experts of a mixture.
func stepOf(d *follow.Decode, ended int64) step {
	if d.Warmup || d.Tokens <= 0 {
		return step{}
	}
	return step{int(d.Tokens), max(ended-d.Began, 1)}
}

// noteOp takes an op: a lesson learns from it, and the cursor moves on.
func (s *session) noteOp(o *event.Op) (err error) {
	d := s.contexts.OpenDecode(o.TID)
	if d == nil || d.Number != o.Decode {
		return nil
	}
	if d.Lesson != nil {
		d.Lesson.NoteOp(o, s.contexts.File)
	}
	f := s.f
	followed := f != nil && f.Decode == o.Decode && f.TID == o.TID
	if !followed && d.Lesson == nil {
		return nil
	}
	pattern.ReadsOf(o, func(source int, r pattern.CycleRead) bool {
		from := &o.Sources[source]
		file, known := s.numbers[from.File]
		if !known {
			return true
		}
		base := from.Data - uint64(from.Offset)
		if d.Lesson != nil {
			if _, known := d.Lesson.Bases[file]; !known {
				d.Lesson.Bases[file] = base
			}
		}
		if followed && r.Experts && f.mixture != nil {
			f.mixture.NoteRead(file, r.Offset)
		}
		if !followed || r.Gathers() {
			return true
		}
		if !f.NoteRead(file, r.Offset, o, r.Nanos) {
			if r.File = file; s.files[file].holds(&r) {
				f.Unknown += r.Length
			}
			return true
		}
		if f.Begun != 0 {
			f.glance.note(f.Now-1, f.Reads, o, r.Nanos)
		}
		if f.bases[file] != base {
			followed, err = s.noteBase(d, file, base)
		}
		return err == nil
	})
	return err
}

// noteBase is told that a decode reads a file of the cycle at another address than the known one. It says
// whether the decode is still followed.
func (s *session) noteBase(d *follow.Decode, file int, base uint64) (followed bool, err error) {
	if s.f.bases[file] == 0 { // the cycle came from a file, before the model was mapped
		s.f.setBase(file, base)
		return true, nil
	}
	twice, err := s.f.isMappedTwice(file, base)
	if err != nil {
		return false, err
	}
	if twice {
		s.f.setBase(file, base) // a page is paged out through the mapping that it was read by
		return true, nil
	}
	if d.Context == s.contexts.Main {
		d.Context.Forget()
		return false, s.giveUp("the model was mapped anew")
	}
	// Another context with a mapping of its own: the model was loaded a second time, or again.
	s.f.Decode = 0
	d.Context.Forget()
	d.Context.Foreign, d.Context.Elsewhere = true, true
	return false, nil
}

// giveUp says that what was learned is no longer so: the phase changes to learn.
func (s *session) giveUp(why string) error { return &change{&learnPhase{s: s}, why} }

// drop releases everything that is held of the cycle that is followed, and follows none.
func (s *session) drop() error {
	f := s.f
	if f == nil {
		return nil
	}
	f.keepScores(true)
	s.work.add(f)
	s.f, s.contexts.Main, s.contexts.Stored, s.token = nil, nil, nil, usage{}
	s.seek.guessed = false
	if f.loading != nil {
		if err := f.endLoading(); err != nil {
			return err
		}
	}
	return f.releaseAll()
}

// judge stands back if the target cannot be helped.
func (s *session) judge() error {
	if s.opts.Target.Judge == nil {
		return nil
	}
	if err := s.opts.Target.Judge(); err != nil {
		return s.standBack(&StandBack{Reason: Judged, Err: err})
	}
	return nil
}

// judgeWinnable stands back if the target cannot be helped, or needs no help.
func (s *session) judgeWinnable() error {
	if err := s.judge(); err != nil {
		return err
	}
	fits, err := s.f.fits()
	if err != nil || fits == nil {
		return err
	}
	return s.standBack(fits)
}

// isPaused says whether somebody wants the target to be left alone.
func (s *session) isPaused() bool { return s.opts.Paused != nil && s.opts.Paused() }

// budget is the user's cap of what is kept, in bytes; 0: there is none.
func (s *session) budget() int64 {
	if s.opts.Share != nil {
		return s.opts.Share()
	}
	return s.opts.Budget
}

// standBack changes to the phase that holds nothing.
func (s *session) standBack(stood *StandBack) error {
	return &change{&standBackPhase{learnPhase: learnPhase{s: s}, stood: stood}, string(stood.Reason)}
}

// readsOther says whether the target may have begun to read other weights since it was asked last. Then no
// context's cycle is known any more.
func (s *session) readsOther() bool {
	if s.opts.Target.Elsewhere == nil {
		return false
	}
	now := s.opts.Target.Elsewhere()
	if now == s.elsewhere {
		return false
	}
	s.elsewhere = now
	s.contexts.ForgetCycles()
	return true
}

// checkStored says that a stored cycle reads only weights. Its reads have the levers' numbers.
func (s *session) checkStored(c *pattern.Cycle) error {
	var whole int64
	for i := range c.Reads {
		r := &c.Reads[i]
		if !s.files[r.File].holds(r) {
			return fmt.Errorf("the pattern reads %d bytes at %d as %q, which are no weight of its model",
				r.Length, r.Offset, r.Tensor)
		}
		if whole += r.Length; whole > plan.MaxCycleBytes {
			return errors.New("the pattern reads more than any token of a model can")
		}
	}
	return nil
}
