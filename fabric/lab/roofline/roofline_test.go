package roofline

import (
	"math"
	"testing"
	"time"
)

// TestPredict compares with predictions that were computed by hand. 1e9 active weights of 0.5 bytes take 62.5 ms at
// 10 GB/s of which 80 % are reached. Two planes of which half of the trits are 0 need 1e9 operations, which take 100 ms
// on 1e4 lanes at 1 MHz.
func TestPredict(t *testing.T) {
	m := Model{Name: "m", Weights: 2e9, Active: 1e9, Layers: 10, Trips: 4}
	f := Form{Planes: 2, BytesPerWeight: 0.5, Zeros: 0.5}
	d := Device{Lanes: 1e4, Clock: 1e6, Bandwidth: 10e9, Efficiency: 0.8, Memory: 1e9,
		Trip: 100 * time.Microsecond, Host: 200 * time.Microsecond}
	p, err := Predict(m, f, d)
	if err != nil || p.Memory != 62500*time.Microsecond || p.Compute != 100*time.Millisecond ||
		p.Bound != "compute" || p.Trips != 4100*time.Microsecond || p.Host != 2*time.Millisecond || !p.Fits {
		t.Errorf("%+v, %v; want 62.5 ms of memory, 100 ms of computing, 4.1 ms of trips, 2 ms of the host", p, err)
	}
	if want := 1 / 0.1061; math.Abs(p.PerSecond-want) > 1e-9 {
		t.Errorf("%v tokens per second, want %v", p.PerSecond, want)
	}
	if math.Abs(p.Idle-0.0061/0.1061) > 1e-9 || math.Abs(p.Two-10) > 1e-9 {
		t.Errorf("idle %v, two %v; want %v, 10", p.Idle, p.Two, 0.0061/0.1061)
	}
	slow := d
	// The host takes 200 ms in all, longer than the products. So two sequences never wait for each other.
	slow.Host = 20 * time.Millisecond
	if p, err := Predict(m, f, slow); err != nil || math.Abs(p.Two-2*p.PerSecond) > 1e-9 {
		t.Errorf("a slow host: %+v, %v; want two sequences twice as fast as one", p, err)
	}
	d.Lanes, d.Memory = 1e5, 0.9e9
	if p, err := Predict(m, f, d); err != nil || p.Bound != "memory" || p.Fits ||
		math.Abs(p.PerSecond-1/0.0686) > 1e-9 {
		t.Errorf("more lanes: %+v, %v; want 1/0.0686 tokens/s, bound by memory", p, err)
	}
	for what, change := range map[string]func(*Model, *Form, *Device){
		"no bandwidth":        func(_ *Model, _ *Form, d *Device) { d.Bandwidth = 0 },
		"more than all":       func(m *Model, _ *Form, _ *Device) { m.Active = 3e9 },
		"nothing but zeros":   func(_ *Model, f *Form, _ *Device) { f.Zeros = 1 },
		"more than bandwidth": func(_ *Model, _ *Form, d *Device) { d.Efficiency = 1.1 },
		"not a number":        func(m *Model, _ *Form, _ *Device) { m.Active = math.NaN() },
	} {
		m, f, d := m, f, d
		change(&m, &f, &d)
		if _, err := Predict(m, f, d); err == nil {
			t.Errorf("%s is accepted, want an error", what)
		}
	}
}
