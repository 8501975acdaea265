package serverload

// In these tests the test program itself is the server. Another test attaches and detaches tracer
// while a real llama.cpp decodes several sequences at once.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/llamaserver"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
)

// envServer makes the test program a server that behaves as its value says.
const envServer = "SERVERLOAD_TEST_SERVER"

func TestMain(m *testing.M) {
	if behaviour := os.Getenv(envServer); behaviour != "" {
		playServer(behaviour, os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

// plainRequests is how many requests a played series makes before its first observed phase: to warm
// up, and in plain phases.
const plainRequests = 2 * 3 * 2

// waitForFile waits for a file, half a minute at most. It reports whether the file is there.
func waitForFile(path string) bool {
	for range 3000 {
		if _, err := os.Stat(path); err == nil {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

func playServer(behaviour string, args []string) {
	flag := func(name string) string { return args[slices.Index(args, name)+1] }
	if behaviour == "fail" {
		fmt.Println("no such model")
		os.Exit(1)
	}
	var asked atomic.Int64
	http.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/completion", func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Prompt  string `json:"prompt"`
			Predict int    `json:"n_predict"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		// Answers would come at once. So the answers of observed phases wait until the observer
		// observes.
		observed := asked.Add(1) > plainRequests
		if observed && !waitForFile(flag("--flag")) {
			http.Error(w, "no observer came", http.StatusServiceUnavailable)
			return
		}
		n, first := q.Predict, len(q.Prompt)
		switch {
		case behaviour == "error":
			http.Error(w, "no slot", http.StatusServiceUnavailable)
			return
		case behaviour == "differs" && observed:
			first++
		case behaviour == "short" && observed:
			n--
		case behaviour == "slow" && observed:
			time.Sleep(time.Second / 2)
		case behaviour == "breaks off":
			fmt.Fprintf(w, "data: {\"tokens\":[1]}\n\n")
			return
		}
		for i := range n {
			fmt.Fprintf(w, "data: {\"tokens\":[%d],\"stop\":false}\n\n", first+i)
		}
		fmt.Fprintf(w, "data: {\"tokens\":[],\"stop\":true}\n\n")
	})
	if _, err := strconv.Atoi(flag("--parallel")); err != nil {
		os.Exit(2)
	}
	server := &http.Server{Addr: flag("--host") + ":" + flag("--port")}
	fmt.Println(server.ListenAndServe())
}

// played is the configuration of a series with the played server. Its observer makes the file flag.
func played(t *testing.T, behaviour string) Config {
	t.Helper()
	port, err := llamaserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); errors.Is(err, syscall.ENETUNREACH) {
		t.Skipf("the loopback interface is down: %v", err)
	}
	t.Setenv(envServer, behaviour)
	flag := filepath.Join(t.TempDir(), "observed")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Server: []string{self, "--flag", flag}, Clients: 3, Requests: 2, Tokens: 5, Rounds: 1,
		On: 20 * time.Millisecond,
		// The observer leaves the file, so that everything from the first observed phase on counts
		// as observed. Its shell starts no program and waits for none: dash may lose a SIGINT that
		// comes when it does.
		Observer: fmt.Sprintf("sh -c ': > %s; exec sleep 600' {pid}", flag),
	}
}

func TestMeasure(t *testing.T) {
	for behaviour, want := range map[string]string{
		"well": "", "fail": "no such model", "error": "503", "breaks off": "breaks off",
	} {
		cfg := played(t, behaviour)
		r, err := Measure(t.Context(), cfg)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", behaviour, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []Phase{r.Plain, r.Observed} {
			if p.Answers != 12 || p.Same != 12 || p.Short != 0 || len(p.Took) != 12 || len(p.Gaps) != 12*4 {
				t.Errorf("%+v, want 12 answers, all the same and of 5 tokens", p)
			}
		}
		if r.Attached < 2 {
			t.Errorf("attached %d times in two phases, want 2 or more", r.Attached)
		}
	}
	// The effect of observers on the answers is counted, also in the plain phase that follows: see
	// played.
	for behaviour, want := range map[string][2]Phase{
		"differs": {{Answers: 12, Same: 6}, {Answers: 12}},
		"short":   {{Answers: 12, Same: 6, Short: 6}, {Answers: 12, Short: 12}},
	} {
		r, err := Measure(t.Context(), played(t, behaviour))
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range []Phase{r.Plain, r.Observed} {
			if p.Answers != want[i].Answers || p.Same != want[i].Same || p.Short != want[i].Short {
				t.Errorf("%s: %d answers, %d the same, %d short; want %+v", behaviour, p.Answers, p.Same, p.Short,
					want[i])
			}
		}
	}
	cfg := played(t, "slow")
	cfg.Observer = fmt.Sprintf("sh -c 'touch %s; echo not permitted' {pid}", cfg.Server[2])
	cfg.On = time.Minute
	if _, err := Measure(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("an observer that does not stay: %v, want its message", err)
	}
}

// A series that is cut short reports the answers so far. Without any there is no report.
func TestInterrupted(t *testing.T) {
	for after, want := range map[int]bool{1: false, 10: true} { // six requests are the warm-up
		cfg := played(t, "well")
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("enough")
		cfg.Progress = func(done, _ int) {
			if done == after {
				cancel(reason)
			}
		}
		r, err := Measure(ctx, cfg)
		cancel(nil)
		if !errors.Is(err, reason) || (r != nil) != want {
			t.Fatalf("%v, %+v", err, r)
		}
		if r == nil {
			continue
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil || !r.Interrupted || r.Plain.Answers < 4 ||
			r.Plain.Answers+r.Observed.Answers >= 24 || !strings.Contains(text.String(), "INTERRUPTED") {
			t.Errorf("%v, %+v\n%s", err, r, &text)
		}
	}
}

func TestDisturbed(t *testing.T) {
	for _, test := range []struct {
		r    Report
		want string
	}{
		{Report{Plain: Phase{Answers: 4, Same: 4}, Observed: Phase{Answers: 4, Same: 4}}, ""},
		{Report{Plain: Phase{Answers: 4, Same: 4}, Observed: Phase{Answers: 4, Same: 3}}, "1 of 4"},
		{Report{Plain: Phase{Answers: 4, Same: 3}, Observed: Phase{Answers: 4, Same: 3}}, ""},
		{Report{Observed: Phase{Short: 2}}, "missing in 0 plain and 2"},
		{Report{ExitStatus: -1}, "ended with -1"},
	} {
		if got := test.r.Disturbed(); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%+v: %q, want %q", test.r, got, test.want)
		}
	}
}

// The table has the quantiles of the measured times.
func TestReport(t *testing.T) {
	r := &Report{Clients: 3, Attached: 2, ExitStatus: 1, Plain: Phase{Answers: 4, Same: 3}, Observed: Phase{Answers: 1}}
	for i := range 101 {
		r.Plain.Took, r.Plain.Gaps = append(r.Plain.Took, float64(10*(100-i))), append(r.Plain.Gaps, float64(i)/10)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		strings.Fields("phases answers same tokens answer p50 ms p95 max token p50 ms p99 max"),
		{"plain", "4", "3", "500", "950", "1000", "5.00", "9.90", "10.0"},
		{"observed", "1", "0", "0", "0", "0", "0.00", "0.00", "0.0"},
		nil,
		strings.Fields("3 clients at a time; the observer attached and detached 2 times; the server ended with 1."),
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if !slices.EqualFunc(lines, want,
		func(line string, fields []string) bool { return slices.Equal(strings.Fields(line), fields) }) {
		t.Errorf("got\n%s\nwant %q", text.String(), want)
	}
}

// TestComeAndGo attaches and detaches tracer five times while a real llama.cpp decodes four
// sequences in a batch. The tokens are those of an undisturbed run, none is missing, and the target
// ends as it should.
func TestComeAndGo(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	tracer, remove, err := testenv.BuildPackage("tracer", "tensorcast/cmd/tracer")
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	const sequences, times = 4, 5
	o := llama.Options{
		Model: llamatest.Model(t, synth.Config{Layers: 2, Embd: 256, FF: 512, Heads: 4, KVHeads: 2,
			Type: gguf.Q8_0, Seed: 1}),
		Prompt: "a", Prompts: []string{"bb", "the page cache", "0123"}, Parallel: sequences, Tokens: 50, Threads: 1,
		NoRepack: true,
	}
	want, err := in.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	// Generations go on until the tracer has come and gone.
	o.Stream, o.Repeat = true, 1<<29
	cmd := in.Command(t.Context(), o)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var generations atomic.Int64
	gone := make(chan error, 1)
	capture := filepath.Join(t.TempDir(), "capture")
	go func() { gone <- attachTimes(tracer, capture, cmd.Process.Pid, times, &generations) }()

	s, err := llama.NewStream(out)
	if err != nil {
		t.Fatal(err)
	}
	over, at := false, 0
	for ; ; at++ {
		tok, err := s.Next()
		if errors.Is(err, io.EOF) && over {
			break
		}
		if err != nil {
			t.Fatalf("after %d tokens: %v", at, err)
		}
		generation, step, q := at/(o.Tokens*sequences), at/sequences%o.Tokens, at%sequences
		if tok.Generation != generation || tok.Token != step || tok.Sequence != q {
			t.Fatalf("token %d of sequence %d, generation %d comes at the place of token %d of %d, %d", tok.Token,
				tok.Sequence, tok.Generation, step, q, generation)
		}
		if tok.ID != want.Generations()[q].Tokens[step] {
			t.Fatalf("generation %d, sequence %d, token %d: %d, want %d as undisturbed", generation, q, step, tok.ID,
				want.Generations()[q].Tokens[step])
		}
		generations.Store(int64(generation))
		if over {
			continue
		}
		select {
		case err := <-gone:
			if err != nil {
				t.Fatal(err)
			}
			over = true
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	if at%(o.Tokens*sequences) != 0 {
		t.Errorf("the last generation is not whole: %d tokens", at)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the target ended with %v", err)
	}
}

// attachTimes attaches tracer, lets it see a whole generation, and detaches it by SIGINT.
func attachTimes(tracer, capture string, pid, times int, generations *atomic.Int64) error {
	for range times {
		if err := os.RemoveAll(capture); err != nil {
			return err
		}
		cmd := exec.Command(tracer, "--pid", strconv.Itoa(pid), "-o", capture)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		poll := func(until func() bool) error { // a tracer that has ended has failed
			for !until() {
				select {
				case err := <-ended:
					return fmt.Errorf("tracer ended: %v: %s", err, stderr.String())
				case <-time.After(10 * time.Millisecond):
				}
			}
			return nil
		}
		attached := func() bool {
			_, err := os.Stat(filepath.Join(capture, trace.MetaFile))
			return err == nil
		}
		if err := poll(attached); err != nil {
			return err
		}
		after := generations.Load() + 2
		if err := poll(func() bool { return generations.Load() >= after }); err != nil {
			return err
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			return err
		}
		if err := <-ended; err != nil {
			return fmt.Errorf("tracer: %w: %s", err, stderr.String())
		}
		c, err := trace.Open(capture)
		if err != nil {
			return err
		}
		if c.Meta.Steps == 0 || c.Meta.Counters.OtherThreads+c.Meta.Counters.Received == 0 {
			return fmt.Errorf("tracer saw nothing: %+v", c.Meta)
		}
	}
	return nil
}
