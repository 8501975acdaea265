package testenv

// This file gives tests a terminal.

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// CtrlC is what that key sends.
const CtrlC = "\x03"

// Terminal is a pseudo-terminal of 80 columns and what was written to it.
type Terminal struct {
	Slave *os.File // what a program has open

	t      testing.TB
	master *os.File
	end    func() string

	mu     sync.Mutex
	screen bytes.Buffer
}

// NewTerminal opens a terminal until the test's end. It skips the test where there are none.
func NewTerminal(t testing.TB) *Terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	term := &Terminal{Slave: slave, t: t, master: master}
	var reading sync.WaitGroup
	reading.Go(term.read)
	term.end = sync.OnceValue(func() string {
		slave.Close()
		reading.Wait()
		master.Close()
		return term.Text()
	})
	t.Cleanup(func() { term.end() })
	return term
}

// read ends when all that have the terminal open have closed it.
func (term *Terminal) read() {
	buf := make([]byte, 4096)
	for {
		n, err := term.master.Read(buf)
		if err != nil {
			return
		}
		term.mu.Lock()
		term.screen.Write(buf[:n])
		term.mu.Unlock()
	}
}

// Text is what was written up to now.
func (term *Terminal) Text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.screen.String()
}

// End closes the terminal, waits for those that have it open, and returns what was written.
func (term *Terminal) End() string { return term.end() }

// Start starts a command in the terminal's foreground. Its standard output may go elsewhere. What is left of it at the test's end is killed.
func (term *Terminal) Start(cmd *exec.Cmd) {
	term.t.Helper()
	cmd.Stdin, cmd.Stderr = term.Slave, term.Slave
	if cmd.Stdout == nil {
		cmd.Stdout = term.Slave
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		term.t.Fatal(err)
	}
	term.t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // else the terminal would stay open
}

// Press types.
func (term *Terminal) Press(keys string) {
	term.t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}
