package main

// This file tests the help for mixtures of experts.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/holding"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch"
)

// mixtureConfig is 120 MB, of which 107 MB are experts of 1.7 MB. A token reads two of 16 in each
// layer.
var mixtureConfig = synth.Config{Layers: 4, Embd: 1024, FF: 512, Heads: 16, KVHeads: 8, Experts: 16,
	Used: 2, Type: gguf.Q8_0, Seed: 7}

// newMixture makes a rig whose memory limit is less than the size of the mixture's experts.
func newMixture(t *testing.T, tokens int) *rig {
	t.Helper()
	testenv.NeedRoot(t)
	return newRigOf(t, "mixture", llamatest.Model(t, mixtureConfig), 0.5, tokens)
}

// expertBytes returns the size of a model's experts, and the size of the weights besides that every
// token reads.
func expertBytes(t *testing.T, path string) (experts, trunk int64) {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Tensors {
		switch w := &f.Tensors[i]; {
		case w.Experts() > 0:
			experts += w.Size
		case w.Name != "token_embd.weight":
			trunk += w.Size
		}
	}
	return experts, trunk
}

// startStopped starts the target, and stops it before it decodes. See resumeTarget.
func (r *rig) startStopped() {
	r.t.Helper()
	r.start()
	r.stopTarget()
}

// stopTarget stops a running target. See resumeTarget.
func (r *rig) stopTarget() {
	r.t.Helper()
	if err := r.target.Process.Signal(syscall.SIGSTOP); err != nil {
		r.t.Fatal(err)
	}
	r.stopped = true
}

// resumeTarget resumes a stopped target.
func (r *rig) resumeTarget() {
	r.t.Helper()
	if err := r.target.Process.Signal(syscall.SIGCONT); err != nil {
		r.t.Fatal(err)
	}
	r.stopped = false
}

// misses returns how often the target, which has ended, touched a page that was not in memory and
// that nobody was reading, and how many bytes it read then. The bytes depend on the device's
// readahead, and on how much of what it read is still in memory when it is needed.
func (r *rig) misses() (m struct{ faults, bytes int64 }) {
	used := r.target.ProcessState.SysUsage().(*syscall.Rusage)
	const block = 512 // the unit of ru_inblock, see getrusage(2)
	m.faults, m.bytes = used.Majflt, used.Inblock*block
	return m
}

// checkExperts checks the summary of the help for a mixture.
func checkExperts(t *testing.T, r *rig, s prefetch.Summary) {
	t.Helper()
	experts, trunk := expertBytes(t, r.options.Model)
	x := s.Experts
	if x == nil || s.Idle != "" || s.Expected != 0 || s.Tokens < r.options.Tokens/2 ||
		s.PerToken < trunk || s.PerToken > r.size {
		t.Fatalf("summary %+v, experts %+v; each token reads %d bytes besides experts, of which there are %d bytes",
			s, x, trunk, experts)
	}
	if x.All > experts || x.All < experts/4 || x.Kept > x.Room || x.Kept == 0 ||
		x.Chosen < int64(s.Tokens)*4 || x.Missed == 0 || x.Missed >= x.Chosen || x.Read == 0 ||
		x.Read > s.Streamed {
		t.Errorf("experts %+v in %d tokens, streamed %d", x, s.Tokens, s.Streamed)
	}
	if left := r.locked(); left > 1<<20 {
		t.Errorf("%d bytes stay locked", left)
	}
}

// TestMixture checks that a mixture whose experts do not fit is helped: the experts that its routers
// choose are read before the target touches them.
func TestMixture(t *testing.T) {
	t.Parallel()
	r := newMixture(t, 100) // the load and the prompt, with which nobody helps yet, read as much as about 25 tokens
	r.start()
	r.finish()
	without := r.misses()
	dropFromCache(t, r.options.Model)
	r.stdout.Reset()
	r.start()
	h := r.help()
	r.finish()
	with := r.misses()
	s := h.summary(t)
	t.Logf("misses: %+v without help, %+v with help; experts %+v", without, with, s.Experts)
	checkExperts(t, r, s)
	// What the target reads without help is no measure: the kernel decides for each fault how much is read around it,
	// and that was 250 MB in one run and 2.6 GB in another. What it reads while it loads the model counts here, too.
	if with.bytes > s.Experts.Read*3/4 {
		t.Errorf("the target's faults read %d bytes with help, want at most three quarters of the %d that were read ahead",
			with.bytes, s.Experts.Read)
	}
	if stderr := h.stderr.String(); !keeps.MatchString(stderr) ||
		!strings.Contains(stderr, " of experts") || strings.Contains(stderr, "idle") {
		t.Errorf("the messages are: %s", stderr)
	}
}

// TestUnknownMixture checks that a mixture of a type that nobody knows is helped.
func TestUnknownMixture(t *testing.T) {
	t.Parallel()
	r := newMixture(t, 40)
	whole := r.options.Model
	r.options.Model = llamatest.Copy(t, whole)
	dropFromCache(t, r.options.Model)
	r.startStopped()
	llamatest.RenameType(t, r.options.Model, gguf.Q8_0, 999)
	h := r.help()
	h.waitSettled(t)
	r.resumeTarget()
	r.options.Model = whole
	r.finish()
	checkExperts(t, r, h.summary(t))
}

// TestTrainedMixture checks a mixture whose routers were trained, with less room for experts than a
// token reads.
func TestTrainedMixture(t *testing.T) {
	data, err := os.ReadFile(llamatest.Trained(t, "tiny-moe-q8_0.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf") // a copy, because it is dropped from the page cache
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRigOf(t, "trained mixture", path, 2, 200)
	r.start()
	h := r.help("--budget", "8MB")
	r.finish()
	s := h.summary(t)
	t.Logf("%+v", s.Experts)
	checkExperts(t, r, s)
}

// TestLearned checks that what was learned about a mixture's routers is used with the next target,
// and that a damaged file is replaced.
func TestLearned(t *testing.T) {
	testenv.NeedRoot(t)
	dir := filepath.Join(t.TempDir(), "learned")
	run := func(when string) (stderr string) {
		t.Helper()
		t.Run(when, func(t *testing.T) {
			r := newMixture(t, 40)
			r.start()
			h := r.help("--learned", dir, "--speculate", "on", "-v")
			r.finish()
			checkExperts(t, r, h.summary(t))
			stderr = h.stderr.String()
		})
		return stderr
	}
	learned := func() (name string, content []byte) {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(names) != 1 || !strings.HasSuffix(names[0], ".routers") {
			t.Fatalf("the directory has %v, %v; want one .routers file", names, err)
		}
		info, err := os.Lstat(names[0])
		if err != nil || info.Mode() != 0o600 {
			t.Fatalf("%v, %v", info, err)
		}
		if content, err = os.ReadFile(names[0]); err != nil {
			t.Fatal(err)
		}
		return names[0], content
	}
	const begins, anew = "begins with what was learned", "routing is learned anew"
	if stderr := run("the first time"); strings.Contains(stderr, begins) || strings.Contains(stderr, anew) {
		t.Errorf("the first time: %s", stderr)
	}
	name, first := learned()
	// A prefetchd that was killed may have left such a file.
	leftover := filepath.Join(dir, "."+filepath.Base(name)+".1-1.tmp")
	if err := os.WriteFile(leftover, first, 0o600); err != nil {
		t.Fatal(err)
	}
	if stderr := run("the second time"); !strings.Contains(stderr, begins) {
		t.Errorf("the second time: %s", stderr)
	}
	if _, second := learned(); bytes.Equal(first, second) {
		t.Error("nothing was learned the second time")
	}
	if err := os.WriteFile(name, first[:len(first)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if stderr := run("with half a file"); !strings.Contains(stderr, anew) || strings.Contains(stderr, begins) {
		t.Errorf("with half a file: %s", stderr)
	}
	if _, third := learned(); len(third) != len(first) {
		t.Errorf("the file has %d bytes in the end, want %d", len(third), len(first))
	}
}

// TestMixtureForetold checks that doctor and a dry run tell in advance what would be kept of a
// mixture, but not how much faster tokens would be.
func TestMixtureForetold(t *testing.T) {
	r := newMixture(t, 40)
	r.options.Repeat, r.options.Pause = 1<<20, 20
	r.start()
	pid := r.target.Process.Pid
	d, status := diagnosisOf(t, pid)
	experts, trunk := expertBytes(t, r.options.Model)
	if v := d.Verdict; status != cli.OK || v.Keep != trunk || v.PerToken != trunk ||
		v.Routed != experts || v.Experts <= 0 || v.Experts >= experts ||
		!strings.HasPrefix(d.Line, "would help: keeps about ") || len(v.Findings) == 0 ||
		v.Findings[0].Reason != holding.RoutedExperts || v.Findings[len(v.Findings)-1].Blocks {
		t.Errorf("doctor: status %d, %s\n%+v", status, d.Line, v)
	}
	stdout, _, _ := doctor(t, nil, "--pid", fmt.Sprint(pid))
	if !strings.Contains(stdout, size(experts)+" in routed experts, of which a token reads ") ||
		!strings.Contains(stdout, size(trunk)+" read from the file by each token") {
		t.Errorf("doctor:\n%s", stdout)
	}
	before := resident(t, r.options.Model)
	out, err := exec.Command(prefetchd, "--pid", fmt.Sprint(pid), "--dry-run", "--json").Output()
	var s prefetch.Summary
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil || s.Idle != "" || s.Expected != 0 || s.Disk <= 0 || s.Pinned < trunk*9/10 ||
		s.Experts == nil || s.Experts.Room <= 0 || s.Experts.Room >= experts || s.Experts.Chosen != 0 {
		t.Errorf("%v: %s", err, out)
	}
	if now := resident(t, r.options.Model); now > before+r.size/4 { // the target reads and loses pages, too
		t.Errorf("%d bytes of the model are in memory, want about the %d of before", now, before)
	}
	if err := r.target.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.target.Wait()
}
