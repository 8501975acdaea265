package testenv

// This file provides pseudo-terminals for tests.

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

// CtrlC is the character that the keys Ctrl-C send.
const CtrlC = "\x03"

// Terminal is a pseudo-terminal of 80 columns. It keeps everything that was written to it.
type Terminal struct {
	Slave *os.File // the end that programs have open

	t      testing.TB
	master *os.File
	end    func() string

	mu     sync.Mutex
	screen bytes.Buffer
}

// NewTerminal opens a terminal until the test's end. It skips the test where there are no
// pseudo-terminals.
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

// read collects the output. It returns when all processes have closed the terminal.
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

// Text is the output up to now.
func (term *Terminal) Text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.screen.String()
}

// End closes the terminal, waits until other processes have closed it, too, and returns the output.
func (term *Terminal) End() string { return term.end() }

// Start starts a command in the terminal's foreground. Its standard output may go elsewhere. Its
// processes that still run at the test's end are killed.
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
	// A process that still runs would keep the terminal open.
	term.t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
}

// Press types keys.
func (term *Terminal) Press(keys string) {
	term.t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}
