package config

// This file gives flags their values, by precedence.

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"tensorcast/internal/cli"
)

// Variable is the name of the variable that has the value of a key.
func Variable(prefix, key string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// FromEnvironment returns the settings that variables have, in the order of the keys. lookup is [os.LookupEnv]. An
// empty variable counts as none. Other variables with the prefix are left alone: Kubernetes sets some for a service
// that has the name of a program.
func FromEnvironment(lookup func(name string) (string, bool), prefix string, keys Keys) (all []Setting) {
	for _, key := range keys.names() {
		name := Variable(prefix, key)
		text, ok := lookup(name)
		if !ok || text == "" {
			continue
		}
		s := Setting{Key: key, Origin: Origin{Source: Environment, Where: name}}
		texts := []string{text}
		if keys[key] != Scalar {
			texts = strings.Split(text, ",")
		}
		for _, t := range texts {
			s.Values = append(s.Values, Value{Text: strings.TrimSpace(t)})
		}
		all = append(all, s)
	}
	return all
}

// Apply gives each flag that was not given, and that is one of keys, its value from the first of layers that has one.
// It returns what is in force, in the order of f. f must have a flag for each key; those of
// lists and maps are a [pflag.SliceValue]. The error joins a [*Problem] for each value that a flag does not take.
func Apply(f *pflag.FlagSet, keys Keys, layers ...[]Setting) (inForce []Setting, err error) {
	given := map[string]bool{}
	f.Visit(func(flag *pflag.Flag) { given[flag.Name] = true })
	f.VisitAll(func(flag *pflag.Flag) {
		if _, is := keys[flag.Name]; !is {
			return
		}
		now := Setting{Key: flag.Name, Origin: Origin{Source: Default}}
		if given[flag.Name] {
			now.Origin.Source = Flag
		} else if s := find(layers, flag.Name); s != nil {
			now.Origin = s.Origin
			err = errors.Join(err, set(f, s))
		}
		for _, text := range textsOf(flag) {
			now.Values = append(now.Values, Value{Text: text})
		}
		inForce = append(inForce, now)
	})
	if err != nil {
		return nil, err
	}
	return inForce, nil
}

// find returns the setting of a key in the first layer that has it; nil if none has.
func find(layers [][]Setting, key string) *Setting {
	for _, layer := range layers {
		for i := range layer {
			if layer[i].Key == key {
				return &layer[i]
			}
		}
	}
	return nil
}

// set gives a flag the value of a setting.
func set(f *pflag.FlagSet, s *Setting) (err error) {
	for _, v := range s.Values {
		setErr := f.Set(s.Key, v.Text)
		if setErr == nil {
			continue
		}
		why := setErr.Error()
		if invalid := (*pflag.InvalidValueError)(nil); errors.As(setErr, &invalid) {
			why = cli.WhyInvalid(invalid)
		}
		err = errors.Join(err, &Problem{s.Origin.Where, v.Line, fmt.Sprintf("%s %q: %s", s.Key, v.Text, why)})
	}
	return err
}

// textsOf lists the texts that would give a flag the value that it has. A flag without a value has none.
func textsOf(flag *pflag.Flag) []string {
	if list, is := flag.Value.(pflag.SliceValue); is {
		return list.GetSlice()
	}
	if text := flag.Value.String(); text != "" {
		return []string{text}
	}
	return nil
}

// Copy gives the flags of to the values that were given to those of from, so that to is as from was before Apply.
// Both have the same flags.
func Copy(to, from *pflag.FlagSet) (err error) {
	from.Visit(func(flag *pflag.Flag) {
		texts := []string{flag.Value.String()} // it may be empty, and was given all the same
		if list, is := flag.Value.(pflag.SliceValue); is {
			texts = list.GetSlice()
		}
		for _, text := range texts {
			err = errors.Join(err, to.Set(flag.Name, text))
		}
	})
	return err
}

// Change is a setting whose value is another one now.
type Change struct {
	Key           string
	Before, After string // as Text writes it
	Origin        Origin // of After
}

// Compare lists what has changed between two results of Apply to the same flags.
func Compare(before, after []Setting) (all []Change) {
	for i := range after {
		old := find([][]Setting{before}, after[i].Key)
		if old == nil || old.Text() == after[i].Text() {
			continue
		}
		all = append(all, Change{after[i].Key, old.Text(), after[i].Text(), after[i].Origin})
	}
	return all
}

// Text writes the value for people: several with commas, and nothing for none.
func (s *Setting) Text() string { return strings.Join(s.Texts(), ", ") }
