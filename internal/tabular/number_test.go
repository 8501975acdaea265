package tabular

// This file tests how numbers and sizes are written.

import (
	"math"
	"testing"
)

// Numbers have three digits and no exponent, whatever their size.
func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 4: "4", 4.4: "4.4", 13.333: "13.3", 344: "344", 1012.4: "1010", 123456: "123000", 0.7414: "0.741",
		0.00001234: "0.0000123", -2.5: "-2.5", math.Inf(1): "+Inf",
	} {
		if got := Number(v); got != want {
			t.Errorf("Number(%g) = %q, want %q", v, got, want)
		}
	}
}

// A size is in the unit of which there are less than 1000.
func TestSize(t *testing.T) {
	const mib = 1 << 20
	for bytes, want := range map[float64]string{
		0: "0 B", 999: "999 B", 1000: "0.977 KiB", 32 << 10: "32 KiB", 2.5 * mib: "2.5 MiB", 764.2 * mib: "764 MiB",
		999.4 * mib: "999 MiB", 999.6 * mib: "0.976 GiB", 1010 * mib: "0.986 GiB", 1024 * mib: "1 GiB",
		7.25 * 1024 * mib: "7.25 GiB", 1 << 61: "2050 PiB", -3 * mib: "-3 MiB",
	} {
		if got := Size(bytes); got != want {
			t.Errorf("Size(%g) = %q, want %q", bytes, got, want)
		}
	}
}
