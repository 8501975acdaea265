package pressure

// This file tests whole series: on a scripted target, whose reads, text and memory are known, and on a real llama.cpp.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script reads the model once per token, and does what its second argument says. It leaves time to read counters at a mark: what cat
// reads is the script's when cat ends, and the group's at once.
const script = `
model=$1 what=$2
case $what in
fail) echo 'no such weight' >&2; exit 3;;
garbage) echo hello; exit 0;;
eat) exec dd if=/dev/zero of=/dev/null bs=200M count=1 status=none;;
hang) sleep 1000;;
esac
[ "$what" = unmarked ] && exec 3>/dev/null
printf b >&3
sleep 0.05
for i in 1 2 3 4; do cat "$model" >/dev/null; printf t >&3; sleep 0.05; done
text=same
[ "$what" = other ] && text=other
echo '{"text":"'$text'","tokens":[1,2,3,4],"token_ms":[10,20,20,10],"tok_s":66.7,"prompt_ms":5,"load_ms":7}'
`

const scriptModel = 48 << 20

// needs skips the test where control groups cannot be made, and checks at its end that none is left, nor a descriptor.
func needs(t *testing.T) {
	t.Helper()
	testenv.NeedRoot(t)
	root, err := cgroup.Root()
	if errors.Is(err, cgroup.ErrNoController) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	probe, err := cgroup.Create(root, fmt.Sprintf("tensorcast-test-%d", os.Getpid()))
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EBUSY) {
		t.Skipf("control groups cannot be made here: %v", err) // in a container
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := probe.Remove(); err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	t.Cleanup(func() {
		for _, file := range root.ProcsFiles() {
			left, err := filepath.Glob(filepath.Join(filepath.Dir(file), fmt.Sprintf("tensorcast-pressure-%d-*", os.Getpid())))
			if err != nil || len(left) > 0 {
				t.Errorf("control groups are left: %v, %v", left, err)
			}
		}
		if after := descriptors(t); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	// The runtime opens its own when it first waits for a pipe: they are not files.
	n := 0
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(target, "anon_inode:") {
			n++
		}
	}
	return n
}

// scripted is a series of the script on a file of its own.
func scripted(t *testing.T) Config {
	t.Helper()
	needs(t)
	f := diskFile(t, scriptModel)
	if _, err := diskOf(f.Name()); err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "target.sh")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return Config{
		Model: f.Name(), Target: []string{"/bin/sh", path, f.Name()}, Weights: scriptModel, X: 0.5, Repeat: 1, Variants: []Variant{{Name: "plain"}},
		Disk: DiskOptions{Depths: []int{4}, Blocks: []int{1 << 20}, PointTime: 50 * time.Millisecond},
	}
}

func TestSeries(t *testing.T) {
	cfg := scripted(t)
	cfg.Repeat = 2
	cfg.Variants = []Variant{
		{Name: "plain"},
		{Name: "other", Flags: "other"},
		{Name: "eats", Flags: "eat"},
		{Name: "dies", Helper: "sh -c 'echo helper is gone; exit 7'"},
		{Name: "helped", Helper: `sh -c 'echo target {pid}; cat /proc/{pid}/cgroup /proc/self/cgroup; tr "\0" " " < /proc/{pid}/cmdline; echo; exec sleep 1000'`},
		{Name: "again"},
	}
	r, err := measure(t.Context(), cfg, 0)
	// A kernel that reclaims cold pages by itself (DAMON) may take one of the file, or of cat, before the run in memory. A wrong account would be wrong each time.
	for again := 0; err == nil && again < 3 && r.Unlimited[1].BytesPerToken != 0; again++ {
		t.Logf("%.0f bytes a token were read of a file in memory: once more", r.Unlimited[1].BytesPerToken)
		r, err = measure(t.Context(), cfg, 0)
	}
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	for _, run := range r.Runs {
		names = append(names, run.Variant)
	}
	if want := []string{"plain", "other", "eats", "dies", "helped", "again", "again", "helped", "dies", "eats", "other", "plain"}; !slices.Equal(names, want) {
		t.Errorf("order %v, want %v", names, want)
	}
	if r.Own <= 0 || r.Own > 16<<20 {
		t.Errorf("the script takes %d bytes beside the file", r.Own)
	}
	if want := (scriptModel/2 + r.Own) &^ int64(os.Getpagesize()-1); r.Limit != want {
		t.Errorf("limit %d, want %d", r.Limit, want)
	}
	for _, run := range r.Runs {
		if run.Cached != 0 {
			t.Errorf("%s: %d bytes were cached before", run.Variant, run.Cached)
		}
		if run.Variant == "eats" {
			if run.Outcome != Killed || run.OOMKills != 1 || run.TextSame {
				t.Errorf("%s: %+v", run.Variant, run)
			}
			continue
		}
		if run.Outcome != Finished {
			t.Errorf("%s: %s: %s", run.Variant, run.Outcome, run.Error)
			continue
		}
		if run.TextSame != (run.Variant != "other") {
			t.Errorf("%s: text %q, same %v", run.Variant, run.Text, run.TextSame)
		}
		if run.Peak <= 0 || run.Peak > r.Limit {
			t.Errorf("%s: used %d of %d", run.Variant, run.Peak, r.Limit)
		}
		// A cyclic scan of what does not fit reads nearly all of it, every time; more if readahead brings what is evicted before its
		// use. Cat reads it, nobody else: the kernel adds it to its parent's account.
		if run.BytesPerToken < 0.8*scriptModel {
			t.Errorf("%s: %.0f bytes per token, want %d or more", run.Variant, run.BytesPerToken, scriptModel)
		}
		if both := run.TargetPerToken + run.HelperPerToken; both < 0.9*run.BytesPerToken || both > 1.1*run.BytesPerToken {
			t.Errorf("%s: %.0f bytes per token by the group's account, %.0f by the processes'", run.Variant, run.BytesPerToken, both)
		}
		var sum int64
		for _, n := range run.TokenBytes {
			sum += n
		}
		if len(run.TokenBytes) != 4 || float64(sum) != 4*run.BytesPerToken {
			t.Errorf("%s: by token %v, in the mean %.0f", run.Variant, run.TokenBytes, run.BytesPerToken)
		}
		if run.DiskBytesPerToken < run.BytesPerToken {
			t.Errorf("%s: the disk gave %.0f, the group took %.0f", run.Variant, run.DiskBytesPerToken, run.BytesPerToken)
		}
		if run.TokS != 66.7 || run.P5 != 50 || run.PromptMs != 5 || run.LoadMs != 7 {
			t.Errorf("%s: %+v", run.Variant, run)
		}
		switch h := run.Helper; run.Variant {
		case "dies":
			if h == nil || !h.Early || h.Status != "exit status 7" || h.Output != "helper is gone\n" {
				t.Errorf("dies: helper %+v", h)
			}
		case "helped":
			if h == nil || h.Early || h.Status != "signal: terminated" {
				t.Fatalf("helped: helper %+v", h)
			}
			// Its control groups and the target's are the same ones, made for this run; the target is no longer the shell that joins.
			lines := strings.Split(h.Output, "\n")
			half := (len(lines) - 3) / 2
			if group := fmt.Sprintf("/tensorcast-pressure-%d-", os.Getpid()); !strings.Contains(h.Output, group) || !slices.Equal(lines[1:1+half], lines[1+half:1+2*half]) {
				t.Errorf("helped: groups %q", lines)
			}
			if want := strings.Join(cfg.Target, " ") + " "; lines[len(lines)-2] != want {
				t.Errorf("helped: the target was %q, want %q", lines[len(lines)-2], want)
			}
		default:
			if h != nil {
				t.Errorf("%s: helper %+v", run.Variant, h)
			}
		}
	}
	for _, u := range r.Unlimited {
		if u.Outcome != Finished || !u.TextSame || u.Limit != 0 {
			t.Errorf("%+v", u)
		}
	}
	if cold, warm := r.Unlimited[0], r.Unlimited[1]; cold.Cached != 0 || warm.Cached != scriptModel || warm.BytesPerToken != 0 || cold.Own != r.Own {
		t.Errorf("cold %+v\nwarm %+v", cold, warm)
	}
	if len(r.Noise) != 1 || r.Noise[0].A != "plain" || r.Noise[0].B != "again" {
		t.Errorf("noise %+v", r.Noise)
	}
	if s := r.Summaries[2]; s.Killed != 2 || s.Finished != 0 || s.Runs != 2 {
		t.Errorf("eats: %+v", s)
	}

	var text, markdown strings.Builder
	if err := errors.Join(r.WriteText(&text), r.WriteMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	for _, want := range []string{"other: THE TEXT DIFFERS", "eats, round 1: oom-killed", "dies, round 2: the helper ended before the target (exit status 7): helper is gone", "2 of 2"} {
		if !strings.Contains(text.String(), want) || !strings.Contains(markdown.String(), want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	if b, err := json.Marshal(r); err != nil {
		t.Error(err)
	} else if again := new(Report); json.Unmarshal(b, again) != nil || !reflect.DeepEqual(again.Runs, r.Runs) {
		t.Error("the runs do not survive JSON")
	}
}

// The readahead is another one while runs go on, and as it was when they are over.
func TestReadahead(t *testing.T) {
	cfg := scripted(t)
	d, err := diskOf(cfg.Model)
	if err != nil {
		t.Fatal(err)
	}
	before, err := d.readahead()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Readahead = before + 4
	during := 0
	cfg.Progress = func(_, _ int, what string) {
		if strings.HasPrefix(what, "plain: token") {
			during, err = d.readahead()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, measureErr := measure(ctx, cfg, 0)
	if measureErr != nil || err != nil {
		t.Fatal(measureErr, err)
	}
	if during != before+4 || r.Disk.ReadaheadKiB != before+4 || r.Disk.ReadaheadKiBBefore != before {
		t.Errorf("%d KiB during the series, report %+v; was %d", during, r.Disk, before)
	}
	if after, err := d.readahead(); after != before || err != nil {
		t.Errorf("readahead %d KiB afterwards, was %d (%v)", after, before, err)
	}
}

// What a target does wrong without a limit ends the series with a reason; under the limit it is a result.
func TestTargetFails(t *testing.T) {
	for what, want := range map[string]string{
		"fail":     "no such weight",
		"garbage":  "result of llamarun",
		"unmarked": "4 tokens and wrote 0 marks to descriptor 3",
	} {
		cfg := scripted(t)
		cfg.Variants[0].Flags = what
		r, err := measure(t.Context(), cfg, 0)
		if err != nil {
			t.Fatal(err)
		}
		if run := r.Runs[0]; run.Outcome != Failed || !strings.Contains(run.Error, want) || run.TextSame {
			t.Errorf("%s: %s %q, want %q", what, run.Outcome, run.Error, want)
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "plain, round 1: failed: ") {
			t.Errorf("%s: %v, report\n%s", what, err, text.String())
		}
		cfg.Target = append(cfg.Target, what)
		if _, err := measure(t.Context(), cfg, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s without a limit: error %v, want %q", what, err, want)
		}
	}
}

func TestMeasureRefuses(t *testing.T) {
	good := scripted(t)
	for name, test := range map[string]struct {
		change func(c *Config)
		want   string
	}{
		"no model":       {func(c *Config) { c.Model += "-not" }, "no such file"},
		"directory":      {func(c *Config) { c.Model = filepath.Dir(c.Model) }, "not a regular file"},
		"no target":      {func(c *Config) { c.Target = []string{"/no/such/program"} }, "/no/such/program"},
		"no limit":       {func(c *Config) { c.X = 0 }, "limit"},
		"two limits":     {func(c *Config) { c.Limit = 1 << 30 }, "limit"},
		"small limit":    {func(c *Config) { c.X, c.Limit = 0, 64<<10 }, "leaves nothing for the model"},
		"no repeat":      {func(c *Config) { c.Repeat = 0 }, "repeat"},
		"no variant":     {func(c *Config) { c.Variants = nil }, "variant"},
		"equal variants": {func(c *Config) { c.Variants = []Variant{{Name: "a"}, {Name: "a"}} }, "named a"},
		"traced script":  {func(c *Config) { c.Weights = 0 }, "measure the weights that a token reads"},
	} {
		cfg := good
		test.change(&cfg)
		if _, err := measure(t.Context(), cfg, 0); err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line with %q", name, err, test.want)
		}
	}
}

// Ending the context ends target and helper at once.
func TestCancel(t *testing.T) {
	cfg := scripted(t)
	cfg.Variants = []Variant{{Name: "plain", Flags: "hang", Helper: "sleep 1000"}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg.Log = slog.New(slog.DiscardHandler)
	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := measure(ctx, cfg, 0)
		done <- err
	}()
	for n := 0; n < 2; { // target and helper run
		left, err := filepath.Glob(filepath.Join(root.Dir(), fmt.Sprintf("tensorcast-pressure-%d-2", os.Getpid()), "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range left {
			text, _ := os.ReadFile(file)
			n = len(strings.Fields(string(text)))
		}
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// A series that is cut short reports the runs before; without any there is no report.
func TestInterrupted(t *testing.T) {
	cfg := scripted(t)
	cfg.Repeat = 3
	for after, want := range map[int]int{2: 0, 4: 2} { // two runs are without a limit
		ctx, cancel := context.WithCancel(t.Context())
		cfg.Progress = func(done, _ int, what string) {
			if done == after && strings.HasPrefix(what, "plain: token") {
				cancel()
			}
		}
		r, err := measure(ctx, cfg, 0)
		cancel()
		if !errors.Is(err, context.Canceled) || (r == nil) != (want == 0) {
			t.Fatalf("%v, %+v", err, r)
		}
		if r == nil {
			continue
		}
		var text, markdown strings.Builder
		if err := errors.Join(r.WriteText(&text), r.WriteMarkdown(&markdown)); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(r)
		if err != nil || !strings.Contains(string(data), `"interrupted":true`) {
			t.Errorf("%v: %s", err, data)
		}
		if len(r.Runs) != want || r.Summaries[0].Finished != want || r.Compute <= 0 || !strings.Contains(text.String(), "INTERRUPTED after 2 runs") || !strings.Contains(markdown.String(), "* INTERRUPTED after 2 runs") {
			t.Errorf("%s\n%+v", &text, r)
		}
	}
}

// A real llama.cpp: M is what the driver says that its ops read, and a model that does not fit is read again and again.
func TestLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	needs(t)
	base := synth.Config{Type: gguf.Q8_0, Seed: 1}
	size, err := synth.Sized(60e6, base)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := synth.NewPlan(size)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	o := llama.Options{Model: filepath.Join(dir, "model.gguf"), Prompt: "x", Tokens: 4, Threads: 2, NoRepack: true}
	if err := plan.WriteFile(t.Context(), o.Model, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := diskOf(o.Model); err != nil {
		t.Skip(err)
	}
	o.Ops = filepath.Join(dir, "ops")
	if _, err := in.Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	var want int64 // of the last decode, which is a generated token's
	ops, err := llama.ReadOps(o.Ops)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		if op.Decode == ops[len(ops)-1].Decode {
			want += op.Bytes
		}
	}

	o.Ops, o.Mark = "", markFD
	cfg := Config{
		Model: o.Model, Target: in.Command(t.Context(), o).Args, X: 0.7, Repeat: 1, Variants: []Variant{{Name: "plain"}, {Name: "mlock", Flags: "--load-mode=none"}},
		Disk: DiskOptions{Depths: []int{4}, Blocks: []int{1 << 20}, PointTime: 50 * time.Millisecond},
	}
	r, err := measure(t.Context(), cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r.Model.TokenBytes != want || r.Model.Routed {
		t.Errorf("a token reads %d bytes (routed %v), want %d", r.Model.TokenBytes, r.Model.Routed, want)
	}
	plain, unmapped := r.Runs[0], r.Runs[1]
	if plain.Outcome != Finished || !plain.TextSame || plain.Faults == 0 || plain.BytesPerToken < 0.3*float64(want) {
		t.Errorf("plain: %+v", plain)
	}
	if unmapped.Outcome != Killed { // all weights in anonymous memory: more than the limit
		t.Errorf("without mmap: %s %s", unmapped.Outcome, unmapped.Error)
	}
	if r.Bound <= 0 || r.Bound > 1/r.Compute || r.Summaries[0].OfBound <= 0 {
		t.Errorf("bound %v of 1/%v, reached %v", r.Bound, r.Compute, r.Summaries[0].OfBound)
	}
}
