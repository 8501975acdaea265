package pressure

// This file summarises the runs: medians and spreads by setting and variant, the bound, the noise. It formats the tables.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tensorcast/internal/host"
	"tensorcast/internal/proc"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/moe"
)

// mib is the unit of amounts in tables, in bytes.
const mib = 1 << 20

// Report is the result of a series.
type Report struct {
	Started time.Time `json:"started"`
	Host    host.Info `json:"host"`
	Disk    DiskInfo  `json:"disk"`
	Model   ModelInfo `json:"model"`
	Target  []string  `json:"target"`
	// Interrupted says that some runs, and the measurements after them, are missing.
	Interrupted bool `json:"interrupted,omitempty"`

	Skip     int   `json:"skip"`                                // tokens at the beginning of a run that are its start-up
	Throttle int64 `json:"throttle_bytes_per_second,omitempty"` // which target and helper may read together; 0: no limit
	Own      int64 `json:"own_bytes"`                           // the largest amount of the target's memory, without page cache of the model

	// Seconds per token with everything in memory, with the model in single pages and in large folios: the lesser of before and after the
	// runs, in the steady state if the runs have one; 0 if not measured.
	ComputePages  float64 `json:"t_compute_pages_s"`
	ComputeFolios float64 `json:"t_compute_folios_s"`
	NoFolios      string  `json:"no_folios,omitempty"` // why it was not measured in folios
	Compute       float64 `json:"t_compute_s"`         // the lesser of the two

	Grid     DiskResult    `json:"disk_grid"`
	Readings []DiskReading `json:"disk_readings"`         // in chronological order
	DiskBW   float64       `json:"disk_bytes_per_second"` // the median of the readings
	// Beside are readings while the target computed with all in memory, and BesideBW is their median; 0 if there are none. DiskCost is how much longer, in seconds, the target's tokens took for each byte
	// that was read meanwhile, the median too: a virtual disk needs the processors, and both read and write memory.
	Beside   []BesideReading `json:"disk_beside_readings"`
	BesideBW float64         `json:"disk_beside_bytes_per_second"`
	DiskCost float64         `json:"disk_cost_s_per_byte"`
	BW       float64         `json:"bw_bytes_per_second"` // that which the bound is computed from: the disk's, or the throttle's if that is less

	Text      string    `json:"text"`      // text of the first run without a limit
	Unlimited []Run     `json:"unlimited"` // the cold run, and those with everything in memory before and after the series
	Runs      []Run     `json:"runs"`      // in chronological order
	Variants  []Variant `json:"variants"`
	Results   []Result  `json:"results"` // by setting
	Least     []Least   `json:"least"`   // by variant but the first

	Routes *Routes `json:"routes,omitempty"` // of a mixture of experts
	routed *moe.Trace
}

// Least is where a variant gains least over the first one, or loses most: over all tokens, and in the steady state. Speedups are medians of the rounds, 0 if there are none; settings are indices of
// [Report.Results].
type Least struct {
	Variant       string  `json:"variant"`
	Speedup       float64 `json:"speedup"`
	Setting       int     `json:"setting"`
	Steady        float64 `json:"steady_speedup"`
	SteadySetting int     `json:"steady_setting"`
}

// ErrNotReport says that data are no report of a series.
var ErrNotReport = errors.New("not a saved series")

// ReadReport parses a report that was saved as JSON, and computes again what follows from its runs and readings, with another number of tokens
// as the start-up if skip is not negative. The error wraps [ErrNotReport].
func ReadReport(data []byte, skip int) (*Report, error) {
	r := new(Report)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReport, err)
	}
	switch {
	case len(r.Variants) == 0 || len(r.Results) == 0:
		return nil, fmt.Errorf("%w: it has no variants or no results (an older version saved less)", ErrNotReport)
	case r.Model.TokenBytes <= 0 || r.Own < 0:
		return nil, fmt.Errorf("%w: a token reads %d bytes, and %d are the target's own", ErrNotReport, r.Model.TokenBytes, r.Own)
	}
	for _, run := range r.Runs {
		if run.Setting < 0 || run.Setting >= len(r.Results) {
			return nil, fmt.Errorf("%w: a run at setting %d of %d", ErrNotReport, run.Setting, len(r.Results))
		}
	}
	for _, run := range r.Unlimited {
		if run.Limit != 0 {
			return nil, fmt.Errorf("%w: a run without a limit has one of %d bytes", ErrNotReport, run.Limit)
		}
	}
	if skip >= 0 {
		r.Skip = skip
	}
	if err := r.replay(context.Background()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReport, err)
	}
	r.summarise()
	return r, nil
}

// Result is what came out at one setting.
type Result struct {
	Setting      Setting `json:"setting"`
	Limit        int64   `json:"limit_bytes"`
	ReadaheadKiB int     `json:"readahead_kib"` // of the disk during the runs
	X            float64 `json:"x"`             // share of the weights that fits beside the target's own memory
	// Bound is the largest number of tokens per second that any strategy can reach. It is 0 if unknown: with experts, the least number of
	// bytes depends on the router's choices. SteadyBound is that of the steady state, which differs from it only with experts.
	Bound       float64   `json:"bound_tok_s"`
	SteadyBound float64   `json:"steady_bound_tok_s"`
	Experts     *Experts  `json:"experts,omitempty"` // of a mixture of experts whose routes are known
	Summaries   []Summary `json:"summaries"`         // by variant
	Noise       []Noise   `json:"noise"`
}

// DiskReading is one measurement of the disk, by the settings that were the fastest of the grid. Its value is that of the best.
type DiskReading struct {
	AfterRuns int        `json:"after_runs"` // how many runs under a limit were before it
	Result    DiskResult `json:"result"`
}

// DiskInfo describes the disk that the model is on.
type DiskInfo struct {
	Name               string `json:"name"`
	ReadaheadKiBBefore int    `json:"readahead_kib_before"` // before the series
}

// ModelInfo describes the model.
type ModelInfo struct {
	Path       string `json:"path"`
	Bytes      int64  `json:"bytes"`
	TokenBytes int64  `json:"token_bytes"` // M
	Routed     bool   `json:"routed"`      // tokens are routed to experts
}

// Summary summarises the runs of one variant. The spreads are over finished runs only.
type Summary struct {
	Variant  string `json:"variant"`
	Runs     int    `json:"runs"`
	Finished int    `json:"finished"`
	Killed   int    `json:"oom_killed"`
	OOMKills int64  `json:"oom_kills"` // processes killed for lack of memory, including helpers
	TextSame int    `json:"text_same"`
	Disagree int    `json:"disagree"`

	TokS    stats.Spread `json:"tok_s"`
	P5      stats.Spread `json:"p5_tok_s"`
	Bytes   stats.Spread `json:"bytes_per_token"`
	OnDisk  stats.Spread `json:"disk_bytes_per_token"`
	Faults  stats.Spread `json:"major_faults_per_token"`
	Some    stats.Spread `json:"pressure_some_s"`
	Full    stats.Spread `json:"pressure_full_s"`
	Speedup stats.Spread `json:"speedup"`  // compared with the first variant in the same round
	OfBound float64      `json:"of_bound"` // median tok/s divided by the bound; 0 if that is unknown

	// The same of the steady state; without values if no run has one.
	Steady        stats.Spread `json:"steady_tok_s"`
	SteadyBytes   stats.Spread `json:"steady_bytes_per_token"`
	SteadyFaults  stats.Spread `json:"steady_major_faults_per_token"`
	SteadyOfBound float64      `json:"steady_of_bound"`
	StartShare    stats.Spread `json:"startup_share"` // of the time of all tokens
	SteadySpeedup stats.Spread `json:"steady_speedup"`

	// What follows is of the steady state if the runs have one, else of all tokens. OfCausal is tok/s divided by what the best policy reaches that does not know
	// the future; 0 if unknown.
	OfCausal    float64      `json:"of_causal"`
	Stall       stats.Spread `json:"stall_ms_per_token"`           // a token's time beyond computing
	Demand      stats.Spread `json:"demand_bytes_per_token"`       // read for experts that had been chosen; without values if the helper does not tell
	Speculative stats.Spread `json:"speculative_bytes_per_token"`  // read for experts before
	System      stats.Spread `json:"helper_system_us_per_mib"`     // of the helper's processor time in the kernel, for what it reads; without values if it reads next to nothing
	Expected    stats.Spread `json:"helper_expected_tok_s"`        // of the helper's plan; without values if it does not tell
	OfExpected  float64      `json:"of_helper_expected,omitempty"` // tok/s divided by that
}

// Noise compares two variants that are identical except for their names: the difference is the instrument's noise.
type Noise struct {
	A          string  `json:"a"`
	B          string  `json:"b"`
	Difference float64 `json:"difference"` // difference of the medians of tok/s, relative to their mean
	Spread     float64 `json:"spread"`     // max - min of the variant that spreads more, relative to the same mean
}

// Within reports whether the difference is less than the spread.
func (n Noise) Within() bool { return n.Difference <= n.Spread }

// summarise computes all that follows from the runs and readings. It may be called again.
func (r *Report) summarise() {
	for _, runs := range [][]Run{r.Unlimited, r.Runs} {
		for i := range runs {
			runs[i].Steady = runs[i].steadyAfter(r.Skip)
		}
	}
	r.ComputePages, r.ComputeFolios = r.compute(Pages), r.compute(Folios)
	if r.Compute = r.ComputePages; r.ComputeFolios > 0 && (r.Compute == 0 || r.ComputeFolios < r.Compute) {
		r.Compute = r.ComputeFolios
	}
	r.DiskBW = medianOf(r.Readings)
	r.summariseBeside()
	if r.BW = r.DiskBW; r.Throttle > 0 {
		r.BW = min(r.BW, float64(r.Throttle))
	}
	steady := r.hasSteady()
	for i := range r.Results {
		r.summariseAt(i, steady)
	}
	r.Least = nil
	for v := 1; v < len(r.Variants); v++ {
		least := Least{Variant: r.Variants[v].Name}
		for i := range r.Results {
			s := &r.Results[i].Summaries[v]
			if m := s.Speedup.Median; m > 0 && (least.Speedup == 0 || m < least.Speedup) {
				least.Speedup, least.Setting = m, i
			}
			if m := s.SteadySpeedup.Median; m > 0 && (least.Steady == 0 || m < least.Steady) {
				least.Steady, least.SteadySetting = m, i
			}
		}
		if least.Speedup > 0 {
			r.Least = append(r.Least, least)
		}
	}
}

// BesideReading is a reading of the disk while the target generated so many tokens, with all in memory.
type BesideReading struct {
	DiskReading
	Seconds float64 `json:"seconds"`
	Tokens  float64 `json:"tokens"`
}

// summariseBeside computes what follows from readings beside the target.
func (r *Report) summariseBeside() {
	var disk []DiskReading
	var costs []float64
	for _, b := range r.Beside {
		disk = append(disk, b.DiskReading)
		var bytes int64
		for _, p := range b.Result.Points {
			bytes += p.Bytes
		}
		if r.Compute > 0 && bytes > 0 {
			costs = append(costs, max(b.Seconds-b.Tokens*r.Compute, 0)/float64(bytes))
		}
	}
	r.BesideBW, r.DiskCost = medianOf(disk), 0
	if len(costs) > 0 {
		r.DiskCost = stats.Median(costs)
	}
}

// besideBound is how many tokens per second there are at most if a token reads missing bytes, by what the disk delivers beside computing and what that costs the target. A token computes for T if nothing is read, and for
// T' while the disk is read at its bandwidth beside computing, B'. Reading takes missing / B' of a token's time t, in which t * B' >= missing, and (missing / B') / T' + (t - missing / B') / T = 1. So
// t = T + missing * (1 - T / T') / B', and the second factor is DiskCost.
func (r *Report) besideBound(missing float64) float64 {
	return 1 / max(missing/r.BesideBW, r.Compute+missing*r.DiskCost)
}

// medianOf is the median of readings in bytes per second, 0 if there are none.
func medianOf(readings []DiskReading) float64 {
	var all []float64
	for i := range readings {
		all = append(all, readings[i].Result.Best.BytesPerSecond)
	}
	if len(all) == 0 {
		return 0
	}
	return stats.Median(all)
}

// compute is the least time per token of the runs in memory in that unit, in seconds; 0 if there are none.
func (r *Report) compute(in Unit) float64 {
	var least float64
	for i := range r.Unlimited {
		u := &r.Unlimited[i]
		speed := u.TokS
		if u.Steady != nil {
			speed = u.Steady.TokS
		}
		if u.In == in && speed > 0 && (least == 0 || 1/speed < least) {
			least = 1 / speed
		}
	}
	return least
}

// summariseAt computes the result of a setting. steadyToo: the runs have a steady state.
func (r *Report) summariseAt(setting int, steadyToo bool) {
	at := &r.Results[setting]
	at.X = float64(at.Limit-r.Own) / float64(r.Model.TokenBytes)
	at.Bound = r.bound(at.X)
	at.SteadyBound = at.Bound
	if at.Experts != nil {
		r.boundExperts(at.Experts)
		at.Bound, at.SteadyBound = at.Experts.Whole.Bound, at.Experts.Steady.Bound
	}
	at.Summaries, at.Noise = nil, nil
	base, steadyBase := map[int]float64{}, map[int]float64{} // tok/s of the first variant by round
	for _, run := range r.Runs {
		if run.Setting == setting && run.Variant == r.Variants[0].Name && run.Outcome == Finished {
			base[run.Round] = run.TokS
			if run.Steady != nil {
				steadyBase[run.Round] = run.Steady.TokS
			}
		}
	}
	for _, v := range r.Variants {
		s := Summary{Variant: v.Name}
		var tokS, p5, bytes, onDisk, faults, some, full, speedup, steady, steadyBytes, steadyFaults, steadySpeedup, start, stall, demand, speculative, system, expected []float64
		for _, run := range r.Runs {
			if run.Setting != setting || run.Variant != v.Name {
				continue
			}
			s.Runs++
			s.OOMKills += run.OOMKills
			if run.Outcome == Killed {
				s.Killed++
			}
			if run.Outcome != Finished {
				continue
			}
			s.Finished++
			if run.TextSame {
				s.TextSame++
			}
			if run.Disagree {
				s.Disagree++
			}
			tokS, p5 = append(tokS, run.TokS), append(p5, run.P5)
			bytes, onDisk = append(bytes, run.BytesPerToken), append(onDisk, run.DiskBytesPerToken)
			faults = append(faults, run.FaultsPerToken)
			some, full = append(some, run.Some.Seconds()), append(full, run.Full.Seconds())
			if b := base[run.Round]; b > 0 {
				speedup = append(speedup, run.TokS/b)
			}
			if run.Steady != nil {
				steady, start = append(steady, run.Steady.TokS), append(start, run.Steady.StartShare)
				steadyBytes, steadyFaults = append(steadyBytes, run.Steady.BytesPerToken), append(steadyFaults, run.Steady.FaultsPerToken)
				if b := steadyBase[run.Round]; b > 0 {
					steadySpeedup = append(steadySpeedup, run.Steady.TokS/b)
				}
			}
			if r.Compute > 0 {
				stall = append(stall, r.stall(&run, steadyToo))
			}
			if d, ahead := r.demand(&run, steadyToo); d >= 0 {
				demand, speculative = append(demand, d), append(speculative, ahead)
			}
			if read := run.HelperPerToken / mib; read >= 1 {
				system = append(system, run.HelperSystemMs*1000/read)
			}
			if h := run.Helper; h != nil && h.Told != nil && h.Told.Expected > 0 {
				expected = append(expected, h.Told.Expected)
			}
		}
		s.TokS, s.P5, s.Bytes, s.OnDisk, s.Faults = stats.Describe(tokS), stats.Describe(p5), stats.Describe(bytes), stats.Describe(onDisk), stats.Describe(faults)
		s.Some, s.Full, s.Speedup = stats.Describe(some), stats.Describe(full), stats.Describe(speedup)
		s.Steady, s.SteadyBytes, s.SteadyFaults, s.StartShare = stats.Describe(steady), stats.Describe(steadyBytes), stats.Describe(steadyFaults), stats.Describe(start)
		s.SteadySpeedup = stats.Describe(steadySpeedup)
		s.Stall, s.Demand, s.Speculative, s.Expected = stats.Describe(stall), stats.Describe(demand), stats.Describe(speculative), stats.Describe(expected)
		s.System = stats.Describe(system)
		speed := s.speed(steadyToo).Median
		if at.Bound > 0 {
			s.OfBound = s.TokS.Median / at.Bound
		}
		if at.SteadyBound > 0 {
			s.SteadyOfBound = s.Steady.Median / at.SteadyBound
		}
		if c := at.causal(steadyToo); c != nil && c.CausalTokS > 0 {
			s.OfCausal = speed / c.CausalTokS
		}
		if s.Expected.N > 0 {
			s.OfExpected = speed / s.Expected.Median
		}
		at.Summaries = append(at.Summaries, s)
	}
	for i, a := range r.Variants {
		for j, b := range r.Variants[:i] {
			if same := (Variant{b.Name, a.Helper, a.Launcher, a.Flags}); same != b {
				continue
			}
			sa, sb := at.Summaries[i].TokS, at.Summaries[j].TokS
			if mean := (sa.Median + sb.Median) / 2; mean > 0 && sa.N > 0 && sb.N > 0 {
				at.Noise = append(at.Noise, Noise{b.Name, a.Name, math.Abs(sa.Median-sb.Median) / mean, max(sa.Range(), sb.Range()) / mean})
			}
		}
	}
}

// bound is min(1/T_compute, BW/(M-R)) where R = x * M; 0 if unknown.
func (r *Report) bound(x float64) float64 {
	if r.Model.Routed || r.Compute <= 0 {
		return 0
	}
	most := 1 / r.Compute
	if missing := (1 - x) * float64(r.Model.TokenBytes); missing > 0 {
		most = min(most, r.BW/missing)
	}
	return most
}

// causal is what has to be read of experts in the steady state, or for all tokens; nil if it is not known.
func (at *Result) causal(steady bool) *Reads {
	switch {
	case at.Experts == nil:
		return nil
	case steady:
		return &at.Experts.Steady
	}
	return &at.Experts.Whole
}

// tableColumn is a column of a setting's table.
type tableColumn struct {
	name      string
	of        func(s *Summary) string
	unlimited func(u *Run) string // of the run without a limit
}

// columns are the columns of a setting's table. Those of experts, and of what helpers expect, are there only where there is something to tell.
func (r *Report) columns(at *Result) []tableColumn {
	// ofSteady is a number of a run's steady state, if it has one.
	ofSteady := func(of func(*Steady) string) func(*Run) string {
		return func(u *Run) string {
			if u.Steady == nil {
				return "-"
			}
			return of(u.Steady)
		}
	}
	known := func(share float64) string {
		if share > 0 {
			return percent(share)
		}
		return "-"
	}
	nothing := func(*Run) string { return "" }
	all := []tableColumn{
		{"variant", func(s *Summary) string { return s.Variant }, func(u *Run) string { return "(no limit, in " + string(u.In) + ")" }},
		{"tok/s", func(s *Summary) string { return median(s.TokS, 1) }, func(u *Run) string { return number(u.TokS) }},
		{"min..max", func(s *Summary) string { return span(s.TokS) }, nothing},
		{"steady tok/s", func(s *Summary) string { return median(s.Steady, 1) }, ofSteady(func(s *Steady) string { return number(s.TokS) })},
		{"min..max", func(s *Summary) string { return span(s.Steady) }, nothing},
		{"start-up", func(s *Summary) string {
			if s.StartShare.N == 0 {
				return "-"
			}
			return percent(s.StartShare.Median)
		}, ofSteady(func(s *Steady) string { return percent(s.StartShare) })},
		{"p5", func(s *Summary) string { return median(s.P5, 1) }, func(u *Run) string { return number(u.P5) }},
		{"MiB/token", func(s *Summary) string { return median(s.Bytes, mib) }, func(u *Run) string { return number(u.BytesPerToken / mib) }},
		{"steady MiB/token", func(s *Summary) string { return median(s.SteadyBytes, mib) }, ofSteady(func(s *Steady) string { return number(s.BytesPerToken / mib) })},
		{"faults/token", func(s *Summary) string { return median(s.Faults, 1) }, func(u *Run) string { return number(u.FaultsPerToken) }},
		{"steady faults/token", func(s *Summary) string { return median(s.SteadyFaults, 1) }, ofSteady(func(s *Steady) string { return number(s.FaultsPerToken) })},
		{"stalled some/full s", func(s *Summary) string {
			if s.Some.N == 0 {
				return "-"
			}
			return number(s.Some.Median) + " / " + number(s.Full.Median)
		}, nothing},
		{"speedup", func(s *Summary) string {
			if s.Speedup.N == 0 {
				return "-"
			}
			return number(s.Speedup.Median) + "x"
		}, nothing},
		{"min..max", func(s *Summary) string { return span(s.Speedup) }, nothing},
		{"of bound", func(s *Summary) string { return known(s.OfBound) }, nothing},
		{"steady of bound", func(s *Summary) string { return known(s.SteadyOfBound) }, nothing},
	}
	if at.Experts != nil {
		all = append(all,
			tableColumn{"of causal bound", func(s *Summary) string { return known(s.OfCausal) }, nothing},
			tableColumn{"stall ms/token", func(s *Summary) string { return median(s.Stall, 1) }, nothing},
			tableColumn{"demand MiB/token", func(s *Summary) string { return median(s.Demand, mib) }, nothing},
			tableColumn{"speculative MiB/token", func(s *Summary) string { return median(s.Speculative, mib) }, nothing},
		)
	}
	if slices.ContainsFunc(at.Summaries, func(s Summary) bool { return s.System.N > 0 }) {
		all = append(all, tableColumn{"helper's kernel us/MiB", func(s *Summary) string { return median(s.System, 1) }, nothing})
	}
	if slices.ContainsFunc(at.Summaries, func(s Summary) bool { return s.Expected.N > 0 }) {
		all = append(all,
			tableColumn{"expected tok/s", func(s *Summary) string { return median(s.Expected, 1) }, nothing},
			tableColumn{"of expected", func(s *Summary) string { return known(s.OfExpected) }, nothing},
		)
	}
	return append(all,
		tableColumn{"same text", func(s *Summary) string { return fmt.Sprintf("%d of %d", s.TextSame, s.Runs) }, nothing},
		tableColumn{"OOM-killed", func(s *Summary) string { return fmt.Sprintf("%d of %d", s.Killed, s.Runs) }, nothing},
	)
}

// table is the table of a setting.
func (r *Report) table(at *Result) *tabular.Table {
	columns := r.columns(at)
	t := &tabular.Table{Title: r.title(at)}
	for _, c := range columns {
		t.Columns = append(t.Columns, tabular.Left(c.name)...)
	}
	add := func(cell func(c *tableColumn) string) {
		var row []string
		for i := range columns {
			row = append(row, cell(&columns[i]))
		}
		t.Rows = append(t.Rows, row)
	}
	for i := range r.Unlimited {
		// Of those in memory, the fastest.
		if u := &r.Unlimited[i]; u.In != "" && r.compute(u.In) == r.Compute {
			add(func(c *tableColumn) string { return c.unlimited(u) })
			break
		}
	}
	for i := range at.Summaries {
		add(func(c *tableColumn) string { return c.of(&at.Summaries[i]) })
	}
	return t
}

// span is the range of a sample; empty if it has no values.
func span(s stats.Spread) string {
	if s.N == 0 {
		return ""
	}
	return number(s.Min) + ".." + number(s.Max)
}

// median is the median of a sample in units; "-" if it has no values.
func median(s stats.Spread, unit float64) string {
	if s.N == 0 {
		return "-"
	}
	return number(s.Median / unit)
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// number formats v with three significant digits, without exponent.
func number(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "0"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error { return r.document().WriteText(w) }

// WriteMarkdown writes the report for a document.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.document().WriteMarkdown(w) }

func (r *Report) document() tabular.Document {
	d := tabular.Document{r.conditions()}
	for i := range r.Results {
		if at := &r.Results[i]; r.reached(i) {
			d = append(d, r.table(at))
		}
	}
	return append(d, r.overview(), r.remarks())
}

// reached reports whether there is a run at a setting: there may be none in an interrupted series.
func (r *Report) reached(setting int) bool {
	return slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Setting == setting })
}

func (r *Report) title(at *Result) string {
	text := fmt.Sprintf("%s: limit %s MiB, of which %s are left for the model", at.place(), number(float64(at.Limit)/mib), number(float64(at.Limit-r.Own)/mib))
	reads := at.causal(r.hasSteady())
	switch {
	case reads != nil && reads.Policy != "" && r.Compute > 0:
		text += fmt.Sprintf("; bound: %s tok/s = min(1/T_compute = %s, bandwidth / what Belady's rule reads, %s MiB a token); the best policy that does not know the future (%s) reads %s: %s tok/s",
			number(reads.Bound), number(1/r.Compute), number(reads.Least/mib), reads.Policy, number(reads.Causal/mib), number(reads.CausalTokS))
	case at.Experts == nil && at.Bound > 0:
		text += fmt.Sprintf("; bound: %s tok/s = min(1/T_compute = %s, bandwidth / missing bytes = %s)", number(at.Bound), number(1/r.Compute), r.diskBound(at))
		if missing := (1 - at.X) * float64(r.Model.TokenBytes); r.BesideBW > 0 && r.Throttle == 0 && missing > 0 {
			text += fmt.Sprintf(", or %s with what the disk delivers beside computing and takes from it", number(r.besideBound(missing)))
		}
	}
	return text
}

// place says what was set.
func (at *Result) place() string {
	return fmt.Sprintf("%s, readahead %d KiB", at.fits(), at.ReadaheadKiB)
}

// fits says how much of the model fits.
func (at *Result) fits() string {
	if at.Experts != nil {
		return at.share() + " of the experts fit"
	}
	return "x = " + at.share()
}

// share is the share of the weights, or of the experts, that fits.
func (at *Result) share() string {
	if at.Experts != nil {
		return percent(at.Experts.Share)
	}
	return fmt.Sprintf("%.2f", at.X)
}

// overview has a row for each setting; nil if there is only one.
func (r *Report) overview() *tabular.Table {
	t := &tabular.Table{}
	if len(r.Results) < 2 {
		return t
	}
	t.Title = "All settings: " + r.speedName()
	share := "x"
	if r.Routes != nil {
		share = "experts that fit"
	}
	t.Columns = slices.Concat(tabular.Right(share, "readahead KiB", "bound"), tabular.Left(names(r.Variants)...))
	for i := range r.Results {
		at := &r.Results[i]
		row := []string{at.share(), fmt.Sprint(at.ReadaheadKiB), "-"}
		bound := at.Bound
		if r.hasSteady() {
			bound = at.SteadyBound
		}
		if bound > 0 {
			row[2] = number(bound)
		}
		for j := range at.Summaries {
			speed := at.Summaries[j].speed(r.hasSteady())
			cell := median(speed, 1)
			if bound > 0 && speed.N > 0 {
				cell += " (" + percent(speed.Median/bound) + ")"
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// hasSteady reports whether all runs that finished have a steady state, so that they can be compared by it.
func (r *Report) hasSteady() bool {
	return !slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Outcome == Finished && run.Steady == nil })
}

// speed is the tok/s of the steady state, or of all tokens.
func (s *Summary) speed(steady bool) stats.Spread {
	if steady {
		return s.Steady
	}
	return s.TokS
}

// speedName says what speed returns.
func (r *Report) speedName() string {
	if r.hasSteady() && r.Skip > 0 {
		return fmt.Sprintf("tok/s in the steady state (after token %d)", r.Skip)
	}
	return "tok/s"
}

func names(variants []Variant) []string {
	var all []string
	for _, v := range variants {
		all = append(all, v.Name)
	}
	return all
}

// conditions describes the conditions under which the numbers were measured.
func (r *Report) conditions() tabular.Lines {
	var speeds []string
	for i := range r.Readings {
		speeds = append(speeds, number(r.Readings[i].Result.Best.BytesPerSecond/mib))
	}
	best := r.Grid.Best
	lines := tabular.Lines{
		fmt.Sprintf("model: %s, %s MiB; a token reads %s MiB; the target's own memory takes %s MiB", filepath.Base(r.Model.Path), number(float64(r.Model.Bytes)/mib),
			number(float64(r.Model.TokenBytes)/mib), number(float64(r.Own)/mib)),
		fmt.Sprintf("machine: %d x %s, %s GiB, Linux %s, cgroup v%d", r.Host.CPUs, r.Host.CPUName(), number(float64(r.Host.Memory)/(1<<30)), r.Host.Kernel, r.Host.CgroupVersion),
		fmt.Sprintf("disk: %s, %s MiB/s, the median of %d readings: %s (O_DIRECT; best of a grid: %d KiB, %d in flight)", r.Disk.Name, number(r.DiskBW/mib),
			len(speeds), strings.Join(speeds, ", "), best.Block>>10, best.Depth),
	}
	if r.BesideBW > 0 {
		lines = append(lines, fmt.Sprintf("beside the computing target the disk delivers %s MiB/s (%d readings), %s of that, and each MiB has the target compute %s us longer", number(r.BesideBW/mib), len(r.Beside),
			percent(r.BesideBW/r.DiskBW), number(r.DiskCost*mib*1e6)))
	}
	if r.Throttle > 0 {
		lines = append(lines, fmt.Sprintf("throttle: the runs may read %s MiB/s: their bandwidth is %s MiB/s", number(float64(r.Throttle)/mib), number(r.BW/mib)))
	}
	if r.Compute > 0 {
		lines = append(lines, "T_compute: "+r.computeText())
	}
	if n := r.Routes; n != nil {
		lines = append(lines, fmt.Sprintf("experts: %d in each of %d layers, %s MiB in all; every token reads %s MiB besides; the choices are those of a traced run of %d tokens", n.Experts, len(n.Bytes),
			number(float64(n.all())/mib), number(float64(n.Trunk)/mib), len(n.Chosen)-n.Prompt))
	} else if r.Model.Routed {
		lines = append(lines, "bound: not known: how many bytes must be read depends on the experts that the router takes")
	}
	return lines
}

// computeText tells both times, and which counts.
func (r *Report) computeText() string {
	ms := func(s float64) string { return number(1000*s) + " ms a token" }
	pages := ms(r.ComputePages) + " with the model in single pages"
	if r.ComputeFolios == 0 {
		if r.NoFolios == "" {
			return pages
		}
		return pages + "; in large folios not measured: " + r.NoFolios
	}
	kind := "large folios"
	for i := range r.Unlimited {
		l := r.Unlimited[i].Loaded
		switch {
		case r.Unlimited[i].In != Folios || l == nil:
		case l.Unknown != "":
			kind = "what should be large folios (" + l.Unknown + ")"
		default:
			kind = fmt.Sprintf("large folios (%s have 2 MiB)", percent(float64(l.Huge)/float64(max(l.Resident, 1))))
		}
	}
	faster := "folios"
	if r.ComputePages > 0 && r.ComputePages <= r.ComputeFolios {
		faster = "pages"
	}
	return fmt.Sprintf("%s, %s in %s: the bound is that of %s", pages, ms(r.ComputeFolios), kind, faster)
}

func (r *Report) diskBound(at *Result) string {
	if missing := (1 - at.X) * float64(r.Model.TokenBytes); missing > 0 {
		return number(r.BW / missing)
	}
	return "none: all fits"
}

// remarks are the notes that belong to the tables.
func (r *Report) remarks() tabular.Lines {
	var lines tabular.Lines
	if r.Interrupted {
		lines = append(lines, fmt.Sprintf("INTERRUPTED after %d runs: those that were to follow are missing, and what is measured after them.", len(r.Runs)))
	}
	repeats := 0
	for i := range r.Results {
		for _, s := range r.Results[i].Summaries {
			repeats = max(repeats, s.Runs)
		}
	}
	lines = append(lines, fmt.Sprintf("Medians over %d interleaved runs. MiB/token: read from disk on the control group's account while tokens were generated.", repeats))
	if r.hasSteady() && len(r.Runs) > 0 && r.Skip > 0 {
		text := fmt.Sprintf("Steady: without the first %d tokens.", r.Skip)
		if i := slices.IndexFunc(r.Runs, func(run Run) bool { return len(run.TokenMs) > 0 }); i >= 0 {
			text += fmt.Sprintf(" Start-up: the share of the time that these took; %s if they were as fast as the others.", percent(float64(r.Skip)/float64(len(r.Runs[i].TokenMs))))
		}
		lines = append(lines, text)
	} else if !r.hasSteady() {
		lines = append(lines, fmt.Sprintf("No steady state: there are runs with no more than the %d tokens of the start-up.", r.Skip))
	}
	if len(r.Variants) > 1 {
		lines = append(lines, fmt.Sprintf("Speedup: over %s in the same round.", r.Variants[0].Name))
	}
	if r.Routes != nil {
		lines = append(lines, "Stall: a token's time beyond T_compute, whoever helps. Demand: read for experts that had been chosen; speculative: read before that. A helper tells these of itself, over all tokens that it helped; without a helper all is demand.")
	}
	told := func(what func(*Summary) stats.Spread) bool {
		return slices.ContainsFunc(r.Results, func(at Result) bool {
			return slices.ContainsFunc(at.Summaries, func(s Summary) bool { return what(&s).N > 0 })
		})
	}
	if told(func(s *Summary) stats.Spread { return s.System }) {
		lines = append(lines, "Helper's kernel us/MiB: its processor time in the kernel while tokens were generated, for each MiB that it read.")
	}
	if told(func(s *Summary) stats.Spread { return s.Expected }) {
		lines = append(lines, "Expected: what the helper expects of its plan, as it tells at its end.")
	}
	for _, l := range r.Least {
		if len(r.Results) > 1 {
			text := fmt.Sprintf("Least speedup of %s: %sx (%s)", l.Variant, number(l.Speedup), r.Results[l.Setting].place())
			if l.Steady > 0 {
				text += fmt.Sprintf("; in the steady state %sx (%s)", number(l.Steady), r.Results[l.SteadySetting].place())
			}
			lines = append(lines, text+".")
		}
	}
	for i := range r.Results {
		if r.reached(i) {
			lines = append(lines, r.remarksAt(i)...)
		}
	}
	for _, u := range r.Unlimited {
		if !u.TextSame {
			lines = append(lines, "The target's text differs between runs without a limit: its equality means nothing here.")
			break
		}
	}
	return lines
}

// remarksAt are the notes on a setting. They begin with its name if there are several.
func (r *Report) remarksAt(setting int) tabular.Lines {
	var lines tabular.Lines
	at := &r.Results[setting]
	add := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if len(r.Results) > 1 {
			text = at.Setting.String() + ": " + text
		}
		lines = append(lines, text)
	}
	for _, n := range at.Noise {
		verdict := "within"
		if !n.Within() {
			verdict = "NOT within: take more repeats, or a quieter machine"
		}
		add("Noise: %s and %s are the same; their medians differ by %.1f %%, one run from another by up to %.1f %%: %s.", n.A, n.B, 100*n.Difference, 100*n.Spread, verdict)
	}
	for _, s := range at.Summaries {
		if s.Disagree > 0 {
			add("%s: in %d of %d runs the disk's own counter differs by more than %.0f %%: %s MiB/token, not %s.", s.Variant, s.Disagree, s.Finished, 100*tolerance,
				number(s.OnDisk.Median/mib), number(s.Bytes.Median/mib))
		}
		if s.TextSame < s.Finished {
			add("%s: THE TEXT DIFFERS from that of the run without a limit in %d of %d runs.", s.Variant, s.Finished-s.TextSame, s.Finished)
		}
		if s.Killed < int(s.OOMKills) {
			add("%s: %d processes other than the target were killed for lack of memory.", s.Variant, int(s.OOMKills)-s.Killed)
		}
		for _, run := range r.Runs {
			if run.Variant != s.Variant || run.Setting != setting {
				continue
			}
			if run.Outcome != Finished {
				add("%s, round %d: %s: %s", run.Variant, run.Round+1, run.Outcome, run.Error)
			}
			if h := run.Helper; h != nil && h.Early && run.Outcome == Finished {
				add("%s, round %d: the helper ended before the target (%s): %s", run.Variant, run.Round+1, h.Status, proc.LastLine(h.Output))
			}
		}
	}
	return lines
}
