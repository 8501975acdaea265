package cli

// This file defines flags whose values are enumerated words or a size.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tensorcast/internal/sizes"
)

// EnumVar adds a flag that takes one of choices, in upper or lower case. *p is the default, which
// need not be one of the choices. Help texts and errors list the choices, and shells complete them.
func EnumVar(cmd *cobra.Command, p *string, name, shorthand string, choices []string, usage string) {
	cmd.Flags().VarP(&enum{p, *p, choices}, name, shorthand, usage)
	// The error is impossible: the flag exists.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

type enum struct {
	value   *string
	preset  string // the default
	choices []string
}

func (e *enum) String() string { return *e.value }
func (e *enum) Type() string   { return strings.Join(e.choices, "|") } // the help shows it in place of the value

func (e *enum) Set(text string) error {
	if text == e.preset {
		*e.value = text
		return nil
	}
	choice, err := parseChoice(text, e.choices)
	if err == nil {
		*e.value = choice
	}
	return err
}

// parseChoice finds text among choices, in upper or lower case.
func parseChoice(text string, choices []string) (string, error) {
	i := slices.IndexFunc(choices, func(c string) bool { return strings.EqualFold(c, text) })
	if i < 0 {
		return "", fmt.Errorf("want %s", OneOf(choices))
	}
	return choices[i], nil
}

// EnumsVar adds a flag that takes several of choices, separated by commas or in several flags. *p
// is the default.
func EnumsVar(cmd *cobra.Command, p *[]string, name string, choices []string, usage string) {
	cmd.Flags().Var(&enums{value: p, choices: choices}, name, usage)
	complete := func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndexByte(typed, ',')+1]
		var all []string
		for _, c := range choices {
			all = append(all, before+c)
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	_ = cmd.RegisterFlagCompletionFunc(name, complete) // cannot fail: the flag exists
}

type enums struct {
	value   *[]string
	set     bool // the default has been replaced
	choices []string
}

func (e *enums) String() string { return strings.Join(*e.value, ",") }
func (e *enums) Type() string   { return "names" }

func (e *enums) Set(text string) error {
	var all []string
	for _, t := range strings.Split(text, ",") {
		choice, err := parseChoice(t, e.choices)
		if err != nil {
			return err
		}
		all = append(all, choice)
	}
	if !e.set {
		*e.value, e.set = nil, true
	}
	*e.value = append(*e.value, all...)
	return nil
}

// SizeVar adds a flag that takes a number of bytes as [sizes.Parse] reads it: 600MB, 2GiB. If the flag is not given, *p
// is unchanged. The help shows no default.
func SizeVar(f *pflag.FlagSet, p *int64, name, usage string) { f.Var((*sizeValue)(p), name, usage) }

type sizeValue int64

func (s *sizeValue) Type() string { return "size" }

// String is what Set reads as the same size.
func (s *sizeValue) String() string {
	if *s == 0 {
		return ""
	}
	return sizes.Format(int64(*s))
}

func (s *sizeValue) Set(text string) error {
	n, err := sizes.Parse(text)
	if err == nil {
		*s = sizeValue(n)
	}
	return err
}

// AmountVar adds a flag that takes a number of bytes or a share, as [sizes.ParseAmount] reads it: 2GiB, 60%. If the
// flag is not given, *p is unchanged. The help shows no default.
func AmountVar(f *pflag.FlagSet, p *sizes.Amount, name, usage string) {
	f.Var(&amountValue{p}, name, usage)
}

type amountValue struct{ *sizes.Amount }

func (a *amountValue) Type() string { return "size" }

// String is what Set reads as the same amount. It is called for the zero value, too (pflag).
func (a *amountValue) String() string {
	if a.Amount == nil {
		return ""
	}
	return a.Amount.String()
}

func (a *amountValue) Set(text string) error {
	amount, err := sizes.ParseAmount(text)
	if err == nil {
		*a.Amount = amount
	}
	return err
}
