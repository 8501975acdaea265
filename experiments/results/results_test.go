package results

// This file tests documents that are planted, and the committed ones.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/overhead"
	"tensorcast/internal/tabular"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// root is the checkout.
const root = "../.."

// plantedRun is a run of a planted series of lab pressure: x = 0.5, or 0.8 at setting 1.
type plantedRun struct {
	setting int
	variant string
	tokS    float64 // 0: it was killed
}

// plant is the report of a series of lab pressure, as a build saves it.
func plant(t *testing.T, helper string, runs ...plantedRun) []byte {
	t.Helper()
	var all []map[string]any
	var variants []map[string]any
	known, rounds := map[string]bool{}, map[string]int{}
	for _, r := range runs {
		if !known[r.variant] {
			known[r.variant] = true
			v := map[string]any{"name": r.variant}
			if r.variant != "plain" {
				v["helper"] = helper
			}
			variants = append(variants, v)
		}
		turn := fmt.Sprint(r.setting, r.variant)
		run := map[string]any{"variant": r.variant, "setting": r.setting, "round": rounds[turn], "limit_bytes": 500,
			"outcome": "oom-killed", "text": "a /text of/a model", "error": "killed in /home/me/x"}
		if r.tokS > 0 {
			ms := 1000 / r.tokS
			run["outcome"], run["tok_s"] = "finished", r.tokS
			run["token_ms"], run["token_bytes"] = []float64{ms, ms, ms}, []int64{5, 5, 5}
		}
		rounds[turn]++
		all = append(all, run)
	}
	data, err := json.Marshal(map[string]any{
		"started": "2026-01-02T03:04:05Z",
		"host": map[string]any{"kernel": "6.1.0", "cpu": "Planted", "cpus": 2, "memory_bytes": 4 << 30,
			"cgroup_version": 2},
		"disk": map[string]any{"name": "vda", "readahead_kib_before": 128},
		"disk_readings": []any{map[string]any{"after_runs": 0,
			"result": map[string]any{"best": map[string]any{"bytes_per_second": 2e9}}}},
		"model": map[string]any{"path": "/home/me/models/m.gguf", "bytes": 1000, "token_bytes": 1000}, "skip": 1,
		"variants": variants, "runs": all,
		"results": []any{
			map[string]any{"setting": map[string]any{"x": 0.5}, "limit_bytes": 500, "readahead_kib": 128},
			map[string]any{"setting": map[string]any{"x": 0.8}, "limit_bytes": 800, "readahead_kib": 128}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

const plantedHelper = "/opt/new/prefetchd --pid {pid} --run-dir /tmp/rd"

// plantedDocument is a document of a planted series.
func plantedDocument(t *testing.T, runs ...plantedRun) *Document {
	t.Helper()
	d, err := Import(Pressure, plant(t, plantedHelper, runs...), "./lab pressure -m /home/me/models/m.gguf --x 0.5",
		"0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func write(t *testing.T, d *Document) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := d.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A document says what its report says, and is the same when it was written and read.
func TestDocument(t *testing.T) {
	d := plantedDocument(t, plantedRun{0, "plain", 2})
	if d.Machine.CPUs != 2 || d.Machine.Kernel != "6.1.0" || d.Disk == nil || d.Disk.Name != "vda" ||
		!slices.Equal(d.Disk.Readings, []float64{2e9}) || d.Started != time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) ||
		!strings.Contains(d.Told, "commit and the command") {
		t.Errorf("%+v, %+v", d, d.Disk)
	}
	data := write(t, d)
	again, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(write(t, again), data) {
		t.Errorf("%s\nbecame\n%s", data, write(t, again))
	}
	// What an instrument has just measured has this machine where the report says nothing of it.
	begun := time.Now()
	fresh, err := New(Hyper, map[string]any{"seed": 1, "a": "<&>"}, "lab hyper", begun)
	if err != nil || fresh.Machine.CPUs < 1 || !fresh.Started.Equal(begun) || fresh.Told != "" || fresh.Build.Go == "" {
		t.Errorf("%+v, %v", fresh, err)
	}
	if again, err := Parse(write(t, fresh)); err != nil || string(again.Report) == "" {
		t.Errorf("%v", err)
	}
	real := &overhead.Report{Started: begun, Target: []string{"x"}}
	if d, err := New(Overhead, real, "lab overhead", time.Time{}); err != nil || !d.Started.Equal(begun) {
		t.Errorf("%+v, %v; want the report's start", d, err)
	} else if _, err := d.Open(); err != nil {
		t.Error(err)
	}
}

// Whatever is not a document of this schema and version is refused with one line that says why.
func TestParseRefuses(t *testing.T) {
	good := string(write(t, plantedDocument(t, plantedRun{0, "plain", 2})))
	if _, err := Parse([]byte(good)); err != nil {
		t.Fatal(err)
	}
	change := func(old, now string) string {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatalf("the document lacks %q:\n%s", old, good)
		}
		return strings.Replace(good, old, now, 1)
	}
	for name, test := range map[string]struct{ data, want string }{
		"empty":        {"", "unexpected end"},
		"no object":    {"[]", "cannot unmarshal array"},
		"cut off":      {good[:len(good)/2], "unexpected end"},
		"bare report":  {string(plant(t, "x", plantedRun{0, "plain", 2})), "older builds"},
		"other schema": {change(Schema, "tensorcast.other"), `schema is "tensorcast.other"`},
		"newer": {change(`"version": 1`, `"version": 2, "new": 0`),
			"version 2 of the schema, and this build reads version 1"},
		"older":      {change(`"version": 1`, `"version": 0`), "version 0"},
		"unknown":    {change(`"command"`, `"comand": "", "command"`), `unknown field "comand"`},
		"twice":      {good + good, "after top-level value"},
		"kind":       {change(`"kind": "pressure"`, `"kind": "guess"`), `kind is "guess"`},
		"no command": {change(`"./lab pressure -m /home/me/models/m.gguf --x 0.5"`, `" "`), "which command"},
		"commit":     {change("0123456789abcdef", "HEAD"), `commit "HEAD"`},
		"no report":  {good[:strings.Index(good, `"report"`)] + `"report": 5}`, "report"},
		"start":      {change(`"started": "2026-01-02T03`, `"started": "2026-01-03T03`), "its report says"},
		"machine":    {change(`"cpus": 2`, `"cpus": 64`), "machine is another one"},
		"disk":       {change(`2000000000`, `9000000000`), "disk is another one"},
	} {
		_, err := Parse([]byte(test.data))
		if !errors.Is(err, ErrNotDocument) || !strings.Contains(err.Error(), test.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", name, err, test.want)
		}
		if is := errors.Is(err, ErrBareReport); is != (name == "bare report") {
			t.Errorf("%s: it is taken for a bare report: %v", name, is)
		}
	}
	for name, report := range map[string]string{"no machine": `{"started": "2026-01-02T03:04:05Z"}`,
		"no start": `{"host": {"cpus": 2}}`, "no JSON": "x"} {
		if _, err := Import(Pressure, []byte(report), "lab pressure", "0123456"); !errors.Is(err, ErrNotDocument) {
			t.Errorf("%s: imported, %v", name, err)
		}
	}
}

// FuzzParse looks for documents that are read and then cannot be shown without a panic, or not be written.
func FuzzParse(f *testing.F) {
	if data, err := os.ReadFile("harm-sharing.json"); err == nil {
		f.Add(data)
	}
	f.Add([]byte(`{"schema": "tensorcast.result", "version": 1, "kind": "harm", "started": "2026-01-02T03:04:05Z",
		"command": "lab harm", "build": {"commit": ""}, "machine": {"kernel": "", "arch": "", "cpu": "", "cpus": 0,
		"memory_bytes": 0, "page_size": 0, "cgroup_version": 0, "load_before": 0}, "report": {"runs": [{}], "rows": [{}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Parse(data)
		if err != nil {
			return
		}
		if again, err := Parse(write(t, d)); err != nil || again.Kind != d.Kind {
			t.Fatalf("read, but not after it was written: %v", err)
		}
		_, _ = d.Publish()
		_ = d.WriteTable(&bytes.Buffer{})
		_, _, _ = Columns([]Named{{"x", d}})
		_, _ = Compare(Named{"x", d}, Named{"y", d})
	})
}

// A published document has no paths, and nothing else of it changes.
func TestPublish(t *testing.T) {
	d := plantedDocument(t, plantedRun{0, "plain", 2}, plantedRun{0, "both", 0})
	if d.HasPaths() == "" {
		t.Error("no path was found in the planted document")
	}
	p, err := d.Publish()
	if err != nil {
		t.Fatal(err)
	}
	if path := p.HasPaths(); path != "" || !p.BaseNames || p.Command != "lab pressure -m m.gguf --x 0.5" {
		t.Errorf("%q, %q", path, p.Command)
	}
	for _, want := range []string{`"path":"m.gguf"`, `"helper":"prefetchd --pid {pid} --run-dir rd"`,
		`"error":"killed in x"`, `"text":"a /text of/a model"`} {
		if !strings.Contains(string(p.Report), want) {
			t.Errorf("the report lacks %s:\n%s", want, p.Report)
		}
	}
	for text, want := range map[string]string{
		"../a/b.gguf":                 "b.gguf",
		"old/bin/prefetchd":           "old/bin/prefetchd",
		"12 MiB/token, 3 / 4, us/MiB": "12 MiB/token, 3 / 4, us/MiB",
		`sh -c "exec ./x" --a=/b/c`:   `sh -c "exec x" --a=c`,
		"https://example.org/a":       "https://example.org/a",
	} {
		if got := withoutPaths(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	// Two builds of a helper would become the same.
	report := strings.Replace(string(plant(t, "/opt/new/prefetchd", plantedRun{0, "old", 2}, plantedRun{0, "new", 2})),
		"/opt/new/prefetchd", "/opt/old/prefetchd", 1)
	two, err := Import(Pressure, []byte(report), "lab pressure", "0123456")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Publish(); err == nil || !strings.Contains(err.Error(), "differ only in a path") {
		t.Errorf("%v; want that variants differ only in a path", err)
	}
}

// Every committed document can be read, has no path of a machine, and has a table and rows.
func TestCommitted(t *testing.T) {
	t.Parallel()
	all, err := ReadDir(".")
	if err != nil {
		t.Error(err)
	}
	if len(all) < 4 {
		t.Fatalf("%d documents, want 4 at least: this test does not find them", len(all))
	}
	for _, d := range all {
		if path := d.HasPaths(); path != "" || !d.BaseNames {
			t.Errorf("%s has the path %q: make it with lab results import", d.Name, path)
		}
		var b bytes.Buffer
		if err := d.WriteTable(&b); err != nil || b.Len() < 100 {
			t.Errorf("%s: %v, %q", d.Name, err, b.String())
		}
		data, err := os.ReadFile(d.Name + ".json")
		if err != nil || !bytes.Equal(data, write(t, d.Document)) {
			t.Errorf("%s is not as it is written: %v", d.Name, err)
		}
	}
	columns, left, err := Columns(all)
	left = slices.DeleteFunc(left, func(name string) bool { // they have no runs at settings
		return slices.ContainsFunc(all, func(d Named) bool { return d.Name == name && d.Kind == Overhead })
	})
	if err != nil || len(columns) < 50 || len(left) > 0 {
		t.Fatalf("%d columns, %v, %v", len(columns), left, err)
	}
	var b bytes.Buffer
	if err := trace.WriteParquet(&b, columns); err != nil {
		t.Error(err)
	}
}

// Every table of figures in the pages of measurements and in the thesis notes is made from data. Tables without
// numbers explain words.
func TestMeasuredTables(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"docs/measurements/*.md", "thesis-notes/rq*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) < 5 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		made, body := false, false
		for n, line := range strings.Split(string(data), "\n") {
			switch {
			case strings.HasPrefix(line, markPrefix):
				made = true
			case line == endMark:
				made = false
			case strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| ---"):
				body = true
			case !strings.HasPrefix(line, "|"):
				body = false
			case body && !made && hasNumber.MatchString(linkTarget.ReplaceAllString(line, "")):
				t.Errorf("%s:%d: a table of figures without data: put it between marks (lab results docs --help)", page, n+1)
				body = false
			}
		}
	}
}

// linkTarget matches where a link leads, and hasNumber a number that is no part of a name, as in RQ1 or v2.
var (
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
	hasNumber  = regexp.MustCompile(`(^|[^0-9A-Za-z_.-])[0-9]`)
)

// The tables and figures in the texts are those of the committed data. "make docs" makes them.
func TestTexts(t *testing.T) {
	t.Parallel()
	if err := CheckDocs(root); err != nil {
		t.Error(err)
	}
}

func column(t *testing.T, columns []tables.Column, name string) any {
	t.Helper()
	i := slices.IndexFunc(columns, func(c tables.Column) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no column %q", name)
	}
	return columns[i].Values
}

// Series of different instruments are in one table. What one of them lacks is null.
func TestColumns(t *testing.T) {
	harm, err := Import(Harm, []byte(`{"started": "2026-01-02T03:04:05Z", "host": {"cpus": 2}, "model": "m.gguf",
		"runs": [{"scene": "shared", "x": 0.4, "helped": true, "outcome": "finished", "tok_s": 3}], "rows": []}`),
		"lab harm", "0123456")
	if err != nil {
		t.Fatal(err)
	}
	hyper, err := New(Hyper, map[string]any{}, "lab hyper", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	two := plantedDocument(t, plantedRun{0, "plain", 2}, plantedRun{1, "plain", 4})
	columns, left, err := Columns([]Named{{"a", two}, {"b", hyper}, {"c", harm}})
	if err != nil || !slices.Equal(left, []string{"b"}) {
		t.Fatalf("%v, left out %v", err, left)
	}
	documents, _ := column(t, columns, "document").([]*string)
	speeds, _ := column(t, columns, "tok_s").([]float64)
	scenes, _ := column(t, columns, "scene").([]*string)
	peaks, _ := column(t, columns, "peak_bytes").([]*int64)
	if len(documents) != 3 || *documents[0] != "a" || *documents[2] != "c" ||
		!slices.Equal(speeds, []float64{2, 4, 3}) ||
		scenes[0] != nil || *scenes[2] != "shared" || peaks[0] == nil || peaks[2] != nil {
		t.Errorf("%v %v %v %v", documents, speeds, scenes, peaks)
	}
	var b bytes.Buffer
	if err := trace.WriteParquet(&b, columns); err != nil || !strings.HasPrefix(b.String(), "PAR1") {
		t.Error(err)
	}
}

// A variant is slower only if all of its runs are.
func TestCompare(t *testing.T) {
	old := Named{"old", plantedDocument(t, plantedRun{0, "plain", 2}, plantedRun{0, "plain", 2.2},
		plantedRun{0, "both", 4}, plantedRun{0, "both", 5}, plantedRun{1, "plain", 3})}
	now := Named{"new", plantedDocument(t, plantedRun{0, "plain", 2.1}, plantedRun{0, "plain", 2.3},
		plantedRun{0, "both", 3}, plantedRun{0, "both", 3.9}, plantedRun{1, "plain", 1}, plantedRun{1, "both", 1})}
	c, err := Compare(old, now)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Differences) > 0 || len(c.Remarks) != 1 || !strings.Contains(c.Remarks[0], "only in new") ||
		!c.IsSlower() {
		t.Errorf("%v, %v, slower: %v", c.Differences, c.Remarks, c.IsSlower())
	}
	want := []Verdict{Same, Slower, TooFew}
	for i, at := range c.Changes {
		if at.Verdict != want[i] {
			t.Errorf("%s, %s: %s, want %s", at.Setting, at.Variant, at.Verdict, want[i])
		}
	}
	if both := c.Changes[1]; both.Old.Median != 4.5 || both.Ratio < 0.766 || both.Ratio > 0.767 || both.Low != 0.6 ||
		both.High < 0.974 || both.High > 0.976 {
		t.Errorf("%+v", both)
	}
	if text := textOf(t, c.Document()); !strings.Contains(text, "Slower than the last? YES") {
		t.Errorf("%s", text)
	}
	if c, err := Compare(now, old); err != nil || c.IsSlower() || c.Changes[1].Verdict != Faster ||
		!strings.Contains(textOf(t, c.Document()), "Slower than the last? No") {
		t.Errorf("%+v, %v", c, err)
	}
	if text := textOf(t, mustCompare(t, plantedRun{0, "plain", 2})); !strings.Contains(text, "NOT KNOWN") {
		t.Errorf("one run of each, and yet:\n%s", text)
	}
	// Another machine, and a run that was killed, are told.
	other := strings.NewReplacer("6.1.0", "6.2.0", "2000000000", "3000000000").Replace(string(plant(t, "another",
		plantedRun{0, "plain", 2}, plantedRun{0, "both", 4}, plantedRun{0, "both", 0})))
	killed, err := Import(Pressure, []byte(other), "lab pressure", "0123456")
	if err != nil {
		t.Fatal(err)
	}
	if c, err = Compare(old, Named{"new", killed}); err != nil {
		t.Fatal(err)
	}
	text := textOf(t, c.Document())
	for _, want := range []string{"kernel: 6.1.0, now 6.2.0", "disk by itself in MiB/s: 1907, now 2861",
		"helper of both",
		"0 of 2 runs did not finish, now 1 of 2", "not compared"} {
		if !strings.Contains(text, want) {
			t.Errorf("the comparison lacks %q:\n%s", want, text)
		}
	}
	// What has nothing in common is refused.
	hyper, err := New(Hyper, map[string]any{}, "lab hyper", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other = strings.Replace(string(plant(t, plantedHelper, plantedRun{0, "plain", 2})), `"token_bytes":1000`,
		`"token_bytes":2000`, 1)
	model, err := Import(Pressure, []byte(other), "lab pressure", "0123456")
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]*Document{"kind": hyper, "model": model,
		"setting": plantedDocument(t, plantedRun{1, "both", 2})} {
		if _, err := Compare(old, Named{name, d}); !errors.Is(err, ErrNotComparable) {
			t.Errorf("%s: %v, want that they cannot be compared", name, err)
		}
	}
	if _, err := Compare(Named{"a", hyper}, Named{"b", hyper}); !errors.Is(err, ErrNotComparable) {
		t.Errorf("%v", err)
	}
}

// mustCompare compares a planted series with itself.
func mustCompare(t *testing.T, runs ...plantedRun) tabular.Document {
	t.Helper()
	c, err := Compare(Named{"a", plantedDocument(t, runs...)}, Named{"b", plantedDocument(t, runs...)})
	if err != nil {
		t.Fatal(err)
	}
	return c.Document()
}

func textOf(t *testing.T, d tabular.Document) string {
	t.Helper()
	var b bytes.Buffer
	if err := d.WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// checkout makes a checkout with two documents and a text.
func checkout(t *testing.T, text string) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	file = filepath.Join(dir, "docs", "a.md")
	for name, data := range map[string][]byte{
		"go.mod": nil, "docs/a.md": []byte(text), "node_modules/b.md": []byte(endMark), ".git/c.md": []byte(endMark),
		Dir + "/runs.json": write(t, plantedDocument(t, plantedRun{0, "plain", 2}, plantedRun{0, "plain", 3},
			plantedRun{1, "plain", 4}, plantedRun{1, "plain", 4})),
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, file
}

const planted = "# A text\r\n\n<!-- results: runs overview -->\nold\n<!-- /results -->\nAfter.\n\n" +
	"<!-- results: runs figure=speed.svg -->\n<!-- /results -->\n\n    <!-- results: example -->\n\n" +
	"```\n<!-- results: example -->\n```\n"

// The tables of a text are made from their data, once: the second time nothing changes.
func TestUpdateDocs(t *testing.T) {
	dir, file := checkout(t, planted)
	if err := CheckDocs(dir); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), "a.md") {
		t.Errorf("%v; want that a.md differs", err)
	}
	figure := filepath.Join(dir, "docs", "speed.svg")
	changed, err := UpdateDocs(dir)
	if err != nil || !slices.Equal(changed, []string{figure, file}) {
		t.Fatalf("%v, %v; want the figure and the text", changed, err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, want := range []string{"# A text\r\n", "| 0.50 | 128 |", "After.\n",
		"![tok/s against the share that fits in memory](speed.svg)", "*Data: `experiments/results/runs.json`, measured on 2026-01-02 with commit 0123456789ab"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "old\n") || strings.Count(text, "results: example") != 2 {
		t.Errorf("%s", text)
	}
	if err := CheckDocs(dir); err != nil {
		t.Error(err)
	}
	if changed, err := UpdateDocs(dir); err != nil || len(changed) > 0 {
		t.Errorf("the second time %v changed, %v", changed, err)
	}
	// A changed figure, a changed number and changed data are found.
	for _, path := range []string{figure, file, filepath.Join(dir, Dir, "runs.json")} {
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		now := bytes.Replace(have, []byte("0.50"), []byte("0.51"), 1)
		switch path {
		case figure:
			now = append(now, ' ')
		case filepath.Join(dir, Dir, "runs.json"):
			now = write(t, plantedDocument(t, plantedRun{0, "plain", 9}, plantedRun{1, "plain", 9}))
		}
		if err := os.WriteFile(path, now, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := CheckDocs(dir); !errors.Is(err, ErrStale) {
			t.Errorf("%s was changed: %v", path, err)
		}
		if err := os.WriteFile(path, have, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A figure may lie in a directory below its text, and show chosen variants under other names.
func TestFigureOfVariants(t *testing.T) {
	dir, _ := checkout(t, "# A text\n")
	file := filepath.Join(dir, "README.md")
	text := "<!-- results: runs figure=docs/speed.svg plain=alone -->\n<!-- /results -->\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	figure := filepath.Join(dir, "docs", "speed.svg")
	if changed, err := UpdateDocs(dir); err != nil || !slices.Equal(changed, []string{figure, file}) {
		t.Fatalf("%v, %v; want the figure and the text", changed, err)
	}
	svg, err := os.ReadFile(figure)
	if err != nil || !strings.Contains(string(svg), ">alone<") || strings.Contains(string(svg), ">plain<") {
		t.Errorf("%v; want a figure of alone, and none of plain", err)
	}
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), "](docs/speed.svg)") {
		t.Errorf("%v, %s", err, data)
	}
	if err := CheckDocs(dir); err != nil {
		t.Error(err)
	}
}

// A table of several series has a row for each setting at which both variants ran, with the ratio of the same rounds.
func TestVersus(t *testing.T) {
	one := plantedDocument(t, plantedRun{0, "plain", 2}, plantedRun{0, "auto", 8}, plantedRun{0, "plain", 4},
		plantedRun{0, "auto", 8}, plantedRun{1, "plain", 5})
	two := plantedDocument(t, plantedRun{1, "plain", 2}, plantedRun{1, "auto", 6}, plantedRun{1, "plain", 0})
	var b bytes.Buffer
	if err := WriteVersus(&b, []Named{{"one", one}, {"two", two}}, "plain", "auto"); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(b.String()) {
		rows = append(rows, strings.TrimSpace(line))
	}
	want := []string{"| model | in memory | plain, tok/s | auto, tok/s | times | of the bound |",
		"| --- | ---: | --- | --- | --- | --- |", "| m | 0.5 | 3 (2 to 4) | 8 | 3 (2 to 4) | - |",
		"| m | 0.8 | 2, 1 of 2 runs failed | 6 | 3 | - |"}
	if !slices.Equal(rows, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
	hyper, err := New(Hyper, map[string]any{}, "lab hyper", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteVersus(&b, []Named{{"h", hyper}}, "plain", "auto"); err == nil ||
		!strings.Contains(err.Error(), "only those of lab pressure") {
		t.Errorf("%v; want that it has no variants", err)
	}
	dir, file := checkout(t, "<!-- results: versus=plain,plain runs -->\n<!-- /results -->\n")
	if _, err := UpdateDocs(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(data), "*Data: `runs.json` in `"+Dir+"`,") {
		t.Errorf("%v: %s", err, data)
	}
}

// Series are listed by machine: the machine of the last series first, and its series from the first to the last.
func TestMachines(t *testing.T) {
	series := func(name, kernel, day string) Named {
		d := plantedDocument(t, plantedRun{0, "plain", 2})
		d.Machine.Kernel = kernel
		var err error
		if d.Started, err = time.Parse(time.DateOnly, day); err != nil {
			t.Fatal(err)
		}
		return Named{name, d}
	}
	none, err := New(Hyper, map[string]any{}, "lab hyper", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	none.Machine, none.Build.Commit = plantedDocument(t, plantedRun{0, "plain", 2}).Machine, ""
	var b bytes.Buffer
	if err := WriteMachines(&b, []Named{series("b", "6.1.0", "2026-01-05"), series("c", "6.2", "2026-01-04"),
		series("a", "6.1.0", "2026-01-02"), {"h", none}}); err != nil {
		t.Fatal(err)
	}
	head := "| series | instrument | measured | commit | disk, GiB/s |\n| --- | --- | --- | --- | --- |\n"
	want := "**2 x Planted, 4.0 GiB, Linux 6.1.0, cgroup v2**\n\n" + head +
		"| h | lab hyper | 2026-01-01 00:00 | unknown | - |\n" +
		"| a | lab pressure | 2026-01-02 00:00 | 0123456789ab | 1.86 |\n" +
		"| b | lab pressure | 2026-01-05 00:00 | 0123456789ab | 1.86 |\n" +
		"\n**2 x Planted, 4.0 GiB, Linux 6.2, cgroup v2**\n\n" + head +
		"| c | lab pressure | 2026-01-04 00:00 | 0123456789ab | 1.86 |\n"
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", b.String(), want)
	}
	dir, file := checkout(t, "<!-- results: machines= -->\n<!-- /results -->\n")
	if _, err := UpdateDocs(dir); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), "| runs | lab pressure |") {
		t.Errorf("%v: %s", err, data)
	}
}

// A copied table joins a median with its least and greatest, and marks what reached its goal.
func TestCopied(t *testing.T) {
	dir, file := checkout(t, "<!-- results: table=some -->\n<!-- /results -->\n")
	table := filepath.Join(dir, Dir, CopiedDir, "some.csv")
	if err := os.MkdirAll(filepath.Dir(table), 0o755); err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{
		"x,tok/s,tok/s min,tok/s max,tok/s met,of,of\n0.5,3.0,2,4,yes,\"a, b\",1\n0.8,5,,,,c,2\n": "" +
			"| x | tok/s | of | of |\n| --- | --- | --- | --- |\n| 0.5 | **3.0** (2 to 4) | a, b | 1 |\n| 0.8 | 5 | c | 2 |\n\n" +
			"*Data: `experiments/results/copied/some.csv`, copied from what the commands printed; the runs were not kept.*\n",
		"x,y min\n1,2\n": `column "y min" belongs to "y"`,
		"x,y\n":          "one at least below it",
		"x,y\n1\n":       "wrong number of fields",
		"":               "want a row of names",
	} {
		if err := os.WriteFile(table, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := UpdateDocs(dir)
		text, _ := os.ReadFile(file)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && !strings.Contains(string(text), want) {
			t.Errorf("%q: %v\n%s\nwant\n%s", data, err, text, want)
		}
	}
}

// Marks that are wrong are told with file and line, and nothing is written.
func TestWrongMarks(t *testing.T) {
	for text, want := range map[string]string{
		"a\n<!-- results: runs -->\n":                                 "a.md:2: the table has no end",
		"<!-- /results -->\n":                                         "a.md:1: <!-- /results --> without",
		"<!-- results: runs -->\n<!-- results: runs -->\n":            "a.md:2: another table begins",
		"<!-- results: -->\n<!-- /results -->":                        "is no mark",
		"<!-- results: none -->\n<!-- /results -->":                   `no document "none"`,
		"<!-- results: ../runs -->\n<!-- /results -->":                "no name of a document",
		"<!-- results: runs all -->\n<!-- /results -->":               `no part "all"`,
		"<!-- results: runs figure=../x.svg -->\n<!-- /results -->":   "name of an SVG file",
		"<!-- results: runs figure=/x.svg -->\n<!-- /results -->":     "name of an SVG file",
		"<!-- results: runs figure=x.svg auto -->\n<!-- /results -->": `no such variant: "auto"; there are plain`,
		"<!-- results: runs remarks scenes -->\n<!-- /results -->\n":  `no part "scenes"`,
		"<!-- results: table=none -->\n<!-- /results -->":             `no table "none"`,
		"<!-- results: table=../x -->\n<!-- /results -->":             "no name of a table",
		"<!-- results: table=x y -->\n<!-- /results -->":              "nothing after table=NAME",
		"<!-- results: machines=x -->\n<!-- /results -->":             "nothing after machines=",
		"<!-- results: machines= x -->\n<!-- /results -->":            "nothing after machines=",
		"<!-- results: versus=plain runs -->\n<!-- /results -->":      "want versus=BASE,OTHER",
		"<!-- results: versus=plain,auto -->\n<!-- /results -->":      "names of documents",
		"<!-- results: versus=auto,plain runs -->\n<!-- /results -->": `"plain" and not "auto"`,
		"<!-- results: versus=plain,auto runs -->\n<!-- /results -->": `no such variant: "auto"`,
	} {
		dir, file := checkout(t, text)
		changed, err := UpdateDocs(dir)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") ||
			len(changed) > 0 {
			t.Errorf("%q: %v, %v; want %q", text, changed, err, want)
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != text {
			t.Errorf("%q became %q, %v", text, data, err)
		}
	}
}

func TestFindCheckout(t *testing.T) {
	dir, file := checkout(t, "")
	if root, err := FindCheckout(filepath.Dir(file)); err != nil || root != dir {
		t.Errorf("%q, %v; want %q", root, err, dir)
	}
	if root, err := FindCheckout(t.TempDir()); err == nil {
		t.Errorf("found %q", root)
	}
}
