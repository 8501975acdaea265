package main

// This file puts captures of every kind through every subcommand, whole ones that are not what a user
// expects, too.

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/tables"
	"tensorcast/trace/tracetest"
)

// oddCaptures are odd captures by name.
func oddCaptures(t *testing.T) map[string]string {
	t.Helper()
	parent, all := t.TempDir(), map[string]string{}
	for name, o := range map[string]tracetest.Options{
		"two models": {}, "rotated": {Segments: 4, Keep: 2}, "killed": {Segments: 2, Killed: true},
	} {
		all[name] = filepath.Join(parent, strings.ReplaceAll(name, " ", "-"))
		if err := tracetest.Write(all[name], o); err != nil {
			t.Fatal(err)
		}
	}
	all["no token"] = plant(t, tables.Meta{}, true)
	all["one token"] = plant(t, tables.Meta{}, true, whole)
	change := func(from, name, file string, to func(data []byte) []byte) {
		t.Helper()
		dir := filepath.Join(parent, name)
		if err := os.CopyFS(dir, os.DirFS(all[from])); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, file)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		after := to(data)
		if slices.Equal(after, data) {
			t.Fatalf("%s did not change", file)
		}
		if err := os.WriteFile(path, after, 0o600); err != nil {
			t.Fatal(err)
		}
		all[name] = dir
	}
	change("two models", "newer", trace.MetaFile, func(data []byte) []byte {
		now := `"schema": ` + strconv.Itoa(trace.SchemaVersion)
		return []byte(strings.Replace(string(data), now, `"schema": `+strconv.Itoa(trace.SchemaVersion+1), 1))
	})
	change("two models", "cut", "access.arrows", func(data []byte) []byte { return data[:len(data)*2/3] })
	change("killed", "killed and cut", "access.0001.arrows", func(data []byte) []byte { return data[:len(data)-100] })
	change("two models", "emptied", "access.arrows", func([]byte) []byte { return nil })
	change("two models", "swapped", "access.arrows", func([]byte) []byte {
		steps, err := os.ReadFile(filepath.Join(all["two models"], "steps.arrows"))
		if err != nil {
			t.Fatal(err)
		}
		return steps
	})
	change("two models", "of another", "access.arrows", func([]byte) []byte { // a table of another capture
		other, err := os.ReadFile(filepath.Join(all["one token"], "access.arrows"))
		if err != nil {
			t.Fatal(err)
		}
		return other
	})
	change("two models", "without tables", trace.MetaFile, func(data []byte) []byte { return []byte("{}") })
	return all
}

// Every subcommand answers, or it says in one line why it has no answer, and leaves no file. None panics.
func TestEveryKindOfCapture(t *testing.T) {
	testenv.SkipWithRace(t)
	const (
		answers = iota
		refuses
	)
	other := plant(t, tables.Meta{}, true, whole, whole)
	var commands [][]string
	for _, c := range command().Commands() {
		switch c.Name() {
		case "help", "completion":
		case "compare":
			commands = append(commands, []string{"compare", "CAPTURE", other}, []string{"compare", other, "CAPTURE"},
				[]string{"compare", "CAPTURE", "CAPTURE"})
		case "whatif":
			commands = append(commands, []string{"whatif", "--disk", "1GB", "--compute", "1ms", "-c", "CAPTURE"})
		default:
			commands = append(commands, []string{c.Name(), "-c", "CAPTURE"})
		}
	}
	if len(commands) < 14 {
		t.Fatalf("%d commands, want 14 at least: %v", len(commands), commands)
	}
	commands = append(commands, []string{"-c", "CAPTURE"},
		[]string{"--all", "--export", "--perfetto", "--heatmap", "-c", "CAPTURE"})
	// What subcommands do with each kind, and exceptions by subcommand.
	want := map[string]int{
		"newer": refuses, "cut": refuses, "emptied": refuses, "without tables": refuses,
		"swapped": refuses, "of another": refuses,
	}
	except := map[string]map[string]int{
		"one token": {"moe": refuses, "experts": refuses, "whatif": refuses}, // it is dense, and has no second token
		"no token":  {"moe": refuses, "experts": refuses, "whatif": refuses}, // so is this, and it has one decode
	}
	said := map[string]string{
		"newer": "newer", "cut": "capture again", "emptied": "capture again", "without tables": "capture",
	}
	for name, dir := range oddCaptures(t) {
		for _, args := range commands {
			t.Run(name+"/"+strings.Join(args[:1], " "), func(t *testing.T) {
				args, out := slices.Clone(args), filepath.Join(t.TempDir(), "out")
				for i := range args {
					args[i] = strings.ReplaceAll(args[i], "CAPTURE", dir)
				}
				output := "-o"
				if args[0] == "export" {
					output = "--dataset"
				}
				code, stdout, stderr := execute(t, append(args, output, out)...)
				failures := 0
				for line := range strings.Lines(stderr) {
					if !messageStart.MatchString(line) {
						t.Errorf("stderr has the line %q, want it to begin with the command's name", line)
					}
					if isFailure(line) {
						failures++
					}
				}
				expect := want[name]
				if e, ok := except[name][args[0]]; ok {
					expect = e
				}
				if want := []int{cli.OK, cli.Failure}[expect]; code != want {
					t.Errorf("exit %d, want %d: %s", code, want, stderr)
				}
				files, _ := filepath.Glob(filepath.Join(out, "*"))
				switch {
				case code == cli.Failure && (failures != 1 || stdout != "" || len(files) > 0):
					t.Errorf("a failure with stderr %q, stdout %q and files %q, want one line and nothing else",
						stderr, stdout, files)
				case code == cli.Failure && !strings.Contains(stderr, said[name]):
					t.Errorf("stderr %q, want %q", stderr, said[name])
				case code == cli.OK && (failures > 0 || nonsense.MatchString(stdout)):
					t.Errorf("stderr and stdout have what they should not\n%s%s", stderr, stdout)
				case code == cli.OK && name == "killed and cut" && !strings.Contains(stderr, "warning"):
					t.Errorf("stderr %q, want a warning that a table is cut off", stderr)
				}
			})
		}
	}
}

// The sums of a rotated capture are those of the rows that are still there.
func TestRotatedSums(t *testing.T) {
	dir, out := filepath.Join(t.TempDir(), "rotated"), t.TempDir()
	if err := tracetest.Write(dir, tracetest.Options{Segments: 4, Keep: 2}); err != nil {
		t.Fatal(err)
	}
	c, err := trace.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{}
	for a, err := range c.Accesses() {
		if err != nil {
			t.Fatal(err)
		}
		if a.Context == 0 {
			want[c.Structure[a.Tensor].Name] += a.Bytes
		}
	}
	if code, _, stderr := execute(t, "rereads", "-c", dir, "-o", out); code != cli.OK ||
		!strings.Contains(stderr, "context 0") {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	path := filepath.Join(out, "rereads.csv")
	names, bytes := csvColumn(t, path, "tensor_name"), csvColumn(t, path, "read_bytes")
	if len(want) == 0 || len(names) != len(want) {
		t.Fatalf("tensors %q, want those of %v", names, want)
	}
	for i, name := range names {
		if bytes[i] != strconv.FormatInt(want[name], 10) {
			t.Errorf("%s: %s bytes, want %d", name, bytes[i], want[name])
		}
	}
}
