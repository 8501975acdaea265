package trace

// This file captures several processes. Each process that computes has its own Recorder.

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"tensorcast/event"
	"tensorcast/internal/outfile"
	"tensorcast/trace/tables"
)

// Session records a target and, if RecorderOptions.Follow is set, the processes that it starts.
// With Follow, each process that decodes gets its own capture in Dir/<pid> (Dir/<pid>-2 if the pid is
// reused). Without, the capture is Dir itself and all events are attributed to the target. The
// timestamps of all captures count from the same moment. Dir is locked from NewSession to Finish, so only
// one Session writes to it. A Session is not safe for concurrent use.
type Session struct {
	opts   RecorderOptions
	clock  clock
	csv    *csvStream
	events uint64 // handled

	dir       *outfile.Dir   // nil if no capture is written
	dirUses   map[string]int // number of captures by directory name
	isCleared bool           // the captures of an earlier session have been deleted

	live      map[int32]*Recorder // by process; without Follow there is one, under 0
	recent    *Recorder           // the one that was used last
	recentPID int32               // the process of recent
	broken    map[int32]bool      // processes whose events are ignored, see passToRecorder

	ended     []*tables.Meta // descriptions of processes that decoded and have ended
	endedSums Status         // sums over processes that have ended
	// errs are the first maxErrors errors of processes that have ended or could not be recorded. moreErrs
	// counts the others.
	errs     []error
	moreErrs int
}

// NewSession returns a Session for a capture that begins now. It fails as Create does if there can be no
// capture in Dir, so that this is known before a command is run in vain. An earlier capture stays until
// the first weight is read.
func NewSession(opts RecorderOptions) (*Session, error) {
	c, err := startClock()
	if err != nil {
		return nil, err
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s := &Session{
		opts: opts, clock: c, live: map[int32]*Recorder{}, dirUses: map[string]int{},
		broken: map[int32]bool{},
	}
	if opts.CSV != nil {
		if s.csv, err = newCSVStream(opts.CSV); err != nil {
			return nil, err
		}
	}
	if opts.Dir != "" {
		if s.dir, err = openDir(opts.Dir, opts.Log); err != nil {
			return nil, err
		}
	}
	s.recorderOf(int32(opts.PID))
	return s, nil
}

// recorderOf returns the recorder of a process. It creates one if there is none.
func (s *Session) recorderOf(pid int32) *Recorder {
	if !s.opts.Follow {
		pid = 0
	} else if pid == 0 {
		pid = int32(s.opts.PID)
	}
	if s.recent != nil && s.recentPID == pid {
		return s.recent
	}
	if r := s.live[pid]; r != nil {
		s.recent, s.recentPID = r, pid
		return r
	}
	opts := s.opts
	if s.opts.Follow {
		opts.PID = int(pid)
		if int(pid) != s.opts.PID {
			opts.Command = nil
		}
	}
	r := newRecorder(opts, s.clock, s.csv)
	r.create = func(meta *tables.Meta, rows []tables.StructureRow) (*Writer, error) {
		return s.createWriter(pid, meta, rows)
	}
	s.live[pid] = r
	return r
}

// createWriter creates the capture of a process. Before the first one it deletes an earlier
// session's captures.
func (s *Session) createWriter(pid int32, meta *tables.Meta, rows []tables.StructureRow) (*Writer, error) {
	if !s.isCleared {
		if err := clearCapture(s.dir); err != nil {
			return nil, err
		}
		s.isCleared = true
	}
	if !s.opts.Follow {
		return createCapture(s.dir, meta, rows)
	}
	name := fmt.Sprint(pid)
	s.dirUses[name]++
	if n := s.dirUses[name]; n > 1 {
		name = fmt.Sprintf("%s-%d", name, n)
	}
	dir, err := s.dir.OpenSub(name, dirMode)
	if err != nil {
		return nil, err
	}
	if err := lockDir(dir); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		dir.Close()
		return nil, err
	}
	meta.Dir = dir.Path("")
	w, err := createCapture(dir, meta, rows)
	if err != nil {
		dir.Close()
		return nil, err
	}
	w.ownsDir = true
	return w, nil
}

// Handle processes the next event.
func (s *Session) Handle(ev event.Event) error {
	s.events++
	switch e := ev.(type) {
	case event.ProcessBegin:
		return s.beginProcess(e)
	case event.ProcessEnd:
		if s.opts.Follow {
			return s.endProcess(e.PID)
		}
		return nil
	case event.PageIn:
		return s.broadcastPageIn(e)
	case event.FileSeen:
		return s.passToRecorder(e.PID, e)
	case event.DecodeBegin:
		return s.passToRecorder(e.PID, e)
	case event.DecodeEnd:
		return s.passToRecorder(e.PID, e)
	case *event.Op:
		return s.passToRecorder(e.PID, e)
	case event.RouterInput:
		return s.passToRecorder(e.PID, e)
	}
	return nil
}

// passToRecorder passes an event to the recorder of its process. With Follow, a process whose
// struct layout is wrong ends only its own capture.
func (s *Session) passToRecorder(pid int32, e event.Event) error {
	if len(s.broken) > 0 && s.broken[pid] {
		return nil
	}
	err := s.recorderOf(pid).Handle(e)
	if err != nil && s.opts.Follow && errors.Is(err, event.ErrLayout) {
		s.broken[pid] = true
		s.noteError(pid, err)
		return s.finishProcess(pid, err)
	}
	return err
}

func (s *Session) beginProcess(e event.ProcessBegin) error {
	if !s.opts.Follow && e.PID != int32(s.opts.PID) {
		return nil
	}
	delete(s.broken, e.PID)
	r := s.recorderOf(e.PID)
	r.meta.Parent = int(e.Parent)
	if len(e.Command) > 0 {
		r.setCommand(e.Command) // for the target, too: it may be a wrapper that has become another program
	}
	return nil
}

// broadcastPageIn passes a page-in to all recorders, because only they know which files are their
// models'. For the recorders of other processes its cause is "other".
func (s *Session) broadcastPageIn(e event.PageIn) error {
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

// endProcess finishes the capture of a process. If the target has not decoded, its capture is kept open,
// because it is what Finish returns if no process decodes.
func (s *Session) endProcess(pid int32) error {
	r := s.live[pid]
	if r == nil || pid == int32(s.opts.PID) && r.meta.Steps == 0 {
		return nil
	}
	return s.finishProcess(pid, nil)
}

// finishProcess ends the capture of a process, and keeps its description if the process decoded.
func (s *Session) finishProcess(pid int32, cause error) error {
	r := s.live[pid]
	delete(s.live, pid)
	s.recent = nil
	meta, err := r.Finish(cause)
	if meta == nil {
		return err
	}
	s.endedSums.add(r)
	if errors.Is(err, event.ErrNoDecode) {
		return nil
	}
	s.ended = append(s.ended, meta)
	if err != nil {
		s.noteError(pid, err)
	}
	return nil
}

// maxErrors is how many errors Finish reports in full. A target may start any number of processes.
const maxErrors = 8

// noteError keeps an error of a process for Finish.
func (s *Session) noteError(pid int32, err error) {
	if len(s.errs) < maxErrors {
		s.errs = append(s.errs, fmt.Errorf("process %d: %w", pid, err))
	} else {
		s.moreErrs++
	}
}

// joinErrors joins the errors that were kept, and says how many more there were.
func (s *Session) joinErrors() error {
	if s.moreErrs == 0 {
		return errors.Join(s.errs...)
	}
	return errors.Join(append(slices.Clone(s.errs), fmt.Errorf("and %d more processes failed", s.moreErrs))...)
}

// Flush calls Recorder.Flush for each process.
func (s *Session) Flush() error {
	for _, r := range s.live {
		if err := r.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// Finish ends all captures. Call it once. cause is as in Recorder.Finish. Without Follow it returns one
// description. With Follow it returns those of the processes that decoded, in the order in which they
// ended. If none did, it returns the target's description with ErrNoDecode.
func (s *Session) Finish(cause error) ([]*tables.Meta, error) {
	defer s.releaseDir()
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
		if err := s.finishProcess(pid, cause); err != nil {
			return s.ended, err
		}
	}
	if len(s.ended) == 0 && nothing != nil {
		meta, err := nothing.Finish(cause)
		if meta == nil {
			return nil, err
		}
		return []*tables.Meta{meta}, errors.Join(s.joinErrors(), err)
	}
	return s.ended, s.joinErrors()
}

// releaseDir closes and unlocks the directory. It removes the directory if the session made it and wrote
// no capture.
func (s *Session) releaseDir() {
	switch {
	case s.dir == nil:
	case s.isCleared:
		s.dir.Close()
	default:
		s.dir.CloseAndRemoveEmpty()
	}
}

// Status is the progress of a running capture, to be shown on a terminal.
type Status struct {
	Events    uint64 // events handled
	Steps     int
	Tokens    int // tokens generated
	Rows      int64
	Phase     tables.Phase // phase of the latest step
	Running   bool         // whether a decode is open
	Processes int          // processes being recorded
	// Counters are sums over all processes. They are as old as the last flush.
	Counters event.Counters
}

func (st *Status) add(r *Recorder) {
	st.Steps += r.meta.Steps
	st.Tokens += r.meta.Tokens
	st.Rows += int64(r.rowsWritten)
}

// Status is cheap. Call it in the goroutine that calls Handle.
func (s *Session) Status() Status {
	st := s.endedSums
	st.Events = s.events
	for _, r := range s.live {
		st.add(r)
		if r.steps.count() > 0 || !st.Running {
			st.Phase = r.phase
		}
		st.Running = st.Running || r.steps.count() > 0
		st.Counters = r.meta.Counters
		if r.meta.Steps > 0 {
			st.Processes++
		}
	}
	return st
}
