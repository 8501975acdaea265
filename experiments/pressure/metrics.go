package pressure

// This file has the table of metrics: what is known of a run, and how it is summed up and shown.
// The summaries, the tables for people and the table for programs are made from it. A new metric is
// a new row.

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"tensorcast/internal/stats"
)

// metric is one thing that is known of a run.
type metric struct {
	// column is the name in the table of runs for other programs (see [Report.Columns]); the name says the unit.
	// Without a name the metric is not in that table.
	column string

	// The value is taken from a run by one of these functions. An amount that a run does not have is NaN.
	text   func(*runView) string
	count  func(*runView) int64
	amount func(*runView) float64

	// The finished runs of a variant at one setting are summed up in a field of [Summary], whose
	// tag names the key in JSON. spread is the field for the amounts that are not NaN. share is the
	// field for a ratio of two numbers of the summary; it stays 0 if the second number is unknown,
	// which is not positive then.
	spread func(*Summary) *stats.Spread
	share  func(*Summary) *float64
	ratio  func(*summaryView) (part, whole float64)

	// table says how the summary is shown to people; nil: it is not.
	table *tableColumn
}

// tableColumn is a column in the table of a setting, in text and in Markdown.
type tableColumn struct {
	order   int // columns are sorted by this, from left to right
	heading string
	// A cell is the median, divided by unit (0: not divided) and formatted (nil: by [number]). Of a share it is the
	// percentage. cell, if not nil, makes the cell instead.
	unit   float64
	format func(float64) string
	cell   func(*Summary) string
	// ranged says that another column follows, with the least and the greatest value.
	ranged bool
	// unlimited says that the value of the run without a limit is shown, too.
	unlimited bool
	// when says at which settings there is such a column; nil: at all of them.
	when func(*Result) bool
	// note explains the column below the tables, if it is there at any setting.
	note string
}

// runView is a run, and what its metrics depend on besides it.
type runView struct {
	*Run
	report *Report
	at     *Result // nil if the run has no limit
	steady bool    // the report's runs have a steady state
}

// summaryView is a summary, and what its shares depend on besides it.
type summaryView struct {
	*Summary
	at     *Result
	steady bool // the report's runs have a steady state
}

func (s *summaryView) speed() float64 { return s.Summary.speed(s.steady).Median }

// metrics is the table of metrics, in the order of the columns for programs.
var metrics = []metric{
	// What was run.
	{column: "phase", text: func(m *runView) string {
		if m.Limit == 0 {
			return "unlimited"
		}
		return "limited"
	}},
	{column: "variant", text: func(m *runView) string { return m.Variant }},
	{column: "helper", text: func(m *runView) string { return m.variant().Helper }},
	{column: "flags", text: func(m *runView) string { return m.variant().Flags }},
	{column: "round", count: func(m *runView) int64 { return int64(m.Round) }},
	{column: "x", amount: ofSetting(func(at *Result) float64 { return at.X })},
	{column: "limit_bytes", count: func(m *runView) int64 { return m.Limit }},
	{column: "readahead_kib", amount: func(m *runView) float64 {
		if m.at == nil {
			return float64(m.report.Disk.ReadaheadKiBBefore)
		}
		return float64(m.at.ReadaheadKiB)
	}},

	// What can be reached at the setting.
	{column: "bound_tok_s", amount: ofSetting(func(at *Result) float64 { return known(at.Bound) })},
	{column: "steady_bound_tok_s", amount: ofSetting(func(at *Result) float64 { return known(at.SteadyBound) })},
	{column: "experts_share", amount: ofExperts(func(e *Experts) float64 { return e.Share })},
	{column: "least_bytes_per_token", amount: ofExperts(func(e *Experts) float64 { return e.Whole.Least })},
	{column: "causal_bytes_per_token", amount: ofExperts(func(e *Experts) float64 { return e.Whole.Causal })},
	{column: "causal_bound_tok_s", amount: ofExperts(func(e *Experts) float64 { return known(e.Whole.CausalTokS) })},
	{column: "steady_least_bytes_per_token", amount: ofExperts(func(e *Experts) float64 { return e.Steady.Least })},
	{column: "steady_causal_bytes_per_token", amount: ofExperts(func(e *Experts) float64 { return e.Steady.Causal })},
	{column: "steady_causal_bound_tok_s",
		amount: ofExperts(func(e *Experts) float64 { return known(e.Steady.CausalTokS) })},

	// How it ended.
	{
		column: "outcome", text: func(m *runView) string { return string(m.Outcome) },
		table: &tableColumn{order: 21, heading: "OOM-killed",
			cell: func(s *Summary) string { return fmt.Sprintf("%d of %d", s.Killed, s.Runs) }},
	},
	{
		column: "text_same", text: func(m *runView) string {
			if m.TextSame {
				return "yes"
			}
			return "no"
		},
		table: &tableColumn{order: 20, heading: "same text",
			cell: func(s *Summary) string { return fmt.Sprintf("%d of %d", s.TextSame, s.Runs) }},
	},
	{column: "tokens", count: func(m *runView) int64 { return int64(len(m.TokenMs)) }},

	// Speed.
	{
		column: "tok_s", amount: ofFinished(func(m *runView) float64 { return m.TokS }),
		spread: func(s *Summary) *stats.Spread { return &s.TokS },
		table:  &tableColumn{order: 1, heading: "tok/s", ranged: true, unlimited: true},
	},
	{
		column: "p5_tok_s", amount: ofFinished(func(m *runView) float64 { return m.P5 }),
		spread: func(s *Summary) *stats.Spread { return &s.P5 },
		table:  &tableColumn{order: 4, heading: "p5", unlimited: true},
	},
	{column: "startup_tokens", count: func(m *runView) int64 { return int64(m.report.Skip) }},
	{
		column: "startup_share", amount: ofSteady(func(s *Steady) float64 { return s.StartShare }),
		spread: func(s *Summary) *stats.Spread { return &s.StartShare },
		table:  &tableColumn{order: 3, heading: "start-up", format: percent, unlimited: true},
	},
	{
		column: "steady_tok_s", amount: ofSteady(func(s *Steady) float64 { return s.TokS }),
		spread: func(s *Summary) *stats.Spread { return &s.Steady },
		table:  &tableColumn{order: 2, heading: "steady tok/s", ranged: true, unlimited: true},
	},

	// What was read, and waiting for it.
	{
		column: "steady_bytes_per_token", amount: ofSteady(func(s *Steady) float64 { return s.BytesPerToken }),
		spread: func(s *Summary) *stats.Spread { return &s.SteadyBytes },
		table:  &tableColumn{order: 6, heading: "steady MiB/token", unit: mib, unlimited: true},
	},
	{
		column: "steady_major_faults_per_token", amount: ofSteady(func(s *Steady) float64 { return s.FaultsPerToken }),
		spread: func(s *Summary) *stats.Spread { return &s.SteadyFaults },
		table:  &tableColumn{order: 8, heading: "steady faults/token", unlimited: true},
	},
	{
		column: "bytes_per_token", amount: ofFinished(func(m *runView) float64 { return m.BytesPerToken }),
		spread: func(s *Summary) *stats.Spread { return &s.Bytes },
		table:  &tableColumn{order: 5, heading: "MiB/token", unit: mib, unlimited: true},
	},
	{
		column: "disk_bytes_per_token", amount: ofFinished(func(m *runView) float64 { return m.DiskBytesPerToken }),
		spread: func(s *Summary) *stats.Spread { return &s.OnDisk },
	},
	{column: "target_bytes_per_token", amount: ofFinished(func(m *runView) float64 { return m.TargetPerToken })},
	{column: "helper_bytes_per_token", amount: ofFinished(func(m *runView) float64 { return m.HelperPerToken })},
	{column: "helper_system_ms_per_token", amount: ofFinished(func(m *runView) float64 { return m.HelperSystemMs })},
	{
		column: "major_faults_per_token", amount: ofFinished(func(m *runView) float64 { return m.FaultsPerToken }),
		spread: func(s *Summary) *stats.Spread { return &s.Faults },
		table:  &tableColumn{order: 7, heading: "faults/token", unlimited: true},
	},
	{column: "stall_ms_per_token", amount: ofFinished(func(m *runView) float64 { return m.stall(false) })},
	{column: "steady_stall_ms_per_token", amount: ofFinished(func(m *runView) float64 { return m.stall(true) })},
	{
		amount: ofFinished(func(m *runView) float64 { return m.stall(m.steady) }),
		spread: func(s *Summary) *stats.Spread { return &s.Stall },
		table: &tableColumn{order: 14, heading: "stall ms/token", when: hasExperts,
			note: "Stall: a token's time beyond T_compute, whoever helps. Demand: read for experts that had been " +
				"chosen; " +
				"speculative: read before that. A helper tells these of itself, over all tokens that it helped; " +
				"without a helper all is demand."},
	},
	{column: "demand_bytes_per_token",
		amount: ofFinished(func(m *runView) float64 { demand, _ := m.expertReads(false); return demand })},
	{column: "speculative_bytes_per_token",
		amount: ofFinished(func(m *runView) float64 { _, speculative := m.expertReads(false); return speculative })},
	{
		amount: ofFinished(func(m *runView) float64 { demand, _ := m.expertReads(m.steady); return demand }),
		spread: func(s *Summary) *stats.Spread { return &s.Demand },
		table:  &tableColumn{order: 15, heading: "demand MiB/token", unit: mib, when: hasExperts},
	},
	{
		amount: ofFinished(func(m *runView) float64 { _, speculative := m.expertReads(m.steady); return speculative }),
		spread: func(s *Summary) *stats.Spread { return &s.Speculative },
		table:  &tableColumn{order: 16, heading: "speculative MiB/token", unit: mib, when: hasExperts},
	},
	{column: "prompt_ms", amount: ofFinished(func(m *runView) float64 { return m.PromptMs })},
	{column: "load_ms", amount: ofFinished(func(m *runView) float64 { return m.LoadMs })},

	// What a helper tells of itself.
	{column: "helper_tokens", amount: ofHelper(func(h *HelperReport) float64 { return float64(h.Tokens) })},
	{column: "helper_tok_s", amount: ofHelper(func(h *HelperReport) float64 { return h.TokS })},
	{
		column: "helper_expected_tok_s", amount: ofHelper(func(h *HelperReport) float64 { return known(h.Expected) }),
		spread: func(s *Summary) *stats.Spread { return &s.Expected },
		table: &tableColumn{order: 18, heading: "expected tok/s", when: hasExpected,
			note: "Expected: what the helper expects of its plan, as it tells at its end."},
	},
	{column: "helper_streamed_bytes", amount: ofHelper(func(h *HelperReport) float64 { return float64(h.Streamed) })},
	{column: "helper_late", amount: ofHelper(func(h *HelperReport) float64 { return float64(h.Late) })},
	{column: "helper_window_bytes", amount: ofBeyond(func(b *Beyond) int64 { return b.Window })},
	{column: "helper_reserve_bytes", amount: ofBeyond(func(b *Beyond) int64 { return b.Reserve })},
	{column: "helper_left_free_bytes", amount: ofBeyond(func(b *Beyond) int64 { return b.LeftFree })},
	{column: "helper_own_bytes", amount: ofBeyond(func(b *Beyond) int64 { return b.Own })},
	{column: "helper_unused_bytes", amount: ofBeyond(func(b *Beyond) int64 { return b.Unused })},
	{column: "helper_twice_bytes_per_token", amount: ofBeyond(func(b *Beyond) int64 { return b.Twice })},
	{column: "helper_taken_bytes_per_token", amount: ofBeyond(func(b *Beyond) int64 { return b.Taken })},
	{column: "helper_swept_bytes_per_token", amount: ofBeyond(func(b *Beyond) int64 { return b.Swept })},
	{column: "helper_experts_chosen", amount: ofHelperExperts(func(e *HelperExperts) int64 { return e.Chosen })},
	{column: "helper_experts_missed", amount: ofHelperExperts(func(e *HelperExperts) int64 { return e.Missed })},
	{column: "helper_experts_read_bytes", amount: ofHelperExperts(func(e *HelperExperts) int64 { return e.Read })},
	{column: "helper_experts_speculative_bytes",
		amount: ofHelperExperts(func(e *HelperExperts) int64 { return e.Speculative.Read })},
	{column: "helper_experts_speculative_used_bytes",
		amount: ofHelperExperts(func(e *HelperExperts) int64 { return e.Speculative.Used })},
	{column: "helper_experts_stray_bytes", amount: ofHelperExperts(func(e *HelperExperts) int64 { return e.Strays })},

	// Memory pressure. Both kinds share a column of the table for people.
	{
		column: "pressure_some_s", amount: func(m *runView) float64 { return m.Some.Seconds() },
		spread: func(s *Summary) *stats.Spread { return &s.Some },
		table: &tableColumn{order: 9, heading: "stalled some/full s", cell: func(s *Summary) string {
			if s.Some.N == 0 {
				return "-"
			}
			return number(s.Some.Median) + " / " + number(s.Full.Median)
		}},
	},
	{
		column: "pressure_full_s", amount: func(m *runView) float64 { return m.Full.Seconds() },
		spread: func(s *Summary) *stats.Spread { return &s.Full },
	},
	{column: "oom_kills", count: func(m *runView) int64 { return m.OOMKills }},
	{column: "peak_bytes", count: func(m *runView) int64 { return m.Peak }},

	// What follows is only summed up: comparisons with the first variant, with what can be reached,
	// and with what a helper expects.
	{
		amount: ofFinished(func(m *runView) float64 { return m.speedup(false) }),
		spread: func(s *Summary) *stats.Spread { return &s.Speedup },
		table: &tableColumn{order: 10, heading: "speedup", format: func(v float64) string { return number(v) + "x" },
			ranged: true},
	},
	{
		amount: ofFinished(func(m *runView) float64 { return m.speedup(true) }),
		spread: func(s *Summary) *stats.Spread { return &s.SteadySpeedup },
	},
	{
		share: func(s *Summary) *float64 { return &s.OfBound },
		ratio: func(s *summaryView) (part, whole float64) { return s.TokS.Median, s.at.Bound },
		table: &tableColumn{order: 11, heading: "of bound"},
	},
	{
		share: func(s *Summary) *float64 { return &s.SteadyOfBound },
		ratio: func(s *summaryView) (part, whole float64) { return s.Steady.Median, s.at.SteadyBound },
		table: &tableColumn{order: 12, heading: "steady of bound"},
	},
	{
		share: func(s *Summary) *float64 { return &s.OfCausal },
		ratio: func(s *summaryView) (part, whole float64) {
			if reads := s.at.expertReads(s.steady); reads != nil {
				whole = reads.CausalTokS
			}
			return s.speed(), whole
		},
		table: &tableColumn{order: 13, heading: "of causal bound", when: hasExperts},
	},
	{
		amount: ofFinished((*runView).helperSystemTime),
		spread: func(s *Summary) *stats.Spread { return &s.System },
		table: &tableColumn{order: 17, heading: "helper's kernel us/MiB",
			when: func(at *Result) bool { return hasValues(at, func(s *Summary) *stats.Spread { return &s.System }) },
			note: "Helper's kernel us/MiB: its processor time in the kernel while tokens were generated, for each " +
				"MiB that it read."},
	},
	{
		share: func(s *Summary) *float64 { return &s.OfExpected },
		ratio: func(s *summaryView) (part, whole float64) { return s.speed(), s.Expected.Median },
		table: &tableColumn{order: 19, heading: "of expected", when: hasExpected},
	},
}

// tableMetrics are those that the table of a setting shows, from left to right.
var tableMetrics = func() []*metric {
	var all []*metric
	for i := range metrics {
		if metrics[i].table != nil {
			all = append(all, &metrics[i])
		}
	}
	slices.SortFunc(all, func(a, b *metric) int { return cmp.Compare(a.table.order, b.table.order) })
	return all
}()

// ---- where values come from

// ofFinished makes a value that only runs that finished have.
func ofFinished(of func(*runView) float64) func(*runView) float64 {
	return func(m *runView) float64 {
		if m.Outcome != Finished {
			return math.NaN()
		}
		return of(m)
	}
}

// ofSteady makes a value of the steady state.
func ofSteady(of func(*Steady) float64) func(*runView) float64 {
	return ofFinished(func(m *runView) float64 {
		if m.Steady == nil {
			return math.NaN()
		}
		return of(m.Steady)
	})
}

// ofSetting makes a value of the setting that a run was made under. Runs without a limit do not have it.
func ofSetting(of func(*Result) float64) func(*runView) float64 {
	return func(m *runView) float64 {
		if m.at == nil {
			return math.NaN()
		}
		return of(m.at)
	}
}

// ofExperts makes a value of what the setting means for a mixture of experts. Other models do not have it.
func ofExperts(of func(*Experts) float64) func(*runView) float64 {
	return ofSetting(func(at *Result) float64 {
		if at.Experts == nil {
			return math.NaN()
		}
		return of(at.Experts)
	})
}

// ofHelper makes a value of what the helper tells.
func ofHelper(of func(*HelperReport) float64) func(*runView) float64 {
	return func(m *runView) float64 {
		if m.Helper == nil || m.Helper.Report == nil {
			return math.NaN()
		}
		return of(m.Helper.Report)
	}
}

// ofBeyond makes a value of what the helper tells of reads beyond those without room.
func ofBeyond(of func(*Beyond) int64) func(*runView) float64 {
	return ofHelper(func(h *HelperReport) float64 { return float64(of(&h.Beyond)) })
}

// ofHelperExperts makes a value of what the helper tells of experts.
func ofHelperExperts(of func(*HelperExperts) int64) func(*runView) float64 {
	return ofHelper(func(t *HelperReport) float64 {
		if t.Experts == nil {
			return math.NaN()
		}
		return float64(of(t.Experts))
	})
}

// known is a value, or NaN if it is 0, which stands for unknown.
func known(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

// viewRun returns a run of the report for the functions of the table. steady is [Report.hasSteady].
func (r *Report) viewRun(run *Run, steady bool) *runView {
	m := &runView{Run: run, report: r, steady: steady}
	if run.Limit != 0 {
		m.at = &r.Results[run.Setting]
	}
	return m
}

// variant is what the run was a run of. It is zero for a run without a limit.
func (m *runView) variant() Variant {
	i := slices.IndexFunc(m.report.Variants, func(v Variant) bool { return v.Name == m.Variant })
	if i < 0 || m.Limit == 0 {
		return Variant{}
	}
	return m.report.Variants[i]
}

// speed is the tokens per second of the steady state (NaN if the run has none) or of all tokens.
func (m *runView) speed(steady bool) float64 {
	switch {
	case !steady:
		return m.TokS
	case m.Steady == nil:
		return math.NaN()
	}
	return m.Steady.TokS
}

// speedup is the speed divided by that of the first variant in the same round; NaN if that did not finish.
func (m *runView) speedup(steady bool) float64 {
	for _, base := range slices.Backward(m.report.Runs) {
		if base.Setting == m.Setting && base.Round == m.Round && base.Variant == m.report.Variants[0].Name &&
			base.Outcome == Finished {
			if speed := m.report.viewRun(&base, steady).speed(steady); speed > 0 {
				return m.speed(steady) / speed
			}
			break
		}
	}
	return math.NaN()
}

// stall is how long a token took beyond computing, in milliseconds, in the mean over the steady
// state or over all tokens. It is known of any helper: it is waiting for the disk, and for
// processors that the helper used. It is NaN if it is not known how long computing takes, or if
// there is no steady state.
func (m *runView) stall(steady bool) float64 {
	if m.report.Compute <= 0 {
		return math.NaN()
	}
	speed := m.speed(steady)
	if speed <= 0 {
		return 0
	}
	return 1000 * max(1/speed-m.report.Compute, 0)
}

// expertReads is how many bytes were read per token for experts when they had been chosen, and how
// many before that. Without a helper all is demand, in the steady state or for all tokens. A helper
// has to tell (see [HelperReport]), and tells of all tokens; both are NaN if it does not.
func (m *runView) expertReads(steady bool) (demand, speculative float64) {
	if m.Helper == nil {
		if steady && m.Steady != nil {
			return m.Steady.BytesPerToken, 0
		}
		return m.BytesPerToken, 0
	}
	t := m.Helper.Report
	if t == nil || t.Experts == nil || t.Tokens <= 0 {
		return math.NaN(), math.NaN()
	}
	return float64(t.Experts.Read) / float64(t.Tokens), float64(t.Experts.Speculative.Read) / float64(t.Tokens)
}

// helperSystemTime is the helper's processor time in the kernel for each MiB that it read, in
// microseconds. It is NaN if the helper read less than a MiB per token.
func (m *runView) helperSystemTime() float64 {
	read := m.HelperPerToken / mib
	if !(read >= 1) {
		return math.NaN()
	}
	return m.HelperSystemMs * 1000 / read
}

// ---- at which settings a column is shown

func hasExperts(at *Result) bool { return at.Experts != nil }

func hasExpected(at *Result) bool {
	return hasValues(at, func(s *Summary) *stats.Spread { return &s.Expected })
}

// hasValues reports whether any variant has a value at a setting.
func hasValues(at *Result, spread func(*Summary) *stats.Spread) bool {
	return slices.ContainsFunc(at.Summaries, func(s Summary) bool { return spread(&s).N > 0 })
}

// ---- summing up and showing

// addSpread adds the metric's spread, if it has one, to the summary of runs that finished.
func (m *metric) addSpread(s *Summary, runs []*runView) {
	if m.spread == nil {
		return
	}
	var values []float64
	for _, run := range runs {
		if v := m.amount(run); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	*m.spread(s) = stats.Describe(values)
}

// addShare adds the metric's share, if it has one, to a summary that has its spreads.
func (m *metric) addShare(s *summaryView) {
	if m.share == nil {
		return
	}
	if part, whole := m.ratio(s); whole > 0 {
		*m.share(s.Summary) = part / whole
	}
}

// isAt reports whether the table of a setting has the column.
func (c *tableColumn) isAt(at *Result) bool { return c.when == nil || c.when(at) }

// headings are the names of the metric's columns in the table of a setting.
func (c *tableColumn) headings() []string {
	if c.ranged {
		return []string{c.heading, "min..max"}
	}
	return []string{c.heading}
}

// value formats an amount; "-" if there is none.
func (c *tableColumn) value(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	if c.unit != 0 {
		v /= c.unit
	}
	if c.format != nil {
		return c.format(v)
	}
	return number(v)
}

// summaryCells are the cells, one for each of the headings, of a variant.
func (m *metric) summaryCells(s *Summary) []string {
	switch c := m.table; {
	case c.cell != nil:
		return []string{c.cell(s)}
	case m.share != nil:
		if share := *m.share(s); share > 0 {
			return []string{percent(share)}
		}
		return []string{"-"}
	default:
		spread, median := m.spread(s), math.NaN()
		if spread.N > 0 {
			median = spread.Median
		}
		cells := []string{c.value(median)}
		if c.ranged {
			cells = append(cells, valueRange(*spread))
		}
		return cells
	}
}

// unlimitedCells are the cells, one for each of the headings, of a run without a limit.
func (m *metric) unlimitedCells(run *runView) []string {
	cells := make([]string, len(m.table.headings()))
	if m.table.unlimited {
		cells[0] = m.table.value(m.amount(run))
	}
	return cells
}
