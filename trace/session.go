package trace

// This file owns the capture of several processes: each that computes has a Recorder.

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"tensorcast/event"
	"tensorcast/trace/tables"
)

// Session records a target and, if RecorderOptions.Follow is set, the processes that it starts: each that decodes gets a capture of
// its own, in Dir/<pid> (Dir/<pid>-2 if the number comes again). Without Follow the capture is Dir itself, and all events are taken
// for the target's. Timestamps of all captures count from the same moment. It is not safe for concurrent use.
type Session struct {
	opts    RecorderOptions
	clock   clock
	csv     *csvStream
	live    map[int32]*Recorder // by process; without Follow, the one recorder under 0
	recent  *Recorder           // of those, the one that was asked for last,
	of      int32               // and its process
	ended   []*tables.Meta      // of processes that decoded
	errs    []error             // of those, and of processes that could not be recorded
	used    map[string]int      // captures by directory
	events  uint64
	last    Status // of processes that ended
	broken  map[int32]bool
	cleared bool // an earlier session's captures are gone
}

// NewSession begins now.
func NewSession(opts RecorderOptions) (*Session, error) {
	c, err := startClock()
	if err != nil {
		return nil, err
	}
	s := &Session{opts: opts, clock: c, live: map[int32]*Recorder{}, used: map[string]int{}, broken: map[int32]bool{}}
	if opts.CSV != nil {
		if s.csv, err = newCSVStream(opts.CSV); err != nil {
			return nil, err
		}
	}
	s.recorder(int32(opts.PID))
	return s, nil
}

// recorder returns that of a process, which is begun if need be.
func (s *Session) recorder(pid int32) *Recorder {
	if !s.opts.Follow {
		pid = 0
	} else if pid == 0 {
		pid = int32(s.opts.PID)
	}
	if s.recent != nil && s.of == pid {
		return s.recent
	}
	if r := s.live[pid]; r != nil {
		s.recent, s.of = r, pid
		return r
	}
	opts := s.opts
	if s.opts.Follow {
		opts.PID = int(pid)
		if int(pid) != s.opts.PID {
			opts.Command = nil
		}
		if opts.Dir != "" {
			opts.Dir = filepath.Join(opts.Dir, fmt.Sprint(pid))
		}
	}
	r := newRecorder(opts, s.clock, s.csv)
	if s.opts.Follow && s.opts.Dir != "" {
		r.place = s.place
	}
	s.live[pid] = r
	return r
}

// place decides on the directory of a capture that is about to be made. The first one takes the place of an earlier session's.
func (s *Session) place(dir string) (string, error) {
	if !s.cleared {
		if err := clearCapture(s.opts.Dir); err != nil {
			return "", err
		}
		s.cleared = true
	}
	name := filepath.Base(dir)
	s.used[name]++
	if n := s.used[name]; n > 1 {
		dir = fmt.Sprintf("%s-%d", dir, n)
	}
	return dir, nil
}

// Handle takes the next event.
func (s *Session) Handle(ev event.Event) error {
	s.events++
	switch e := ev.(type) {
	case event.ProcessBegin:
		return s.begin(e)
	case event.ProcessEnd:
		if s.opts.Follow {
			return s.end(e.PID)
		}
		return nil
	case event.PageIn:
		return s.pageIn(e)
	case event.FileSeen:
		return s.hand(e.PID, e)
	case event.DecodeBegin:
		return s.hand(e.PID, e)
	case event.DecodeEnd:
		return s.hand(e.PID, e)
	case *event.Op:
		return s.hand(e.PID, e)
	}
	return nil
}

// hand gives an event to its process's recorder. Where several processes are recorded, one that has a layout of its own does not end
// the others' captures.
func (s *Session) hand(pid int32, e event.Event) error {
	if len(s.broken) > 0 && s.broken[pid] {
		return nil
	}
	err := s.recorder(pid).Handle(e)
	if err != nil && s.opts.Follow && errors.Is(err, event.ErrLayout) {
		s.broken[pid] = true
		s.errs = append(s.errs, fmt.Errorf("process %d: %w", pid, err))
		return s.finish(pid, err)
	}
	return err
}

func (s *Session) begin(e event.ProcessBegin) error {
	if !s.opts.Follow && e.PID != int32(s.opts.PID) {
		return nil
	}
	delete(s.broken, e.PID)
	r := s.recorder(e.PID)
	r.meta.Parent = int(e.Parent)
	if len(e.Command) > 0 {
		r.meta.Command = e.Command // of the target too: what runs now, if it was started by another program
	}
	return nil
}

// pageIn tells every recorder: whose page came is known when it names its files. To the others the process is just another one.
func (s *Session) pageIn(e event.PageIn) error {
	for pid, r := range s.live {
		seen := e
		if s.opts.Follow && pid != e.PID {
			seen.Cause, seen.Decode, seen.Seq = event.CauseOther, 0, 0
		}
		if err := r.Handle(seen); err != nil {
			return err
		}
	}
	return nil
}

// end finishes the capture of a process. The target's goes on if it has not decoded: it is what there is to tell if nobody does.
func (s *Session) end(pid int32) error {
	r := s.live[pid]
	if r == nil || pid == int32(s.opts.PID) && r.meta.Steps == 0 {
		return nil
	}
	return s.finish(pid, nil)
}

// finish ends the capture of a process, and keeps its description if it decoded.
func (s *Session) finish(pid int32, cause error) error {
	r := s.live[pid]
	delete(s.live, pid)
	s.recent = nil
	meta, err := r.Finish(cause)
	if meta == nil {
		return err
	}
	s.last.add(r)
	if errors.Is(err, event.ErrNoDecode) {
		return nil
	}
	s.ended = append(s.ended, meta)
	if err != nil {
		s.errs = append(s.errs, fmt.Errorf("process %d: %w", pid, err))
	}
	return nil
}

// Flush is Recorder.Flush for all.
func (s *Session) Flush() error {
	for _, r := range s.live {
		if err := r.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// Finish ends all captures; call it once, as Recorder.Finish. Without Follow it returns one description. With it, it returns those of
// the processes that decoded, in the order in which they ended; ErrNoDecode means that none did, and the description is the
// target's then.
func (s *Session) Finish(cause error) ([]*tables.Meta, error) {
	if !s.opts.Follow {
		meta, err := s.live[0].Finish(cause)
		if meta == nil {
			return nil, err
		}
		return []*tables.Meta{meta}, err
	}
	var nothing *Recorder
	for _, pid := range slices.Sorted(maps.Keys(s.live)) {
		if r := s.live[pid]; pid == int32(s.opts.PID) && r.meta.Steps == 0 {
			nothing = r
			continue
		}
		if err := s.finish(pid, cause); err != nil {
			return s.ended, err
		}
	}
	if len(s.ended) == 0 && nothing != nil {
		meta, err := nothing.Finish(cause)
		if meta == nil {
			return nil, err
		}
		return []*tables.Meta{meta}, errors.Join(append(s.errs, err)...)
	}
	return s.ended, errors.Join(s.errs...)
}

// Status is what a line on a terminal tells about a capture that is under way.
type Status struct {
	Events    uint64 // handled
	Steps     int
	Tokens    int // generated
	Rows      int64
	Phase     tables.Phase // of the step that began last
	Running   bool         // a decode is under way
	Processes int          // that are recorded
	// Counters are at most a flush old, and those of all processes together.
	Counters event.Counters
}

func (st *Status) add(r *Recorder) {
	st.Steps += r.meta.Steps
	st.Tokens += r.meta.Tokens
	st.Rows += int64(r.served)
}

// Status is cheap. Call it where Handle is called.
func (s *Session) Status() Status {
	st := s.last
	st.Events = s.events
	for _, r := range s.live {
		st.add(r)
		if len(r.steps) > 0 || !st.Running {
			st.Phase = r.phase
		}
		st.Running = st.Running || len(r.steps) > 0
		st.Counters = r.meta.Counters
		if r.meta.Steps > 0 {
			st.Processes++
		}
	}
	return st
}
