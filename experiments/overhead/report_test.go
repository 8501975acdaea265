package overhead

// This file tests the estimate of the overhead on planted data.

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tensorcast/internal/chart"
	"tensorcast/internal/stats"
)

// TestPlantedOverhead plants an overhead in noise with heavy tails and drift, many times. The
// estimate must be near it, and the interval must contain it about as often as it claims to.
func TestPlantedOverhead(t *testing.T) {
	const series, pairs = 400, 20
	for _, planted := range []float64{0, 0.003, 0.01, 0.15} {
		random := rand.New(rand.NewPCG(1, uint64(1e6*planted)))
		noise := func() float64 { // mostly 1 %, a tenth of the time ten times as much
			n := 0.01 * random.NormFloat64()
			if random.IntN(10) == 0 {
				n *= 10
			}
			return math.Exp(n)
		}
		contained, sum := 0, 0.
		for range series {
			row := Row{}
			speed := 20.
			segment := func(share float64) Segment {
				speed *= 0.999 // drift
				v := speed * share * noise()
				return Segment{TokS: v, MedianMs: 1000 / v}
			}
			for range pairs / 2 {
				a, b, c, d := segment(1), segment(1-planted), segment(1-planted), segment(1)
				row.Pairs = append(row.Pairs, Pair{a, b}, Pair{d, c})
			}
			r := &Report{Rows: []Row{row}}
			r.summarise()
			got := r.Rows[0]
			if got.Overhead.Low > got.Overhead.Estimate || got.Overhead.High < got.Overhead.Estimate {
				t.Fatalf("%+v: the estimate is outside of its interval", got.Overhead)
			}
			if got.Overhead.Low <= planted && planted <= got.Overhead.High {
				contained++
			}
			sum += got.Overhead.Estimate
		}
		if share := float64(contained) / series; share < 0.92 || share > 0.985 {
			t.Errorf("planted %v: %.1f %% of the intervals contain it, want about 95", planted, 100*share)
		}
		if mean := sum / series; math.Abs(mean-planted) > 0.001 {
			t.Errorf("the estimate is %[2]v on average, want the planted %[1]v", planted, mean)
		}
	}
}

// LeastPairs is the number of pairs that an interval takes, neither more nor less.
func TestLeastPairs(t *testing.T) {
	x := make([]float64, LeastPairs)
	for i := range x {
		x[i] = float64(i * i)
	}
	if !stats.HodgesLehmann(x).Holds() || stats.HodgesLehmann(x[1:]).Holds() {
		t.Errorf("%d values: %+v, one less: %+v", len(x), stats.HodgesLehmann(x), stats.HodgesLehmann(x[1:]))
	}
}

// A row of too few pairs has their estimate, but no interval.
func TestFewPairs(t *testing.T) {
	r := &Report{Rows: []Row{
		{Pairs: []Pair{{Plain: Segment{10, 100}, Observed: Segment{8, 125}},
			{Plain: Segment{10, 100}, Observed: Segment{8, 125}}}, SameText: true},
		{SameText: true},
	}}
	r.summarise()
	rows := r.rows()
	if want := []string{"", "0", "10", "8", "20.00", "-", "20.00", "0.00", "20.00", "-", "2",
		"yes"}; !slices.Equal(rows[0], want) {
		t.Errorf("%q, want %q", rows[0], want)
	}
	if want := []string{"", "-", "-", "-", "-", "-", "-", "-", "-", "-", "0", "-"}; !slices.Equal(rows[1], want) {
		t.Errorf("%q, want %q", rows[1], want)
	}
}

// A figure shows the chosen observers under the names that it is given, and leaves out those without a pair.
func TestFigure(t *testing.T) {
	pair := Pair{Plain: Segment{10, 100}, Observed: Segment{8, 125}}
	r := &Report{Target: []string{"/x/llamarun", "-m", "/x/planted.gguf"}, Rows: []Row{
		{Observer: Observer{Name: "op"}, Pairs: []Pair{pair, pair}}, {Observer: Observer{Name: "none"}},
		{Observer: Observer{Name: "graph"}, Pairs: []Pair{pair}},
	}}
	r.summarise()
	draw := func(shown ...chart.Shown) (string, error) {
		var b bytes.Buffer
		err := r.WriteFigure(&b, "svg", shown...)
		return b.String(), err
	}
	all, err := draw()
	if err != nil || !strings.Contains(all, "planted.gguf: 10 tok/s") || !strings.Contains(all, ">op (2 pairs)<") ||
		!strings.Contains(all, ">graph (1 pair)<") || strings.Contains(all, ">none") {
		t.Errorf("%v: %s", err, all)
	}
	one, err := draw(chart.ParseShown("op=tracer"))
	if err != nil || !strings.Contains(one, ">tracer (2 pairs)<") || strings.Contains(one, ">graph") {
		t.Errorf("%v: %s", err, one)
	}
	if _, err := draw(chart.Shown{Name: "trap"}); !errors.Is(err, ErrNoObserver) ||
		!strings.Contains(err.Error(), "graph") {
		t.Errorf("%v; want that there is no trap, and what there is", err)
	}
	if _, err := draw(chart.Shown{Name: "none"}); !errors.Is(err, ErrNoFigure) {
		t.Errorf("%v; want that there is nothing to draw", err)
	}
}
