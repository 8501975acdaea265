package readahead

// This file decides what is done for a target, from the moment in which it loads its model to its end.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"tensorcast/gguf"
	"tensorcast/internal/proc"
)

// Choice says what is to be done.
type Choice string

const (
	Auto   Choice = "auto"           // ByFile where the target's faults read much, if that can be done
	Leave  Choice = "leave"          // nothing
	FD     Choice = Choice(ByFile)   // ByFile at any readahead
	Inject Choice = Choice(ByInject) // ByInject at any readahead
	much          = 512 << 10        // bytes that faults may read around themselves without harm: half of what the smallest experts weigh that are worth it
)

// Choices are all of them, the usual one first.
func Choices() []string { return []string{string(Auto), string(Leave), string(FD), string(Inject)} }

// Target is a process whose faults are to read less. Its methods are for one goroutine.
type Target struct {
	process *proc.Process
	choice  Choice
	command []string
	log     *slog.Logger

	stopWatch context.CancelFunc
	watching  sync.WaitGroup
	watched   chan struct{} // closed when what the target maps from then on is noticed, or is not going to be
	mu        sync.Mutex    // while watching
	files     []opened
	guardian  *guardian
	seen      bool // what faults read was seen: told.Before
	told      *Outcome
	view      *view // since Prepare; nil: there is none
}

// opened is a file that the target has, or had, open and mapped, and which is open here, too.
type opened struct {
	path string // as the target's memory map has it
	file *os.File
}

// Outcome says what was done. Sizes are bytes that a fault reads around itself at most.
type Outcome struct {
	Way    Way    `json:"way"` // empty: nothing was done
	Before int64  `json:"before_bytes"`
	After  int64  `json:"after_bytes"`
	Why    string `json:"why,omitempty"` // nothing was done, or it was not undone
	Closed bool   `json:"closed"`        // nothing was done, as the target had closed the file before anybody took it
	Undone bool   `json:"undone"`
}

func (t *Outcome) String() string {
	size := func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	if t.Way == "" {
		return "what the target's faults read around themselves was left as it is: " + t.Why
	}
	line := fmt.Sprintf("the target's faults read up to %s around themselves, %s before (%s)", size(t.After), size(t.Before), t.Way)
	switch {
	case t.Undone:
		return line + "; undone"
	case t.Why != "":
		return line + "; not undone: " + t.Why
	}
	return line
}

// New prepares to do something for a process, of which it takes the model's files as soon as it has mapped them.
// command starts this program again, as a guardian, see Guard. The process belongs to the caller, and must stay open
// until End, which has to be called.
func New(process *proc.Process, choice Choice, command []string, log *slog.Logger) *Target {
	t := &Target{process: process, choice: choice, command: command, log: log, watched: make(chan struct{})}
	ctx := context.Background()
	ctx, t.stopWatch = context.WithCancel(ctx)
	if choice == Auto || choice == FD {
		t.watching.Go(func() { t.watch(ctx) })
	} else {
		close(t.watched)
	}
	return t
}

// AwaitWatch waits until all that the target maps from now on is noticed, where the kernel tells of that. A command that
// was started is let run behind it: one whose model is in memory loads it in some 15 ms, which is less than the
// kernel takes to begin, see proc.EaseWatch.
func (t *Target) AwaitWatch() { <-t.watched }

// Where the kernel does not tell what the target maps, it is looked at in an interval that is a lookShare of the time
// since the first look, within bounds: llama.cpp closes its file when it has loaded the model, which takes 30 ms for
// 100 MB. A target that has waited for longer than soon is looked at less often: large models take longer.
const (
	lookShare  = 200
	laterShare = 20
	leastLook  = time.Millisecond
	mostLook   = 250 * time.Millisecond
	soon       = time.Second
	// A target may map something all the time. Looks take at most 1/restShare of the time, and lookGrace besides: it
	// maps a lot when it starts, its model at the end of that.
	restShare = 20
	lookGrace = 200 * time.Millisecond
)

// watch takes model files that the target maps and has open still, until ctx is done. It has a thread to itself
// meanwhile, so that it is not behind what others wait for.
func (t *Target) watch(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, niceness); err != nil {
		t.log.Debug("the target may close its file unseen", "error", err)
	}
	defer func() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0) }()
	t.lookOnce() // a target that loads its model already does not wait until it is watched
	maps, err := t.process.WatchMaps()
	close(t.watched)
	if err != nil {
		t.log.Debug("the target is looked at now and then for what it maps", "error", err)
		t.lookOften(ctx)
		return
	}
	defer func() {
		if err := maps.Close(); err != nil {
			t.log.Debug("cannot stop noticing what the target maps", "error", err)
		}
	}()
	watched, looked := time.Now(), time.Duration(0)
	for err == nil {
		began := time.Now()
		t.lookOnce() // the first time for what was mapped before it was watched
		took, rest := time.Since(began), leastLook
		if looked += took; looked > lookGrace+time.Since(watched)/restShare {
			rest = max(rest, restShare*took)
		}
		pause := time.NewTimer(rest)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		err = maps.Wait(ctx)
	}
	if ctx.Err() == nil && !errors.Is(err, proc.ErrNoProcess) {
		t.log.Debug("what the target maps is not noticed any more", "error", err)
	}
}

// lookOften looks in an interval until ctx is done.
func (t *Target) lookOften(ctx context.Context) {
	for began := time.Now(); ctx.Err() == nil; {
		t.lookOnce()
		passed := time.Since(began)
		pause := max(passed/lookShare, leastLook)
		if passed > soon {
			pause = passed / laterShare
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(pause, mostLook)):
		}
	}
}

// lookOnce takes what is to be had now.
func (t *Target) lookOnce() {
	if err := t.take(); err != nil {
		t.log.Debug("cannot look for the file with which the target maps its model", "error", err)
	}
}

// niceness is that of the watching thread.
const niceness = -15

// take looks once.
func (t *Target) take() error {
	names, err := t.process.Descriptors()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, path := range names {
		if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/dev/") || slices.ContainsFunc(t.files, func(o opened) bool { return o.path == path }) {
			delete(names, i)
		}
	}
	if len(names) == 0 {
		return nil
	}
	mappings, err := proc.Mappings(t.process.PID())
	if err != nil {
		return err
	}
	for i, path := range names {
		if !slices.ContainsFunc(mappings, func(m proc.Mapping) bool { return m.Path == path && !m.Executable }) {
			continue
		}
		f, err := t.process.Descriptor(i)
		if err != nil {
			return err
		}
		if !model(f) {
			if err := f.Close(); err != nil {
				return err
			}
			continue
		}
		t.files = append(t.files, opened{path, f})
	}
	return nil
}

// model says whether a file is a model.
func model(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular() && gguf.Is(f)
}

var (
	// errClosed says that the open file with which the model was mapped is not to be had any more.
	errClosed = errors.New("the target has closed the file with which it mapped its model before anybody took it")
	// errLittle says that there is nothing to be won.
	errLittle = errors.New("it is little")
	errLeft   = errors.New("so it was asked")
)

// Prepare does what it can of the first Shrink. It has no effect if that was called.
func (t *Target) Prepare() {
	if t.choice == Leave || t.told != nil || t.view != nil {
		return
	}
	var err error
	if t.view, err = newView(); err != nil {
		t.log.Debug("Shrink will find that out, too", "error", err)
	}
}

func (t *Target) closeView() {
	if t.view != nil {
		t.view.close()
		t.view = nil
	}
}

// Shrink makes what the target reads around its faults small, in the files of which it maps the first byte at these
// addresses. What was not done is told: a target that is not helped in this way is helped in others. Once that was
// so, it does nothing.
func (t *Target) Shrink(bases []uint64) {
	switch {
	case t.guardian != nil:
		if err := t.guardian.set(true); err != nil {
			t.stop(err)
		}
		return
	case t.told != nil && (t.told.Way == "" || t.told.Why != ""):
		return
	}
	t.told = &Outcome{}
	t.endWatch()
	if err := t.begin(bases); err != nil {
		t.told.Way, t.told.Why, t.told.Closed = "", err.Error(), errors.Is(err, errClosed)
		level := slog.LevelInfo
		if t.choice != Auto && !errors.Is(err, errLeft) {
			level = slog.LevelWarn
		}
		t.log.Log(context.Background(), level, t.told.String(), "before", t.told.Before)
		return
	}
	t.log.Info(t.told.String())
}

func (t *Target) begin(bases []uint64) error {
	if t.choice == Leave {
		return errLeft
	}
	areas, err := Areas(t.process.PID(), bases)
	if err != nil {
		return err
	}
	if t.view == nil {
		if t.view, err = newView(); err != nil {
			return err
		}
	}
	defer t.closeView()
	states, err := t.view.look(areas)
	if err != nil {
		return err
	}
	t.told.Before, t.seen = most(states), true
	if t.choice == Auto && t.told.Before <= much {
		return errLittle
	}
	c := change{Way: ByFile, PID: t.process.PID()}
	var files []*os.File
	if t.choice == Inject {
		c.Way = ByInject
		for i, a := range areas {
			c.Areas = append(c.Areas, advice{a, states[i].advised})
		}
	} else if files, err = t.changeOf(&c, areas, states); err != nil {
		return err
	}
	if t.guardian, err = start(t.command, c, files); err != nil {
		return err
	}
	if states, err = t.view.look(areas); err != nil {
		return err
	}
	t.told.Way, t.told.After = c.Way, most(states)
	if t.told.After >= t.told.Before && t.told.Before > 0 {
		return fmt.Errorf("it did not change: the mapping has another open file (%d bytes still)", t.told.After)
	}
	return nil
}

// most is what a fault reads in any of some areas.
func most(states []state) (bytes int64) {
	for _, s := range states {
		bytes = max(bytes, s.reads())
	}
	return bytes
}

// reads is what a fault reads: one page where the target has advised that it reads at random.
func (s *state) reads() int64 {
	if s.Random {
		return int64(os.Getpagesize())
	}
	return s.bytes
}

// changeOf completes a change of the files that areas are mapped with.
func (t *Target) changeOf(c *change, areas []Area, states []state) (files []*os.File, err error) {
	for i, a := range areas {
		at := slices.IndexFunc(t.files, func(o opened) bool { return o.path == a.Path })
		if at < 0 {
			return nil, errClosed
		}
		f := t.files[at].file
		if slices.Contains(files, f) {
			continue
		}
		s := setting{Disk: settingOf(states[i].dev), Was: states[i].bytes >> 10}
		if s.Now, err = readDisk(s.Disk); err != nil {
			return nil, err
		}
		files, c.Files = append(files, f), append(c.Files, s)
	}
	return files, nil
}

// endWatch ends the watch for files.
func (t *Target) endWatch() {
	t.stopWatch()
	t.watching.Wait()
}

// Restore undoes it, until Shrink is called again.
func (t *Target) Restore() {
	if t.guardian == nil {
		return
	}
	if err := t.guardian.set(false); err != nil {
		t.stop(err)
	}
}

// Suspend does so for a long time: nobody guards meanwhile, or looks for files that the target maps later.
func (t *Target) Suspend() {
	t.endWatch()
	t.closeView()
	t.stop(nil)
}

// stop undoes what was done, and ends the guardian; for good if that is for an error.
func (t *Target) stop(err error) {
	if t.guardian == nil {
		return
	}
	failed := err != nil
	if err = t.guardian.end(); err != nil {
		t.log.Warn("cannot undo what was done about the target's readahead", "error", err)
		t.told.Why = err.Error()
	} else {
		t.told.Undone = true
	}
	if t.guardian = nil; failed && t.told.Why == "" {
		t.told.Why = "its guardian failed"
	}
}

// IsSmall says whether faults in the target's model read less than a quarter of a large folio around themselves now,
// for all that is known.
func (t *Target) IsSmall() bool {
	if t.told == nil || !t.seen {
		return false
	}
	if t.guardian != nil && t.guardian.little {
		return t.told.After <= much
	}
	return t.told.Before <= much
}

// End undoes what was done, and closes the target's files here. It says in the end what was done; nil if Shrink was not
// called.
func (t *Target) End() *Outcome {
	t.endWatch()
	t.stop(nil)
	for _, o := range t.files {
		if err := o.file.Close(); err != nil && !errors.Is(err, unix.EINTR) {
			t.log.Debug("cannot close the target's file", "error", err)
		}
	}
	t.files = nil
	t.closeView()
	return t.told
}
