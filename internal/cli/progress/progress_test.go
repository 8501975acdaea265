package progress

// This file tests the bar on a terminal and in a pipe.

import (
	"bytes"
	"fmt"
	"strings"
	"tensorcast/internal/testenv"
	"testing"
	"time"

	"go.uber.org/goleak"
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
		t.Errorf("wrote %q, want only the warning", b.String())
	}
}

func TestBar(t *testing.T) {
	for name, o := range map[string]Options{
		"quiet": {Quiet: true, What: "working"},
		"shown": {What: "working", Width: 12},
	} {
		term := testenv.NewTerminal(t)
		p := New(term.Slave, o)
		time.Sleep(2 * redrawInterval) // the line is redrawn by itself
		for i := range int64(4) {
			p.Update(i+1, 4, "adding up\x1b[2J")
			time.Sleep(redrawInterval)
		}
		fmt.Fprintln(p, "warning\x1b[2J")
		p.Close()
		p.Update(1, 4, "too late")
		screen := term.End()
		if name == "quiet" {
			if screen != `warning\x1b[2J`+"\r\n" {
				t.Errorf("quiet: the screen has %q, want only the warning", screen)
			}
			continue
		}
		for _, want := range []string{"working", "adding up", "3/4", `\x1b[2J`, "\rwarning\\x1b[2J\r\n"} {
			if !strings.Contains(screen, want) {
				t.Errorf("no %q on the screen: %q", want, screen)
			}
		}
		last := screen[strings.LastIndex(strings.TrimSuffix(screen, "\r"), "\r"):]
		if strings.Contains(screen, "too late") || strings.Contains(screen, "\x1b[2J") ||
			strings.TrimSpace(last) != "" {
			t.Errorf("the line is left on the screen, or controls it: %q", screen)
		}
	}
}
