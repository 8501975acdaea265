package main

// This file has the analysis of a mixture's experts.

import (
	"context"
	"errors"
	"fmt"
	"math"

	"tensorcast/heatmap"
	"tensorcast/internal/chart"
	"tensorcast/internal/tabular"
	"tensorcast/moe"
	"tensorcast/report"
	"tensorcast/trace/tables"
)

const expertsLong = `analyze experts writes tables (CSV and Parquet) and figures:

  experts            each expert of each layer: how often the prompt and generated tokens chose it, and after how many tokens again
  experts_layers     each layer: how even its load is, its hottest and coldest expert, how many of its choices the token before made, too
  experts_tokens     each token: how many of its experts the token before had chosen, and how many no token before had
  experts_together   which share of all experts 1, 2, 4, ... consecutive tokens touch: a prompt of so many, or a batch

The figures are the share of tokens that chooses each expert (experts), the choices of each token (experts_map), and the curves of
first touches and of overlap (experts_tokens). analyze moe says what caches and prediction would gain.`

// routes is which experts the analysed context's tokens chose.
func (s *study) routes() (*moe.Trace, error) {
	empty := s.experts()
	if empty == nil {
		return nil, fmt.Errorf("%w: this is a dense model", moe.ErrNoRoutes)
	}
	steps, err := moe.Steps(s.in.capture.Steps(), s.pattern.Context)
	if err != nil {
		return nil, err
	}
	return moe.FromRoutes(empty, s.in.capture.Routes(), steps)
}

// columnsOf makes a table's columns of its rows.
type columnsOf[T any] struct {
	rows []T
	all  []tables.Column
}

func (c *columnsOf[T]) ints(name string, of func(i int, row *T) int) {
	values := make([]int64, len(c.rows))
	for i := range c.rows {
		values[i] = int64(of(i, &c.rows[i]))
	}
	c.all = append(c.all, tables.Column{Name: name, Values: values})
}

func (c *columnsOf[T]) floats(name string, of func(row *T) float64) {
	values := make([]float64, len(c.rows))
	for i := range c.rows {
		values[i] = of(&c.rows[i])
	}
	c.all = append(c.all, tables.Column{Name: name, Values: values})
}

func (c *columnsOf[T]) texts(name string, of func(i int) string) {
	values := make([]string, len(c.rows))
	for i := range c.rows {
		values[i] = of(i)
	}
	c.all = append(c.all, tables.Column{Name: name, Values: values})
}

// shareOf is NaN where there is nothing to have a share of.
func shareOf(part, of int) float64 {
	if of == 0 {
		return math.NaN()
	}
	return float64(part) / float64(of)
}

// expertsAnswer says how experts are used.
func expertsAnswer(_ context.Context, s *study) (*answer, error) {
	t, err := s.routes()
	if err != nil {
		return nil, err
	}
	number := func(layer int) int { return int(t.Layers[layer].Number) }
	each := columnsOf[moe.Use]{rows: t.Use()}
	each.ints("layer", func(_ int, u *moe.Use) int { return number(u.Layer) })
	each.ints("expert", func(_ int, u *moe.Use) int { return u.Expert })
	each.ints("prompt_tokens", func(_ int, u *moe.Use) int { return u.Prompt })
	each.ints("generated_tokens", func(_ int, u *moe.Use) int { return u.Generated })
	each.ints("first_token", func(_ int, u *moe.Use) int { return u.First })
	each.ints("last_token", func(_ int, u *moe.Use) int { return u.Last })
	each.floats("reuse_tokens", func(u *moe.Use) float64 {
		if u.Reuse == 0 {
			return math.NaN()
		}
		return u.Reuse
	})

	layers := columnsOf[moe.LayerUse]{rows: t.LayerUses()}
	layers.ints("layer", func(_ int, u *moe.LayerUse) int { return number(u.Layer) })
	layers.ints("choices", func(_ int, u *moe.LayerUse) int { return u.Chosen })
	layers.ints("experts_used", func(_ int, u *moe.LayerUse) int { return u.Used })
	layers.floats("load_entropy", func(u *moe.LayerUse) float64 { return u.Entropy })
	layers.ints("hottest_expert", func(_ int, u *moe.LayerUse) int { return u.Hottest })
	layers.ints("hottest_choices", func(_ int, u *moe.LayerUse) int { return u.Most })
	layers.ints("coldest_expert", func(_ int, u *moe.LayerUse) int { return u.Coldest })
	layers.ints("coldest_choices", func(_ int, u *moe.LayerUse) int { return u.Least })
	layers.floats("hot_quarter_share", func(u *moe.LayerUse) float64 { return shareOf(u.Hot, u.Chosen) })
	layers.floats("kept_share", func(u *moe.LayerUse) float64 { return shareOf(u.Kept, u.Chosen) })

	tokens, first := columnsOf[moe.TokenUse]{rows: t.TokenUses()}, t.FirstDecode()
	tokens.ints("token", func(i int, _ *moe.TokenUse) int { return i })
	tokens.texts("phase", func(i int) string {
		if i >= first {
			return tables.PhaseGeneration.String()
		}
		return tables.PhasePrompt.String()
	})
	tokens.ints("chosen", func(_ int, u *moe.TokenUse) int { return u.Chosen })
	tokens.ints("kept", func(_ int, u *moe.TokenUse) int { return u.Kept })
	tokens.ints("new", func(_ int, u *moe.TokenUse) int { return u.New })
	tokens.ints("touched", func(_ int, u *moe.TokenUse) int { return u.Touched })

	together := columnsOf[moe.Together]{rows: t.Together()}
	together.ints("tokens", func(_ int, o *moe.Together) int { return o.Tokens })
	together.floats("prompt_share", func(o *moe.Together) float64 { return o.Prompt })
	together.floats("generated_share", func(o *moe.Together) float64 { return o.Generated })

	a := &answer{}
	for _, table := range []struct {
		name    string
		columns []tables.Column
	}{{"experts", each.all}, {"experts_layers", layers.all}, {"experts_tokens", tokens.all}, {"experts_together", together.all}} {
		a.files = append(a.files, tableFiles(table.name, table.columns, s.model())...)
	}
	m, label := expertsMatrix(t, each.rows)
	label.Title, label.Subtitle, label.Caption = s.title("how often experts are chosen"), fmt.Sprintf("%d of %d experts for a token in each of %d layers", t.K, t.Experts, len(t.Layers)), s.caption()
	a.files = append(a.files, figureFiles("experts", cells{m, label}, s.format)...)
	a.files = append(a.files, figureFiles("experts_map", s.expertsMap(t), s.format)...)
	a.files = append(a.files, figureFiles("experts_tokens", s.expertCurves(tokens.rows, len(each.rows)), s.format)...)

	p := moe.NewProfile(t)
	found := struct {
		Tokens          int              `json:"tokens"`
		Generated       int              `json:"generated_tokens"`
		Chosen          int              `json:"experts_per_token"`
		Of              int              `json:"experts_per_layer"`
		Layers          int              `json:"layers"`
		PromptTouches   *float64         `json:"prompt_touches_share"` // null without a prompt
		AllTouch        *float64         `json:"all_touch_share"`
		Profile         moe.Profile      `json:"profile"`
		Experts         []map[string]any `json:"experts"`
		ByLayer         []map[string]any `json:"by_layer"`
		TokensTogether  []map[string]any `json:"together"`
		ChosenTokenwise []map[string]any `json:"by_token"`
	}{
		Tokens: len(t.Tokens), Generated: len(t.Tokens) - first, Chosen: t.K, Of: t.Experts, Layers: len(t.Layers), Profile: p,
		Experts: rowsOf(each.all), ByLayer: rowsOf(layers.all), TokensTogether: rowsOf(together.all), ChosenTokenwise: rowsOf(tokens.all),
	}
	touched := func(tokensUntil int) *float64 {
		if tokensUntil == 0 {
			return nil
		}
		share := shareOf(tokens.rows[tokensUntil-1].Touched, len(each.rows))
		return &share
	}
	found.PromptTouches, found.AllTouch = touched(first), touched(len(t.Tokens))
	lines := tabular.Lines{
		fmt.Sprintf("%d tokens, of them %d generated, choose %d of %d experts in each of %d layers", found.Tokens, found.Generated, t.K, t.Experts, len(t.Layers)),
		fmt.Sprintf("load: %.2f of the most even there can be (the least even layer %.2f); the %d experts used most in the first half carry %.0f %% of the second", p.Entropy, p.Least, p.Hot, 100*p.HotLoad),
		fmt.Sprintf("neighbours: %.0f %% of a token's experts are those of the token before (by chance %.0f %%)", 100*p.Overlap, 100*p.Chance),
		fmt.Sprintf("reuse: after %d, %d and %d tokens (at the quantiles 0.5, 0.75 and 0.9)", p.Reuse[0], p.Reuse[1], p.Reuse[2]),
	}
	if share := found.PromptTouches; share != nil {
		lines = append(lines, fmt.Sprintf("the prompt of %d tokens touches %.0f %% of all experts", first, 100**share))
	}
	if share := found.AllTouch; share != nil {
		lines = append(lines, fmt.Sprintf("all tokens touch %.0f %% of all experts", 100**share))
	}
	shares := &tabular.Table{Title: "share of all experts that consecutive tokens touch together", Columns: tabular.Right("tokens", "of a prompt", "generated")}
	percent := func(share float64) string {
		if math.IsNaN(share) {
			return "-"
		}
		return fmt.Sprintf("%.1f %%", 100*share)
	}
	for _, o := range together.rows {
		shares.Rows = append(shares.Rows, []string{fmt.Sprint(o.Tokens), percent(o.Prompt), percent(o.Generated)})
	}
	a.text, a.data = tabular.Document{lines, shares}, found
	return a, nil
}

// expertsMap draws which experts each token chooses: a row for each of each layer. It is nil, and the reason is told, if there are too many.
func (s *study) expertsMap(t *moe.Trace) drawing {
	rows, first := len(t.Layers)*t.Experts, t.FirstDecode()
	if len(t.Tokens) == 0 || rows > heatmap.MaxRows || rows > maxValues/len(t.Tokens) || rows > maxCells/min(len(t.Tokens), 2*1200) {
		s.in.warn("left out: the figure experts_map: %d experts and %d tokens cannot be drawn", rows, len(t.Tokens))
		return nil
	}
	m := &heatmap.Matrix{Values: make([]float32, rows*len(t.Tokens))}
	for i := range t.Tokens {
		c := heatmap.Column{Panel: "tokens of the prompt", Number: i}
		if i >= first {
			c = heatmap.Column{Panel: panelNames[tables.PhaseGeneration], Number: i - first}
		}
		m.Columns = append(m.Columns, c)
	}
	for layer := range t.Layers {
		for e := range t.Experts {
			m.Rows = append(m.Rows, heatmap.Row{Label: fmt.Sprint("expert ", e), Block: fmt.Sprint("layer ", t.Layers[layer].Number)})
		}
		for i := range t.Tokens {
			for _, e := range t.Chosen(i, layer) {
				m.Values[(layer*t.Experts+int(e))*len(t.Tokens)+i] = 1
			}
		}
	}
	return cells{m, heatmap.Text{
		Title: s.title("which experts tokens choose"), Subtitle: fmt.Sprintf("a row for each of the %d experts of each layer, in their order; the last layer of a prompt is computed for its last token only", t.Experts),
		Scale: "Share of a column's tokens that choose an expert (square-root scale)", Nothing: "not chosen", Caption: s.caption(),
	}}
}

// expertsHeat is the same for the page, step by step; nil if the model is dense, its routers were not observed, or there are too many steps.
func (s *study) expertsHeat() (*report.Heatmap, error) {
	t, err := s.routes()
	if errors.Is(err, moe.ErrNoRoutes) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	steps := s.sums.Steps()
	if len(steps) == 0 || t.Experts > maxValues/len(steps) {
		return nil, nil
	}
	h := &report.Heatmap{Name: "experts chosen", Unit: "%", About: "Which share of each step's tokens chose an expert: a row for each of each layer, in their order."}
	for _, l := range t.Layers {
		for e := range t.Experts {
			h.Rows = append(h.Rows, report.Row{Name: fmt.Sprintf("layer %d, expert %d", l.Number, e), Weight: 1})
		}
	}
	index := make(map[int32]int, len(steps))
	for i := range steps {
		index[steps[i].Step] = i
	}
	// Rows are asked for in their order: one layer's shares are kept.
	kept, shares := -1, make([]float32, t.Experts*len(steps))
	fill := func(layer int) {
		kept = layer
		clear(shares)
		tokens := make([]int, len(steps))
		for i := range t.Tokens {
			at, ok := index[t.Tokens[i].Step]
			if !ok {
				continue
			}
			chosen := t.Chosen(i, layer)
			if len(chosen) > 0 {
				tokens[at]++
			}
			for _, e := range chosen {
				shares[int(e)*len(steps)+at]++
			}
		}
		for at, n := range tokens {
			for e := range t.Experts {
				if n == 0 {
					shares[e*len(steps)+at] = float32(math.NaN())
				} else {
					shares[e*len(steps)+at] *= 100 / float32(n)
				}
			}
		}
	}
	h.At = func(row, step int) float64 {
		if layer := row / t.Experts; layer != kept {
			fill(layer)
		}
		return float64(shares[row%t.Experts*len(steps)+step])
	}
	return h, nil
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
