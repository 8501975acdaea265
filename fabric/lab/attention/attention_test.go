package attention

// This file compares attention to plain float64 arithmetic. Exact attention must be within rounding
// errors, selective attention within its own error estimates.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// newFilledCache returns a cache with n random positions of every head.
func newFilledCache(t testing.TB, cfg Config, n int, rng *rand.Rand) *Cache {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	k, v := make([]float32, cfg.Heads*cfg.Dim), make([]float32, cfg.Heads*cfg.Dim)
	for range n {
		for i := range k {
			k[i], v[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64())
		}
		if err := c.Append(k, v); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// newQuery returns queries whose scores, scaled with 1/sqrt(Dim), are normal with the given
// deviation. For the keys at positions the scores are higher by peak.
func newQuery(c *Cache, deviation, peak float64, positions []int, rng *rand.Rand) []float32 {
	return newQueries(c, c.cfg.Group, deviation, peak, positions, rng)
}

// newQueries is newQuery with group queries for each head of keys.
func newQueries(c *Cache, group int, deviation, peak float64, positions []int, rng *rand.Rand) []float32 {
	d := c.cfg.Dim
	q := make([]float32, c.cfg.Heads*group*d)
	for i := range q {
		q[i] = float32(deviation * rng.NormFloat64())
	}
	for i := range c.cfg.Heads * group {
		for _, p := range positions {
			key := c.heads[i/group].keys[p*d:][:d]
			var square float64
			for _, x := range key {
				square += float64(x) * float64(x)
			}
			for j, x := range key {
				q[i*d+j] += x * float32(peak*math.Sqrt(float64(d))/square)
			}
		}
	}
	return q
}

// referenceAttention returns the attention of query head i, computed in float64, and the weights of
// all positions.
func referenceAttention(c *Cache, i int, q []float32, scale float32) (result, weights []float64) {
	d, h := c.cfg.Dim, &c.heads[i/c.cfg.Group]
	q = q[i*d:][:d]
	weights, result = make([]float64, c.n), make([]float64, d)
	for p := range weights {
		for j, x := range q {
			weights[p] += float64(x) * float64(h.keys[p*d+j]) * float64(scale)
		}
	}
	if c.n == 0 {
		return result, weights
	}
	largest := slices.Max(weights)
	var sum float64
	for p := range weights {
		weights[p] = math.Exp(weights[p] - largest)
		sum += weights[p]
	}
	for p := range weights {
		weights[p] /= sum
		for j := range result {
			result[j] += weights[p] * float64(h.values[p*d+j])
		}
	}
	return result, weights
}

// distance is |a - b| / |b|.
func distance(a []float32, b []float64) float64 {
	var diff float64
	for i, x := range b {
		diff += (float64(a[i]) - x) * (float64(a[i]) - x)
	}
	if n := norm(b); n > 0 {
		return math.Sqrt(diff) / n
	}
	return math.Sqrt(diff)
}

func norm(x []float64) float64 {
	var square float64
	for _, v := range x {
		square += v * v
	}
	return math.Sqrt(square)
}

func TestDense(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, d := range []int{8, 16, 40, 64, 80, 128} {
		for _, n := range []int{0, 1, 63, 64, 65, 128, 129, 300} {
			c := newFilledCache(t, Config{Heads: 2, Group: 3, Dim: d, Capacity: 300, KeyDigits: 1, QueryDigits: 1},
				n, rng)
			q := newQuery(c, 3, 0, nil, rng)
			dst, scale := make([]float32, len(q)), float32(1/math.Sqrt(float64(d)))
			for i := range dst {
				dst[i] = 42
			}
			c.Dense(dst, q, scale)
			for i := range 6 {
				want, _ := referenceAttention(c, i, q, scale)
				if e := distance(dst[i*d:][:d], want); !(e < 2e-6) {
					t.Errorf("%d elements, %d positions, query head %d: error %v, want less than 2e-6", d, n, i, e)
				}
			}
		}
	}
}

// TestEstimates compares the estimates of the approximated mass and of the error to the true ones,
// with scores of different kinds.
func TestEstimates(t *testing.T) {
	for _, test := range []struct {
		name            string
		deviation, peak float64
		top             int
	}{{"flat", 1, 0, 128}, {"steep", 3, 0, 32}, {"peaks", 1, 7, 32}, {"few", 2, 0, 8}} {
		for _, d := range []int{64, 128} {
			for keyDigits := 1; keyDigits <= 2; keyDigits++ {
				t.Run(fmt.Sprintf("%s/%d/%d", test.name, d, keyDigits), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(3, uint64(d)))
					const n, group = 1024 + 17, 6
					// There is one query head at a time, for Evaluated.
					c := newFilledCache(t,
						Config{Heads: 1, Group: 1, Dim: d, Capacity: n, KeyDigits: keyDigits, QueryDigits: 2}, n, rng)
					q := newQueries(c, group, test.deviation, test.peak, []int{100, 500, 900, 1000}, rng)
					dst, scale := make([]float32, len(q)), float32(1/math.Sqrt(float64(d)))
					o := Options{Scale: scale, Top: test.top, Sinks: 4, Audit: 32, Tolerance: math.Inf(1)}
					var estimated, missed, estimatedError, trueError, worst float64
					for i := range group {
						to := dst[i*d:][:d]
						st := c.Attend(to, q[i*d:][:d], o)
						if st.Fallbacks != 0 || st.Positions != n || st.Exact != len(c.Evaluated()) ||
							st.Exact > test.top+4+32+block {
							t.Fatalf("%+v, want no fallbacks and at most %d evaluated positions",
								st, test.top+4+32+block)
						}
						want, weights := referenceAttention(c, 0, q[i*d:][:d], scale)
						left := 1.0
						for _, p := range c.Evaluated() {
							left -= weights[p]
						}
						estimated += st.Missed / group
						missed += left / group
						e := distance(to, want)
						estimatedError += st.Error / group
						trueError += e / group
						// Values are vectors of norm sqrt(d).
						worst = max(worst, e*norm(want)/math.Sqrt(float64(d))/max(left, 1e-5))
					}
					t.Logf("missed %.4f, estimated %.4f; error %.4f, estimated %.4f; "+
						"error at most %.2f times the missed mass, in norms of a value",
						missed, estimated, trueError, estimatedError, worst)
					ratio, low, high := estimatedError/trueError, []float64{1: 0.3, 2: 0.7}, []float64{1: 2.5, 2: 1.7}
					if ratio < low[keyDigits] || ratio > high[keyDigits] {
						t.Errorf("estimated error %v, want %v times to %v times %v",
							estimatedError, low[keyDigits], high[keyDigits], trueError)
					}
					if math.Abs(estimated-missed) > 0.15*missed+1e-3 {
						t.Errorf("estimated mass %v, want about %v", estimated, missed)
					}
					// Block means approximate what is not evaluated. Without them this would be 1.
					if limit := []float64{1: 1, 2: 0.3}[keyDigits]; worst > limit {
						t.Errorf("an error of %v times the approximated mass, want at most %v", worst, limit)
					}
				})
			}
		}
	}
}

// TestFindsPeaks checks that peaks are found among thousands of positions, and that only few
// positions are evaluated for them.
func TestFindsPeaks(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const d, n = 64, 4096
	c := newFilledCache(t, Config{Heads: 2, Group: 2, Dim: d, Capacity: n, KeyDigits: 2, QueryDigits: 2}, n, rng)
	q := newQuery(c, 0.5, 14, []int{5, 1000, 3333, 4031}, rng)
	dst := make([]float32, len(q))
	o := Options{Scale: 0.125, Top: 256, Sinks: 4, Audit: 32, MaxApproximated: 0.05, Tolerance: 0.05}
	st := c.Attend(dst, q, o)
	if st.Fallbacks != 0 || st.Missed > 0.06 || st.Error > 0.02 || st.Exact > 4*(36+40) {
		t.Errorf("%+v, want no fallbacks, few positions, and small estimates", st)
	}
	for i := range 4 {
		want, weights := referenceAttention(c, i, q, o.Scale)
		for p, w := range weights {
			if i == 3 && w > o.MaxApproximated && !slices.Contains(c.Evaluated(), int32(p)) {
				t.Errorf("position %d with the weight %v was not evaluated", p, w)
			}
		}
		if e := distance(dst[i*d:][:d], want); e > 0.03 {
			t.Errorf("query head %d: error %v, want at most 0.03", i, e)
		}
	}
}

// TestFallback spreads the mass over all positions, so that a few are not enough. The result must
// be that of Dense, bit for bit.
func TestFallback(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	const d, n = 64, 1000
	for _, o := range []Options{
		{Scale: 0.125, Top: 100, Sinks: 4, Audit: 16, Tolerance: 0.2},
		{Scale: 0.125, Tolerance: 0.2, Pause: 2},
		{Scale: 0.125, Top: 500, Tolerance: -1},
		{Scale: 0.125, Top: 500, Tolerance: math.NaN()},
	} {
		c := newFilledCache(t, Config{Heads: 2, Group: 2, Dim: d, Capacity: n, KeyDigits: 2, QueryDigits: 2}, n, rng)
		q := newQuery(c, 0.5, 0, nil, rng)
		got, want := make([]float32, len(q)), make([]float32, len(q))
		c.Dense(want, q, o.Scale)
		for call := range 5 {
			st := c.Attend(got, q, o)
			paused := o.Pause > 0 && call%(o.Pause+1) != 0
			if st.Fallbacks != 4 || st.Exact != 4*n || (st.Missed == 0) != paused || (st.Error == 0) != paused {
				t.Errorf("call %d, %+v: %+v, want 4 fallbacks, and no estimates: %v", call, o, st, paused)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v: result %v, want %v as of Dense", o, got, want)
			}
			clear(got)
		}
	}
}

// TestTopAlone evaluates only the best positions. Then weights are relative to the largest
// estimate, not to an exact score.
func TestTopAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(19, 20))
	c := newFilledCache(t, Config{Heads: 1, Group: 1, Dim: 80, Capacity: 640, KeyDigits: 2, QueryDigits: 2}, 640, rng)
	q := newQuery(c, 10, 0, nil, rng)
	dst := make([]float32, len(q))
	st := c.Attend(dst, q, Options{Scale: 0.1, Top: 16, Tolerance: 0.1})
	want, _ := referenceAttention(c, 0, q, 0.1)
	if e := distance(dst, want); st.Fallbacks != 0 || st.Exact < 15 || st.Exact > 16 || e > 0.01 {
		t.Errorf("%+v, error %v, want no fallback, 15 or 16 positions, an error of at most 0.01", st, e)
	}
}

// TestFallbackOfSome has query heads that share keys, of which only some fall back.
func TestFallbackOfSome(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	const d, n, group = 64, 1000, 4
	c := newFilledCache(t, Config{Heads: 1, Group: group, Dim: d, Capacity: n, KeyDigits: 2, QueryDigits: 2}, n, rng)
	flat, peaks := newQueries(c, group, 0.3, 0, nil, rng), newQueries(c, group, 0.3, 15, []int{300}, rng)
	q := slices.Concat(flat[:d], peaks[d:2*d], flat[2*d:3*d], peaks[3*d:])
	got, want := make([]float32, len(q)), make([]float32, len(q))
	st := c.Attend(got, q, Options{Scale: 0.125, Top: 50, Sinks: 4, Audit: 16, Tolerance: 0.05})
	c.Dense(want, q, 0.125)
	if st.Fallbacks != 2 || st.Exact >= 3*n || st.Exact <= 2*n {
		t.Errorf("%+v, want 2 fallbacks", st)
	}
	for g := range group {
		exact, _ := referenceAttention(c, g, q, 0.125)
		fellBack := slices.Equal(got[g*d:][:d], want[g*d:][:d])
		if e := distance(got[g*d:][:d], exact); e > 0.05 || fellBack != (g%2 == 0) {
			t.Errorf("query head %d: error %v, fell back: %v, want at most 0.05, %v", g, e, fellBack, g%2 == 0)
		}
	}
}

// TestCalibration makes estimates worse than those of the keys' ternary copies are. The variance
// must be as large as the errors.
func TestCalibration(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	const d, n = 64, 1024
	c := newFilledCache(t, Config{Heads: 1, Group: 1, Dim: d, Capacity: n, KeyDigits: 1, QueryDigits: 3}, n, rng)
	q, h, o := newQuery(c, 1, 0, nil, rng), &c.heads[0], Options{Scale: 0.125, Audit: 500, Sinks: 12}
	for _, noise := range []float64{0, 5} {
		estimates := c.estimateScores(h, q, o.Scale)
		for i := range estimates {
			estimates[i] += float32(noise * rng.NormFloat64())
		}
		sum := newOnlineSoftmax(make([]float32, d))
		variance := c.evaluateFixed(h, &sum, q, estimates, o)
		if got := len(c.scratch.evaluated); got != 512 {
			t.Fatalf("%d positions were evaluated, want 512", got)
		}
		c.scratch.evaluated = c.scratch.evaluated[:0]
		var residual float64
		for _, r := range h.residuals[:n] {
			residual += float64(r) / n
		}
		seen := variance * residual
		if noise == 0 && !(seen > 0.1 && seen < 0.3) || noise == 5 && !(seen > 20 && seen < 30) {
			t.Errorf("noise %v: variance of a score %v, want 0.1 to 0.3 without noise, 20 to 30 with it", noise, seen)
		}
	}
}

// TestNotFinite has NaN and infinities at several positions. The result must be that of Dense.
func TestNotFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, where := range []int{0, 70, 127, 130} {
			rng := rand.New(rand.NewPCG(9, 10))
			const d, n = 64, 140
			cfg := Config{Heads: 1, Group: 1, Dim: d, Capacity: n, KeyDigits: 2, QueryDigits: 2}
			c := newFilledCache(t, cfg, 0, rng)
			k, v := make([]float32, d), make([]float32, d)
			for range n {
				for i := range k {
					k[i], v[i] = float32(rng.NormFloat64()), 1
				}
				if c.Len() == where {
					k[3] = float32(bad)
				}
				if err := c.Append(k, v); err != nil {
					t.Fatal(err)
				}
			}
			q := newQuery(c, 1, 0, nil, rng)
			got, want := make([]float32, d), make([]float32, d)
			c.Attend(got, q, Options{Scale: 0.125, Top: 10, Sinks: 1, Audit: 4, Tolerance: math.Inf(1)})
			c.Dense(want, q, 0.125)
			for i := range got {
				if !(math.Abs(float64(got[i]-want[i])) < 1e-5) && (got[i] == got[i] || want[i] == want[i]) {
					t.Fatalf("%v in position %d: %v, want %v as of Dense", bad, where, got[i], want[i])
				}
			}
		}
	}
}

// TestSmall has more sinks, audit and top positions than there are positions, and none at all.
func TestSmall(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, n := range []int{0, 1, 63, 64, 65, 130} {
		for _, o := range []Options{
			{Top: 1000, Sinks: 1000, Audit: 1000}, {Top: 1000}, {Sinks: 1000}, {Audit: 1000},
			{Sinks: 60, Audit: 70}, {Top: 1000, Sinks: 5, Audit: 5},
		} {
			o.Scale, o.Tolerance = 0.25, 0.01
			c := newFilledCache(t, Config{Heads: 1, Group: 1, Dim: 16, Capacity: 130, KeyDigits: 2, QueryDigits: 3},
				n, rng)
			q := newQuery(c, 3, 0, nil, rng)
			got := make([]float32, len(q))
			st := c.Attend(got, q, o)
			want, _ := referenceAttention(c, 0, q, o.Scale)
			if e := distance(got, want); !(e <= 0.02) || st.Exact > n {
				t.Errorf("%d positions, %+v: %+v, error %v, want at most 0.02", n, o, st, e)
			}
			seen := slices.Clone(c.Evaluated())
			slices.Sort(seen)
			if len(slices.Compact(seen)) != st.Exact {
				t.Errorf("%d positions, %+v: evaluated %v, want %d different ones", n, o, c.Evaluated(), st.Exact)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	good := Config{Heads: 1, Group: 1, Dim: 8, Capacity: 1, KeyDigits: 1, QueryDigits: 1}
	for _, change := range []func(*Config){
		func(c *Config) { c.Heads = 0 },
		func(c *Config) { c.Group = -1 },
		func(c *Config) { c.Dim = 1 << 20 },
		func(c *Config) { c.Capacity = 0 },
		func(c *Config) { c.KeyDigits = 3 },
		func(c *Config) { c.QueryDigits = 4 },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("New accepted %+v, want an error", cfg)
		}
	}
	c, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, 8)
	if err := c.Append(x, x); err != nil {
		t.Fatal(err)
	}
	if err := c.Append(x, x); !errors.Is(err, ErrFull) || c.Len() != 1 {
		t.Errorf("a second position: error %v, length %d, want ErrFull, 1", err, c.Len())
	}
	for name, f := range map[string]func(){
		"append": func() { _ = c.Append(x[:7], x) },
		"dense":  func() { c.Dense(x, x[:7], 1) },
		"attend": func() { c.Attend(x[:7], x, Options{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic, want a panic", name)
				}
			}()
			f()
		}()
	}
}

func TestAllocations(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	c := newFilledCache(t, Config{Heads: 2, Group: 2, Dim: 64, Capacity: 1000, KeyDigits: 2, QueryDigits: 2}, 500, rng)
	q := newQuery(c, 1, 5, []int{77}, rng)
	dst, k := make([]float32, len(q)), make([]float32, 2*64)
	fallbacks := 0
	if n := testing.AllocsPerRun(100, func() { // these calls go beyond the end of a block
		if err := c.Append(k, k); err != nil {
			t.Fatal(err)
		}
		for _, tolerance := range []float64{math.Inf(1), 0.01, 0} {
			o := Options{Scale: 0.125, Top: 64, Sinks: 4, Audit: 16, Tolerance: tolerance}
			fallbacks += c.Attend(dst, q, o).Fallbacks
		}
		c.Dense(dst, q, 0.125)
	}); n != 0 {
		t.Errorf("%v allocations in a step, want 0", n)
	}
	if fallbacks == 0 {
		t.Error("no step fell back, so fallbacks were not measured")
	}
}

func FuzzAttend(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint16(70), uint8(4), 0.1)
	f.Add(binary.LittleEndian.AppendUint32(nil, 0x7f800000), uint16(200), uint8(255), 1.0)
	f.Fuzz(func(t *testing.T, data []byte, positions uint16, top uint8, tolerance float64) {
		const d = 16
		n := int(positions % 300)
		at := 0
		// next returns numbers made of the data, over and over: any float32, or moderate ones.
		next := func() float32 {
			if len(data) < 4 {
				at++
				return float32(at % 7)
			}
			at = (at + 5) % (len(data) - 3)
			if data[0]&1 == 0 {
				return float32(int8(data[at])) / 16
			}
			return math.Float32frombits(binary.LittleEndian.Uint32(data[at:]))
		}
		c := newFilledCache(t, Config{
			Heads: 1, Group: 1, Dim: d, Capacity: 300, KeyDigits: 1 + int(top)%2, QueryDigits: 1 + int(top)%3,
		}, 0, nil)
		k, v, q := make([]float32, d), make([]float32, d), make([]float32, d)
		for range n {
			for i := range k {
				k[i], v[i] = next(), next()
			}
			if err := c.Append(k, v); err != nil {
				t.Fatal(err)
			}
		}
		for i := range q {
			q[i] = next()
		}
		got, want := make([]float32, d), make([]float32, d)
		st := c.Attend(got, q, Options{
			Scale: 0.25, Top: int(top), Sinks: int(top) % 5, Audit: int(top) % 7,
			MaxApproximated: tolerance / 2, Tolerance: tolerance,
		})
		c.Dense(want, q, 0.25)
		same := func(a, b float32) bool { return a == b || a != a && b != b }
		if st.Fallbacks == 1 && !slices.EqualFunc(got, want, same) {
			t.Errorf("after a fallback: %v, want %v as of Dense", got, want)
		}
		if st.Exact > n || st.Fallbacks == 0 && !(st.Error <= tolerance) {
			t.Errorf("%d positions, tolerance %v: %+v, want an error within it and no more positions", n, tolerance, st)
		}
	})
}
