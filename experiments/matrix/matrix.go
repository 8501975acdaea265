// Package matrix measures many models, amounts of memory and strategies with package pressure: one series for each
// model, whose settings are the amounts of memory and whose variants are the strategies. "lab matrix" runs it.
//
// What is measured is said by a file in YAML ([Parse]; experiments/matrix.yaml is the project's). Combinations that
// make no sense are named there with the reason, and the reports name them, too. A [Plan] has all combinations, and an
// estimate of how long they take.
//
// Each series is saved as a document of package results, after every run. A series that was interrupted, or whose
// process was killed, goes on where it was when the matrix is run again; a series that is complete is not repeated.
//
// What the file names is run as root: it is to be trusted as a script is.
package matrix

// This file defines what is measured, and reads it from a file.

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"tensorcast/internal/config"
)

// File is what a file says.
type File struct {
	Repeat    int    `yaml:"repeat"`    // runs of each strategy in each combination
	Tokens    int    `yaml:"tokens"`    // that are generated in a run
	Skip      int    `yaml:"skip"`      // tokens that are the start-up
	Threads   int    `yaml:"threads"`   // of llama.cpp
	Prompt    string `yaml:"prompt"`    // of all models that have none of their own
	Readahead int    `yaml:"readahead"` // of the disk in KiB; 0: as it is
	Llama     string `yaml:"llama"`     // directory of the user's llama.cpp; empty: that of lab getllama

	Commands   []Command  `yaml:"commands"`
	Models     []Model    `yaml:"models"`
	Memory     []Memory   `yaml:"memory"`
	Strategies []Strategy `yaml:"strategies"`
	LeftOut    []LeftOut  `yaml:"left-out"`
	Quick      *Quick     `yaml:"quick"`
}

// Command gives a program a name: in a strategy, {NAME} is replaced by its path.
type Command struct {
	Name string `yaml:"name"`
	Path string `yaml:"path"`
}

// Model is a model and how llama.cpp loads it. Exactly one of Synth, Path and Get is given.
type Model struct {
	Name  string `yaml:"name"`
	Synth string `yaml:"synth"` // flags of lab synth, without -o
	Path  string `yaml:"path"`  // the user's own GGUF file
	Get   string `yaml:"get"`   // the name of a model that can be downloaded (lab getmodel)
	// Inflate makes what Path or Get names so many times as wide (lab synth --inflate). 0 leaves it as it is.
	Inflate int `yaml:"inflate"`
	// Mixture says that shares of memory are shares of the experts, beside the rest.
	Mixture bool `yaml:"mixture"`
	// Repack lets llama.cpp copy weights into another layout, as it does by default. Tokens then read nothing of the
	// file, and its size counts as what a token reads.
	Repack bool   `yaml:"repack"`
	Prompt string `yaml:"prompt"`
	Tokens int    `yaml:"tokens"` // instead of the file's
}

// Memory is how much of a model fits.
type Memory struct {
	Name  string  `yaml:"name"`
	Share float64 `yaml:"share"` // of the weights that a token reads, or of a mixture's experts
}

// Strategy is a way to run a model. Helper is a command as lab pressure --variant takes it; one that ends in {target}
// starts the target. Besides what is replaced there, {pattern} is the model's pattern in a file, and the name of a
// [Command] in braces is its path.
type Strategy struct {
	Name   string `yaml:"name"`
	Helper string `yaml:"helper"`
	Flags  string `yaml:"flags"` // more arguments of the target
}

// LeftOut names combinations that are not measured. An empty list stands for all.
type LeftOut struct {
	Models     []string `yaml:"models"`
	Memory     []string `yaml:"memory"`
	Strategies []string `yaml:"strategies"`
	Because    string   `yaml:"because"`
}

// Quick is the part that is measured when there is little time. An empty list stands for all, and 0 for the file's
// number.
type Quick struct {
	Models     []string `yaml:"models"`
	Memory     []string `yaml:"memory"`
	Strategies []string `yaml:"strategies"`
	Repeat     int      `yaml:"repeat"`
	Tokens     int      `yaml:"tokens"`
	Skip       int      `yaml:"skip"`
}

// MaxBytes bounds a file. Nobody writes that much by hand.
const MaxBytes = 256 << 10

// Parse reads what a file says and checks it. where is the file's path, for errors. The error joins one for each thing
// that is wrong.
func Parse(where string, data []byte) (*File, error) {
	f := &File{Repeat: 2, Tokens: 32, Skip: 8, Threads: 2, Prompt: "The page cache"}
	if err := config.Decode(where, data, f); err != nil {
		return nil, err
	}
	if problems := f.check(); len(problems) > 0 {
		var all []error
		for _, p := range problems {
			all = append(all, fmt.Errorf("%s: %s", where, p))
		}
		return nil, errors.Join(all...)
	}
	return f, nil
}

// nameForm is the form of all names, because they become those of files and variants.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,60}$`)

// check lists what is wrong with a file whose form is right.
func (f *File) check() (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, n := range []struct {
		key          string
		value, least int
	}{{"repeat", f.Repeat, 1}, {"tokens", f.Tokens, 1}, {"skip", f.Skip, 0}, {"threads", f.Threads, 1},
		{"readahead", f.Readahead, 0}} {
		if n.value < n.least {
			add("%s: %d: want %d or more", n.key, n.value, n.least)
		}
	}
	models, memory, strategies, commands := f.names()
	for _, list := range []struct {
		key   string
		names []string
		needs bool
	}{{"models", models, true}, {"memory", memory, true}, {"strategies", strategies, true},
		{"commands", commands, false}} {
		if list.needs && len(list.names) == 0 {
			add("%s: there are none", list.key)
		}
		for i, name := range list.names {
			switch {
			case !nameForm.MatchString(name):
				add("%s: the name %q: want letters, digits, points, +, - and _", list.key, name)
			case slices.Contains(list.names[:i], name):
				add("%s: the name %q is there twice", list.key, name)
			}
		}
	}
	for i := range f.Models {
		problems = append(problems, f.Models[i].check(f)...)
	}
	for _, m := range f.Memory {
		if !(m.Share > 0) || math.IsInf(m.Share, 0) {
			add("memory %q: share: want a positive number", m.Name)
		}
	}
	for _, c := range f.Commands {
		if c.Path == "" {
			add("command %q: path: say where it is", c.Name)
		}
	}
	check := func(where string, of map[string][]string) {
		for _, list := range []struct {
			key   string
			known []string
		}{{"models", models}, {"memory", memory}, {"strategies", strategies}} {
			for _, name := range of[list.key] {
				if !slices.Contains(list.known, name) {
					add("%s: there is no %q in %s: they are %s", where, name, list.key, strings.Join(list.known, ", "))
				}
			}
		}
	}
	for _, l := range f.LeftOut {
		check("left-out", map[string][]string{"models": l.Models, "memory": l.Memory, "strategies": l.Strategies})
		if strings.TrimSpace(l.Because) == "" {
			add("left-out: because: say why %s are left out", strings.Join(slices.Concat(l.Models, l.Memory,
				l.Strategies), ", "))
		}
	}
	if q := f.Quick; q != nil {
		check("quick", map[string][]string{"models": q.Models, "memory": q.Memory, "strategies": q.Strategies})
		if q.Repeat < 0 || q.Tokens < 0 || q.Skip < 0 {
			add("quick: a number is negative")
		}
	}
	return problems
}

func (m *Model) check(f *File) (problems []string) {
	given := 0
	for _, text := range []string{m.Synth, m.Path, m.Get} {
		if text != "" {
			given++
		}
	}
	if given != 1 {
		problems = append(problems, fmt.Sprintf("model %q: give one of synth, path and get", m.Name))
	}
	if m.Inflate != 0 && (m.Inflate < 2 || m.Synth != "") {
		problems = append(problems, fmt.Sprintf("model %q: inflate is a number from 2 on, for what path or get names "+
			"(synth takes --inflate itself)", m.Name))
	}
	if tokens := m.tokens(f); tokens <= f.Skip {
		problems = append(problems, fmt.Sprintf("model %q: of %d tokens none is left after a start-up of %d", m.Name,
			tokens, f.Skip))
	}
	return problems
}

func (m *Model) tokens(f *File) int {
	if m.Tokens > 0 {
		return m.Tokens
	}
	return f.Tokens
}

func (m *Model) prompt(f *File) string {
	if m.Prompt != "" {
		return m.Prompt
	}
	return f.Prompt
}

// names lists the names of all things.
func (f *File) names() (models, memory, strategies, commands []string) {
	for _, m := range f.Models {
		models = append(models, m.Name)
	}
	for _, m := range f.Memory {
		memory = append(memory, m.Name)
	}
	for _, s := range f.Strategies {
		strategies = append(strategies, s.Name)
	}
	for _, c := range f.Commands {
		commands = append(commands, c.Name)
	}
	return models, memory, strategies, commands
}

// Select returns the file with fewer models, amounts of memory and strategies: those of the given names, or all if none
// is given. The order stays the file's. It fails if there is no such name.
func (f *File) Select(models, memory, strategies []string) (*File, error) {
	allModels, allMemory, allStrategies, _ := f.names()
	for _, list := range []struct {
		what         string
		names, known []string
	}{{"model", models, allModels}, {"amount of memory", memory, allMemory}, {"strategy", strategies, allStrategies}} {
		for _, name := range list.names {
			if !slices.Contains(list.known, name) {
				return nil, fmt.Errorf("there is no %s %q: they are %s", list.what, name,
					strings.Join(list.known, ", "))
			}
		}
	}
	s := *f
	s.Models = selectNamed(f.Models, models, func(m Model) string { return m.Name })
	s.Memory = selectNamed(f.Memory, memory, func(m Memory) string { return m.Name })
	s.Strategies = selectNamed(f.Strategies, strategies, func(s Strategy) string { return s.Name })
	return &s, nil
}

func selectNamed[T any](all []T, names []string, nameOf func(T) string) []T {
	if len(names) == 0 {
		return all
	}
	var kept []T
	for _, one := range all {
		if slices.Contains(names, nameOf(one)) {
			kept = append(kept, one)
		}
	}
	return kept
}

// ErrNoQuick says that a file has no part for little time.
var ErrNoQuick = errors.New("the file has no part \"quick\"")

// ForLittleTime returns the file with what its part "quick" says.
func (f *File) ForLittleTime() (*File, error) {
	q := f.Quick
	if q == nil {
		return nil, ErrNoQuick
	}
	s, err := f.Select(q.Models, q.Memory, q.Strategies)
	if err != nil {
		return nil, err
	}
	for _, n := range []struct {
		to   *int
		from int
	}{{&s.Repeat, q.Repeat}, {&s.Tokens, q.Tokens}, {&s.Skip, q.Skip}} {
		if n.from > 0 {
			*n.to = n.from
		}
	}
	s.Models = slices.Clone(s.Models)
	for i := range s.Models {
		if q.Tokens > 0 {
			s.Models[i].Tokens = 0
		}
		if problems := s.Models[i].check(s); len(problems) > 0 {
			return nil, errors.New("quick: " + problems[0])
		}
	}
	return s, nil
}
