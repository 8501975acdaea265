package matrix

// This file tests what a file may say, and the plan that is made of it.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/pressure"
)

// sample is a file with everything.
const sample = `
repeat: 3
tokens: 10
skip: 2
readahead: 128
commands:
  - {name: old, path: /opt/old}
models:
  - {name: dense, synth: --size 40MB}
  - {name: experts, path: m.gguf, mixture: true, tokens: 20, prompt: x}
memory:
  - {name: fits, share: 1.2}
  - {name: half, share: 0.5}
strategies:
  - {name: plain}
  - {name: none, flags: --load-mode=none}
  - {name: old, helper: "{old} --pid {pid} --pattern {pattern}"}
  - {name: exec, helper: "{prefetchd} --exec -- {target}"}
left-out:
  - {strategies: [none], memory: [half], because: It does not fit.}
  - {models: [experts], memory: [fits], because: It is not asked.}
quick:
  {models: dense, memory: half, repeat: 1, tokens: 5}
`

// shapes are the models that there are.
type shapes map[string]Shape

func (s shapes) Describe(_ context.Context, m *Model) (Shape, error) {
	if shape, ok := s[m.Name]; ok {
		return shape, nil
	}
	return Shape{}, fmt.Errorf("%w: it is not there", ErrMissing)
}

func (s shapes) Make(_ context.Context, m *Model) (string, error) { return m.Path, nil }

func parse(t *testing.T, text string) *File {
	t.Helper()
	f, err := Parse("x.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPlan(t *testing.T) {
	f := parse(t, sample)
	p, err := NewPlan(t.Context(), f, shapes{"dense": {Bytes: 40e6, Active: 1}, "experts": {Bytes: 1e9, Active: 0.1}})
	if err != nil {
		t.Fatal(err)
	}
	dense, experts := p.Series[0], p.Series[1]
	if want := []pressure.Setting{{X: 1.2, Readahead: 128}, {X: 0.5, Readahead: 128}}; !slices.Equal(dense.settings,
		want) || dense.runs != 3*7 {
		t.Errorf("%+v, %d runs; want %+v and 21", dense.settings, dense.runs, want)
	}
	if want := []pressure.LeftOut{{Variant: "none", Setting: 1, Because: "It does not fit."}}; !slices.Equal(
		dense.leftOut, want) {
		t.Errorf("left out: %+v, want %+v", dense.leftOut, want)
	}
	// A setting at which nothing is run is not prepared, and the indices of the others follow.
	if want := []pressure.Setting{{Experts: 0.5, Readahead: 128}}; !slices.Equal(experts.settings, want) ||
		experts.runs != 3*3 || len(experts.leftOut) != 1 || experts.leftOut[0].Setting != 0 {
		t.Errorf("%+v, %d runs, left out %+v; want %+v", experts.settings, experts.runs, experts.leftOut, want)
	}
	if got, want := p.Commands(), []string{"old", "prefetchd"}; !slices.Equal(got, want) {
		t.Errorf("commands %q, want %q", got, want)
	}
	variants := f.variants(map[string]string{"old": "/opt/my old", "prefetchd": "/p"}, "/x/p.json")
	want := []pressure.Variant{{Name: "plain"}, {Name: "none", Flags: "--load-mode=none"},
		{Name: "old", Helper: "'/opt/my old' --pid {pid} --pattern '/x/p.json'"},
		{Name: "exec", Launcher: "'/p' --exec --"}}
	if !reflect.DeepEqual(variants, want) {
		t.Errorf("%+v\nwant %+v", variants, want)
	}
	var text strings.Builder
	if err := p.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"38 MiB", "Left out, 2 combinations: It does not fit.",
		"Left out, 4 combinations: It is not asked.", "All together are 30 runs, which take about "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the plan does not say %q:\n%s", want, &text)
		}
	}
}

// Three times as many runs take longer, a model that cannot be had takes no time, and slow strategies more.
func TestEstimate(t *testing.T) {
	f := parse(t, sample)
	there := shapes{"dense": {Bytes: 1 << 30, Active: 1}}
	plan := func(f *File) *Plan {
		p, err := NewPlan(t.Context(), f, there)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all := plan(f)
	if all.Series[1].Missing == nil || all.Series[1].Estimate(f) != 0 || all.Estimate() != all.Series[0].Estimate(f) {
		t.Errorf("%+v, want nothing for the model that is missing", all.Series[1])
	}
	once := *f
	once.Repeat = 1
	if a, b := plan(&once).Estimate(), all.Estimate(); a >= b || a < time.Minute || b > time.Hour {
		t.Errorf("%v once and %v three times", a, b)
	}
	helped, err := f.Select([]string{"dense"}, []string{"half"}, []string{"exec"})
	if err != nil {
		t.Fatal(err)
	}
	alone, err := f.Select([]string{"dense"}, []string{"half"}, []string{"plain"})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := plan(alone).Estimate(), plan(helped).Estimate(); a <= b {
		t.Errorf("%v alone and %v with help, want more alone", a, b)
	}
}

// A model that cannot be had is in the plan, and what is wrong with the file ends it.
func TestMissingModel(t *testing.T) {
	f := parse(t, sample)
	for _, missing := range []error{ErrMissing, fs.ErrNotExist, llama.ErrUnavailable} {
		p, err := NewPlan(t.Context(), f, failing{fmt.Errorf("fetch it: %w", missing)})
		if err != nil || !errors.Is(p.Series[0].Missing, missing) || len(p.Series) != 2 {
			t.Errorf("%v: %v, %+v; want two missing models", missing, err, p)
		}
	}
	if p, err := NewPlan(t.Context(), f, failing{errors.New("unknown flag: --x")}); err == nil ||
		err.Error() != `model "dense": unknown flag: --x` {
		t.Errorf("%+v, %v; want an error", p, err)
	}
}

// failing can describe no model.
type failing struct{ err error }

func (f failing) Describe(context.Context, *Model) (Shape, error) { return Shape{}, f.err }

func (f failing) Make(context.Context, *Model) (string, error) { return "", f.err }

func TestQuick(t *testing.T) {
	q, err := parse(t, sample).ForLittleTime()
	if err != nil {
		t.Fatal(err)
	}
	if len(q.Models) != 1 || len(q.Memory) != 1 || len(q.Strategies) != 4 || q.Repeat != 1 || q.Tokens != 5 ||
		q.Skip != 2 {
		t.Errorf("%+v", q)
	}
	f := parse(t, sample)
	f.Quick = nil
	if _, err := f.ForLittleTime(); !errors.Is(err, ErrNoQuick) {
		t.Errorf("%v, want ErrNoQuick", err)
	}
	f = parse(t, strings.Replace(sample, "tokens: 5}", "tokens: 2}", 1))
	if _, err := f.ForLittleTime(); err == nil || !strings.Contains(err.Error(), "none is left") {
		t.Errorf("%v, want that no token is left", err)
	}
	if _, err := f.Select([]string{"dnse"}, nil, nil); err == nil ||
		!strings.Contains(err.Error(), `no model "dnse": they are dense, experts`) {
		t.Errorf("%v", err)
	}
}

// What is wrong with a file is told with its path and what to do, everything at once.
func TestRefused(t *testing.T) {
	for _, test := range []struct{ from, to, want string }{
		{"repeat: 3", "repaet: 3", `x.yaml:2: unknown key "repaet": did you mean "repeat"?`},
		{"share: 0.5", "sahre: 0.5", `x.yaml:13: unknown key "sahre": did you mean "share"?`},
		{"repeat: 3", "repeat: 0", "x.yaml: repeat: 0: want 1 or more"},
		{"skip: 2", "skip: 10", `x.yaml: model "dense": of 10 tokens none is left after a start-up of 10`},
		{"path: m.gguf", "path: m.gguf, get: x", `model "experts": give one of synth, path and get`},
		{"path: m.gguf", "path: m.gguf, inflate: 1", `model "experts": inflate is a number from 2 on`},
		{"synth: --size 40MB", "mixture: false", `model "dense": give one of synth, path and get`},
		{"name: half", "name: fits", `memory: the name "fits" is there twice`},
		{"name: dense", "name: ../x", `models: the name "../x": want letters`},
		{"share: 0.5", "share: .inf", `memory "half": share: want a positive number`},
		{"strategies: [none]", "strategies: [nine]",
			`left-out: there is no "nine" in strategies: they are plain, none, old, exec`},
		{"because: It does not fit.", "because: ' '", "left-out: because: say why half, none are left out"},
		{"path: /opt/old", "path: ''", `command "old": path: say where it is`},
		{"models: dense,", "models: sparse,", `quick: there is no "sparse" in models`},
	} {
		text := strings.Replace(sample, test.from, test.to, 1)
		if _, err := Parse("x.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %s", test.to, err, test.want)
		}
	}
	if _, err := Parse("x.yaml", nil); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("an empty file: %v, want three lines", err)
	}
}

// A program that is missing is told before anything is measured, and so is a name that no command has.
func TestMissingCommand(t *testing.T) {
	p, err := NewPlan(t.Context(), parse(t, sample), shapes{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.CheckCommands(map[string]string{"lab": "/bin/sh"}); err == nil ||
		!strings.Contains(err.Error(), "/opt/old: no such file") {
		t.Errorf("%v, want that there is no /opt/old", err)
	}
	p.File.Commands[0].Path = "/bin/sh"
	if _, err := p.CheckCommands(map[string]string{"lab": "/bin/sh"}); err == nil ||
		!strings.Contains(err.Error(), "has {prefetchd}, and no command has that name: commands are lab, old") {
		t.Errorf("%v, want that {prefetchd} has no command", err)
	}
	if got, err := p.CheckCommands(map[string]string{"prefetchd": "/bin/true"}); err != nil ||
		!reflect.DeepEqual(got, map[string]string{"old": "/bin/sh", "prefetchd": "/bin/true"}) {
		t.Errorf("%v, %v", got, err)
	}
}
