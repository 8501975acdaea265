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

// Result says how good a predictor is.
type Result struct {
	Name           string `json:"name"`
	When           string `json:"when"`  // when the prediction is made
	Bytes          int64  `json:"bytes"` // of memory for what is learned about inputs
	moe.LeadScores        // Lead is 0 for attention's input of the layer itself
}

// Study has the results of all predictors on a trace.
type Study struct {
	Trained int      `json:"trained"` // tokens that were learned from before the first was scored
	Scored  int      `json:"scored"`  // tokens in which some layer was scored
	Inputs  int64    `json:"inputs"`  // rows of the hidden table that were used
	Dim     int      `json:"dim"`
	Routers int64    `json:"router_bytes"`
	Results []Result `json:"results"`
}

// ErrNoInputs says that a hidden table has no inputs of the trace's tokens.
var ErrNoInputs = errors.New("no inputs of these tokens")

// maxStep bounds the bytes of the inputs of one decode call.
const maxStep = 1 << 30

// candidate is a predictor that is judged.
type candidate struct {
	name, when string
	predictor  *Predictor
	lead       int  // 0: asked when attention's input is known
	idsOnly    bool // inputs are kept from it
	best       [][]int32
	tally      *moe.Tally
}

// Names of the candidates, and of when they predict.
const (
	nameIDs   = "ids, mixture of all"
	nameGuess = "next router on this input"
	nameLinks = "the same, corrected by what was learned"
	nameAll   = "all, mixed"

	whenRouter    = "at the router %d before"
	whenAttention = "at its attention"
)

// Evaluate judges predictors on a trace. rows yields the inputs of its tokens, as the hidden table of the
// same capture has them. Tokens before first are only learned from. Those from first on are scored, each
// before it is learned from. A layer is scored if there is a layer before it, and if the predictor's
// input was recorded. Errors wrap ErrNoInputs or ErrNoRouters, or are those of rows or of ctx.
func Evaluate(
	ctx context.Context, t *moe.Trace, r *Routers, rows iter.Seq2[*tables.HiddenRow, error], first int,
) (*Study, error) {
	w := runner{routers: r, scores: make([]float32, r.Experts), order: make([]int32, r.Experts)}
	for _, l := range t.Layers {
		at := r.Index(l.Number)
		if at < 0 {
			return nil, fmt.Errorf("%w: layer %d of the trace has none", ErrNoRouters, l.Number)
		}
		w.routerLayers = append(w.routerLayers, at)
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
		read, err := in.tokenInputs(t.Tokens[token].Step, t.Tokens[token].Position)
		if err != nil {
			return nil, err
		}
		part := -1
		if token >= first {
			part = (token - first) * moe.CurvePoints / (len(t.Tokens) - first)
		}
		scored := false
		for i := range all {
			scored = w.runToken(&all[i], t, token, read, part) || scored
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
		if !c.idsOnly {
			res.Bytes = c.predictor.Bytes()
		}
		st.Results = append(st.Results, res)
	}
	return st, nil
}

// candidates are all predictors that are judged. They have the routers' layers and experts. The tally has
// the trace's shape.
func candidates(r *Routers, s moe.Shape) (all []candidate, err error) {
	add := func(name string, lead int, ids bool, o Options) {
		if err != nil || lead >= len(r.Blocks) {
			return
		}
		c := candidate{
			name: name, when: whenAttention, lead: lead, idsOnly: ids, best: make([][]int32, len(r.Blocks)),
			tally: moe.NewTally(s),
		}
		for i := range c.best {
			c.best[i] = make([]int32, 0, c.tally.Widest())
		}
		if lead > 0 {
			c.when = fmt.Sprintf(whenRouter, lead)
		}
		c.predictor, err = New(r, o)
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

// runner takes candidates through tokens.
type runner struct {
	routers      *Routers
	routerLayers []int // by layer of the trace: the layer of the routers
	scores       []float32
	order        []int32
}

// runToken calls a candidate's methods with what happened in a token, in order, and asks for the scores
// of each layer in time. part is the token's part of the curve; -1 if it is not scored.
func (w *runner) runToken(c *candidate, t *moe.Trace, token int, in []layerInputs, part int) (scored bool) {
	c.predictor.Begin(t.Tokens[token].ID)
	for i, layer := range w.routerLayers {
		if !c.idsOnly && in != nil {
			if x := in[layer].attention; x != nil {
				c.predictor.Attention(layer, x)
			}
		}
		if c.lead == 0 {
			w.askScores(c, layer)
		}
		if !c.idsOnly && in != nil {
			if x := in[layer].router; x != nil {
				c.predictor.Router(layer, x)
			}
		}
		chosen := t.Chosen(token, i)
		if part >= 0 && len(chosen) > 0 && c.hasInputs(in, layer) {
			c.tally.Add(c.best[layer], chosen, i, part)
			scored = true
		}
		c.predictor.Observe(layer, chosen)
		if next := layer + c.lead; c.lead > 0 && next < len(w.routers.Blocks) {
			w.askScores(c, next)
		}
		c.predictor.Learn(layer)
	}
	return scored
}

// hasInputs says whether a candidate's input for a layer was recorded, and there is a layer before it.
func (c *candidate) hasInputs(in []layerInputs, layer int) bool {
	switch {
	case in == nil || layer < max(c.lead, 1):
		return false
	case c.lead == 0:
		return in[layer].attention != nil
	}
	return in[layer-c.lead].router != nil
}

func (w *runner) askScores(c *candidate, layer int) {
	c.predictor.Scores(layer, w.scores)
	c.best[layer] = append(c.best[layer][:0], moe.Top(w.scores, w.order, cap(c.best[layer]))...)
}

// layerInputs is what was read in a layer for a token; nil if it was not recorded.
type layerInputs struct{ router, attention []float32 }

// inputReader reads a hidden table, one decode call at a time.
type inputReader struct {
	routers *Routers
	next    func() (*tables.HiddenRow, error, bool)
	stop    func()
	steps   map[int32]bool // of the trace
	row     *tables.HiddenRow
	done    bool
	step    int32                   // the last that was read
	tokens  map[int32][]layerInputs // of that step, by position
	used    int64
}

func newInputs(t *moe.Trace, r *Routers, rows iter.Seq2[*tables.HiddenRow, error]) *inputReader {
	in := &inputReader{routers: r, step: -1, steps: map[int32]bool{}}
	for i := range t.Tokens {
		in.steps[t.Tokens[i].Step] = true
	}
	in.next, in.stop = iter.Pull2(rows)
	return in
}

// nextRow finds the next row that can be used. The row is valid until the next call.
func (in *inputReader) nextRow() error {
	for {
		row, err, ok := in.next()
		if err != nil {
			return err
		}
		if !ok {
			in.row, in.done = nil, true
			return nil
		}
		if in.steps[row.Step] && row.Position != tables.NoPosition && len(row.Values) == in.routers.Dim &&
			in.routers.Index(row.Layer) >= 0 {
			in.row = row
			return nil
		}
	}
}

// tokenInputs is what was read for a token, by the routers' layers; nil if nothing was recorded. Tokens
// are asked for in order.
func (in *inputReader) tokenInputs(step, position int32) ([]layerInputs, error) {
	for in.step < step && !in.done {
		if in.row == nil {
			if err := in.nextRow(); err != nil {
				return nil, err
			}
			continue
		}
		if in.row.Step < in.step {
			return nil, fmt.Errorf("inputs of step %d come after those of step %d", in.row.Step, in.step)
		}
		if in.row.Step > step {
			return nil, nil // the row is of a later token
		}
		if err := in.readStep(in.row.Step); err != nil {
			return nil, err
		}
	}
	if in.step != step {
		return nil, nil
	}
	return in.tokens[position], nil
}

// readStep reads all rows of a step.
func (in *inputReader) readStep(step int32) error {
	in.step, in.tokens = step, map[int32][]layerInputs{}
	bytes := 0
	for !in.done && in.row.Step == step {
		if bytes += 4 * in.routers.Dim; bytes > maxStep {
			return fmt.Errorf("step %d has inputs of more than %d MiB", step, maxStep>>20)
		}
		token := in.tokens[in.row.Position]
		if token == nil {
			token = make([]layerInputs, len(in.routers.Blocks))
			in.tokens[in.row.Position] = token
		}
		at := &token[in.routers.Index(in.row.Layer)]
		values := append([]float32(nil), in.row.Values...)
		if in.row.Point == event.PointRouter {
			at.router = values
		} else {
			at.attention = values
		}
		in.used++
		if err := in.nextRow(); err != nil {
			return err
		}
	}
	return nil
}

// Document lays a study out for a terminal.
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
