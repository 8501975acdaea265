package capturetest

// This file tests the target itself.

import (
	"os/exec"
	"testing"
	"time"
)

// Each scenario ends by itself, one of them by a signal.
func TestScenariosRunAlone(t *testing.T) {
	f := New(t)
	for _, s := range f.Scenarios(t) {
		args := f.Args(NewModel(t), s, 20*time.Millisecond)
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		if (err != nil) != (s == "killed") || len(out) == 0 && err == nil {
			t.Errorf("%s: got %v and output %q, want an error only of scenario killed, and output otherwise", s, err,
				out)
		}
	}
}
