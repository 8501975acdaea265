package synth

// This file plants a recorded trace of a real model's routing: a model whose routers choose, token by
// token, what the trace says.
//
// The model says the trace's tokens one after the other. Its vocabulary has one for each, after the
// bytes. The token's embedding is so large that what the layers add to the residual stream is nothing
// beside it, and all its elements are of the same size: what a norm passes on is the embedding's signs,
// exactly. From them a router's matrix is computed, by linear algebra: the products that it gives for
// each token are chosen first. They are distributed as those of a router with random weights, so that an
// expert that was not chosen may be nearly as good as one that was.
//
// A router does not read all of the embedding. The norm before it lets some dimensions pass and makes the
// others 0, and each layer has some dimensions in common with the one before. So a layer's choice can be
// foretold from the router before only in part, as in a trained model; the number of dimensions in common
// sets how well. Attention's norm lets the dimensions pass that the router before it reads, so that its
// input tells no more.
//
// Some dimensions, the flags, are read by no router. They say whether the first generated token comes
// next. That is so after the last token of the prompt and after the last one of the trace, which begins
// again, and after all bytes and control tokens. These are otherwise equal to tokens of the trace's prompt
// and choose the same experts.

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"tensorcast/moe"
)

// UsualRecall is how well hidden states foretell the routing of trained models.
const UsualRecall = 0.78

const (
	maxRouted = 1024 // tokens of a trace: the time to compute a router rises with their third power
	// fill is the greatest number of tokens for each dimension that a router reads. Nearer to 1 the
	// router's weights become large, and magnify what layers add to the residual stream.
	fill = 0.6
	// One in flagShare dimensions of the embedding is a flag.
	flagShare = 8
	// routedStd is the size of the embedding's elements. What a layer adds is about 1, and F16 ends at
	// 65504.
	routedStd = 1 << 13
	// leastMargin is how far the product of the least expert that is chosen is above that of the best that
	// is not. Their standard deviation is 1. leastStep is the same for two experts that are chosen.
	leastMargin, leastStep = 0.05, 0.01
	// logitGap is the difference between the next token's logit and the mean of any other's.
	logitGap = 32
)

// Routing says what was planted of a trace.
type Routing struct {
	Tokens  int // of the trace; token i has the id ByteVocab+i and the text that TokenText gives it
	Prompt  int // of these, how many come before the first generated one
	Layers  int // that have experts in the trace; the model's are these in turn
	Missing int // how many of the model's choices, of a token in a layer, the trace lacks: they are random
	// Recall is the share of a layer's chosen experts that its router names among as many when it is
	// applied to what the router before has read: the mean over all choices but the first layer's. It is 1
	// if there are no others.
	Recall float64

	trace  *moe.Trace
	seed   uint64
	embd   int
	dims   int      // of the embedding, without the flags, which come first
	reads  int      // how many dimensions a router reads
	signs  []bitset // of each token, by dimension: set where the embedding is positive
	blocks []int    // of each layer with experts: its number in the model
	passed []bitset // which dimensions pass the norm of attention and, as the next element, of the router
	// By layer with experts, what its router's rows are made of: the row of an expert is the sum of all
	// tokens' signs, each times a factor. The factors are by token and expert.
	factors [][]float64
	normals *sampler
}

// TokenText is the text of the token of a trace with this number. Wherever a prompt has that text it is
// the token.
func TokenText(number int) string { return fmt.Sprintf(" t%d", number) }

// PromptText is a text that has exactly the tokens of the trace's prompt. It is empty if there are none.
func (r *Routing) PromptText() string {
	var b strings.Builder
	for i := range r.Prompt {
		b.WriteString(TokenText(i))
	}
	return b.String()
}

// flagsOf is how many of a width's dimensions are flags.
func flagsOf(embd int) int { return max(embd/flagShare, 1) }

// leastWidth is the least width of a model whose routers can tell so many tokens apart.
func leastWidth(tokens int) int {
	need := int(math.Ceil(float64(tokens) / fill))
	embd := need
	for embd-flagsOf(embd) < need {
		embd++
	}
	return embd
}

// checkRoutes checks whether the trace can be planted.
func (c Config) checkRoutes() error {
	tokens := len(c.Routes.Tokens)
	differs := func(setting string, got, want int) error {
		return &ConfigError{setting, fmt.Sprintf("%d, but the trace has %d: leave this out", got, want)}
	}
	switch {
	case c.Experts != c.Routes.Experts:
		return differs("experts", c.Experts, c.Routes.Experts)
	case c.Used != c.Routes.K:
		return differs("used", c.Used, c.Routes.K)
	case tokens > maxRouted:
		return &ConfigError{"routes",
			fmt.Sprintf("the trace has %d tokens, and %d can be planted: cut the file", tokens, maxRouted)}
	case c.Arch == deepseek4Arch:
		return &ConfigError{"arch", c.Arch + " mixes several residual streams, so no trace can be planted in it"}
	case c.Groups > 0:
		return &ConfigError{"groups", "the trace's experts are of any group: leave this out"}
	case c.Tied:
		return &ConfigError{"tied", "the output says which token of the trace comes next: leave this out"}
	case c.Recall < 0 || c.Recall > 1: // NaN is refused where the flag is parsed
		return &ConfigError{"recall", fmt.Sprintf("%v is outside 0 to 1", c.Recall)}
	case c.Embd > 0 && c.Embd < leastWidth(tokens):
		return &ConfigError{"embd",
			fmt.Sprintf("%d is too narrow for a trace of %d tokens, which needs %d", c.Embd, tokens,
				leastWidth(tokens))}
	case c.Vocab < ByteVocab+tokens:
		return &ConfigError{"vocab", fmt.Sprintf("%d is less than %d, which the bytes and the trace's %d tokens need",
			c.Vocab, ByteVocab+tokens, tokens)}
	}
	return nil
}

// newRouting computes the routers of a valid configuration.
func newRouting(ctx context.Context, c Config) (*Routing, error) {
	t := c.Routes
	r := &Routing{
		Tokens: len(t.Tokens), Prompt: t.FirstDecode() % len(t.Tokens), Layers: len(t.Layers), trace: t, seed: c.Seed,
		embd: c.Embd, dims: c.Embd - flagsOf(c.Embd), normals: newSampler(),
	}
	r.reads = max(r.dims/2, int(math.Ceil(float64(r.Tokens)/fill)))
	for l := c.denseLayers(); l < c.Layers; l++ {
		r.blocks = append(r.blocks, l)
	}
	random := stream(r.seed, "routing signs")
	for range r.Tokens {
		b := newBitset(r.dims)
		for i := range r.dims {
			b.set(i, random.Uint64()>>63 != 0)
		}
		r.signs = append(r.signs, b)
	}
	if err := r.setRecall(ctx, c.Recall); err != nil {
		return nil, err
	}
	for layer := range r.blocks {
		for token := range r.Tokens {
			if len(r.chosen(token, layer)) < t.K {
				r.Missing++
			}
		}
	}
	return r, nil
}

// chosen are the experts that a token chooses in the model's layer with experts of this number.
func (r *Routing) chosen(token, layer int) []int32 { return r.trace.Chosen(token, layer%r.Layers) }

// setRecall finds how many dimensions layers have in common so that recall is nearest to want, and
// computes the routers.
func (r *Routing) setRecall(ctx context.Context, want float64) error {
	// Of some layers recall is measured again and again. It takes longer the more tokens there are, and then
	// fewer choices are enough.
	const steps, choices = 10, 1200 // of a token in a layer
	var layers []int
	probes := min(max(choices/r.Tokens, 1), len(r.blocks)-1)
	for i := range probes {
		layers = append(layers, 1+i*(len(r.blocks)-1)/probes)
	}
	low, high := 0, r.reads
	for range steps {
		middle := (low + high) / 2
		r.choosePassed(middle)
		var hits, all int
		for _, layer := range layers {
			s, err := r.solve(ctx, layer)
			if err != nil {
				return err
			}
			h, a := r.countForetold(layer, s)
			hits, all = hits+h, all+a
		}
		if float64(hits) < want*float64(all) {
			low = middle
		} else {
			high = middle
		}
	}
	r.choosePassed(high)
	r.factors, r.Recall = nil, 1
	var hits, all int
	for layer := range r.blocks {
		s, err := r.solve(ctx, layer)
		if err != nil {
			return err
		}
		r.factors = append(r.factors, s)
		if layer > 0 {
			h, a := r.countForetold(layer, s)
			hits, all = hits+h, all+a
		}
	}
	if all > 0 {
		r.Recall = float64(hits) / float64(all)
	}
	return nil
}

// choosePassed chooses which dimensions pass norms, at random. So many pass two norms after each other,
// as far as there are enough others.
func (r *Routing) choosePassed(common int) {
	random := rand.New(stream(r.seed, "routing dimensions"))
	common = max(common, 2*r.reads-r.dims)
	order := random.Perm(r.dims) // those that pass come first
	r.passed = nil
	for range len(r.blocks) + 1 {
		b := newBitset(r.dims)
		for _, i := range order[:r.reads] {
			b.set(i, true)
		}
		r.passed = append(r.passed, b)
		passed, others := order[:r.reads], order[r.reads:]
		shuffle := func(x []int) { random.Shuffle(len(x), func(i, j int) { x[i], x[j] = x[j], x[i] }) }
		shuffle(passed)
		shuffle(others)
		for i := range r.reads - common {
			passed[i], others[i] = others[i], passed[i]
		}
	}
}

// products are what a layer's router gives for each token and expert. Sorted, those of a token are as
// numbers drawn from N(0, 1), but for the margin below the chosen ones, which are the greatest.
func (r *Routing) products(layer int) []float64 {
	random := rand.New(stream(r.seed, fmt.Sprintf("routing products %d", layer)))
	n := r.trace.Experts
	all, drawn, others := make([]float64, r.Tokens*n), make([]float64, n), make([]int32, 0, n)
	for token := range r.Tokens {
		for i := range drawn {
			drawn[i] = float64(r.normals.normal[random.Uint64()>>48])
		}
		slices.SortFunc(drawn, func(x, y float64) int { return cmp.Compare(y, x) })
		row, chosen := all[token*n:(token+1)*n], r.chosen(token, layer)
		isChosen := newBitset(n)
		for i := len(chosen) - 1; i >= 0; i-- {
			isChosen.set(int(chosen[i]), true)
			least := float64(leastStep)
			if i == len(chosen)-1 {
				least = leastMargin
			}
			if i+1 < n {
				drawn[i] = max(drawn[i], drawn[i+1]+least)
			}
			row[chosen[i]] = drawn[i]
		}
		others = others[:0]
		for e := range int32(n) {
			if !isChosen.has(int(e)) {
				others = append(others, e)
			}
		}
		random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
		for i, e := range others {
			row[e] = drawn[len(chosen)+i]
		}
	}
	return all
}

// solve computes the factors of a layer's router.
func (r *Routing) solve(ctx context.Context, layer int) ([]float64, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	n := r.Tokens
	g := r.overlaps(r.passed[layer+1])
	if !decompose(g, n) {
		return nil, &ConfigError{"seed", fmt.Sprintf("the tokens of the trace cannot be told apart with %d: take another",
			r.seed)}
	}
	factors := r.products(layer)
	substitute(g, n, factors)
	return factors, nil
}

// overlaps are the products of all tokens' signs in some dimensions.
func (r *Routing) overlaps(in bitset) []float64 {
	g := make([]float64, r.Tokens*r.Tokens)
	dims := in.count()
	for i, x := range r.signs {
		for j, y := range r.signs[:i+1] {
			v := float64(dims - 2*countDifferent(x, y, in))
			g[i*r.Tokens+j], g[j*r.Tokens+i] = v, v
		}
	}
	return g
}

// countForetold counts how many of the experts that are chosen in a layer its router names when it is
// applied to what the router before has read, and how many are chosen.
func (r *Routing) countForetold(layer int, factors []float64) (hits, all int) {
	n := r.trace.Experts
	g := r.overlaps(r.passed[layer].and(r.passed[layer+1]))
	sums, scores, order := make([]float64, n), make([]float32, n), make([]int32, n)
	for token := range r.Tokens {
		clear(sums)
		for other, v := range g[token*r.Tokens : (token+1)*r.Tokens] {
			addScaled(sums, v, factors[other*n:(other+1)*n])
		}
		for e, v := range sums {
			scores[e] = float32(v)
		}
		chosen := r.chosen(token, layer)
		for _, e := range moe.Top(scores, order, len(chosen)) {
			if slices.Contains(chosen, e) {
				hits++
			}
		}
		all += len(chosen)
	}
	return hits, all
}

// plant replaces the random values of the tensors that make the model follow the trace.
func (r *Routing) plant(ts []Tensor) {
	rows := map[string]func() rowMaker{
		"token_embd.weight":  func() rowMaker { return r.embeddingRow },
		"output.weight":      func() rowMaker { return r.outputRow },
		"output_norm.weight": func() rowMaker { return r.outputNorm },
	}
	for layer, block := range r.blocks {
		name := func(component string) string { return fmt.Sprintf("blk.%d.%s.weight", block, component) }
		norm := func(passed bitset) func() rowMaker {
			return func() rowMaker { return func(_ int64, row []float32) { r.fillNorm(row, passed) } }
		}
		rows[name("attn_norm")] = norm(r.passed[layer])
		rows[name("ffn_norm")] = norm(r.passed[layer+1])
		rows[name("post_attention_norm")] = norm(r.passed[layer+1]) // what gpt-oss calls it
		rows[name("ffn_gate_inp")] = func() rowMaker { return r.routerRows(layer) }
	}
	for i := range ts {
		if makeRows, ok := rows[ts[i].Name]; ok {
			ts[i].spans, ts[i].rows = nil, makeRows
		}
	}
}

// gain is what a norm multiplies the dimensions by that pass, so that its result is as large as usual.
func (r *Routing) gain() float32 { return float32(math.Sqrt(float64(r.embd) / float64(r.reads))) }

func (r *Routing) fillNorm(row []float32, passed bitset) {
	clear(row)
	for i := range r.dims {
		if passed.has(i) {
			row[r.embd-r.dims+i] = r.gain()
		}
	}
}

// routerRows makes the rows of a layer's router, one for each expert.
func (r *Routing) routerRows(layer int) rowMaker {
	sums, passed, experts := make([]float64, r.dims), r.passed[layer+1], int64(r.trace.Experts)
	return func(expert int64, row []float32) {
		clear(sums)
		for token, signs := range r.signs {
			signs.addSigned(sums, r.factors[layer][int64(token)*experts+expert])
		}
		clear(row)
		for i, v := range sums {
			if passed.has(i) {
				row[r.embd-r.dims+i] = float32(v / float64(r.gain()))
			}
		}
	}
}

// isLast says whether the first generated token comes after a token of the trace.
func (r *Routing) isLast(token int) bool { return token == r.Tokens-1 || token+1 == r.Prompt }

// fillSigns writes the signs of a token of the trace, and flags, times size.
func (r *Routing) fillSigns(row []float32, token int, isLast bool, size float32) {
	flags := row[:r.embd-r.dims]
	for i := range flags {
		flags[i] = size
		if isLast {
			flags[i] = -size
		}
	}
	for i := range r.dims {
		v := size
		if !r.signs[token].has(i) {
			v = -size
		}
		row[len(flags)+i] = v
	}
}

// embeddingRow makes the embedding of a token of the vocabulary.
func (r *Routing) embeddingRow(id int64, row []float32) {
	switch token := int(id) - ByteVocab; {
	case token < 0:
		r.fillSigns(row, max(int(id)-firstByte, 0)%max(r.Prompt, 1), true, routedStd)
	case token < r.Tokens:
		r.fillSigns(row, token, r.isLast(token), routedStd)
	default: // a word that is never said
		r.fillSigns(row, token%r.Tokens, true, routedStd)
	}
}

// outputRow makes what gives the logit of a token of the vocabulary: what the embedding of the token
// before it in the trace is. It is 0 for tokens that are never said.
func (r *Routing) outputRow(id int64, row []float32) {
	clear(row)
	size := float32(logitGap) / float32(r.dims)
	switch token := int(id) - ByteVocab; {
	case token < 0 || token >= r.Tokens:
	case token == r.Prompt:
		r.fillSigns(row, r.Tokens-1, true, size)
	case token > 0:
		r.fillSigns(row, token-1, false, size)
	}
}

// outputNorm makes the weights of the last norm. The flags count as much as all other dimensions.
func (r *Routing) outputNorm(_ int64, row []float32) {
	flags := r.embd - r.dims
	for i := range row {
		row[i] = 1
		if i < flags {
			row[i] = float32(r.dims) / float32(flags)
		}
	}
}
