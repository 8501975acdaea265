package tryte

// This file determines how many trits the values of a layer need, and which scale.

import (
	"errors"
	"fmt"
	"math"
)

// ErrTarget says that even MaxDepth trits do not meet an error bound.
var ErrTarget = errors.New("no depth meets the bound")

// Calibration says how the values of a layer are stored: the depth of the Vectors, and the scale
// (see Vector.SetFloats).
type Calibration struct {
	Depth   int
	Scale   float32
	SNR     float64 // signal-to-noise ratio of the samples, in decibels; +Inf if there is no error
	Clipped int     // number of samples that are more than half a scale beyond the range
}

// Calibrate returns the smallest depth with which samples of a layer's values have a
// signal-to-noise ratio of at least snr decibels. It also returns the scale with the least mean
// square error at that depth. If values have long tails, that scale clips some of them in exchange
// for finer steps.
//
// The samples, from one or several vectors, should represent the values to come. Some thousands
// suffice for bounds of up to about 40 dB. Calibrate takes a few hundred operations per sample and
// depth. The error wraps ErrTarget if no depth meets the bound. Other errors are about samples that
// are infinite, NaN or missing. If all samples are 0, the result is depth 1 and scale 1.
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
		if c = s.fitScale(depth); c.SNR >= snr {
			return c, nil
		}
	}
	return c, fmt.Errorf("calibrate for %.1f dB: %d trits give %.1f: %w", snr, c.Depth, c.SNR, ErrTarget)
}

// CalibrateDepth returns the scale with the least mean square error for a given depth of 1 to
// MaxDepth. The depth may be larger than these values need, for example that of the whole layer.
// Samples and errors are as for Calibrate.
func CalibrateDepth(samples [][]float32, depth int) (Calibration, error) {
	if depth < 1 || depth > MaxDepth {
		return Calibration{}, fmt.Errorf("calibrate %d trits: 1 to %d are possible", depth, MaxDepth)
	}
	s, err := collect(samples)
	if err != nil {
		return Calibration{}, err
	}
	return s.fitScale(depth), nil
}

// sample is the magnitudes of the values. Signs do not matter, because the codes are symmetric.
type sample struct {
	magnitudes     []float64
	power, largest float64
}

// collect makes a sample of all values, which must be finite.
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
			s.largest = max(s.largest, a)
		}
	}
	if len(s.magnitudes) == 0 {
		return nil, errors.New("calibrate: no samples")
	}
	return s, nil
}

// fitScale finds the best scale for a depth.
func (s *sample) fitScale(depth int) Calibration {
	if s.largest == 0 {
		return Calibration{Depth: depth, Scale: 1, SNR: math.Inf(1)}
	}
	levels := float64(Max(depth))
	best, noise := 0.0, math.Inf(1)
	try := func(scale float64) (next float64) {
		e, next, _ := s.measureError(scale, levels)
		if e < noise {
			best, noise = scale, e
		}
		return next
	}
	// The error has several local minima. These steps of a quarter octave find the valley of the
	// lowest one. They start from twice the scale that clips nothing, because with fewer levels
	// than values it may be better to make some values 0.
	for i := range 64 {
		try(2 * s.largest / levels * math.Exp2(-float64(i)/4))
	}
	// From there, fit the scale to the codes and the codes to the scale in turn. Neither increases
	// the error.
	_, scale, _ := s.measureError(best, levels)
	for before := math.Inf(1); scale > 0 && noise < before*(1-1e-6); {
		before = noise
		scale = try(scale)
	}
	// Then try smaller and smaller steps around that scale. Codes that do not change can keep it a
	// little off the minimum.
	for step := 1.0 / 16; step > 1e-4; step /= 2 {
		center := best
		try(center * (1 + step))
		try(center / (1 + step))
	}
	return s.newCalibration(depth, float32(min(best, math.MaxFloat32)))
}

// measureError returns the squared error with a scale, the best scale for the resulting codes, and
// how many values are clipped.
func (s *sample) measureError(scale, levels float64) (noise, next float64, clipped int) {
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

// newCalibration returns the calibration with a scale that is rounded to float32.
func (s *sample) newCalibration(depth int, scale float32) Calibration {
	if scale == 0 {
		scale = math.SmallestNonzeroFloat32
	}
	noise, _, clipped := s.measureError(float64(scale), float64(Max(depth)))
	c := Calibration{Depth: depth, Scale: scale, SNR: math.Inf(1), Clipped: clipped}
	if noise != 0 {
		c.SNR = 10 * math.Log10(s.power/noise)
	}
	return c
}
