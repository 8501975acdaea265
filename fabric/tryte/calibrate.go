package tryte

// This file chooses how many trits, and what scale, the values of a layer need.

import (
	"errors"
	"fmt"
	"math"
)

// ErrTarget says that MaxDepth trits do not meet an error bound.
var ErrTarget = errors.New("no depth meets the bound")

// Calibration is how the values of a layer are held: as Vectors of a depth, and a scale (Vector.SetFloats).
type Calibration struct {
	Depth   int
	Scale   float32
	SNR     float64 // of the samples, in decibels: their power over that of the error; +Inf if there is none
	Clipped int     // how many of the samples are beyond the range and more than half a scale from its end
}

// Calibrate finds the smallest depth at which samples of a layer's values can be held with an error of at least snr decibels below them, and the
// scale with the least mean square error there: where values have long tails it clips some of them for finer steps.
//
// The samples, of one or several vectors, stand for the values to come: some thousands are enough for bounds of up to about 40 dB. It takes
// a few hundred operations per sample and depth. The error wraps ErrTarget if no depth meets the bound; others are about samples that are
// infinite or not numbers, or missing. If all are 0, depth 1 and scale 1 are right.
func Calibrate(samples [][]float32, snr float64) (Calibration, error) {
	s, err := collect(samples)
	if err != nil {
		return Calibration{}, err
	}
	if snr != snr {
		return Calibration{}, errors.New("calibrate: the bound is not a number")
	}
	var c Calibration
	for depth := 1; depth <= MaxDepth; depth++ {
		if c = s.fit(depth); c.SNR >= snr {
			return c, nil
		}
	}
	return c, fmt.Errorf("calibrate for %.1f dB: %d trits give %.1f: %w", snr, c.Depth, c.SNR, ErrTarget)
}

// CalibrateDepth finds the scale with the least mean square error for a depth that is given, of 1 to MaxDepth: the layer's, where another part of
// it needs more trits than these values. Samples and errors are as Calibrate's.
func CalibrateDepth(samples [][]float32, depth int) (Calibration, error) {
	if depth < 1 || depth > MaxDepth {
		return Calibration{}, fmt.Errorf("calibrate %d trits: 1 to %d are possible", depth, MaxDepth)
	}
	s, err := collect(samples)
	if err != nil {
		return Calibration{}, err
	}
	return s.fit(depth), nil
}

// sample is what values there are, without their signs: the codes are symmetric.
type sample struct {
	magnitudes  []float64
	power, most float64
}

func collect(samples [][]float32) (*sample, error) {
	s := &sample{}
	for i, part := range samples {
		for j, v := range part {
			a := math.Abs(float64(v))
			if math.IsInf(a, 0) || a != a {
				return nil, fmt.Errorf("calibrate: sample %d of vector %d is %v", j, i, v)
			}
			s.magnitudes = append(s.magnitudes, a)
			s.power += a * a
			s.most = max(s.most, a)
		}
	}
	if len(s.magnitudes) == 0 {
		return nil, errors.New("calibrate: no samples")
	}
	return s, nil
}

// fit finds the scale for a depth.
func (s *sample) fit(depth int) Calibration {
	if s.most == 0 {
		return Calibration{Depth: depth, Scale: 1, SNR: math.Inf(1)}
	}
	levels := float64(Max(depth))
	best, noise := 0.0, math.Inf(1)
	try := func(scale float64) (next float64) {
		e, next, _ := s.measure(scale, levels)
		if e < noise {
			best, noise = scale, e
		}
		return next
	}
	// The error has several minima. Steps of a quarter octave from twice the scale that clips nothing (with fewer levels than values some
	// may better be 0) find the slope of the lowest.
	for i := range 64 {
		try(2 * s.most / levels * math.Exp2(-float64(i)/4))
	}
	// From there on the scale is fitted to the codes and the codes to the scale in turn: neither makes the error larger.
	_, scale, _ := s.measure(best, levels)
	for before := math.Inf(1); scale > 0 && noise < before*(1-1e-6); {
		before = noise
		scale = try(scale)
	}
	// Halving steps beside it: codes that do not change hold the scale where it is, a little off the minimum.
	for step := 1.0 / 16; step > 1e-4; step /= 2 {
		center := best
		try(center * (1 + step))
		try(center / (1 + step))
	}
	return s.result(depth, float32(min(best, math.MaxFloat32)))
}

// measure is the square error at a scale, the scale that is best for the codes, and how many values are clipped.
func (s *sample) measure(scale, levels float64) (noise, next float64, clipped int) {
	var product, square float64
	inverse := 1 / scale
	for _, v := range s.magnitudes {
		code := math.RoundToEven(v * inverse)
		if code > levels {
			code = levels
			clipped++
		}
		e := v - code*scale
		noise += e * e
		product += code * v
		square += code * code
	}
	if square != 0 {
		next = product / square
	}
	return noise, next, clipped
}

// result is what a scale gives after it was rounded.
func (s *sample) result(depth int, scale float32) Calibration {
	if scale == 0 {
		scale = math.SmallestNonzeroFloat32
	}
	noise, _, clipped := s.measure(float64(scale), float64(Max(depth)))
	c := Calibration{Depth: depth, Scale: scale, SNR: math.Inf(1), Clipped: clipped}
	if noise != 0 {
		c.SNR = 10 * math.Log10(s.power/noise)
	}
	return c
}
