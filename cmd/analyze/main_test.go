package main

// This file tests the command without a subcommand, and plants the captures that other tests use, too.

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"image/png"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"tensorcast/event"
	"tensorcast/internal/cli"
	"tensorcast/pattern"
	"tensorcast/trace"
	"tensorcast/trace/tables"
	"tensorcast/trace/tracetest"
)

// model is a model whose order in the file is not that of its accesses.
var model = []tables.StructureRow{
	{Name: "output.weight", Component: "output.weight", Offset: 100, Size: 900, Layer: -1, File: "planted.gguf"},
	{
		Name: "token_embd.weight", Component: "token_embd.weight", Offset: 1000, Size: 6400, Layer: -1,
		File: "planted.gguf", Shape: []int64{16, 100},
	},
	{
		Name: "blk.0.ffn_down.weight", Component: "ffn_down.weight", Offset: 8000, Size: 300, Layer: 0,
		File: "planted.gguf",
	},
	{Name: "blk.0.ffn_up.weight", Component: "ffn_up.weight", Offset: 9000, Size: 200, Layer: 0, File: "planted.gguf"},
}

// planted is the model as an earlier version described it, without Files.
var planted = tables.ModelInfo{
	Path: "/models/planted.gguf", Fingerprint: "0123456789abcdef0123456789abcdef", Bytes: 10000,
}

// plant writes a capture with a prompt and the given tokens. A token is the tensors that it reads.
func plant(t *testing.T, meta tables.Meta, complete bool, tokens ...[]int32) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "capture")
	if meta.Models == nil {
		meta.Models = []tables.ModelInfo{planted}
	}
	w, err := trace.Create(dir, &meta, model)
	if err != nil {
		t.Fatal(err)
	}
	for step, tensors := range append([][]int32{{1, 3, 2, 0}}, tokens...) {
		a := tables.Access{Step: int32(step), Token: int32(step) - 1, Phase: tables.PhaseGeneration, Duration: 10}
		if step == 0 {
			a.Phase = tables.PhasePrompt
		}
		for i, tensor := range tensors {
			a.Tensor, a.Bytes, a.Offset, a.Timestamp = tensor, model[tensor].Size, model[tensor].Offset,
				int64(step*1000+i*10)
			a.Op = "MUL_MAT"
			if tensor == 1 {
				a.Op, a.Bytes = "GET_ROWS", 64
			}
			if err := w.Access(&a); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Step(&tables.StepRow{
			Step: a.Step, Phase: a.Phase, Tokens: 1, Token: a.Token, Begin: int64(step * 1000),
			End: tables.NotObserved,
		}); err != nil {
			t.Fatal(err)
		}
	}
	if complete {
		err = w.Close(&meta, true)
	} else {
		err = w.Flush(&meta)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var whole = []int32{1, 3, 2, 0}

func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(context.Background(), command(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestAnalyze(t *testing.T) {
	capture := plant(t, tables.Meta{}, true, whole, whole, []int32{1, 2, 3, 0}, whole)
	out := filepath.Join(t.TempDir(), "deep", "analysis")
	code, stdout, stderr := execute(t, "--capture", capture, "-o", out, "--heatmap")
	if code != cli.OK || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	for _, want := range []string{
		"Not in this capture: what came from disk, and why: `tracer --detail op+io` records it.\n",
		"planted.gguf: 4 tensors, 4 of them read for each token",
		"4 reads, 1.4 KiB (1464 bytes)",
		"identical in 3 of 4 generated tokens",
		"token 2 differs at position 1: reads blk.0.ffn_down.weight instead of blk.0.ffn_up.weight",
		"wrote " + filepath.Join(out, cycleFile),
		"wrote " + filepath.Join(out, heatmapFile+".png"),
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("output lacks %q:\n%s", want, stdout)
		}
	}
	f, err := os.Open(filepath.Join(out, csvFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(table) != 1+4+4 {
		t.Errorf("%d lines, want a header and 4 reads in each of 2 phases", len(table))
	}
	if want := []string{
		"1", "blk.0.ffn_up.weight", "9000", "200", "0.25", "generation",
	}; !reflect.DeepEqual(table[6][:6], want) {
		t.Errorf("row %v, want %v", table[6][:6], want)
	}
	data, err := os.ReadFile(filepath.Join(out, heatmapFile+".png"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(data)); err != nil {
		t.Errorf("the heatmap is no PNG: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(out, "*.tmp")); left != nil {
		t.Errorf("temporary files %v, want none", left)
	}
}

// The hidden table is exported if that is asked for. If there is none, a warning says so, and the other
// files are written.
func TestHidden(t *testing.T) {
	capture := filepath.Join(t.TempDir(), "capture")
	if err := tracetest.Write(capture, tracetest.Options{}); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	for _, format := range []string{formatParquet, formatCSV} {
		path := filepath.Join(out, "hidden."+format)
		if code, stdout, stderr := execute(t, "-c", capture, "-o", out, "--hidden", format); code != cli.OK ||
			!strings.Contains(stdout, "wrote "+path) {
			t.Errorf("exit %d, stdout %q, stderr %q, want that %s was written", code, stdout, stderr, path)
		}
		if data, err := os.ReadFile(path); err != nil || format == formatCSV &&
			!strings.HasPrefix(string(data), "step,token,layer,point,position,values\n") || format == formatParquet &&
			!strings.HasPrefix(string(data), "PAR1") {
			t.Errorf("%s begins with %.100q, error %v", path, data, err)
		}
	}
	if code, stdout, stderr := execute(t, "-c", plant(t, tables.Meta{}, true, whole, whole), "-o", out, "--hidden",
		"csv"); code != cli.OK || strings.Contains(stdout, "hidden.csv") ||
		!strings.Contains(stdout, "wrote "+filepath.Join(out, csvFile)) ||
		!strings.Contains(stderr, "left out: hidden.csv: no routers' inputs were recorded: trace with --hidden") {
		t.Errorf("exit %d, stdout %q, stderr %q, want a warning, and the other files", code, stdout, stderr)
	}
	if _, err := os.Stat(filepath.Join(out, hiddenCSV)); err == nil {
		t.Error("another capture's hidden.csv is still there")
	}
}

func TestCycle(t *testing.T) {
	out := t.TempDir()
	if code, _, stderr := execute(t, "-c", plant(t, tables.Meta{}, true, whole, whole), "-o", out); code != cli.OK ||
		stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	f, err := os.Open(filepath.Join(out, cycleFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := pattern.ReadCycle(f)
	if err != nil {
		t.Fatal(err)
	}
	want := &pattern.Cycle{
		Files: []pattern.CycleFile{{Name: "planted.gguf", Size: 10000, Fingerprint: planted.Fingerprint}},
		Reads: []pattern.CycleRead{
			{Tensor: "token_embd.weight", Op: "GET_ROWS", Offset: 1000, Length: 6400, Slice: 64, Slices: 1, Nanos: 10},
			{Tensor: "blk.0.ffn_up.weight", Op: "MUL_MAT", Offset: 9000, Length: 200, Nanos: 10},
			{Tensor: "blk.0.ffn_down.weight", Op: "MUL_MAT", Offset: 8000, Length: 300, Nanos: 10},
			{Tensor: "output.weight", Op: "MUL_MAT", Offset: 100, Length: 900, Nanos: 10},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("cycle %+v, want %+v", got, want)
	}
}

// A capture from which no cycle can be made is analysed all the same.
func TestNoCycle(t *testing.T) {
	for _, tc := range []struct {
		name  string
		model tables.ModelInfo
		want  string
	}{
		{"file that is too short", tables.ModelInfo{
			Path: planted.Path, Fingerprint: planted.Fingerprint, Bytes: 9100,
		}, "read 1 is of 200 bytes at 9000 of a file of 9100"},
		{"no fingerprint", tables.ModelInfo{Path: planted.Path, Bytes: 10000}, "fingerprint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := t.TempDir()
			for _, name := range []string{cycleFile, headerFile} {
				if err := os.WriteFile(filepath.Join(out, name), []byte("of an earlier capture"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			code, stdout, stderr := execute(t, "-c",
				plant(t, tables.Meta{Models: []tables.ModelInfo{tc.model}}, true, whole, whole), "-o", out)
			if code != cli.OK ||
				!strings.HasPrefix(stderr, "analyze: warning: left out: pattern.json, access_pattern.h: ") ||
				!strings.Contains(stderr, tc.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit %d, stderr %q, want a warning with %q", code, stderr, tc.want)
			}
			if strings.Contains(stdout, cycleFile) || !strings.Contains(stdout, csvFile) {
				t.Errorf("stdout\n%s\nwant %s but not %s", stdout, csvFile, cycleFile)
			}
			for _, name := range []string{cycleFile, headerFile} {
				if _, err := os.Stat(filepath.Join(out, name)); err == nil {
					t.Errorf("there is a %s, want that it is gone", name)
				}
			}
		})
	}
}

func TestJSON(t *testing.T) {
	capture := plant(t, tables.Meta{Counters: event.Counters{OpsLost: 2}}, false, whole, whole, whole[:3])
	out := t.TempDir()
	code, stdout, stderr := execute(t, "-c", capture, "-o", out, "--json", "--top", "1")
	if code != cli.OK {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	var got struct {
		pattern.Summary
		Files []string `json:"files"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	if !got.Sequence.Identical || got.Sequence.Tokens != 2 || len(got.CutShort) != 1 || got.CutShort[0].Token != 2 ||
		len(got.Top) != 1 || len(got.Warnings) != 2 {
		t.Errorf("summary %s, want two identical tokens, one cut short, and two warnings", stdout)
	}
	if want := []string{
		filepath.Join(out, parquetFile), filepath.Join(out, csvFile), filepath.Join(out, cycleFile),
		filepath.Join(out, headerFile),
	}; !reflect.DeepEqual(got.Files, want) {
		t.Errorf("files %v, want %v", got.Files, want)
	}
	for _, want := range []string{"warning: 2 events lost", "warning: the tracer did not end in order"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr %q lacks %q", stderr, want)
		}
	}
	if _, err := os.Stat(filepath.Join(out, heatmapFile+".png")); err == nil {
		t.Error("a heatmap was drawn without --heatmap")
	}
}

func TestFailures(t *testing.T) {
	empty := t.TempDir()
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no capture", []string{"-c", empty}, cli.Failure, "tracer"},
		{"no directory", []string{"-c", filepath.Join(empty, "none")}, cli.Failure, "tracer"},
		{
			"no tokens", []string{"-c", plant(t, tables.Meta{}, true), "--phase", "generation"}, cli.Failure,
			"no step of this phase: generation: leave out --phase",
		},
		{"unknown flag", []string{"--nonsense"}, cli.BadUsage, "unknown flag: --nonsense"},
		{"argument", []string{"run2"}, cli.BadUsage, "--capture"},
		{"order", []string{"--order", "size"}, cli.BadUsage, `--order "size": want access or file`},
		{"context", []string{"--context", "-2"}, cli.BadUsage, "--context is -2, want 0 or more"},
		{"top", []string{"--top", "-1"}, cli.BadUsage, "want 0 or more"},
		{"phase", []string{"--phase", "warm"}, cli.BadUsage, `--phase is "warm", want generation or prompt`},
		{
			"output is a file",
			[]string{
				"-c", plant(t, tables.Meta{}, true, whole), "-o",
				filepath.Join(plant(t, tables.Meta{}, true), trace.MetaFile),
			},
			cli.Failure, "output directory: open ",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.args[0] != "-c" {
				tc.args = append(tc.args, "-c", empty)
			}
			code, stdout, stderr := execute(t, tc.args...)
			if code != tc.code || !strings.Contains(stderr, tc.want) || stdout != "" {
				t.Errorf("exit %d, stdout %q, stderr %q; want %d and %q", code, stdout, stderr, tc.code, tc.want)
			}
			if !strings.HasPrefix(stderr, "analyze: ") || strings.Count(stderr, "\n") != 1 {
				t.Errorf("stderr is not one line: %q", stderr)
			}
		})
	}
}

// In a capture of two contexts with page-ins, the command says which context is analysed, and what was
// read again.
func TestContextsAndRereads(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "capture")
	meta := tables.Meta{Models: []tables.ModelInfo{planted}}
	w, err := trace.Create(dir, &meta, model)
	if err != nil {
		t.Fatal(err)
	}
	for step := range int32(6) {
		context := step % 2
		for _, tensor := range whole[:4-2*context] {
			a := tables.Access{
				Step: step, Token: step / 2, Phase: tables.PhaseGeneration, Op: "MUL_MAT", Context: context,
				Tensor: tensor, Bytes: model[tensor].Size, Offset: model[tensor].Offset, Timestamp: int64(step) * 100,
				Stall: 1e9,
			}
			if err := w.Access(&a); err != nil {
				t.Fatal(err)
			}
		}
		p := tables.PageInRow{
			Tensor: 2, Bytes: 300, Rereads: step, Cause: event.CauseReadahead, File: "planted.gguf", PID: 4,
		}
		if err := w.PageIn(&p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(&meta, true); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args         []string
		stdout, said string
	}{
		{nil, "identical in all 3 generated tokens", "this is context 0 (planted.gguf, 3 generation steps, 23 " +
			"KiB); choose another with --context: 1 (planted.gguf, 3 generation steps, 19 KiB)"},
		{[]string{"--context", "1"}, "2 reads", "this is context 1 "},
	} {
		code, stdout, stderr := execute(t, append(tc.args, "-c", dir, "-o", t.TempDir())...)
		if code != cli.OK || !strings.Contains(stderr, tc.said) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("exit %d, stderr %q, want one line with %q", code, stderr, tc.said)
		}
		for _, want := range []string{
			tc.stdout, "read from disk: 300 B for the first time, 1.5 KiB again (readahead)", "ops stalled for 18s",
			"blk.0.ffn_down.weight",
		} {
			if !strings.Contains(stdout, want) {
				t.Errorf("output lacks %q:\n%s", want, stdout)
			}
		}
	}
	code, stdout, stderr := execute(t, "--context", "7", "-c", dir, "-o", t.TempDir())
	if code != cli.Failure || stdout != "" ||
		!strings.Contains(stderr, "no such context: 7 is not one of 0, 1: choose with --context") {
		t.Errorf("exit %d, stderr %q, want %d and the contexts", code, stderr, cli.Failure)
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(&cli.Interrupted{Signal: syscall.SIGINT})
	out := t.TempDir()
	var stdout, stderr bytes.Buffer
	code := cli.Run(ctx, command(), []string{"-c", plant(t, tables.Meta{}, true, whole), "-o", out}, &stdout, &stderr)
	if code != cli.Failure || stderr.String() != "analyze: interrupted by SIGINT\n" {
		t.Errorf("exit %d, stderr %q, want %d and the signal", code, stderr.String(), cli.Failure)
	}
	if entries, _ := os.ReadDir(out); len(entries) != 0 {
		t.Errorf("files %v, want none", entries)
	}
}

// A capture that contradicts itself is refused if it is complete. If its tracer was killed, there is a
// warning, and the rest is analysed.
func TestContradictions(t *testing.T) {
	for _, complete := range []bool{true, false} {
		dir := plant(t, tables.Meta{}, complete, whole, whole)
		path := filepath.Join(dir, trace.MetaFile)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, bytes.Replace(text, []byte(`"rows": 12`), []byte(`"rows": 13`), 1),
			0o600); err != nil {
			t.Fatal(err)
		}
		const says = "capture.json tells of 13 rows of the access table, of which 0 were deleted, and the files hold 12"
		code, stdout, stderr := execute(t, "-c", dir, "-o", t.TempDir(), "--json")
		if complete &&
			(code != cli.Failure ||
				!strings.Contains(stderr, says+": copy the whole capture again, or capture again") ||
				strings.Count(stderr, "\n") != 1) {
			t.Errorf("exit %d, stderr %q, want %d and what contradicts", code, stderr, cli.Failure)
		}
		if !complete && (code != cli.OK || !strings.Contains(stderr, "analyze: warning: "+says) ||
			!strings.Contains(stdout, says)) {
			t.Errorf("exit %d, stderr %q, stdout %s, want a warning in both", code, stderr, stdout)
		}
	}
}
