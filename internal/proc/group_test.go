package proc

// This file tests process groups and the tail of their output.

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGroup(t *testing.T) {
	const script = "trap 'echo over; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
	p, err := StartGroup(t.Context(), "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	for p.LastLine() != "ready" && !p.Ended() {
	}
	if err := p.Stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !p.Ended() || p.State().ExitCode() != 3 || p.LastLine() != "over" {
		t.Errorf("ended %v, %v, %q; want true, exit status 3, over", p.Ended(), p.State(), p.LastLine())
	}
}

// Kill also kills the processes that the command has started, and so does the end of the context.
func TestGroupKill(t *testing.T) {
	for _, byContext := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		p, err := StartGroup(ctx, "sh", "-c", "sleep 600 & wait")
		if err != nil {
			t.Fatal(err)
		}
		if byContext {
			cancel()
			<-p.Done
		}
		p.Kill()
		cancel()
		// Its children are reaped by init, not by this test. The group exists until then.
		if p.State().Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || p.LastLine() != "it said nothing" {
			t.Errorf("state %v, last line %q; want killed, it said nothing", p.State(), p.LastLine())
		}
	}
	if _, err := StartGroup(t.Context(), "/nonexistent"); err == nil {
		t.Error("StartGroup of a program that does not exist gave no error")
	}
}

func TestTail(t *testing.T) {
	var tail Tail
	for _, s := range []string{strings.Repeat("a", tailBytes), "\n", "bc\n\n"} {
		if n, err := tail.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := tail.LastLine(); got != "bc" || len(tail.String()) != tailBytes {
		t.Errorf("%d bytes, last line %q; want %d, bc", len(tail.String()), got, tailBytes)
	}
}
