package overhead

// This file tests how probes are counted in code.

import "testing"

func TestPlaces(t *testing.T) {
	code := make([]byte, 64)
	with := func(at ...int) []byte {
		b := make([]byte, 64)
		for _, i := range at {
			b[i] = 0xcc
		}
		return b
	}
	for _, test := range []struct {
		altered []byte
		want    int
	}{{with(), 0}, {with(0), 1}, {with(63), 1}, {with(10, 11, 14), 1}, {with(10, 15), 2}, {with(0, 20, 63), 3}} {
		if got := countPlaces(test.altered, code); got != test.want {
			t.Errorf("%v: %d, want %d", test.altered, got, test.want)
		}
	}
}
