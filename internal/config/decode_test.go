package config

// This file tests files whose parts have parts.

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

// wait is a value that reads itself.
type wait time.Duration

func (w *wait) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("want a time such as 5s")
	}
	*w = wait(d)
	return nil
}

type part struct {
	Name   string   `yaml:"name"`
	Share  float64  `yaml:"share"`
	Strong bool     `yaml:"strong"`
	Of     []string `yaml:"of"`
}

type whole struct {
	Repeat int    `yaml:"repeat"`
	Pause  wait   `yaml:"pause"`
	Parts  []part `yaml:"parts"`
	Quick  *part  `yaml:"quick"`
	kept   int
}

func TestDecode(t *testing.T) {
	got := whole{Repeat: 3, kept: 7}
	err := Decode("x.yaml", []byte(`# a comment
pause: 5s
parts:
  - name: 0.85
    share: 1
    of: [a, b]
  - {name: "two", strong: true, of: c}
quick:
  share: 0.5
`), &got)
	want := whole{Repeat: 3, Pause: wait(5 * time.Second), kept: 7, Quick: &part{Share: 0.5}, Parts: []part{
		{Name: "0.85", Share: 1, Of: []string{"a", "b"}}, {Name: "two", Strong: true, Of: []string{"c"}}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	for _, text := range []string{"", "# only a comment\n", "---\n"} {
		if got := (whole{Repeat: 2}); Decode("x.yaml", []byte(text), &got) != nil || got.Repeat != 2 {
			t.Errorf("%q: %+v, want what was there before", text, got)
		}
	}
}

// Everything that is wrong is told at once, each with its line.
func TestDecodeRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"repaet: 1":                          `x.yaml:1: unknown key "repaet": did you mean "repeat"?`,
		"parts:\n- name: a\n  sahre: 1":      `x.yaml:3: unknown key "sahre": did you mean "share"?`,
		"parts:\n- name: a\n  xyz: 1":        `x.yaml:3: unknown key "xyz": the keys are name, share, strong, of`,
		"repeat: many":                       `x.yaml:1: repeat: want a whole number, not "many"`,
		"repeat: 1.5":                        `x.yaml:1: repeat: want a whole number, not "1.5"`,
		"repeat:":                            `x.yaml:1: repeat has no value`,
		"repeat: [1]":                        `x.yaml:1: repeat: want a whole number, not a list`,
		"pause: long":                        `x.yaml:1: pause "long": want a time such as 5s`,
		"pause: {a: b}":                      `x.yaml:1: pause: want one value, not a mapping`,
		"parts: much":                        `x.yaml:1: want lines such as name: VALUE in parts, not "much"`,
		"parts:\n- name: [a]":                `x.yaml:2: name: want a text, not a list`,
		"quick: {strong: perhaps}":           `x.yaml:1: strong: want true or false, not "perhaps"`,
		"quick: {share: 1, share: 2}":        `x.yaml:1: "share" is in line 1 already`,
		"a: &x {share: 1}\nquick: *x":        `x.yaml:2: want lines such as name: VALUE in quick, not an alias (*x)`,
		"repeat: 1\n---\nrepeat: 2":          `x.yaml:2: a second document begins: want one`,
		"- a":                                `x.yaml:1: want lines such as repeat: VALUE in the file, not a list`,
		"kept: 1":                            `x.yaml:1: unknown key "kept"`,
		"\tx: 1":                             `not YAML: `,
		"quick: {share: 99999999999999e999}": `x.yaml:1: share: want a number`,
	} {
		err := Decode("x.yaml", []byte(text), new(whole))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
		if problem := (*Problem)(nil); !errors.As(err, &problem) {
			t.Errorf("%q: %v is no Problem", text, err)
		}
	}
	err := Decode("x.yaml", []byte("repaet: 1\nparts:\n- {nam: a}\n- {share: x}"), new(whole))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("%v, want three lines", err)
	}
}

// Whatever a file says, it is read or refused with its path.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		"repeat: 2\nparts: [{name: a, of: [b]}]\n", "a: &x [*x]", "quick: {share: .inf}", "---\n---\n", "? a\n: b",
		"<<: {repeat: 1}", "parts:\n- - - b\n", "pause: !!binary aGk=\n", "%YAML 1.1\n---\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := Decode("x.yaml", data, new(whole)); err != nil && !strings.HasPrefix(err.Error(), "x.yaml:") {
			t.Errorf("%v", err)
		}
	})
}
