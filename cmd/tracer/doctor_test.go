package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"tensorcast/ebpf"
	"tensorcast/experiments/llama/llamatest"
)

func TestDoctor(t *testing.T) {
	in := llamatest.ForTest(t)
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	status := 0
	if os.Geteuid() != 0 {
		status = exitFailure
	}
	for name, tc := range map[string]struct {
		opts   ebpf.ExamineOptions
		status int
		stdout []string // parts of it
		stderr string
	}{
		"prebuilt": {
			ebpf.ExamineOptions{Command: []string{in.Driver}}, status,
			[]string{"kernel ", "uprobe_multi", "CAP_BPF", "--detail op+io", "libggml-base.so: ggml ", "ggml_cpu_extra_compute_forward+4", "push, 0.55 µs per hit", "layout: type 0, ne 16", "(code of ", "--preload"}, "",
		},
		"nothing":    {ebpf.ExamineOptions{Command: []string{"true"}}, exitFailure, []string{"found no ggml", "what to do", "--pid"}, ""},
		"no command": {ebpf.ExamineOptions{Command: []string{"/no/such/llama-cli"}}, exitFailure, nil, "/no/such/llama-cli"},
		"no process": {ebpf.ExamineOptions{PID: gone.Process.Pid}, exitFailure, nil, "no such process"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := diagnose(&stdout, &stderr, tc.opts, false); got != tc.status {
				t.Errorf("status %d, want %d", got, tc.status)
			}
			for _, part := range tc.stdout {
				if !strings.Contains(stdout.String(), part) {
					t.Errorf("no %q in\n%s", part, stdout.String())
				}
			}
			if !strings.Contains(stderr.String(), tc.stderr) || tc.stderr == "" && stderr.Len() > 0 || strings.Count(stderr.String(), "\n") > 1 {
				t.Errorf("standard error: %s", stderr.String())
			}
			if name != "prebuilt" {
				return
			}
			stdout.Reset()
			if got := diagnose(&stdout, &stderr, tc.opts, true); got != tc.status {
				t.Errorf("JSON: status %d, want %d", got, tc.status)
			}
			var r struct {
				OK    bool
				Modes []struct{ Name string }
			}
			if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || r.OK != (tc.status == 0) || len(r.Modes) < 3 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

func TestDoctorArguments(t *testing.T) {
	for _, args := range [][]string{{"--pid", "0"}, {"--pid", "x"}, {"--pid", "1", "--", "true"}, {"--nope"}} {
		cmd := newDoctorCommand()
		cmd.SetArgs(args)
		if err := cmd.Execute(); err == nil { // else it would have ended the test
			t.Errorf("%q is accepted", args)
		}
	}
}
