package main

// This file tests --dry-run and --plan.

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tensorcast/capture/capturetest"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
)

// readPlan reads a plan, and returns how many bytes are kept and how many are streamed.
func readPlan(t *testing.T, path string) (kept, streamed int64) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) == 0 ||
		strings.Join(rows[0], ",") != "file,offset_bytes,size_bytes,tensor_name,visits,state" {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, row := range rows[1:] {
		n, err := strconv.ParseInt(row[2], 10, 64)
		if err != nil || n <= 0 || !strings.HasSuffix(row[0], ".gguf") || !strings.HasSuffix(row[3], ".weight") {
			t.Errorf("row %q", row)
		}
		if row[5] == "kept" {
			kept += n
		} else {
			streamed += n
		}
	}
	return kept, streamed
}

// TestDryRun checks that a dry run ends by itself, reads nothing into memory, and does not change
// the target.
func TestDryRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0.6, 36)
	stored := r.storedPattern()
	r.options.Repeat = 1 << 20
	r.start()
	if err := r.target.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// With MAP_POPULATE the target reads the model before it stops.
	testenv.WaitFor(t, "the target to stop", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.target.Process.Pid))
		return err == nil && bytes.Contains(status, []byte("State:\tT"))
	})
	path := filepath.Join(t.TempDir(), "plan.csv")
	before := resident(t, r.options.Model)
	pid := fmt.Sprint(r.target.Process.Pid)
	out, err := exec.Command(prefetchd, "--wait", "--pid", pid, "--dry-run", "--pattern", stored,
		"--plan", path, "--budget", fmt.Sprint(r.size/2)).Output()
	if text := string(out); err != nil || !strings.Contains(text, "would be kept") ||
		!strings.Contains(text, " tok/s expected") || strings.Contains(text, "alone") ||
		strings.Count(text, "\n") != 1 {
		t.Errorf("%v: %s", err, out)
	}
	if kept, streamed := readPlan(t, path); kept < r.size/4 || streamed < r.size*4/10 {
		t.Errorf("%d bytes would be kept and %d streamed, of %d", kept, streamed, r.size)
	}
	const head = 4 << 20 // the file's metadata may have left memory; the kernel reads ahead of them
	if after := resident(t, r.options.Model); after > before+head {
		t.Errorf("%d bytes of the model are in memory, want at most the %d of before", after, before)
	}
	if err := r.target.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// without a pattern it learns first
	out, err = exec.Command(prefetchd, "--wait", "--pid", pid, "--dry-run", "--json").Output()
	var s prefetch.Summary
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil || s.Pinned < r.size/4 || s.Expected <= 0 || s.Disk <= 0 || s.Stored ||
		s.Tokens != 0 || s.Streamed != 0 {
		t.Errorf("%v: %s", err, out)
	}
	if err := r.target.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the target: %v", err)
	}
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
}

// TestPlanArguments checks that --plan is refused at once if the file cannot be written, and that an
// earlier plan stays if prefetchd fails.
func TestPlanArguments(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	model := capturetest.NewModel(t).Path
	before, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	written := filepath.Join(dir, "plan.csv")
	if err := os.WriteFile(written, []byte("an earlier plan"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args   []string
		status int
		want   string // a part of the message
	}{
		"twice to standard output": {[]string{"--plan", "-", "--json"}, 2, "--plan - and --json"},
		"over a model":             {[]string{"--plan", model}, 1, "is a model"},
		"a directory":              {[]string{"--plan", dir}, 1, "is a directory"},
		"no target":                {[]string{"--plan", written}, 1, "ggml"},
		"nowhere":                  {[]string{"--plan", filepath.Join(dir, "no", "plan.csv")}, 1, "no such file"},
	} {
		cmd := exec.Command(prefetchd, append([]string{"--pid", fmt.Sprint(os.Getpid())}, tc.args...)...)
		out, _ := cmd.CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if cmd.ProcessState.ExitCode() != tc.status || len(lines) != 1 || !strings.Contains(lines[0], tc.want) {
			t.Errorf("%s: status %d, %q, want status %d and one line with %q",
				name, cmd.ProcessState.ExitCode(), out, tc.status, tc.want)
		}
	}
	if after, err := os.ReadFile(model); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the model has changed (%v)", err)
	}
	if after, err := os.ReadFile(written); err != nil || string(after) != "an earlier plan" {
		t.Errorf("the plan is %q (%v), want the earlier one", after, err)
	}
}
