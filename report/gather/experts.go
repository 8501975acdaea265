package gather

// This file says how a mixture of experts uses its experts: as tables, figures, sentences and JSON.

import (
	"fmt"
	"math"
	"slices"

	"tensorcast/heatmap"
	"tensorcast/internal/chart"
	"tensorcast/internal/tabular"
	"tensorcast/moe"
	"tensorcast/report"
	"tensorcast/trace/tables"
)

// Experts is the use of a mixture's experts, counted once for all tables and figures.
type Experts struct {
	trace    *moe.Trace
	uses     []moe.Use // of each expert, layer by layer
	layers   []moe.LayerUse
	tokens   []moe.TokenUse
	together []moe.Together
	profile  moe.Profile
	tables   []NamedTable
}

// NamedTable is a table for files.
type NamedTable struct {
	Name    string // of the file, without extension
	Columns []tables.Column
}

// NewExperts counts which experts a trace's tokens chose.
func NewExperts(t *moe.Trace) *Experts {
	e := &Experts{
		trace: t, uses: t.Uses(), layers: t.LayerUses(), tokens: t.TokenUses(), together: t.Together(),
		profile: moe.NewProfile(t),
	}
	e.tables = []NamedTable{
		{"experts", e.useColumns()}, {"experts_layers", e.layerColumns()},
		{"experts_tokens", e.tokenColumns()}, {"experts_together", e.togetherColumns()},
	}
	return e
}

// Tables are one of experts, one of layers, one of tokens, and one of consecutive tokens together.
func (e *Experts) Tables() []NamedTable { return e.tables }

// columnsOf makes a table's columns from rows of any type.
type columnsOf[T any] struct {
	rows    []T
	columns []tables.Column
}

func (c *columnsOf[T]) ints(name string, value func(i int, row *T) int) {
	values := make([]int64, len(c.rows))
	for i := range c.rows {
		values[i] = int64(value(i, &c.rows[i]))
	}
	c.columns = append(c.columns, tables.Column{Name: name, Values: values})
}

func (c *columnsOf[T]) floats(name string, value func(row *T) float64) {
	values := make([]float64, len(c.rows))
	for i := range c.rows {
		values[i] = value(&c.rows[i])
	}
	c.columns = append(c.columns, tables.Column{Name: name, Values: values})
}

func (c *columnsOf[T]) texts(name string, value func(i int) string) {
	values := make([]string, len(c.rows))
	for i := range c.rows {
		values[i] = value(i)
	}
	c.columns = append(c.columns, tables.Column{Name: name, Values: values})
}

// ratio is NaN where there is nothing to have a share of.
func ratio(part, whole int) float64 {
	if whole == 0 {
		return math.NaN()
	}
	return float64(part) / float64(whole)
}

// layerNumber is a layer's number in the model; index is that in Trace.Layers.
func (e *Experts) layerNumber(index int) int { return int(e.trace.Layers[index].Number) }

func (e *Experts) useColumns() []tables.Column {
	c := columnsOf[moe.Use]{rows: e.uses}
	c.ints("layer", func(_ int, u *moe.Use) int { return e.layerNumber(u.Layer) })
	c.ints("expert", func(_ int, u *moe.Use) int { return u.Expert })
	c.ints("prompt_tokens", func(_ int, u *moe.Use) int { return u.Prompt })
	c.ints("generated_tokens", func(_ int, u *moe.Use) int { return u.Generated })
	c.ints("first_token", func(_ int, u *moe.Use) int { return u.First })
	c.ints("last_token", func(_ int, u *moe.Use) int { return u.Last })
	c.floats("reuse_tokens", func(u *moe.Use) float64 {
		if u.Reuse == 0 {
			return math.NaN()
		}
		return u.Reuse
	})
	return c.columns
}

func (e *Experts) layerColumns() []tables.Column {
	c := columnsOf[moe.LayerUse]{rows: e.layers}
	c.ints("layer", func(_ int, u *moe.LayerUse) int { return e.layerNumber(u.Layer) })
	c.ints("choices", func(_ int, u *moe.LayerUse) int { return u.Chosen })
	c.ints("experts_used", func(_ int, u *moe.LayerUse) int { return u.Used })
	c.floats("load_entropy", func(u *moe.LayerUse) float64 { return u.Entropy })
	c.ints("hottest_expert", func(_ int, u *moe.LayerUse) int { return u.Hottest })
	c.ints("hottest_choices", func(_ int, u *moe.LayerUse) int { return u.Most })
	c.ints("coldest_expert", func(_ int, u *moe.LayerUse) int { return u.Coldest })
	c.ints("coldest_choices", func(_ int, u *moe.LayerUse) int { return u.Least })
	c.floats("hot_quarter_share", func(u *moe.LayerUse) float64 { return ratio(u.Hot, u.Chosen) })
	c.floats("kept_share", func(u *moe.LayerUse) float64 { return ratio(u.Kept, u.Chosen) })
	return c.columns
}

func (e *Experts) tokenColumns() []tables.Column {
	c, first := columnsOf[moe.TokenUse]{rows: e.tokens}, e.trace.FirstDecode()
	c.ints("token", func(i int, _ *moe.TokenUse) int { return i })
	c.texts("phase", func(i int) string {
		if i >= first {
			return tables.PhaseGeneration.String()
		}
		return tables.PhasePrompt.String()
	})
	c.ints("chosen", func(_ int, u *moe.TokenUse) int { return u.Chosen })
	c.ints("kept", func(_ int, u *moe.TokenUse) int { return u.Kept })
	c.ints("new", func(_ int, u *moe.TokenUse) int { return u.New })
	c.ints("touched", func(_ int, u *moe.TokenUse) int { return u.Touched })
	return c.columns
}

func (e *Experts) togetherColumns() []tables.Column {
	c := columnsOf[moe.Together]{rows: e.together}
	c.ints("tokens", func(_ int, o *moe.Together) int { return o.Tokens })
	c.floats("prompt_share", func(o *moe.Together) float64 { return o.Prompt })
	c.floats("generated_share", func(o *moe.Together) float64 { return o.Generated })
	return c.columns
}

// touchedShare is the share of all experts that the first tokens touched; nil if there are no tokens.
func (e *Experts) touchedShare(tokens int) *float64 {
	if tokens == 0 {
		return nil
	}
	share := ratio(e.tokens[tokens-1].Touched, len(e.uses))
	return &share
}

// Data is everything for JSON.
func (e *Experts) Data() any {
	t, first := e.trace, e.trace.FirstDecode()
	return struct {
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
		Tokens: len(t.Tokens), Generated: len(t.Tokens) - first, Chosen: t.K, Of: t.Experts, Layers: len(t.Layers),
		PromptTouches: e.touchedShare(first), AllTouch: e.touchedShare(len(t.Tokens)), Profile: e.profile,
		Experts: Records(e.tables[0].Columns), ByLayer: Records(e.tables[1].Columns),
		ChosenTokenwise: Records(e.tables[2].Columns), TokensTogether: Records(e.tables[3].Columns),
	}
}

// Document is what a terminal shows.
func (e *Experts) Document() tabular.Document {
	t, p, first := e.trace, &e.profile, e.trace.FirstDecode()
	lines := tabular.Lines{
		fmt.Sprintf("%d tokens, of them %d generated, choose %d of %d experts in each of %d layers",
			len(t.Tokens), len(t.Tokens)-first, t.K, t.Experts, len(t.Layers)),
		fmt.Sprintf("load: %.2f of the most even there can be (the least even layer %.2f); "+
			"the %d experts used most in the first half carry %.0f %% of the second", p.Entropy, p.Least, p.Hot,
			100*p.HotLoad),
		fmt.Sprintf("neighbours: %.0f %% of a token's experts are those of the token before (at random %.0f %%)",
			100*p.Overlap, 100*p.Chance),
		fmt.Sprintf("reuse: after %d, %d and %d tokens (at the quantiles 0.5, 0.75 and 0.9)", p.Reuse[0], p.Reuse[1],
			p.Reuse[2]),
	}
	if share := e.touchedShare(first); share != nil {
		lines = append(lines, fmt.Sprintf("the prompt of %d tokens touches %.0f %% of all experts", first, 100**share))
	}
	if share := e.touchedShare(len(t.Tokens)); share != nil {
		lines = append(lines, fmt.Sprintf("all tokens touch %.0f %% of all experts", 100**share))
	}
	shares := &tabular.Table{
		Title:   "share of all experts that consecutive tokens touch together",
		Columns: tabular.Right("tokens", "of a prompt", "generated"),
	}
	percent := func(share float64) string {
		if math.IsNaN(share) {
			return "-"
		}
		return fmt.Sprintf("%.1f %%", 100*share)
	}
	for _, o := range e.together {
		shares.Rows = append(shares.Rows, []string{fmt.Sprint(o.Tokens), percent(o.Prompt), percent(o.Generated)})
	}
	return tabular.Document{lines, shares}
}

// Bounds of what can be told apart in a figure of experts. Beyond them, neighbours share a column or a row, and the
// experts of a layer are in the order of use, so that neighbours are alike.
const (
	maxExpertColumns = 256  // of a panel: narrower columns are no wider than a line
	maxExpertRows    = 2400 // of all layers
	leastExpertRows  = 8    // of a layer
)

// byUse has the experts of a layer, the most chosen first.
func (e *Experts) byUse(layer int) []int {
	uses := e.uses[layer*e.trace.Experts : (layer+1)*e.trace.Experts]
	order := make([]int, len(uses))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return uses[b].Prompt + uses[b].Generated - uses[a].Prompt - uses[a].Generated
	})
	return order
}

// ShareFigure has a row for each layer and a column for each expert, once for the prompt and once for generated tokens.
// A value is the share of tokens that chose the expert. Of very many experts the most used come first, and a column
// has the mean of several. The caller adds title and caption.
func (e *Experts) ShareFigure() *heatmap.Figure {
	t, first := e.trace, e.trace.FirstDecode()
	m := &heatmap.Matrix{}
	for _, l := range t.Layers {
		m.Rows = append(m.Rows, heatmap.Row{Label: fmt.Sprintf("layer %d", l.Number)})
	}
	type panel struct {
		name   string
		tokens int
		count  func(u *moe.Use) int
	}
	var panels []panel
	for _, p := range []panel{
		{"experts of the prompt", first, func(u *moe.Use) int { return u.Prompt }},
		{"experts of generated tokens", len(t.Tokens) - first, func(u *moe.Use) int { return u.Generated }},
	} {
		if p.tokens > 0 {
			panels = append(panels, p)
		}
	}
	each := (t.Experts + maxExpertColumns - 1) / maxExpertColumns
	subtitle := fmt.Sprintf("%d of %d experts for a token in each of %d layers", t.K, t.Experts, len(t.Layers))
	if each > 1 {
		subtitle += fmt.Sprintf("; those chosen most come first, each column is the mean of %d", each)
	}
	for _, p := range panels {
		for expert := 0; expert < t.Experts; expert += each {
			m.Columns = append(m.Columns, heatmap.Column{Panel: p.name, Number: expert})
		}
	}
	for layer := range t.Layers {
		uses := e.uses[layer*t.Experts : (layer+1)*t.Experts]
		order := e.byUse(layer)
		for _, p := range panels {
			if each == 1 {
				for expert := range uses {
					m.Values = append(m.Values, float32(p.count(&uses[expert]))/float32(p.tokens))
				}
				continue
			}
			for some := range slices.Chunk(order, each) {
				sum := 0
				for _, expert := range some {
					sum += p.count(&uses[expert])
				}
				m.Values = append(m.Values, float32(sum)/float32(p.tokens*len(some)))
			}
		}
	}
	return &heatmap.Figure{Matrix: m, Text: heatmap.Text{
		Subtitle: subtitle,
		Scale:    "Share of tokens that choose an expert (square-root scale)",
		Nothing:  "never chosen",
	}}
}

// ChoiceFigure shows which experts each token chooses: it has a row for each expert of each layer, and a column for
// each token. Of very many experts the most used come first in each layer, and several share a row. The error says that
// there are too many to draw. The caller adds title and caption.
func (e *Experts) ChoiceFigure() (*heatmap.Figure, error) {
	t := e.trace
	each := 1 // experts of a row
	if len(t.Layers)*t.Experts > maxExpertRows {
		each = (t.Experts-1)/max(maxExpertRows/len(t.Layers), leastExpertRows) + 1
	}
	ofLayer := (t.Experts + each - 1) / each
	rows, tokens, first := len(t.Layers)*ofLayer, len(t.Tokens), t.FirstDecode()
	const panels = 2
	if tokens == 0 || rows > heatmap.MaxRows || rows > maxValues/tokens ||
		rows > maxDrawn/min(tokens, panels*heatmap.MaxColumns) {
		return nil, fmt.Errorf("%d experts and %d tokens cannot be drawn", len(t.Layers)*t.Experts, tokens)
	}
	m := &heatmap.Matrix{Values: make([]float32, rows*tokens)}
	for i := range t.Tokens {
		c := heatmap.Column{Panel: "tokens of the prompt", Number: i}
		if i >= first {
			c = heatmap.Column{Panel: phasePanels[tables.PhaseGeneration], Number: i - first}
		}
		m.Columns = append(m.Columns, c)
	}
	rowOf := make([]int, t.Experts)
	for layer := range t.Layers {
		order := e.byUse(layer)
		for rank, expert := range order {
			rowOf[expert] = layer*ofLayer + rank/each
			if each == 1 {
				rowOf[expert] = layer*ofLayer + expert
			}
		}
		for row := range ofLayer {
			label := fmt.Sprint("expert ", row)
			if each > 1 {
				label = fmt.Sprintf("experts %d to %d by use", row*each, min((row+1)*each, t.Experts)-1)
			}
			m.Rows = append(m.Rows, heatmap.Row{
				Label: label, Block: fmt.Sprint("layer ", t.Layers[layer].Number),
			})
		}
		for i := range t.Tokens {
			for _, expert := range t.Chosen(i, layer) {
				m.Values[rowOf[expert]*tokens+i] = 1
			}
		}
	}
	text := heatmap.Text{
		Subtitle: fmt.Sprintf("a row for each of the %d experts of each layer, in their order; "+
			"the last layer of a prompt is computed for its last token only", t.Experts),
		Scale:   "Share of a column's tokens that choose an expert (square-root scale)",
		Nothing: "not chosen",
	}
	if each > 1 {
		text.Subtitle = fmt.Sprintf("a row for %d of the %d experts of each layer, those chosen most first; "+
			"the last layer of a prompt is computed for its last token only", each, t.Experts)
		text.Scale = "Share of a column's tokens that choose an expert of the row (square-root scale)"
	}
	return &heatmap.Figure{Matrix: m, Text: text}, nil
}

// TokensFigure has two curves over the tokens, in percent: the share of all experts that was touched so far, and the
// share of a token's experts that the token before chose, too. It is nil if there are less than two tokens.
func (e *Experts) TokensFigure(title, caption string) *chart.Figure {
	tokens := e.tokens
	if len(tokens) < 2 {
		return nil
	}
	touched := chart.Curve{Name: "of all: touched so far", Dots: true}
	kept := chart.Curve{Name: "of the token's: those of the one before", Dots: true}
	each := max(1, len(tokens)/maxCurvePoints)
	for i := 0; i < len(tokens); i += each {
		sum, n := 0, 0
		for _, u := range tokens[i:min(i+each, len(tokens))] {
			sum, n = sum+u.Kept, n+u.Chosen
		}
		touched.Points = append(touched.Points, chart.Point{
			X: float64(i), Y: 100 * float64(tokens[i].Touched) / float64(len(e.uses)),
		})
		if i > 0 && n > 0 {
			kept.Points = append(kept.Points, chart.Point{X: float64(i), Y: 100 * float64(sum) / float64(n)})
		}
	}
	return &chart.Figure{
		To: float64(len(tokens)), High: 105, XLabel: "token (the prompt's first)", YLabel: "share of experts (%)",
		Caption: caption, Beside: true,
		Panels: []chart.Panel{{Title: title, Curves: []chart.Curve{touched, kept}}},
	}
}

// Maps are maps of use for a page: which share of tokens chose each expert of each layer, those that are generated
// first.
func (e *Experts) Maps() (all []report.Map) {
	t, first := e.trace, e.trace.FirstDecode()
	for _, p := range []struct {
		name   string
		tokens int
		count  func(u *moe.Use) int
	}{
		{"generated tokens", len(t.Tokens) - first, func(u *moe.Use) int { return u.Generated }},
		{"tokens of the prompt", first, func(u *moe.Use) int { return u.Prompt }},
	} {
		if p.tokens == 0 {
			continue
		}
		m := report.Map{
			Name: p.name, Unit: "%", Column: "expert", Columns: t.Experts,
			About: fmt.Sprintf("Which share of the %d %s chose each expert of each layer. If all were chosen as often, it "+
				"would be %.3g %%.", p.tokens, p.name, 100*ratio(t.K, t.Experts)),
			At: func(row, column int) float64 {
				return 100 * float64(p.count(&e.uses[row*t.Experts+column])) / float64(p.tokens)
			},
		}
		for _, l := range t.Layers {
			m.Rows = append(m.Rows, fmt.Sprintf("layer %d", l.Number))
		}
		all = append(all, m)
	}
	return all
}

// LayersTable is a table for a page: how even the use of each layer's experts is, and which are hot and cold.
func (e *Experts) LayersTable() report.Table {
	t := report.Table{
		Name: "Experts by layer",
		About: "Evenness is 1 if all experts are chosen as often. A hot quarter is the quarter of a layer's experts that " +
			"is chosen most.",
		Columns: []report.Column{
			{Name: "layer"}, {Name: "experts used"}, {Name: "of"}, {Name: "evenness"},
			{Name: "hottest"}, {Name: "its share of choices", Unit: "%"},
			{Name: "coldest"}, {Name: "its share of choices", Unit: "%"},
			{Name: "share of the hot quarter", Unit: "%"}, {Name: "also of the token before", Unit: "%"},
		},
	}
	for i := range e.layers {
		u := &e.layers[i]
		percent := func(part int) float64 { return 100 * ratio(part, u.Chosen) }
		t.Rows = append(t.Rows, []any{
			float64(e.layerNumber(i)), float64(u.Used), float64(e.trace.Experts), u.Entropy,
			float64(u.Hottest), percent(u.Most), float64(u.Coldest), percent(u.Least), percent(u.Hot), percent(u.Kept),
		})
	}
	return t
}

// ExpertsHeatmap shows on a page, step by step, which share of the step's tokens chose each expert. It is nil if there
// are no steps, or too many. It may be asked in one goroutine only, and is fast if rows are asked for in order.
func ExpertsHeatmap(t *moe.Trace, steps []tables.StepRow) *report.Heatmap {
	if len(steps) == 0 || t.Experts > maxValues/len(steps) {
		return nil
	}
	h := &report.Heatmap{
		Name: "experts chosen", Unit: "%",
		About: "Which share of each step's tokens chose an expert: a row for each of each layer, in their order.",
	}
	for _, l := range t.Layers {
		for expert := range t.Experts {
			h.Rows = append(h.Rows, report.Row{
				Name: fmt.Sprintf("layer %d, expert %d", l.Number, expert), Weight: 1,
				Block: fmt.Sprint("layer ", l.Number),
			})
		}
	}
	index := make(map[int32]int, len(steps))
	for i := range steps {
		index[steps[i].Step] = i
	}
	// Rows are asked for in order, so the shares of one layer are kept at a time.
	kept, shares := -1, make([]float32, t.Experts*len(steps))
	fillLayer := func(layer int) {
		kept = layer
		clear(shares)
		tokens := make([]int, len(steps)) // that were routed in the layer
		for i := range t.Tokens {
			step, ok := index[t.Tokens[i].Step]
			if !ok {
				continue
			}
			chosen := t.Chosen(i, layer)
			if len(chosen) > 0 {
				tokens[step]++
			}
			for _, expert := range chosen {
				shares[int(expert)*len(steps)+step]++
			}
		}
		for step, n := range tokens {
			for expert := range t.Experts {
				if n == 0 {
					shares[expert*len(steps)+step] = float32(math.NaN())
				} else {
					shares[expert*len(steps)+step] *= 100 / float32(n)
				}
			}
		}
	}
	h.At = func(row, step int) float64 {
		if layer := row / t.Experts; layer != kept {
			fillLayer(layer)
		}
		return float64(shares[row%t.Experts*len(steps)+step])
	}
	return h
}
