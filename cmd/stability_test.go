package cmd_test

// This file tests that what docs/stability.md promises is still there.

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/results"
	"tensorcast/internal/cli"
	"tensorcast/pattern"
	"tensorcast/prefetch/monitor"
	"tensorcast/trace"
	"tensorcast/trace/dataset"
	"tensorcast/trace/tracetest"
)

var updateStable = flag.Bool("update", false, "write what there is to testdata/stable.txt")

const stableFile = "testdata/stable.txt"

// What other programs and people rely on is what testdata/stable.txt lists: nothing of it is gone or another one, and
// what is new is in the list, so that somebody has decided to keep it.
func TestStability(t *testing.T) {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("exit code %d: done", cli.OK)
	add("exit code %d: failed", cli.Failure)
	add("exit code %d: wrong usage", cli.BadUsage)
	add("version %d: capture (tensorcast.schema)", trace.SchemaVersion)
	add("version %d: pattern.json", pattern.SchemaVersion)
	add("version %d: results (%s)", results.Version, results.Schema)
	for _, name := range results.Kinds() {
		add("result kind %s", name)
	}
	for _, name := range jsonMembers(reflect.TypeFor[results.Document](), "") {
		add("result member %s", name)
	}
	for _, name := range monitor.MetricNames() {
		add("metric %s", name)
	}
	for _, column := range captureColumns(t) {
		add("column %s", column)
	}
	for _, command := range []string{"ggufmap", "tracer", "analyze", "prefetchd"} {
		for _, name := range flagsOf(t, command) {
			add("%s", name)
		}
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	if *updateStable {
		if err := os.WriteFile(stableFile, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(stableFile)
	if err != nil {
		t.Fatal(err)
	}
	promised := strings.Split(strings.TrimSpace(string(data)), "\n")
	for _, line := range promised {
		if !slices.Contains(lines, line) {
			t.Errorf("docs/stability.md promises what is gone: %s. Keep it, or say so in CHANGELOG.md, see there", line)
		}
	}
	for _, line := range lines {
		if !slices.Contains(promised, line) {
			t.Errorf("what is new is to be promised: %s. Run this test with -update, and commit %s", line, stableFile)
		}
	}
	if len(lines) < 200 {
		t.Errorf("%d promises, want at least 200: %q", len(lines), lines)
	}
}

// The tests that docs/stability.md names are there.
func TestStabilityNamesTests(t *testing.T) {
	text, err := os.ReadFile("../docs/stability.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test[A-Za-z]+)` \\(`([a-z/]+)`\\)").FindAllStringSubmatch(string(text), -1)
	if len(named) < 8 {
		t.Errorf("%d tests are named, want at least 8", len(named))
	}
	for _, m := range named {
		files, err := filepath.Glob(filepath.Join("..", m[2], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(path string) bool {
			code, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(code), "\nfunc "+m[1]+"(t *testing.T) {")
		}) {
			t.Errorf("there is no %s in %s", m[1], m[2])
		}
	}
}

// jsonMembers lists the members of a struct in JSON, those of structs in it behind a point.
func jsonMembers(of reflect.Type, before string) (all []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && inner.PkgPath() != "time" {
			all = append(all, jsonMembers(inner, before+name+".")...)
		} else {
			all = append(all, before+name)
		}
	}
	return all
}

// captureColumns lists the columns of all tables with their types, as they are exported.
func captureColumns(t *testing.T) (all []string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "capture")
	if err := tracetest.Write(dir, tracetest.Options{}); err != nil {
		t.Fatal(err)
	}
	c, err := trace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := dataset.Describe(t.Context(), c, dataset.Options{Hidden: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		for _, column := range table.Columns {
			all = append(all, fmt.Sprintf("%s.%s: %s", table.Name, column.Name, column.Type))
		}
	}
	return all
}

var (
	// flagLine is a flag's line of the help: its name, and what kind of value it takes.
	flagLine = regexp.MustCompile(`^ {2}(?:-[A-Za-z], |    )--([a-z0-9-]+)`)
	// subcommandLine is a subcommand's line below "Available Commands:", or below a group's title.
	subcommandLine = regexp.MustCompile(`^  ([a-z][a-z0-9-]*) +\S`)
)

// flagsOf lists a command and its subcommands, and the flags of all of them, by their help.
func flagsOf(t *testing.T, command string, path ...string) (all []string) {
	t.Helper()
	out, err := exec.Command(bin[command], append(slices.Clone(path), "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q --help: %v\n%s", command, path, err, out)
	}
	name := strings.Join(append([]string{command}, path...), " ")
	_, usage, _ := strings.Cut(string(out), "\nUsage:\n")
	inCommands := false
	all = append(all, "command "+name)
	for line := range strings.Lines(usage) {
		line = strings.TrimRight(line, "\n")
		if found := flagLine.FindStringSubmatch(line); found != nil && found[1] != "help" {
			all = append(all, "flag "+name+" --"+found[1])
		}
		if !strings.HasPrefix(line, " ") {
			inCommands = strings.HasSuffix(line, ":") && !strings.Contains(line, "Examples") &&
				!strings.Contains(line, "Flags")
		}
		if found := subcommandLine.FindStringSubmatch(line); inCommands && found != nil && len(path) < 2 &&
			found[1] != "help" && found[1] != "completion" && found[1] != command {
			all = append(all, flagsOf(t, command, append(slices.Clone(path), found[1])...)...)
		}
	}
	return all
}
