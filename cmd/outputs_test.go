// Package cmd_test has tests over all commands.
package cmd_test

// This file tests the outputs of all commands. Whatever goes wrong during a write, and whenever, an
// output is complete or absent.
//
// Two commands are left out, which also write with outfile.Write: `prefetchd fabric --report`,
// which writes when it is told to end, and `lab fabric`, whose output is different each time.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/outfile"
	"tensorcast/internal/testenv"
	"tensorcast/internal/testenv/faults"
	"tensorcast/trace"
	"tensorcast/trace/tracetest"
)

// bin has the paths of the built commands, by name.
var bin = map[string]string{}

func TestMain(m *testing.M) {
	faults.Launched()
	status := 1
	func() {
		for name, pkg := range map[string]string{
			"ggufmap": "tensorcast/cmd/ggufmap", "analyze": "tensorcast/cmd/analyze", "tracer": "tensorcast/cmd/tracer",
			"prefetchd": "tensorcast/cmd/prefetchd", "lab": "tensorcast/experiments/cmd/lab",
		} {
			path, remove, err := testenv.BuildPackage(name, pkg)
			if err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n", name, err)
				return
			}
			defer remove()
			bin[name] = path
		}
		status = m.Run()
	}()
	os.Exit(status)
}

var tiny = synth.Config{Layers: 2, Embd: 128, FF: 256, Heads: 2, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}

// tiniest is for what takes long for each weight.
var tiniest = synth.Config{Layers: 1, Embd: 64, FF: 64, Heads: 2, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}

var tinyMoE = synth.Config{
	Layers: 1, Embd: 64, FF: 64, Heads: 2, KVHeads: 2, Experts: 2, Used: 1, Type: gguf.Q8_0, Seed: 1,
}

// tool is a command that writes to its working directory.
type tool struct {
	args []string
	// outputs are the files that appear completely or not at all; nil if the output is a capture in
	// the directory "capture".
	outputs []string
	// varies says that two runs write different bytes of the same form, because the output has times.
	varies bool
	// faults is about how many calls are made to fail, one per run and spread over all calls, if
	// the command is slow; 0: all.
	faults int
}

func TestOutputsAreWholeOrAbsent(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, tiny)
	o := llama.Options{Model: model, Prompt: "a b", Tokens: 2, Threads: 1, NoRepack: true}
	target := in.Command(t.Context(), o).Args
	capture := filepath.Join(t.TempDir(), "capture")
	record := func(args ...string) {
		if out, err := exec.Command(bin["tracer"], args...).CombinedOutput(); err != nil {
			t.Fatalf("tracer %q: %v\n%s", args, err, out)
		}
	}
	record(append([]string{"--no-probe", "-o", capture, "--"}, target...)...)
	o.Model = llamatest.Model(t, tinyMoE)
	mixture := in.Command(t.Context(), o).Args
	routed := filepath.Join(t.TempDir(), "capture")
	record(append([]string{"--no-probe", "--hidden", "-o", routed, "--"}, mixture...)...)
	again := filepath.Join(t.TempDir(), "capture") // some of what it reads from disk is read again
	if err := tracetest.Write(again, tracetest.Options{Segments: 3}); err != nil {
		t.Fatal(err)
	}
	report, series := filepath.Join(t.TempDir(), "report.json"), filepath.Join(t.TempDir(), "runs.json")
	const runs = `{"started": "2026-11-27T10:52:20Z", "host": {"kernel": "6.1", "cpus": 2},
		"model": {"path": "m.gguf", "token_bytes": 1000}, "variants": [{"name": "plain"}],
		"results": [{"limit_bytes": 500}],
		"runs": [{"variant": "plain", "limit_bytes": 500, "outcome": "finished", "tok_s": 1, "token_ms": [1000],
			"token_bytes": [7]}]}`
	if err := os.WriteFile(report, []byte(runs), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bin["lab"], "results", "import", report, "-o", series, "--kind", "pressure",
		"--commit", "abcdef0", "--command", "lab pressure -m m.gguf").CombinedOutput()
	if err != nil {
		t.Fatalf("lab results import: %v\n%s", err, out)
	}
	pattern := []string{
		"analysis/pattern.parquet", "analysis/pattern.csv", "analysis/pattern.json", "analysis/access_pattern.h",
	}
	for name, tool := range map[string]tool{
		"ggufmap": {args: []string{"ggufmap", "-o", "s.csv", model}, outputs: []string{"s.csv"}},
		"ggufmap parquet": {
			args:    []string{"ggufmap", "--wide", "--format", "parquet", "-o", "s.parquet", model},
			outputs: []string{"s.parquet"}, faults: 2,
		},
		"analyze": {
			args:    []string{"analyze", "-c", capture, "-o", "analysis", "--heatmap"},
			outputs: append(slices.Clone(pattern), "analysis/heatmap_access_per_token.png"), faults: 3,
		},
		"analyze --hidden": {
			args:    []string{"analyze", "-c", routed, "-o", "analysis", "--hidden", "parquet"},
			outputs: append(slices.Clone(pattern), "analysis/hidden.parquet"), faults: 2,
		},
		"analyze --hidden CSV": {
			args:    []string{"analyze", "-c", routed, "-o", "analysis", "--hidden", "csv"},
			outputs: append(slices.Clone(pattern), "analysis/hidden.csv"), faults: 1,
		},
		"analyze whatif": {
			args: []string{"analyze", "whatif", "-c", capture, "-o", "w", "--disk", "1GB/s", "--format", "svg"},
			outputs: []string{
				"w/whatif.parquet", "w/whatif.csv", "w/miss_ratio.csv", "w/miss_ratio.parquet",
				"w/whatif.svg", "w/miss_ratio.svg",
			},
			faults: 1,
		},
		"analyze --export": {
			args: []string{"analyze", "-c", routed, "-o", "analysis", "--export"},
			outputs: append(slices.Clone(pattern), "analysis/access.parquet", "analysis/hidden.parquet",
				"analysis/route.parquet", "analysis/steps.parquet", "analysis/structure.parquet"),
			faults: 1,
		},
		"analyze rereads": {
			args:    []string{"analyze", "rereads", "-c", again, "-o", "r", "--format", "svg"},
			outputs: []string{"r/rereads.csv", "r/rereads.parquet", "r/rereads.svg"}, faults: 1,
		},
		"analyze layers": {
			args:    []string{"analyze", "layers", "-c", capture, "-o", "r", "--format", "svg"},
			outputs: []string{"r/layers.csv", "r/layers.parquet", "r/layers.svg"}, faults: 1,
		},
		"analyze speed": {
			args:    []string{"analyze", "speed", "-c", capture, "-o", "r", "--format", "svg"},
			outputs: []string{"r/speed.csv", "r/speed.parquet", "r/speed.svg"}, faults: 1,
		},
		"analyze experts": {
			args: []string{"analyze", "experts", "-c", routed, "-o", "r"},
			outputs: []string{
				"r/experts.csv", "r/experts.parquet", "r/experts.png",
				"r/experts_tokens.csv", "r/experts_tokens.parquet", "r/experts_tokens.png",
				"r/experts_layers.csv", "r/experts_layers.parquet",
				"r/experts_together.csv", "r/experts_together.parquet", "r/experts_map.png",
			},
			faults: 1,
		},
		"analyze report": {
			args: []string{"analyze", "report", "-c", capture, "-o", "r"}, outputs: []string{"r/index.html"}, faults: 1,
		},
		"analyze determinism": {
			args: []string{"analyze", "determinism", "-c", capture, "-o", "analysis"},
			outputs: []string{
				"analysis/determinism.csv", "analysis/determinism.parquet",
				"analysis/determinism_edits.csv", "analysis/determinism_edits.parquet",
			},
			faults: 2,
		},
		"analyze compare": {
			args:    []string{"analyze", "compare", "-o", "analysis", capture, routed},
			outputs: []string{"analysis/compare.csv", "analysis/compare.parquet", "analysis/compare.png"}, faults: 2,
		},
		"analyze moe": {
			args:    []string{"analyze", "moe", "-o", "figures", "--format", "svg", routed},
			outputs: []string{"figures/hits.svg", "figures/recall.svg", "figures/reads.svg"}, faults: 2,
		},
		"lab synth": {
			args: []string{
				"lab", "synth", "-o", "m.gguf", "--layers", "1", "--embd", "64", "--ff", "64",
				"--heads", "2", "--kv-heads", "2", "--type", "Q8_0",
			},
			outputs: []string{"m.gguf"}, faults: 8,
		},
		"lab synth --inflate": {
			args:    []string{"lab", "synth", "-o", "m.gguf", "--inflate", "2", llamatest.Model(t, tinyMoE)},
			outputs: []string{"m.gguf"}, faults: 2,
		},
		"lab --save": {
			args: []string{
				"lab", "hyper", "--coding", "exact", "--dims", "1024", "--items", "8", "--queries", "64",
				"--save", "r.json",
			},
			outputs: []string{"r.json"}, varies: true, faults: 4, // it says when it was measured
		},
		"lab pressure": {
			args: []string{
				"lab", "pressure", "--from", series, "--save", "s.json", "--parquet", "r.parquet",
				"--figure", "f.svg", "--figure-bytes", "b.svg",
			},
			outputs: []string{"s.json", "r.parquet", "f.svg", "b.svg"}, faults: 2,
		},
		"lab fabricplan": {
			args: []string{
				"lab", "fabricplan", "-m", llamatest.Model(t, tiniest), "--planes", "1", "--write", "w.gguf",
				"--figure", "f.png",
			},
			outputs: []string{"w.gguf", "f.png"}, faults: 1,
		},
		// A capture has the same files with and without --preload, which is faster.
		"tracer": {
			args: append([]string{"tracer", "--no-probe", "--preload", "-o", "capture", "--"}, target...), faults: 3,
		},
		// Only probes see the inputs of routers.
		"tracer --hidden": {
			args: append([]string{"tracer", "--no-probe", "--hidden", "-o", "capture", "--"}, mixture...), faults: 1,
		},
		"tracer CSV": {
			args:    append([]string{"tracer", "--no-probe", "--preload", "--csv", "-o", "reads.csv", "--"}, target...),
			outputs: []string{"reads.csv"}, varies: true, faults: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tool.args = slices.Clone(tool.args)
			tool.args[0] = bin[tool.args[0]]
			tool.testFaults(t)
			tool.testFullDisk(t)
		})
	}
}

// run runs the tool in dir.
func (c *tool) run(t *testing.T, dir string, f faults.Fault) (faults.Outcome, string) {
	t.Helper()
	cmd := exec.Command(c.args[0], c.args[1:]...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	return faults.Run(t, cmd, dir, f), stderr.String()
}

// read returns the existing outputs with their contents, and the names of other files.
func (c *tool) read(t *testing.T, dir string) (files map[string]string, others []string) {
	t.Helper()
	files = map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if !slices.Contains(c.outputs, name) {
			others = append(others, name)
			return nil
		}
		data, err := os.ReadFile(path)
		files[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, others
}

// sample returns about most numbers of 1 to n, among them the last ones; all of them if most is 0.
func sample(n, most int) []int {
	var all []int
	for i := range n {
		if most == 0 || n <= most || i*most/n != (i-1)*most/n || i > n-3 {
			all = append(all, i+1)
		}
	}
	return all
}

// old is the content of an output of an earlier run.
const old = "an earlier output\n"

// testFaults runs the tool with a fault at each call.
func (c *tool) testFaults(t *testing.T) {
	for _, before := range []string{"", old} {
		for _, noTmpfile := range []bool{false, true} {
			switch {
			case c.outputs == nil && before != "": // a directory with other files is refused
				continue
			case c.faults != 0 && noTmpfile != (before != ""): // slow tools are not run in all four combinations
				continue
			case c.faults == 1 && c.outputs != nil && before == "": // the slowest only in that which has most to lose
				continue
			}
			newDir := func() string {
				dir := t.TempDir()
				for _, name := range c.outputs {
					if before == "" {
						break
					}
					path := filepath.Join(dir, name)
					err := errors.Join(
						os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(before), 0o640))
					if err != nil {
						t.Fatal(err)
					}
				}
				return dir
			}
			dir := newDir()
			whole, stderr := c.run(t, dir, faults.Fault{NoTmpfile: noTmpfile})
			want, others := c.read(t, dir)
			if whole.Status != 0 || len(want) != len(c.outputs) || c.outputs != nil && len(others) > 0 {
				t.Fatalf("without a fault: status %d, %d outputs, other files %q; want 0, %d, none\n%s",
					whole.Status, len(want), others, len(c.outputs), stderr)
			}
			if len(whole.Calls) < 3 {
				t.Fatalf("without a fault there are %d calls, want at least 3: %q", len(whole.Calls), whole.Calls)
			}
			n := 0
			for _, at := range sample(len(whole.Calls), c.faults) {
				for _, f := range []faults.Fault{
					{Errno: errnoFor(whole.Calls[at-1])}, {Signal: syscall.SIGKILL}, {Signal: syscall.SIGINT},
				} {
					f.At, f.NoTmpfile = at, noTmpfile
					n++
					c.checkFault(t, newDir(), before, want, f)
					if t.Failed() {
						t.Fatalf("the calls are %q", whole.Calls)
					}
				}
			}
			t.Logf("before %q, without O_TMPFILE %v: %d calls, %d faults", before, noTmpfile, len(whole.Calls), n)
		}
	}
}

// testFullDisk runs the tool on a file system that is really full.
func (c *tool) testFullDisk(t *testing.T) {
	const filler = "filler"
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	full, err := os.Create(filepath.Join(dir, filler))
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for err == nil { // until it is full
		_, err = full.Write(make([]byte, 4<<10))
	}
	out, stderr := c.run(t, dir, faults.Fault{})
	wrong := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s\nstatus %d: %s", fmt.Sprintf(format, args...), out.Status, stderr)
	}
	c.checkError(faults.Fault{Errno: unix.ENOSPC}, out.Status, stderr, wrong)
	files, others := c.read(t, dir)
	if len(files) > 0 {
		wrong("%d outputs exist, want none", len(files))
	}
	if c.outputs == nil {
		c.checkCapture(filepath.Join(dir, "capture"), out.Status, wrong)
	} else if !slices.Equal(others, []string{filler}) {
		wrong("other files are %q, want only %q", others, filler)
	}
}

// errnoFor returns an error with which a call fails in practice.
func errnoFor(call string) syscall.Errno {
	switch op, _, _ := strings.Cut(call, " "); op {
	case "write", "mkdir":
		return unix.ENOSPC
	case "open", "link":
		return unix.EACCES
	}
	return unix.EIO
}

// checkFault runs the tool with a fault and checks the outputs. want are the outputs of a run
// without a fault.
func (c *tool) checkFault(t *testing.T, dir, before string, want map[string]string, f faults.Fault) {
	t.Helper()
	out, stderr := c.run(t, dir, f)
	call := "none"
	if len(out.Calls) >= f.At {
		call = out.Calls[f.At-1]
	}
	wrong := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%v (%s): %s\nstatus %d: %s", f, call, fmt.Sprintf(format, args...), out.Status, stderr)
	}
	if f.Signal == unix.SIGKILL && out.Status != -1 && call != "none" {
		wrong("it was not killed, want it killed")
	}
	if f.Errno != 0 && call != "none" {
		c.checkError(f, out.Status, stderr, wrong)
	}
	if c.outputs == nil {
		c.checkCapture(filepath.Join(dir, "capture"), out.Status, wrong)
	} else {
		got, others := c.read(t, dir)
		for _, name := range c.outputs {
			text, exists := got[name]
			interrupted := f.Signal == unix.SIGINT
			switch {
			case !exists && (before == "" || strings.Contains(name, "/")):
				// analyze removes all old outputs before the first new one appears.
			case exists && (text == before || text == want[name]):
			case exists && c.varies && hasSameForm(text, want[name], interrupted):
			default:
				wrong("%s is neither complete nor absent: %d bytes of %d", name, len(text), len(want[name]))
			}
			if out.Status == 0 && text == before {
				wrong("the status is 0, but %s was not written", name)
			}
		}
		for _, name := range others {
			// A kill may leave a file under its temporary name: without O_TMPFILE an incomplete
			// one, otherwise a complete one.
			if f.Signal != unix.SIGKILL || outfile.TemporaryOf(filepath.Base(name)) == "" {
				wrong("%s is left, want it removed", name)
			}
		}
	}
	// Files that are left do not disturb the next run.
	if f.Signal == unix.SIGKILL && (c.faults == 0 || c.outputs == nil) {
		if again, stderr := c.run(t, dir, faults.Fault{}); again.Status != 0 {
			wrong("the next run: status %d, want 0\n%s", again.Status, stderr)
		}
	}
}

// checkError checks that the command failed with one line that names an output, and the reason once.
func (c *tool) checkError(f faults.Fault, status int, stderr string, wrong func(string, ...any)) {
	if status != 1 {
		wrong("the status is %d, want 1", status)
	}
	why := f.Errno.Error()
	names := false
	for _, name := range append([]string{"capture"}, c.outputs...) {
		names = names || strings.Contains(stderr, name) || strings.Contains(stderr, filepath.Dir(name)+":")
	}
	if strings.Count(stderr, why) != 1 || strings.Contains(stderr, ".tmp") || !names {
		wrong("want one line with a name of an output and %q", why)
	}
}

// checkCapture checks a capture. If it is marked as complete, it must be. Otherwise its rows must
// be readable.
func (c *tool) checkCapture(dir string, status int, wrong func(string, ...any)) {
	opened, err := trace.Open(dir)
	if errors.Is(err, trace.ErrNoCapture) {
		if status == 0 {
			wrong("there is no capture, but the status is 0")
		}
		return
	}
	if err != nil {
		wrong("the capture cannot be opened: %v", err)
		return
	}
	rows, steps, hidden := int64(0), 0, int64(0)
	for _, err := range opened.Accesses() {
		if err != nil {
			wrong("its rows: %v", err)
			return
		}
		rows++
	}
	for _, err := range opened.Steps() {
		if err != nil {
			wrong("its steps: %v", err)
			return
		}
		steps++
	}
	for _, err := range opened.Hidden() {
		if err != nil {
			wrong("its hidden rows: %v", err)
			return
		}
		hidden++
	}
	m := opened.Meta
	switch {
	case m.Complete && m.Hidden != nil && (hidden != m.Hidden.Rows || hidden == 0):
		wrong("the capture has %d hidden rows, want %d and not 0", hidden, m.Hidden.Rows)
	case m.Complete && (rows != m.Rows || steps != m.Steps || rows == 0):
		wrong("the capture has %d rows and %d steps, want %d and %d, and not 0", rows, steps, m.Rows, m.Steps)
	case !m.Complete && status == 0:
		wrong("the capture is not complete, but the status is 0")
	}
}

// hasSameForm compares two CSV files, or JSON documents, of the same work, which differ in times and addresses. If the
// command was interrupted, a CSV file a has only the rows until then. A JSON document that is cut off is none.
func hasSameForm(a, b string, interrupted bool) bool {
	if json.Valid([]byte(b)) {
		return json.Valid([]byte(a))
	}
	lines, want := strings.Split(a, "\n"), strings.Split(b, "\n")
	if len(lines) != len(want) && !interrupted || len(lines) < 2 || lines[0] != want[0] {
		return false
	}
	for _, line := range lines[:len(lines)-1] {
		if strings.Count(line, ",") != strings.Count(want[0], ",") {
			return false
		}
	}
	return lines[len(lines)-1] == "" // it ends with a complete line
}
