package main

// The tests of this file are about the output: levels of detail, CSV, rotation, several processes
// and models, and the summary.

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/apache/arrow/go/v17/parquet/file"

	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

func shortRun(t *testing.T, model synth.Config) llama.Options {
	return llama.Options{
		Model: llamatest.Model(t, model), Prompt: "the quick brown fox", Tokens: 4, Threads: 1, NoRepack: true,
	}
}

// tensors lists the reads in order: step, op and tensor.
func tensors(c *trace.Capture, rows []tables.Access) []string {
	var names []string
	for _, a := range rows {
		names = append(names, fmt.Sprintf("%d %s %s", a.Step, lastOp(a.Op), c.Structure[a.Tensor].Name))
	}
	return names
}

// Each level of detail, and the preloaded library, record the same reads in the same order.
func TestDetail(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	for name, model := range map[string]synth.Config{"dense": denseModel, "moe": moeModel} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := shortRun(t, model)
			c, rows := traced(t, in, o)
			want := tensors(c, rows)
			for flag, detail := range map[string]string{
				"--detail=graph": tables.DetailGraph,
				"--detail=op+io": tables.DetailOpIO,
				"--preload":      tables.DetailPreload,
			} {
				t.Run(flag, func(t *testing.T) {
					c, rows := traced(t, in, o, flag)
					if got := tensors(c, rows); !slices.Equal(got, want) {
						t.Errorf("%d reads, %q...; want %d, %q...",
							len(got), got[:min(5, len(got))], len(want), want[:5])
					}
					if c.Meta.Detail != detail || c.Meta.Tokens != o.Tokens || !c.Meta.Complete {
						t.Errorf("the capture is %+v, want a complete one of detail %s with %d tokens",
							c.Meta, detail, o.Tokens)
					}
					if (c.Meta.Rereads != nil) != (detail == tables.DetailOpIO) {
						t.Errorf("repeated reads from disk: %+v, want them only with op+io", c.Meta.Rereads)
					}
				})
			}
		})
	}
}

// The summary has the reads from disk.
func TestSummaryTellsOfRereads(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, denseModel)
	args := []string{"--no-probe", "-o", filepath.Join(t.TempDir(), "capture"), "--detail", "op+io", "--"}
	r := runTracer(t, append(args, in.Command(t.Context(), o).Args...)...)
	if r.status != 0 || !strings.Contains(r.stderr, "read from disk") ||
		!strings.Contains(r.stderr, "(detail op+io, ") {
		t.Errorf("status %d, want 0 and the reads from disk; summary\n%s", r.status, r.stderr)
	}
}

// With --buffers the capture also has the reads and writes of memory. In each step, every layer's
// keys and values are written to the cache. Every op writes one result. Inputs and activations are
// read. The reads of weights are the same as without --buffers.
func TestBuffers(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, denseModel)
	plain, rows := traced(t, in, o)
	want := tensors(plain, rows)
	c, rows := traced(t, in, o, "--buffers")
	if got := tensors(c, rows); !slices.Equal(got, want) {
		t.Errorf("%d reads of weights, want %d as without --buffers", len(got), len(want))
	}
	type cache struct {
		step int32
		name string
	}
	written, read := map[cache]int{}, map[tables.BufferKind]int{}
	results := map[int64]int{} // by op
	for b, err := range c.Buffers() {
		if err != nil {
			t.Fatal(err)
		}
		if b.Bytes <= 0 || b.DataPtr == 0 || b.Buffer == "" || b.Op == "" {
			t.Fatalf("a buffer is incomplete: %+v", b)
		}
		results[b.Seq] += 0
		switch {
		case !b.Write:
			read[b.Kind]++
		default:
			results[b.Seq]++
			if b.Kind == tables.BufferKV {
				written[cache{b.Step, b.Root}]++
			}
		}
	}
	for op, n := range results {
		if n != 1 {
			t.Errorf("op %d writes %d results, want 1", op, n)
		}
	}
	for step := range int32(c.Meta.Steps) {
		for layer := range denseModel.Layers {
			for _, of := range []string{"k", "v"} {
				if name := fmt.Sprintf("cache_%s_l%d", of, layer); written[cache{step, name}] == 0 {
					t.Errorf("step %d does not write %s", step, name)
				}
			}
		}
	}
	for _, kind := range []tables.BufferKind{tables.BufferActivation, tables.BufferInput, tables.BufferKV} {
		if read[kind] == 0 {
			t.Errorf("no buffer of kind %v is read", kind)
		}
	}
	if c.Meta.Steps == 0 || t.Failed() {
		t.Logf("%d steps; caches written %v; reads by kind %v", c.Meta.Steps, written, read)
	}
}

// With --hidden the capture has the inputs of the routers for one in N tokens. The test multiplies
// each input with the router's matrix: the experts with the highest scores must be those in the
// route table. The reads of weights do not change. Each input that was sent is in the table, or
// counted as left out.
func TestHidden(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, moeModel)
	plain, rows := traced(t, in, o)
	want := tensors(plain, rows)
	m, err := gguf.OpenModel(o.Model)
	if err != nil {
		t.Fatal(err)
	}
	w, err := gguf.OpenWeights(m, 1<<28)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	type key struct{ step, layer, position int32 }
	inputs := map[int]int{} // number of routers' inputs, by N
	for _, every := range []int{1, 2} {
		c, rows := traced(t, in, o, fmt.Sprintf("--hidden=%d", every))
		if got := tensors(c, rows); !slices.Equal(got, want) {
			t.Errorf("%d reads of weights, want %d as without --hidden", len(got), len(want))
		}
		chosen := map[key][]int32{}
		for r, err := range c.Routes() {
			if err != nil {
				t.Fatal(err)
			}
			k := key{r.Step, r.Layer, r.Position}
			chosen[k] = append(chosen[k], r.Expert)
		}
		steps, all := map[int32]bool{}, 0
		for h, err := range c.Hidden() {
			if err != nil {
				t.Fatal(err)
			}
			all++
			if h.Point != event.PointRouter {
				continue
			}
			if h.Token >= 0 {
				steps[h.Step] = true
			}
			inputs[every]++
			router, _ := w.Lookup(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", h.Layer))
			matrix, err := router.Float32()
			if err != nil {
				t.Fatal(err)
			}
			experts := chosen[key{h.Step, h.Layer, h.Position}]
			// The least score of the chosen experts, the greatest of the others, and the largest
			// magnitude.
			least, greatest, size := math.Inf(1), math.Inf(-1), 0.0
			for e := range moeModel.Experts {
				score := 0.0
				for i, v := range h.Values {
					score += float64(v) * float64(matrix.Data[e*len(h.Values)+i])
				}
				size = max(size, math.Abs(score))
				if slices.Contains(experts, int32(e)) {
					least = min(least, score)
				} else {
					greatest = max(greatest, score)
				}
			}
			matrix.Release()
			// The inputs are half-precision numbers with 11 bits, hence the tolerance.
			if len(experts) != moeModel.Used || least < greatest-size/500 {
				t.Errorf("step %d, layer %d, position %d: the chosen experts %v have scores from %g, others up to %g",
					h.Step, h.Layer, h.Position, experts, least, greatest)
			}
		}
		meta := c.Meta.Hidden
		counters := c.Meta.Counters
		if meta == nil || meta.Every != every || meta.Values != moeModel.Embd || meta.Rows != int64(all) ||
			meta.Rows+meta.LeftOut != int64(counters.InputsSent) || counters.InputsLost != 0 {
			t.Errorf("%d rows, %+v, counters %+v", all, meta, counters)
		}
		if tokens := (c.Meta.Tokens + every - 1) / every; len(steps) != tokens || tokens == 0 {
			t.Errorf("one in %d: %d steps have inputs, want %d of %d tokens", every, len(steps), tokens, c.Meta.Tokens)
		}
		if every == 1 && inputs[every] != len(chosen) {
			t.Errorf("%d inputs, want %d: one per choice", inputs[every], len(chosen))
		}
	}
	if inputs[2] >= inputs[1] || inputs[2] == 0 {
		t.Errorf("%d inputs for one in two tokens, %d for all; want fewer, and not 0", inputs[2], inputs[1])
	}
}

func TestCSV(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, moeModel)
	c, rows := traced(t, in, o)
	var want [][]string
	for _, a := range rows {
		want = append(want, []string{
			strconv.Itoa(int(a.Token)), c.Structure[a.Tensor].Name, strconv.FormatInt(a.Bytes, 10),
		})
	}
	dir := t.TempDir()
	flags := []string{"--csv", "--strict", "--"}
	cmd := exec.Command(tracerBinary, append(flags, in.Command(t.Context(), o).Args...)...)
	cmd.Dir = dir
	r := finish(t, cmd)
	if r.status != 0 || !strings.Contains(r.stderr, "capture.csv") {
		t.Fatalf("tracer ended with %d:\n%s", r.status, r.stderr)
	}
	if _, err := llama.ParseResult([]byte(r.stdout)); err != nil {
		t.Errorf("standard output is not the command's own: %v", err)
	}
	f, err := os.Open(filepath.Join(dir, "capture.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v (%v), want only the CSV", entries, err)
	}
	got := readCSV(t, f)
	if len(got) != len(want) || len(want) == 0 {
		t.Fatalf("%d lines, want %d and not 0", len(got), len(want))
	}
	for i := range got {
		if !slices.Equal([]string{got[i][1], got[i][2], got[i][4]}, want[i]) {
			t.Fatalf("line %d is %q, want %q", i, got[i], want[i])
		}
	}
}

// withoutLog leaves out log messages, such as that ops came before the first complete decode.
func withoutLog(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "time=") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// oneSummary parses the output of --json for one process.
func oneSummary(t *testing.T, text string) (m tables.Meta) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &m); err != nil || strings.Count(text, "\n") != 1 {
		t.Fatalf("want one line of JSON (%v):\n%s", err, text)
	}
	return m
}

func readCSV(t *testing.T, r io.Reader) [][]string {
	t.Helper()
	lines, err := csv.NewReader(r).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"timestamp", "token", "tensor_name", "data_ptr", "bytes_accessed"}
	if len(lines) == 0 || !slices.Equal(lines[0], want) {
		t.Fatalf("the CSV begins with %q, want %q", lines[:min(1, len(lines))], want)
	}
	return lines[1:]
}

// The reads of a running target can be written to a pipe, and to tables that are rotated.
func TestRunningTarget(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, denseModel)
	o.Tokens, o.Repeat, o.Pause = 100, 1<<20, 2
	target := in.Command(t.Context(), o)
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	testenv.WaitMapped(t, target.Process.Pid, o.Model)
	pid := fmt.Sprint(target.Process.Pid)

	t.Run("CSV to a pipe", func(t *testing.T) {
		cmd := exec.Command(tracerBinary, "--csv", "--json", "--pid", pid)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		buf := make([]byte, 1<<12)
		for text.Len() < 1<<14 { // lines are written while the target runs
			n, err := out.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(buf[:n])
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(out)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("tracer: %v", err)
		}
		if lines := readCSV(t, strings.NewReader(text.String()+string(rest))); len(lines) < 100 {
			t.Errorf("%d lines, want at least 100", len(lines))
		}
		// The summary is on standard error, because standard output has the CSV.
		if m := oneSummary(t, withoutLog(stderr.String())); m.PID != target.Process.Pid || m.Rows == 0 {
			t.Errorf("summary %+v, want process %d with rows", m, target.Process.Pid)
		}
	})
	t.Run("background job of a script", func(t *testing.T) { // a shell starts it with SIGINT ignored
		dir := filepath.Join(t.TempDir(), "capture")
		script := exec.Command("sh", "-c", `"$@" & echo $! >&2; wait $!`, "sh",
			tracerBinary, "-o", dir, "--json", "--pid", pid)
		var stdout strings.Builder
		script.Stdout = &stdout
		stderr, err := script.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := script.Start(); err != nil {
			t.Fatal(err)
		}
		reader := bufio.NewReader(stderr)
		line, err := reader.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		tracer, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, "a whole batch to be written", func() bool { return countRows(dir) > 0 })
		for range 2 { // the second signal has no effect, so that the capture is written completely
			if err := syscall.Kill(tracer, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
		rest, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := script.Wait(); err != nil || withoutLog(string(rest)) != "" {
			t.Errorf("tracer: %v, want no error and no messages:\n%s", err, rest)
		}
		c, rows := readCapture(t, dir)
		m := oneSummary(t, stdout.String())
		if !c.Meta.Complete || m.Rows != int64(len(rows)) || len(rows) == 0 || m.PID != target.Process.Pid {
			t.Errorf("%d rows, complete: %v; summary: %d rows of process %d; want a complete capture of process %d",
				len(rows), c.Meta.Complete, m.Rows, m.PID, target.Process.Pid)
		}
	})
	t.Run("reader goes away", func(t *testing.T) {
		cmd := exec.Command("sh", "-c", `"$0" --csv --pid "$1" | head -n 2`, tracerBinary, pid)
		if r := finish(t, cmd); strings.Count(r.stdout, "\n") != 2 || strings.Contains(r.stderr, "goroutine") {
			t.Errorf("%q, want two lines, and no panic:\n%s", r.stdout, r.stderr)
		}
		if err := target.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the target did not survive the tracer: %v", err)
		}
	})
	t.Run("rotation", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "capture")
		cmd := exec.Command(tracerBinary, "-o", dir, "--rotate", "1s", "--keep", "2", "--pid", pid)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, "four table files", func() bool {
			c, err := trace.Open(dir)
			return err == nil && c.Meta.Segments.Last >= 3
		})
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("tracer: %v\n%s", err, stderr.String())
		}
		c, rows := readCapture(t, dir)
		if s := c.Meta.Segments; s.Deleted == 0 || s.First == 0 || int64(len(rows)) != c.Meta.Rows-s.DeletedRows {
			t.Errorf("%d rows, want %d without those of removed files; segments %+v",
				len(rows), c.Meta.Rows-s.DeletedRows, s)
		}
		files, err := filepath.Glob(filepath.Join(dir, "access*"))
		if err != nil || len(files) != 2 {
			t.Errorf("table files %v (%v), want 2", files, err)
		}
		if !strings.Contains(stderr.String(), "table files") {
			t.Errorf("the summary does not mention the table files:\n%s", stderr.String())
		}
	})
}

// With --follow each process that decodes gets a capture of its own.
func TestFollow(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, denseModel)
	o.Repeat, o.Pause = 100, 5 // long enough to be found while they run
	dir := filepath.Join(t.TempDir(), "capture")
	script := `"$0" "$@" >/dev/null & "$0" "$@" >/dev/null & wait`
	args := []string{"--no-probe", "-o", dir, "--follow", "--json", "--", "sh", "-c", script}
	r := runTracer(t, append(args, in.Command(t.Context(), o).Args...)...)
	if r.status != 0 || r.stdout != "" { // standard output belongs to the command
		t.Fatalf("tracer ended with %d, %q; want 0, nothing:\n%s", r.status, r.stdout, r.stderr)
	}
	pids := map[int]bool{}
	for line := range strings.Lines(r.stderr) {
		var m tables.Meta
		if !strings.HasPrefix(line, "{") { // a log message that a process began to decode before it was found
			continue
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v\n%s", err, r.stderr)
		}
		pids[m.PID] = true
		c, rows := readCapture(t, filepath.Join(dir, fmt.Sprint(m.PID)))
		if c.Meta.PID != m.PID || len(rows) == 0 || !c.Meta.Complete {
			t.Errorf("process %d: %d rows, want a complete capture with rows: %+v", m.PID, len(rows), c.Meta)
		}
	}
	if len(pids) != 2 {
		t.Errorf("captures of %d processes, want 2\n%s", len(pids), r.stderr)
	}
}

func TestTwoModels(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, denseModel)
	o.Model2 = llamatest.Model(t, with(moeModel, func(c *synth.Config) { c.Layers = 2 }))
	c, rows := traced(t, in, o)
	if len(c.Meta.Models) != 2 || c.Meta.Contexts != 2 {
		t.Fatalf("%d models, %d contexts, want 2, 2: %+v", len(c.Meta.Models), c.Meta.Contexts, c.Meta.Models)
	}
	seen := map[int32]int{}
	for _, a := range rows {
		seen[c.Structure[a.Tensor].Model]++
	}
	if len(seen) != 2 || seen[0] == 0 || seen[1] == 0 {
		t.Errorf("rows by model: %v, want some of models 0 and 1", seen)
	}
	if c.Meta.Models[0].Path != o.Model || c.Meta.Models[1].Path != o.Model2 {
		t.Errorf("models %+v, want %s, %s", c.Meta.Models, o.Model, o.Model2)
	}
}

// Libraries without .symtab still have the names of their exported functions in .dynsym.
func TestStripped(t *testing.T) {
	testenv.NeedRoot(t)
	strip, err := exec.LookPath("strip")
	if err != nil {
		t.Skip("strip (binutils) is not installed")
	}
	in := llamatest.ForTest(t)
	o := shortRun(t, denseModel)
	c, rows := traced(t, in, o)
	want := tensors(c, rows)

	dir := t.TempDir()
	files, err := os.ReadDir(in.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		from, to := filepath.Join(in.Dir, f.Name()), filepath.Join(dir, f.Name())
		out, err := exec.Command(strip, "-o", to, from).CombinedOutput()
		if err != nil {
			t.Fatalf("strip: %v\n%s", err, out)
		}
	}
	stripped := &llama.Installation{Dir: dir, Driver: filepath.Join(dir, filepath.Base(in.Driver))}
	c, rows = traced(t, stripped, o)
	if got := tensors(c, rows); !slices.Equal(got, want) {
		t.Errorf("%d reads, want %d", len(got), len(want))
	}
}

// --preload needs no root at all.
func TestPreloadWithoutRoot(t *testing.T) {
	testenv.NeedRoot(t) // to become somebody else
	in := llamatest.Public(t, llamatest.ForTest(t))
	model := publicModel(t)
	o := llama.Options{Model: model, Prompt: "rootless", Tokens: 4, Threads: 1, NoRepack: true}
	dir := nobodysDir(t)
	cmd := exec.Command(tracerBinary, append([]string{"--preload", "--"}, in.Command(t.Context(), o).Args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	r := finish(t, cmd)
	if r.status != 0 {
		t.Fatalf("tracer ended with %d:\n%s", r.status, r.stderr)
	}
	c, rows := readCapture(t, filepath.Join(dir, tables.DefaultDir))
	if len(rows) == 0 || c.Meta.Tokens != o.Tokens || c.Meta.Detail != tables.DetailPreload {
		t.Errorf("%d rows, want some, and %d tokens of detail %s: %+v",
			len(rows), o.Tokens, tables.DetailPreload, c.Meta)
	}
}

func TestSummary(t *testing.T) {
	m := &tables.Meta{
		Dir: "capture", Detail: tables.DetailOp, Seconds: 2.345,
		Steps: 1234, Tokens: 1200, Rows: 56789, Contexts: 3, PID: 77,
		Segments: tables.Segments{First: 2, Last: 4, Deleted: 2, DeletedRows: 1000},
		Counters: event.Counters{Received: 56790, OtherThreads: 40, NoWeight: 60, OpsLost: 5, PagesLost: 2, Faults: 1},
		Models:   []tables.ModelInfo{{Path: "/m.gguf", Layers: 24, LayersSeen: "0-11", LayersElsewhere: "12-23"}},
	}
	const rows = `  decodes     1,234   1,200 generated tokens, 3 contexts
  rows        56,789  in 5 table files, of which the oldest 2 were removed (1,000 rows)
  received    56,790  ops
  lost        7       5 ops, 2 page-ins
  filtered    100     40 of other threads, 60 ops without a weight
  incomplete  1       could not be read whole: see counters in capture.json
  layers 0-11 of 24 were computed on the CPU; 12-23 elsewhere
`
	cases := map[string]struct {
		o       options
		heading string
	}{
		"capture": {options{out: "capture"}, "tracer: capture (detail op, 2.3 s)\n"},
		"follow":  {options{out: "capture", follow: true}, "tracer: capture, process 77 (detail op, 2.3 s)\n"},
		"CSV":     {options{out: "x.csv", csv: true}, "tracer: x.csv (detail op, 2.3 s)\n"},
		"stdout":  {options{out: toStdout, csv: true}, "tracer: standard output (detail op, 2.3 s)\n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := summarise(&b, tc.o, []*tables.Meta{m}); err != nil {
				t.Fatal(err)
			}
			if want := tc.heading + rows; b.String() != want {
				t.Errorf("summary\n%s, want\n%s", b.String(), want)
			}
		})
	}
}

// Where decodes generated nothing, the summary does not sound as if nothing was seen.
func TestSummaryOfDecodes(t *testing.T) {
	var b strings.Builder
	m := &tables.Meta{Dir: "capture", Detail: tables.DetailOp, Steps: 12, Contexts: 2}
	if err := summarise(&b, options{out: "capture"}, []*tables.Meta{m}); err != nil {
		t.Fatal(err)
	}
	want := "  decodes   12  none generated a token, 2 contexts; analyze has figures per decode\n"
	if !strings.Contains(b.String(), want) {
		t.Errorf("%q is not in\n%s", want, b.String())
	}
}

// A directory with other files is refused before the command runs.
func TestOccupiedDirectory(t *testing.T) {
	testenv.NeedRoot(t)
	dir, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tracerBinary, "-o", dir, "--", "touch", ran)
	out, _ := cmd.CombinedOutput()
	line := strings.TrimSpace(string(out))
	if cmd.ProcessState.ExitCode() != 1 || strings.Contains(line, "\n") || !strings.Contains(line, "thesis.txt") ||
		!strings.Contains(line, "-o") {
		t.Errorf("status %d, %q; want 1 and one line with thesis.txt and -o", cmd.ProcessState.ExitCode(), line)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command ran")
	}
	if data, err := os.ReadFile(filepath.Join(dir, "thesis.txt")); err != nil || string(data) != "mine" {
		t.Errorf("the user's file has %q, %v; want mine", data, err)
	}
}

// As root, tracer refuses to write where somebody else can have put links. It says so before the
// command runs.
func TestDirectoryOfSomebodyElse(t *testing.T) {
	testenv.NeedRoot(t)
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	theirs := nobodysDir(t)
	for _, name := range []string{trace.MetaFile, trace.MetaFile + ".tmp", trace.AccessFile, "reads.csv"} {
		symlink(t, precious, filepath.Join(theirs, name))
	}
	for name, flags := range map[string][]string{
		"the directory":  {"-o", theirs},
		"a link to one":  {"-o", filepath.Join(theirs, "link")},
		"through a link": {"-o", filepath.Join(theirs, "link", "capture")},
		"CSV":            {"--csv", "-o", filepath.Join(theirs, "reads.csv")},
	} {
		t.Run(name, func(t *testing.T) {
			mine := t.TempDir()
			_ = os.Remove(filepath.Join(theirs, "link"))
			symlink(t, mine, filepath.Join(theirs, "link"))
			ran := filepath.Join(t.TempDir(), "ran")
			r := runTracer(t, append(flags, "--", "touch", ran)...)
			line := oneError(t, r)
			if r.status != 1 || !strings.Contains(line, "not safe to write to") || !strings.Contains(line, "nobody") {
				t.Errorf("status %d, %q; want 1, not safe to write to, and nobody as the owner", r.status, line)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the command ran")
			}
			if data, err := os.ReadFile(precious); err != nil || string(data) != "precious" {
				t.Errorf("root's file has %q (%v), want precious", data, err)
			}
			if entries, err := os.ReadDir(mine); err != nil || len(entries) != 0 {
				t.Errorf("root's directory has %v (%v), want nothing", entries, err)
			}
		})
	}
}

// If two tracers write to one directory, the second fails before its command runs, and does not
// disturb the first.
func TestTwoTracers(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, denseModel)
	o.Tokens, o.Repeat, o.Pause = 100, 1<<20, 2
	target := in.Command(t.Context(), o)
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = target.Process.Kill(); _ = target.Wait() }()
	testenv.WaitMapped(t, target.Process.Pid, o.Model)
	dir, ran := filepath.Join(t.TempDir(), "capture"), filepath.Join(t.TempDir(), "ran")
	first := exec.Command(tracerBinary, "-o", dir, "--pid", fmt.Sprint(target.Process.Pid))
	var stderr strings.Builder
	first.Stderr = &stderr
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "a whole batch to be written", func() bool { return countRows(dir) > 0 })
	second := runTracer(t, "-o", dir, "--", "touch", ran)
	line, want := oneError(t, second), dir+" is being written by another tracer"
	if second.status != 1 || !strings.Contains(line, want) || !strings.Contains(line, "-o") {
		t.Errorf("status %d, %q; want 1, %q with advice on -o", second.status, line, want)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the second command ran")
	}
	if err := first.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Fatalf("the first tracer: %v\n%s", err, stderr.String())
	}
	if c, rows := readCapture(t, dir); !c.Meta.Complete || int64(len(rows)) != c.Meta.Rows || len(rows) == 0 {
		t.Errorf("the first capture has %d rows, want a complete one: %+v", len(rows), c.Meta)
	}
}

// --no-token-ids leaves out the tokens, and changes nothing else.
func TestNoTokenIDs(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, denseModel)
	record := func(flags ...string) (ids, rest []string, c *trace.Capture) {
		c, rows := traced(t, in, o, flags...)
		for s, err := range c.Steps() {
			if err != nil {
				t.Fatal(err)
			}
			if s.TokenIDs != nil {
				ids = append(ids, fmt.Sprint(s.TokenIDs))
			}
			rest = append(rest, fmt.Sprint(s.Phase, s.Tokens, s.Token))
		}
		return ids, append(rest, tensors(c, rows)...), c
	}
	for _, flags := range [][]string{nil, {"--detail", "op+io"}, {"--preload"}} {
		with, rest, c := record(flags...)
		without, same, hidden := record(append(flags, "--no-token-ids")...)
		if len(with) != c.Meta.Steps || len(without) != 0 || !slices.Equal(rest, same) {
			t.Errorf("%q: ids of %d steps, and of %d with --no-token-ids; want %d, 0, and the rest equal",
				flags, len(with), len(without), c.Meta.Steps)
		}
		if len(c.Meta.Command) < 2 || !slices.Equal(hidden.Meta.Command, c.Meta.Command[:1]) ||
			!hidden.Meta.NoTokenIDs || c.Meta.NoTokenIDs {
			t.Errorf("%q: %+v, want the command without arguments", flags, hidden.Meta)
		}
	}
}

// With --parquet each table is also written as Parquet. A capture without --parquet removes the
// files of an earlier one.
func TestParquet(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	o := shortRun(t, moeModel)
	dir := filepath.Join(t.TempDir(), "capture")
	run := func(flags ...string) []string {
		args := append(append([]string{"-o", dir}, flags...), "--")
		if r := runTracer(t, append(args, in.Command(t.Context(), o).Args...)...); r.status != 0 {
			t.Fatalf("status %d: %s", r.status, r.stderr)
		}
		found, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range found {
			found[i] = filepath.Base(f)
		}
		return found
	}
	want := []string{"access.parquet", "route.parquet", "steps.parquet", "structure.parquet"}
	if got := run("--parquet"); !slices.Equal(got, want) {
		t.Errorf("Parquet files %v, want %v", got, want)
	}
	c, rows := readCapture(t, dir)
	f, err := file.OpenParquetFile(filepath.Join(dir, "access.parquet"), false)
	if err != nil {
		t.Fatal(err)
	}
	if f.NumRows() != int64(len(rows)) || len(rows) == 0 || c.Meta.Rows != f.NumRows() {
		t.Errorf("%d rows as Parquet, want %d as in the stream, and not 0", f.NumRows(), len(rows))
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if got := run(); len(got) != 0 {
		t.Errorf("%v are left of the earlier capture, want none", got)
	}
	args := []string{"--parquet", "--csv", "-o", filepath.Join(t.TempDir(), "c.csv"), "--"}
	r := runTracer(t, append(args, in.Command(t.Context(), o).Args...)...)
	if r.status != 2 || !strings.Contains(r.stderr, "--parquet") {
		t.Errorf("--parquet with --csv: status %d, %s; want 2 and an error on --parquet", r.status, r.stderr)
	}
}
