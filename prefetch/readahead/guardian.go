package readahead

// This file is the process that makes a change and undoes it, and how it is talked to: the change in a line of JSON
// on its standard input, then steps, which undo it and make it again. What became of each it says on its standard
// output. At the end of its input, which comes however the one who has started it ends, it undoes the change.
//
// Of two processes either may be killed. If it is the guardian in the moment in which a disk's setting is changed,
// the other one restores that. Only if both are killed in that moment it stays as it is.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// step has the change made, or undone.
type step struct {
	Little bool `json:"little"` // made: faults read little
}

// answer is what became of a step.
type answer struct {
	Error string `json:"error"`
}

// firstFile is the guardian's first descriptor of the target's.
const firstFile = 3

// Guard is the guardian: a program calls it when it is started by the command that New was given.
func Guard(in io.Reader, out io.Writer) error {
	// It ends when it has undone its change, not before.
	signal.Ignore(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
	// Who has started it offers itself to the out-of-memory killer. It is small, and needed if that happens. Where
	// this is refused it works all the same.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	return guard(in, out, fadvise)
}

func guard(in io.Reader, out io.Writer, advise advise) error {
	steps := json.NewDecoder(in)
	var c change
	if err := steps.Decode(&c); err != nil {
		return fmt.Errorf("no change to make: %w", err)
	}
	if c.Way != ByFile && c.Way != ByInject && c.Way != byOwn {
		return fmt.Errorf("no change to make: %q is no way", c.Way)
	}
	var files []*os.File
	for i := range c.Files {
		f := os.NewFile(uintptr(firstFile+i), c.Files[i].Disk)
		defer f.Close()
		files = append(files, f)
	}
	applied := c.apply(files, advise)
	tell(out, applied)
	little := true // also if a part of it failed
	for s := (step{}); applied == nil && steps.Decode(&s) == nil; {
		var err error
		if s.Little {
			little, err = true, c.apply(files, advise)
		} else if err = c.undo(files, advise); err == nil {
			little = false
		}
		tell(out, err)
	}
	var undone error
	if little {
		undone = c.undo(files, advise)
	}
	tell(out, undone)
	return errors.Join(applied, undone)
}

// tell says what became of a step, to whoever still listens.
func tell(out io.Writer, err error) {
	a := answer{}
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(out).Encode(a)
}

// guardian is one that was started.
type guardian struct {
	change  change
	little  bool // the change is made, or may be
	files   []*os.File
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
}

// start starts a guardian by its command, and returns when it has made the change. files belong to the caller, and
// must stay open until undo.
func start(command []string, c change, files []*os.File) (*guardian, error) {
	g := &guardian{change: c, little: true, files: files, cmd: exec.Command(command[0], command[1:]...)}
	g.cmd.ExtraFiles = files
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends this process's group leaves it alone
	var err error
	if g.in, err = g.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, g.in.Close())
	}
	g.answers = json.NewDecoder(out)
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the guardian of the readahead: %w", err)
	}
	if err := json.NewEncoder(g.in).Encode(c); err == nil {
		err = g.answer()
		if err == nil {
			return g, nil
		}
		return nil, errors.Join(err, g.end())
	}
	return nil, errors.Join(fmt.Errorf("tell the guardian of the readahead what to do: %w", err), g.end())
}

// ShrinkOwn has files that the caller has opened for itself, and nobody else reads by, read little ahead: SmallKiB. A
// guardian does that, started by command and ended again: it restores the disk's setting even if the caller is killed
// in that moment, and the caller if the guardian is. It takes as long as that program takes to start.
func ShrinkOwn(command []string, files ...*os.File) error {
	c := change{Way: byOwn, PID: os.Getpid()}
	for _, f := range files {
		var stat unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
			return fmt.Errorf("stat %s: %w", f.Name(), err)
		}
		path := settingOf(uint64(unix.Major(stat.Dev))<<20 | uint64(unix.Minor(stat.Dev)))
		now, err := readDisk(path)
		if err != nil {
			return err
		}
		c.Files = append(c.Files, setting{Disk: path, Now: now, Was: now})
	}
	g, err := start(command, c, files)
	if err != nil {
		return err
	}
	return g.end()
}

// errGone says that the guardian ended without an answer.
var errGone = errors.New("the guardian of the readahead was killed")

func (g *guardian) answer() error {
	var a answer
	switch err := g.answers.Decode(&a); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, os.ErrClosed):
		return errGone
	case err != nil:
		return fmt.Errorf("the guardian of the readahead: %w", err)
	case a.Error != "":
		return errors.New(a.Error)
	}
	return nil
}

// set has the guardian make its change again, or undo it. After an error there is nothing to do but to end it.
func (g *guardian) set(little bool) error {
	if g.little == little {
		return nil
	}
	g.little = true
	if err := json.NewEncoder(g.in).Encode(step{little}); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	if err := g.answer(); err != nil {
		return err
	}
	g.little = little
	return nil
}

// guardTime is how long undoing may take.
const guardTime = 10 * time.Second

// end has the guardian undo its change, and end. One that was killed is stood in for.
func (g *guardian) end() error {
	late := time.AfterFunc(guardTime, func() { _ = g.cmd.Process.Kill() })
	defer late.Stop()
	closed := g.in.Close()
	undone := g.answer()
	_ = g.cmd.Wait() // what it has to say it has answered
	if errors.Is(undone, errGone) && !g.little {
		undone = nil
	} else if errors.Is(undone, errGone) {
		undone = errors.Join(g.change.recover(), g.change.undo(g.files, fadvise))
	}
	return errors.Join(closed, undone)
}
