// Package plan decides in which form each weight matrix of a model is stored: unchanged, or in how
// many ternary planes. The command "lab fabricplan" runs it.
//
// [Measure] determines the size and the error of each form. The resulting [Survey] gives the [Plan]
// for a profile, the best plan for a number of bytes, and the trade-off between bytes and error.
// Errors are those of products with random activations. If the elements of x are independent with
// equal variance, E|(V-W)x|^2 / E|Wx|^2 is |V-W|^2 / |W|^2, i.e. the noise of the weights V
// relative to W.
package plan

// This file defines the profiles and makes plans.

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"tensorcast/fabric/decompose"
	"tensorcast/gguf"
)

// ErrBudget says that a model cannot be made as small as requested.
var ErrBudget = errors.New("no plan takes so few bytes")

// ErrNotMeasured says that a survey has not measured the requested form.
var ErrNotMeasured = errors.New("the form has not been measured")

// Profile is a guarantee: no matrix has a larger error than the bound allows.
type Profile struct {
	Name string
	// Bound is the least ratio of a matrix's products to their error, in decibels; +Inf if no error
	// is allowed.
	Bound float64
}

// Profiles returns the named profiles, the most accurate first.
func Profiles() []Profile {
	return []Profile{
		{"accurate", math.Inf(1)},
		{"balanced", balancedBound},
		{"fast", fastBound},
	}
}

// The bounds were determined with "lab divergence" on a trained model of 5 M weights in F16 and two
// texts. The mean KL divergence of its predictions is about 0.3 to 0.45 times the mean noise of the
// matrices.
const (
	// balancedBound is not worse than Q4_K_M, which diverges by 0.0016 and 0.0018 nats. With
	// matrices of at least 23.5 dB, 24.0 dB on average, the model diverges by 0.0011 and 0.0013.
	balancedBound = 23.5
	// fastBound allows about 0.01 nats, or one percent of perplexity. With matrices of at least 15
	// dB, 15.4 dB on average, the model diverges by 0.010 and 0.012.
	fastBound = 15
)

// Choice is a form of a matrix.
type Choice struct {
	Native bool `json:"native"`           // unchanged from the file
	Exact  bool `json:"exact,omitempty"`  // planes from which the file's bytes can be restored
	Planes int  `json:"planes,omitempty"` // 0 for native
	Block  int  `json:"block,omitempty"`  // columns that share factors, for fitted planes
	Shared bool `json:"shared,omitempty"` // a block has one factor for all planes

	// Bytes is the size in the file for native, otherwise the size of planes and scales in a frame
	// (planes as sequential PT-5).
	Bytes int64   `json:"bytes"`
	Noise float64 `json:"noise"`            // sum of squared errors divided by sum of squared weights
	SNR   float64 `json:"snr_db,omitempty"` // the same in decibels; absent if there is no noise
}

// fit returns the form as a decompose.Fit.
func (c *Choice) fit() decompose.Fit {
	return decompose.Fit{Planes: c.Planes, Block: c.Block, Shared: c.Shared}
}

// String is a short name: "native", "4 exact", "3/32 shared" (planes, block).
func (c *Choice) String() string {
	switch {
	case c.Native:
		return "native"
	case c.Exact:
		return fmt.Sprintf("%d exact", c.Planes)
	case c.Shared:
		return fmt.Sprintf("%d/%d shared", c.Planes, c.Block)
	}
	return fmt.Sprintf("%d/%d", c.Planes, c.Block)
}

// Planned is a matrix and the form chosen for it.
type Planned struct {
	Name string `json:"name"`
	Type string `json:"type"` // type in the file
	Rows int    `json:"rows"` // if there are experts, the rows of all of them
	Cols int    `json:"cols"`
	Choice
}

// Plan has a form for each weight matrix of a model. Everything else stays unchanged. It can be
// written and read with encoding/json.
type Plan struct {
	Profile string  `json:"profile"`
	Bound   float64 `json:"bound_db,omitempty"` // 0: an exact plan, or one without a bound
	Weights int64   `json:"weights"`            // number of weights in the model
	Bytes   int64   `json:"bytes"`              // size of the model, including unchanged tensors
	// Noise is the mean of the matrices' noise. It is not weighted, because the noise of each
	// matrix affects the input of the others.
	Noise   float64   `json:"noise"`
	Tensors []Planned `json:"tensors"` // in the order of the file
}

// BytesPerWeight is the average over the whole model.
func (p *Plan) BytesPerWeight() float64 { return float64(p.Bytes) / float64(p.Weights) }

// Tensor holds the measurements of a matrix.
type Tensor struct {
	Name       string
	Type       gguf.Type
	Rows, Cols int
	Choices    []Choice // the first one is native
}

// Survey holds the measurements of a model. It is immutable after Measure, and any number of
// goroutines may use it.
type Survey struct {
	Tensors []Tensor
	Weights int64 // number of weights in the model, including tensors that always stay unchanged
	Other   int64 // size of these unchanged tensors
}

// Plan gives each matrix the smallest form that meets the profile's bound. If the bound is +Inf,
// matrices get exact planes if possible, even if these are larger than the native form.
func (s *Survey) Plan(p Profile) *Plan {
	bound := p.Bound
	lossless := math.IsInf(bound, 1)
	if lossless {
		bound = 0 // JSON has no infinity
	}
	limit := math.Pow(10, -p.Bound/10)
	return s.choosePlan(p.Name, bound, func(_ int, t *Tensor) *Choice {
		best := &t.Choices[0]
		for i := range t.Choices[1:] {
			c := &t.Choices[1+i]
			switch {
			case lossless && c.Exact:
				return c
			case !lossless && c.Noise <= limit && isSmaller(c, best):
				best = c
			}
		}
		return best
	})
}

// isSmaller reports whether c takes fewer bytes than d, or the same with less noise.
func isSmaller(c, d *Choice) bool {
	return c.Bytes < d.Bytes || c.Bytes == d.Bytes && c.Noise < d.Noise
}

// Uniform gives each matrix the same fitted form. Matrices that must be lossless stay native. The
// error wraps ErrNotMeasured if f was not measured.
func (s *Survey) Uniform(f decompose.Fit) (*Plan, error) {
	found := false
	name := (&Choice{Planes: f.Planes, Block: f.Block, Shared: f.Shared}).String()
	p := s.choosePlan(name, 0, func(_ int, t *Tensor) *Choice {
		for i := range t.Choices {
			if c := &t.Choices[i]; !c.Native && !c.Exact && c.fit() == f {
				found = true
				return c
			}
		}
		return &t.Choices[0]
	})
	if !found {
		return nil, fmt.Errorf("%s: %w", name, ErrNotMeasured)
	}
	return p, nil
}

// choosePlan makes a plan that gives each matrix the form that choose returns.
func (s *Survey) choosePlan(name string, bound float64, choose func(i int, t *Tensor) *Choice) *Plan {
	p := &Plan{Profile: name, Bound: bound, Weights: s.Weights, Bytes: s.Other}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		c := choose(i, t)
		p.Bytes += c.Bytes
		p.Noise += c.Noise / float64(len(s.Tensors))
		p.Tensors = append(p.Tensors, Planned{t.Name, t.Type.String(), t.Rows, t.Cols, *c})
	}
	return p
}

// Point is a point on the front of bytes against noise.
type Point struct {
	Bytes          int64   `json:"bytes"` // size of the whole model
	BytesPerWeight float64 `json:"bytes_per_weight"`
	Noise          float64 `json:"noise"` // as Plan.Noise
}

// SNR is the noise in decibels, or +Inf if there is none.
func (p Point) SNR() float64 { return decibels(p.Noise) }

func decibels(noise float64) float64 {
	if noise == 0 {
		return math.Inf(1)
	}
	return -10 * math.Log10(noise)
}

// trade is the replacement of a matrix's form by the next larger one.
type trade struct {
	tensor int
	to     *Choice
	bytes  int64
	noise  float64 // by how much the noise decreases
}

// listTrades returns the smallest forms and all useful trades that start from them. The trades that
// remove the most noise per byte come first. For each matrix, the forms are those on the lower
// convex hull of noise over bytes. Making these trades in order gives, at each size reached, a plan
// with the least mean noise for its size (Shoham and Gersho 1988, after Everett's multipliers).
func (s *Survey) listTrades() (first []*Choice, list []trade) {
	for i := range s.Tensors {
		hull := usefulChoices(s.Tensors[i].Choices)
		first = append(first, hull[0])
		for j, c := range hull[1:] {
			noise := (hull[j].Noise - c.Noise) / float64(len(s.Tensors))
			list = append(list, trade{i, c, c.Bytes - hull[j].Bytes, noise})
		}
	}
	// The sort is stable, so that equally good trades of one hull keep their order.
	slices.SortStableFunc(list, func(a, b trade) int {
		return cmp.Compare(b.noise/float64(b.bytes), a.noise/float64(a.bytes))
	})
	return first, list
}

// usefulChoices returns the choices that are worth having, see Hull.
func usefulChoices(choices []Choice) (useful []*Choice) {
	bytes := func(i int) int64 { return choices[i].Bytes }
	noise := func(i int) float64 { return choices[i].Noise }
	for _, i := range Hull(len(choices), bytes, noise) {
		useful = append(useful, &choices[i])
	}
	return useful
}

// Front returns the plans with the least noise for their size, by increasing size: from the
// smallest forms to lossless ones.
func (s *Survey) Front() []Point {
	first, list := s.listTrades()
	p := s.choosePlan("", 0, func(i int, _ *Tensor) *Choice { return first[i] })
	at := Point{p.Bytes, p.BytesPerWeight(), p.Noise}
	front := []Point{at}
	for i, t := range list {
		at.Bytes += t.bytes
		at.BytesPerWeight = float64(at.Bytes) / float64(s.Weights)
		at.Noise -= t.noise
		if i == len(list)-1 {
			at.Noise = 0 // what remains is rounding error
		}
		front = append(front, at)
	}
	return front
}

// Within returns the best plan with at most the given number of bytes for the whole model. It makes
// trades in order of their value, and leaves out those that do not fit. The error wraps ErrBudget
// if there is no such plan.
func (s *Survey) Within(bytes int64) (*Plan, error) {
	chosen, list := s.listTrades()
	left := bytes - s.Other
	for _, c := range chosen {
		left -= c.Bytes
	}
	if left < 0 {
		return nil, fmt.Errorf("%d bytes: the smallest takes %d: %w", bytes, bytes-left, ErrBudget)
	}
	size := func(t trade) (int, int64) { return t.tensor, t.bytes }
	Fill(len(chosen), list, left, size, func(t trade) { chosen[t.tensor] = t.to })
	name := fmt.Sprintf("within %d bytes", bytes)
	return s.choosePlan(name, 0, func(i int, _ *Tensor) *Choice { return chosen[i] }), nil
}
