package hidden

// This file measures predictors on a capture: its routing trace, and what routers and attention read.

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"tensorcast/event"
	"tensorcast/internal/tabular"
	"tensorcast/moe"
	"tensorcast/trace/tables"
)

// Result is how good a predictor is.
type Result struct {
	Name           string `json:"name"`
	When           string `json:"when"`  // when the prediction is made
	Bytes          int64  `json:"bytes"` // of memory for what is learned about inputs
	moe.LeadScores        // Lead is 0 for attention's input of the layer itself
}

// Study is what was found on a trace.
type Study struct {
	Trained int      `json:"trained"` // tokens that were learned from before the first was scored
	Scored  int      `json:"scored"`  // tokens of which some layer was scored
	Inputs  int64    `json:"inputs"`  // rows of the hidden table that were used
	Dim     int      `json:"dim"`
	Routers int64    `json:"router_bytes"`
	Results []Result `json:"results"`
}

// ErrNoInputs says that a hidden table has nothing of the trace's tokens.
var ErrNoInputs = errors.New("no inputs of these tokens")

// maxStep bounds the inputs of one decode call.
const maxStep = 1 << 30

// candidate is a predictor that is judged.
type candidate struct {
	name, when string
	p          *Predictor
	lead       int  // 0: asked when attention's input is known
	ids        bool // inputs are not told
	best       [][]int32
	tally      *moe.Tally
}

// Names of what is judged, and when it is known.
const (
	nameIDs   = "ids, mixture of all"
	nameGuess = "next router on this input"
	nameLinks = "the same, corrected by what was learned"
	nameAll   = "all, mixed"

	whenRouter    = "at the router %d before"
	whenAttention = "at its attention"
)

// Evaluate judges predictors on a trace whose tokens' inputs rows yields, as the hidden table of the same
// capture has them. Tokens before first are only learned from; those from first on are scored, each
// before it is learned from. A layer is scored if it has another one before it, and what the predictor
// goes by was recorded. Errors wrap ErrNoInputs or ErrNoRouters, or are rows', or ctx's.
func Evaluate(
	ctx context.Context, t *moe.Trace, r *Routers, rows iter.Seq2[*tables.HiddenRow, error], first int,
) (*Study, error) {
	w := walk{r: r, scores: make([]float32, r.Experts), order: make([]int32, r.Experts)}
	for _, l := range t.Layers { // the routers' layers
		at := r.Index(l.Number)
		if at < 0 {
			return nil, fmt.Errorf("%w: layer %d of the trace has none", ErrNoRouters, l.Number)
		}
		w.of = append(w.of, at)
	}
	if t.Experts != r.Experts || t.K != r.K {
		return nil, fmt.Errorf("%w: they choose %d of %d experts, the trace %d of %d", ErrNoRouters, r.K, r.Experts,
			t.K, t.Experts)
	}
	all, err := candidates(r, t.Shape())
	if err != nil {
		return nil, err
	}
	in := newInputs(t, r, rows)
	defer in.stop()
	st := &Study{Trained: first, Dim: r.Dim, Routers: r.Bytes()}
	for token := range t.Tokens {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		read, err := in.of(t.Tokens[token].Step, t.Tokens[token].Position)
		if err != nil {
			return nil, err
		}
		part := -1
		if token >= first {
			part = (token - first) * moe.CurvePoints / (len(t.Tokens) - first)
		}
		scored := false
		for i := range all {
			scored = w.token(&all[i], t, token, read, part) || scored
		}
		if scored {
			st.Scored++
		}
	}
	if in.used == 0 {
		return nil, ErrNoInputs
	}
	st.Inputs = in.used
	for i := range all {
		c := &all[i]
		res := Result{Name: c.name, When: c.when, LeadScores: c.tally.Scores(c.lead)}
		if !c.ids {
			res.Bytes = c.p.Bytes()
		}
		st.Results = append(st.Results, res)
	}
	return st, nil
}

// candidates are all that is judged: layers and experts are the routers', the tally goes by the trace's shape.
func candidates(r *Routers, s moe.Shape) (all []candidate, err error) {
	add := func(name string, lead int, ids bool, o Options) {
		if err != nil || lead >= len(r.Blocks) {
			return
		}
		c := candidate{
			name: name, when: whenAttention, lead: lead, ids: ids, best: make([][]int32, len(r.Blocks)),
			tally: moe.NewTally(s),
		}
		for i := range c.best {
			c.best[i] = make([]int32, 0, c.tally.Widest())
		}
		if lead > 0 {
			c.when = fmt.Sprintf(whenRouter, lead)
		}
		c.p, err = New(r, o)
		all = append(all, c)
	}
	for _, lead := range []int{1, 2} {
		leads := []int{lead}
		add(nameIDs, lead, true, Options{Leads: leads})
		add(nameGuess, lead, false, Options{Leads: leads, IDs: -1, raw: true})
		add(nameLinks, lead, false, Options{Leads: leads, IDs: -1})
		add(nameAll, lead, false, Options{Leads: leads})
	}
	add(nameGuess, 0, false, Options{Leads: []int{}, Attention: true, IDs: -1, raw: true})
	add(nameLinks, 0, false, Options{Leads: []int{}, Attention: true, IDs: -1})
	add(nameAll, 0, false, Options{Attention: true})
	return all, err
}

// walk takes candidates through tokens.
type walk struct {
	r      *Routers
	of     []int // by layer of the trace: the routers'
	scores []float32
	order  []int32
}

// token tells a candidate of a token what happened, in its order, and asks it for each layer when it is
// its turn. part is where the token is in the curve, -1 if it is not scored.
func (w *walk) token(c *candidate, t *moe.Trace, token int, in []layerInputs, part int) (scored bool) {
	c.p.Begin(t.Tokens[token].ID)
	for i, layer := range w.of {
		if !c.ids && in != nil {
			if x := in[layer].attention; x != nil {
				c.p.Attention(layer, x)
			}
		}
		if c.lead == 0 {
			w.ask(c, layer)
		}
		if !c.ids && in != nil {
			if x := in[layer].router; x != nil {
				c.p.Router(layer, x)
			}
		}
		chosen := t.Chosen(token, i)
		if part >= 0 && len(chosen) > 0 && c.told(in, layer) {
			c.tally.Add(c.best[layer], chosen, i, part)
			scored = true
		}
		c.p.Observe(layer, chosen)
		if next := layer + c.lead; c.lead > 0 && next < len(w.r.Blocks) {
			w.ask(c, next)
		}
		c.p.Learn(layer)
	}
	return scored
}

// told says whether what a candidate of this lead goes by was recorded for a layer, and there is a layer before it.
func (c *candidate) told(in []layerInputs, layer int) bool {
	switch {
	case in == nil || layer < max(c.lead, 1):
		return false
	case c.lead == 0:
		return in[layer].attention != nil
	}
	return in[layer-c.lead].router != nil
}

func (w *walk) ask(c *candidate, layer int) {
	c.p.Scores(layer, w.scores)
	c.best[layer] = append(c.best[layer][:0], moe.Top(w.scores, w.order, cap(c.best[layer]))...)
}

// layerInputs is what was read in a layer for a token; nil if it was not recorded.
type layerInputs struct{ router, attention []float32 }

// inputs goes through a hidden table, a decode call at a time.
type inputs struct {
	r      *Routers
	next   func() (*tables.HiddenRow, error, bool)
	stop   func()
	steps  map[int32]bool // of the trace
	row    *tables.HiddenRow
	done   bool
	step   int32                   // the last that was read
	tokens map[int32][]layerInputs // of this step, by position
	used   int64
}

func newInputs(t *moe.Trace, r *Routers, rows iter.Seq2[*tables.HiddenRow, error]) *inputs {
	in := &inputs{r: r, step: -1, steps: map[int32]bool{}}
	for i := range t.Tokens {
		in.steps[t.Tokens[i].Step] = true
	}
	in.next, in.stop = iter.Pull2(rows)
	return in
}

// advance finds the next row that is of use. It is valid until the next call.
func (in *inputs) advance() error {
	for {
		row, err, ok := in.next()
		if err != nil {
			return err
		}
		if !ok {
			in.row, in.done = nil, true
			return nil
		}
		if in.steps[row.Step] && row.Position != tables.NoPosition && len(row.Values) == in.r.Dim &&
			in.r.Index(row.Layer) >= 0 {
			in.row = row
			return nil
		}
	}
}

// of is what was read of a token, by the routers' layers; nil if nothing was recorded. Tokens are asked
// for in their order.
func (in *inputs) of(step, position int32) ([]layerInputs, error) {
	for in.step < step && !in.done {
		if in.row == nil {
			if err := in.advance(); err != nil {
				return nil, err
			}
			continue
		}
		if in.row.Step < in.step {
			return nil, fmt.Errorf("inputs of step %d come after those of step %d", in.row.Step, in.step)
		}
		if in.row.Step > step {
			return nil, nil // of a later token
		}
		if err := in.read(in.row.Step); err != nil {
			return nil, err
		}
	}
	if in.step != step {
		return nil, nil
	}
	return in.tokens[position], nil
}

// read reads all rows of a step.
func (in *inputs) read(step int32) error {
	in.step, in.tokens = step, map[int32][]layerInputs{}
	bytes := 0
	for !in.done && in.row.Step == step {
		if bytes += 4 * in.r.Dim; bytes > maxStep {
			return fmt.Errorf("step %d has inputs of more than %d MiB", step, maxStep>>20)
		}
		token := in.tokens[in.row.Position]
		if token == nil {
			token = make([]layerInputs, len(in.r.Blocks))
			in.tokens[in.row.Position] = token
		}
		at := &token[in.r.Index(in.row.Layer)]
		values := append([]float32(nil), in.row.Values...)
		if in.row.Point == event.PointRouter {
			at.router = values
		} else {
			at.attention = values
		}
		in.used++
		if err := in.advance(); err != nil {
			return err
		}
	}
	return nil
}

// Document lays a study out for people.
func (st *Study) Document() tabular.Document {
	t := &tabular.Table{
		Title: fmt.Sprintf("recall / precision with hidden states (%d values), by number of guesses: learned "+
			"from %d tokens, then scored on %d, each before it is learned from", st.Dim, st.Trained, st.Scored),
		Columns: tabular.Left("told", "predictor"),
	}
	d := tabular.Document{t}
	for i := range st.Results {
		r := &st.Results[i]
		row := []string{r.When, r.Name}
		for _, s := range r.Scores {
			if len(t.Rows) == 0 {
				t.Columns = append(t.Columns, tabular.Right(fmt.Sprint(s.N))...)
			}
			row = append(row, fmt.Sprintf("%.3f / %.3f", s.Recall, s.Precision))
		}
		t.Rows = append(t.Rows, row)
		if r.Name == nameAll {
			var points string
			for _, x := range r.Curve {
				points += fmt.Sprintf(" %.2f", x)
			}
			d = append(d, tabular.Lines{fmt.Sprintf("recall of %s, told %s, with as many guesses as are chosen, "+
				"by eighths of the scored tokens:%s", r.Name, r.When, points)})
		}
	}
	return d
}
