package main

// This file tests "lab pressure" and the commands that it starts, "lab load" and "lab pin".

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/pressure"
	"tensorcast/experiments/results"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/cli"
	"tensorcast/internal/outfile"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

func TestPressureUsage(t *testing.T) {
	testUsage(t, "pressure", []usageTest{
		{nil, "no model"},
		{[]string{"-m", "x"}, "give the limit"},
		{[]string{"-m", "x", "--x", "0.5", "--limit", "1GB"}, "give the limit"},
		{[]string{"-m", "x", "--x", "0.5", "--experts", "0.5"}, "give the limit"},
		{[]string{"-m", "x", "--experts", "0.5", "--limit", "1GB"}, "give the limit"},
		{[]string{"-m", "x", "--experts", "0.5,0"}, "--experts 0"},
		{[]string{"-m", "x", "--experts", "0.5,0.5"}, "given twice"},
		{[]string{"-m", "x", "--experts", "0.5", "--weights", "1GB"}, "--weights: with --experts"},
		{[]string{"-m", "x", "--experts", "0.5", "--figure-bytes", "bytes"}, "--figure-bytes"},
		{[]string{"--from", "runs.json", "--experts", "0.4"}, "--experts: with --from nothing is measured"},
		{[]string{"-m", "x", "--x", "-1"}, "--x -1"},
		{[]string{"-m", "x", "--x", "NaN"}, "--x NaN"},
		{[]string{"-m", "x", "--limit", "much"}, `--limit "much"`},
		{[]string{"-m", "x", "--x", "1", "--weights", "0"}, `--weights "0"`},
		{[]string{"-m", "x", "--x", "1", "--repeat", "0"}, "--repeat 0"},
		{[]string{"-m", "x", "--x", "1", "--tokens", "0"}, "--tokens 0"},
		{[]string{"-m", "x", "--x", "1", "--readahead", "128,-1"}, "--readahead -1"},
		{[]string{"-m", "x", "--x", "0.5,-1"}, "--x -1"},
		{[]string{"-m", "x", "--x", "0.5", "--x", "0.5"}, "given twice"},
		{[]string{"-m", "x", "--x", "0.5", "--readahead", "128,128"}, "given twice"},
		{[]string{"-m", "x", "--x", "0.5", "--skip", "-1"}, "--skip -1"},
		{[]string{"-m", "x", "--x", "0.5", "--skip", "8", "--tokens", "8"}, "--skip 8: of 8 tokens none is left"},
		{[]string{"-m", "x", "--x", "0.5", "--throttle", "fast"}, `--throttle "fast": want a rate such as 500MB/s`},
		{[]string{"-m", "x", "--x", "0.5", "--throttle", "0/s"}, "--throttle"},
		{[]string{"-m", "x", "--x", "0.5", "--figure", "speed.gif"}, "ends in one of .png, .svg, .pdf"},
		{[]string{"--from", "runs.json", "--figure", "speed"}, "ends in one of .png, .svg, .pdf"},
		{[]string{"--from", "runs.json", "-m", "x"}, "--model: with --from nothing is measured"},
		{[]string{"--from", "runs.json", "--skip", "-2"}, "--skip -2"},
		{[]string{"-m", "x", "--x", "1", "--variant", "=h"}, "a name of its own"},
		{[]string{"-m", "x", "--x", "1", "--variant", "a", "--variant", "a=h"}, "a name of its own"},
		{[]string{"-m", "x", "--x", "1", "--variant", "a", "--variant", "a again", "--noise"}, "takes that name"},
	})
}

func TestPressureFails(t *testing.T) {
	code, _, stderr := lab(t.Context(), "pressure", "-m", filepath.Join(t.TempDir(), "none.gguf"), "--x", "0.5",
		"--", "true")
	want := "no such file"
	if os.Geteuid() != 0 {
		want = "needs root"
	}
	if code != 1 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %q; want 1 and one line with %q", code, stderr, want)
	}
}

func TestParseVariant(t *testing.T) {
	for text, want := range map[string]pressure.Variant{
		"plain":                              {Name: "plain"},
		"both=bin/prefetchd --pid {pid}":     {Name: "both", Helper: "bin/prefetchd --pid {pid}"},
		"a=h --x=1 :: --load-mode=none -t 1": {Name: "a", Helper: "h --x=1", Flags: "--load-mode=none -t 1"},
		"unmapped :: --load-mode=none":       {Name: "unmapped", Flags: "--load-mode=none"},
		"fast=h --exec -- {target} :: -t 1":  {Name: "fast", Launcher: "h --exec --", Flags: "-t 1"},
		"odd name = h":                       {Name: "odd name", Helper: "h"},
	} {
		if got := parseVariant(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// --x and --readahead give all combinations, the shares of one readahead together.
func TestPressureSettings(t *testing.T) {
	const limit = 1 << 30
	for _, test := range []struct {
		o    pressureOptions
		want []pressure.Setting
	}{
		{pressureOptions{x: []float64{0.5, 0.7}}, []pressure.Setting{{X: 0.5}, {X: 0.7}}},
		{pressureOptions{limit: limit}, []pressure.Setting{{Limit: limit}}},
		{pressureOptions{x: []float64{0.5, 0.7}, readahead: []int{8192, 128}},
			[]pressure.Setting{{X: 0.5, Readahead: 8192}, {X: 0.7, Readahead: 8192}, {X: 0.5, Readahead: 128},
				{X: 0.7, Readahead: 128}}},
		{pressureOptions{experts: []float64{0.2, 1.2}, readahead: []int{128}},
			[]pressure.Setting{{Experts: 0.2, Readahead: 128}, {Experts: 1.2, Readahead: 128}}},
		{pressureOptions{limit: limit, readahead: []int{128}}, []pressure.Setting{{Limit: limit, Readahead: 128}}},
	} {
		if got := test.o.settings(); !slices.Equal(got, test.want) {
			t.Errorf("%+v, want %+v", got, test.want)
		}
	}
}

// The static baseline needs no helper, but may be given one.
func TestStaticVariant(t *testing.T) {
	o := pressureOptions{variants: []string{"plain", "static"}, x: []float64{0.5}}
	o.Model, o.Repeat, o.driver = "m.gguf", 1, llama.Options{Tokens: 1, Threads: 1}
	o.throttle = "500MB/s"
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	if v := o.Variants[1]; v.Name != "static" ||
		!strings.HasSuffix(v.Helper, "' pin --pid {pid} --room {room} {model}") || o.Variants[0].Helper != "" {
		t.Errorf("%+v, want plain without a helper and static with lab pin", o.Variants)
	}
	if o.Throttle != 500e6 {
		t.Errorf("throttle %d, want 5e8", o.Throttle)
	}
	o.variants, o.Variants = []string{"static=vmtouch -l -p 0-{room} {model}"}, nil
	if err := o.complete(); err != nil || o.Variants[0].Helper != "vmtouch -l -p 0-{room} {model}" {
		t.Errorf("%v, %+v; want the given helper", err, o.Variants)
	}
}

// saved is a series as --save writes it: one run of four tokens, of which the first is slow.
const saved = `{"model": {"path": "m.gguf", "token_bytes": 1000}, "skip": 2, "variants": [{"name": "plain"}], "results": [{"limit_bytes": 500}],
	"runs": [{"variant": "plain", "limit_bytes": 500, "outcome": "finished", "tok_s": 1, "token_ms": [3400, 200, 200, 200],
		"token_bytes": [9, 5, 5, 5]}]}`

// A saved series is shown again in all forms, without root.
func TestFrom(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "runs.json"), filepath.Join(dir, "again.json")
	figure, bytes, table := filepath.Join(dir, "speed.SVG"), filepath.Join(dir, "bytes.pdf"),
		filepath.Join(dir, "runs.parquet")
	if err := os.WriteFile(in, []byte(saved), 0o644); err != nil {
		t.Fatal(err)
	}
	code, bare, _ := lab(t.Context(), "pressure", "--from", in, "--skip", "1")
	if code != 0 || !strings.Contains(bare, "85 %") {
		t.Errorf("exit %d, want the report of an older build\n%s", code, bare)
	}
	if code, _, stderr := lab(t.Context(), "pressure", "--from", in, "--save", out); code != cli.BadUsage ||
		!strings.Contains(stderr, "lab results import") {
		t.Errorf("exit %d, %q, want that a document is made of it first", code, stderr)
	}
	full := `{"started": "2026-01-02T03:04:05Z", "host": {"cpus": 2}, ` + saved[1:]
	document, err := results.Import(results.Pressure, []byte(full), "lab pressure", "0123456")
	if err == nil {
		err = outfile.Write(in, document.Write)
	}
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := lab(t.Context(), "pressure", "--from", in, "--skip", "1", "--save", out, "--figure",
		figure, "--figure-bytes", bytes, "--parquet", table)
	if d, err := results.ReadFile(out); err != nil || d.Command != "lab pressure" || d.Build.Commit != "0123456" {
		t.Errorf("%v, %+v; want what the document said", err, d)
	}
	if code != 0 || stderr != "" || !strings.Contains(stdout, "Steady: without the first 1 tokens") ||
		!strings.Contains(stdout, "85 %") {
		t.Errorf("exit %d, %q, want 0 and a start-up of 85 %%\n%s", code, stderr, stdout)
	}
	for file, want := range map[string]string{figure: "<?xml", bytes: "%PDF", table: "PAR1", out: "{"} {
		if data, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(data), want) {
			t.Errorf("%s: %v, begins with %.8q, want %q", file, err, data, want)
		}
	}
	// The written file is shown again unchanged.
	if code, again, _ := lab(t.Context(), "pressure", "--from", out); code != 0 || again != stdout {
		t.Errorf("exit %d\n%s\nwant\n%s", code, again, stdout)
	}
	code, said, _ := lab(t.Context(), "pressure", "--from", out, "--texts", "--markdown")
	if table := "| variant | runs | said |\n"; code != 0 || !strings.Contains(said, table) {
		t.Errorf("exit %d, want %q in\n%s", code, table, said)
	}
	// An output that cannot be written does not keep the others from being written. It is reported
	// once.
	if err := os.Remove(table); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(dir, "none", "x.json")
	code, again, stderr := lab(t.Context(), "pressure", "--from", out, "--save", nowhere, "--parquet", table,
		"--figure", filepath.Join(dir, "none", "x.png"))
	if code != 1 || again != stdout || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "no such file") {
		t.Errorf("exit %d, %q, want 1 and one line that there is no such file\n%s", code, stderr, again)
	}
	if _, err := os.Stat(table); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(in, []byte(`{"runs": []}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{in: "not a saved series", dir: "not a regular file",
		filepath.Join(dir, "none"): "no such file"} {
		if code, _, stderr := lab(t.Context(), "pressure", "--from", file); code != 1 ||
			!strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q, want %q", file, code, stderr, want)
		}
	}
}

func TestPinAndLoadUsage(t *testing.T) {
	testUsage(t, "pin", []usageTest{
		{[]string{"file"}, "give --pid"},
		{[]string{"--pid", "1", "file"}, "give --room"},
		{[]string{"--pid", "1", "--room", "x", "file"}, `--room "x"`},
		{[]string{"--pid", "1", "--room", "1GB"}, "arg(s)"},
	})
	testUsage(t, "load", []usageTest{{[]string{"heaps", "file"}, `"heaps": want pages or folios`},
		{[]string{"pages"}, "arg(s)"}})
}

// cyclic reads the model once for each token. With a second argument it first waits, for a minute
// at most, until a helper has locked its part.
const cyclic = `[ -z "$2" ] || for i in $(seq 600); do
	for helper in $(grep -lsaE "p[i]n.--pid.$$.--room" /proc/[0-9]*/cmdline); do
		grep -qsE "VmLck:.*[1-9]" "${helper%cmdline}status" && break 2
	done
	sleep 0.1
done
sleep 0.2
printf b >&3
sleep 0.05
for i in 1 2 3 4; do cat "$1" >/dev/null; printf t >&3; sleep 0.05; done
echo '{"text":"x","tokens":[1,2,3,4],"token_ms":[40,20,20,20],"tok_s":40}'`

// This measures a whole series, with the processes that lab starts of itself. The model is loaded
// in the group of the run, and bytes that the static baseline has locked need not be read again.
func TestPressureStatic(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel() // the command mostly waits
	if _, err := cgroup.Root(); errors.Is(err, cgroup.ErrNoController) {
		t.Skip(err)
	}
	testenv.NeedReadahead(t)
	dir := t.TempDir()
	model, script, out := filepath.Join(dir, "the model"), filepath.Join(dir, "target.sh"),
		filepath.Join(dir, "runs.json")
	const size = 64 << 20
	content := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(content)
	if err := errors.Join(os.WriteFile(model, content, 0o644),
		os.WriteFile(script, []byte(cyclic), 0o644)); err != nil {
		t.Fatal(err)
	}
	cmd, stdout, stderr := labProcess(t, "pressure", "-q", "-m", model, "--weights", "64MiB", "--x", "0.95",
		"--readahead", "128", "--repeat", "1", "--skip", "1", "--save", out,
		"--variant", "plain", "--variant",
		"static="+proc.Quote(os.Args[0])+" pin --pid {pid} --room {room} --leave 34MiB {model} :: helped",
		"--",
		"/bin/sh", script, model)
	if err := cmd.Run(); strings.Contains(stderr.String(), "put the model on one") ||
		strings.Contains(stderr.String(), pressure.ErrNoDirectIO.Error()) {
		t.Skip(stderr.String())
	} else if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	t.Logf("\n%s", stdout)
	d := readSaved(t, out, results.Pressure, new(pressure.Report))
	if !strings.Contains(d.Command, " pressure -q -m "+proc.Quote(model)+" --weights 64MiB") ||
		len(d.Disk.Readings) == 0 {
		t.Errorf("%q, disk %+v", d.Command, d.Disk)
	}
	r, err := pressure.ReadReport(d.Report, -1)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range r.Unlimited[1:] {
		// A kernel that reclaims cold pages by itself (DAMON) may have taken a few, and later a few
		// folios.
		if u.Loaded == nil || u.Loaded.Resident < size*9/10 || u.Cached < size*3/4 || u.Peak < size/2 {
			t.Errorf("%s: %d of %d bytes in memory, %d charged, %+v", u.Variant, u.Cached, size, u.Peak, u.Loaded)
		}
	}
	plain, static := r.Runs[0], r.Runs[1]
	if plain.Outcome != pressure.Finished || static.Outcome != pressure.Finished || static.Helper == nil ||
		static.Helper.Early {
		t.Fatalf("%+v\n%+v", plain, static)
	}
	// Some 27 MiB are locked. They are the first that are read, and the lock takes a moment.
	if plain.Steady.BytesPerToken < 0.8*size || static.Steady.BytesPerToken > 0.75*size ||
		!strings.HasPrefix(static.Helper.Output, "locked the first ") {
		t.Errorf("%.0f bytes a token, with the static baseline %.0f; it says %q", plain.Steady.BytesPerToken,
			static.Steady.BytesPerToken, static.Helper.Output)
	}
}

// The file of --save is written in addition to the table.
func TestSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runs.json")
	var stdout bytes.Buffer
	begun := time.Now()
	if err := (&output{kind: results.Pressure, begun: begun, save: path}).print(&stdout,
		&pressure.Report{Own: 2, Variants: []pressure.Variant{{Name: "plain"}}}); err != nil {
		t.Fatal(err)
	}
	var r pressure.Report
	d := readSaved(t, path, results.Pressure, &r)
	if r.Own != 2 || !strings.HasPrefix(stdout.String(), "model: ") || !d.Started.Equal(begun) ||
		d.Command != commandLine(os.Args) || d.Machine.CPUs < 1 {
		t.Errorf("%+v; printed %q; want the report in both", d, stdout.String())
	}
}
