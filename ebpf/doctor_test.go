package ebpf

// These tests run the doctor on commands and processes with and without ggml.

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/ggml"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

// machine examines this machine once for all tests, because loading all programs takes time.
var machine = sync.OnceValues(func() (*Report, error) {
	r := &Report{}
	return r, r.examineMachine()
})

// examine is Examine, without examining the machine again.
func examine(t *testing.T, opts ExamineOptions) *Report {
	t.Helper()
	m, err := machine()
	if err != nil {
		t.Fatal(err)
	}
	r := new(*m)
	r.Advice = slices.Clone(m.Advice)
	target, err := r.examineTarget(opts)
	if err != nil {
		t.Fatal(err)
	}
	r.judgeModes(target)
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
	return r
}

// compileProgram compiles ggml/testdata/ggml.c.
func compileProgram(t *testing.T, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "llama-cli")
	args := append([]string{"-w", "-O2", "-DPROGRAM", "-DLAYOUT=NOW", "-o", out}, flags...)
	if msg, err := exec.Command("gcc",
		append(args, filepath.Join("..", "ggml", "testdata", "ggml.c"))...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, msg)
	}
	return out
}

// mode returns the mode with this name.
func (r *Report) mode(t *testing.T, name string) Mode {
	t.Helper()
	i := slices.IndexFunc(r.Modes, func(m Mode) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("no mode %s in %+v", name, r.Modes)
	}
	return r.Modes[i]
}

// roles counts the probes by role.
func (r *Report) roles() map[ggml.Role]int {
	roles := map[ggml.Role]int{}
	for _, f := range r.Target.Files {
		for _, p := range f.Probes {
			roles[p.Role]++
		}
	}
	return roles
}

func TestExamineCommand(t *testing.T) {
	in := llamatest.ForTest(t)
	root := os.Geteuid() == 0
	script := filepath.Join(t.TempDir(), "llama-cli")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	static := compileProgram(t, "-static")
	stripped := compileProgram(t, "-static", "-s")
	old := compileProgram(t, "-Dggml_cpu_extra_compute_forward=none")
	for name, tc := range map[string]struct {
		command            []string
		op, graph, preload string // why not; "" if it would work
		advice             string
	}{
		"prebuilt": {command: []string{in.Driver}},
		"nothing": {
			[]string{"true"}, "found no ggml", "found no ggml", "found no ggml", "--pid",
		},
		"script":   {[]string{script}, "found no ggml", "found no ggml", "found no ggml", "#!/bin/sh"},
		"static":   {[]string{static}, "", "", "linked into the program", ""},
		"stripped": {[]string{stripped}, "found no ggml", "found no ggml", "found no ggml", "stripped"},
		"old": {
			[]string{old}, "ggml_cpu_extra_compute_forward", "",
			"linked into the program", "--detail graph",
		},
		"no mmap": {[]string{in.Driver, "--no-mmap"}, "", "", "", "--no-mmap"},
	} {
		t.Run(name, func(t *testing.T) {
			r := examine(t, ExamineOptions{Command: tc.command})
			for mode, want := range map[string]string{
				"op": tc.op, "op+io": tc.op, "graph": tc.graph, "preload": tc.preload,
			} {
				if !root && mode != "preload" {
					want = "root"
				}
				m := r.mode(t, mode)
				if m.OK != (want == "") || !strings.Contains(m.Reason, want) {
					t.Errorf("%s: %v, %q; want %q", mode, m.OK, m.Reason, want)
				}
			}
			if r.OK != (root && tc.op == "") {
				t.Errorf("OK = %v, want %v", r.OK, !r.OK)
			}
			if all := strings.Join(r.Advice, "\n"); !strings.Contains(all, tc.advice) ||
				tc.advice == "" && root && all != "" {
				t.Errorf("advice: %s\nwant %q", all, tc.advice)
			}
			if slices.ContainsFunc(r.Advice, func(s string) bool { return strings.Contains(s, "\n") }) {
				t.Errorf("advice of more than one line: %q", r.Advice)
			}
		})
	}
	if r := examine(t, ExamineOptions{Command: []string{in.Driver}}); r.roles()[ggml.RoleOp] == 0 ||
		r.roles()[ggml.RoleDecode] == 0 || r.Target.Ops < 80 ||
		r.Target.Layout == nil || !strings.HasPrefix(r.Target.Layout.Origin, "code of ") {
		t.Errorf("roles %v, %d ops, layout %v", r.roles(), r.Target.Ops, r.Target.Layout)
	}
}

func TestExamineRunning(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, synth.Config{
		Layers: 2, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1,
	})
	target := in.Command(t.Context(), llama.Options{
		Model: model, Prompt: "x", Tokens: 8, Threads: 1, NoRepack: true, Repeat: 1 << 20,
	})
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	testenv.WaitMapped(t, target.Process.Pid, model)
	r := examine(t, ExamineOptions{PID: target.Process.Pid})
	roles := r.roles()
	if !r.OK || roles[ggml.RoleOp] != 1 || roles[ggml.RoleGraph] != 1 || roles[ggml.RoleDecode] != 1 ||
		!slices.Equal(r.Target.Models, []string{model}) {
		t.Errorf("OK %v, roles %v, models %q, advice %q", r.OK, roles, r.Target.Models, r.Advice)
	}
	for _, mode := range []string{"op", "graph", "op+io"} {
		if m := r.mode(t, mode); !m.OK {
			t.Errorf("%s: %s", mode, m.Reason)
		}
	}
	if m := r.mode(t, "preload"); m.OK || !strings.Contains(m.Reason, "give the command") {
		t.Errorf("preload: %+v", m)
	}
	for _, f := range r.Features {
		if f.State == Unknown {
			t.Errorf("root could not find out about %s: %s", f.Name, f.Detail)
		}
	}
}

func TestExamineNothing(t *testing.T) {
	r, err := Examine(ExamineOptions{})
	if err != nil || r.Target != nil || len(r.Modes) != 3 {
		t.Errorf("Examine of no target: %+v, %v, want three modes", r, err)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := Examine(ExamineOptions{PID: gone.Process.Pid}); !errors.Is(err, proc.ErrNoProcess) {
		t.Errorf("a process that has ended: %v", err)
	}
	if _, err := Examine(ExamineOptions{Command: []string{"no-such-llama-cli"}}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a command that does not exist: %v", err)
	}
	if r := examine(t, ExamineOptions{PID: os.Getpid()}); r.OK || r.mode(t, "op").Reason == "" || len(r.Advice) == 0 {
		t.Errorf("a process without ggml: %+v", r)
	}
}

// Trying a feature finds out that it works, or that it does not.
func TestTryUprobe(t *testing.T) {
	testenv.NeedRoot(t)
	if err := tryUprobe(false); err != nil {
		t.Errorf("perf events: %v", err)
	}
	if err := tryTracepoint("filemap", "no_such_tracepoint"); err == nil {
		t.Error("a tracepoint that does not exist was found")
	}
}
