package overhead

// In these tests the test program itself is the target. It is slowed down by a known amount while
// it is observed. One test attaches real probes.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/testenv"
)

// envTarget makes the test program a target. It names the file that exists while the target is
// observed.
const envTarget = "OVERHEAD_TEST_TARGET"

// envTrap makes the test program what "lab overhead trap" is.
const envTrap = "OVERHEAD_TEST_TRAP"

func TestMain(m *testing.M) {
	if os.Getenv(envTrap) != "" {
		playTrap(os.Args[1], os.Args[2])
		return
	}
	if flag := os.Getenv(envTarget); flag != "" {
		playTarget(flag, os.Args[1:])
		return
	}
	goleak.VerifyTestMain(m)
}

// playTrap sets the trap in the process pid until SIGINT.
func playTrap(pid, ggml string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	n, err := strconv.Atoi(pid)
	if err == nil {
		err = Trap(ctx, n, ggml)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// playTarget claims 1 ms for a token, and 1.25 ms for one that is observed.
func playTarget(flag string, args []string) {
	if len(args) > 0 && args[0] == "fail" {
		fmt.Fprintln(os.Stderr, "no memory\nno model")
		os.Exit(1)
	}
	fmt.Printf("{\"pid\":%d,\"threads\":2}\n", os.Getpid())
	for g := 0; ; g++ {
		if len(args) > 0 && args[0] == "crash" && g == 3 {
			fmt.Fprintln(os.Stderr, "boom")
			os.Exit(3)
		}
		for i := range 4 {
			time.Sleep(time.Millisecond)
			begin, took := monotonic(), int64(1e6)
			if _, err := os.Stat(flag); err == nil {
				took = 125e4
			}
			fmt.Printf("{\"generation\":%d,\"token\":%d,\"id\":%d,\"begin_ns\":%d,\"end_ns\":%d,\"text\":\"x\"}\n",
				g, i, 7*i, begin, begin+took)
			if os.Getppid() == 1 {
				return
			}
		}
	}
}

// planted is the configuration of a series with the played target. Its observers make the file
// flag, which counts as one probe.
func planted(t *testing.T, args ...string) (cfg Config, flag string) {
	t.Helper()
	flag = filepath.Join(t.TempDir(), "observed")
	t.Setenv(envTarget, flag)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Target: append([]string{self}, args...), Pairs: 6,
		probes: func(int) (int, error) {
			if _, err := os.Stat(flag); err != nil {
				return 0, nil
			}
			return 1, nil
		},
	}, flag
}

func observing(flag string) string {
	return fmt.Sprintf("sh -c 'trap \"rm %s; exit\" INT; touch %s; while :; do sleep 0.01; done' {pid} {out}", flag,
		flag)
}

func TestMeasurePlanted(t *testing.T) {
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprintf("whole=%v", whole), func(t *testing.T) {
			if whole {
				testenv.NeedMachine(t)
			}
			cfg, flag := planted(t)
			cfg.Whole = whole
			cfg.Observers = []Observer{{Name: "none"}, {Name: "planted", Command: observing(flag)},
				{Name: "absent", Command: "nosuch {pid}"}, {Name: "ends", Command: "echo no right {pid}"}}
			if whole {
				cfg.Observers = append(cfg.Observers,
					Observer{Name: "starts", Command: fmt.Sprintf("sh -c 'trap : INT; touch %s; \"$@\"; rm %s' sh "+
						"{target}", flag, flag)})
			}
			var steps int
			cfg.Progress = func(done, total int, what string) {
				if done < 0 || done > total || what == "" {
					t.Errorf("progress: %d of %d, %q", done, total, what)
				}
				steps++
			}
			r, err := Measure(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]struct {
				overhead float64
				probes   int
				err      string
			}{"none": {}, "planted": {0.2, 1, ""}, "starts": {0.2, 1, ""},
				"absent": {err: "nosuch is not installed"}, "ends": {err: "no right"}}
			for _, row := range r.Rows {
				w := want[row.Name]
				if w.err != "" {
					if !strings.Contains(row.Error, w.err) {
						t.Errorf("%s: error %q, want %q", row.Name, row.Error, w.err)
					}
					continue
				}
				if row.Error != "" || len(row.Pairs) != 6 || !row.SameText || row.Probes != w.probes {
					t.Errorf("%s: %+v", row.Name, row)
				}
				for _, got := range []float64{row.Overhead.Estimate, row.Overhead.Low, row.Overhead.High,
					row.Median, row.Token.Estimate} {
					if math.Abs(got-w.overhead) > 1e-9 {
						t.Errorf("%s: %+v, want %v everywhere", row.Name, row, w.overhead)
					}
				}
				if row.Plain != 1000 {
					t.Errorf("%s: plain %v tok/s, want 1000", row.Name, row.Plain)
				}
			}
			if steps == 0 || r.Run.Threads != 2 {
				t.Errorf("%d steps, %+v; want steps and 2 threads", steps, r.Run)
			}
		})
	}
}

func TestMeasureFails(t *testing.T) {
	for _, test := range []struct {
		arg  string
		want string
	}{{"fail", "no model"}, {"crash", "boom"}} {
		cfg, _ := planted(t, test.arg)
		cfg.Observers = []Observer{{Name: "none"}}
		if _, err := Measure(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.arg, err, test.want)
		}
	}
	for _, target := range []string{"/nonexistent", "true", "yes"} {
		cfg := Config{Target: []string{target}, Pairs: 6, Observers: []Observer{{Name: "none"}}}
		if _, err := Measure(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "target") {
			t.Errorf("%s: %v, want an error of the target", target, err)
		}
	}
}

func TestMeasureStops(t *testing.T) {
	cfg, flag := planted(t)
	cfg.Observers = []Observer{{Name: "planted", Command: observing(flag)}}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cfg.Progress = func(done, _ int, _ string) {
		if done == 5 {
			cancel(reason)
		}
	}
	r, err := Measure(ctx, cfg)
	if !errors.Is(err, reason) || r == nil || !r.Interrupted || len(r.Rows[0].Pairs) != 2 ||
		r.Rows[0].Overhead.Holds() || r.Rows[0].Plain != 1000 {
		t.Errorf("%v, want %v; %+v", err, reason, r)
	}

	// With enough pairs of one observer the report has its overhead. Before the first pair there is
	// no report.
	for after, want := range map[int]int{48: 12, 0: 0} {
		cfg, flag := planted(t)
		cfg.Pairs, cfg.Observers = 20, []Observer{{Name: "planted", Command: observing(flag)}, {Name: "none"}}
		ctx, cancel := context.WithCancelCause(t.Context())
		cfg.Progress = func(done, _ int, _ string) {
			if done == after {
				cancel(reason)
			}
		}
		r, err := Measure(ctx, cfg)
		if want == 0 {
			if r != nil || !errors.Is(err, reason) {
				t.Errorf("%v, %+v; want the cause and no report", err, r)
			}
			continue
		}
		var text bytes.Buffer
		if !errors.Is(err, reason) || !r.Interrupted || r.pairs() != 2*want ||
			math.Abs(r.Rows[0].Overhead.Estimate-0.2) > 1e-9 {
			t.Errorf("%v, %+v", err, r)
		} else if err := r.WriteText(&text); err != nil ||
			!strings.Contains(text.String(), "INTERRUPTED after 24 pairs") {
			t.Errorf("%v\n%s", err, &text)
		}
	}
}

func TestCheck(t *testing.T) {
	good := Config{Target: []string{"t"}, Pairs: 6, Observers: []Observer{{Name: "a"}, {Name: "b"}}}
	for want, change := range map[string]func(*Config){
		"no target":      func(c *Config) { c.Target = nil },
		"no observer":    func(c *Config) { c.Observers = nil },
		"5 pairs":        func(c *Config) { c.Pairs = 5 },
		"negative":       func(c *Config) { c.Settle = -1 },
		"has no name":    func(c *Config) { c.Observers = []Observer{{}} },
		"are named a":    func(c *Config) { c.Observers = []Observer{{Name: "a"}, {Name: "a"}} },
		"takes whole":    func(c *Config) { c.Observers = []Observer{{Name: "a", Command: "x {target}"}} },
		"":               func(*Config) {},
		"takes whole ru": func(c *Config) { c.Observers[1].Command = "{target}" },
	} {
		c := good
		c.Observers = append([]Observer(nil), good.Observers...)
		change(&c)
		if err := c.check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestReport(t *testing.T) {
	r := &Report{Target: []string{"/x/llamarun"}, Rows: []Row{
		{Observer: Observer{Name: "none"}, SameText: true},
		{Observer: Observer{Name: "a|b", Command: "c"}, SameText: false, Probes: 3},
		{Observer: Observer{Name: "broken", Command: "c"}, Error: "no permission", SameText: true},
		{Observer: Observer{Name: "few", Command: "c"}, SameText: true,
			Pairs: []Pair{{Plain: Segment{10, 100}, Observed: Segment{8, 125}}}},
		{Observer: Observer{Name: "empty", Command: "c"}, SameText: true},
	}}
	for i := range 6 {
		p := Pair{Plain: Segment{10, 100}, Observed: Segment{9, 100 / 0.9}}
		r.Rows[1].Pairs = append(r.Rows[1].Pairs, p)
		p.Observed = Segment{10 + float64(i-3)/100, 100}
		r.Rows[0].Pairs = append(r.Rows[0].Pairs, p)
	}
	r.summarise()
	var text, markdown bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{text.String(), markdown.String()} {
		for _, want := range []string{"llamarun", "10.00 to 10.00", "broken: not measured: no permission",
			"a|b: THE TEXT DIFFERS", "none: nobody observes",
			"few: 1 pairs are too few", "empty: 0 pairs are too few"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	}
	for line := range strings.Lines(markdown.String()) {
		if strings.HasPrefix(line, "|") && strings.Count(line, "|")-strings.Count(line, `\|`) != len(columns)+1 {
			t.Errorf("another number of columns than %d: %s", len(columns), line)
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// TestProbes checks that the probes which tracer and Trap set in a real llama.cpp are seen, and
// that none is left.
func TestProbes(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	tracer, remove, err := testenv.BuildPackage("tracer", "tensorcast/cmd/tracer")
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	model := llamatest.Model(t, synth.Config{Layers: 2, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0,
		Seed: 1})
	o := llama.Options{Model: model, Prompt: "x", Tokens: 16, Threads: 1, NoRepack: true, Stream: true, Repeat: 1 << 29}
	cfg := Config{Target: in.Command(t.Context(), o).Args, Pairs: 6, Observers: []Observer{
		{Name: "tracer", Command: tracer + " --pid {pid} -o {out}/capture"},
		{Name: "trap", Command: "env " + envTrap + "=1 " + self + " {pid} {ggml}"},
	}}
	r, err := Measure(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if row.Error != "" || row.Probes == 0 || !row.SameText || len(row.Pairs) != 6 || row.Plain <= 0 ||
			row.Observed <= 0 {
			t.Errorf("%+v", row)
		}
	}
	if n, err := countProbes(os.Getpid()); n != 0 || err != nil {
		t.Errorf("%d probes in this process, %v; want 0", n, err)
	}
}
