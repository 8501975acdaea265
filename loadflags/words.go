package loadflags

// This file has the table of what to write where, and makes advice of it.

import (
	"cmp"
	"slices"
	"strings"

	"tensorcast/internal/visible"
)

// Change is something that a program can be asked to do in another way.
type Change int

const (
	// KeepLayout leaves weights in the layout of the file, so that they need not be copied.
	KeepLayout Change = iota
	// MapFile reads weights from a mapping of the file.
	MapFile
	// Unlock does not lock them in memory.
	Unlock
)

// LayoutGain says what copies in another layout gain where the processor computes: see
// docs/measurements/targets.md.
const LayoutGain = "prompts were 1.4 times as fast with such copies, where that was measured"

// dialect is a kind of program, by how it is told to load weights.
type dialect int

const (
	unknown  dialect = iota // nothing is known, or the program calls libllama by itself
	modes                   // with --load-mode
	flags                   // with --no-mmap and --mlock
	bench                   // llama-bench with --load-mode
	oldBench                // llama-bench without it
	python                  // a script that calls llama-cpp-python
	server                  // the server of llama-cpp-python
)

// advice is how a change is asked for.
type advice struct {
	flag  string // what to write on the command line, behind what starts says; "" if nothing can be written there
	env   string // what to write into the environment; "" if the program reads none
	field string // of llama_model_params, if the program may be one that calls libllama
	none  string // why nothing can be written
}

const (
	otherBuild  = "a llama.cpp that was built with -DGGML_CPU_REPACK=OFF"
	noBenchFlag = "llama-bench has no flag against copies in another layout; use llama-server or llama-cli, or " + otherBuild
	noFlag      = "this llama.cpp has no flag against copies in another layout; use a newer one, or " + otherBuild
	noArgument  = "llama-cpp-python has no argument against copies in another layout; set use_extra_bufts of what its " +
		"llama_model_default_params returns to False, or install it with CMAKE_ARGS=-DGGML_CPU_REPACK=OFF"
)

// starts is what a program's flags are given to, where it is not llama.cpp itself.
var starts = map[dialect]string{python: "load the model", server: "start llama_cpp.server"}

// table says how each change is asked for.
var table = map[Change]map[dialect]advice{
	KeepLayout: {
		unknown:  {flag: "with --no-repack", env: "LLAMA_ARG_NO_REPACK=1", field: "use_extra_bufts false"},
		modes:    {flag: "with --no-repack", env: "LLAMA_ARG_NO_REPACK=1"},
		flags:    {flag: "with --no-repack", env: "LLAMA_ARG_NO_REPACK=1"},
		bench:    {none: noBenchFlag},
		oldBench: {none: noBenchFlag},
		python:   {none: noArgument},
		server:   {none: noArgument},
	},
	MapFile: {
		unknown: {
			flag: "with --load-mode mmap, or if it is older without --no-mmap", env: "LLAMA_ARG_LOAD_MODE=mmap",
			field: "load_mode LLAMA_LOAD_MODE_MMAP or use_mmap true",
		},
		modes:    {flag: "with --load-mode mmap", env: "LLAMA_ARG_LOAD_MODE=mmap"},
		flags:    {flag: "without --no-mmap", env: "LLAMA_ARG_MMAP=1"},
		bench:    {flag: "with --load-mode mmap"},
		oldBench: {flag: "with --mmap 1"},
		python:   {flag: "with use_mmap=True and without lora_path"},
		server:   {flag: "with --use_mmap true and without --lora_path", env: "USE_MMAP=true"},
	},
	Unlock: {
		unknown: {
			flag: "with --load-mode mmap, or if it is older without --mlock", env: "LLAMA_ARG_LOAD_MODE=mmap",
			field: "load_mode LLAMA_LOAD_MODE_MMAP or use_mlock false",
		},
		modes:    {flag: "with --load-mode mmap", env: "LLAMA_ARG_LOAD_MODE=mmap"},
		flags:    {flag: "without --mlock", env: "LLAMA_ARG_MLOCK unset"},
		bench:    {flag: "with --load-mode mmap"},
		oldBench: {flag: "with --mmap 1"},
		python:   {flag: "with use_mlock=False"},
		server:   {flag: "with --use_mlock false", env: "USE_MLOCK=false"}, // it locks by default
	},
}

// dialect returns the kind of program. One with both --load-mode and the old flags warns about the old ones.
func (p Program) dialect() dialect {
	switch f := p.features; {
	case f.has(pythonServer):
		return server
	case f.has(pythonLibrary):
		return python
	case f.has(benchUsage) && f.has(benchMode):
		return bench
	case f.has(benchUsage):
		return oldBench
	case f.has(loadMode):
		return modes
	case f.has(oldFlags):
		return flags
	}
	return unknown
}

// adviceFor looks a change up. What asked the program for the contrary is named as it was written. To leave it out is
// right for every program, because all map the file by default.
func (p Program) adviceFor(c Change) advice {
	d := p.dialect()
	var asked []string
	switch {
	case c == KeepLayout && (d == modes || d == flags) && !p.features.has(noRepack):
		return advice{none: noFlag}
	case c == MapFile:
		asked = p.request.Unmapped
	case c == Unlock:
		asked = p.request.Locked
	}
	a := table[c][d]
	switch { // a variable could not undo a flag
	case len(asked) == 0:
	case d != server:
		return advice{flag: "without " + strings.Join(asked, " and ")}
	case slices.ContainsFunc(asked, func(written string) bool { return strings.HasPrefix(written, "-") }):
		a.env = "" // without its flag the server may do the same, by its default
	}
	return a
}

// Advise says in a line what to do so that a program makes the changes. Of several it leaves out those that it makes
// already.
func (p Program) Advise(changes ...Change) string {
	var write, env, fields, lines []string
	add := func(to *[]string, s string) {
		if s != "" && !slices.Contains(*to, s) {
			*to = append(*to, s)
		}
	}
	for _, c := range changes {
		if len(changes) > 1 && p.doesAlready(c) {
			continue
		}
		a := p.adviceFor(c)
		add(&write, a.flag)
		add(&env, a.env)
		add(&fields, a.field)
		add(&lines, a.none)
	}
	if len(write) > 0 {
		start := cmp.Or(starts[p.dialect()], "start llama.cpp") + " " + strings.Join(write, ", and ")
		var others []string
		if p.running && len(env) > 0 {
			others = append(others, p.whoseEnvironment()+": "+strings.Join(env, ", "))
		}
		if len(fields) > 0 {
			others = append(others, "where libllama is called: "+strings.Join(fields, ", "))
		}
		if len(others) > 0 {
			start += " (" + strings.Join(others, "; ") + ")"
		}
		lines = slices.Insert(lines, 0, start)
	}
	return visible.Line(strings.Join(lines, "; "))
}

// doesAlready reports whether the program was started so that it makes a change, as its words say.
func (p Program) doesAlready(c Change) bool {
	switch c {
	case KeepLayout:
		return p.request.InLayout
	case MapFile:
		d := p.dialect()
		return d != unknown && d != python && len(p.request.Unmapped) == 0
	}
	return false
}

// whoseEnvironment says where a variable is to be set.
func (p Program) whoseEnvironment() string {
	if p.starter != "" {
		return "in the environment of " + p.starter + ", which starts it"
	}
	return "or in its environment"
}
