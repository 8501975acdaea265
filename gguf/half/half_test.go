package half

// These tests compare the conversions with the definition, for every half.

import (
	"math"
	"testing"
)

// value computes a half by its definition: ±mantissa * 2^(exponent-25), with the implied bit unless
// the exponent is 0.
func value(h uint16) float64 {
	exponent, mantissa := int(h>>10&31), int(h&0x3ff)
	if exponent == 0 {
		exponent = 1
	} else {
		mantissa |= 0x400
	}
	v := math.Ldexp(float64(mantissa), exponent-25)
	if h&0x8000 != 0 {
		return math.Copysign(v, -1)
	}
	return v
}

func TestFloat32(t *testing.T) {
	for h := range 1 << 16 {
		h := uint16(h)
		got := Float32(h)
		switch {
		case h&0x7c00 != 0x7c00:
			if want := float32(value(h)); math.Float32bits(got) != math.Float32bits(want) {
				t.Fatalf("%#x: %g, want %g", h, got, want)
			}
		case h&0x3ff == 0:
			if !math.IsInf(float64(got), int(int16(h))|1) {
				t.Fatalf("%#x: %g", h, got)
			}
		default:
			want := uint32(h&0x8000)<<16 | 0x7fc00000 | uint32(h&0x1ff)<<13
			if math.Float32bits(got) != want {
				t.Fatalf("%#x: %#x, want %#x", h, math.Float32bits(got), want)
			}
		}
	}
}

func TestRound(t *testing.T) {
	// Every finite half, and the points around the middle between it and the next one.
	for h := uint16(0); h < 0x7c00; h++ {
		v, next := float32(value(h)), float32(65536)
		if h < 0x7bff {
			next = float32(value(h + 1))
		}
		middle := (v + next) / 2
		for _, tt := range []struct {
			v    float32
			want uint16
		}{{v, h}, {math.Nextafter32(middle, 0), h}, {middle, h + h&1}, {math.Nextafter32(middle, next), h + 1}} {
			if got := Round(tt.v); got != tt.want {
				t.Fatalf("Round(%g) = %#x, want %#x", tt.v, got, tt.want)
			}
			if got := Round(-tt.v); got != tt.want|0x8000 {
				t.Fatalf("Round(%g) = %#x, want %#x", -tt.v, got, tt.want|0x8000)
			}
		}
	}
	for _, v := range []float64{math.Inf(1), 65536, 1e30} {
		if got := Round(float32(v)); got != 0x7c00 {
			t.Errorf("Round(%g) = %#x", v, got)
		}
	}
	if got := Round(float32(math.NaN())); got != 0x7e00 {
		t.Errorf("Round(NaN) = %#x", got)
	}
}
