package main

// This file makes the configuration of "lab pressure" from its flags: variants, settings, outputs.

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"tensorcast/experiments/pressure"
	"tensorcast/internal/chart"
	"tensorcast/internal/proc"
)

// complete checks the flags and derives the configuration from them.
func (o *pressureOptions) complete() (err error) {
	if o.Model == "" {
		return errors.New("no model: give -m model.gguf")
	}
	given := 0
	for _, is := range []bool{len(o.x) != 0, len(o.experts) != 0, o.limit != 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return errors.New("give the limit: --x SHARE, --experts SHARE or --limit SIZE")
	}
	for flag, shares := range map[string][]float64{"x": o.x, "experts": o.experts} {
		for _, share := range shares {
			if !(share > 0) || math.IsInf(share, 0) {
				return fmt.Errorf("--%s %v: want positive numbers", flag, share)
			}
		}
	}
	if len(o.experts) != 0 && o.Weights != 0 {
		return errors.New("--weights: with --experts the weights are traced")
	}
	if err := check(bound{"repeat", o.Repeat, 1}, bound{"tokens", o.driver.Tokens, 1},
		bound{"threads", o.driver.Threads, 1}, bound{"skip", o.Skip, 0}); err != nil {
		return err
	}
	for _, kib := range o.readahead {
		if kib < 1 {
			return fmt.Errorf("--readahead %d: want 1 or more", kib)
		}
	}
	o.Settings = o.settings()
	for i, set := range o.Settings {
		if slices.Contains(o.Settings[:i], set) {
			return errors.New("--x, --experts or --readahead: a value is given twice")
		}
	}
	if o.throttle != "" {
		rate, err := humanize.ParseBytes(strings.TrimSuffix(o.throttle, "/s"))
		if err != nil || rate == 0 || rate > math.MaxInt64 {
			return fmt.Errorf("--throttle %q: want a rate such as 500MB/s", o.throttle)
		}
		o.Throttle = int64(rate)
	}
	if err := o.checkOutputs(); err != nil {
		return err
	}
	if len(o.variants) == 0 {
		o.variants = []string{"plain"}
	}
	seen := map[string]bool{}
	for _, text := range o.variants {
		v := parseVariant(text)
		if v.Name == "" || seen[v.Name] {
			return fmt.Errorf("--variant %q: want a name of its own, as in plain or 'both=prefetchd --wait "+
				"--pid {pid}'", text)
		}
		seen[v.Name] = true
		if v.Name == staticName && v.Helper == "" {
			v.Helper = proc.Quote(ownPath()) + " pin --pid {pid} --room {room} {model}"
		}
		o.Variants = append(o.Variants, v)
	}
	if o.noise {
		again := o.Variants[0]
		if again.Name += " again"; seen[again.Name] {
			return fmt.Errorf("--variant %q: --noise takes that name", again.Name)
		}
		o.Variants = append(o.Variants, again)
	}
	return nil
}

// settings are all combinations of limits and readaheads.
func (o *pressureOptions) settings() []pressure.Setting {
	var limits []pressure.Setting
	if o.limit != 0 {
		limits = append(limits, pressure.Setting{Limit: o.limit})
	}
	for _, x := range o.x {
		limits = append(limits, pressure.Setting{X: x})
	}
	for _, share := range o.experts {
		limits = append(limits, pressure.Setting{Experts: share})
	}
	if len(o.readahead) == 0 {
		return limits
	}
	var all []pressure.Setting
	for _, kib := range o.readahead {
		for _, set := range limits {
			set.Readahead = kib
			all = append(all, set)
		}
	}
	return all
}

// checkOutputs finds out before hours of measuring whether the figures can be drawn.
func (o *pressureOptions) checkOutputs() error {
	for flag, file := range map[string]string{"figure": o.figure, "figure-bytes": o.bytes} {
		if file != "" && !slices.Contains(chart.Formats, chart.FormatOf(file)) {
			return fmt.Errorf("--%s %q: want a name that ends in one of .%s", flag, file,
				strings.Join(chart.Formats, ", ."))
		}
	}
	return nil
}

// ownPath returns the path of this program.
func ownPath() string {
	if path, err := os.Executable(); err == nil {
		return path
	}
	return "lab"
}

// parseVariant parses NAME[=HELPER][ :: FLAGS], where a helper that ends in {target} is a launcher.
func parseVariant(text string) pressure.Variant {
	text, flags, _ := strings.Cut(text, " :: ")
	name, helper, _ := strings.Cut(text, "=")
	v := pressure.Variant{Name: strings.TrimSpace(name), Helper: strings.TrimSpace(helper),
		Flags: strings.TrimSpace(flags)}
	if launcher, ok := strings.CutSuffix(v.Helper, "{target}"); ok {
		v.Helper, v.Launcher = "", strings.TrimSpace(launcher)
	}
	return v
}
