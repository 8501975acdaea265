package main

// This file tests "lab hyper": its flags, its errors and its output.

import (
	"context"
	"encoding/json"
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/results"
	"tensorcast/fabric/lab/hyper"
)

func TestHyperUsage(t *testing.T) {
	testUsage(t, "hyper", []usageTest{
		{[]string{"--coding", "morse"}, `"morse"`},
		{[]string{"--dims", "100"}, "dimension 100"},
		{[]string{"--dims", "100", "--items", "0"}, "0 items"},
		{[]string{"--queries", "0"}, "0 queries"},
		{[]string{"--candidates", "-1"}, "-1 candidates"},
		{[]string{"argument"}, "argument"},
	})
}

func TestHyperFails(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	small := []string{"hyper", "--coding", "majority", "--dims", "64", "--items", "2", "--queries", "1"}
	for name, ctx := range map[string]context.Context{"none/figures.json": t.Context(), "context canceled": ended} {
		code, stdout, stderr := lab(ctx, append(small, "--save", filepath.Join(t.TempDir(), "none/figures.json"))...)
		// If the result cannot be saved, it is printed.
		if code != 1 || !strings.Contains(stderr, name) || (stdout != "") != (ctx.Err() == nil) {
			t.Errorf("%s: exit %d, %q\n%s", name, code, stderr, stdout)
		}
	}
}

// An interrupted series prints and writes the figures that it has.
func TestHyperInterrupted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "figures.json")
	code, stdout, stderr := interrupted(t, 2*time.Second, "hyper", "--dims", "64,65536", "--queries", "20000",
		"--items", "2,1024", "--coding", "exact", "--save", path)
	if code != 1 || stderr != "lab hyper: interrupted by SIGINT\n" || !strings.Contains(stdout, "INTERRUPTED") ||
		!strings.Contains(stdout, "64 trits") {
		t.Fatalf("exit %d, %q, want 1 and that it was interrupted\n%s", code, stderr, stdout)
	}
	var r hyper.Report
	if d := readSaved(t, path, results.Hyper, &r); !r.Interrupted || !d.Interrupted ||
		len(r.Rows) == 0 || len(r.Rows) == 4 {
		t.Errorf("%s", d.Report)
	}
}

func TestHyper(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures.json")
	args := []string{"hyper", "--coding", "exact,blocks", "--dims", "1024", "--items", "8,128", "--candidates",
		"64", "--queries", "256", "--seed", "7"}
	if code, stdout, stderr := lab(t.Context(), append(args, "--save", path)...); code != 0 ||
		strings.Count(stdout, "\n") != 5 {
		t.Fatalf("exit %d, %q, %q; want 0 and 5 lines", code, stdout, stderr)
	}
	code, again, stderr := lab(t.Context(), append(args, "--json")...)
	if code != 0 {
		t.Fatalf("exit %d, %q; want 0", code, stderr)
	}
	var report, second hyper.Report
	readSaved(t, path, results.Hyper, &report)
	if err := json.Unmarshal([]byte(again), &second); err != nil || !reflect.DeepEqual(report, second) {
		t.Fatalf("%v; a second run gives other figures", err)
	}
	if len(report.Rows) != 4 || report.Interrupted || report.Seed != 7 || report.Rows[1].Coding != hyper.Exact ||
		math.Abs(report.Rows[1].Measured-.675) > .12 {
		t.Errorf("%+v, want 4 rows with the seed 7", report)
	}
}
