package capture

// This file tests what is guessed from a target's command line, where its program is, and what is said of a target that
// has ended.

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
)

func TestHints(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	got := fileHints([]string{"llama-cli", "-m", "/models/a.gguf", "--model-draft=/models/b=c.gguf", "--model=d.gguf",
		"-m", "e=f.gguf"}, os.Getpid())
	for _, want := range []string{"/models/a.gguf", "/models/b=c.gguf", filepath.Join(dir, "d.gguf"),
		filepath.Join(dir, "e=f.gguf")} {
		if !slices.Contains(got, want) {
			t.Errorf("hints %q lack %q", got, want)
		}
	}
}

// A relative program is the one that the command itself finds, in its own directory.
func TestExecutablePath(t *testing.T) {
	for want, cmd := range map[string]*exec.Cmd{
		"/opt/bin/llama":   {Path: "bin/llama", Dir: "/opt"},
		"/usr/bin/llama":   {Path: "/usr/bin/llama", Dir: "/opt"},
		"bin/llama-server": {Path: "bin/llama-server"},
	} {
		if got := executablePath(cmd); got != want {
			t.Errorf("%q in directory %q is at %q, want %q", cmd.Path, cmd.Dir, got, want)
		}
	}
}

// A process that ended while it was attached to is one that there is no more, also if the kernel has ended it.
func TestEnded(t *testing.T) {
	killed := &cgroup.KilledError{Group: "/small", Limit: 250 << 20}
	for want, err := range map[string]error{
		"process 7 ended while probes were set: no such process": &endedError{7, nil},
		"process 7 ended while probes were set: the kernel has ended a process of its control group /small, " +
			"which has a limit of 250 MiB, for lack of memory": &endedError{7, killed},
	} {
		if err.Error() != want || !errors.Is(err, proc.ErrNoProcess) {
			t.Errorf("%q, want %q, of a process that has ended", err, want)
		}
	}
	if err := error(&endedError{7, killed}); !errors.As(err, &killed) {
		t.Errorf("%v does not say that it was killed", err)
	}
}
