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

// All choices.
const (
	Auto   Choice = "auto"           // ByFile where the target's faults read much, if that can be done
	Leave  Choice = "leave"          // nothing
	FD     Choice = Choice(ByFile)   // ByFile at any readahead
	Inject Choice = Choice(ByInject) // ByInject at any readahead
)

// harmlessBytes is how much faults may read around themselves without harm: half of what the smallest experts
// weigh that are worth helping.
const harmlessBytes = 512 << 10

// Choices returns all choices, the default first.
func Choices() []string { return []string{string(Auto), string(Leave), string(FD), string(Inject)} }

// Target is a process whose faults are to read little. Its methods are for one goroutine.
type Target struct {
	process *proc.Process
	choice  Choice
	command []string // starts a guardian
	log     *slog.Logger

	// The watch for model files that the target maps.
	stopWatch context.CancelFunc
	watching  sync.WaitGroup
	watched   chan struct{} // closed when what the target maps from then on is noticed, or will not be
	mu        sync.Mutex    // guards files while watching
	files     []openedFile

	// What was done.
	view        *view // since Prepare; nil: there is none
	guardian    *guardian
	outcome     *Outcome // nil: Shrink was not called
	beforeKnown bool     // outcome.Before is known
}

// openedFile is a file that the target has, or had, open and mapped. It is open here, too.
type openedFile struct {
	path string // as the target's memory map has it
	file *os.File
}

// Outcome says what was done.
type Outcome struct {
	Way    Way    `json:"way"`           // empty: nothing was done
	Before int64  `json:"before_bytes"`  // bytes that a fault read around itself at most
	After  int64  `json:"after_bytes"`   // bytes that it read then
	Why    string `json:"why,omitempty"` // why nothing was done, or why it was not undone
	Closed bool   `json:"closed"`        // nothing was done: the target had closed the file before anybody took it
	Undone bool   `json:"undone"`
}

func (t *Outcome) String() string {
	size := func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	if t.Way == "" {
		return "what the target's faults read around themselves was left as it is: " + t.Why
	}
	line := fmt.Sprintf("the target's faults read up to %s around themselves, %s before (%s)",
		size(t.After), size(t.Before), t.Way)
	switch {
	case t.Undone:
		return line + "; undone"
	case t.Why != "":
		return line + "; not undone: " + t.Why
	}
	return line
}

// New prepares to change the readahead of a process. From now on it takes the model's files from the process,
// as soon as the process has mapped them. command starts this program again as a guardian, see Guard. The
// process belongs to the caller, and must stay open until End, which has to be called.
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

// AwaitWatch waits until everything that the target maps from now on will be noticed, where the kernel tells
// of that. Call it before a command is let run. A command whose model is in memory loads it in some 15 ms,
// which is less than the kernel takes to begin to tell, see proc.KeepWatchReady.
func (t *Target) AwaitWatch() { <-t.watched }

// Where the kernel does not tell what the target maps, the target is looked at in intervals. llama.cpp closes
// its file when it has loaded the model, which takes 30 ms for 100 MB. So an interval is a lookShare of the
// time since the first look, within bounds. A target that has waited for longer than longWait is looked at
// less often (laterShare), because large models take longer.
const (
	lookShare       = 200
	laterShare      = 20
	minLookInterval = time.Millisecond
	maxLookInterval = 250 * time.Millisecond
	longWait        = time.Second
	// A target may map something all the time. Looks take at most 1/restShare of the time, and lookGrace
	// besides: the target maps a lot when it starts, and its model at the end of that.
	restShare = 20
	lookGrace = 200 * time.Millisecond
)

// watch takes model files that the target maps and still has open, until ctx is done. It has a thread of its
// own, so that it need not wait for this process's other work.
func (t *Target) watch(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, watchNiceness); err != nil {
		t.log.Debug("the target may close its file unseen", "error", err)
	}
	defer func() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0) }()
	t.lookForFiles() // a target that loads its model already does not wait until it is watched
	maps, err := t.process.WatchMaps()
	close(t.watched)
	if err != nil {
		t.log.Debug("the target is looked at now and then for what it maps", "error", err)
		t.lookPeriodically(ctx)
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
		t.lookForFiles() // the first time for what was mapped before it was watched
		took, rest := time.Since(began), minLookInterval
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

// lookPeriodically looks in intervals until ctx is done.
func (t *Target) lookPeriodically(ctx context.Context) {
	for began := time.Now(); ctx.Err() == nil; {
		t.lookForFiles()
		passed := time.Since(began)
		pause := max(passed/lookShare, minLookInterval)
		if passed > longWait {
			pause = passed / laterShare
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(pause, maxLookInterval)):
		}
	}
}

// lookForFiles takes those files that can be taken now.
func (t *Target) lookForFiles() {
	if err := t.takeFiles(); err != nil {
		t.log.Debug("cannot look for the file with which the target maps its model", "error", err)
	}
}

// watchNiceness is the nice value of the watching thread.
const watchNiceness = -15

// takeFiles takes what the target has open and maps now.
func (t *Target) takeFiles() error {
	names, err := t.process.Descriptors()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, path := range names {
		known := slices.ContainsFunc(t.files, func(o openedFile) bool { return o.path == path })
		if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/dev/") || known {
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
		if !isModel(f) {
			if err := f.Close(); err != nil {
				return err
			}
			continue
		}
		t.files = append(t.files, openedFile{path, f})
	}
	return nil
}

// isModel says whether a file is a GGUF file.
func isModel(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular() && gguf.Is(f)
}

var (
	// errClosed says that the open file with which the model was mapped cannot be taken any more.
	errClosed = errors.New("the target has closed the file with which it mapped its model before anybody took it")
	// errUnmapped says that the target has unmapped the model: it is about to end, for instance.
	errUnmapped = errors.New("the target maps the model no more")
	// errLittle says that there is nothing to win.
	errLittle = errors.New("it is little")
	// errLeft says that the choice is Leave.
	errLeft = errors.New("so it was asked")
)

// Prepare does what it can of the first Shrink ahead of it. It has no effect after that.
func (t *Target) Prepare() {
	if t.choice == Leave || t.outcome != nil || t.view != nil {
		return
	}
	var err error
	if t.view, err = newView(); err != nil {
		t.log.Debug("it cannot be told yet what the target's faults read", "error", err)
	}
}

func (t *Target) closeView() {
	if t.view != nil {
		t.view.close()
		t.view = nil
	}
}

// Shrink makes the target's faults read little in the files of which the target maps the first bytes at these
// addresses. If that cannot be done, it is logged, and it is no error: the target is helped in other ways.
// Then later calls do nothing.
func (t *Target) Shrink(bases []uint64) {
	switch {
	case t.guardian != nil:
		if err := t.guardian.setSmall(true); err != nil {
			t.endGuardian(err)
		}
		return
	case t.outcome != nil && (t.outcome.Way == "" || t.outcome.Why != ""):
		return
	}
	t.outcome = &Outcome{}
	t.endWatch()
	if err := t.shrink(bases); err != nil {
		t.outcome.Way, t.outcome.Why, t.outcome.Closed = "", err.Error(), errors.Is(err, errClosed)
		level := slog.LevelInfo
		if t.choice != Auto && !errors.Is(err, errLeft) {
			level = slog.LevelWarn
		}
		t.log.Log(context.Background(), level, t.outcome.String(), "before", t.outcome.Before)
		return
	}
	t.log.Info(t.outcome.String())
}

// shrink is the first Shrink.
func (t *Target) shrink(bases []uint64) error {
	if t.choice == Leave {
		return errLeft
	}
	areas, err := findAreas(t.process.PID(), bases)
	if err != nil {
		return err
	}
	if len(areas) == 0 {
		return errUnmapped
	}
	if t.view == nil {
		if t.view, err = newView(); err != nil {
			return err
		}
	}
	defer t.closeView()
	states, err := t.view.readStates(areas)
	if err != nil {
		return err
	}
	t.outcome.Before, t.beforeKnown = maxFaultBytes(states), true
	if t.choice == Auto && t.outcome.Before <= harmlessBytes {
		return errLittle
	}
	c := change{Way: ByFile, PID: t.process.PID()}
	var files []*os.File
	if t.choice == Inject {
		c.Way = ByInject
		for i, a := range areas {
			c.Areas = append(c.Areas, advice{a, states[i].advised})
		}
	} else if files, err = t.addFiles(&c, areas, states); err != nil {
		return err
	}
	if t.guardian, err = startGuardian(t.command, c, files); err != nil {
		return err
	}
	if states, err = t.view.readStates(areas); err != nil {
		return err
	}
	t.outcome.Way, t.outcome.After = c.Way, maxFaultBytes(states)
	if t.outcome.After >= t.outcome.Before && t.outcome.Before > 0 {
		return fmt.Errorf("it did not change: the mapping has another open file (%d bytes still)", t.outcome.After)
	}
	return nil
}

// maxFaultBytes is the most that a fault reads in any of some areas.
func maxFaultBytes(states []state) (bytes int64) {
	for _, s := range states {
		bytes = max(bytes, s.faultBytes())
	}
	return bytes
}

// faultBytes is what a fault reads at most. It is one page where the target has advised that it reads at
// random.
func (s *state) faultBytes() int64 {
	if s.Random {
		return int64(os.Getpagesize())
	}
	return s.bytes
}

// addFiles adds the files with which areas are mapped to a change, and returns them.
func (t *Target) addFiles(c *change, areas []area, states []state) (files []*os.File, err error) {
	for i, a := range areas {
		at := slices.IndexFunc(t.files, func(o openedFile) bool { return o.path == a.Path })
		if at < 0 {
			return nil, errClosed
		}
		f := t.files[at].file
		if slices.Contains(files, f) {
			continue
		}
		s := setting{Disk: settingPath(states[i].dev), Was: states[i].bytes >> 10}
		if s.Now, err = readSetting(s.Disk); err != nil {
			return nil, err
		}
		files, c.Files = append(files, f), append(c.Files, s)
	}
	return files, nil
}

// endWatch ends the watch for model files.
func (t *Target) endWatch() {
	t.stopWatch()
	t.watching.Wait()
}

// Restore undoes Shrink, until Shrink is called again.
func (t *Target) Restore() {
	if t.guardian == nil {
		return
	}
	if err := t.guardian.setSmall(false); err != nil {
		t.endGuardian(err)
	}
}

// Suspend undoes Shrink for a long time. Meanwhile there is no guardian, and files that the target maps later
// are not taken.
func (t *Target) Suspend() {
	t.endWatch()
	t.closeView()
	t.endGuardian(nil)
}

// endGuardian undoes what was done, and ends the guardian. After an error it is not done again.
func (t *Target) endGuardian(err error) {
	if t.guardian == nil {
		return
	}
	failed := err != nil
	if err = t.guardian.end(); err != nil {
		t.log.Warn("cannot undo what was done about the target's readahead", "error", err)
		t.outcome.Why = err.Error()
	} else {
		t.outcome.Undone = true
	}
	if t.guardian = nil; failed && t.outcome.Why == "" {
		t.outcome.Why = "its guardian failed"
	}
}

// IsSmall says whether it is known that faults in the target's model read up to a quarter of a large folio
// around themselves now.
func (t *Target) IsSmall() bool {
	if t.outcome == nil || !t.beforeKnown {
		return false
	}
	if t.guardian != nil && t.guardian.small {
		return t.outcome.After <= harmlessBytes
	}
	return t.outcome.Before <= harmlessBytes
}

// End undoes what was done, and closes the target's files here. It returns what was done, or nil if Shrink
// was not called.
func (t *Target) End() *Outcome {
	t.endWatch()
	t.endGuardian(nil)
	for _, o := range t.files {
		if err := o.file.Close(); err != nil && !errors.Is(err, unix.EINTR) {
			t.log.Debug("cannot close the target's file", "error", err)
		}
	}
	t.files = nil
	t.closeView()
	return t.outcome
}
