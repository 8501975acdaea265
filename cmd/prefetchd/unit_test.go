package main

// This file tests prefetchd with the capabilities that its systemd unit leaves it, and with each of
// them missing.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
)

// smallReadaheadText is what prefetchd prints when it has limited the target's fault-around reads.
const smallReadaheadText = "the target's faults read up to"

// startPaused starts the target in its cgroup as start does, but the target loads nothing before
// load is called.
func (r *rig) startPaused() (load func()) {
	r.t.Helper()
	script := `for f in $GROUPS_FILES; do echo $$ > $f; done; read -r go; exec "$0" "$@" < /dev/null`
	cmd := exec.Command("sh", append([]string{"-c", script}, r.in.Command(r.t.Context(), r.options).Args...)...)
	cmd.Env = append(os.Environ(), "GROUPS_FILES="+strings.Join(r.group.ProcsFiles(), " "))
	cmd.Stdout, cmd.Stderr = &r.stdout, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.target = cmd
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return func() {
		if _, err := fmt.Fprintln(in); err != nil {
			r.t.Fatal(err)
		}
	}
}

// hasEnded reports whether prefetchd has ended. Its status is still there for Wait.
func (h *helper) hasEnded() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, h.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != nil || info.Signo != 0
}

// TestUnitCapabilities checks that the unit's capabilities are enough to help a target that has more
// of them, and whose model belongs to another user and is readable by nobody else. Without any one of
// them something fails, as the unit's comments say. So the unit has no more than are needed.
func TestUnitCapabilities(t *testing.T) {
	testenv.NeedReadahead(t) // faults that read little anyway are left as they are
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv is missing (Debian package util-linux)")
	}
	unit, err := os.ReadFile("../../packaging/systemd/tensorcast-prefetchd@.service")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.+)$`).FindSubmatch(unit)
	if line == nil {
		t.Fatal("the unit limits no capabilities")
	}
	capabilities := strings.Fields(strings.ToLower(strings.ReplaceAll(string(line[1]), "CAP_", "")))

	data, err := os.ReadFile(llamatest.Model(t, model))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "of-another-user.gguf")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}

	// failures has, for each capability, whether what fails without it was seen.
	failures := map[string]func(h *helper, ended error) bool{
		"bpf": func(h *helper, ended error) bool {
			return ended != nil && strings.Contains(h.stderr.String(), "lacks CAP_BPF")
		},
		"perfmon": func(h *helper, ended error) bool {
			return ended != nil && strings.Contains(h.stderr.String(), "lacks CAP_PERFMON")
		},
		"sys_nice": func(h *helper, ended error) bool {
			return ended != nil && strings.Contains(h.stderr.String(), "lacks CAP_SYS_NICE")
		},
		"sys_ptrace": func(h *helper, _ error) bool { return !strings.Contains(h.stderr.String(), smallReadaheadText) },
		"dac_read_search": func(h *helper, ended error) bool {
			return ended != nil && strings.Contains(h.stderr.String(), "open the model: ")
		},
		"fowner": func(h *helper, ended error) bool {
			return ended == nil && strings.Contains(h.stderr.String(), "may not page out")
		},
	}
	for name := range failures {
		if !slices.Contains(capabilities, name) {
			t.Errorf("the unit does not have %s, but it is needed", name)
		}
	}
	for _, without := range append([]string{""}, capabilities...) {
		t.Run("without "+without, func(t *testing.T) {
			r := newDenseRig(t, "another user's", path, 0.4, 12)
			load := r.startPaused()
			set := "-all"
			for _, c := range capabilities {
				if c != without {
					set += ",+" + c
				}
			}
			h := &helper{Cmd: exec.Command(setpriv, "--no-new-privs", "--bounding-set", set, "--inh-caps", "-all",
				prefetchd, "--wait", "--pid", fmt.Sprint(r.target.Process.Pid), "--always", "-v", "--json")}
			h.Stdout, h.Stderr = &h.stdout, &h.stderr
			if err := h.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = h.Process.Kill(); _ = h.Wait() })
			testenv.WaitFor(t, "prefetchd to wait, or to end", func() bool {
				return h.hasEnded() || h.isSettled()
			})
			load()
			r.finish()
			if without != "" {
				if failed := failures[without]; failed == nil {
					t.Errorf("this test does not know what fails without %s", without)
				} else if err := h.Wait(); !failed(h, err) {
					t.Errorf("nothing failed without %s: %v\n%s", without, err, h.stderr.String())
				}
				return
			}
			s := h.summary(t)
			// On a busy machine the target has closed its file before prefetchd can take it. A capability that is
			// missing makes another error.
			late := strings.Contains(h.stderr.String(), "cannot look for the file with which the target maps its model") &&
				strings.Contains(h.stderr.String(), "bad file descriptor")
			if s.Tokens == 0 || s.Idle != "" || s.Streamed == 0 || s.Pinned == 0 ||
				!late && !strings.Contains(h.stderr.String(), smallReadaheadText) {
				t.Errorf("no help: %+v\n%s", s, h.stderr.String())
			}
			for _, unwanted := range []string{"level=WARN", "level=ERROR"} {
				if strings.Contains(h.stderr.String(), unwanted) {
					t.Errorf("the log has %s:\n%s", unwanted, h.stderr.String())
				}
			}
		})
	}
}
