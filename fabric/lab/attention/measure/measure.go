// Package measure compares attention that selects positions by ternary estimates (package
// attention) to dense attention: how large its errors are, and how long it takes. The command "lab
// attention" runs it.
//
// Everything except for the times is the same in every run on the same kind of processor.
package measure

// This file makes the comparison.

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"tensorcast/fabric/lab/attention"
	"tensorcast/internal/stats"
	"tensorcast/internal/vec"
)

// Setting is how ternary attention is configured.
type Setting struct {
	KeyDigits       int       `json:"key_digits"`
	QueryDigits     int       `json:"query_digits"`
	Top             int       `json:"top"`
	Sinks           int       `json:"sinks"`
	Audit           int       `json:"audit"`
	MaxApproximated float64   `json:"leave"`
	Tolerance       Tolerance `json:"tolerance"`
	Pause           int       `json:"pause"` // for the times only: errors are measured on calls that estimate
}

// Tolerance is [attention.Options.Tolerance]. +Inf is formatted as "none", in JSON as null.
type Tolerance float64

func (t Tolerance) String() string {
	if math.IsInf(float64(t), 1) {
		return "none"
	}
	return strconv.FormatFloat(float64(t), 'g', -1, 64)
}

// MarshalJSON implements [json.Marshaler].
func (t Tolerance) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(t), 1) {
		return []byte("null"), nil
	}
	return []byte(t.String()), nil
}

// Row is the result of one comparison. Shares are from 0 to 1. Means are over query heads,
// including those that fell back and so have no error.
type Row struct {
	Workload  string `json:"workload"`
	Heads     int    `json:"heads"` // heads of keys
	Group     int    `json:"group"` // query heads per head of keys
	Dim       int    `json:"dim"`
	Positions int    `json:"positions"`
	Setting

	Fallbacks float64 `json:"fallbacks"` // share of query heads that fell back
	Exact     float64 `json:"exact"`     // share of positions whose exact score was used
	Missed    float64 `json:"missed"`    // share of the softmax's mass at the other positions
	MaxMissed float64 `json:"missed_max"`
	Recall    float64 `json:"recall"` // share of the 64 positions with the largest scores that were evaluated exactly
	Error     float64 `json:"error"`  // |result - dense| / |dense|
	MaxError  float64 `json:"error_max"`

	// What Attend estimated, before any fallback.
	EstimatedMissed float64 `json:"missed_estimated"`
	EstimatedError  float64 `json:"error_estimated"`

	// A step is attention for all query heads of one position. Times are medians. The speedup is
	// the median, with quartiles, of ratios. Each ratio is that of the sums over a run of Pause + 1
	// pairs of steps, so that every run has its share of failed estimates.
	DenseMicros   float64    `json:"dense_us"`
	TernaryMicros float64    `json:"ternary_us"`
	Speedup       float64    `json:"speedup"`
	Quartiles     [2]float64 `json:"speedup_quartiles"`
}

// recallCount is the number of best positions for [Row.Recall].
const recallCount = 64

// Timing says how times are measured. Dense and ternary steps alternate, for Pairs pairs, rounded
// up to whole runs of Pause + 1. Before each step, Evict bytes are read. This evicts keys and
// values from the processor's caches, as the other layers of a model would.
type Timing struct {
	Pairs int
	Evict int
}

// Compare compares ternary with dense attention on one workload.
func Compare(ctx context.Context, w *Workload, s Setting, t Timing) (Row, error) {
	row := Row{Workload: w.Name, Heads: len(w.Keys), Group: w.Group, Dim: w.Dim, Positions: w.Positions, Setting: s}
	if err := row.measureErrors(ctx, w); err != nil {
		return row, fmt.Errorf("compare results on %s: %w", w.Name, err)
	}
	if err := row.measureTimes(ctx, w, t); err != nil {
		return row, fmt.Errorf("compare times on %s: %w", w.Name, err)
	}
	return row, nil
}

// newCache returns a cache with the heads of w from first on.
func (s Setting) newCache(w *Workload, first, heads, group int) (*attention.Cache, error) {
	c, err := attention.New(attention.Config{
		Heads: heads, Group: group, Dim: w.Dim, Capacity: w.Positions,
		KeyDigits: s.KeyDigits, QueryDigits: s.QueryDigits,
	})
	if err != nil {
		return nil, err
	}
	keys, values := make([]float32, heads*w.Dim), make([]float32, heads*w.Dim)
	for p := range w.Positions {
		for h := range heads {
			copy(keys[h*w.Dim:], w.Keys[first+h][p*w.Dim:][:w.Dim])
			copy(values[h*w.Dim:], w.Values[first+h][p*w.Dim:][:w.Dim])
		}
		if err := c.Append(keys, values); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (s Setting) options(w *Workload) attention.Options {
	return attention.Options{
		Scale: w.scale(), Top: s.Top, Sinks: s.Sinks, Audit: s.Audit,
		MaxApproximated: s.MaxApproximated, Tolerance: float64(s.Tolerance), Pause: s.Pause,
	}
}

// measureErrors evaluates each query head separately, because Evaluated is per query head.
func (r *Row) measureErrors(ctx context.Context, w *Workload) error {
	d, n := w.Dim, float64(len(w.Keys)*w.Group)
	got, want := make([]float32, d), make([]float32, d)
	o := r.options(w)
	o.Pause = 0
	scores, all := make([]float32, w.Positions), make([]int32, w.Positions)
	for i := range all {
		all[i] = int32(i)
	}
	for h, keys := range w.Keys {
		c, err := r.newCache(w, h, 1, 1)
		if err != nil {
			return err
		}
		for g := range w.Group {
			if err := ctx.Err(); err != nil {
				return err
			}
			q := w.Queries[h][g*d:][:d]
			st := c.Attend(got, q, o)
			c.Dense(want, q, w.scale())
			vec.DotRows(scores, q, keys, all)
			vec.Softmax(scores, w.scale())
			evaluated := c.Evaluated()
			if st.Fallbacks > 0 {
				evaluated = all
			}
			left := 1.0
			for _, p := range evaluated {
				left -= float64(scores[p])
			}
			left = max(0, left) // rounding
			e := relativeError(got, want)
			r.Fallbacks += float64(st.Fallbacks) / n
			r.Exact += float64(st.Exact) / float64(st.Positions) / n
			r.EstimatedMissed += st.Missed / n
			r.EstimatedError += st.Error / n
			r.Missed += left / n
			r.MaxMissed = max(r.MaxMissed, left)
			r.Recall += computeRecall(scores, evaluated) / n
			r.Error += e / n
			r.MaxError = max(r.MaxError, e)
		}
	}
	return nil
}

// relativeError returns |a - b| / |b|.
func relativeError(a, b []float32) float64 {
	var diff, norm float64
	for i, x := range b {
		diff += float64(a[i]-x) * float64(a[i]-x)
		norm += float64(x) * float64(x)
	}
	return math.Sqrt(diff / norm)
}

// computeRecall returns the share of the best positions that were evaluated.
func computeRecall(weights []float32, evaluated []int32) float64 {
	sorted := slices.Clone(weights)
	slices.Sort(sorted)
	best := min(recallCount, len(sorted))
	least, found := sorted[len(sorted)-best], 0
	for _, p := range evaluated {
		if weights[p] >= least {
			found++
		}
	}
	return min(1, float64(found)/float64(best)) // of equal ones at the limit, any counts
}

// measureTimes measures steps of all query heads.
func (r *Row) measureTimes(ctx context.Context, w *Workload, t Timing) error {
	c, err := r.newCache(w, 0, len(w.Keys), w.Group)
	if err != nil {
		return err
	}
	var q []float32
	for _, queries := range w.Queries {
		q = append(q, queries...)
	}
	dst, o, evict := make([]float32, len(q)), r.options(w), make([]float32, t.Evict/4)
	dense := func() time.Duration {
		vec.Max(evict)
		start := time.Now()
		c.Dense(dst, q, o.Scale)
		return time.Since(start)
	}
	ternary := func() time.Duration {
		vec.Max(evict)
		start := time.Now()
		c.Attend(dst, q, o)
		return time.Since(start)
	}
	dense() // warm up
	if r.Pause == 0 {
		ternary() // with a pause, this would be the only call that estimates
	}
	var ds, ts, ratios []float64
	for len(ds) < t.Pairs {
		var all [2]time.Duration // sums of dense and ternary steps over a run
		for i := range r.Pause + 1 {
			if err := ctx.Err(); err != nil {
				return err
			}
			var a, b time.Duration
			if i%2 == 0 {
				a, b = dense(), ternary()
			} else {
				b, a = ternary(), dense()
			}
			ds, ts = append(ds, a.Seconds()*1e6), append(ts, b.Seconds()*1e6)
			all[0], all[1] = all[0]+a, all[1]+b
		}
		ratios = append(ratios, float64(all[0])/float64(all[1]))
	}
	r.DenseMicros, r.TernaryMicros, r.Speedup = stats.Median(ds), stats.Median(ts), stats.Median(ratios)
	r.Quartiles = [2]float64{stats.Quantile(ratios, 0.25), stats.Quantile(ratios, 0.75)}
	return nil
}
