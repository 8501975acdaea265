package cmd_test

// This file traces and helps llama-cpp-python: a script, and its server, which docs/prefetchd.md starts so that it
// leaves weights in the layout of the file.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
	"tensorcast/trace"
)

// pythonProgram matches the program in docs/prefetchd.md, which starts the server.
var pythonProgram = regexp.MustCompile("(?s)```python\n(.*?\n)from llama_cpp.server(.*?)```")

// allMapped matches the line of doctor that says that no weight was copied.
var allMapped = regexp.MustCompile(`(?m)^ +weights +mapped,`)

// pythonScript asks a model for some tokens, twice. Its arguments are the model and how many tokens.
const pythonScript = `
import sys
from llama_cpp import Llama
model = Llama(sys.argv[1], n_ctx=256, n_threads=2, verbose=False)
for _ in range(2):
    answer = model.create_completion("The page cache", max_tokens=int(sys.argv[2]), temperature=0)
    print(answer["usage"]["completion_tokens"], answer["choices"][0]["text"], flush=True)
`

// pythonTokens is for how many tokens the script and the server are asked at a time.
const pythonTokens = 8

// pythonRig is what the tests of llama-cpp-python share.
type pythonRig struct {
	python, model string
	dir           string // has ask.py, and in_layout.py and serve.py, which leave weights in the layout of the file
}

func newPythonRig(t *testing.T) *pythonRig {
	t.Helper()
	testenv.NeedRoot(t)
	if os.Getenv("LLAMA_CPP_PYTHON") == "" {
		t.Skip("llama-cpp-python takes ten minutes to build: make llama-cpp-python")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	python, err := llama.LlamaCppPython(ctx)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/prefetchd.md")
	if err != nil {
		t.Fatal(err)
	}
	program := pythonProgram.FindSubmatch(page)
	if program == nil {
		t.Fatal("docs/prefetchd.md has no program that starts llama_cpp.server")
	}
	whole := bytes.TrimSuffix(bytes.TrimPrefix(program[0], []byte("```python\n")), []byte("```"))
	r := &pythonRig{python: python, model: llamatest.Gemma(t).File, dir: t.TempDir()}
	for name, text := range map[string]string{
		"ask.py": pythonScript, "in_layout.py": string(program[1]) + pythonScript, "serve.py": string(whole),
	} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// script is the command line of a script, with what its own arguments are.
func (r *pythonRig) script(name string) []string {
	return []string{r.python, filepath.Join(r.dir, name), r.model, fmt.Sprint(pythonTokens)}
}

// run runs a command and returns what it printed.
func (r *pythonRig) run(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.WaitDelay = r.dir, 5*time.Second
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestLlamaCppPython(t *testing.T) {
	r := newPythonRig(t)
	t.Run("traced", r.testTraced)
	t.Run("started", r.testStarted)
	t.Run("server", r.testServer)
}

// A script is traced from its start: every decode, every weight that it reads, the same text. Where weights are copied
// to another layout, the advice is for Python.
func (r *pythonRig) testTraced(t *testing.T) {
	const noArgument = "llama-cpp-python has no argument against copies in another layout"
	for name, inLayout := range map[string]bool{"ask.py": false, "in_layout.py": true} {
		plain, stderr, status := r.run(t, r.script(name)...)
		if status != 0 || strings.Count(plain, fmt.Sprintf("%d ", pythonTokens)) < 2 {
			t.Fatalf("%s: status %d, %q\n%s", name, status, plain, stderr)
		}
		dir := filepath.Join(r.dir, name+".capture")
		got, stderr, status := r.run(t, append([]string{bin["tracer"], "-o", dir, "--"}, r.script(name)...)...)
		if got != plain {
			t.Errorf("%s: the text is %q, want %q", name, got, plain)
		}
		c, err := trace.Open(dir)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, stderr)
		}
		m := c.Meta
		// The first answer has a decode for the prompt, whose last token the second one computes again.
		if !m.Complete || m.Steps != 2*pythonTokens || m.Counters.Lost() != 0 {
			t.Errorf("%s: complete %v, %d steps, %d lost; want all of %d steps", name, m.Complete, m.Steps,
				m.Counters.Lost(), 2*pythonTokens)
		}
		if copied := m.Outside.Tensors > 0; inLayout && (copied || status != 0) {
			t.Errorf("%s: %d tensors are copies, status %d; want none\n%s", name, m.Outside.Tensors, status, stderr)
		} else if !inLayout && copied && !strings.Contains(stderr, noArgument) {
			t.Errorf("%s: of copies tracer says\n%s\nwant %q", name, stderr, noArgument)
		}
		out, stderr, status := r.run(t, bin["analyze"], "-c", dir)
		if status != 0 || !strings.Contains(out, "of them read for each token") {
			t.Errorf("%s: analyze: status %d\n%s%s", name, status, out, stderr)
		}
		if !inLayout && m.Outside.Tensors > 0 && !strings.Contains(stderr, noArgument) {
			t.Errorf("%s: of copies analyze says\n%s\nwant %q", name, stderr, noArgument)
		}
	}
}

// prefetchd starts a script, and ends with it.
func (r *pythonRig) testStarted(t *testing.T) {
	plain, _, _ := r.run(t, r.script("in_layout.py")...)
	got, stderr, status := r.run(t, append([]string{bin["prefetchd"], "--exec", "--"}, r.script("in_layout.py")...)...)
	if status != 0 || got != plain || !strings.Contains(stderr, "everything fits") {
		t.Errorf("status %d, text %q, want %q and that everything fits\n%s", status, got, plain, stderr)
	}
}

// A server in too little memory is helped by its process ID: the text is the same, and it is not ended.
func (r *pythonRig) testServer(t *testing.T) {
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(root, fmt.Sprintf("tensorcast-python-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	info, err := os.Stat(r.model)
	if err != nil {
		t.Fatal(err)
	}
	const own = 190 << 20 // the server's memory besides weights, and prefetchd's
	if err := group.SetLimit(own + info.Size()*7/10); err != nil {
		t.Fatal(err)
	}
	// Others may use that file: a copy is the server's alone.
	model := filepath.Join(r.dir, "model.gguf")
	if out, err := exec.Command("cp", r.model, model).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dropCache(t, model)
	address, pid := r.startServer(t, group, model)
	// The first token of a prompt is in the server's cache from its first answer on, which changes what is computed at
	// a time, and with it the last digits.
	askPython(t, address, 1)
	var plain []string
	for i := range 2 {
		plain = append(plain, askPython(t, address, i))
	}
	out, stderr, _ := r.run(t, bin["prefetchd"], "doctor", "--pid", fmt.Sprint(pid))
	if !allMapped.MatchString(out) {
		t.Errorf("doctor does not say that all weights are mapped:\n%s%s", out, stderr)
	}
	helper := exec.Command(bin["prefetchd"], "--pid", fmt.Sprint(pid), "--json", "--always", "--no-hot")
	var summary, log bytes.Buffer
	helper.Stdout, helper.Stderr = &summary, &log
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = helper.Process.Kill(); _ = helper.Wait() }()
	for i := range 4 {
		if got := askPython(t, address, i%2); got != plain[i%2] {
			t.Errorf("answer %d with help is %q, want %q", i, got, plain[i%2])
		}
	}
	if err := helper.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = helper.Wait()
	var s prefetch.Summary
	if err := json.Unmarshal(summary.Bytes(), &s); err != nil {
		t.Fatalf("%v\n%s%s", err, summary.String(), log.String())
	}
	if s.Pinned == 0 || s.Tokens < 2*pythonTokens {
		t.Errorf("held %d bytes, %d tokens; want help\n%s", s.Pinned, s.Tokens, log.String())
	}
	if kills, err := group.OOMKills(); err != nil || kills != 0 {
		t.Errorf("%d processes were killed for memory, %v; want none", kills, err)
	}
}

// startServer starts the server in a control group, and waits until it answers.
func (r *pythonRig) startServer(t *testing.T, group *cgroup.Group, model string) (address string, pid int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	const script = `for f in $GROUPS_FILES; do echo $$ > $f; done; exec "$0" "$@"`
	cmd := exec.Command("sh", "-c", script, r.python, filepath.Join(r.dir, "serve.py"), "--model", model,
		"--use_mlock", "false", "--logits_all", "false", "--n_ctx", "256", "--n_threads", "2", "--port", port)
	cmd.Env = append(os.Environ(), "GROUPS_FILES="+strings.Join(group.ProcsFiles(), " "))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	deadline := time.Now().Add(5 * time.Minute)
	for {
		resp, err := http.Get("http://" + address + "/v1/models")
		if err == nil {
			_ = resp.Body.Close()
			return address, cmd.Process.Pid
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the server has ended: %v\n%s", err, out.String())
		case <-time.After(200 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not answer after 5 minutes")
		}
	}
}

// askPython asks the server for some tokens. Prompts differ in their first word, so that the server computes all of
// each anew.
func askPython(t *testing.T, address string, number int) (text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	body := fmt.Sprintf(`{"prompt": "%d pages of the cache are", "max_tokens": %d, "temperature": 0}`, number+2,
		pythonTokens)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/completions",
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Choices []struct {
			Text string `json:"text"`
		} `json:"choices"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || len(answer.Choices) != 1 {
		t.Fatalf("status %s, %d answers, %v", resp.Status, len(answer.Choices), err)
	}
	return answer.Choices[0].Text
}
