package results

// This file compares two series of the same kind: is the newer one slower than the older one?

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"tensorcast/experiments/harm"
	"tensorcast/experiments/pressure"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// ErrNotComparable says that two series have nothing in common that could be compared.
var ErrNotComparable = errors.New("the two series cannot be compared")

// Verdict says what two samples of runs tell about a difference.
type Verdict string

// The verdicts. Faster and Slower mean that every run of one series is beyond every run of the other.
const (
	Faster  Verdict = "faster"
	Slower  Verdict = "slower"
	Same    Verdict = "not told apart" // the ranges of the runs overlap
	TooFew  Verdict = "too few runs"   // a series has only one run there
	Unequal Verdict = "not compared"   // the variants differ in more than their builds, or one of them did not finish
)

// Change is how one variant did at one setting in both series. Speeds are tokens per second.
type Change struct {
	Setting string
	Variant string
	Old     stats.Spread
	New     stats.Spread
	// Ratio is the new median divided by the old one; Low and High are the least and the largest ratio of a new run to
	// an old one. They are 0 if one of the medians is.
	Ratio, Low, High float64
	Verdict          Verdict
}

// Comparison is what came out of comparing two series.
type Comparison struct {
	// Differences are what else differs than the build, in words: a difference in speed may come from it.
	Differences []string
	Changes     []Change
	// Remarks name the settings and variants that only one of the series has, and those of which another number of
	// runs did not finish.
	Remarks []string

	old, now Named
	measure  string // what is compared
}

// IsSlower reports whether any variant became slower at any setting.
func (c *Comparison) IsSlower() bool {
	return slices.ContainsFunc(c.Changes, func(at Change) bool { return at.Verdict == Slower })
}

// Compare compares two series of the kind [Pressure] or [Harm], at the settings and with the variants that both have.
// Speeds are those of the steady state where both series have one, which is counted in both after as many tokens as in
// the older one. The error wraps [ErrNotComparable] if the kinds or the models differ, or nothing is in common.
func Compare(old, now Named) (*Comparison, error) {
	if old.Kind != now.Kind {
		return nil, fmt.Errorf("%w: %s is of lab %s and %s of lab %s", ErrNotComparable, old.Name, old.Kind, now.Name,
			now.Kind)
	}
	c := &Comparison{old: old, now: now}
	c.compareMachines()
	var before, after *samples
	var err error
	switch old.Kind {
	case Pressure:
		before, after, err = c.samplePressure()
	case Harm:
		before, after, err = c.sampleHarm()
	default:
		err = fmt.Errorf("%w: series of lab %s have no runs at settings", ErrNotComparable, old.Kind)
	}
	if err != nil {
		return nil, err
	}
	c.compareSamples(before, after)
	if len(c.Changes) == 0 {
		return nil, fmt.Errorf("%w: no setting and variant is in both", ErrNotComparable)
	}
	return c, nil
}

// compareMachines notes in what the machines differ.
func (c *Comparison) compareMachines() {
	a, b := c.old.Machine, c.now.Machine
	for _, d := range []struct {
		what     string
		old, now any
	}{
		{"processor", a.CPUName(), b.CPUName()},
		{"processors", a.CPUs, b.CPUs},
		{"memory in MiB", a.Memory >> 20, b.Memory >> 20},
		{"kernel", a.Kernel, b.Kernel},
		{"version of control groups", a.CgroupVersion, b.CgroupVersion},
	} {
		c.note(d.what, d.old, d.now)
	}
	if c.old.Disk == nil || c.now.Disk == nil {
		return
	}
	x, y := medianOrZero(c.old.Disk.Readings), medianOrZero(c.now.Disk.Readings)
	// Readings of the same disk differ by some per cent from hour to hour.
	if x > 0 && y > 0 && math.Abs(math.Log(y/x)) > math.Log(1.1) {
		c.note("disk by itself in MiB/s", int64(x)>>20, int64(y)>>20)
	}
}

// note notes that something is not the same in both series.
func (c *Comparison) note(what string, old, now any) {
	if old != now {
		c.Differences = append(c.Differences, fmt.Sprintf("%s: %v, now %v", what, old, now))
	}
}

func medianOrZero(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return stats.Median(values)
}

// samples are the speeds of a series' finished runs.
type samples struct {
	keys []sampleKey // in the report's order
	of   map[sampleKey]*sample
}

// sampleKey is a setting and a variant.
type sampleKey struct{ setting, variant string }

type sample struct {
	speeds []float64
	failed int // runs that did not finish
}

func (s *samples) add(key sampleKey, finished bool, speed float64) {
	if s.of == nil {
		s.of = map[sampleKey]*sample{}
	}
	at := s.of[key]
	if at == nil {
		at = new(sample)
		s.of[key], s.keys = at, append(s.keys, key)
	}
	if finished && speed > 0 {
		at.speeds = append(at.speeds, speed)
	} else {
		at.failed++
	}
}

// samplePressure takes the runs of two series of lab pressure.
func (c *Comparison) samplePressure() (before, after *samples, err error) {
	old, err := pressure.ReadReport(c.old.Report, -1)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", c.old.Name, err)
	}
	now, err := pressure.ReadReport(c.now.Report, old.Skip)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", c.now.Name, err)
	}
	if old.Model.TokenBytes != now.Model.TokenBytes || old.Model.Bytes != now.Model.Bytes {
		return nil, nil, fmt.Errorf("%w: the models differ (%s and %s)", ErrNotComparable,
			filepath.Base(old.Model.Path), filepath.Base(now.Model.Path))
	}
	c.note("limit on what the disk may deliver in MiB/s", old.Throttle>>20, now.Throttle>>20)
	steady := true
	for _, r := range []*pressure.Report{old, now} {
		for i := range r.Runs {
			if run := &r.Runs[i]; run.Outcome == pressure.Finished && run.Steady == nil {
				steady = false
			}
		}
	}
	c.measure = "tok/s"
	if steady {
		c.measure = fmt.Sprintf("tok/s in the steady state (after token %d)", old.Skip)
	}
	take := func(r *pressure.Report) *samples {
		s := new(samples)
		for i := range r.Runs {
			run := &r.Runs[i]
			at := r.Results[run.Setting]
			speed := run.TokS
			if steady && run.Steady != nil {
				speed = run.Steady.TokS
			}
			asked := at.Setting
			asked.Readahead = at.ReadaheadKiB
			s.add(sampleKey{asked.String(), run.Variant}, run.Outcome == pressure.Finished, speed)
		}
		return s
	}
	for _, a := range old.Variants {
		for _, b := range now.Variants {
			if a.Name == b.Name {
				c.note("helper of "+a.Name, a.Helper+a.Launcher, b.Helper+b.Launcher)
				c.note("target's flags of "+a.Name, a.Flags, b.Flags)
			}
		}
	}
	c.note("tokens of a run", tokensOf(old), tokensOf(now))
	return take(old), take(now), nil
}

// tokensOf is how many tokens the first finished run generated.
func tokensOf(r *pressure.Report) int {
	for i := range r.Runs {
		if r.Runs[i].Outcome == pressure.Finished {
			return len(r.Runs[i].TokenMs)
		}
	}
	return 0
}

// sampleHarm takes the runs of two series of lab harm.
func (c *Comparison) sampleHarm() (before, after *samples, err error) {
	var reports [2]*harm.Report
	var taken [2]*samples
	for i, d := range []Named{c.old, c.now} {
		r, err := d.Open()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", d.Name, err)
		}
		reports[i] = r.(*harm.Report)
		s := new(samples)
		for j := range reports[i].Runs {
			run := &reports[i].Runs[j]
			variant := "without a helper"
			if run.Helped {
				variant = "with a helper"
			}
			s.add(sampleKey{fmt.Sprintf("%s at %g", run.Scene, run.X), variant}, run.Outcome == harm.Finished, run.TokS)
		}
		taken[i] = s
	}
	old, now := reports[0], reports[1]
	if old.TokenBytes != now.TokenBytes || old.ModelBytes != now.ModelBytes {
		return nil, nil, fmt.Errorf("%w: the models differ (%s and %s)", ErrNotComparable, filepath.Base(old.Model),
			filepath.Base(now.Model))
	}
	c.measure = "tok/s of runs that finished"
	c.note("helper", old.Helper, now.Helper)
	c.note("tokens of a run", len(old.TokenIDs), len(now.TokenIDs))
	c.note("seed", old.Seed, now.Seed)
	c.note("harm", old.Harm(), now.Harm())
	return taken[0], taken[1], nil
}

// compareSamples compares what both series have, and notes what only one has.
func (c *Comparison) compareSamples(before, after *samples) {
	missing := func(key sampleKey, in Named) {
		c.Remarks = append(c.Remarks, fmt.Sprintf("%s, %s: only in %s", key.setting, key.variant, in.Name))
	}
	for _, key := range before.keys {
		now := after.of[key]
		if now == nil {
			missing(key, c.old)
			continue
		}
		old := before.of[key]
		if old.failed != now.failed {
			c.Remarks = append(c.Remarks, fmt.Sprintf("%s, %s: %d of %d runs did not finish, now %d of %d", key.setting,
				key.variant, old.failed, old.failed+len(old.speeds), now.failed, now.failed+len(now.speeds)))
		}
		c.Changes = append(c.Changes, compareSample(key, old, now))
	}
	for _, key := range after.keys {
		if before.of[key] == nil {
			missing(key, c.now)
		}
	}
}

func compareSample(key sampleKey, old, now *sample) Change {
	change := Change{Setting: key.setting, Variant: key.variant, Old: stats.Describe(old.speeds),
		New: stats.Describe(now.speeds)}
	a, b := change.Old, change.New
	if a.N > 0 && b.N > 0 {
		change.Ratio, change.Low, change.High = b.Median/a.Median, b.Min/a.Max, b.Max/a.Min
	}
	switch {
	case a.N == 0 || b.N == 0 || old.failed != now.failed:
		change.Verdict = Unequal
	case a.N < 2 || b.N < 2:
		change.Verdict = TooFew
	case change.High < 1:
		change.Verdict = Slower
	case change.Low > 1:
		change.Verdict = Faster
	default:
		change.Verdict = Same
	}
	return change
}

// Document is the comparison for people.
func (c *Comparison) Document() tabular.Document {
	lines := tabular.Lines{
		fmt.Sprintf("old: %s, %s, commit %s", c.old.Name, c.old.Started.UTC().Format("2006-01-02 15:04"),
			c.old.CommitText()),
		fmt.Sprintf("new: %s, %s, commit %s", c.now.Name, c.now.Started.UTC().Format("2006-01-02 15:04"),
			c.now.CommitText()),
	}
	for _, d := range c.Differences {
		lines = append(lines, "differs: "+d)
	}
	t := &tabular.Table{Title: c.measure,
		Columns: tabular.Left("setting", "variant", "old", "min..max", "new", "min..max", "new/old", "min..max",
			"verdict")}
	for i := range c.Changes {
		at := &c.Changes[i]
		t.Rows = append(t.Rows, slices.Concat([]string{at.Setting, at.Variant}, spreadCells(at.Old),
			spreadCells(at.New), spreadCells(stats.Spread{N: min(at.Old.N, at.New.N), Median: at.Ratio, Min: at.Low,
				Max: at.High}), []string{string(at.Verdict)}))
	}
	remarks := tabular.Lines{"Slower than the last? " + c.answer()}
	if len(c.Differences) > 0 {
		remarks = append(remarks, "What differs above may be the reason for a difference in speed.")
	}
	return tabular.Document{lines, t, append(remarks, c.Remarks...)}
}

// answer answers whether the newer series is slower.
func (c *Comparison) answer() string {
	open := 0
	for i := range c.Changes {
		if v := c.Changes[i].Verdict; v == TooFew || v == Unequal {
			open++
		}
	}
	switch {
	case c.IsSlower():
		return "YES: where the verdict is \"slower\", every new run is slower than every old one."
	case open == len(c.Changes):
		return "NOT KNOWN: nothing could be compared. Take two runs or more of each variant at each setting."
	case open > 0:
		return fmt.Sprintf("No, where there is a verdict. There is none for %d of %d rows.", open, len(c.Changes))
	}
	return "No: nowhere is every new run slower than every old one."
}

// spreadCells are the median and the range of a sample.
func spreadCells(s stats.Spread) []string {
	if s.N == 0 {
		return []string{"-", ""}
	}
	return []string{fmt.Sprintf("%.3g", s.Median), fmt.Sprintf("%.3g..%.3g", s.Min, s.Max)}
}
