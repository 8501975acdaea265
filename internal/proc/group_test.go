package proc

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGroup(t *testing.T) {
	p, err := StartGroup(t.Context(), "sh", "-c", "trap 'echo over; exit 3' TERM; echo ready; while :; do sleep 0.01; done")
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
		t.Errorf("ended %v, %v, %q", p.Ended(), p.State(), p.LastLine())
	}
}

// TestGroupKill: what a command has started is killed with it, and the end of the context does the same.
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
		// The children are not ours to reap: the group is gone when init has done so.
		if p.State().Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || p.LastLine() != "it said nothing" {
			t.Errorf("%v, %q", p.State(), p.LastLine())
		}
	}
	if _, err := StartGroup(t.Context(), "/nonexistent"); err == nil {
		t.Error("started what is not there")
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
		t.Errorf("%d bytes, last line %q", len(tail.String()), got)
	}
}
