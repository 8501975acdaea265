package main

// This file tests "lab results".

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/results"
	"tensorcast/internal/cli"
)

func TestResultsUsage(t *testing.T) {
	testUsage(t, "results", []usageTest{
		{nil, "a command is needed"},
		{[]string{"lst"}, `no command "lst"`},
	})
	for name, tests := range map[string][]usageTest{
		"table":   {{nil, "requires at least 1 arg"}},
		"compare": {{[]string{"one"}, "accepts 2 arg"}},
		"parquet": {{nil, "give -o FILE"}},
		"figure": {{[]string{"x", "-o", "x.bmp"}, "want a file whose name ends in png, svg or pdf"},
			{[]string{"x"}, "-o"}},
		"import": {{[]string{"x"}, "give -o FILE"}},
	} {
		for _, test := range tests {
			code, stdout, stderr := lab(t.Context(), append([]string{"results", name}, test.args...)...)
			if code != cli.BadUsage || stdout != "" || !strings.Contains(stderr, test.want) ||
				strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s %q: exit %d, %q, want one line with %q", name, test.args, code, stderr, test.want)
			}
		}
	}
}

// A saved report of an older build becomes a document, which all subcommands read.
func TestResults(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	report := `{"started": "2026-01-02T03:04:05Z", "host": {"cpus": 2, "cpu": "Planted"}, ` + saved[1:]
	report = strings.Replace(report, `"m.gguf"`, `"/home/me/m.gguf"`, 1)
	if err := os.WriteFile(file("old.report"), []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file("documents"), 0o755); err != nil {
		t.Fatal(err)
	}
	document := file("documents/runs.json")
	// run runs the command, and checks how it ends.
	run := func(code int, want string, args ...string) string {
		t.Helper()
		got, stdout, stderr := lab(t.Context(), append([]string{"results"}, args...)...)
		if got != code || !strings.Contains(stdout+stderr, want) || (code == 0) != (stderr == "") {
			t.Errorf("%q: exit %d, want %d and %q\n%s%s", args, got, code, want, stdout, stderr)
		}
		return stdout
	}
	run(cli.BadUsage, "give --kind, --commit and --command", "import", file("old.report"), "-o", document)
	run(cli.BadUsage, `no kind "presure"`, "import", file("old.report"), "-o", document, "--kind", "presure",
		"--commit", "0123456", "--command", "lab")
	run(1, `the commit "HEAD"`, "import", file("old.report"), "-o", document, "--kind", "pressure", "--commit", "HEAD",
		"--command", "lab")
	run(0, "", "import", file("old.report"), "-o", document, "--kind", "pressure", "--commit", "0123456", "--command",
		"/opt/lab pressure -m /home/me/m.gguf")
	d, err := results.ReadFile(document)
	if err != nil || d.Command != "lab pressure -m m.gguf" || d.Told == "" || d.HasPaths() != "" {
		t.Fatalf("%v, %+v", err, d)
	}
	run(cli.BadUsage, "is a document, which says itself", "import", document, "-o", file("x.json"), "--commit",
		"0123456")
	run(0, "", "import", document, "-o", file("documents/again.json"))

	list := run(0, "2026-01-02 03:04", "list", file("documents"))
	if strings.Count(list, "\n") != 3 || !strings.Contains(list, "2 x Planted") || !strings.Contains(list, "0123456") {
		t.Errorf("%s; want a heading and two documents", list)
	}
	whole := run(0, "| plain |", "table", document)
	if part := run(0, "Medians over", "table", document, "remarks"); !strings.HasSuffix(whole, part) || part == whole {
		t.Errorf("%s\nis not the end of\n%s", part, whole)
	}
	run(1, `no part "scenes"`, "table", document, "scenes")
	run(1, "nothing to show", "table", document, "overview")
	run(0, "Slower than the last? NOT KNOWN", "compare", document, file("documents/again.json"))
	run(0, "| plain |", "compare", "--markdown", document, file("documents/again.json"))
	run(0, "", "parquet", "-o", file("runs.parquet"), file("documents"))
	run(0, "", "figure", document, "-o", file("speed.svg"))
	run(0, "", "figure", document, "-o", file("again.svg"))
	one, _ := os.ReadFile(file("speed.svg"))
	two, _ := os.ReadFile(file("again.svg"))
	if len(one) == 0 || string(one) != string(two) {
		t.Error("a figure is not the same when it is drawn again")
	}
	if table, err := os.ReadFile(file("runs.parquet")); err != nil || !strings.HasPrefix(string(table), "PAR1") {
		t.Errorf("%v, %.8q", err, table)
	}
	// A file that is no document is named, and the others are listed.
	bad := `{"schema": "tensorcast.result", "version": 9}`
	if err := os.WriteFile(file("documents/bad.json"), []byte(bad), 0o644); err != nil {
		t.Fatal(err)
	}
	run(1, "bad.json: not a document of results: it has version 9", "list", file("documents"))
	run(1, "0123456", "list", file("documents"))
	run(1, "no such file", "table", file("none.json"))
}

// By default the commands read what this checkout has, and its texts are as they are made.
func TestResultsOfCheckout(t *testing.T) {
	code, stdout, stderr := lab(t.Context(), "results", "list")
	if code != 0 || !strings.Contains(stdout, "late-dense") {
		t.Errorf("exit %d, %q\n%s", code, stderr, stdout)
	}
	if code, stdout, stderr := lab(t.Context(), "results", "table", "late-dense", "overview"); code != 0 ||
		!strings.Contains(stdout, "| 0.85 | 128 |") {
		t.Errorf("exit %d, %q\n%s", code, stderr, stdout)
	}
	if code, _, stderr := lab(t.Context(), "results", "docs", "--check"); code != 0 {
		t.Errorf("exit %d, %s", code, stderr)
	}
	t.Chdir(t.TempDir())
	for _, args := range [][]string{{"list"}, {"table", "late-dense"}, {"docs"}} {
		if code, _, stderr := lab(t.Context(), append([]string{"results"}, args...)...); code != 1 ||
			!strings.Contains(stderr, "in no checkout") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit %d, %q", args, code, stderr)
		}
	}
}

// A command line can be pasted into a shell.
func TestCommandLine(t *testing.T) {
	if got := commandLine([]string{"lab", "--x=0.5,1", "it's $HOME", ""}); got != `lab --x=0.5,1 'it'\''s $HOME' ''` {
		t.Errorf("%s", got)
	}
}
