package main

// This file tests --exec --fabric, where a device holds a part of the target's weights.

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/fabric/backend/backendtest"
	"tensorcast/fabric/device"
	"tensorcast/internal/testenv"
)

// buildBackend builds the backend beside prefetchd.
var buildBackend = sync.OnceValue(func() error {
	path := filepath.Join(filepath.Dir(prefetchd), backendName)
	return backendtest.Compile(context.Background(), "../..", path, backendtest.Backend)
})

// handOver builds the backend, and starts the rig's target so that it uses it.
func (r *rig) handOver(flags ...string) *helper {
	r.t.Helper()
	if err := buildBackend(); err != nil {
		r.t.Skipf("the backend is not built: %v", err)
	}
	return r.exec(append([]string{"--as-root", "--always", "-v"}, flags...)...)
}

// device returns the pid of the process that holds weights for the rig's target, and its socket. The
// pid is 0 if there is none.
func (r *rig) device() (pid int, socket string) {
	r.t.Helper()
	pids, err := os.ReadFile(r.group.ProcsFiles()[0])
	if err != nil {
		r.t.Fatal(err)
	}
	for _, text := range strings.Fields(string(pids)) {
		line, _ := os.ReadFile(filepath.Join("/proc", text, "cmdline"))
		args := strings.Split(string(line), "\x00")
		if i := slices.Index(args, "--socket"); i >= 0 && slices.Contains(args, "--hold") {
			pid, _ = strconv.Atoi(text)
			return pid, args[i+1]
		}
	}
	return 0, ""
}

// TestHandOver checks that a device multiplies with weights that it holds in less memory, so that the
// target reads less of its file, and that the target survives what may happen to the device.
func TestHandOver(t *testing.T) {
	testenv.NeedQuiet(t)
	for _, test := range []struct {
		name   string
		tokens int
		during func(t *testing.T, r *rig, pid int, socket string)
	}{
		{"undisturbed", 60, func(t *testing.T, _ *rig, _ int, socket string) {
			before := deviceStatus(t, socket)
			testenv.WaitFor(t, "more products", func() bool {
				return deviceStatus(t, socket).Products > before.Products+200
			})
			const others = 16 // faults may be of the device's program, which lies in the page cache
			if s := deviceStatus(t, socket); s.Misses != 0 || s.Evictions != 0 ||
				s.Holding.Tensors != before.Holding.Tensors || s.Holding.Faults > before.Holding.Faults+others {
				t.Errorf("not all planes stay resident: %+v, %+v; before %+v", s, *s.Holding, *before.Holding)
			}
		}},
		{"killed", 70, func(t *testing.T, _ *rig, pid int, _ string) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}},
		{"a neighbour", 120, func(t *testing.T, r *rig, pid int, socket string) {
			before := deviceStatus(t, socket)
			// tail needs 30 MiB of memory, because it keeps what it may have to print.
			script := `for f in $GROUPS_FILES; do echo $$ > $f; done; exec tail -c 30M /dev/zero >/dev/null`
			c := exec.CommandContext(t.Context(), "sh", "-c", script)
			c.Env = append(os.Environ(), "GROUPS_FILES="+strings.Join(r.group.ProcsFiles(), " "))
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
			testenv.WaitFor(t, "the device to give memory back", func() bool {
				s, err := device.Ask(context.Background(), socket)
				return err != nil || s.Holding.Planes < before.Holding.Planes
			})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			deep := quantised // large enough that planes save memory
			deep.Layers = 10
			r := newRigOf(t, "deep", llamatest.Model(t, deep), 0.6, test.tokens)
			h := r.handOver("--fabric=fast")
			var pid int
			var socket string
			testenv.WaitFor(t, "products of the device", func() bool {
				if pid, socket = r.device(); pid == 0 {
					return false
				}
				s, err := device.Ask(t.Context(), socket)
				return err == nil && s.Products > 100
			})
			held := deviceStatus(t, socket).Holding.Bytes
			test.during(t, r, pid, socket)
			s := r.execSummary(h, 0)
			if s.Tokens == 0 || held < uint64(r.size/10) {
				t.Errorf("the device held %d bytes, want at least %d; summary %+v\n%s",
					held, r.size/10, s, h.stderr.String())
			}
			// Pieces that two tensors share are read twice.
			if test.name == "undisturbed" && s.PerToken > r.size-int64(held)/2 {
				t.Errorf("a token reads %d bytes of %d, of which the device holds %d\n%s",
					s.PerToken, r.size, held, h.stderr.String())
			}
			got, err := llama.ParseResult(r.stdout.Bytes())
			if err != nil || len(got.Tokens) != test.tokens {
				t.Errorf("%v: %s", err, r.stdout.Bytes())
			}
			if _, err := os.Stat(filepath.Dir(socket)); !os.IsNotExist(err) {
				t.Errorf("the device's directory still exists: %v", err)
			}
			if pid, _ := r.device(); pid != 0 {
				t.Errorf("the device still runs: %d", pid)
			}
		})
	}
}

// deviceStatus returns the status of the device at a socket.
func deviceStatus(t *testing.T, socket string) device.Status {
	t.Helper()
	s, err := device.Ask(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHandOverFits checks that no weights are handed over if the model fits, or if planes would be
// larger than the weights, and that the target then generates the same text.
func TestHandOverFits(t *testing.T) {
	for _, test := range []struct {
		share   float64
		profile string
	}{{2, "fast"}, {0.6, "accurate"}} {
		t.Run(test.profile, func(t *testing.T) {
			r := newRig(t, test.share, 30)
			h := r.handOver("--fabric=" + test.profile)
			_ = h.Wait()
			if stderr := h.stderr.String(); h.ProcessState.ExitCode() != 0 ||
				!strings.Contains(stderr, "nothing is handed to the Fabric") {
				t.Errorf("%v, %s", h.ProcessState, stderr)
			}
			got, err := llama.ParseResult(r.stdout.Bytes())
			if plain := plainRun(r); err != nil || got.Text != plain.Text {
				t.Errorf("the text is %q, want %q; %v", got.Text, plain.Text, err)
			}
		})
	}
}
