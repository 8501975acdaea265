// Package process runs the commands of an experiment: each in a process group of its own, told to end by a signal, and killed as a whole
// if it does not.
package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Grace is how long a process may take to end when it is told to: to remove many probes takes seconds.
const Grace = 30 * time.Second

// Command is exec.CommandContext of a command in a process group of its own: a terminal's Ctrl-C does not reach it, and when ctx
// ends all of the group is killed.
func Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // for what keeps its output open
	return cmd
}

// Process is a command that was started. Its methods are safe for concurrent use.
type Process struct {
	PID    int
	Done   <-chan struct{} // closed when it has ended
	cmd    *exec.Cmd
	output Tail
	cancel context.CancelFunc
}

// Start starts a command, of whose output the end is kept. It must be ended by Kill, whatever became of it; the end of ctx kills it too.
func Start(ctx context.Context, args ...string) (*Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	p := &Process{cmd: Command(ctx, args...), Done: done, cancel: cancel}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if err := p.cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	p.PID = p.cmd.Process.Pid
	go func() {
		defer close(done)
		_ = p.cmd.Wait() // State has it
	}()
	return p, nil
}

// Ended reports whether it has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// Stop tells the group to end by a signal, and waits. It fails after Grace.
func (p *Process) Stop(signal syscall.Signal) error {
	_ = unix.Kill(-p.PID, signal) // it may have ended by now
	select {
	case <-p.Done:
		return nil
	case <-time.After(Grace):
		return fmt.Errorf("it did not end within %v of %v: %s", Grace, signal, p.LastLine())
	}
}

// Kill kills the group, if it has not ended, and waits.
func (p *Process) Kill() {
	p.cancel()
	<-p.Done
}

// State is how it ended; it is there when Done is closed.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// LastLine is what it said last, for a message.
func (p *Process) LastLine() string {
	if text := p.output.LastLine(); text != "" {
		return text
	}
	return "it said nothing"
}

// Tail keeps the end of what is written to it. It is safe for concurrent use.
type Tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 4096

// Write never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if cut := len(t.b) - tailBytes; cut > 0 {
		t.b = append(t.b[:0], t.b[cut:]...)
	}
	return len(b), nil
}

// LastLine is the last line that is not empty.
func (t *Tail) LastLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.b))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
