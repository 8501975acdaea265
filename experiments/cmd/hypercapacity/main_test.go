package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/fabric/hyper"
)

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--coding", "morse"}, `"morse"`},
		{[]string{"--dims", "100"}, "dimension 100"},
		{[]string{"--dims", "100", "--items", "0"}, "0 items"},
		{[]string{"--queries", "0"}, "0 queries"},
		{[]string{"--candidates", "-1"}, "-1 candidates"},
		{[]string{"--no-such-flag"}, "unknown flag"},
		{[]string{"argument"}, "argument"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), test.args, &stdout, &stderr)
		if code != 2 || !strings.HasPrefix(stderr.String(), "hypercapacity: ") || !strings.Contains(stderr.String(), test.want) || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, %q, want one line with %q", test.args, code, stderr.String(), test.want)
		}
	}
}

func TestFailures(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	small := []string{"--coding", "majority", "--dims", "64", "--items", "2", "--queries", "1"}
	for name, ctx := range map[string]context.Context{"none/figures.json": t.Context(), "context canceled": ended} {
		var stdout, stderr bytes.Buffer
		code := run(ctx, append(small, "--json", filepath.Join(t.TempDir(), "none/figures.json")), &stdout, &stderr)
		if code != 1 || !strings.Contains(stderr.String(), name) || stdout.Len() > 0 {
			t.Errorf("%s: exit %d, %q", name, code, stderr.String())
		}
	}
}

func TestTables(t *testing.T) {
	rows := []hyper.CapacityRow{
		{Coding: hyper.Exact, Dim: 64, Items: 8, Candidates: 9, Measured: 0.9, Predicted: 0.8999},
		{Coding: hyper.Exact, Dim: 64, Items: 16, Candidates: 16, Measured: 0.8994, Predicted: 1},
		{Coding: hyper.Exact, Dim: 128, Items: 8, Candidates: 9, Measured: 1, Predicted: 1},
		{Coding: hyper.Exact, Dim: 128, Items: 16, Candidates: 16, Measured: 1, Predicted: 1},
		{Coding: hyper.Nested, Dim: 64, Items: 8, Candidates: 8, Measured: 0, Predicted: 0.001},
	}
	for markdown, want := range map[bool]string{
		false: `exact      8 of 9         16 of 16
64 trits   0.900 (0.900)  0.899* (1.000)
128 trits  1.000 (1.000)  1.000 (1.000)

nested    8 of 8
64 trits  0.000* (0.001)
`,
		true: `| exact | 8 of 9 | 16 of 16 |
| --- | --- | --- |
| 64 trits | 0.900 (0.900) | **0.899** (1.000) |
| 128 trits | 1.000 (1.000) | 1.000 (1.000) |

| nested | 8 of 8 |
| --- | --- |
| 64 trits | **0.000** (0.001) |
`} {
		var b bytes.Buffer
		if err := write(&b, rows, markdown); err != nil || b.String() != want {
			t.Errorf("%v\n%s\nwant\n%s", err, b.String(), want)
		}
	}
}

func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures.json")
	args := []string{"--coding", "exact,blocks", "--dims", "1024", "--items", "8,128", "--candidates", "64", "--queries", "256", "--seed", "7", "--json"}
	var stdout, again, stderr bytes.Buffer
	if code := run(t.Context(), append(args, path), &stdout, &stderr); code != 0 || strings.Count(stdout.String(), "\n") != 5 {
		t.Fatalf("exit %d, %q, %q", code, stdout.String(), stderr.String())
	}
	if code := run(t.Context(), append(args, "-"), &again, &stderr); code != 0 {
		t.Fatalf("exit %d, %q", code, stderr.String())
	}
	data, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(data, again.Bytes()) {
		t.Fatalf("%v; a second run gives other figures", err)
	}
	var report struct {
		Seed uint64
		Rows []hyper.CapacityRow
	}
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != 4 || report.Seed != 7 || report.Rows[1].Coding != hyper.Exact || math.Abs(report.Rows[1].Measured-.675) > .12 {
		t.Errorf("%+v", report)
	}
}
