package overhead

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestSignedRankQuantile compares with the published table of the signed-rank distribution: P(T <= 5) is 0.0195 for n = 9 and P(T <= 6) is
// 0.0273, P(T <= 52) is 0.0242 for n = 20 and P(T <= 53) is 0.0266; for n = 6 the least is 1/64.
func TestSignedRankQuantile(t *testing.T) {
	for _, test := range []struct {
		n    int
		p    float64
		want int
	}{{6, 0.025, 1}, {9, 0.025, 6}, {9, 0.0274, 7}, {20, 0.025, 53}, {20, 0.0267, 54}, {4, 0.025, 1}} {
		if got := signedRankQuantile(test.n, test.p); got != test.want {
			t.Errorf("n = %d, p = %v: %d, want %d", test.n, test.p, got, test.want)
		}
	}
}

// TestHodgesLehmannPublished: Hollander and Wolfe's depression scale factors (their table 3.1), whose estimate they give as -0.46 and whose
// interval as (-0.786, -0.010).
func TestHodgesLehmannPublished(t *testing.T) {
	before := []float64{1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30}
	after := []float64{0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29}
	x := make([]float64, len(before))
	for i := range x {
		x[i] = after[i] - before[i]
	}
	got := hodgesLehmann(x)
	for _, v := range []struct{ got, want float64 }{{got.Estimate, -0.46}, {got.Low, -0.786}, {got.High, -0.010}} {
		if math.Abs(v.got-v.want) > 5e-4 {
			t.Errorf("%+v, want -0.46 in -0.786 to -0.010", got)
		}
	}
}

// TestPlantedOverhead plants an overhead in noise with heavy tails and drift, many times: the estimate must be near it, and the interval
// must contain it about as often as it claims to.
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
			t.Errorf("planted %v: estimated %v on average", planted, mean)
		}
	}
}

func TestMedians(t *testing.T) {
	for _, test := range []struct {
		x           []float64
		median, mad float64
	}{{nil, 0, 0}, {[]float64{3}, 3, 0}, {[]float64{4, 1}, 2.5, 1.5}, {[]float64{5, 1, 2, 100, 4}, 4, 2}} {
		if m, d := median(test.x), mad(test.x); m != test.median || d != test.mad {
			t.Errorf("%v: median %v, mad %v; want %v, %v", test.x, m, d, test.median, test.mad)
		}
	}
}

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
		if got := places(test.altered, code); got != test.want {
			t.Errorf("%v: %d, want %d", test.altered, got, test.want)
		}
	}
}
