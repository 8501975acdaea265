package main

// This file tests that a mixture begins with the experts that were chosen most before.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
	"tensorcast/prefetch/mixture"
)

// hotConfig is 90 MB, of which 80 MB are experts of 1.3 MB. A token reads two of 16 in each layer.
var hotConfig = synth.Config{Layers: 4, Embd: 768, FF: 512, Heads: 12, KVHeads: 4, Experts: 16, Used: 2,
	Type: gguf.Q8_0, Seed: 3}

// hotTokens are generated in each run. They choose the same experts each time.
const hotTokens = 24

// newHotRig makes a rig whose memory limit has room for a small part of the mixture's experts. Between
// its warm-up and its prompt the target waits, as a server does.
func newHotRig(t *testing.T) *rig {
	t.Helper()
	testenv.NeedRoot(t)
	r := newRigOf(t, "hot mixture", llamatest.Model(t, hotConfig), 0.15, hotTokens)
	r.more = []string{"--idle=2"}
	return r
}

// TestSecondRun checks that a second run of a mixture begins with the experts that the first one used
// most, whether prefetchd sees it load the model or not, and that the text stays the same.
func TestSecondRun(t *testing.T) {
	testenv.NeedMachine(t)
	dir := filepath.Join(t.TempDir(), "run")
	run := func(when string, beforeLoad bool, flags ...string) (s prefetch.Summary, stderr string) {
		t.Helper()
		t.Run(when, func(t *testing.T) {
			r := newHotRig(t)
			flags := append([]string{"--run-dir", dir, "--always", "-v"}, flags...)
			var h *helper
			if beforeLoad {
				begin := r.startWaiting()
				h = startHelper(t, r.target.Process.Pid, append(flags, "--wait")...)
				h.waitSettled(t)
				begin()
			} else {
				r.startStopped()
				h = startHelper(t, r.target.Process.Pid, flags...)
				h.waitSettled(t)
				r.resumeTarget()
			}
			r.finish()
			s, stderr = h.summary(t), h.stderr.String()
			text, err := json.Marshal(s.Experts)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("experts %s", text)
		})
		return s, stderr
	}
	files := func() (names []string) {
		names, err := filepath.Glob(filepath.Join(dir, "experts", "*.experts"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	if s, _ := run("the first time, and not kept", true, "--no-hot"); s.Experts.Hot != nil || len(files()) != 0 {
		t.Errorf("with --no-hot: %+v was read first, and %v kept; want nothing", s.Experts.Hot, files())
	}
	first, _ := run("the first time", true)
	if first.Experts.Hot != nil || first.Guessed {
		t.Errorf("the first time: %+v was read first, and the order guessed: %v; want neither",
			first.Experts.Hot, first.Guessed)
	}
	names := files()
	if len(names) != 1 {
		t.Fatalf("%v is kept, want one file", names)
	}
	if info, err := os.Lstat(names[0]); err != nil || info.Mode() != 0o600 || info.Size() > 4096 {
		t.Errorf("%v, %v; want a small file of mode 0600", info, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.sock")); err != nil || len(left) > 0 {
		t.Errorf("left are the sockets %v, %v; want none", left, err)
	}
	for when, beforeLoad := range map[string]bool{"seen to load the model": true, "while it loads it": false} {
		s, log := run(when, beforeLoad)
		h := s.Experts.Hot
		if !hasLearnedOnce(s, log) || h == nil || h.From != mixture.LastRun || !beganWithHot(h) {
			t.Errorf("%s: learned %d times, %+v read first; want hot experts of the last run, learned once",
				when, s.Learned, h)
			t.Log(log)
		}
		t.Logf("%s: the order was guessed: %v", when, s.Guessed) // on a busy machine prefetchd may be too late for that
		missed := func(x *mixture.Summary) float64 { return float64(x.Missed) / float64(x.Chosen) }
		share, was := missed(s.Experts), missed(first.Experts)
		if s.Experts.Room < first.Experts.Room*95/100 {
			t.Logf("%s: there was room for fewer experts than in the first run, so their misses are not compared", when)
		} else if share >= was {
			t.Errorf("%s: a share of %.3f of the chosen experts was missing, want less than the first run's %.3f",
				when, share, was)
		}
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func() error{
		"half a file": func() error { return os.WriteFile(names[0], data[:len(data)/2], 0o600) },
		"its mode":    func() error { return os.Chmod(names[0], 0o666) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		s, stderr := run(name, true)
		if s.Experts.Hot != nil || strings.Count(stderr, "it is not known which experts the last run used most") == 0 {
			t.Errorf("%s: %+v was read first, want nothing, and that it is said: %s", name, s.Experts.Hot, stderr)
		}
	}
	if again, err := os.ReadFile(names[0]); err != nil || len(again) != len(data) {
		t.Errorf("in the end the file has %d bytes, %v; want %d", len(again), err, len(data))
	}
}

// beganWithHot says whether hot experts were read, or needed not be: the target, which has just loaded its model, may
// have left all of them in memory.
func beganWithHot(h *mixture.Hot) bool {
	return h.Wanted > 0 && h.Experts <= h.Wanted && (h.Experts > 0 || h.Over)
}

// writeImatrix writes an importance matrix for hotConfig, which counts expert 3 of each layer most, and
// none of some others.
func writeImatrix(t *testing.T, experts int) string {
	t.Helper()
	counts := map[string][]float32{}
	for layer := range hotConfig.Layers {
		values := make([]float32, experts)
		for e := range experts {
			values[e] = float32(max(0, 100-20*max(e-3, 3-e)))
		}
		counts[fmt.Sprintf("blk.%d.ffn_up_exps.weight", layer)] = values
	}
	return gguftest.WriteImatrix(t, "imatrix", counts)
}

// TestImatrix checks that a first run begins with what an importance matrix counts, and that one of
// another model is told and not used.
func TestImatrix(t *testing.T) {
	for experts, from := range map[int]mixture.Source{16: mixture.Imatrix, 8: ""} {
		t.Run(fmt.Sprint(experts, " experts"), func(t *testing.T) {
			r := newHotRig(t)
			r.startStopped()
			h := r.help("--imatrix", writeImatrix(t, experts))
			h.waitSettled(t)
			r.resumeTarget()
			r.finish()
			s := h.summary(t)
			refused := strings.Contains(h.stderr.String(), "the importance matrix is not of this model")
			if hot := s.Experts.Hot; (from == "") != (hot == nil) || refused != (from == "") ||
				hot != nil && (hot.From != from || !beganWithHot(hot)) {
				t.Errorf("%#v was read first, want from %q: %s", hot, from, h.stderr.String())
			}
		})
	}
}

// TestBadImatrix checks that what is no importance matrix is refused with one line that says what to do.
func TestBadImatrix(t *testing.T) {
	dir := t.TempDir()
	old, model := filepath.Join(dir, "imatrix.dat"), filepath.Join(dir, "model.gguf")
	if err := os.WriteFile(old, []byte("\x02\x00\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	gguftest.MoE(1, 4).Write(t, model)
	for path, want := range map[string]string{
		old: "make a new one with llama-imatrix", model: "it is no importance matrix",
		filepath.Join(dir, "missing"): "no such file",
	} {
		var stderr bytes.Buffer
		cmd := exec.Command(prefetchd, "--pid", "1", "--imatrix", path)
		cmd.Stderr = &stderr
		_ = cmd.Run()
		if text := stderr.String(); cmd.ProcessState.ExitCode() != cli.Failure || strings.Count(text, "\n") != 1 ||
			!strings.Contains(text, want) || !strings.Contains(text, path) {
			t.Errorf("--imatrix %s: exit status %d, %q; want %d, and one line with %q",
				path, cmd.ProcessState.ExitCode(), text, cli.Failure, want)
		}
	}
}
