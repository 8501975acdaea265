package pressure

// This file defines the report of a series, whose fields are its JSON, and reads a saved one.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tensorcast/internal/host"
	"tensorcast/internal/stats"
	"tensorcast/moe"
)

// Report is the result of a series.
type Report struct {
	Started time.Time `json:"started"`
	Host    host.Info `json:"host"`
	Disk    DiskInfo  `json:"disk"`
	Model   ModelInfo `json:"model"`
	Target  []string  `json:"target"`
	// Interrupted says that some runs, and the measurements after them, are missing.
	Interrupted bool `json:"interrupted,omitempty"`
	// Resumed says where a series went on that was interrupted.
	Resumed []Resumption `json:"resumed,omitempty"`
	// States are what the machine did before, at each resumption, and after the series.
	States []MachineState `json:"machine_states,omitempty"`
	// LeftOut are the variants that were not to be run at a setting.
	LeftOut []LeftOut `json:"left_out,omitempty"`

	// Skip is how many tokens at the beginning of a run are its start-up.
	Skip int `json:"skip"`
	// Throttle is how many bytes per second target and helper may read together; 0: no limit.
	Throttle int64 `json:"throttle_bytes_per_second,omitempty"`
	// Own is the largest amount of the target's memory, in bytes, without page cache of the model.
	Own int64 `json:"own_bytes"`

	// The seconds that a token takes with everything in memory: with the model in single pages, in
	// large folios, and the lesser of the two. Each is the lesser of before and after the runs, in
	// the steady state if the runs have one; 0 if not measured. NoFolios says why it was not
	// measured in folios.
	ComputePages  float64 `json:"t_compute_pages_s"`
	ComputeFolios float64 `json:"t_compute_folios_s"`
	NoFolios      string  `json:"no_folios,omitempty"`
	Compute       float64 `json:"t_compute_s"`

	// The disk by itself: the search for its fastest settings, the readings in chronological order, and their median.
	Grid     DiskResult    `json:"disk_grid"`
	Readings []DiskReading `json:"disk_readings"`
	DiskBW   float64       `json:"disk_bytes_per_second"`
	// Beside are the readings while the target computed with everything in memory. BesideBW is
	// their median; 0 if there are none. DiskCost is how many seconds longer the target's tokens
	// took for each byte that was read meanwhile, the median too: a virtual disk needs the
	// processors, and both read and write memory.
	Beside   []BesideReading `json:"disk_beside_readings"`
	BesideBW float64         `json:"disk_beside_bytes_per_second"`
	DiskCost float64         `json:"disk_cost_s_per_byte"`
	// BW is the bandwidth that the bound is computed from: the disk's, or the throttle's if that is less.
	BW float64 `json:"bw_bytes_per_second"`

	// Text is the text of the first run without a limit.
	Text string `json:"text"`
	// Unlimited are the cold run, and those with everything in memory before and after the series.
	Unlimited []Run          `json:"unlimited"`
	Runs      []Run          `json:"runs"` // in chronological order
	Variants  []Variant      `json:"variants"`
	Results   []Result       `json:"results"` // by setting
	Least     []LeastSpeedup `json:"least"`   // by variant, without the first

	Routes *Routes    `json:"routes,omitempty"` // of a mixture of experts
	routed *moe.Trace // the same, for replays
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

// DiskReading is one measurement of the disk with the settings that were the fastest of the grid.
// Its value is that of the best.
type DiskReading struct {
	AfterRuns int        `json:"after_runs"` // how many runs under a limit were before it
	Result    DiskResult `json:"result"`
}

// BesideReading is a reading of the disk while the target generated tokens with everything in
// memory. Tokens, which took Seconds, may include a part of a token.
type BesideReading struct {
	DiskReading
	Seconds float64 `json:"seconds"`
	Tokens  float64 `json:"tokens"`
}

// Result is what came out at one setting.
type Result struct {
	Setting      Setting `json:"setting"`
	Limit        int64   `json:"limit_bytes"`
	ReadaheadKiB int     `json:"readahead_kib"` // of the disk during the runs
	X            float64 `json:"x"`             // share of the weights that fits beside the target's own memory
	// Bound is the largest number of tokens per second that any strategy can reach. It is 0 if
	// unknown: with experts, the least number of bytes depends on the router's choices. SteadyBound
	// is that of the steady state, which differs from it only with experts.
	Bound       float64   `json:"bound_tok_s"`
	SteadyBound float64   `json:"steady_bound_tok_s"`
	Experts     *Experts  `json:"experts,omitempty"` // of a mixture of experts whose routes are known
	Summaries   []Summary `json:"summaries"`         // by variant
	Noise       []Noise   `json:"noise"`
}

// Summary sums up the runs of one variant at one setting. The spreads are over finished runs only.
// How each is taken from a run is told in [metrics].
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

	// What follows is of the steady state if the runs have one, otherwise of all tokens.

	// OfCausal is tok/s divided by what the best policy reaches that does not know the future; 0 if that is unknown.
	OfCausal float64 `json:"of_causal"`
	// Stall is a token's time beyond computing.
	Stall stats.Spread `json:"stall_ms_per_token"`
	// Demand is what was read for experts that had been chosen, Speculative what was read for experts before. They are
	// without values if the helper does not tell.
	Demand      stats.Spread `json:"demand_bytes_per_token"`
	Speculative stats.Spread `json:"speculative_bytes_per_token"`
	// System is the helper's processor time in the kernel for what it reads; without values if it
	// reads next to nothing.
	System stats.Spread `json:"helper_system_us_per_mib"`
	// Expected is what the helper expects of its plan; without values if it does not tell.
	// OfExpected is tok/s divided by its median.
	Expected   stats.Spread `json:"helper_expected_tok_s"`
	OfExpected float64      `json:"of_helper_expected,omitempty"`
}

// Noise compares two variants that are identical except for their names: the difference is the instrument's noise.
type Noise struct {
	A string `json:"a"`
	B string `json:"b"`
	// Difference is the difference of the medians of tok/s, relative to their mean.
	Difference float64 `json:"difference"`
	// Spread is max - min of the variant that spreads more, relative to the same mean.
	Spread float64 `json:"spread"`
}

// IsWithin reports whether the difference is not more than the spread.
func (n Noise) IsWithin() bool { return n.Difference <= n.Spread }

// LeastSpeedup says where a variant gains least over the first one, or loses most: over all tokens, and in
// the steady state. Speedups are medians of the rounds, 0 if there are none; settings are indices
// of [Report.Results].
type LeastSpeedup struct {
	Variant       string  `json:"variant"`
	Speedup       float64 `json:"speedup"`
	Setting       int     `json:"setting"`
	Steady        float64 `json:"steady_speedup"`
	SteadySetting int     `json:"steady_setting"`
}

// ErrNotReport says that data are no report of a series.
var ErrNotReport = errors.New("not a saved series")

// ReadReport parses a report that was saved as JSON, and computes again what follows from its runs
// and readings. If skip is not negative, it replaces the saved number of tokens that are the
// start-up. The error wraps [ErrNotReport].
func ReadReport(data []byte, skip int) (*Report, error) {
	r := new(Report)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReport, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReport, err)
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

// check reports what is wrong with a report that was read from a file.
func (r *Report) check() error {
	switch {
	case len(r.Variants) == 0 || len(r.Results) == 0:
		return errors.New("it has no variants or no results (an older version saved less)")
	case r.Model.TokenBytes <= 0 || r.Own < 0:
		return fmt.Errorf("a token reads %d bytes, and %d are the target's own", r.Model.TokenBytes, r.Own)
	}
	for _, run := range r.Runs {
		if run.Setting < 0 || run.Setting >= len(r.Results) {
			return fmt.Errorf("a run at setting %d of %d", run.Setting, len(r.Results))
		}
	}
	for _, l := range r.LeftOut {
		if l.Setting < 0 || l.Setting >= len(r.Results) {
			return fmt.Errorf("a variant is left out at setting %d of %d", l.Setting, len(r.Results))
		}
	}
	for _, run := range r.Unlimited {
		if run.Limit != 0 {
			return fmt.Errorf("a run without a limit has one of %d bytes", run.Limit)
		}
	}
	return nil
}

// hasRuns reports whether there is a run at a setting: there may be none in an interrupted series.
func (r *Report) hasRuns(setting int) bool {
	for i := range r.Runs {
		if r.Runs[i].Setting == setting {
			return true
		}
	}
	return false
}

// hasSteady reports whether all runs that finished have a steady state, so that they can be compared by it.
func (r *Report) hasSteady() bool {
	for i := range r.Runs {
		if r.Runs[i].Outcome == Finished && r.Runs[i].Steady == nil {
			return false
		}
	}
	return true
}

// speed is the tok/s of the steady state, or of all tokens.
func (s *Summary) speed(steady bool) stats.Spread {
	if steady {
		return s.Steady
	}
	return s.TokS
}
