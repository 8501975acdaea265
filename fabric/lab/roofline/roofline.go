// Package roofline predicts how many tokens per second a device in hardware would generate, from the bytes and
// operations of a token, and from what a device is assumed to do in a second. It is arithmetic, not a
// measurement. Its callers say what it is extrapolated from.
package roofline

import (
	"fmt"
	"time"
)

// Model is what a token needs of a model, whose weights the device holds.
type Model struct {
	Name    string  `json:"name"`
	Weights float64 `json:"weights"` // number of weights in all matrices
	Active  float64 `json:"active"`  // number of these that a token multiplies with
	Layers  int     `json:"layers"`
	// Trips is how many times in a layer a product waits for the one before: for Q, K and V; output; gate and up; down.
	Trips int `json:"trips"`
}

// Form is how weights are held.
type Form struct {
	Name           string  `json:"name"`
	Planes         float64 `json:"planes"`
	BytesPerWeight float64 `json:"bytes_per_weight"` // planes and factors
	Zeros          float64 `json:"zeros"`            // share of trits that are 0, which take no lane
}

// Device is what hardware is assumed to do.
type Device struct {
	Name       string        `json:"name"`
	Lanes      float64       `json:"lanes"`      // how many products of a trit and a byte are added at a time
	Clock      float64       `json:"clock"`      // Hz
	Bandwidth  float64       `json:"bandwidth"`  // bytes per second
	Efficiency float64       `json:"efficiency"` // share of the bandwidth that is reached
	Memory     float64       `json:"memory"`     // bytes
	Trip       time.Duration `json:"trip_ns"`    // from a submission until its completion is seen, without the product
	Host       time.Duration `json:"host_ns"`    // time of a layer on the host: norms, rope, attention
}

// Prediction is for a token that is generated alone.
type Prediction struct {
	Bytes     float64       `json:"bytes"` // per token
	Ops       float64       `json:"ops"`   // per token, those with a trit that is not 0
	Memory    time.Duration `json:"memory_ns"`
	Compute   time.Duration `json:"compute_ns"`
	Trips     time.Duration `json:"trips_ns"`
	Host      time.Duration `json:"host_ns"`
	Bound     string        `json:"bound"` // memory or compute: the longer of the two
	PerSecond float64       `json:"tokens_per_s"`
	Idle      float64       `json:"idle"` // share of a token's time in which the device computes nothing
	// Two is for two sequences together, which share nothing. The products of one are computed while the other one is
	// on the host or on its way.
	Two  float64 `json:"two_tokens_per_s"`
	Fits bool    `json:"fits"` // in the device's memory
}

// Predict is the roofline model (Williams, Waterman and Patterson, 2009), with what that leaves out. A token takes
// the longer of two times: reading its weights, and computing with them. Predict adds the trips and the host's part.
// Nothing hides these, because each product waits for the one before.
func Predict(m Model, f Form, d Device) (Prediction, error) {
	for _, v := range []float64{m.Weights, m.Active, f.Planes, f.BytesPerWeight, d.Lanes, d.Clock, d.Bandwidth,
		d.Efficiency} {
		if !(v > 0) {
			return Prediction{}, fmt.Errorf("predict %s on %s: each quantity must be above 0", m.Name, d.Name)
		}
	}
	if m.Active > m.Weights || f.Zeros < 0 || f.Zeros >= 1 || d.Efficiency > 1 {
		return Prediction{},
			fmt.Errorf("predict %s on %s: more weights are active than there are, or a share is not between "+
				"0 and 1", m.Name, d.Name)
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * 1e9) }
	p := Prediction{
		Bytes: m.Active * f.BytesPerWeight, Ops: m.Active * f.Planes * (1 - f.Zeros),
		Fits: m.Weights*f.BytesPerWeight <= d.Memory,
	}
	p.Memory = seconds(p.Bytes / (d.Bandwidth * d.Efficiency))
	p.Compute = seconds(p.Ops / (d.Lanes * d.Clock))
	p.Trips = time.Duration(m.Layers*m.Trips+1) * d.Trip
	p.Host = time.Duration(m.Layers) * d.Host
	p.Bound = "memory"
	if p.Compute > p.Memory {
		p.Bound = "compute"
	}
	products := max(p.Memory, p.Compute)
	all := products + p.Trips + p.Host
	p.PerSecond, p.Idle = 1/all.Seconds(), float64(all-products)/float64(all)
	p.Two = min(1/products.Seconds(), 2*p.PerSecond) // the device is never idle, or each sequence is as fast as alone
	return p, nil
}
