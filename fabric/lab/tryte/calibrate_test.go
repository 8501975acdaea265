package tryte

// This file tests the choice of depth and scale.

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// quantiles returns n samples of a distribution, at the middles of parts of equal probability. They
// are not random.
func quantiles(n int, inverse func(p float64) float64) [][]float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(inverse((float64(i) + 0.5) / float64(n)))
	}
	return [][]float32{x[:n/3], x[n/3:]}
}

func uniform(p float64) float64 { return 2*p - 1 }

func gauss(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }

// gaussSNR returns the SNR of a unit Gaussian in steps of scale up to levels. It uses the integrals
// of (x - k scale)^2 over each cell.
func gaussSNR(scale, levels float64) float64 {
	density := func(x float64) float64 {
		if math.IsInf(x, 0) {
			return 0
		}
		return math.Exp(-x*x/2) / math.Sqrt(2*math.Pi)
	}
	below := func(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
	times := func(x float64) float64 {
		if math.IsInf(x, 0) {
			return 0
		}
		return x * density(x)
	}
	noise := 0.0
	for k := 0.0; k <= levels; k++ {
		from, to, c := (k-0.5)*scale, (k+0.5)*scale, k*scale
		if k == levels {
			to = math.Inf(1)
		}
		// The integral of x^2 is P - x f(x), that of x is -f(x).
		part := (1+c*c)*(below(to)-below(from)) - times(to) + times(from) + 2*c*(density(to)-density(from))
		if k > 0 {
			part *= 2 // for the cell on the other side
		}
		noise += part
	}
	return -10 * math.Log10(noise)
}

// bestGaussScale returns the scale with the largest SNR, and that SNR.
func bestGaussScale(depth int) (snr, scale float64) {
	levels := float64(Max(depth))
	for s := 8 / levels; s > 0.5/levels; s *= 0.998 {
		if got := gaussSNR(s, levels); got > snr {
			snr, scale = got, s
		}
	}
	return snr, scale
}

// TestGaussSNR compares the integrals to published values. Max (1960) gives the mean square error
// .1902 for three levels, at a step of 1.2240.
func TestGaussSNR(t *testing.T) {
	snr, scale := bestGaussScale(1)
	if math.Abs(snr+10*math.Log10(0.1902)) > 0.01 || math.Abs(scale-1.224) > 0.01 {
		t.Errorf("three levels: %.3f dB at %.4f, want %.3f dB at 1.224", snr, scale, -10*math.Log10(0.1902))
	}
}

func TestCalibrate(t *testing.T) {
	for depth := 1; depth <= 6; depth++ {
		gaussDB, gaussScale := bestGaussScale(depth)
		for _, c := range []struct {
			name           string
			samples        [][]float32
			snr, scale     float64
			within, factor float64
		}{
			// There are 3^depth cells of equal width. The signal is 1/3, the noise width^2/12.
			{"uniform", quantiles(20_000, uniform), 20 * math.Log10(math.Pow(3, float64(depth))),
				2 / math.Pow(3, float64(depth)), 0.02, 0.005},
			{"gauss", quantiles(20_000, gauss), gaussDB, gaussScale, 0.02 + 0.03*float64(depth), 0.1},
		} {
			if c.name == "gauss" && depth > 4 {
				continue // the samples end where finer levels would need the tail
			}
			t.Run(fmt.Sprintf("%s, depth %d", c.name, depth), func(t *testing.T) {
				got, err := Calibrate(c.samples, c.snr-2*c.within)
				if err != nil || got.Depth != depth || math.Abs(got.SNR-c.snr) > c.within ||
					math.Abs(float64(got.Scale)/c.scale-1) > c.factor {
					t.Errorf("%+v (error %v), want depth %d, %.3f dB at %.5f", got, err, depth, c.snr, c.scale)
				}
				if more, err := Calibrate(c.samples, c.snr+2*c.within); err != nil || more.Depth != depth+1 {
					t.Errorf("for a higher bound: %+v (error %v), want depth %d", more, err, depth+1)
				}
				// The result for the samples must be what a vector does to them.
				var signal, noise float64
				clipped := 0
				for _, x := range c.samples {
					v, y := NewVector(len(x), got.Depth), make([]float32, len(x))
					clipped += v.SetFloats(x, got.Scale)
					v.Floats(y, got.Scale)
					for i := range x {
						signal += float64(x[i]) * float64(x[i])
						noise += (float64(x[i]) - float64(y[i])) * (float64(x[i]) - float64(y[i]))
					}
				}
				if snr := 10 * math.Log10(signal/noise); math.Abs(snr-got.SNR) > 1e-3 || clipped != got.Clipped {
					t.Errorf("a vector has %.4f dB and %d clipped values, want %.4f and %d as calibrated",
						snr, clipped, got.SNR, got.Clipped)
				}
			})
		}
	}
}

// TestCalibrateLevels calibrates values that one scale holds without error.
func TestCalibrateLevels(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for depth := 1; depth <= 4; depth++ {
		x := make([]float32, 3000)
		for i := range x {
			x[i] = float32(r.IntN(2*int(Max(depth))+1)-int(Max(depth))) * 0.375
		}
		got, err := Calibrate([][]float32{x}, 100)
		if err != nil || got.Depth != depth || math.Abs(float64(got.Scale)-0.375) > 1e-6 || got.Clipped != 0 {
			t.Errorf("%+v (error %v), want depth %d, scale 0.375, 0 clipped", got, err, depth)
		}
	}
}

// TestCalibrateTails calibrates samples with outliers. They must be clipped if this gives the least
// error.
func TestCalibrateTails(t *testing.T) {
	x := quantiles(30_000, gauss)
	x = append(x, []float32{15, -15, 15})
	got, err := Calibrate(x, 15)
	if err != nil || got.Depth != 3 || got.Clipped < 3 {
		t.Errorf("three values of 15 deviations: %+v (error %v), want depth 3, at least 3 clipped", got, err)
	}
	for _, scale := range []float32{got.Scale * 1.03, got.Scale / 1.03, 15.0 / 13} {
		var s sample
		for _, part := range x {
			for _, v := range part {
				s.magnitudes = append(s.magnitudes, math.Abs(float64(v)))
				s.power += float64(v) * float64(v)
			}
		}
		if other := s.newCalibration(got.Depth, scale); other.SNR > got.SNR {
			t.Errorf("the scale %v has %.3f dB, but %v has %.3f, want the best", got.Scale, got.SNR, scale, other.SNR)
		}
	}
}

func TestCalibrateEdges(t *testing.T) {
	c, err := Calibrate([][]float32{{0, 0}, nil}, 60)
	if err != nil || c.Depth != 1 || c.Scale != 1 || !math.IsInf(c.SNR, 1) {
		t.Errorf("zeros: %+v (error %v), want depth 1, scale 1, SNR +Inf", c, err)
	}
	if c, err := Calibrate([][]float32{{0, -3}}, 60); err != nil || c.Depth != 1 ||
		math.Abs(float64(c.Scale)-3) > 1e-6 {
		t.Errorf("one magnitude: %+v (error %v), want depth 1, scale 3", c, err)
	}
	if c, err := Calibrate([][]float32{{math.SmallestNonzeroFloat32}}, 60); err != nil || c.Depth != 1 || c.SNR < 60 {
		t.Errorf("the smallest magnitude: %+v (error %v), want depth 1, at least 60 dB", c, err)
	}
	if c, err := Calibrate([][]float32{{math.MaxFloat32, -1}}, 60); err != nil || c.Depth != 1 || c.SNR < 60 {
		t.Errorf("the largest magnitude: %+v (error %v), want depth 1, at least 60 dB", c, err)
	}
	if c, err := Calibrate(quantiles(1000, gauss), 400); !errors.Is(err, ErrTarget) || c.Depth != MaxDepth {
		t.Errorf("400 dB: %+v (error %v), want depth %d, ErrTarget", c, err, MaxDepth)
	}
	nan := float32(math.NaN())
	for name, samples := range map[string][][]float32{
		"none": nil, "empty": {{}, nil}, "NaN": {{1, nan}}, "infinite": {{float32(math.Inf(-1))}},
	} {
		if _, err := Calibrate(samples, 20); err == nil || errors.Is(err, ErrTarget) {
			t.Errorf("%s: error %v, want one other than ErrTarget", name, err)
		}
	}
	if _, err := Calibrate([][]float32{{1}}, math.NaN()); err == nil {
		t.Error("Calibrate accepted a bound that is not a number, want an error")
	}
	for _, depth := range []int{0, MaxDepth + 1} {
		if _, err := CalibrateDepth([][]float32{{1}}, depth); err == nil {
			t.Errorf("CalibrateDepth accepted %d trits, want an error", depth)
		}
	}
	if _, err := CalibrateDepth([][]float32{{1, nan}}, 3); err == nil {
		t.Error("CalibrateDepth accepted NaN, want an error")
	}
	want := Calibration{Depth: 3, Scale: 1, SNR: math.Inf(1)}
	if c, err := CalibrateDepth([][]float32{{0}}, 3); err != nil || c != want {
		t.Errorf("zeros, three trits: %+v (error %v), want %+v", c, err, want)
	}
	// With more trits than needed, the scale must have the least error for these.
	need, err := Calibrate(quantiles(10_000, gauss), 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []int{0, 1, 2} {
		got, err := CalibrateDepth(quantiles(10_000, gauss), need.Depth+more)
		if err != nil || got.Depth != need.Depth+more || more == 0 && got != need ||
			got.SNR < need.SNR+8*float64(more) {
			t.Errorf("%d trits more than %+v: %+v (error %v), want at least 8 dB more for each", more, need, got, err)
		}
	}
}

func BenchmarkCalibrate(b *testing.B) {
	x := quantiles(16384, gauss)
	for b.Loop() {
		if _, err := Calibrate(x, 40); err != nil {
			b.Fatal(err)
		}
	}
}
