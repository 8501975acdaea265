package whatif

// This file tells estimates: as tables, in words, and as figures.

import (
	"fmt"
	"math"
	"slices"

	"tensorcast/internal/chart"
	"tensorcast/internal/tabular"
	"tensorcast/trace/tables"
)

// Answers are estimates for several numbers of tokens per step, with the same memory. There is at least one. Their
// strategies may differ: of a mixture of experts it is not known what prefetchd keeps for several tokens together.
type Answers []*Answer

// Columns returns the rows as a table, with one row for each number of tokens per step, amount of memory and strategy.
func (all Answers) Columns() []tables.Column {
	var (
		tokens, memory         []int64
		share, missed, seconds []float64
		name                   []string
	)
	for _, a := range all {
		for _, r := range a.Rows {
			for i, result := range r.Results {
				tokens, memory = append(tokens, int64(a.TokensPerStep)), append(memory, r.Memory)
				share, name = append(share, r.Share), append(name, a.Strategies[i].Name)
				missed, seconds = append(missed, result.Missed), append(seconds, result.TokS)
			}
		}
	}
	return []tables.Column{
		{Name: "tokens_per_step", Values: tokens}, {Name: "memory_bytes", Values: memory},
		{Name: "share_of_working_set", Values: share}, {Name: "strategy", Values: name},
		{Name: "missed_bytes_per_token", Values: missed}, {Name: "tokens_per_second", Values: seconds},
	}
}

// maxCurve bounds the table of the miss-ratio curve, for each number of tokens per step.
const maxCurve = 10_000

// maxMissPoints bounds its figure.
const maxMissPoints = 1000

// missCurve is LRU's byte miss-ratio curve: for each size of memory, which share of the bytes that a step reads is
// missed from there on. If there are more than most sizes, evenly chosen ones are left out.
func (a *Answer) missCurve(most int) (memory []int64, ratio []float64) {
	sizes := a.lru.Sizes()
	thin := max(1, (len(sizes)+most-1)/most)
	memory, ratio = []int64{0}, []float64{1}
	for i := range sizes {
		if i%thin == 0 || i == len(sizes)-1 {
			memory = append(memory, sizes[i])
			ratio = append(ratio, a.lru.Missed(sizes[i])/(a.PerToken*float64(a.TokensPerStep)))
		}
	}
	return memory, ratio
}

// CurveColumns returns LRU's byte miss-ratio curves as a table.
func (all Answers) CurveColumns() []tables.Column {
	var tokens, memory []int64
	var ratio []float64
	for _, a := range all {
		m, r := a.missCurve(maxCurve)
		memory, ratio = append(memory, m...), append(ratio, r...)
		for range m {
			tokens = append(tokens, int64(a.TokensPerStep))
		}
	}
	return []tables.Column{
		{Name: "tokens_per_step", Values: tokens}, {Name: "memory_bytes", Values: memory},
		{Name: "miss_ratio", Values: ratio},
	}
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

// Document returns the answers in words and as tables. What strategies are is said once.
func (all Answers) Document() (d tabular.Document) {
	for _, a := range all {
		d = append(d, a.document()...)
	}
	if len(all) > 1 {
		d = append(d, all.gains())
	}
	notes := tabular.Lines{}
	for _, s := range all[0].Strategies {
		notes = append(notes, s.Name+": "+s.About)
	}
	return append(d, notes)
}

// gains is a table of tokens per second by tokens per step: of what a target does by itself, and of the best that reads
// what it knows.
func (all Answers) gains() *tabular.Table {
	t := &tabular.Table{Title: "tokens per second, by tokens per step", Columns: tabular.Right("memory", "strategy")}
	for _, a := range all {
		t.Columns = append(t.Columns, tabular.Right(fmt.Sprintf("%d", a.TokensPerStep))...)
	}
	for i, r := range all[0].Rows {
		for _, s := range allStrategies {
			if s.Name != Plain && s.Name != Auto && !s.Bound {
				continue
			}
			row := []string{fmt.Sprintf("%.0f MiB", float64(r.Memory)/mib), s.Name}
			for _, a := range all {
				row = append(row, a.speedText(i, s.Name))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// speedText is the tokens per second of a strategy in a row; "-" if the answer does not have the strategy.
func (a *Answer) speedText(row int, strategy string) string {
	at := slices.IndexFunc(a.Strategies, func(s Strategy) bool { return s.Name == strategy })
	if at < 0 {
		return "-"
	}
	return tabular.Number(a.Rows[row].Results[at].TokS)
}

// document is what an answer is based on, and its table.
func (a *Answer) document() tabular.Document {
	per, scale := "token", 1.0
	if a.perPass {
		per, scale = "pass through the model", float64(a.TokensPerStep)
	}
	t := &tabular.Table{
		Title:   fmt.Sprintf("tokens per second, and MiB that a %s reads again", per),
		Columns: tabular.Right("memory", "share"),
	}
	for _, s := range a.Strategies {
		t.Columns = append(t.Columns, tabular.Right(s.Name, "MiB")...)
	}
	for _, r := range a.Rows {
		row := []string{fmt.Sprintf("%.0f MiB", float64(r.Memory)/mib), fmt.Sprintf("%.0f %%", 100*r.Share)}
		for _, result := range r.Results {
			row = append(row, tabular.Number(result.TokS), fmt.Sprintf("%.0f", scale*result.Missed/mib))
		}
		t.Rows = append(t.Rows, row)
	}
	lines := tabular.Lines{
		fmt.Sprintf("%d steps read %.0f MiB per %s of a working set of %.0f MiB, in %s", a.Steps,
			scale*a.PerToken/mib, per, float64(a.WorkingSet)/mib, a.Blocks),
		fmt.Sprintf("a step computes for %.1f ms (%s); tokens per step: %d; the disk reads %.2f GiB/s", 1000*a.Compute,
			a.ComputeFrom, a.TokensPerStep, a.Bandwidth/gib),
		fmt.Sprintf("what is read as it is touched comes at %.2f GiB/s (%s); the kernel reads %s around a miss",
			a.Touched/gib, a.TouchedFrom, tabular.Size(float64(a.Readahead))),
	}
	return tabular.Document{lines, t}
}

// Figure draws tokens per second against memory, on a logarithmic axis: what is gained at little memory would be a line
// at the bottom beside the speed of a model that fits. Each number of tokens per step has a panel.
func (all Answers) Figure() *chart.Figure {
	f := &chart.Figure{
		XLabel: "memory for the model (GiB)", YLabel: "tokens per second (logarithmic)", Beside: true, Columns: 2,
	}
	slowest := math.Inf(1)
	for _, a := range all {
		p := chart.Panel{Title: fmt.Sprintf("expected with a disk of %.2f GiB/s, %.1f ms of computing", a.Bandwidth/gib,
			1000*a.Compute)}
		if len(all) > 1 {
			p.Title += fmt.Sprintf("\ntokens per step: %d", a.TokensPerStep)
		}
		f.To = max(f.To, float64(a.WorkingSet)*(curvePoints+1)/curvePoints/(1<<30))
		for i, s := range a.Strategies {
			curve := chart.Curve{Name: s.Name, Bound: s.Bound}
			for _, r := range a.curve {
				speed := r.Results[i].TokS
				curve.Points = append(curve.Points, chart.Point{
					X: float64(r.Memory) / (1 << 30), Y: speed, Low: speed, High: speed,
				})
				f.High, slowest = max(f.High, 1.2*speed), min(slowest, speed)
			}
			p.Curves = append(p.Curves, curve)
		}
		f.Panels = append(f.Panels, p)
	}
	f.Low = slowest / 1.2
	return f
}

// MissFigure draws LRU's byte miss-ratio curves.
func (all Answers) MissFigure() *chart.Figure {
	f := &chart.Figure{
		XLabel: "memory for the model (GiB)", YLabel: "share of the bytes that is missed (%)", High: 105, Beside: true,
		Panels: []chart.Panel{{Title: "byte miss ratio of LRU, in " + all[0].Blocks}},
	}
	for _, a := range all {
		f.To = max(f.To, 1.04*float64(a.WorkingSet)/gib)
	}
	curves := &f.Panels[0].Curves
	for _, a := range all {
		curve := chart.Curve{Name: "LRU", Steps: true}
		if len(all) > 1 {
			curve.Name = fmt.Sprintf("LRU, tokens per step: %d", a.TokensPerStep)
		}
		memory, ratio := a.missCurve(maxMissPoints)
		for i := range memory {
			curve.Points = append(curve.Points, chart.Point{X: float64(memory[i]) / gib, Y: 100 * ratio[i]})
		}
		curve.Points = append(curve.Points, chart.Point{X: f.To, Y: curve.Points[len(curve.Points)-1].Y})
		// Of a model whose tokens all read the same the curves are the same, and the last would hide the others.
		if n := len(*curves); n > 0 && slices.Equal((*curves)[n-1].Points, curve.Points) {
			(*curves)[n-1].Name += fmt.Sprintf(", %d", a.TokensPerStep)
			continue
		}
		*curves = append(*curves, curve)
	}
	return f
}
