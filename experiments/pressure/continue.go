package pressure

// This file continues a series that was interrupted: it checks that the earlier report is of the same series, and finds
// what is missing of it.

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"tensorcast/internal/host"
)

// LeftOut is a variant that is not run at a setting, because that makes no sense.
type LeftOut struct {
	Variant string `json:"variant"`
	Setting int    `json:"setting"` // index of the setting
	Because string `json:"because"` // the reason, for people
}

// Resumption is a point at which an interrupted series went on.
type Resumption struct {
	AfterRuns int       `json:"after_runs"` // how many runs under a limit were before it
	Time      time.Time `json:"time"`
}

// MachineState is what the machine did while nothing of the series ran.
type MachineState struct {
	AfterRuns int `json:"after_runs"` // how many runs under a limit were before it
	host.State
}

// ErrOtherSeries says that an earlier report is of another series, which cannot be continued.
var ErrOtherSeries = errors.New("the earlier runs are of another series")

// differences collects what differs between two series.
type differences []string

func (d *differences) note(same bool, what string, was, is any) {
	if !same {
		*d = append(*d, fmt.Sprintf("%s (%v then, and %v now)", what, was, is))
	}
}

func (d *differences) err() error {
	if len(*d) == 0 {
		return nil
	}
	return fmt.Errorf("%w: what differs is %s", ErrOtherSeries, strings.Join(*d, ", "))
}

// IsOf fails with [ErrOtherSeries] if the report is not of the series that a configuration describes: another model,
// target or start-up, other variants or settings. How often all is repeated does not count.
func (r *Report) IsOf(cfg *Config) error {
	var d differences
	d.note(r.Model.Path == cfg.Model, "the model", r.Model.Path, cfg.Model)
	d.note(slices.Equal(r.Target, cfg.Target), "the target", strings.Join(r.Target, " "), strings.Join(cfg.Target, " "))
	d.note(slices.Equal(r.Variants, cfg.Variants), "the variants", nameVariants(r.Variants), nameVariants(cfg.Variants))
	var settings []Setting
	for i := range r.Results {
		settings = append(settings, r.Results[i].Setting)
	}
	d.note(slices.Equal(settings, cfg.Settings), "the settings", settings, cfg.Settings)
	d.note(slices.Equal(r.LeftOut, cfg.LeftOut), "what is left out", len(r.LeftOut), len(cfg.LeftOut))
	d.note(r.Skip == cfg.Skip, "the start-up", r.Skip, cfg.Skip)
	d.note(r.Throttle == cfg.Throttle, "the throttle", r.Throttle, cfg.Throttle)
	return d.err()
}

// CountMissing is how many runs under a limit the report lacks of the series that a configuration describes.
func (r *Report) CountMissing(cfg *Config) (n int) {
	for i := range cfg.Settings {
		n += max(len(cfg.turns(i))-r.countAt(i), 0)
	}
	return n
}

// checkSame fails with [ErrOtherSeries] if an earlier report is not of this series on this machine. s.report is the new
// report, in which nothing was measured yet.
func (s *series) checkSame(earlier *Report) error {
	if err := earlier.IsOf(&s.cfg); err != nil {
		return err
	}
	var d differences
	r := s.report
	d.note(earlier.Model.Bytes == r.Model.Bytes, "the model's size", earlier.Model.Bytes, r.Model.Bytes)
	d.note(earlier.Disk.Name == r.Disk.Name, "the disk", earlier.Disk.Name, r.Disk.Name)
	was, is := earlier.Host, r.Host
	was.Load, is.Load = 0, 0
	d.note(was == is, "the machine", was.Kernel+" "+was.CPU, is.Kernel+" "+is.CPU)
	return d.err()
}

// nameVariants writes variants for people.
func nameVariants(all []Variant) string {
	var texts []string
	for _, v := range all {
		words := []string{v.Name + ":", v.Helper, v.Launcher, v.Flags}
		texts = append(texts, strings.TrimSpace(strings.Join(words, " ")))
	}
	return strings.Join(texts, "; ")
}

// adopt takes over what an earlier series has measured. What a token reads was measured again by now, for it says
// whether the target is still the same.
func (s *series) adopt(earlier *Report) error {
	r := s.report
	if earlier.Model != r.Model || !reflect.DeepEqual(earlier.Routes, r.Routes) {
		return fmt.Errorf("%w: a token of %s reads %d bytes, and read %d, or other experts, then", ErrOtherSeries,
			filepath.Base(r.Model.Path), r.Model.TokenBytes, earlier.Model.TokenBytes)
	}
	states := r.States // of the start of this part
	*r = *earlier
	r.Interrupted = false
	r.Resumed = append(slices.Clip(r.Resumed), Resumption{len(r.Runs), time.Now()})
	for _, state := range states {
		state.AfterRuns = len(r.Runs)
		r.States = append(slices.Clip(r.States), state)
	}
	s.done += len(r.Unlimited) + len(r.Runs)
	s.total = max(s.total, s.done)
	s.fastest = r.Grid.Fastest(fastestSettings)
	return nil
}

// readaheadBefore is the disk's readahead before the series, to which it is restored. now is what it is. If that is
// what a killed process of the same series has set it to, it is what it was before that.
func (c *Config) readaheadBefore(now int) int {
	left := slices.ContainsFunc(c.Settings, func(set Setting) bool { return set.Readahead == now })
	if c.Earlier != nil && c.Earlier.Interrupted && left && c.Earlier.Disk.ReadaheadKiBBefore > 0 {
		return c.Earlier.Disk.ReadaheadKiBBefore
	}
	return now
}

// turns are the variants of a setting in the order of their runs, without those that are left out there.
func (c *Config) turns(setting int) []int {
	var run []int
	for v := range c.Variants {
		if !slices.ContainsFunc(c.LeftOut, func(l LeftOut) bool {
			return l.Setting == setting && l.Variant == c.Variants[v].Name
		}) {
			run = append(run, v)
		}
	}
	order := runOrder(len(run), c.Repeat)
	for i, at := range order {
		order[i] = run[at]
	}
	return order
}

// countRuns counts the runs of all settings.
func (c *Config) countRuns() (n int) {
	for i := range c.Settings {
		n += len(c.turns(i))
	}
	return n
}

// countAt is how many runs there are at a setting.
func (r *Report) countAt(setting int) (n int) {
	for i := range r.Runs {
		if r.Runs[i].Setting == setting {
			n++
		}
	}
	return n
}

// checkLeftOut reports what is wrong with what is left out.
func (c *Config) checkLeftOut() error {
	for i, l := range c.LeftOut {
		switch {
		case l.Setting < 0 || l.Setting >= len(c.Settings):
			return fmt.Errorf("%s is left out at setting %d of %d", l.Variant, l.Setting, len(c.Settings))
		case !slices.ContainsFunc(c.Variants, func(v Variant) bool { return v.Name == l.Variant }):
			return fmt.Errorf("there is no variant %s that could be left out", l.Variant)
		case l.Because == "":
			return fmt.Errorf("%s is left out at %s without a reason", l.Variant, c.Settings[l.Setting])
		case slices.ContainsFunc(c.LeftOut[:i], func(o LeftOut) bool {
			return o.Setting == l.Setting && o.Variant == l.Variant
		}):
			return fmt.Errorf("%s is left out twice at %s", l.Variant, c.Settings[l.Setting])
		}
	}
	if c.countRuns() == 0 {
		return errors.New("all variants are left out at all settings")
	}
	return nil
}
