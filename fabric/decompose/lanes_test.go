//go:build amd64 && !noasm

package decompose

// This file compares the assembly for sixteen blocks with Go.

import (
	"math"
	"math/rand/v2"
	"testing"
)

// FuzzLanes compares the assembly with Go, bit for bit. It tries magnitudes and factors of any
// size, equal ones, zeros, and blocks of any length.
func FuzzLanes(f *testing.F) {
	for i := range uint64(40) {
		f.Add(i, uint8(6*i), i%3 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, rows uint8, coarse bool) {
		if !hasAVX2 {
			t.Skip("the processor has no AVX2")
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		mags := make([]vec, 1+int(rows))
		random := func() float32 {
			if coarse { // gives ties and zeros
				return float32(rng.IntN(5)) / 2
			}
			return float32(math.Abs(rng.NormFloat64()) * math.Exp(3*rng.NormFloat64()))
		}
		for i := range mags {
			for l := range mags[i] {
				mags[i][l] = random()
			}
		}
		equal := func(what string, a, b any) {
			t.Helper()
			if a != b {
				t.Fatalf("%s of %d rows:\ngot  %v\nwant %v", what, len(mags), a, b)
			}
		}
		var s, a, r1, r2, g1, g2 vec
		for l := range s {
			s[l], a[l] = random(), random()
		}
		for _, top := range []float32{1, 4, 13, 40, 121, 364} {
			sumOnGridGo(&r2, &g2, mags, &s, top)
			var e1, e2 sums
			d1, d2 := make([][lanes]int32, len(mags)), make([][lanes]int32, len(mags))
			roundToGridGo(d2, &e2, mags, &a, &s, top)
			check := func() {
				t.Helper()
				equal("sums", [2]vec{r1, g1}, [2]vec{r2, g2})
				equal("errors", e1, e2)
				for i := range d1 {
					equal("integers", d1[i], d2[i])
				}
			}
			sumOnGridAVX2(&r1, &g1, &mags[0], len(mags), &s, top)
			roundToGridAVX2(&d1[0], &e1, &mags[0], len(mags), &a, &s, top)
			check()
			if hasAVX512 {
				clear(d1)
				sumOnGridAVX512(&r1, &g1, &mags[0], len(mags), &s, top)
				roundToGridAVX512(&d1[0], &e1, &mags[0], len(mags), &a, &s, top)
				check()
			}
		}
		if !hasAVX512 {
			return
		}
		// The number of rows of loadMagnitudes is a multiple of 16.
		mags = make([]vec, 16*(1+int(rows)%16))
		w := make([]float32, lanes*len(mags))
		for i := range w {
			w[i] = float32(rng.NormFloat64() * math.Exp(30*rng.NormFloat64()))
			if w[i] > math.MaxFloat32 || w[i] < -math.MaxFloat32 || coarse && i%3 == 0 {
				w[i] = 0
			}
		}
		again := make([]vec, len(mags))
		var m1, m2 vec
		var u1, u2 [lanes]int32
		loadMagnitudesAVX512(&mags[0], len(mags), &m1, &u1, &w[0])
		loadMagnitudesGo(again, &m2, &u2, w)
		equal("largest", m1, m2)
		equal("units", u1, u2)
		d := make([][lanes]int32, len(mags))
		for i := range mags {
			equal("magnitudes", mags[i], again[i])
			for l := range d[i] {
				d[i][l] = rng.Int32N(122)
			}
		}
		c1, c2 := make([]byte, len(w)), make([]byte, len(w))
		storeCodesAVX512(&c1[0], &d[0], len(d), &w[0], 121)
		storeCodesGo(c2, d, w, 121)
		equal("codes", string(c1), string(c2))
		for planes := 2; planes <= maxFree; planes++ {
			var a [maxFree]vec
			for l := range lanes {
				var x [maxFree]float32
				for p := range planes {
					x[p] = random()
				}
				sortAscending(x[:planes])
				for p, v := range x {
					a[p][l] = v
				}
			}
			var e1, e2 sums
			d1, d2 := make([][lanes]int32, len(mags)), make([][lanes]int32, len(mags))
			assignLevelsAVX512(&d1[0], &e1, &mags[0], len(mags), &a, planes)
			assignLevelsGo(d2, &e2, mags, &a, planes)
			equal("errors of levels", e1, e2)
			for i := range d1 {
				equal("integers of levels", d1[i], d2[i])
			}
			steps := 1 + int(seed%3)
			b := a
			improveFactorsAVX512(&a, &g1, &mags[0], len(mags), planes, steps)
			improveFactorsGo(&b, &g2, mags, planes, steps)
			equal("factors", a, b)
			equal("gains", g1, g2)
		}
	})
}
