// Package config gives the flags of a command values from a configuration file and from the environment, and says
// where each value comes from.
//
// A key of the file is the long name of a flag, and so is a variable of the environment in capitals, behind a prefix.
// A flag that was given counts first, then a variable, then the file, then the default ([Apply]). Flags read all
// values, so that the same words are right, and wrong, everywhere.
//
// The file is YAML, read strictly ([Parse]): an unknown key, a key that is there twice, and a value of another form
// are errors with their line. What a file says decides what a program does that runs as root. So [Read] takes only a
// file that nobody else can have written.
//
// A file whose parts have parts is read as strictly into a struct ([Decode]).
package config

import (
	"fmt"
	"maps"
	"slices"
)

// Kind is the form of a setting's value.
type Kind int

const (
	// Scalar is a single value.
	Scalar Kind = iota
	// List has several values: in YAML a sequence or a single value, in the environment separated by commas.
	List
	// Map gives values to names: in YAML a mapping, elsewhere a list of NAME=VALUE.
	Map
)

// Keys are the settings that there are, by the names of their flags.
type Keys map[string]Kind

// names lists the keys in alphabetical order.
func (k Keys) names() []string { return slices.Sorted(maps.Keys(k)) }

// Setting is the value of a key.
type Setting struct {
	Key    string
	Values []Value // one of a Scalar; NAME=VALUE of a Map
	Origin Origin
}

// Value is a text as flags read it.
type Value struct {
	Text string
	Line int // in the file, from 1; 0 elsewhere
}

// Texts lists the texts of the values, at least an empty list.
func (s *Setting) Texts() []string {
	all := make([]string, len(s.Values))
	for i, v := range s.Values {
		all[i] = v.Text
	}
	return all
}

// Source is the kind of place that a value comes from.
type Source string

// All sources, those first that count first.
const (
	Flag        Source = "flag"
	Environment Source = "environment"
	File        Source = "file"
	Default     Source = "default"
)

// Origin says where a value comes from.
type Origin struct {
	Source Source `json:"source"`
	// Where is the variable, or the file's path; empty for others.
	Where string `json:"where,omitempty"`
	Line  int    `json:"line,omitempty"` // of the key in the file, from 1
}

// String says it for people: "default", "environment TENSORCAST_BUDGET", "/etc/x.yaml:3".
func (o Origin) String() string {
	switch o.Source {
	case Environment:
		return fmt.Sprintf("%s %s", o.Source, o.Where)
	case File:
		return fmt.Sprintf("%s:%d", o.Where, o.Line)
	}
	return string(o.Source)
}

// Problem is one thing that is wrong with a file, or with a variable.
type Problem struct {
	Where string // the file's path, or the variable
	Line  int    // in the file, from 1; 0: it is about the file as a whole
	Text  string
}

// Error is one line: where it is, and what is wrong.
func (p *Problem) Error() string {
	if p.Line == 0 {
		return fmt.Sprintf("%s: %s", p.Where, p.Text)
	}
	return fmt.Sprintf("%s:%d: %s", p.Where, p.Line, p.Text)
}
