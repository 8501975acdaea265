package main

// This file has the analyses that are pictures of cells: the heatmap of tensors and steps, and that of experts.

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/heatmap"
	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/tabular"
	"tensorcast/moe"
	"tensorcast/report/gather"
	"tensorcast/trace/tables"
)

const gridFile = "heatmap"

// Values of --fold.
const (
	foldMean     = "mean"
	foldGreatest = "greatest"
)

// cells are a heatmap.
type cells struct {
	matrix *heatmap.Matrix
	text   heatmap.Text
}

func (c cells) Write(w io.Writer, format string) error {
	return heatmap.Write(w, c.matrix, c.text, format)
}

func heatmapFlags(cmd *cobra.Command, s *study) {
	const byItself = "auto"
	s.grid = byItself
	cli.EnumVar(cmd, &s.grid, "value", "", append([]string{byItself}, gather.GridNames()...), "what a cell shows: bytes from disk, those read again, waiting for the disk, time per byte, time, bytes read")
	cli.EnumVar(cmd, &s.fold, "fold", "", []string{foldMean, foldGreatest}, "what a column shows that stands for several steps, beyond 1200: their mean, or the greatest")
	cli.EnumVar(cmd, &s.order, "order", "", []string{orderAccess, orderFile}, "of rows: access is first read first, file as in the model's file")
}

// gridTitles say what a figure shows.
var gridTitles = map[string]string{
	gather.GridDisk: "bytes from disk", gather.GridRereads: "bytes read again from disk", gather.GridStall: "waiting for the disk",
	gather.GridPace: "time of ops per byte", gather.GridTime: "time of ops", gather.GridReads: "bytes read",
}

func heatmapAnswer(_ context.Context, s *study) (*answer, error) {
	want := s.grid
	if gridTitles[want] == "" {
		want = s.sums.Default()
	}
	all := s.sums.Grids()
	at := slices.IndexFunc(all, func(g gather.Grid) bool { return g.Name == want })
	if at < 0 {
		return nil, fmt.Errorf("--value %s: the capture has none of it: tracer --detail op+io records what came from disk and waiting, --detail op times", want)
	}
	g := &all[at]
	steps := s.sums.Steps()
	order := make([]int, len(g.Rows))
	for i := range order {
		order[i] = i
	}
	structure, tensors := s.in.capture.Structure, s.sums.Order()
	if s.order == orderFile {
		slices.SortFunc(order, func(a, b int) int { return int(tensors[a] - tensors[b]) })
	}
	a := &answer{files: tableFiles(gridFile, gridColumns(g, order, steps), s.model())}
	text := fmt.Sprintf("%s of each tensor in each step", gridTitles[want])
	if g.Empty {
		text = fmt.Sprintf("nothing: no tensor has %s", gridTitles[want])
	}
	var picture drawing
	m, scale, err := gridMatrix(g, order, steps)
	if err != nil {
		s.in.warn("left out: the figure: %v", err)
	} else {
		for i, row := range order {
			of := &structure[tensors[row]]
			m.Rows[i] = heatmap.Row{Label: of.Name, Weight: float64(of.Size)}
			if of.Layer >= 0 {
				m.Rows[i].Label, m.Rows[i].Block = of.Component, fmt.Sprintf("blk.%d", of.Layer)
			}
		}
		rows := "first read first"
		if s.order == orderFile {
			rows = "in the file's order"
		}
		label := heatmap.Text{
			Title:    s.title(gridTitles[want]),
			Subtitle: fmt.Sprintf("%d tensors, %s; a row is as high as its tensor is large, and a third of the average at least", len(order), rows), Caption: s.caption(), Greatest: s.fold == foldGreatest,
			Scale: g.About + " " + scale.name(), Nothing: "nothing", Ticks: scale.ticks(g.Unit),
		}
		picture = cells{m, label}
	}
	a.files = append(a.files, figureFiles(gridFile, picture, s.format)...)
	a.text = tabular.Document{tabular.Lines{text}}
	a.data = map[string]any{"value": want, "unit": g.Unit, "most": scale.most, "empty": g.Empty}
	return a, nil
}

// scale is that of a grid: values to its greatest. What ranges over several orders of magnitude has a logarithmic one, from its least.
type scale struct {
	least, most float64 // of the values above 0
	log         bool
}

func (s *scale) name() string {
	if s.log {
		return "Logarithmic scale."
	}
	return "Square-root scale."
}

// share is what package heatmap, whose scale is the square root, is to be told of a value.
func (s *scale) share(v float64) float64 {
	switch {
	case math.IsNaN(v) || v <= 0 || s.most <= 0:
		return v
	case !s.log:
		return v / s.most
	case s.most <= s.least:
		return 1
	}
	at := math.Log(v/s.least) / math.Log(s.most/s.least)
	const something = 1e-9 // the least is not nothing
	return max(at*at, something)
}

func (s *scale) ticks(unit string) (ticks []heatmap.Tick) {
	add := func(share, v float64) {
		label := humanize.SIWithDigits(v/1e9, 1, "s/B")
		switch unit {
		case "B":
			label = humanize.IBytes(uint64(v))
		case "ns":
			label = humanize.SIWithDigits(v/1e9, 1, "s")
		}
		if share == 0 && !s.log {
			label = "> 0"
		}
		ticks = append(ticks, heatmap.Tick{Share: share, Label: label})
	}
	for _, at := range []float64{0, 1. / 3, 2. / 3, 1} {
		if s.log {
			add(at*at, s.least*math.Pow(s.most/s.least, at))
		} else {
			add(at*at, at*at*s.most)
		}
	}
	return ticks
}

// gridMatrix has places on a scale. Its rows have no labels yet.
func gridMatrix(g *gather.Grid, order []int, steps []tables.StepRow) (m *heatmap.Matrix, of scale, err error) {
	if len(order) == 0 || len(steps) == 0 {
		return nil, of, chart.ErrEmpty
	}
	if len(order) > maxValues/len(steps) || len(order) > maxCells/min(len(steps), 3*1200) {
		return nil, of, fmt.Errorf("%d tensors in %d steps are too many to draw", len(order), len(steps))
	}
	m = &heatmap.Matrix{Rows: make([]heatmap.Row, len(order)), Values: make([]float32, 0, len(order)*len(steps))}
	places := byPhase(steps)
	for _, row := range order {
		for _, step := range places {
			v := g.At(row, step)
			m.Values = append(m.Values, float32(v))
			if v > 0 {
				of.most = max(of.most, v)
				if of.least == 0 {
					of.least = v
				}
				of.least = min(of.least, v)
			}
		}
	}
	const wide = 1e4
	of.log = g.Name == gather.GridPace && of.most > wide*of.least
	for i, v := range m.Values {
		m.Values[i] = float32(of.share(float64(v)))
	}
	number, before := 0, tables.Phase(255)
	for _, step := range places {
		s := &steps[step]
		if s.Phase != before {
			number, before = 0, s.Phase
		}
		c := heatmap.Column{Panel: panelNames[s.Phase], Number: number}
		if s.Phase == tables.PhaseGeneration {
			c.Number = int(s.Token)
		}
		number++
		m.Columns = append(m.Columns, c)
	}
	return m, of, nil
}

// byPhase are the places of steps, phase by phase.
func byPhase(steps []tables.StepRow) []int {
	places := make([]int, len(steps))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(a, b int) int { return int(steps[a].Phase) - int(steps[b].Phase) })
	return places
}

// gridColumns has a row for each tensor and each of at most so many columns in a phase.
func gridColumns(g *gather.Grid, order []int, steps []tables.StepRow) []tables.Column {
	const most = 256
	var names, phases []string
	var first, count []int64
	var mean, greatest []float64
	places := byPhase(steps)
	for _, row := range order {
		for from := 0; from < len(places); {
			phase, to := steps[places[from]].Phase, from
			for to < len(places) && steps[places[to]].Phase == phase {
				to++
			}
			each := (to - from + most - 1) / most
			for ; from < to; from += min(each, to-from) {
				sum, top, known := 0.0, math.NaN(), 0
				end := min(from+each, to)
				for _, step := range places[from:end] {
					if v := g.At(row, step); !math.IsNaN(v) {
						sum, known = sum+v, known+1
						if !(top > v) {
							top = v
						}
					}
				}
				if known == 0 {
					sum = math.NaN()
				}
				names, phases = append(names, g.Rows[row].Name), append(phases, phase.String())
				first, count = append(first, int64(steps[places[from]].Step)), append(count, int64(end-from))
				mean, greatest = append(mean, sum/float64(max(known, 1))), append(greatest, top)
			}
		}
	}
	unit := map[string]string{"B": "bytes", "ns": "ns", "ns/B": "ns_per_byte"}[g.Unit]
	return []tables.Column{
		{Name: "tensor_name", Values: names}, {Name: "phase", Values: phases}, {Name: "first_step", Values: first}, {Name: "steps", Values: count},
		{Name: g.Name + "_" + unit, Values: mean}, {Name: g.Name + "_max_" + unit, Values: greatest},
	}
}

// expertsAnswer says how experts are used.
func expertsAnswer(_ context.Context, s *study) (*answer, error) {
	empty := s.experts()
	if empty == nil {
		return nil, fmt.Errorf("%w: this is a dense model", moe.ErrNoRoutes)
	}
	steps, err := moe.Steps(s.in.capture.Steps(), s.pattern.Context)
	if err != nil {
		return nil, err
	}
	t, err := moe.FromRoutes(empty, s.in.capture.Routes(), steps)
	if err != nil {
		return nil, err
	}
	use, tokens := t.Use(), t.TokenUses()
	n := len(use)
	column := func(name string, of func(u *moe.Use) int64) tables.Column {
		values := make([]int64, n)
		for i := range use {
			values[i] = of(&use[i])
		}
		return tables.Column{Name: name, Values: values}
	}
	reuse := make([]float64, n)
	for i, u := range use {
		reuse[i] = u.Reuse
		if u.Reuse == 0 {
			reuse[i] = math.NaN()
		}
	}
	perExpert := []tables.Column{
		column("layer", func(u *moe.Use) int64 { return int64(t.Layers[u.Layer].Number) }), column("expert", func(u *moe.Use) int64 { return int64(u.Expert) }),
		column("prompt_tokens", func(u *moe.Use) int64 { return int64(u.Prompt) }), column("generated_tokens", func(u *moe.Use) int64 { return int64(u.Generated) }),
		column("first_token", func(u *moe.Use) int64 { return int64(u.First) }), column("last_token", func(u *moe.Use) int64 { return int64(u.Last) }),
		{Name: "reuse_tokens", Values: reuse},
	}
	first := t.FirstDecode()
	perToken := func(name string, of func(i int, u *moe.TokenUse) int64) tables.Column {
		values := make([]int64, len(tokens))
		for i := range tokens {
			values[i] = of(i, &tokens[i])
		}
		return tables.Column{Name: name, Values: values}
	}
	phases := make([]string, len(tokens))
	for i := range phases {
		phases[i] = tables.PhasePrompt.String()
		if i >= first {
			phases[i] = tables.PhaseGeneration.String()
		}
	}
	tokenColumns := []tables.Column{
		perToken("token", func(i int, _ *moe.TokenUse) int64 { return int64(i) }), {Name: "phase", Values: phases},
		perToken("chosen", func(_ int, u *moe.TokenUse) int64 { return int64(u.Chosen) }), perToken("kept", func(_ int, u *moe.TokenUse) int64 { return int64(u.Kept) }),
		perToken("new", func(_ int, u *moe.TokenUse) int64 { return int64(u.New) }), perToken("touched", func(_ int, u *moe.TokenUse) int64 { return int64(u.Touched) }),
	}
	a := &answer{files: append(tableFiles("experts", perExpert, s.model()), tableFiles("experts_tokens", tokenColumns, s.model())...)}
	m, label := expertsMatrix(t, use)
	label.Title, label.Subtitle, label.Caption = s.title("how often experts are chosen"), fmt.Sprintf("%d of %d experts for a token in each of %d layers", t.K, t.Experts, len(t.Layers)), s.caption()
	a.files = append(a.files, figureFiles("experts", cells{m, label}, s.format)...)
	a.files = append(a.files, figureFiles("experts_tokens", s.expertCurves(tokens, n), s.format)...)
	p := moe.NewProfile(t)
	lines := tabular.Lines{
		fmt.Sprintf("%d tokens, of them %d generated, choose %d of %d experts in each of %d layers", len(tokens), len(tokens)-first, t.K, t.Experts, len(t.Layers)),
		fmt.Sprintf("load: %.2f of the most even there can be (the least even layer %.2f); the %d experts used most in the first half carry %.0f %% of the second", p.Entropy, p.Least, p.Hot, 100*p.HotLoad),
		fmt.Sprintf("neighbours: %.0f %% of a token's experts are those of the token before (by chance %.0f %%)", 100*p.Overlap, 100*p.Chance),
		fmt.Sprintf("reuse: after %d, %d and %d tokens (at the quantiles 0.5, 0.75 and 0.9)", p.Reuse[0], p.Reuse[1], p.Reuse[2]),
	}
	if first > 0 {
		lines = append(lines, fmt.Sprintf("the prompt of %d tokens touches %.0f %% of all experts", first, 100*float64(tokens[first-1].Touched)/float64(n)))
	}
	if len(tokens) > 0 {
		lines = append(lines, fmt.Sprintf("all tokens touch %.0f %% of all experts", 100*float64(tokens[len(tokens)-1].Touched)/float64(n)))
	}
	a.text, a.data = tabular.Document{lines}, map[string]any{"profile": p, "experts": rowsOf(perExpert)}
	return a, nil
}

// expertsMatrix has a row for each layer and a column for each expert, for the prompt and for generated tokens: a value is the share of tokens that chose it.
func expertsMatrix(t *moe.Trace, use []moe.Use) (*heatmap.Matrix, heatmap.Text) {
	first := t.FirstDecode()
	m := &heatmap.Matrix{}
	for _, l := range t.Layers {
		m.Rows = append(m.Rows, heatmap.Row{Label: fmt.Sprintf("layer %d", l.Number)})
	}
	type part struct {
		name   string
		tokens int
		of     func(u *moe.Use) int
	}
	var parts []part
	for _, p := range []part{{"experts of the prompt", first, func(u *moe.Use) int { return u.Prompt }}, {"experts of generated tokens", len(t.Tokens) - first, func(u *moe.Use) int { return u.Generated }}} {
		if p.tokens > 0 {
			parts = append(parts, p)
		}
	}
	for _, p := range parts {
		for e := range t.Experts {
			m.Columns = append(m.Columns, heatmap.Column{Panel: p.name, Number: e})
		}
	}
	for layer := range t.Layers {
		for _, p := range parts {
			for e := range t.Experts {
				m.Values = append(m.Values, float32(p.of(&use[layer*t.Experts+e]))/float32(p.tokens))
			}
		}
	}
	return m, heatmap.Text{Scale: "Share of tokens that choose an expert (square-root scale)", Nothing: "never chosen"}
}

// expertCurves are the first touches and the overlap of neighbours, in percent, over the tokens.
func (s *study) expertCurves(tokens []moe.TokenUse, experts int) drawing {
	if len(tokens) < 2 {
		return nil
	}
	f := &chart.Figure{To: float64(len(tokens)), High: 105, XLabel: "token (the prompt's first)", YLabel: "%", Caption: s.caption(), Beside: true, Panels: []chart.Panel{{Title: s.title("experts, token by token")}}}
	touched, kept := chart.Curve{Name: "touched so far", Dots: true}, chart.Curve{Name: "also of the token before", Dots: true}
	each := max(1, len(tokens)/maxFigurePoints)
	for i := 0; i < len(tokens); i += each {
		sum, n := 0, 0
		for _, u := range tokens[i:min(i+each, len(tokens))] {
			sum, n = sum+u.Kept, n+u.Chosen
		}
		touched.Points = append(touched.Points, chart.Point{X: float64(i), Y: 100 * float64(tokens[i].Touched) / float64(experts)})
		if i > 0 && n > 0 {
			kept.Points = append(kept.Points, chart.Point{X: float64(i), Y: 100 * float64(sum) / float64(n)})
		}
	}
	f.Panels[0].Curves = []chart.Curve{touched, kept}
	return f
}
