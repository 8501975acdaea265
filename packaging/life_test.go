package packaging_test

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

// cannot is machine.sh's exit status where there can be no such machine.
const cannot = 125

// A .deb lives on a machine that systemd has booted as life.sh says: it is installed, helps by both units, is installed again, and is purged while it helps. The machine is a copy of this one.
func TestLife(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("no .deb can be made: dpkg-deb is missing (Debian package dpkg)")
	}
	// On a disk, which /tmp need not be. What the copy changes in it stays.
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
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		var exit *exec.ExitError
		if err := cmd.Run(); errors.As(err, &exit) && exit.ExitCode() == cannot {
			return said.String(), cannot
		} else if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", command[0], err, &out, &said)
		}
		return out.String(), 0
	}
	run(nil, "go", "build", "-ldflags=-checklinkname=0", "-o", dir+"/bin/", "../cmd/...")
	run(nil, "make", "-C", "..", "libraries", "BIN="+dir+"/bin")
	run([]string{"BIN=" + dir + "/bin"}, "./dist.sh", dir, runtime.GOARCH)
	deb, err := filepath.Glob(dir + "/*.deb")
	if err != nil || len(deb) != 1 {
		t.Fatal(deb, err)
	}

	plan, err := synth.NewPlan(synth.Config{Layers: 12, Embd: 1024, FF: 4096, Heads: 16, KVHeads: 8, Type: gguf.Q8_0, Seed: 7}) // 200 MB
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
	const own = 32 << 20 // the server's memory besides the weights, about
	life, err := filepath.Abs("life.sh")
	if err != nil {
		t.Fatal(err)
	}
	out, code := run(nil, "./machine.sh", dir, life, deb[0], model, fmt.Sprint(info.Size()*7/10+own), in.Command(t.Context(), llama.Options{}).Path)
	if code == cannot {
		t.Skip(strings.TrimSpace(out))
	}
	t.Log("\n" + out)
	if !strings.HasSuffix(out, "nothing is left\n") {
		t.Error("it did not come to its end")
	}
}
