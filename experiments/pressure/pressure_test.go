package pressure

// This file tests whole series: on a scripted target, whose reads, text and memory are known, and on a real llama.cpp.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/cgroup/cgrouptest"
	"tensorcast/internal/testenv"
)

// With loadArg the test's program is the command that Config.Load names.
const loadArg = "load-for-the-test"

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == loadArg {
		l, err := Load(context.Background(), os.Args[3], Unit(os.Args[2]))
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(l)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// script reads the model once per token, and does what its second argument says. It sleeps so that
// counters can be read at a mark: what cat reads is added to the group's account at once, but to
// the script's only when cat ends.
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

// needControlGroups skips the test where control groups cannot be made. At the end of the test it checks that
// no control group is left, nor a descriptor.
func needControlGroups(t *testing.T) {
	t.Helper()
	root := cgrouptest.Need(t)
	before := descriptors(t)
	t.Cleanup(func() {
		for _, file := range root.ProcsFiles() {
			left, err := filepath.Glob(filepath.Join(filepath.Dir(file),
				fmt.Sprintf("tensorcast-pressure-%d-*", os.Getpid())))
			if err != nil || len(left) > 0 {
				t.Errorf("control groups are left: %v, %v; want none", left, err)
			}
		}
		if after := descriptors(t); after > before {
			t.Errorf("%d descriptors before, %d after; want no more", before, after)
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	// The runtime opens descriptors of its own when it first waits for a pipe. They are not files.
	n := 0
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil &&
			!strings.HasPrefix(target, "anon_inode:") {
			n++
		}
	}
	return n
}

// scripted is the configuration of a series that runs the script on a file of its own.
func scripted(t *testing.T) Config {
	t.Helper()
	needControlGroups(t)
	f := diskFile(t, scriptModel)
	if _, err := diskOf(f.Name()); err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "target.sh")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return Config{
		Model: f.Name(), Target: []string{"/bin/sh", path, f.Name()}, Weights: scriptModel,
		Settings: []Setting{{X: 0.5}}, Repeat: 1, Skip: 1, Variants: []Variant{{Name: "plain"}},
		Disk: DiskOptions{Settings: []DiskSetting{{1 << 20, 4}}, PointTime: 50 * time.Millisecond},
	}
}

// Processor time in the kernel is counted, also that of children that have ended.
func TestSystemTime(t *testing.T) {
	before := systemTime(os.Getpid())
	testenv.WaitFor(t, "time in the kernel", func() bool {
		for range 1000 {
			_, _ = os.Stat("/")
		}
		return systemTime(os.Getpid()) > before
	})
	before = systemTime(os.Getpid())
	if err := exec.Command("dd", "if=/dev/zero", "of=/dev/null", "bs=64k", "count=300000",
		"status=none").Run(); err != nil {
		t.Fatal(err)
	}
	// Clearing 20 GB takes a processor three tenths of a second at least. Starting one program
	// takes this process a millisecond or two.
	if got := systemTime(os.Getpid()) - before; got < 5 {
		t.Errorf("%d/%d s of a child are counted, want 5 or more", got, userHZ)
	}
	if got := systemTime(1 << 30); got != 0 {
		t.Errorf("time of a process that does not exist: %d, want 0", got)
	}
}

func TestSeries(t *testing.T) {
	cfg := scripted(t)
	cfg.Repeat = 2
	cfg.Load = []string{os.Args[0], loadArg}
	cfg.Variants = []Variant{
		{Name: "plain"},
		{Name: "other", Flags: "other"},
		{Name: "eats", Flags: "eat"},
		{Name: "dies", Helper: "sh -c 'echo helper is gone; exit 7'"},
		{Name: "helped", Helper: `sh -c 'echo target {pid} {limit} {room} {model}; cat /proc/{pid}/cgroup /proc/self/cgroup; tr "\0" " " < /proc/{pid}/cmdline; echo; exec sleep 1000'`},
		{Name: "launched", Launcher: `sh -c 'echo limit {limit} >&2; "$@"; exit $?' launcher`, Flags: "''"},
		{Name: "again"},
	}
	r, err := measure(t.Context(), cfg, 0)
	// A kernel that reclaims cold pages by itself (DAMON) may take away a page of the file, or of
	// cat, before the run in memory. A wrong account would be wrong each time.
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
	if want := []string{"plain", "other", "eats", "dies", "helped", "launched", "again", "again", "launched",
		"helped", "dies", "eats", "other", "plain"}; !slices.Equal(names, want) {
		t.Errorf("order %v, want %v", names, want)
	}
	if r.Own <= 0 || r.Own > 16<<20 {
		t.Errorf("the script takes %d bytes beside the file, want 1 to 16 MiB", r.Own)
	}
	at := &r.Results[0]
	if want := (scriptModel/2 + r.Own) &^ int64(os.Getpagesize()-1); at.Limit != want || math.Abs(at.X-0.5) > 0.001 {
		t.Errorf("limit %d, want %d; x = %v", at.Limit, want, at.X)
	}
	var after []int // runs before each reading of the disk
	for _, reading := range r.Readings {
		after = append(after, reading.AfterRuns)
	}
	if !slices.Equal(after, []int{0, 7, 14}) {
		t.Errorf("the disk was measured after %v runs, want after 0, 7 and 14", after)
	}
	for _, run := range r.Runs {
		if run.Cached != 0 {
			t.Errorf("%s: %d bytes were cached before, want 0", run.Variant, run.Cached)
		}
		if run.Variant == "eats" {
			if run.Outcome != Killed || run.OOMKills != 1 || run.TextSame {
				t.Errorf("%s: %+v, want one kill and no text", run.Variant, run)
			}
			continue
		}
		if run.Outcome != Finished {
			t.Errorf("%s: %s: %s; want it finished", run.Variant, run.Outcome, run.Error)
			continue
		}
		if run.TextSame != (run.Variant != "other") {
			t.Errorf("%s: text %q, same %v, want the other", run.Variant, run.Text, run.TextSame)
		}
		if run.Peak <= 0 || run.Peak > at.Limit {
			t.Errorf("%s: used %d bytes, want 1 to %d", run.Variant, run.Peak, at.Limit)
		}
		// A cyclic scan of a file that does not fit reads nearly all of it every time. It reads
		// more if readahead brings pages that are evicted before their use. It is cat that reads
		// it: the kernel adds that to its parent's account.
		if run.BytesPerToken < 0.8*scriptModel {
			t.Errorf("%s: %.0f bytes per token, want %d or more", run.Variant, run.BytesPerToken, scriptModel)
		}
		if both := run.TargetPerToken + run.HelperPerToken; both < 0.9*run.BytesPerToken ||
			both > 1.1*run.BytesPerToken {
			t.Errorf("%s: %.0f bytes per token by the group's account, %.0f by the processes', want the same",
				run.Variant,
				run.BytesPerToken, both)
		}
		var sum int64
		for _, n := range run.TokenBytes {
			sum += n
		}
		if len(run.TokenBytes) != 4 || float64(sum) != 4*run.BytesPerToken {
			t.Errorf("%s: by token %v, want 4 with a mean of %.0f", run.Variant, run.TokenBytes, run.BytesPerToken)
		}
		if run.DiskBytesPerToken < run.BytesPerToken {
			t.Errorf("%s: the disk gave %.0f bytes, want at least the group's %.0f", run.Variant, run.DiskBytesPerToken,
				run.BytesPerToken)
		}
		if s := run.Steady; s == nil || math.Abs(s.TokS-60) > 1e-9 ||
			s.BytesPerToken != float64(sum-run.TokenBytes[0])/3 || math.Abs(s.StartShare-1.0/6) > 1e-9 {
			t.Errorf("%s: steady state %+v, want 60 tok/s and a start-up of 1/6", run.Variant, s)
		}
		if run.TokS != 66.7 || run.P5 != 50 || run.PromptMs != 5 || run.LoadMs != 7 {
			t.Errorf("%s: %+v, want 66.7 tok/s, p5 50, a prompt of 5 ms and a load of 7 ms", run.Variant, run)
		}
		switch h := run.Helper; run.Variant {
		case "dies":
			if h == nil || !h.Early || h.Status != "exit status 7" || h.Output != "helper is gone\n" {
				t.Errorf("dies: helper %+v, want an early end with status 7", h)
			}
		case "helped":
			if h == nil || h.Early || h.Status != "signal: terminated" {
				t.Fatalf("helped: helper %+v, want it ended by SIGTERM", h)
			}
			if want := fmt.Sprintf("target %s %d %d %s", strings.Fields(firstLine(h.Output))[1], at.Limit,
				at.Limit-r.Own, cfg.Model); firstLine(h.Output) != want {
				t.Errorf("helped: %q, want %q", firstLine(h.Output), want)
			}
			// The helper's control groups are the target's, made for this run. The target is no
			// longer the shell that joined the group.
			lines := strings.Split(h.Output, "\n")
			half := (len(lines) - 3) / 2
			if group := fmt.Sprintf("/tensorcast-pressure-%d-", os.Getpid()); !strings.Contains(h.Output, group) ||
				!slices.Equal(lines[1:1+half], lines[1+half:1+2*half]) {
				t.Errorf("helped: groups %q, want those of the target", lines)
			}
			if want := strings.Join(cfg.Target, " ") + " "; lines[len(lines)-2] != want {
				t.Errorf("helped: the target was %q, want %q", lines[len(lines)-2], want)
			}
		default:
			if h != nil {
				t.Errorf("%s: helper %+v, want none", run.Variant, h)
			}
		}
	}
	for _, u := range r.Unlimited {
		if u.Outcome != Finished || !u.TextSame || u.Limit != 0 {
			t.Errorf("%+v, want it finished with the same text and no limit", u)
		}
	}
	if cold, warm := r.Unlimited[0], r.Unlimited[1]; cold.Cached != 0 || warm.Cached != scriptModel ||
		warm.BytesPerToken != 0 || cold.Own != r.Own || cold.Loaded != nil {
		t.Errorf("cold %+v\nwarm %+v\nwant nothing cached, and all of the file cached", cold, warm)
	}
	checkUnits(t, r)
	if len(at.Noise) != 1 || at.Noise[0].A != "plain" || at.Noise[0].B != "again" {
		t.Errorf("noise %+v, want one pair, plain and again", at.Noise)
	}
	if s := at.Summaries[2]; s.Killed != 2 || s.Finished != 0 || s.Runs != 2 {
		t.Errorf("eats: %+v, want 2 of 2 killed", s)
	}

	var text, markdown strings.Builder
	if err := errors.Join(r.WriteText(&text), r.WriteMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text.String())
	for _, want := range []string{"other: THE TEXT DIFFERS", "eats, round 1: oom-killed",
		"dies, round 2: the helper ended before the target (exit status 7): helper is gone", "2 of 2"} {
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

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// checkUnits checks that the model was in memory in the unit that the runs are named after, and
// that the faster unit counts.
func checkUnits(t *testing.T, r *Report) {
	t.Helper()
	var units []Unit
	for _, u := range r.Unlimited {
		units = append(units, u.In)
		switch l := u.Loaded; {
		case u.In == "":
		case l == nil || l.Resident < scriptModel*9/10: // DAMON may have taken a few
			t.Errorf("in %s: %+v", u.In, l)
		case l.Unknown != "":
			t.Logf("not known what it is made of: %s", l.Unknown)
		case u.In == Pages && l.Large > 0, u.In == Folios && l.Large < scriptModel/2, l.Huge > l.Large:
			t.Errorf("in %s: %+v", u.In, l)
		}
	}
	want := []Unit{"", Pages, Folios, Pages, Folios}
	if r.NoFolios != "" {
		t.Logf("no folios: %s", r.NoFolios)
		want = []Unit{"", Pages, Pages}
	}
	if !slices.Equal(units, want) {
		t.Errorf("runs in %q, want %q (%s)", units, want, r.NoFolios)
	}
}

// At each setting the disk has the readahead that the setting names. In the end it is what it was
// before.
func TestSettings(t *testing.T) {
	testenv.NeedReadahead(t)
	cfg := scripted(t)
	d, err := diskOf(cfg.Model)
	if err != nil {
		t.Fatal(err)
	}
	before, err := d.readahead()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Settings = []Setting{{X: 0.7, Readahead: before + 4}, {X: 0.5, Readahead: before + 8}}
	cfg.Variants = append(cfg.Variants, Variant{Name: "again"})
	var during []int
	cfg.Progress = func(_, _ int, what string) {
		if strings.HasSuffix(what, "again: token 4") {
			kib, err := d.readahead()
			if err != nil {
				t.Error(err)
			}
			during = append(during, kib)
		}
	}
	r, err := measure(t.Context(), cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{before + 4, before + 8}; !slices.Equal(during, want) || r.Results[0].ReadaheadKiB != want[0] ||
		r.Results[1].ReadaheadKiB != want[1] || r.Disk.ReadaheadKiBBefore != before {
		t.Errorf("%v KiB during the series, want %v; report %+v, %+v", during, want, r.Disk, r.Results)
	}
	if after, err := d.readahead(); after != before || err != nil {
		t.Errorf("readahead %d KiB afterwards, want %d (%v)", after, before, err)
	}
	var runs []string
	for _, run := range r.Runs {
		runs = append(runs, fmt.Sprint(run.Variant, " ", run.Setting))
		if run.Limit != r.Results[run.Setting].Limit {
			t.Errorf("%s at setting %d: limit %d, want %d", run.Variant, run.Setting, run.Limit,
				r.Results[run.Setting].Limit)
		}
	}
	if want := []string{"plain 0", "again 0", "plain 1", "again 1"}; !slices.Equal(runs, want) {
		t.Errorf("runs %q, want %q", runs, want)
	}
	if r.Results[0].Limit <= r.Results[1].Limit || r.Results[0].Bound <= 0 || len(r.Results[1].Summaries) != 2 ||
		r.Results[1].Summaries[1].Finished != 1 {
		t.Errorf("results %+v, want a larger limit first, a bound and two summaries", r.Results)
	}
	if len(r.Readings) != 5 { // before, in the middle and at the end of each
		t.Errorf("%d readings of the disk, want 5", len(r.Readings))
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{fmt.Sprintf("x = 0.70, readahead %d KiB: limit", before+4),
		fmt.Sprintf("x = 0.50, readahead %d KiB: limit", before+8),
		"All settings: tok/s in the steady state (after token 1)"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, text.String())
		}
	}
}

// The target's reads through the page cache take as long as the throttle demands.
func TestThrottle(t *testing.T) {
	cfg := scripted(t)
	cfg.Throttle = 100e6
	var begin, end time.Time
	cfg.Progress = func(_, _ int, what string) {
		switch what {
		case "plain: token 0":
			begin = time.Now()
		case "plain: token 4":
			end = time.Now()
		}
	}
	r, err := measure(t.Context(), cfg, 0)
	if errors.Is(err, cgroup.ErrNoDiskControl) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	// The kernel lets pass at once what it allows for a slice of time.
	read := 4 * r.Runs[0].BytesPerToken
	if took, least := end.Sub(begin).Seconds(), 0.8*read/100e6; took < least {
		t.Errorf("%.0f bytes were read in %.2f s, which takes %.2f or more at 100 MB/s", read, took, least)
	}
	if r.BW > 100e6 || r.DiskBW < r.BW {
		t.Errorf("bandwidth %v, want the throttle's 1e8 at most; the disk's %v", r.BW, r.DiskBW)
	}
}

// A target that fails without a limit ends the series with a reason. Under the limit the failure is
// a result.
func TestTargetFails(t *testing.T) {
	wants := map[string]string{
		"fail":     "no such weight",
		"garbage":  "result of llamarun",
		"unmarked": "4 tokens and wrote 0 marks to descriptor 3",
	}
	cfg := scripted(t)
	cfg.Variants = nil
	for what := range wants {
		cfg.Variants = append(cfg.Variants, Variant{Name: what, Flags: what})
	}
	r, err := measure(t.Context(), cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || len(r.Runs) != len(wants) {
		t.Fatalf("%v, %d runs, want %d", err, len(r.Runs), len(wants))
	}
	for _, run := range r.Runs {
		want := wants[run.Variant]
		if run.Outcome != Failed || !strings.Contains(run.Error, want) || run.TextSame {
			t.Errorf("%s: %s %q, want %q", run.Variant, run.Outcome, run.Error, want)
		}
		if !strings.Contains(text.String(), run.Variant+", round 1: failed: ") {
			t.Errorf("%s: want a failed run in the report\n%s", run.Variant, text.String())
		}
	}
	for what, want := range wants {
		alone := cfg
		alone.Target, alone.Variants = append(slices.Clone(cfg.Target), what), []Variant{{Name: "plain"}}
		if _, err := measure(t.Context(), alone, 0); err == nil || !strings.Contains(err.Error(), want) {
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
		"no limit":       {func(c *Config) { c.Settings = nil }, "limit"},
		"two limits":     {func(c *Config) { c.Settings = []Setting{{X: 0.5, Limit: 1 << 30}} }, "limit"},
		"equal settings": {func(c *Config) { c.Settings = []Setting{{X: 0.5}, {X: 0.5}} }, "x = 0.5"},
		"small limit": {func(c *Config) { c.Settings = append(c.Settings, Setting{Limit: 64 << 10}) },
			"leaves nothing for the model"},
		"no repeat":      {func(c *Config) { c.Repeat = 0 }, "repeat"},
		"no variant":     {func(c *Config) { c.Variants = nil }, "variant"},
		"equal variants": {func(c *Config) { c.Variants = []Variant{{Name: "a"}, {Name: "a"}} }, "named a"},
		"traced script":  {func(c *Config) { c.Weights = 0 }, "measure the weights that a token reads"},
	} {
		cfg := good
		test.change(&cfg)
		if _, err := measure(t.Context(), cfg, 0); err == nil || !strings.Contains(err.Error(), test.want) ||
			strings.Contains(err.Error(), "\n") {
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
		left, err := filepath.Glob(filepath.Join(root.Dir(), fmt.Sprintf("tensorcast-pressure-%d-*", os.Getpid()),
			"cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range left {
			text, _ := os.ReadFile(file)
			n = 0
			for _, pid := range strings.Fields(string(text)) {
				line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				if strings.HasPrefix(string(line), "sleep\x001000") {
					n++
				}
			}
		}
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want one of a cancelled context", err)
	}
}

// A series that is cut short reports the runs so far. Without any run there is no report.
func TestInterrupted(t *testing.T) {
	cfg := scripted(t)
	cfg.Repeat = 3
	first := 0 // how many runs without a limit come before the others
	for _, want := range []int{0, 2} {
		ctx, cancel := context.WithCancel(t.Context())
		cfg.Progress = func(done, _ int, what string) {
			if !strings.HasPrefix(what, "plain: token") {
				return
			}
			if first == 0 {
				first = done
			}
			if done == first+want {
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
		if len(r.Runs) != want || r.Results[0].Summaries[0].Finished != want || r.Compute <= 0 ||
			!strings.Contains(text.String(), "INTERRUPTED after 2 runs") ||
			!strings.Contains(markdown.String(), "* INTERRUPTED after 2 runs") {
			t.Errorf("%s\n%+v", &text, r)
		}
	}
}

// This runs a real llama.cpp. M is what the driver says that its ops read, and a model that does
// not fit is read again and again.
func TestLlama(t *testing.T) {
	in := llamatest.ForTest(t)
	needControlGroups(t)
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
	o := llama.Options{Model: filepath.Join(dir, "model.gguf"), Prompt: "x", Tokens: 4, Threads: 1, NoRepack: true}
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
		Model: o.Model, Target: in.Command(t.Context(), o).Args, Settings: []Setting{{X: 0.7}}, Repeat: 1,
		Variants: []Variant{{Name: "plain"}, {Name: "copied", Flags: "--load-mode=none"}},
		Disk:     DiskOptions{Settings: []DiskSetting{{1 << 20, 4}}, PointTime: 50 * time.Millisecond},
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
		t.Errorf("plain: %+v, want it finished, with faults and reads", plain)
	}
	// All weights are in anonymous memory, which is more than the limit.
	if unmapped.Outcome != Killed {
		t.Errorf("without mmap: %s %s, want it killed", unmapped.Outcome, unmapped.Error)
	}
	if at := r.Results[0]; at.Bound <= 0 || at.Bound > 1/r.Compute || at.Summaries[0].OfBound <= 0 {
		t.Errorf("bound %v, want a positive one up to 1/%v; reached %v", at.Bound, r.Compute, at.Summaries[0].OfBound)
	}
}
