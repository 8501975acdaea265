package main

// This file tests the subcommand compare on two planted captures.

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/event"
	"tensorcast/internal/cli"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// plantTimed plants a capture of tokens that take so many ms each. Each has a page-in of
// blk.0.ffn_up.weight: first its 200 bytes, then so many again.
func plantTimed(t *testing.T, ms int64, again int64, tokens ...[]int32) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "capture")
	meta := tables.Meta{Models: []tables.ModelInfo{planted}, Detail: tables.DetailOpIO}
	w, err := trace.Create(dir, &meta, model)
	if err != nil {
		t.Fatal(err)
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(w.PageIns())
	for step, tensors := range tokens {
		begin := int64(step) * 1e9
		for i, tensor := range tensors {
			do(w.Access(&tables.Access{Step: int32(step), Token: int32(step), Phase: tables.PhaseGeneration,
				Op: "MUL_MAT", Tensor: tensor, Bytes: model[tensor].Size,
				Offset: model[tensor].Offset, Timestamp: begin + int64(i), Duration: 1, Stall: again * 10}))
		}
		row := tables.PageInRow{
			Step: int32(step), File: "planted.gguf", Offset: 9000, Bytes: 200, Tensor: 3, Expert: -1,
			Timestamp: begin, Cause: event.CauseFault,
		}
		if step > 0 {
			row.Bytes, row.Rereads = again, 1
		}
		if step%2 == 1 { // a prefetcher has read it
			row.Step, row.PID, row.Cause = -1, 99, event.CauseOther
		}
		if row.Bytes > 0 {
			do(w.PageIn(&row))
		}
		do(w.Step(&tables.StepRow{
			Step: int32(step), Token: int32(step), Phase: tables.PhaseGeneration, Tokens: 1, Begin: begin,
			End: begin + ms*1e6,
		}))
		meta.Steps++
		meta.Tokens++
	}
	// After the last step.
	do(w.PageIn(&tables.PageInRow{
		Step: -1, File: "planted.gguf", Offset: 9000, Bytes: 100, Tensor: 3, Expert: -1,
		Timestamp: int64(len(tokens)) * 1e9, Rereads: 1, PID: 99, Cause: event.CauseOther,
	}))
	do(w.Close(&meta, true))
	return dir
}

// The figures of both captures are those that were planted, and so are the differences.
func TestCompare(t *testing.T) {
	slow, fast := plantTimed(t, 100, 200, whole, whole, whole, whole), plantTimed(t, 20, 0, whole, whole, whole, whole)
	out := filepath.Join(t.TempDir(), "analysis")
	code, stdout, stderr := execute(t, "compare", "-o", out, slow, fast)
	if code != cli.OK || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	for _, want := range []string{
		"both read the same tensors in the same order for each token (4 reads)\n",
		"wrote " + filepath.Join(out, "compare.png"),
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("output lacks %q:\n%s", want, stdout)
		}
	}
	lines := map[string][]string{}
	for line := range strings.Lines(stdout) {
		fields := strings.Fields(line)
		for i := range fields {
			lines[strings.Join(fields[:i], " ")] = fields[i:]
		}
	}
	for what, want := range map[string]string{
		"tokens per second": "10 50 5", "a token, median": "100 ms 20 ms 0.2", "read per token": "7.6 KiB 7.6 KiB 1",
		"of it from disk": "200 B 50 B 0.25", "of that again": "150 B 0 B -", "stall per token": "0.008 ms 0 ms -",
	} {
		if got := strings.Join(lines[what], " "); got != want {
			t.Errorf("%s: %q, want %q\n%s", what, got, want, stdout)
		}
	}
	table, err := os.ReadFile(filepath.Join(out, "compare.csv"))
	if want := "tensor_name,size_bytes_a,size_bytes_b,bytes_per_token_a,bytes_per_token_b," +
		"disk_bytes_per_token_a,disk_bytes_per_token_b,reread_bytes_per_token_a,reread_bytes_per_token_b," +
		"stall_ns_per_token_a,stall_ns_per_token_b\n" +
		"blk.0.ffn_up.weight,200,200,200,200,200,50,150,0,2000,0\n"; err != nil ||
		!strings.HasPrefix(string(table), want) || strings.Count(string(table), "\n") != 5 {
		t.Errorf("error %v, compare.csv\n%s\nwant\n%s", err, table, want)
	}
	// Another order is shown as the edit that makes it.
	code, stdout, _ = execute(t, "compare", "-o", out, "--json", fast,
		plantTimed(t, 20, 0, []int32{1, 2, 3, 0}, []int32{1, 2, 3, 0}))
	var got struct {
		Identical bool `json:"sequence_identical"`
		Same      bool `json:"same_model"`
		Edits     []struct {
			Kind         string
			Position, To int
		}
	}
	if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil || got.Identical || !got.Same ||
		len(got.Edits) != 1 || got.Edits[0].Kind != "order" || got.Edits[0].Position != 1 || got.Edits[0].To != 3 {
		t.Errorf("exit %d, %v, %+v, want one edit of the order, from 1 to 3", code, err, got)
	}
	// Without times and page-ins nothing is said of them, and no earlier figure stays.
	code, stdout, stderr = execute(t, "compare", "-o", out, plant(t, tables.Meta{}, true, whole),
		plant(t, tables.Meta{}, true, whole, whole))
	if code != cli.OK || stderr != "" || strings.Contains(stdout, "compare.png") ||
		!strings.Contains(stdout, "of it from disk") {
		t.Errorf("exit %d, stderr %q, want no figure in\n%s", code, stderr, stdout)
	}
	if _, err := os.Stat(filepath.Join(out, "compare.png")); !os.IsNotExist(err) {
		t.Errorf("the earlier figure: error %v, want that it is gone", err)
	}
}

func TestCompareArguments(t *testing.T) {
	some := plant(t, tables.Meta{}, true, whole)
	for says, args := range map[string][]string{
		"1 arguments: want two captures":             {some},
		"--capture: name both captures as arguments": {"-c", some, some, some},
		"no capture here":                            {some, filepath.Join(t.TempDir(), "none")},
	} {
		code, stdout, stderr := execute(t, append([]string{"compare", "-o", filepath.Join(t.TempDir(), "a")},
			args...)...)
		if code == cli.OK || stdout != "" || !strings.Contains(stderr, says) {
			t.Errorf("%v: exit %d, stderr %q, want a failure that says %q", args, code, stderr, says)
		}
	}
}
