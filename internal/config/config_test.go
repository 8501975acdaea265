package config

// This file tests what a file may say, which value counts, and whose file is read.

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

var testKeys = Keys{
	"budget": Scalar, "keep-warm": Scalar, "verbose": Scalar, "name": List, "never": List, "budget-of": Map,
}

func TestParse(t *testing.T) {
	const text = `# a comment
budget: 12GiB   # another one
keep-warm: 10m
verbose: true
name: [llama-server, "ollama.service"]
never:
  - llama-bench
budget-of:
  ollama.service: 30%
  "*-70B-*.gguf": 8GiB
`
	got, err := Parse("x.yaml", []byte(text), testKeys)
	if err != nil {
		t.Fatal(err)
	}
	from := func(line int) Origin { return Origin{File, "x.yaml", line} }
	want := []Setting{
		{"budget", []Value{{"12GiB", 2}}, from(2)},
		{"keep-warm", []Value{{"10m", 3}}, from(3)},
		{"verbose", []Value{{"true", 4}}, from(4)},
		{"name", []Value{{"llama-server", 5}, {"ollama.service", 5}}, from(5)},
		{"never", []Value{{"llama-bench", 7}}, from(6)},
		{"budget-of", []Value{{"ollama.service=30%", 9}, {"*-70B-*.gguf=8GiB", 10}}, from(8)},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	for _, text := range []string{
		"", "# only comments\n\n", "---\n", "name: []\n", "budget-of: {}\n", "\ufeff# BOM\n",
	} {
		if got, err := Parse("x.yaml", []byte(text), testKeys); err != nil || len(got) != 0 {
			t.Errorf("%q: %+v, %v; want nothing", text, got, err)
		}
	}
	if got, err := Parse("x.yaml", []byte("name: one"), testKeys); err != nil || got[0].Text() != "one" {
		t.Errorf("a list of one: %+v, %v", got, err)
	}
}

// Each thing that is wrong is told with its line, and with what to do. All are told at once.
func TestProblems(t *testing.T) {
	for text, want := range map[string]string{
		"# x\nbugdet: 1GB":           `x.yaml:2: unknown key "bugdet": did you mean "budget"?`,
		"keep_warm: 1m":              `x.yaml:1: unknown key "keep_warm": did you mean "keep-warm"?`,
		"NAMES: a":                   `x.yaml:1: unknown key "NAMES": did you mean "name"?`,
		"xyz: 1":                     `x.yaml:1: unknown key "xyz": the keys are budget, budget-of, keep-warm, name,`,
		"budget:":                    `x.yaml:1: budget has no value: write one, or remove the line`,
		"budget: ~":                  `x.yaml:1: budget has no value`,
		"budget: [1GB]":              `x.yaml:1: budget: want one value, not a list`,
		"budget: {a: b}":             `x.yaml:1: budget: want one value, not a mapping`,
		"budget: 1GB\n\nbudget: 2GB": `x.yaml:3: "budget" is in line 1 already: remove one of them`,
		"name: {a: b}":               `x.yaml:1: name: want a value, or a list such as [a, b], not a mapping`,
		"name: [a, [b]]":             `x.yaml:1: name: want a list of single values, not a list`,
		"name:\n- a\n-":              `x.yaml:3: name has no value`,
		"budget-of: 1GB":             `x.yaml:1: want lines such as NAME: VALUE below budget-of, not "1GB"`,
		"budget-of: [a]":             `x.yaml:1: want lines such as NAME: VALUE below budget-of, not a list`,
		"budget-of:\n  a: 1\n  a: 2": `x.yaml:3: "a" is in line 2 already`,
		"budget-of:\n  a:":           `x.yaml:2: budget-of has no value`,
		"budget-of:":                 `x.yaml:1: budget-of has no value`,
		"- budget":                   `x.yaml:1: want lines such as KEY: VALUE, not a list`,
		"budget":                     `x.yaml:1: want lines such as KEY: VALUE, not "budget"`,
		"budget 1GB\nverbose: true":  `x.yaml:2: not YAML: mapping values are not allowed`,
		"budget: 'x":                 `not YAML: `,
		"\tbudget: 1":                `not YAML: `,
		"budget: 1GB\n---\nname: a":  `x.yaml:2: a second document begins: want one`,
		"a: &x 1\nbudget: *x":        `x.yaml:2: budget: want one value, not an alias (*x)`,
		"? [a]\n: b":                 `want a name before the colon, not a list`,
		"~: b":                       `want a name before the colon, not nothing`,
		"\x00":                       `not YAML: `,
	} {
		got, err := Parse("x.yaml", []byte(text), testKeys)
		if err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%q: %+v, %v; want %s", text, got, err, want)
		}
		if problem := (*Problem)(nil); !errors.As(err, &problem) {
			t.Errorf("%q: %v is no Problem", text, err)
		}
	}
	_, err := Parse("x.yaml", []byte("bugdet: 1GB\nnames: a\nbudget:"), testKeys)
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("%v, want three lines", err)
	}
}

// newFlags returns flags with the names of testKeys.
func newFlags() (f *pflag.FlagSet, budget *int, names *[]string) {
	f = pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.SortFlags = false
	budget = f.Int("budget", 5, "")
	names = f.StringArray("name", nil, "")
	f.StringArray("never", nil, "")
	f.StringArray("budget-of", nil, "")
	f.Duration("keep-warm", 0, "")
	f.Bool("verbose", false, "")
	f.Bool("other", false, "")
	f.String("dir", "/run", "")
	return f, budget, names
}

// A flag that was given counts before a variable, that before the file, and that before the default. A list is
// replaced as a whole.
func TestApply(t *testing.T) {
	file, err := Parse("x.yaml", []byte("budget: 1\nname: [a, b]\nkeep-warm: 1m\nbudget-of: {m: 1}"), testKeys)
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]string{
		"X_BUDGET": "2", "X_NAME": "c, d", "X_VERBOSE": "", "X_PORT": "tcp://10.0.0.1:80", "BUDGET": "9",
	}
	lookup := func(name string) (string, bool) { text, ok := variables[name]; return text, ok }
	environment := FromEnvironment(lookup, "X_", testKeys)
	for args, want := range map[string]string{
		"":                          "budget 2 environment X_BUDGET; name c, d environment X_NAME",
		"--budget 3":                "budget 3 flag; name c, d environment X_NAME",
		"--name e --name f":         "budget 2 environment X_BUDGET; name e, f flag",
		"--budget 5 --name e,still": "budget 5 flag; name e,still flag",
	} {
		f, _, _ := newFlags()
		if err := f.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		all, err := Apply(f, testKeys, environment, file)
		if err != nil {
			t.Fatal(err)
		}
		want += "; never  default; budget-of m=1 x.yaml:4; keep-warm 1m0s x.yaml:3; verbose false default"
		var got []string
		for _, s := range all {
			got = append(got, s.Key+" "+s.Text()+" "+s.Origin.String())
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%q:\n%s, want\n%s", args, text, want)
		}
	}

	f, budget, names := newFlags()
	_, err = Apply(f, testKeys, environment, file)
	if want := []string{"c", "d"}; err != nil || *budget != 2 || !slices.Equal(*names, want) {
		t.Errorf("the flags are %d and %q, %v; want 2 and %q", *budget, *names, err, want)
	}
	delete(variables, "X_BUDGET")
	bad, err := Parse("x.yaml", []byte("# x\nbudget: much\nkeep-warm: 3"), testKeys)
	if err != nil {
		t.Fatal(err)
	}
	f, _, _ = newFlags()
	_, err = Apply(f, testKeys, FromEnvironment(lookup, "X_", testKeys), bad)
	const want = "x.yaml:2: budget \"much\": want a whole number\n" +
		"x.yaml:3: keep-warm \"3\": want a time such as 500ms or 1m30s"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
	variables["X_BUDGET"] = "many"
	f, _, _ = newFlags()
	_, err = Apply(f, testKeys, FromEnvironment(lookup, "X_", testKeys))
	if err == nil || err.Error() != `X_BUDGET: budget "many": want a whole number` {
		t.Errorf("a wrong variable: %v", err)
	}
}

// What was given can be given to other flags of the same names, and what has changed then is listed.
func TestReload(t *testing.T) {
	first, _, _ := newFlags()
	if err := first.Parse([]string{"--name", "a", "--name", "b", "--other", "--dir="}); err != nil {
		t.Fatal(err)
	}
	second, _, names := newFlags()
	err := Copy(second, first)
	if err != nil || !slices.Equal(*names, []string{"a", "b"}) || !second.Changed("other") ||
		second.Changed("budget") || second.Lookup("dir").Value.String() != "" {
		t.Errorf("%v, names %q", err, *names)
	}
	settings := func(f *pflag.FlagSet, text string) []Setting {
		t.Helper()
		file, err := Parse("x.yaml", []byte(text), testKeys)
		if err != nil {
			t.Fatal(err)
		}
		all, err := Apply(f, testKeys, file)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before, after := settings(first, "budget: 1\nverbose: true\nname: c"), settings(second, "budget: 2\nkeep-warm: 1s")
	want := []Change{
		{"budget", "1", "2", Origin{File, "x.yaml", 1}},
		{"keep-warm", "0s", "1s", Origin{File, "x.yaml", 2}},
		{"verbose", "true", "false", Origin{Source: Default}},
	}
	if got := Compare(before, after); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if got := Compare(before, before); got != nil {
		t.Errorf("%+v has changed, want nothing", got)
	}
}

// A file that others can write to is refused, and so is what is no regular file. None of them blocks.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.yaml")
	if _, err := Read(path, testKeys); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("budget: 1GB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, ok := range map[fs.FileMode]bool{0o600: true, 0o644: true, 0o664: false, 0o646: false, 0o622: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		got, err := Read(path, testKeys)
		if (err == nil) != ok || !ok && !strings.Contains(err.Error(), "chmod go-w") || (len(got) == 1) != ok {
			t.Errorf("mode %04o: %+v, %v; want success: %v", mode, got, err, ok)
		}
	}
	link := filepath.Join(dir, "link") // as Kubernetes mounts what a ConfigMap has
	if err := errors.Join(os.Chmod(path, 0o644), os.Symlink("x.yaml", link)); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(link, testKeys); err != nil || len(got) != 1 || got[0].Origin.Where != link {
		t.Errorf("a link: %+v, %v", got, err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path, testKeys); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
			t.Errorf("a file of somebody else: %+v, %v", got, err)
		}
		if err := os.Chown(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, make([]byte, maxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path, testKeys); err == nil || !strings.Contains(err.Error(), "more than 64 KiB") {
		t.Errorf("a large file: %v", err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, path := range []string{fifo, dir, "/dev/null"} {
			if got, err := Read(path, testKeys); err == nil {
				t.Errorf("%s: %+v, want an error", path, got)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Read blocks")
	}
}

// Whatever a file says, it is read or refused with its path, and flags can take what was read.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"budget: 12GiB\nname: [a, b]\nbudget-of: {x: 1GB}\n", "a: &x [*x]", "bugdet: 1", "---\n---\n", "? a\n: b",
		"budget: !!binary aGk=\n", "<<: {budget: 1}", "name:\n- a\n- - b\n", "budget: |\n  x\n", "%YAML 1.1\n---\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := Parse("x.yaml", data, testKeys)
		if err != nil {
			if all != nil || !strings.HasPrefix(err.Error(), "x.yaml:") {
				t.Errorf("%+v, %v", all, err)
			}
			return
		}
		seen := map[string]bool{}
		for _, s := range all {
			if _, known := testKeys[s.Key]; !known || seen[s.Key] || len(s.Values) == 0 || s.Origin.Line < 1 ||
				testKeys[s.Key] == Scalar && len(s.Values) != 1 {
				t.Errorf("%+v", s)
			}
			seen[s.Key] = true
		}
		flags, _, _ := newFlags()
		_, _ = Apply(flags, testKeys, all) // must not panic
	})
}
