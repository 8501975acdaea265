// Package hidden predicts which experts the layers of a mixture choose from what its routers read: hidden
// states. From what the router of one layer has read, that of the next one can be guessed before the
// layers in between have run: in a residual stream little changes from layer to layer, and what changes
// is learned. What is known better, as attention's input of the layer itself, which comes later, is used
// as soon as it is known.
//
// Routers are a model's routers, read from its file. A Predictor follows a target, is told its inputs,
// and learns. Evaluate says how good it is.
package hidden

// This file has the predictor: what it is told of a token, and what it makes of that.

import (
	"errors"
	"fmt"
	"math"

	"tensorcast/moe"
)

// Options say what a Predictor predicts from. Its memory is bounded by Bytes and IDs, besides the
// routers' and a copy of the inputs of one token.
type Options struct {
	Leads     []int // how many routers ahead, ascending, each at least 1; nil: 1
	Attention bool  // also from attention's input of the layer itself
	Bytes     int64 // for what is learned about inputs; 0: 32 MiB
	IDs       int64 // for predictors that go by ids, which are mixed in; 0: 8 MiB; less: none

	raw    bool    // nothing is learned about inputs
	tuning *tuning // nil: the usual one
}

// ErrTooSmall says that the memory that a predictor may take is too little.
var ErrTooSmall = errors.New("too little memory for a predictor")

const (
	usualBytes = 32 << 20
	usualIDs   = 8 << 20
	// A link has at most maxFeatures: the time that learning takes rises with their square. With fewer
	// than minFeatures nothing is learned well.
	maxFeatures = 384
	minFeatures = 24
)

// Predictor predicts the experts of all layers of a target. Layers are indices of Routers.Blocks. For
// each token its caller calls Begin; then for each layer, in order, Attention, Router and Observe as
// these things happen; Scores in between, for any layer that comes; and Learn when there is time. What is
// left out is not known, and everything works without. Inputs that cannot be true (another length, not
// finite) are ignored.
//
// Its methods allocate no memory. It is for one goroutine. It is a moe.Predictor.
type Predictor struct {
	r      *Routers
	tuning tuning
	raw    bool
	kinds  []int     // the best first: 0 is attention's input of the layer itself, n the router's of n layers before
	links  [][]*link // by kind and layer; nil where there is nothing before
	choose chooser
	now    sketch // of inputs
	before sketch // of inputs of the token before

	ids      moe.Predictor // nil: none
	at       int           // the layer that was observed last; -1 at the beginning of a token
	idScores []float32     // by layer and expert
	idAt     []int         // by layer: at, when idScores were computed; -2: not for this token
	blends   []*blend      // by kind

	token                     int32
	router, attention         []source // by layer
	lastRouter, lastAttention []source // of the token before
	asked                     []asked
	recall                    []float32 // by layer; -1: nothing was predicted yet
	learned                   bool

	x      []float32 // scratch: a padded vector
	wide   []float32 // scratch: padded experts
	wrong  []float32 // scratch: experts
	order  []int32   // scratch: experts
	chosen []int32   // scratch: K
}

// source is what was read at one place of the current token.
type source struct {
	known  bool
	input  []float32
	solved bool // logits and chosen are known; of routers only
	logits []float32
	chosen []int32
}

// asked is the last answer for a layer.
type asked struct {
	kind   int // index of Predictor.kinds; -1: none
	inputs []float32
	scores []float32
	valid  bool
}

// New makes a predictor that has learned nothing yet.
func New(r *Routers, o Options) (*Predictor, error) {
	s := r.Shape()
	p := &Predictor{r: r, raw: o.raw, tuning: usual, choose: newChooser(r), at: -1, token: moe.UnknownID}
	if o.tuning != nil {
		p.tuning = *o.tuning
	}
	leads := o.Leads
	if leads == nil {
		leads = []int{1}
	}
	if o.Attention {
		p.kinds = append(p.kinds, 0)
	}
	for i, h := range leads {
		if h < 1 || i > 0 && h <= leads[i-1] {
			return nil, fmt.Errorf("predict %v routers ahead: want ascending numbers from 1 on", leads)
		}
		p.kinds = append(p.kinds, h)
	}
	if err := p.newLinks(o.Bytes); err != nil {
		return nil, err
	}
	if o.IDs == 0 {
		o.IDs = usualIDs
	}
	if o.IDs > 0 {
		if len(leads) == 0 {
			leads = []int{1} // when attention's input comes, the layer before has chosen
		}
		p.ids = moe.NewIDs(s, leads, o.IDs)
	}
	p.idScores, p.idAt = make([]float32, s.Layers*s.Experts), make([]int, s.Layers)
	for i := range p.kinds {
		p.blends = append(p.blends, newBlend(s.Layers, len(p.kinds)-i, p.ids != nil))
	}
	for range s.Layers {
		p.router = append(p.router, source{
			input: make([]float32, r.Dim), logits: make([]float32, s.Experts), chosen: make([]int32, 0, s.K),
		})
		p.lastRouter = append(p.lastRouter, source{
			input: make([]float32, r.Dim), logits: make([]float32, s.Experts), chosen: make([]int32, 0, s.K),
		})
		if o.Attention {
			p.attention = append(p.attention, source{input: make([]float32, r.Dim)})
			p.lastAttention = append(p.lastAttention, source{input: make([]float32, r.Dim)})
		}
		p.asked = append(p.asked,
			asked{inputs: make([]float32, (len(p.kinds)+1)*s.Experts), scores: make([]float32, s.Experts)})
		p.recall = append(p.recall, -1)
	}
	p.x, p.wide = make([]float32, padded(r.Dim, colGroup)), make([]float32, padded(s.Experts, rowGroup))
	p.wrong, p.order, p.chosen = make([]float32, s.Experts), make([]int32, s.Experts), make([]int32, 0, s.K)
	p.Begin(moe.UnknownID)
	return p, nil
}

// newLinks shares the memory out evenly.
func (p *Predictor) newLinks(bytes int64) error {
	if bytes == 0 {
		bytes = usualBytes
	}
	layers, experts, dim := len(p.r.Blocks), p.r.Experts, p.r.Dim
	n := 0
	for _, kind := range p.kinds {
		n += max(layers-kind, 0)
	}
	features := min(dim+dim/3+1, maxFeatures)
	for features >= minFeatures && linkBytes(features, experts)*int64(n) > bytes {
		features--
	}
	if features < min(minFeatures, dim+dim/3+1) {
		return fmt.Errorf("%w: %d layers with %d experts, predicted from %d places, need %d bytes at least",
			ErrTooSmall, layers, experts, len(p.kinds), linkBytes(minFeatures, experts)*int64(n))
	}
	before := min(dim, features/4)
	inputs := min(dim, features-1-before)
	p.now, p.before = newSketch(dim, inputs), newSketch(dim, before)
	for _, kind := range p.kinds {
		of := make([]*link, layers)
		for layer := kind; layer < layers; layer++ {
			of[layer] = newLink(inputs, before, experts, &p.tuning)
		}
		p.links = append(p.links, of)
	}
	return nil
}

// sketch makes some features of all dimensions of a vector: each is added to one of them, to some with
// the other sign, so that the products of vectors stay what they were on the average.
type sketch struct {
	at   []int32   // by dimension: its feature; nil if each is one
	sign []float32 // by dimension: 1 or -1, times the scale that keeps the length of vectors
}

func newSketch(dim, features int) (s sketch) {
	if features >= dim {
		return s
	}
	s.at, s.sign = make([]int32, dim), make([]float32, dim)
	scale := float32(math.Sqrt(float64(features) / float64(dim)))
	for i := range s.at {
		s.at[i], s.sign[i] = int32(i%features), scale
		h := uint64(i+1) * 0x9e3779b97f4a7c15 // Fibonacci hashing
		h ^= h >> 29
		if h*0xbf58476d1ce4e5b9>>63 == 1 {
			s.sign[i] = -scale
		}
	}
	return s
}

// of writes the features of a vector, as if its mean square were 1; 0 if it is not known.
func (s *sketch) of(features []float32, x *source) {
	clear(features)
	if !x.known {
		return
	}
	scale := 1 / rms(x.input)
	if s.at == nil {
		for i, v := range x.input {
			features[i] = scale * v
		}
		return
	}
	for i, v := range x.input {
		features[s.at[i]] += scale * s.sign[i] * v
	}
}

// Begin implements moe.Predictor.
func (p *Predictor) Begin(id int32) {
	p.at, p.token = -1, id
	p.router, p.lastRouter = p.lastRouter, p.router
	p.attention, p.lastAttention = p.lastAttention, p.attention
	for i := range p.router {
		p.router[i].known, p.router[i].solved, p.asked[i].valid, p.idAt[i] = false, false, false, -2
	}
	for i := range p.attention {
		p.attention[i].known = false
	}
	for _, of := range p.links {
		for _, l := range of {
			if l != nil {
				l.known = false
			}
		}
	}
	if p.ids != nil {
		p.ids.Begin(id)
	}
}

// Attention tells what a layer's attention is about to read. input is not kept. It means nothing if
// Options.Attention was not set.
func (p *Predictor) Attention(layer int, input []float32) {
	if layer >= 0 && layer < len(p.attention) {
		p.attention[layer].take(input, p.r.layers[layer].attnMost)
	}
}

// Router tells what a layer's router is about to read. input is not kept.
func (p *Predictor) Router(layer int, input []float32) {
	if layer >= 0 && layer < len(p.router) {
		p.router[layer].solved = false
		p.router[layer].take(input, p.r.layers[layer].most)
	}
}

// take copies an input if it can be true. most is what its root of the mean square can be; 0 if that is not known.
func (s *source) take(input []float32, most float32) {
	s.known = false
	if len(input) != len(s.input) {
		return
	}
	const least, anything = 1e-6, 1e12
	low, high := float32(0), float32(anything)
	if most > 0 {
		low, high = least*most, most
	}
	if size := rms(input); size > low && size < high { // not if a value is NaN or infinite
		copy(s.input, input)
		s.known = true
	}
}

// solve computes a router's logits from its input. It reports false if that is not known.
func (p *Predictor) solve(layer int) bool {
	s := &p.router[layer]
	if !s.known || s.solved {
		return s.known
	}
	copy(p.x, s.input)
	p.products(layer, s.logits)
	l := &p.r.layers[layer]
	if l.table != nil {
		s.chosen = l.lookup(p.token, p.r.K, s.chosen[:0])
	} else {
		s.chosen = p.choose.choice(l, s.logits, s.chosen)
	}
	p.centre(s.logits)
	s.solved = true
	return true
}

// products applies a layer's router to p.x.
func (p *Predictor) products(layer int, logits []float32) {
	l := &p.r.layers[layer]
	l.matrix.times(p.wide, p.x)
	copy(logits, p.wide)
	for e, b := range l.bias {
		logits[e] += b
	}
}

// centre takes what all logits have in common out, where it does not matter.
func (p *Predictor) centre(logits []float32) {
	if !p.r.invariant {
		return
	}
	sum := float32(0)
	for _, z := range logits {
		sum += z
	}
	mean := sum / float32(len(logits))
	for e := range logits {
		logits[e] -= mean
	}
}

// lookup appends the experts that the token's id is sent to; none if it is not known.
func (l *router) lookup(id int32, k int, chosen []int32) []int32 {
	if id < 0 || int(id) >= len(l.table)/k {
		return chosen
	}
	for _, e := range l.table[int(id)*k : (int(id)+1)*k] {
		chosen = append(chosen, int32(e))
	}
	return chosen
}

// Choice writes which experts a layer chooses by its router's input to chosen, which has room for K, the
// best first, and returns them. They are exactly the target's, save where two experts are nearly equal.
// It is empty if the input is not known.
func (p *Predictor) Choice(layer int, chosen []int32) []int32 {
	if layer < 0 || layer >= len(p.router) || !p.solve(layer) {
		return chosen[:0]
	}
	return append(chosen[:0], p.router[layer].chosen...)
}

// link predicts a layer's logits from one place, if what was read there is known; else it is nil.
func (p *Predictor) link(kind, layer int) *link {
	l := p.links[kind][layer]
	if l == nil || l.known {
		return l
	}
	from := layer - p.kinds[kind]
	at := &p.r.layers[from]
	src, last, inverse, shift := &p.router[from], &p.lastRouter[from], at.inverse, at.shift
	if p.kinds[kind] == 0 {
		src, last, inverse, shift = &p.attention[from], &p.lastAttention[from], at.attnInverse, at.attnShift
	}
	if !src.known {
		return nil
	}
	to := &p.r.layers[layer]
	copy(p.x, src.input)
	if inverse != nil && to.norm != nil {
		for i, b := range shift {
			p.x[i] -= b
		}
		for i, w := range to.norm {
			p.x[i] *= inverse[i] * w
		}
		for i, b := range to.shift {
			p.x[i] += b
		}
	}
	p.products(layer, l.guess)
	p.centre(l.guess)
	l.known = true
	if p.raw {
		copy(l.logits, l.guess)
		return l
	}
	p.now.of(l.features[:l.inputs], src)
	p.before.of(l.features[l.inputs:l.inputs+l.before], last)
	l.features[len(l.features)-1] = 1
	l.predict()
	return l
}

// Scores implements moe.Predictor: from the best that is known. Where nothing is known of an input, it
// goes by ids; where these are not mixed in, all experts have the same score.
func (p *Predictor) Scores(layer int, scores []float32) {
	a := &p.asked[layer]
	n := p.r.Experts
	if table := p.r.layers[layer].table; table != nil && p.token >= 0 {
		p.certain(layer, a)
		copy(scores, a.scores)
		return
	}
	a.kind = -1
	if layer > p.at {
		for kind := range p.kinds {
			if l := p.link(kind, layer); l != nil {
				if a.kind < 0 {
					a.kind = kind
				}
				p.odds(l, layer, a.inputs[(1+kind)*n:(2+kind)*n])
			} else {
				clear(a.inputs[(1+kind)*n : (2+kind)*n])
			}
		}
	}
	p.byIDs(layer, a.inputs[:n])
	if a.kind < 0 {
		copy(a.scores, a.inputs[:n])
	} else {
		ids, links := a.of(n)
		p.blends[a.kind].mix(layer, ids, links, a.scores)
	}
	a.valid = true
	copy(scores, a.scores)
}

// of is what a blend of the answer's kind reads: what ids tell, then that kind and those after it.
func (a *asked) of(n int) (ids, links []float32) { return a.inputs[:n], a.inputs[(1+a.kind)*n:] }

// certain answers where the token's id chooses.
func (p *Predictor) certain(layer int, a *asked) {
	const sure = 9 // natural logarithm of the odds
	for e := range a.scores {
		a.scores[e] = -sure
	}
	p.chosen = p.r.layers[layer].lookup(p.token, p.r.K, p.chosen[:0])
	for _, e := range p.chosen {
		a.scores[e] = sure
	}
	a.kind, a.valid = -1, true
}

// byIDs scores by ids; they are computed once after each observed layer.
func (p *Predictor) byIDs(layer int, scores []float32) {
	n := p.r.Experts
	cached := p.idScores[layer*n : (layer+1)*n]
	if p.idAt[layer] != p.at {
		p.idAt[layer] = p.at
		if p.ids != nil {
			p.ids.Scores(layer, cached)
		} else {
			prior := float32(math.Log(float64(p.r.K) / float64(max(n-p.r.K, 1))))
			for e := range cached {
				cached[e] = prior
			}
		}
	}
	copy(scores, cached)
}

// odds are the log-odds that a link gives: how far each logit is from being chosen, in standard
// deviations of its error. The logistic function of 1.7 x is nearly the normal distribution's of x.
func (p *Predictor) odds(l *link, layer int, scores []float32) {
	p.choose.margins(&p.r.layers[layer], l.logits, scores)
	const logistic, most = 1.7, 12
	for e, v := range l.errors {
		x := logistic * scores[e] / float32(math.Sqrt(float64(v)))
		scores[e] = min(max(x, -most), most)
	}
}

// Observe implements moe.Predictor. If chosen is empty, or cannot be true, what the router's input
// chooses is taken, if that is known.
func (p *Predictor) Observe(layer int, chosen []int32) {
	for _, e := range chosen {
		if e < 0 || int(e) >= p.r.Experts {
			chosen = nil
			break
		}
	}
	if len(chosen) == 0 || len(chosen) > p.r.K {
		p.chosen = p.Choice(layer, p.chosen)
		chosen = p.chosen
	}
	a := &p.asked[layer]
	if a.valid && len(chosen) > 0 {
		best := moe.Top(a.scores, p.order, len(chosen))
		hits := 0
		for _, e := range best {
			if has(chosen, e) {
				hits++
			}
		}
		r := float32(hits) / float32(len(chosen))
		const step = 0.05
		if p.recall[layer] < 0 {
			p.recall[layer] = r
		}
		p.recall[layer] += step * (r - p.recall[layer])
		if a.kind >= 0 {
			ids, links := a.of(p.r.Experts)
			p.blends[a.kind].learn(layer, ids, links, chosen, p.wrong)
		}
	}
	a.valid = false
	if p.ids != nil {
		p.ids.Observe(layer, chosen)
	}
	p.at = layer
}

// Recall is the share of the experts that a layer chose that were among as many best ones by the last
// Scores before it chose; a mean of late over some twenty tokens. It is -1 if nothing was asked.
func (p *Predictor) Recall(layer int) float64 { return float64(p.recall[layer]) }

// Learn learns from the layer's router's input how far predictions of its logits were wrong, and does
// nothing if that is not known. What is not learned before the next Begin is lost. It takes most of the
// time; who has little may call it for some tokens only.
func (p *Predictor) Learn(layer int) {
	if p.raw || !p.router[layer].known {
		return
	}
	for kind := range p.kinds {
		l := p.link(kind, layer)
		if l == nil {
			continue
		}
		if p.solve(layer) {
			l.learn(p.router[layer].logits, p.wrong, &p.tuning)
			p.learned = true
		}
		l.known = false
	}
}

// Learned says whether Learn has learned anything, so that it is worth to be saved. What was loaded does not count.
func (p *Predictor) Learned() bool { return p.learned }

// Bytes is the memory that the predictor takes for what it learns from inputs.
func (p *Predictor) Bytes() int64 {
	sum := int64(0)
	for _, of := range p.links {
		for _, l := range of {
			if l != nil {
				sum += linkBytes(len(l.features), l.experts)
			}
		}
	}
	return sum
}

var _ moe.Predictor = (*Predictor)(nil)
