// Package plan decides in which form each weight matrix of a model is kept: as it is, or as how many ternary planes.
//
// Measure finds what each form costs and how far it is from the weights. A Survey then answers what a profile needs, what the best use of a
// number of bytes is, and how bytes buy accuracy. Errors are those of products with white activations: for x of independent elements of
// equal variance, E|(V-W)x|^2 / E|Wx|^2 is |V-W|^2 / |W|^2, the noise of the weights V relative to W.
package plan

// This file has the profiles, and the plans that they make.

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"tensorcast/fabric/decompose"
	"tensorcast/gguf"
)

// ErrBudget says that a model cannot be made as small as it was to be.
var ErrBudget = errors.New("no plan takes so few bytes")

// ErrNotMeasured says that a survey has not measured a form that is asked for.
var ErrNotMeasured = errors.New("the form has not been measured")

// Profile is a contract: no matrix loses more than the bound.
type Profile struct {
	Name string
	// Bound is the least ratio of a matrix' products to their error, in decibels; +Inf if there must be none.
	Bound float64
}

// Profiles are those that have names, the most accurate first.
func Profiles() []Profile {
	return []Profile{
		{"accurate", math.Inf(1)},
		{"balanced", balancedBound},
		{"fast", fastBound},
	}
}

// The bounds come from lab divergence on a trained model of 5 M weights in F16 and two texts. The mean KL divergence of its predictions is
// about 0.3 to 0.45 times the matrices' mean noise.
const (
	// No worse than Q4_K_M, which diverges by 0.0016 and 0.0018 nats: matrices of 23.5 dB or more, 24.0 dB in the mean, by 0.0011 and 0.0013.
	balancedBound = 23.5
	// About 0.01 nats, a percent of perplexity: matrices of 15 dB or more, 15.4 dB in the mean, diverge by 0.010 and 0.012.
	fastBound = 15
)

// Choice is a form of a matrix.
type Choice struct {
	Native bool `json:"native"`           // as it is in the file
	Exact  bool `json:"exact,omitempty"`  // planes from which the file's bytes can be rebuilt
	Planes int  `json:"planes,omitempty"` // 0 if it is native
	Block  int  `json:"block,omitempty"`  // columns that share factors, if planes are fitted
	Shared bool `json:"shared,omitempty"` // a block has one factor for all planes

	Bytes int64   `json:"bytes"`            // native: in the file; planes: those and the scales of a frame of sequential PT-5
	Noise float64 `json:"noise"`            // sum of the squared errors over sum of the squared weights
	SNR   float64 `json:"snr_db,omitempty"` // Noise in decibels; absent if it is 0
}

// fit is the form as package decompose has it.
func (c *Choice) fit() decompose.Fit {
	return decompose.Fit{Planes: c.Planes, Block: c.Block, Shared: c.Shared}
}

// String is short: "native", "4 exact", "3/32 shared" (planes, block).
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

// Planned is a matrix and the form that it gets.
type Planned struct {
	Name string `json:"name"`
	Type string `json:"type"` // in the file
	Rows int    `json:"rows"` // of all experts, if it has experts
	Cols int    `json:"cols"`
	Choice
}

// Plan is a form for each weight matrix of a model; everything else stays as it is. Package encoding/json writes and reads it.
type Plan struct {
	Profile string  `json:"profile"`
	Bound   float64 `json:"bound_db,omitempty"` // 0: of an exact plan, or one without a bound
	Weights int64   `json:"weights"`            // of the model, and
	Bytes   int64   `json:"bytes"`              // theirs, with what stays as it is
	// Noise is the mean of the matrices' noise, each counting alike: each multiplies what the others have made noisy.
	Noise   float64   `json:"noise"`
	Tensors []Planned `json:"tensors"` // in the order of the file
}

// BytesPerWeight is over the whole model.
func (p *Plan) BytesPerWeight() float64 { return float64(p.Bytes) / float64(p.Weights) }

// Tensor is what has been measured of a matrix.
type Tensor struct {
	Name       string
	Type       gguf.Type
	Rows, Cols int
	Choices    []Choice // the first is native
}

// Survey is what has been measured of a model. It does not change after Measure: any number of goroutines may use it.
type Survey struct {
	Tensors []Tensor
	Weights int64 // of the model, those of tensors that always stay as they are included
	Other   int64 // bytes of those tensors
}

// Plan gives each matrix the form of fewest bytes that keeps the profile's bound. If that is +Inf, matrices get exact planes where there are
// any, even where these are larger than the native form, which they replace without a loss.
func (s *Survey) Plan(p Profile) *Plan {
	bound := p.Bound
	lossless := math.IsInf(bound, 1)
	if lossless {
		bound = 0 // JSON has no infinity
	}
	limit := math.Pow(10, -p.Bound/10)
	return s.plan(p.Name, bound, func(_ int, t *Tensor) *Choice {
		best := &t.Choices[0]
		for i := range t.Choices[1:] {
			c := &t.Choices[1+i]
			switch {
			case lossless && c.Exact:
				return c
			case !lossless && c.Noise <= limit && smaller(c, best):
				best = c
			}
		}
		return best
	})
}

// smaller reports whether c takes fewer bytes than d, or as many with less noise.
func smaller(c, d *Choice) bool {
	return c.Bytes < d.Bytes || c.Bytes == d.Bytes && c.Noise < d.Noise
}

// Uniform gives each matrix the same fitted form; those that must not lose anything stay native. The error wraps ErrNotMeasured if that is
// none of the forms measured.
func (s *Survey) Uniform(f decompose.Fit) (*Plan, error) {
	found := false
	name := (&Choice{Planes: f.Planes, Block: f.Block, Shared: f.Shared}).String()
	p := s.plan(name, 0, func(_ int, t *Tensor) *Choice {
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

// plan gives each matrix what choose returns.
func (s *Survey) plan(name string, bound float64, choose func(i int, t *Tensor) *Choice) *Plan {
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

// Point is a place on the front of bytes against noise.
type Point struct {
	Bytes          int64   `json:"bytes"` // of the whole model
	BytesPerWeight float64 `json:"bytes_per_weight"`
	Noise          float64 `json:"noise"` // as Plan's
}

// SNR is the noise in decibels, +Inf if there is none.
func (p Point) SNR() float64 { return decibels(p.Noise) }

func decibels(noise float64) float64 {
	if noise == 0 {
		return math.Inf(1)
	}
	return -10 * math.Log10(noise)
}

// trade is the replacement of a matrix' form by the next larger one.
type trade struct {
	tensor int
	to     *Choice
	bytes  int64
	noise  float64 // that it takes away
}

// trades are all that are worth while, the best bytes first, and the smallest forms, from which they start. For each matrix the forms are those on
// the lower convex hull of noise over bytes; with these, going through the trades in order gives a plan of least mean noise for each number
// of bytes that it passes (Shoham and Gersho 1988, as Everett's multipliers).
func (s *Survey) trades() (first []*Choice, list []trade) {
	for i := range s.Tensors {
		hull := hull(s.Tensors[i].Choices)
		first = append(first, hull[0])
		for j, c := range hull[1:] {
			list = append(list, trade{i, c, c.Bytes - hull[j].Bytes, (hull[j].Noise - c.Noise) / float64(len(s.Tensors))})
		}
	}
	// Stable: of trades that are equally good, which a hull has in order, the first comes first.
	slices.SortStableFunc(list, func(a, b trade) int { return cmp.Compare(b.noise/float64(b.bytes), a.noise/float64(a.bytes)) })
	return first, list
}

// hull has the choices on the lower convex hull, by rising bytes and falling noise.
func hull(choices []Choice) []*Choice {
	var sorted []*Choice
	for i := range choices {
		sorted = append(sorted, &choices[i])
	}
	slices.SortFunc(sorted, func(a, b *Choice) int { return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Noise, b.Noise)) })
	var h []*Choice
	for _, c := range sorted {
		if len(h) > 0 && c.Noise >= h[len(h)-1].Noise {
			continue
		}
		for len(h) > 1 {
			a, b := h[len(h)-2], h[len(h)-1]
			if (a.Noise-b.Noise)*float64(c.Bytes-b.Bytes) > (b.Noise-c.Noise)*float64(b.Bytes-a.Bytes) {
				break
			}
			h = h[:len(h)-1]
		}
		h = append(h, c)
	}
	return h
}

// Front has the plans of least noise for their bytes, by rising bytes: from the smallest forms to those without a loss.
func (s *Survey) Front() []Point {
	first, list := s.trades()
	p := s.plan("", 0, func(i int, _ *Tensor) *Choice { return first[i] })
	at := Point{p.Bytes, p.BytesPerWeight(), p.Noise}
	front := []Point{at}
	for i, t := range list {
		at.Bytes += t.bytes
		at.BytesPerWeight = float64(at.Bytes) / float64(s.Weights)
		at.Noise -= t.noise
		if i == len(list)-1 {
			at.Noise = 0 // without what rounding has left
		}
		front = append(front, at)
	}
	return front
}

// Within is the best plan of at most that many bytes for the whole model, by trades in the order of their worth: those that do not fit are left
// out. The error wraps ErrBudget if there is none.
func (s *Survey) Within(bytes int64) (*Plan, error) {
	chosen, list := s.trades()
	left := bytes - s.Other
	for _, c := range chosen {
		left -= c.Bytes
	}
	if left < 0 {
		return nil, fmt.Errorf("%d bytes: the smallest takes %d: %w", bytes, bytes-left, ErrBudget)
	}
	full := make([]bool, len(chosen))
	for _, t := range list {
		if full[t.tensor] || t.bytes > left {
			full[t.tensor] = true
			continue
		}
		chosen[t.tensor] = t.to
		left -= t.bytes
	}
	return s.plan(fmt.Sprintf("within %d bytes", bytes), 0, func(i int, _ *Tensor) *Choice { return chosen[i] }), nil
}
