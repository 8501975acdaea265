package packaging_test

// This file runs life.sh in a copy of this machine.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/testenv"
)

// cannot is machine.sh's exit status where no copy of the machine can be made.
const cannot = 125

// In a copy of this machine that systemd has booted, the .deb is installed, helps with both units,
// is installed again, and is purged while it helps. See life.sh.
func TestLife(t *testing.T) {
	testenv.NeedLife(t)
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("no .deb can be made: dpkg-deb is missing (Debian package dpkg)")
	}
	// The directory must be on a disk, and /tmp may not be. Changes that the copy makes in it stay.
	dir, err := os.MkdirTemp("/var/tmp", "tensorcast-life-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	run := func(env []string, command ...string) (stdout string, code int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Env = append(os.Environ(), env...)
		var out, messages bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &messages
		var exit *exec.ExitError
		if err := cmd.Run(); errors.As(err, &exit) && exit.ExitCode() == cannot {
			return messages.String(), cannot
		} else if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", command[0], err, &out, &messages)
		}
		return out.String(), 0
	}
	if err := os.Mkdir(dir+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ggufmap", "tracer", "analyze", "prefetchd"} {
		if err := testenv.BuildAt(filepath.Join(dir, "bin", name), "tensorcast/cmd/"+name); err != nil {
			t.Fatal(err)
		}
	}
	run(nil, "make", "-C", "..", "libraries", "BIN="+dir+"/bin")
	run([]string{"BIN=" + dir + "/bin"}, "./dist.sh", dir, runtime.GOARCH)
	deb, err := filepath.Glob(dir + "/*.deb")
	if err != nil || len(deb) != 1 {
		t.Fatal(deb, err)
	}

	plan, err := synth.NewPlan(synth.Config{ // 100 MB
		Layers: 6, Embd: 1024, FF: 4096, Heads: 16, KVHeads: 8, Type: gguf.Q8_0, Seed: 7,
	})
	if err != nil {
		t.Fatal(err)
	}
	model := dir + "/model.gguf"
	if err := plan.WriteFile(t.Context(), model, nil); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(model)
	if err != nil {
		t.Fatal(err)
	}
	const own = 24 << 20 // about the server's memory besides the weights
	life, err := filepath.Abs("life.sh")
	if err != nil {
		t.Fatal(err)
	}
	limit, driver := fmt.Sprint(info.Size()*7/10+own), in.Command(t.Context(), llama.Options{}).Path
	out, code := run(nil, "./machine.sh", dir, life, deb[0], model, limit, driver)
	if code == cannot {
		t.Skip(strings.TrimSpace(out))
	}
	t.Log("\n" + out)
	if !strings.HasSuffix(out, "nothing is left\n") {
		t.Error("life.sh did not come to its end")
	}
}
