package main

// This file tests `tracer doctor`.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
)

// doctor runs the command, and returns its exit status.
func doctor(t *testing.T, stdout, stderr io.Writer, args ...string) int {
	t.Helper()
	return cli.Run(t.Context(), newCommand(nil), append([]string{"doctor"}, args...), stdout, stderr)
}

func TestDoctor(t *testing.T) {
	in := llamatest.ForTest(t)
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	status := 0
	if os.Geteuid() != 0 {
		status = cli.Failure
	}
	for name, tc := range map[string]struct {
		args   []string
		status int
		stdout []string // parts of it
		stderr string
	}{
		"prebuilt": {
			[]string{"--", in.Driver}, status,
			[]string{
				"kernel ", "uprobe_multi", "CAP_BPF", "--detail op+io", "libggml-base.so: ggml ",
				"ggml_cpu_extra_compute_forward+4", "push, 0.55 µs per hit", "layout: type 0, ne 16", "(code of ",
				"--preload",
			},
			"",
		},
		"nothing":    {[]string{"--", "true"}, cli.Failure, []string{"found no ggml", "what to do", "--pid"}, ""},
		"no command": {[]string{"/no/such/llama-cli"}, cli.Failure, nil, "/no/such/llama-cli"},
		"no process": {[]string{"--pid", fmt.Sprint(gone.Process.Pid)}, cli.Failure, nil, "no such process"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := doctor(t, &stdout, &stderr, tc.args...); got != tc.status {
				t.Errorf("status %d, want %d", got, tc.status)
			}
			for _, part := range tc.stdout {
				if !strings.Contains(stdout.String(), part) {
					t.Errorf("no %q in\n%s", part, stdout.String())
				}
			}
			if !strings.Contains(stderr.String(), tc.stderr) || tc.stderr == "" && stderr.Len() > 0 ||
				strings.Count(stderr.String(), "\n") > 1 {
				t.Errorf("standard error: %s, want one line with %q", stderr.String(), tc.stderr)
			}
			if name != "prebuilt" {
				return
			}
			stdout.Reset()
			if got := doctor(t, &stdout, &stderr, append([]string{"--json"}, tc.args...)...); got != tc.status {
				t.Errorf("JSON: status %d, want %d", got, tc.status)
			}
			var r struct {
				OK    bool
				Modes []struct{ Name string }
			}
			if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || r.OK != (tc.status == 0) || len(r.Modes) < 3 {
				t.Errorf("JSON: %+v, %v; want ok %v and at least 3 modes", r, err, tc.status == 0)
			}
		})
	}
}

func TestDoctorArguments(t *testing.T) {
	for _, args := range [][]string{{"--pid", "0"}, {"--pid", "x"}, {"--pid", "1", "--", "true"}, {"--nope"}} {
		var stdout, stderr bytes.Buffer
		got := doctor(t, &stdout, &stderr, args...)
		if got != cli.BadUsage || stdout.Len() > 0 || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%q: status %d, %q, %q; want %d, nothing, one line",
				args, got, stdout.String(), stderr.String(), cli.BadUsage)
		}
	}
}

// For a running process, doctor says whether its weights can be seen at all, and what to do if not.
func TestDoctorWeights(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	// Norms and embeddings are not repacked, so they must be small compared with the rest.
	model := llamatest.Model(t, synth.Config{
		Layers: 2, Embd: 256, FF: 4096, Heads: 4, KVHeads: 2, Type: gguf.Q4_0, Seed: 1,
	})
	for name, tc := range map[string]struct {
		options llama.Options
		status  int
		stdout  []string
		advised bool
	}{
		"mapped": {llama.Options{NoRepack: true}, cli.OK, []string{"weights: mapped"}, false},
		"repacked": {
			llama.Options{}, cli.Failure, []string{
				"weights: copied", "to trace them: start llama.cpp with --no-repack", "only for that, because prompts ",
			}, true,
		},
		"not mapped": {
			llama.Options{LoadMode: "none"}, cli.Failure, []string{"weights: copied", "without --load-mode=none"}, true,
		},
		"not mapped but locked": {
			llama.Options{LoadMode: "mlock"}, cli.Failure,
			[]string{"weights: copied", "without --load-mode=mlock"}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := tc.options
			o.Model, o.Prompt, o.Tokens, o.Threads, o.Repeat, o.Stream = model, "x", 8, 1, 1<<20, true
			target := in.Command(t.Context(), o)
			out, err := target.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := target.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
			if _, err := llama.NewStream(out); err != nil { // it has loaded its model
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			got := doctor(t, &stdout, &stderr, "--pid", fmt.Sprint(target.Process.Pid))
			if got != tc.status || stderr.Len() > 0 {
				t.Errorf("status %d, stderr %s; want %d, nothing", got, stderr.String(), tc.status)
			}
			for _, part := range tc.stdout {
				if !strings.Contains(stdout.String(), part) {
					t.Errorf("no %q in\n%s", part, stdout.String())
				}
			}
			if advised := strings.Contains(stdout.String(), "what to do"); advised != tc.advised {
				t.Errorf("has advice: %v, want %v:\n%s", advised, tc.advised, stdout.String())
			}
		})
	}
}
