// Package hidden predicts which experts the layers of a mixture choose from hidden states: what its
// routers and its attention read. What one router has read lets it guess the choice of the next one
// before the layers in between have run. In a residual stream little changes from layer to layer, and
// what changes is learned. Attention's input of a layer comes later and tells more, and is used as soon
// as it is known.
//
// Routers are a model's routers, read from its file. A Predictor follows a target, is told its inputs,
// and learns. Evaluate says how good it is.
package hidden

// This file has the predictor: the inputs that it takes for a token, and what it predicts from them.

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"tensorcast/moe"
)

// Options say what a Predictor predicts from. Its memory is bounded by Bytes and IDs, apart from the
// routers and a copy of the inputs of two tokens.
type Options struct {
	Leads     []int // how many routers ahead, ascending, each at least 1; nil: 1
	Attention bool  // predict from attention's input of the layer itself, too
	Bytes     int64 // of memory for what is learned about inputs; 0: 32 MiB
	// IDs is the memory for predictors that go by ids, which are mixed in. 0: 8 MiB; less: there are
	// none.
	IDs int64

	raw    bool    // nothing is learned about inputs
	tuning *tuning // nil: the usual one
}

// ErrTooSmall says that a predictor may not take enough memory.
var ErrTooSmall = errors.New("too little memory for a predictor")

const (
	usualBytes = 32 << 20
	usualIDs   = 8 << 20
	// A link has at most maxFeatures, as the time that learning takes rises with their square. With fewer
	// than minFeatures nothing is learned well.
	maxFeatures = 384
	minFeatures = 24
)

// Predictor predicts the experts of all layers of a target. Layers are indices of Routers.Blocks. For
// each token its caller calls Begin. Then it calls Attention, Router and Observe for each layer, in
// order, as these things happen. In between it may call Scores for any layer that comes, and Learn when
// there is time. A call that is left out says that something is not known, and everything works without.
// Inputs that cannot be true, of another length or not finite, are ignored.
//
// Its methods allocate no memory. It is for one goroutine. It is a moe.Predictor.
type Predictor struct {
	routers *Routers
	tuning  tuning
	raw     bool
	// kinds are the kinds of links, the best first: 0 goes by attention's input of the layer itself, and
	// n by the input of the router n layers before.
	kinds          []int
	links          [][]*link // by kind and layer; nil where there is no layer before
	chooser        chooser
	inputSketch    sketch // makes features of inputs
	previousSketch sketch // makes features of the inputs of the token before

	ids        moe.Predictor // nil: none
	lastLayer  int           // -1 at the beginning of a token
	idScores   []float32     // by layer and expert
	idScoresAt []int         // by layer: lastLayer when its idScores were computed; -2: not for this token
	blends     []*blend      // by kind

	token                                         int32
	routerInputs, attentionInputs                 []source // by layer, of the current token
	previousRouterInputs, previousAttentionInputs []source // by layer, of the token before
	answers                                       []answer
	// by layer: a mean over the last tokens; -1: nothing was predicted yet
	recall  []float32
	learned bool

	paddedInput  []float32 // scratch
	paddedLogits []float32 // scratch
	residuals    []float32 // scratch, by expert
	order        []int32   // scratch, room for all experts
	chosen       []int32   // scratch, room for K experts
}

// source is an input of the current token, and what follows from it.
type source struct {
	isKnown  bool
	input    []float32
	isSolved bool // logits and chosen are known; of routers only
	logits   []float32
	chosen   []int32
}

// answer is what was last predicted for a layer.
type answer struct {
	kind    int // index of Predictor.kinds, of the best link that is known; -1: none is
	inputs  []float32
	scores  []float32
	isValid bool
}

// New makes a predictor that has learned nothing yet.
func New(r *Routers, o Options) (*Predictor, error) {
	s := r.Shape()
	p := &Predictor{
		routers: r, raw: o.raw, tuning: usualTuning, chooser: newChooser(r), lastLayer: -1, token: moe.UnknownID,
	}
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
		p.ids = moe.NewIDMixture(s, leads, o.IDs)
	}
	p.idScores, p.idScoresAt = make([]float32, s.Layers*s.Experts), make([]int, s.Layers)
	for i := range p.kinds {
		p.blends = append(p.blends, newBlend(s.Layers, len(p.kinds)-i, p.ids != nil))
	}
	for range s.Layers {
		p.routerInputs = append(p.routerInputs, source{
			input: make([]float32, r.Dim), logits: make([]float32, s.Experts), chosen: make([]int32, 0, s.K),
		})
		p.previousRouterInputs = append(p.previousRouterInputs, source{
			input: make([]float32, r.Dim), logits: make([]float32, s.Experts), chosen: make([]int32, 0, s.K),
		})
		if o.Attention {
			p.attentionInputs = append(p.attentionInputs, source{input: make([]float32, r.Dim)})
			p.previousAttentionInputs = append(p.previousAttentionInputs, source{input: make([]float32, r.Dim)})
		}
		p.answers = append(p.answers,
			answer{inputs: make([]float32, (len(p.kinds)+1)*s.Experts), scores: make([]float32, s.Experts)})
		p.recall = append(p.recall, -1)
	}
	p.paddedInput, p.paddedLogits = make([]float32, padded(r.Dim, colGroup)),
		make([]float32, padded(s.Experts, rowGroup))
	p.residuals, p.order, p.chosen = make([]float32, s.Experts), make([]int32, s.Experts), make([]int32, 0, s.K)
	p.Begin(moe.UnknownID)
	return p, nil
}

// newLinks makes the links. They share the memory evenly.
func (p *Predictor) newLinks(bytes int64) error {
	if bytes == 0 {
		bytes = usualBytes
	}
	layers, experts, dim := len(p.routers.Blocks), p.routers.Experts, p.routers.Dim
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
	p.inputSketch, p.previousSketch = newSketch(dim, inputs), newSketch(dim, before)
	for _, kind := range p.kinds {
		links := make([]*link, layers)
		for layer := kind; layer < layers; layer++ {
			links[layer] = newLink(inputs, before, experts, &p.tuning)
		}
		p.links = append(p.links, links)
	}
	return nil
}

// sketch makes fewer features of a vector's dimensions. Each dimension is added to one of the features,
// some with the other sign, so that the products of vectors stay what they were on average.
type sketch struct {
	feature []int32   // by dimension: its feature; nil if each dimension is one
	sign    []float32 // by dimension: 1 or -1, times the scale that keeps the length of vectors
}

func newSketch(dim, features int) (s sketch) {
	if features >= dim {
		return s
	}
	s.feature, s.sign = make([]int32, dim), make([]float32, dim)
	scale := float32(math.Sqrt(float64(features) / float64(dim)))
	for i := range s.feature {
		s.feature[i], s.sign[i] = int32(i%features), scale
		h := uint64(i+1) * 0x9e3779b97f4a7c15 // Fibonacci hashing
		h ^= h >> 29
		if h*0xbf58476d1ce4e5b9>>63 == 1 {
			s.sign[i] = -scale
		}
	}
	return s
}

// project writes the features of an input, scaled as if its mean square were 1. They are 0 if the input
// is not known.
func (s *sketch) project(features []float32, x *source) {
	clear(features)
	if !x.isKnown {
		return
	}
	scale := 1 / rms(x.input)
	if s.feature == nil {
		for i, v := range x.input {
			features[i] = scale * v
		}
		return
	}
	for i, v := range x.input {
		features[s.feature[i]] += scale * s.sign[i] * v
	}
}

// allLinks yields the links, kind by kind and layer by layer.
func (p *Predictor) allLinks() iter.Seq[*link] {
	return func(yield func(*link) bool) {
		for _, ofKind := range p.links {
			for _, l := range ofKind {
				if l != nil && !yield(l) {
					return
				}
			}
		}
	}
}

// Begin implements moe.Predictor.
func (p *Predictor) Begin(id int32) {
	p.lastLayer, p.token = -1, id
	p.routerInputs, p.previousRouterInputs = p.previousRouterInputs, p.routerInputs
	p.attentionInputs, p.previousAttentionInputs = p.previousAttentionInputs, p.attentionInputs
	for i := range p.routerInputs {
		p.routerInputs[i].isKnown, p.routerInputs[i].isSolved, p.answers[i].isValid, p.idScoresAt[i] = false, false,
			false, -2
	}
	for i := range p.attentionInputs {
		p.attentionInputs[i].isKnown = false
	}
	for l := range p.allLinks() {
		l.isKnown = false
	}
	if p.ids != nil {
		p.ids.Begin(id)
	}
}

// Attention tells what a layer's attention is about to read. The slice is not kept. The call does nothing
// if Options.Attention was not set.
func (p *Predictor) Attention(layer int, input []float32) {
	if layer >= 0 && layer < len(p.attentionInputs) {
		p.attentionInputs[layer].accept(input, p.routers.layers[layer].attnMaxRMS)
	}
}

// Router tells what a layer's router is about to read. The slice is not kept.
func (p *Predictor) Router(layer int, input []float32) {
	if layer >= 0 && layer < len(p.routerInputs) {
		p.routerInputs[layer].isSolved = false
		p.routerInputs[layer].accept(input, p.routers.layers[layer].maxRMS)
	}
}

// accept copies an input if it can be true. most is the greatest possible root of its mean square; 0 if
// that is not known.
func (s *source) accept(input []float32, most float32) {
	s.isKnown = false
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
		s.isKnown = true
	}
}

// solveLogits computes a router's logits and choice from its input. It reports false if the input is not
// known.
func (p *Predictor) solveLogits(layer int) bool {
	s := &p.routerInputs[layer]
	if !s.isKnown || s.isSolved {
		return s.isKnown
	}
	copy(p.paddedInput, s.input)
	p.applyRouter(layer, s.logits)
	l := &p.routers.layers[layer]
	if l.table != nil {
		s.chosen = l.appendFromTable(p.token, p.routers.K, s.chosen[:0])
	} else {
		s.chosen = p.chooser.choose(l, s.logits, s.chosen)
	}
	p.centreLogits(s.logits)
	s.isSolved = true
	return true
}

// applyRouter applies a layer's router to paddedInput.
func (p *Predictor) applyRouter(layer int, logits []float32) {
	l := &p.routers.layers[layer]
	l.matrix.multiply(p.paddedLogits, p.paddedInput)
	copy(logits, p.paddedLogits)
	for e, b := range l.bias {
		logits[e] += b
	}
}

// centreLogits subtracts the mean of the logits, where only their differences count.
func (p *Predictor) centreLogits(logits []float32) {
	if !p.routers.ignoresShift {
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

// appendFromTable appends the experts to which the token's id is sent. It appends none if the id is not
// known.
func (l *router) appendFromTable(id int32, k int, chosen []int32) []int32 {
	if id < 0 || int(id) >= len(l.table)/k {
		return chosen
	}
	for _, e := range l.table[int(id)*k : (int(id)+1)*k] {
		chosen = append(chosen, int32(e))
	}
	return chosen
}

// Choice writes the experts that a layer chooses by its router's input to chosen, the best first, and
// returns them. chosen has room for K. They are exactly the target's, unless two experts are nearly
// equal. The result is empty if the input is not known.
func (p *Predictor) Choice(layer int, chosen []int32) []int32 {
	if layer < 0 || layer >= len(p.routerInputs) || !p.solveLogits(layer) {
		return chosen[:0]
	}
	return append(chosen[:0], p.routerInputs[layer].chosen...)
}

// updateLink predicts a layer's logits from one kind of input, once for each token. It returns nil if
// that input is not known.
func (p *Predictor) updateLink(kind, layer int) *link {
	l := p.links[kind][layer]
	if l == nil || l.isKnown {
		return l
	}
	from := layer - p.kinds[kind]
	fromLayer, to := &p.routers.layers[from], &p.routers.layers[layer]
	src, last := &p.routerInputs[from], &p.previousRouterInputs[from]
	inverse, shift := fromLayer.inverse, fromLayer.shift
	if p.kinds[kind] == 0 {
		src, last = &p.attentionInputs[from], &p.previousAttentionInputs[from]
		inverse, shift = fromLayer.attnInverse, fromLayer.attnShift
	}
	if !src.isKnown {
		return nil
	}
	// Undo the norm before the input, and apply that before the layer's router.
	copy(p.paddedInput, src.input)
	if inverse != nil && to.norm != nil {
		for i, b := range shift {
			p.paddedInput[i] -= b
		}
		for i, w := range to.norm {
			p.paddedInput[i] *= inverse[i] * w
		}
		for i, b := range to.shift {
			p.paddedInput[i] += b
		}
	}
	p.applyRouter(layer, l.guess)
	p.centreLogits(l.guess)
	l.isKnown = true
	if p.raw {
		copy(l.logits, l.guess)
		return l
	}
	p.inputSketch.project(l.features[:l.inputs], src)
	p.previousSketch.project(l.features[l.inputs:l.inputs+l.previous], last)
	l.features[len(l.features)-1] = 1
	l.predictLogits()
	return l
}

// Scores implements moe.Predictor. It goes by everything that is known. Where no input is known, it goes
// by ids; if these are not mixed in either, all experts have the same score.
func (p *Predictor) Scores(layer int, scores []float32) {
	a := &p.answers[layer]
	n := p.routers.Experts
	if table := p.routers.layers[layer].table; table != nil && p.token >= 0 {
		p.answerFromTable(layer, a)
		copy(scores, a.scores)
		return
	}
	a.kind = -1
	if layer > p.lastLayer {
		for kind := range p.kinds {
			if l := p.updateLink(kind, layer); l != nil {
				if a.kind < 0 {
					a.kind = kind
				}
				p.logOdds(l, layer, a.inputs[(1+kind)*n:(2+kind)*n])
			} else {
				clear(a.inputs[(1+kind)*n : (2+kind)*n])
			}
		}
	}
	p.scoreByIDs(layer, a.inputs[:n])
	if a.kind < 0 {
		copy(a.scores, a.inputs[:n])
	} else {
		ids, links := a.blendInputs(n)
		p.blends[a.kind].mixScores(layer, ids, links, a.scores)
	}
	a.isValid = true
	copy(scores, a.scores)
}

// blendInputs are the inputs of the answer's blend: the log-odds by ids, and those of the answer's kind
// of link and of the kinds after it.
func (a *answer) blendInputs(n int) (ids, links []float32) {
	return a.inputs[:n], a.inputs[(1+a.kind)*n:]
}

// answerFromTable answers where the token's id chooses the experts.
func (p *Predictor) answerFromTable(layer int, a *answer) {
	const sure = 9 // natural logarithm of the odds
	for e := range a.scores {
		a.scores[e] = -sure
	}
	p.chosen = p.routers.layers[layer].appendFromTable(p.token, p.routers.K, p.chosen[:0])
	for _, e := range p.chosen {
		a.scores[e] = sure
	}
	a.kind, a.isValid = -1, true
}

// scoreByIDs scores by ids. The scores are computed once after each observed layer.
func (p *Predictor) scoreByIDs(layer int, scores []float32) {
	n := p.routers.Experts
	cached := p.idScores[layer*n : (layer+1)*n]
	if p.idScoresAt[layer] != p.lastLayer {
		p.idScoresAt[layer] = p.lastLayer
		if p.ids != nil {
			p.ids.Scores(layer, cached)
		} else {
			prior := float32(math.Log(float64(p.routers.K) / float64(max(n-p.routers.K, 1))))
			for e := range cached {
				cached[e] = prior
			}
		}
	}
	copy(scores, cached)
}

// logOdds are the log-odds that a link gives: how far each logit is from being chosen, in standard
// deviations of its error. The logistic function of 1.7 x is nearly the normal distribution's of x.
func (p *Predictor) logOdds(l *link, layer int, scores []float32) {
	p.chooser.margins(&p.routers.layers[layer], l.logits, scores)
	const logistic, most = 1.7, 12
	for e, v := range l.errors {
		x := logistic * scores[e] / float32(math.Sqrt(float64(v)))
		scores[e] = min(max(x, -most), most)
	}
}

// Observe implements moe.Predictor. If chosen is empty or cannot be true, the choice is computed from the
// router's input, if that is known.
func (p *Predictor) Observe(layer int, chosen []int32) {
	for _, e := range chosen {
		if e < 0 || int(e) >= p.routers.Experts {
			chosen = nil
			break
		}
	}
	if len(chosen) == 0 || len(chosen) > p.routers.K {
		p.chosen = p.Choice(layer, p.chosen)
		chosen = p.chosen
	}
	a := &p.answers[layer]
	if a.isValid && len(chosen) > 0 {
		best := moe.Top(a.scores, p.order, len(chosen))
		hits := 0
		for _, e := range best {
			if slices.Contains(chosen, e) {
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
			ids, links := a.blendInputs(p.routers.Experts)
			p.blends[a.kind].learn(layer, ids, links, chosen, p.residuals)
		}
	}
	a.isValid = false
	if p.ids != nil {
		p.ids.Observe(layer, chosen)
	}
	p.lastLayer = layer
}

// Recall says how good the Scores are that were last asked for before a layer chose: which share of the
// chosen experts was among as many best ones. It is a mean over the last twenty tokens or so, and -1 if
// nothing was asked.
func (p *Predictor) Recall(layer int) float64 { return float64(p.recall[layer]) }

// Learn learns how wrong the predictions of a layer's logits were. It does nothing if the router's input
// is not known. What is not learned before the next Begin is lost. It takes most of a predictor's time; a
// caller that has little may call it for some tokens only.
func (p *Predictor) Learn(layer int) {
	if p.raw || !p.routerInputs[layer].isKnown {
		return
	}
	for kind := range p.kinds {
		l := p.updateLink(kind, layer)
		if l == nil {
			continue
		}
		if p.solveLogits(layer) {
			l.learn(p.routerInputs[layer].logits, p.residuals, &p.tuning)
			p.learned = true
		}
		l.isKnown = false
	}
}

// HasLearned says whether Learn has learned anything, so that saving it is worth it. What was loaded does
// not count.
func (p *Predictor) HasLearned() bool { return p.learned }

// Bytes is the memory for what is learned from inputs.
func (p *Predictor) Bytes() int64 {
	sum := int64(0)
	for l := range p.allLinks() {
		sum += linkBytes(len(l.features), l.experts)
	}
	return sum
}

var _ moe.Predictor = (*Predictor)(nil)
