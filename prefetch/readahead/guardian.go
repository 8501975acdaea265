package readahead

// This file is the guardian, a process that makes a change and undoes it, and what its starter says to it.
// The guardian reads the change from its standard input as a line of JSON, then steps that undo the change
// and make it again. It answers each on its standard output. At the end of its input it undoes the change.
// The input ends with the starter, however that ends.
//
// Either process may be killed. If the guardian is killed in the moment in which a disk's setting is changed,
// the starter restores the setting. The setting stays changed only if both are killed in that moment.

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

// step asks for the change, or asks to undo it.
type step struct {
	Small bool `json:"little"` // faults are to read little: the change is made
}

// answer says what became of a step. Error is empty after success.
type answer struct {
	Error string `json:"error"`
}

// firstTargetFD is the first of the guardian's descriptors that are the target's files.
const firstTargetFD = 3

// Guard is the guardian. A program calls it when it is started by the command that New was given.
func Guard(in io.Reader, out io.Writer) error {
	// It ends when it has undone its change, and no earlier.
	signal.Ignore(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
	// Its starter offers itself to the out-of-memory killer. The guardian must survive that, and is small. If
	// this is refused, it works all the same.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	return runGuardian(in, out, fadvise)
}

// runGuardian is Guard with a replaceable fadvise.
func runGuardian(in io.Reader, out io.Writer, advise adviseFunc) error {
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
		f := os.NewFile(uintptr(firstTargetFD+i), c.Files[i].Disk)
		defer f.Close()
		files = append(files, f)
	}
	applied := c.apply(files, advise)
	answerStep(out, applied)
	small := true // even if only a part of the change was made
	for s := (step{}); applied == nil && steps.Decode(&s) == nil; {
		var err error
		if s.Small {
			small, err = true, c.apply(files, advise)
		} else if err = c.undo(files, advise); err == nil {
			small = false
		}
		answerStep(out, err)
	}
	var undone error
	if small {
		undone = c.undo(files, advise)
	}
	answerStep(out, undone)
	return errors.Join(applied, undone)
}

// answerStep says what became of a step, to whoever still listens.
func answerStep(out io.Writer, err error) {
	a := answer{}
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(out).Encode(a)
}

// guardian is a guardian that was started.
type guardian struct {
	change  change
	small   bool // the change is made, or may be
	files   []*os.File
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
}

// startGuardian starts a guardian by its command, and returns when it has made the change. files belong to
// the caller, and must stay open until end.
func startGuardian(command []string, c change, files []*os.File) (*guardian, error) {
	g := &guardian{change: c, small: true, files: files, cmd: exec.Command(command[0], command[1:]...)}
	g.cmd.ExtraFiles = files
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to this process's group does not reach it
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
		if err = g.awaitAnswer(); err == nil {
			return g, nil
		}
		return nil, errors.Join(err, g.end())
	}
	return nil, errors.Join(fmt.Errorf("tell the guardian of the readahead what to do: %w", err), g.end())
}

// ShrinkOwn makes reads of files read SmallKiB ahead. The caller must have opened them for itself, so that
// nobody else reads by them. A guardian, which command starts, does that and ends. It restores the disk's
// setting even if the caller is killed in that moment, and the caller does if the guardian is. It takes as
// long as that program takes to start.
func ShrinkOwn(command []string, files ...*os.File) error {
	c := change{Way: byOwn, PID: os.Getpid()}
	for _, f := range files {
		var stat unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
			return fmt.Errorf("stat %s: %w", f.Name(), err)
		}
		path := settingPath(uint64(unix.Major(stat.Dev))<<20 | uint64(unix.Minor(stat.Dev)))
		now, err := readSetting(path)
		if err != nil {
			return err
		}
		c.Files = append(c.Files, setting{Disk: path, Now: now, Was: now})
	}
	g, err := startGuardian(command, c, files)
	if err != nil {
		return err
	}
	return g.end()
}

// errGone says that the guardian ended without an answer.
var errGone = errors.New("the guardian of the readahead was killed")

// awaitAnswer waits until the guardian has done what it was asked to.
func (g *guardian) awaitAnswer() error {
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

// setSmall asks the guardian to make its change again, or to undo it. After an error it can only be ended.
func (g *guardian) setSmall(small bool) error {
	if g.small == small {
		return nil
	}
	g.small = true
	if err := json.NewEncoder(g.in).Encode(step{small}); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	if err := g.awaitAnswer(); err != nil {
		return err
	}
	g.small = small
	return nil
}

// maxUndoTime is how long undoing may take.
const maxUndoTime = 10 * time.Second

// end lets the guardian undo its change and end. If it was killed, the change is undone here.
func (g *guardian) end() error {
	late := time.AfterFunc(maxUndoTime, func() { _ = g.cmd.Process.Kill() })
	defer late.Stop()
	closed := g.in.Close()
	undone := g.awaitAnswer()
	_ = g.cmd.Wait() // its answer says what there is to say
	if errors.Is(undone, errGone) && !g.small {
		undone = nil
	} else if errors.Is(undone, errGone) {
		undone = errors.Join(g.change.recoverDisks(), g.change.undo(g.files, fadvise))
	}
	return errors.Join(closed, undone)
}
