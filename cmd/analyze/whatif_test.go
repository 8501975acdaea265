package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/internal/cli"
	"tensorcast/sim/whatif"
	"tensorcast/trace/tables"
)

// The planted tokens read all of a model of a few hundred bytes but an embedding of which they read a row: what does not fit is read again.
func TestWhatIf(t *testing.T) {
	capture, out := plant(t, tables.Meta{}, true, whole, whole, whole, whole), t.TempDir()
	var size int64
	for i, s := range model {
		if size += s.Size; i == 1 {
			size += 64 - s.Size
		}
	}
	code, stdout, stderr := execute(t, "whatif", "-c", capture, "-o", out, "--disk", "1MB/s", "--compute", "1ms", "--blocks", "extents", "--ram", "0.5,1", "--json")
	var got struct {
		whatif.Answer
		Files []string `json:"files"`
	}
	if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, stderr)
	}
	// The first generated token fills the memory, so that three of four count.
	if got.Steps != 3 || got.WorkingSet != size || got.PerToken != float64(size) || got.Bandwidth != 1e6 || len(got.Rows) != 2 || len(got.Files) != 6 {
		t.Errorf("%+v of %d bytes", got, size)
	}
	if all := got.Rows[1].Results; all[0].Missed != 0 || all[0].TokS != 1000 || all[6].TokS != 1000 {
		t.Errorf("with all in memory %+v", all)
	}
	if half := got.Rows[0]; half.Memory != (size+1)/2 || half.Results[0].Missed < float64(size)/2 || half.Results[0].TokS >= half.Results[4].TokS {
		t.Errorf("with half of it %+v", half)
	}
	for _, name := range []string{"whatif.parquet", "whatif.csv", missFile + ".csv", "whatif.png"} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A figure in another format replaces the first.
	code, stdout, stderr = execute(t, "whatif", "-c", capture, "-o", out, "--disk", "1MB/s", "--compute", "1ms", "--format", "svg")
	if _, err := os.Stat(filepath.Join(out, "whatif.png")); code != cli.OK || err == nil || !strings.Contains(stdout, "tokens per second") {
		t.Errorf("exit %d, %v: %s%s", code, err, stdout, stderr)
	}
}

// Each wrong value is named in one line.
func TestWhatIfRefuses(t *testing.T) {
	capture := plant(t, tables.Meta{}, true, whole, whole)
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no disk":    {nil, cli.Failure, "--disk"},
		"touched":    {[]string{"--disk", "1GB", "--touched", "0"}, cli.BadUsage, "--touched"},
		"disk":       {[]string{"--disk", "fast"}, cli.BadUsage, `"fast"`},
		"ram":        {[]string{"--disk", "1GB", "--ram", "1GB,much"}, cli.BadUsage, `"much"`},
		"no ram":     {[]string{"--disk", "1GB", "--ram", ""}, cli.BadUsage, "--ram"},
		"group":      {[]string{"--disk", "1GB", "--tokens-per-step", "0"}, cli.BadUsage, "--tokens-per-step"},
		"compute":    {[]string{"--disk", "1GB", "--compute", "-1s"}, cli.BadUsage, "--compute"},
		"no times":   {[]string{"--disk", "1GB"}, cli.Failure, "--compute"},
		"few tokens": {[]string{"--disk", "1GB", "--compute", "1ms", "--tokens-per-step", "9"}, cli.Failure, "only 1 steps"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := execute(t, append([]string{"whatif", "-c", capture, "-o", t.TempDir()}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.says) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit %d: %q", code, stderr)
			}
		})
	}
}

// What is read as it is touched comes as slowly as in the capture, if its tokens waited, and as --touched says if it does.
func TestWhatIfTouched(t *testing.T) {
	capture := plantScene(t) // a token in the middle of three reads 10 kB from disk, which is little: not short
	for args, want := range map[string]float64{"": 5e6, "--touched 1MB": 1e6} {
		code, stdout, stderr := execute(t, append([]string{"whatif", "-c", capture, "-o", t.TempDir(), "--disk", "5MB/s", "--compute", "1ms", "--json"}, strings.Fields(args)...)...)
		var got whatif.Answer
		if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil || got.Touched != want {
			t.Errorf("%q: %d, %v, %g bytes per second, want %g: %s", args, code, err, got.Touched, want, stderr)
		}
		for _, r := range got.Rows {
			seconds := 0.001 + r.Results[0].Missed/want
			if off := r.Results[0].TokS*seconds - 1; off < -1e-9 || off > 1e-9 {
				t.Errorf("%q: %g tok/s for %g bytes", args, r.Results[0].TokS, r.Results[0].Missed)
			}
		}
	}
}
