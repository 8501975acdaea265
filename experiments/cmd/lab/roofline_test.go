package main

// This file tests "lab roofline": its flags, its errors and its output.

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/internal/cli"
)

// TestRoofline checks that there is a row for each model and form, that more bandwidth gives more
// tokens, and that impossible values get one line on stderr.
func TestRoofline(t *testing.T) {
	run := func(args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		code := cli.Run(t.Context(), rooflineCommand(), args, &out, &errs)
		return out.String(), errs.String(), code
	}
	rate := func(args ...string) map[string]float64 {
		out, errs, code := run(append(args, "--json")...)
		var rows []struct {
			Model, Form string
			PerSecond   float64 `json:"tokens_per_s"`
		}
		if err := json.Unmarshal([]byte(out), &rows); err != nil || code != 0 ||
			len(rows) != len(rooflineModels)*len(rooflineForms(0)) {
			t.Fatalf("exit %v, %d rows, %v, %s; want a row for each model and form", code, len(rows), err, errs)
		}
		rates := map[string]float64{}
		for _, r := range rows {
			rates[r.Model+r.Form] = r.PerSecond
		}
		return rates
	}
	slow := rate()
	for name, fast := range rate("--bandwidth", "819") {
		if !(fast > 1.5*slow[name]) || slow[name] <= 0 {
			t.Errorf("%s: %v tokens per second, with three times the bandwidth %v; want half more or better", name,
				slow[name], fast)
		}
	}
	if out, _, code := run(); code != 0 || strings.Count(out, "\n") != 1+len(slow) {
		t.Errorf("exit %d, want 0 and a line for each: %s", code, out)
	}
	figure := filepath.Join(t.TempDir(), "hardware.svg")
	if _, errs, code := run("--figure", figure); code != 0 || errs != "" {
		t.Errorf("exit %d, %q; want a figure", code, errs)
	}
	if svg, err := os.ReadFile(figure); err != nil || !bytes.Contains(svg, []byte(">gpt-oss-120b<")) {
		t.Errorf("%v; want a curve of each model", err)
	}
	for _, args := range [][]string{{"--figure", "x.txt"},
		{"--bandwidth", "0"}, {"--zeros", "1"}, {"--efficiency", "2"}, {"model"}} {
		if _, errs, code := run(args...); code != cli.BadUsage || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit %d, %q; want wrong usage and one line", args, code, errs)
		}
	}
}
