package progress

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSilentInAPipe(t *testing.T) {
	var b bytes.Buffer
	p := New(&b, Options{What: "working"})
	p.Update(1, 2, "more")
	fmt.Fprintln(p, "warning")
	p.Close()
	p.Close()
	if b.String() != "warning\n" {
		t.Errorf("wrote %q", b.String())
	}
}

func TestBar(t *testing.T) {
	for name, o := range map[string]Options{"quiet": {Quiet: true, What: "working"}, "shown": {What: "working", Width: 12}} {
		term := newTerminal(t)
		p := New(term.slave, o)
		time.Sleep(2 * turn) // the line moves by itself
		for i := range int64(4) {
			p.Update(i+1, 4, "adding up")
			time.Sleep(turn)
		}
		fmt.Fprintln(p, "warning")
		p.Close()
		p.Update(1, 4, "too late")
		screen := term.end(t)
		if name == "quiet" {
			if screen != "warning\r\n" {
				t.Errorf("quiet: %q", screen)
			}
			continue
		}
		for _, want := range []string{"working", "adding up", "3/4", "\rwarning\r\n"} {
			if !strings.Contains(screen, want) {
				t.Errorf("no %q on the screen: %q", want, screen)
			}
		}
		last := screen[strings.LastIndex(strings.TrimSuffix(screen, "\r"), "\r"):]
		if strings.Contains(screen, "too late") || strings.TrimSpace(last) != "" {
			t.Errorf("the line stays: %q", screen)
		}
	}
}

// terminal is a pseudo-terminal and what was written to it.
type terminal struct {
	master, slave *os.File
	done          sync.WaitGroup
	screen        bytes.Buffer
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
		t.Fatal(err)
	}
	term := &terminal{master: master, slave: slave}
	term.done.Go(func() { _, _ = io.Copy(&term.screen, master) }) // fails when all that have the terminal open have closed it
	return term
}

// end closes the terminal, and returns what was written to it.
func (term *terminal) end(t *testing.T) string {
	t.Helper()
	if err := term.slave.Close(); err != nil {
		t.Fatal(err)
	}
	term.done.Wait()
	if err := term.master.Close(); err != nil {
		t.Fatal(err)
	}
	return term.screen.String()
}
