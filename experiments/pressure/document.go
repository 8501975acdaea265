package pressure

// This file writes a report for people: the conditions, a table for each setting, an overview, and remarks.

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"tensorcast/internal/proc"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// mib is the unit of amounts in tables, in bytes.
const mib = 1 << 20

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error { return r.Sections().Document().WriteText(w) }

// WriteMarkdown writes the report for a document.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.Sections().Document().WriteMarkdown(w) }

// Sections are the conditions, the settings with a table for each, the overview with a row for each setting (empty if
// there is only one), and the remarks.
func (r *Report) Sections() tabular.Sections {
	settings := tabular.Document{}
	for i := range r.Results {
		if r.hasRuns(i) {
			settings = append(settings, r.table(&r.Results[i]))
		}
	}
	return tabular.Sections{
		{Name: "conditions", Document: tabular.Document{r.conditions()}},
		{Name: "settings", Document: settings},
		{Name: "overview", Document: tabular.Document{r.overview()}},
		{Name: "remarks", Document: tabular.Document{r.remarks()}},
	}
}

// ---- the conditions under which the numbers were measured

func (r *Report) conditions() tabular.Lines {
	var lines tabular.Lines
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("model: %s, %s MiB; a token reads %s MiB; the target's own memory takes %s MiB",
		filepath.Base(r.Model.Path), inMiB(r.Model.Bytes), inMiB(r.Model.TokenBytes), inMiB(r.Own))
	add("machine: %d x %s, %s GiB, Linux %s, cgroup v%d",
		r.Host.CPUs, r.Host.CPUName(), number(float64(r.Host.Memory)/(1<<30)), r.Host.Kernel, r.Host.CgroupVersion)
	var speeds []string
	for i := range r.Readings {
		speeds = append(speeds, number(r.Readings[i].Result.Best.BytesPerSecond/mib))
	}
	add("disk: %s, %s MiB/s, the median of %d readings: %s (O_DIRECT; best of a grid: %d KiB, %d in flight)",
		r.Disk.Name, number(r.DiskBW/mib), len(speeds), strings.Join(speeds,
			", "), r.Grid.Best.Block>>10, r.Grid.Best.Depth)
	if r.BesideBW > 0 {
		add("beside the computing target the disk delivers %s MiB/s (%d readings), %s of that, "+
			"and each MiB has the target compute %s us longer",
			number(r.BesideBW/mib), len(r.Beside), percent(r.BesideBW/r.DiskBW), number(r.DiskCost*mib*1e6))
	}
	if text := r.statesText(); text != "" {
		add("%s", text)
	}
	if r.Throttle > 0 {
		add("throttle: the runs may read %s MiB/s: their bandwidth is %s MiB/s", inMiB(r.Throttle), number(r.BW/mib))
	}
	if r.Compute > 0 {
		add("T_compute: %s", r.computeText())
	}
	if n := r.Routes; n != nil {
		add("experts: %d in each of %d layers, %s MiB in all; every token reads %s MiB besides; "+
			"the choices are those of a traced run of %d tokens",
			n.Experts, len(n.Bytes), inMiB(n.totalBytes()), inMiB(n.Trunk), len(n.Chosen)-n.Prompt)
	} else if r.Model.Routed {
		add("bound: not known: how many bytes must be read depends on the experts that the router takes")
	}
	return lines
}

// computeText tells how long a token takes to compute, in pages and in folios, and which of them counts.
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

// ---- the table of a setting

// table has a row for the fastest run without a limit, and one for each variant. Its columns are those of [metrics].
func (r *Report) table(at *Result) *tabular.Table {
	t := &tabular.Table{Title: r.title(at), Columns: tabular.Left("variant")}
	var columns []*metric
	for _, m := range tableMetrics {
		if m.table.isAt(at) {
			columns = append(columns, m)
			t.Columns = append(t.Columns, tabular.Left(m.table.headings()...)...)
		}
	}
	add := func(name string, cells func(*metric) []string) {
		row := []string{name}
		for _, m := range columns {
			row = append(row, cells(m)...)
		}
		t.Rows = append(t.Rows, row)
	}
	if u := r.fastestInMemory(); u != nil {
		run := r.viewRun(u, r.hasSteady())
		add("(no limit, in "+string(u.In)+")", func(m *metric) []string { return m.unlimitedCells(run) })
	}
	for i := range at.Summaries {
		s := &at.Summaries[i]
		if s.Runs == 0 && r.isLeftOut(s.Variant, at) {
			continue
		}
		add(s.Variant, func(m *metric) []string { return m.summaryCells(s) })
	}
	return t
}

// fastestInMemory is the first run without a limit whose model was in memory in the unit that
// computes faster; nil if there is none.
func (r *Report) fastestInMemory() *Run {
	for i := range r.Unlimited {
		if u := &r.Unlimited[i]; u.In != "" && r.computeTime(u.In) == r.Compute {
			return u
		}
	}
	return nil
}

// title says what the setting is, and what can be reached there.
func (r *Report) title(at *Result) string {
	text := fmt.Sprintf("%s: limit %s MiB, of which %s are left for the model", at.name(), inMiB(at.Limit),
		inMiB(at.Limit-r.Own))
	reads := at.expertReads(r.hasSteady())
	switch {
	case reads != nil && reads.Policy != "" && r.Compute > 0:
		text += fmt.Sprintf("; bound: %s tok/s = min(1/T_compute = %s, bandwidth / what Belady's rule reads, %s "+
			"MiB a token); "+
			"the best policy that does not know the future (%s) reads %s: %s tok/s",
			number(reads.Bound), number(1/r.Compute), number(reads.Least/mib),
			reads.Policy, number(reads.Causal/mib), number(reads.CausalTokS))
	case at.Experts == nil && at.Bound > 0:
		missing := r.missingBytes(at.X)
		diskBound := "none: all fits"
		if missing > 0 {
			diskBound = number(r.BW / missing)
		}
		text += fmt.Sprintf("; bound: %s tok/s = min(1/T_compute = %s, bandwidth / missing bytes = %s)",
			number(at.Bound), number(1/r.Compute), diskBound)
		if r.BesideBW > 0 && r.Throttle == 0 && missing > 0 {
			text += fmt.Sprintf(", or %s with what the disk delivers beside computing and takes from it",
				number(r.boundBeside(missing)))
		}
	}
	return text
}

// name says what was set: "x = 0.85, readahead 128 KiB".
func (at *Result) name() string {
	fits := "x = " + at.share()
	if at.Experts != nil {
		fits = at.share() + " of the experts fit"
	}
	return fmt.Sprintf("%s, readahead %d KiB", fits, at.ReadaheadKiB)
}

// share is the share of the weights, or of the experts, that fits.
func (at *Result) share() string {
	if at.Experts != nil {
		return percent(at.Experts.Share)
	}
	return fmt.Sprintf("%.2f", at.X)
}

// ---- the overview

// overview has a row for each setting. It is empty if there is only one.
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
	t.Columns = tabular.Right(share, "readahead KiB", "bound")
	for _, v := range r.Variants {
		t.Columns = append(t.Columns, tabular.Left(v.Name)...)
	}
	steady := r.hasSteady()
	for i := range r.Results {
		at := &r.Results[i]
		row := []string{at.share(), fmt.Sprint(at.ReadaheadKiB), "-"}
		bound := at.Bound
		if steady {
			bound = at.SteadyBound
		}
		if bound > 0 {
			row[2] = number(bound)
		}
		for j := range at.Summaries {
			speed := at.Summaries[j].speed(steady)
			cell := "-"
			if speed.N > 0 {
				cell = number(speed.Median)
				if bound > 0 {
					cell += " (" + percent(speed.Median/bound) + ")"
				}
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// speedName says what [Summary.speed] returns.
func (r *Report) speedName() string {
	if r.hasSteady() && r.Skip > 0 {
		return fmt.Sprintf("tok/s in the steady state (after token %d)", r.Skip)
	}
	return "tok/s"
}

// ---- the remarks

// remarks are the notes that belong to the tables.
func (r *Report) remarks() tabular.Lines {
	var lines tabular.Lines
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if r.Interrupted {
		add("INTERRUPTED after %d runs: those that were to follow are missing, and what is measured after them.",
			len(r.Runs))
	}
	for _, resumed := range r.Resumed {
		add("The series was interrupted after %d runs, and went on at %s.", resumed.AfterRuns,
			resumed.Time.UTC().Format("2006-01-02 15:04"))
	}
	if state := r.busiest(); state.Busy+state.Steal > quiet {
		add("NOT QUIET: when nothing of the series ran, others had %s of the processors.",
			percent(state.Busy+state.Steal))
	}
	lines = append(lines, r.leftOutRemarks()...)
	repeats := 0
	for i := range r.Results {
		for _, s := range r.Results[i].Summaries {
			repeats = max(repeats, s.Runs)
		}
	}
	add("Medians over %d interleaved runs. "+
		"MiB/token: read from disk on the control group's account while tokens were generated.", repeats)
	if text := r.steadyRemark(); text != "" {
		add("%s", text)
	}
	if len(r.Variants) > 1 {
		add("Speedup: over %s in the same round.", r.Variants[0].Name)
	}
	for _, m := range tableMetrics {
		isAt := func(at Result) bool { return m.table.isAt(&at) }
		if m.table.note != "" && slices.ContainsFunc(r.Results, isAt) {
			add("%s", m.table.note)
		}
	}
	for _, l := range r.Least {
		if len(r.Results) > 1 {
			text := fmt.Sprintf("Least speedup of %s: %sx (%s)", l.Variant, number(l.Speedup),
				r.Results[l.Setting].name())
			if l.Steady > 0 {
				text += fmt.Sprintf("; in the steady state %sx (%s)", number(l.Steady),
					r.Results[l.SteadySetting].name())
			}
			add("%s.", text)
		}
	}
	for i := range r.Results {
		if r.hasRuns(i) {
			lines = append(lines, r.settingRemarks(i)...)
		}
	}
	if slices.ContainsFunc(r.Unlimited, func(u Run) bool { return !u.TextSame }) {
		add("The target's text differs between runs without a limit: its equality means nothing here.")
	}
	return lines
}

// quiet is the share of the processors that others have on a machine that is quiet enough.
const quiet = 0.1

// statesText says what the machine did when nothing of the series ran; empty if that was not looked at.
func (r *Report) statesText() string {
	if len(r.States) == 0 {
		return ""
	}
	of := func(s *MachineState) string {
		return fmt.Sprintf("%s of the processors busy and %s stolen, a load of %s", percent(s.Busy), percent(s.Steal),
			number(s.Load))
	}
	text := "beside the series: " + of(&r.States[0]) + " before it"
	if last := len(r.States) - 1; last > 0 && !r.Interrupted {
		text += "; " + of(&r.States[last]) + " after it"
	}
	return text
}

// busiest is the state in which others had most of the processors.
func (r *Report) busiest() (most MachineState) {
	for _, s := range r.States {
		if s.Busy+s.Steal > most.Busy+most.Steal {
			most = s
		}
	}
	return most
}

// isLeftOut says whether a variant was not to be run at a setting.
func (r *Report) isLeftOut(variant string, at *Result) bool {
	return slices.ContainsFunc(r.LeftOut, func(l LeftOut) bool {
		return l.Variant == variant && &r.Results[l.Setting] == at
	})
}

// leftOutRemarks name what was left out, with a line for each reason and the settings that it holds at.
func (r *Report) leftOutRemarks() (lines tabular.Lines) {
	settings := map[LeftOut][]string{} // by variant and reason
	var order []LeftOut
	for _, l := range r.LeftOut {
		at := r.Results[l.Setting].Setting.String()
		l.Setting = 0
		if settings[l] == nil {
			order = append(order, l)
		}
		settings[l] = append(settings[l], at)
	}
	type line struct{ because, at string }
	variants := map[line][]string{}
	var all []line
	for _, l := range order {
		key := line{l.Because, strings.Join(settings[l], "; ")}
		if variants[key] == nil {
			all = append(all, key)
		}
		variants[key] = append(variants[key], l.Variant)
	}
	for _, l := range all {
		lines = append(lines, fmt.Sprintf("Left out at %s: %s. %s", l.at, strings.Join(variants[l], ", "), l.because))
	}
	return lines
}

// steadyRemark says what the steady state is, or that there is none.
func (r *Report) steadyRemark() string {
	switch {
	case !r.hasSteady():
		return fmt.Sprintf("No steady state: there are runs with no more than the %d tokens of the start-up.", r.Skip)
	case len(r.Runs) == 0 || r.Skip <= 0:
		return ""
	}
	text := fmt.Sprintf("Steady: without the first %d tokens.", r.Skip)
	if i := slices.IndexFunc(r.Runs, func(run Run) bool { return len(run.TokenMs) > 0 }); i >= 0 {
		text += fmt.Sprintf(" Start-up: the share of the time that these took; %s if they were as fast as the others.",
			percent(float64(r.Skip)/float64(len(r.Runs[i].TokenMs))))
	}
	return text
}

// settingRemarks are the notes on a setting. They begin with its name if there are several.
func (r *Report) settingRemarks(setting int) tabular.Lines {
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
		if !n.IsWithin() {
			verdict = "NOT within: take more repeats, or a quieter machine"
		}
		add("Noise: %s and %s are the same; their medians differ by %.1f %%, one run from another by up to "+
			"%.1f %%: %s.",
			n.A, n.B, 100*n.Difference, 100*n.Spread, verdict)
	}
	for _, s := range at.Summaries {
		if s.Disagree > 0 {
			add("%s: in %d of %d runs the disk's own counter differs by more than %.0f %%: %s MiB/token, not %s.",
				s.Variant, s.Disagree, s.Finished, 100*tolerance, number(s.OnDisk.Median/mib),
				number(s.Bytes.Median/mib))
		}
		if s.TextSame < s.Finished {
			add("%s: THE TEXT DIFFERS from that of the run without a limit in %d of %d runs.",
				s.Variant, s.Finished-s.TextSame, s.Finished)
		}
		if s.Killed < int(s.OOMKills) {
			add("%s: %d processes other than the target were killed for lack of memory.", s.Variant,
				int(s.OOMKills)-s.Killed)
		}
		for _, run := range r.Runs {
			if run.Variant != s.Variant || run.Setting != setting {
				continue
			}
			if run.Outcome != Finished {
				add("%s, round %d: %s: %s", run.Variant, run.Round+1, run.Outcome, run.Error)
			} else if h := run.Helper; h != nil && h.Early {
				add("%s, round %d: the helper ended before the target (%s): %s",
					run.Variant, run.Round+1, h.Status, proc.LastLine(h.Output))
			}
		}
	}
	return lines
}

// ---- numbers

// valueRange is the range of a sample; empty if it has no values.
func valueRange(s stats.Spread) string {
	if s.N == 0 {
		return ""
	}
	return number(s.Min) + ".." + number(s.Max)
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// inMiB formats an amount of bytes in MiB.
func inMiB(bytes int64) string { return number(float64(bytes) / mib) }

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
