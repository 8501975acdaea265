package readahead

// This file decides what is done for a target, from the moment in which it loads its model to its end.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
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

	files    []opened
	began    time.Time // of looking for files
	looked   time.Time
	over     bool // they are looked for no more
	guardian *guardian
	told     *Told
}

// opened is a file that the target has, or had, open and mapped, and which is open here, too.
type opened struct {
	path string // as the target's memory map has it
	file *os.File
}

// Told says what was done. Sizes are bytes that a fault reads around itself at most.
type Told struct {
	Way    Way    `json:"way"` // empty: nothing was done
	Before int64  `json:"before_bytes"`
	After  int64  `json:"after_bytes"`
	Why    string `json:"why,omitempty"` // nothing was done, or it was not undone
	Closed bool   `json:"closed"`        // nothing was done, as the target had closed the file before anybody took it
	Undone bool   `json:"undone"`
}

func (t *Told) String() string {
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

// New prepares to do something for a process. command starts this program again, as a guardian, see Guard. The process belongs to the caller, and must stay open until End.
func New(process *proc.Process, choice Choice, command []string, log *slog.Logger) *Target {
	return &Target{process: process, choice: choice, command: command, log: log}
}

// The target is looked at in an interval that is a lookShare of the time since the first look, within bounds: llama.cpp closes its file when it has loaded the model, which may take a tenth
// of a second.
const (
	lookShare = 40
	leastLook = 5 * time.Millisecond
	mostLook  = 250 * time.Millisecond
	forever   = time.Hour
)

// Look takes a model file that the target maps and has open still. Call it as often as Pause says.
func (t *Target) Look() {
	now := time.Now()
	if t.over || t.choice == Leave || t.choice == Inject || now.Sub(t.looked) < t.Pause() {
		return
	}
	if t.began.IsZero() {
		t.began = now
	}
	t.looked = now
	if err := t.take(); err != nil {
		t.log.Debug("cannot look for the file with which the target maps its model", "error", err)
	}
}

// Pause is how long Look need not be called.
func (t *Target) Pause() time.Duration {
	if t.over || t.choice == Leave || t.choice == Inject {
		return forever
	}
	return min(max(t.looked.Sub(t.began)/lookShare, leastLook), mostLook)
}

// take looks once.
func (t *Target) take() error {
	names, err := t.process.Descriptors()
	if err != nil {
		return err
	}
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

// Begin makes what the target reads around its faults small, in the files of which it maps the first byte at these addresses. What was not done is told: a target that is not helped in this
// way is helped in others. It does nothing if it has been called before.
func (t *Target) Begin(bases []uint64) {
	if t.told != nil {
		return
	}
	t.over, t.told = true, &Told{}
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
	states, err := look(areas)
	if err != nil {
		return err
	}
	t.told.Before = most(states)
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
	if states, err = look(areas); err != nil {
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

// Little says whether faults in the target's model read no more than Small around themselves, for all that is known after Begin, until End.
func (t *Target) Little() bool {
	return t.told != nil && t.told.Way != "" && !t.told.Undone && t.told.After <= Small<<10
}

// End undoes what was done, and closes the target's files here. It says in the end what was done; nil if Begin was not called.
func (t *Target) End() *Told {
	t.over = true
	if t.guardian != nil {
		if err := t.guardian.undo(); err != nil {
			t.told.Why = err.Error()
			t.log.Warn("cannot undo what was done about the target's readahead", "error", err)
		} else {
			t.told.Undone = true
		}
		t.guardian = nil
	}
	for _, o := range t.files {
		if err := o.file.Close(); err != nil && !errors.Is(err, unix.EINTR) {
			t.log.Debug("cannot close the target's file", "error", err)
		}
	}
	t.files = nil
	return t.told
}
