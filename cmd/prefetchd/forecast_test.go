package main

// This file tests what doctor forecasts of a model: of a file, of a URL, and of what cannot be forecast.

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch/forecast"
)

// copyCold makes a copy of a file of which nothing is in memory.
func copyCold(t *testing.T, from string) string {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cold.gguf")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	dropFromCache(t, path)
	return path
}

// forecastOf is doctor's forecast as JSON.
func forecastOf(t *testing.T, args ...string) (v forecast.Verdict) {
	t.Helper()
	stdout, stderr, status := doctor(t, nil, append(args, "--json", "--run-dir", t.TempDir())...)
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || status != cli.OK || stderr != "" {
		t.Fatalf("status %d, %v\n%s%s", status, err, stdout, stderr)
	}
	return v
}

// isMissing says whether a note says that something could not be measured, because it is in memory.
func isMissing(notes []string) bool {
	return slices.ContainsFunc(notes, func(note string) bool {
		return strings.Contains(note, "could not be measured") && strings.Contains(note, " in memory")
	})
}

// Of a model that does not fit doctor says what prefetchd would give, and what it goes by. What it reads of the file is
// dropped again.
func TestForecast(t *testing.T) {
	testenv.NeedRoot(t)
	path := copyCold(t, llamatest.Model(t, mixtureConfig))
	v := forecastOf(t, "--model", path, "--ram", "80MiB", "--context", "16")
	here := v.Rows[0]
	if v.Memory.Bytes != 80<<20 || v.Memory.Context != 16 || here.Fits || v.Pass.Experts == nil || v.Known ||
		v.Machine.Touched <= 0 || v.Machine.Cost == nil || v.Machine.One == nil || v.Machine.All == nil ||
		v.Machine.Slowdown < 1 || len(v.Rows) != len(forecast.Changes) || len(v.Start) == 0 || isMissing(v.Notes) ||
		here.Helped.Low <= 0 || here.Helped.High < here.Helped.Low || here.Alone.Likely > here.Helped.Likely*1.001 {
		t.Errorf("%+v", v)
	}
	if n := resident(t, path); n > 1<<20 {
		t.Errorf("%d bytes stay in memory", n)
	}
	stdout, stderr, status := doctor(t, nil, "--model", path, "--ram", "80MiB", "--context", "16", "--run-dir", "")
	if status != cli.OK || stderr != "" {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	for _, part := range []string{
		" tok/s", "this mixture of experts has ", "in memory for 80 MiB", "bounded by --ram", "2 tokens a pass",
		"experts: 16 in each of 4 layers", "start llama.cpp with", "disk: ", "computing: ",
		"routers that choose at random",
	} {
		if !strings.Contains(stdout, part) {
			t.Errorf("no %q in\n%s", part, stdout)
		}
	}

	// What is in memory tells nothing of what reading costs: that is said.
	if _, err := os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	v = forecastOf(t, "--model", path)
	if !v.Rows[0].Fits || v.Helps || !isMissing(v.Notes) {
		t.Errorf("all in memory, with room for it: %+v", v)
	}
}

// Of a URL only the metadata are fetched, and nothing is left behind in the current directory.
func TestForecastURL(t *testing.T) {
	testenv.NeedRoot(t)
	path := llamatest.Model(t, mixtureConfig)
	var sent atomic.Int64
	files := http.FileServer(http.Dir(filepath.Dir(path)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		files.ServeHTTP(&counter{w, &sent}, q)
	}))
	defer server.Close()
	dir := testenv.PublicDir(t)
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), prefetchd, append([]string{"doctor"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("--model", server.URL+"/"+filepath.Base(path)+"?token=secret", "--ram", "100MB", "--context", "16")
	if err != nil || !strings.Contains(out, "this mixture of experts has ") || strings.Contains(out, "secret") {
		t.Errorf("%v\n%s", err, out)
	}
	if n := sent.Load(); n == 0 || n > 2<<20 {
		t.Errorf("%d bytes were sent", n)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	out, err = run("--model", server.URL+"/nothing.gguf")
	if err == nil || !strings.Contains(out, "status 404") || strings.Count(out, "\n") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
}

// counter counts what a server sends.
type counter struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c *counter) Write(b []byte) (int, error) {
	c.sent.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}

// What cannot be forecast has one line that says why.
func TestForecastRefuses(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("no model"), 0o644); err != nil {
		t.Fatal(err)
	}
	silent := gguftest.MoE(1, 4)
	for i := range silent.KVs {
		if silent.KVs[i].Key == "qwen3moe.expert_used_count" {
			silent.KVs[i].Value = uint32(0)
		}
	}
	unsaid := filepath.Join(dir, "unsaid.gguf")
	silent.Write(t, unsaid)
	for name, tc := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"no model":              {[]string{"--model", text}, cli.Failure, "not a GGUF file"},
		"nothing there":         {[]string{"--model", text + ".gguf"}, cli.Failure, "no such file"},
		"a directory":           {[]string{"--model", dir}, cli.Failure, "not a regular file"},
		"not said":              {[]string{"--model", unsaid}, cli.Failure, "expert_used_count"},
		"no memory":             {[]string{"--model", text, "--ram", "0"}, cli.BadUsage, "--ram"},
		"no context":            {[]string{"--model", text, "--context", "0"}, cli.BadUsage, "at least one token"},
		"memory of a process":   {[]string{"--pid", "1", "--ram", "1GB"}, cli.BadUsage, "--ram is for"},
		"a model and a process": {[]string{"--model", text, "--pid", "1"}, cli.BadUsage, "leave out --pid"},
		"neither":               {[]string{"--costs"}, cli.BadUsage, "--model FILE"},
		"a server that is gone": {[]string{"--model", "http://127.0.0.1:1/m.gguf"}, cli.Failure, "connection refused"},
		"an address of no file": {[]string{"--model", "http://"}, cli.Failure, "want the address"},
	} {
		stdout, stderr, status := doctor(t, nil, tc.args...)
		if status != tc.status || stdout != "" || !strings.Contains(stderr, tc.says) ||
			strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: status %d, want %d and one line with %q\n%s%s",
				name, status, tc.status, tc.says, stdout, stderr)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return
	}
	f, err := os.CreateTemp("/dev/shm", "tensorcast-test-*.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	gguftest.MoE(1, 4).Write(t, f.Name())
	_, stderr, status := doctor(t, nil, "--model", f.Name())
	if status != cli.Failure || !strings.Contains(stderr, "lies in memory (tmpfs)") {
		t.Errorf("in tmpfs: status %d\n%s", status, stderr)
	}
}
