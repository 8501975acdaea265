package decompose

// This file tests fitted planes: how large their error is, and what is refused.

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"tensorcast/fabric"
	"tensorcast/gguf"
	"tensorcast/gguf/half"
)

// goals has the least signal-to-noise ratios in decibels that 1, 2, ... planes must reach, with
// weights of a normal distribution. They are from a reference table for alternating least squares.
// block is the number of weights per factor.
var goals = map[gguf.Type]struct {
	block int
	snr   []float64
}{
	gguf.Q8_0: {32, []float64{7.5, 16.1, 25.2, 34.9}},
	gguf.Q6_K: {16, []float64{7.8, 17.0, 27.0, 38.1}},
	gguf.Q4_K: {32, []float64{7.5, 15.6, 25.7}},
}

func mustFit(tb testing.TB, t gguf.Type, rows, cols int, src []byte, fit Fit, o Options) (*fabric.Matrix, FitError) {
	tb.Helper()
	m, e, err := Lossy(tb.Context(), t, rows, cols, src, fit, o)
	if err != nil {
		tb.Fatal(err)
	}
	return m, e
}

func TestSNR(t *testing.T) {
	const rows, cols = 64, 1024
	for typ, tt := range goals {
		src := gaussian(typ, rows*cols, rand.New(rand.NewPCG(7, uint64(typ))))
		for i, want := range tt.snr {
			_, e := mustFit(t, typ, rows, cols, src, Fit{Planes: i + 1, Block: tt.block}, Options{})
			_, one := mustFit(t, typ, rows, cols, src, Fit{Planes: i + 1, Block: tt.block, Shared: true}, Options{})
			t.Logf("%v, block %d, %d planes: %.2f dB, with one factor %.2f dB; goal %.1f",
				typ, tt.block, i+1, e.SNR(), one.SNR(), want)
			if e.SNR() < want {
				t.Errorf("%v, %d planes: %.2f dB, want at least %.1f", typ, i+1, e.SNR(), want)
			}
		}
	}
}

// TestTrainedSNR fits tensors of trained models, whose weights are not normally distributed. With
// one plane, for which the least error is found by trying all numbers of zeros, the goal cannot be
// reached.
func TestTrainedSNR(t *testing.T) {
	for typ, name := range map[gguf.Type]string{
		gguf.Q8_0: "tiny-dense-q8_0.gguf", gguf.Q6_K: "tiny-dense-q6_k.gguf", gguf.Q4_K: "tiny-dense-q4_k_m.gguf",
	} {
		path := filepath.Join("..", "..", "..", "shared", "data", "models", name)
		if _, err := os.Stat(path); err != nil {
			t.Skipf("the trained models are not available: %v", err)
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		block := goals[typ].block
		for i, want := range goals[typ].snr {
			var all, least FitError
			for _, tensor := range f.Tensors {
				if tensor.Type != typ || tensor.Layer() != 3 || tensor.Kind() != gguf.KindAttention {
					continue
				}
				cols, rows := int(tensor.Shape[0]), int(tensor.Shape[1])
				src := data[tensor.Offset:tensor.End()]
				_, e := mustFit(t, typ, rows, cols, src, Fit{Planes: i + 1, Block: block}, Options{})
				all.Signal += e.Signal
				all.Noise += e.Noise
				if i == 0 {
					least.Signal += e.Signal
					least.Noise += leastNoise(t, typ, cols, block, src)
				}
			}
			t.Logf("%v, block %d, %d planes: %.2f dB; goal %.1f", typ, block, i+1, all.SNR(), want)
			if i == 0 {
				want = min(want, least.SNR()-0.02)
			}
			if all.SNR() < want {
				t.Errorf("%v, %d planes: %.2f dB, want at least %.2f", typ, i+1, all.SNR(), want)
			}
		}
	}
}

// leastNoise returns the least noise that a single plane can have. The weights that do not become 0
// are the largest ones, and their factor is the mean.
func leastNoise(t *testing.T, typ gguf.Type, cols, block int, src []byte) float64 {
	w := make([]float32, len(src)/int(typ.BlockBytes())*int(typ.BlockElems()))
	if err := gguf.Dequantize(w, typ, src); err != nil {
		t.Fatal(err)
	}
	noise := 0.0
	for i := 0; i < len(w); i += block {
		x := make([]float64, 0, block)
		power := 0.0
		for _, v := range w[i:min(i+block, i/cols*cols+cols)] {
			x = append(x, math.Abs(float64(v)))
			power += float64(v) * float64(v)
		}
		slices.Sort(x)
		best, sum := 0.0, 0.0
		for n := range x {
			sum += x[len(x)-1-n]
			best = math.Max(best, sum*sum/float64(n+1))
		}
		noise += power - best
	}
	return noise
}

// encodeFloats returns the little-endian bytes of F32 weights.
func encodeFloats(w []float32) []byte {
	var b []byte
	for _, v := range w {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// TestCoarser drops the lowest of three planes. The two that remain must be nearly as good as two
// fitted planes, and the error as Coarser says.
func TestCoarser(t *testing.T) {
	const rows, cols = 20, 1024
	src := gaussian(gguf.Q8_0, rows*cols, rand.New(rand.NewPCG(9, 9)))
	m, e := mustFit(t, gguf.Q8_0, rows, cols, src, Fit{3, 32, true}, Options{Coarser: true})
	_, two := mustFit(t, gguf.Q8_0, rows, cols, src, Fit{2, 32, true}, Options{})
	less := *m
	less.Terms = []fabric.Term{{Planes: m.Terms[0].Planes[1:], Scales: fabric.Scales{Block: 32}}}
	for _, h := range m.Terms[0].Scales.Half {
		less.Terms[0].Scales.Half = append(less.Terms[0].Scales.Half, half.Round(3*half.Float32(h)))
	}
	w, got := make([]float32, rows*cols), make([]float32, cols)
	if err := gguf.Dequantize(w, gguf.Q8_0, src); err != nil {
		t.Fatal(err)
	}
	noise := 0.0
	for r := range rows {
		if err := Dequantize(got, &less, r); err != nil {
			t.Fatal(err)
		}
		for c, v := range got {
			d := float64(v - w[r*cols+c])
			noise += d * d
		}
	}
	if math.Abs(noise-e.Coarser) > 1e-4*noise {
		t.Errorf("Coarser = %v, want %v", e.Coarser, noise)
	}
	snr := FitError{Signal: e.Signal, Noise: e.Coarser}.SNR()
	t.Logf("%.2f dB, two fitted planes %.2f dB", snr, two.SNR())
	if snr < two.SNR()-0.5 || two.Coarser != 0 {
		t.Errorf("without the lowest of three planes %.2f dB, want at least %.2f, 0.5 less than two fitted planes",
			snr, two.SNR()-0.5)
	}
}

func allFits() []Fit {
	var fits []Fit
	for _, block := range []int{16, 32, 64, 128, 256} {
		for k := 1; k <= maxPlanes; k++ {
			for _, shared := range []bool{false, true} {
				if f := (Fit{k, block, shared}); f.Check() == nil {
					fits = append(fits, f)
				}
			}
		}
	}
	return fits
}

// TestLossyMatrix fits rows of any length. The weights of the matrix must be as far from the
// original ones as the error says, and each must be the nearest that its block's factors allow.
func TestLossyMatrix(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for i, fit := range allFits() {
		layout := allLayouts[i%len(allLayouts)]
		rows, cols := 1+rng.IntN(3), 1+rng.IntN(400)
		if i%7 == 0 {
			cols += 2 * tileElems
		}
		w := make([]float32, rows*cols)
		for j := range w {
			w[j] = float32(rng.NormFloat64() * 0.02)
		}
		m, e := mustFit(t, gguf.F32, rows, cols, encodeFloats(w), fit, Options{Layout: layout})
		terms := fit.Planes
		if fit.Shared {
			terms = 1
		}
		if m.Exact || m.Rows != rows || m.Cols != cols || m.Layout != layout || m.Origin != gguf.F32 ||
			len(m.Terms) != terms || m.Min.Block != 0 {
			t.Fatalf("%+v: got matrix %+v, want %d x %d, layout %v, %d terms, no minima, not exact",
				fit, m, rows, cols, layout, terms)
		}
		var got FitError
		row := make([]float32, cols)
		for r := range rows {
			if err := Dequantize(row, m, r); err != nil {
				t.Fatal(err)
			}
			for c, v := range row {
				x := w[r*cols+c]
				d := math.Abs(float64(x) - float64(v))
				got.Signal += float64(x) * float64(x)
				got.Noise += d * d
				if best := distance(m, r, c, x); d > best+1e-6 && (fit.Shared || fit.Planes < 3) {
					t.Fatalf("%+v, %d x %d: weight (%d, %d) is %v and became %v, want at most %v away",
						fit, rows, cols, r, c, x, v, best)
				}
			}
		}
		if math.Abs(got.Noise-e.Noise) > 1e-4*got.Noise || math.Abs(got.Signal-e.Signal) > 1e-5*got.Signal {
			t.Errorf("%+v, %d x %d: Lossy returned the error %+v, want %+v", fit, rows, cols, e, got)
		}
	}
}

// distance returns how far w is from the nearest of all levels that the factors of its block make.
func distance(m *fabric.Matrix, r, c int, w float32) float64 {
	levels := []float64{0}
	for i := range m.Terms {
		a := float64(blockFactor(&m.Terms[i].Scales, r, m.Cols, c))
		for range m.Terms[i].Planes {
			for _, l := range levels[:len(levels):len(levels)] {
				levels = append(levels, l-a, l+a)
			}
			a *= 3
		}
	}
	best := math.Inf(1)
	for _, l := range levels {
		best = min(best, math.Abs(l-float64(w)))
	}
	return best
}

// TestLossyRange fits weights of any size, down to those whose factors are below the smallest half.
func TestLossyRange(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	const rows, cols = 4, 256
	for _, tt := range []struct{ scale, least float64 }{
		{0, math.Inf(1)}, {1e-45, 0}, {1e-38, 0}, {1e-12, 0}, {1e-3, 20}, {1, 20}, {1e4, 20}, {1e6, 0}, {1e38, 0},
	} {
		w := make([]float32, rows*cols)
		for i := range w {
			w[i] = float32(max(-3, min(3, rng.NormFloat64())) * tt.scale)
		}
		for _, shared := range []bool{true, false} {
			m, e := mustFit(t, gguf.F32, rows, cols, encodeFloats(w), Fit{3, 32, shared}, Options{})
			if e.SNR() < tt.least || math.IsNaN(e.SNR()) {
				t.Errorf("weights of %g, shared %v: %v dB, want at least %v", tt.scale, shared, e.SNR(), tt.least)
			}
			for i := range m.Terms {
				for _, h := range m.Terms[i].Scales.Half {
					if h > 0x7bff {
						t.Fatalf("weights of %g: a factor is the half %#x, want at most 0x7bff", tt.scale, h)
					}
				}
			}
		}
	}
}

func TestLossyWorkers(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 10))
	const rows, cols = 140, 2048
	src := gaussian(gguf.Q8_0, rows*cols, rng)
	for _, fit := range []Fit{{2, 64, false}, {3, 32, true}} {
		m, e := mustFit(t, gguf.Q8_0, rows, cols, src, fit, Options{Workers: 1})
		m2, e2 := mustFit(t, gguf.Q8_0, rows, cols, src, fit, Options{Workers: 4})
		if !reflect.DeepEqual(m, m2) || e != e2 {
			t.Errorf("%+v: with 4 workers the planes differ, or the error is %v, want %v as with 1 worker", fit, e2, e)
		}
		// Rows are independent of each other.
		m3, _ := mustFit(t, gguf.Q8_0, 1, cols, src[7*cols/32*34:8*cols/32*34], fit, Options{})
		size := m.Layout.RowBytes(cols)
		alone := m3.Terms[0].Planes[1%len(m3.Terms[0].Planes)]
		among := m.Terms[0].Planes[1%len(m.Terms[0].Planes)][7*size : 8*size]
		if !slices.Equal(alone, among) {
			t.Errorf("%+v: the plane of row 7 is % x if fitted alone, want % x", fit, alone, among)
		}
	}
}

func TestLossyRefuses(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		w := make([]float32, 3*100)
		w[177] = float32(v)
		_, _, err := Lossy(t.Context(), gguf.F32, 3, 100, encodeFloats(w), Fit{2, 32, true}, Options{})
		if !errors.Is(err, ErrNotFinite) {
			t.Errorf("a weight of %v: error %v, want ErrNotFinite", v, err)
		}
	}
	src := make([]byte, gguf.IQ2S.BlockBytes())
	_, _, err := Lossy(t.Context(), gguf.IQ2S, 1, 256, src, Fit{2, 32, true}, Options{})
	if !errors.Is(err, gguf.ErrNoDecoder) {
		t.Errorf("IQ2_S: error %v, want ErrNoDecoder", err)
	}
	for _, fit := range []Fit{
		{}, {0, 32, true}, {7, 32, true}, {5, 32, false}, {-1, 32, false}, {2, 0, true}, {2, 48, true}, {2, 512, true},
	} {
		if _, _, err := Lossy(t.Context(), gguf.F32, 1, 1, make([]byte, 4), fit, Options{}); err == nil {
			t.Errorf("Lossy accepted %+v, want an error", fit)
		}
	}
	if _, _, err := Lossy(t.Context(), gguf.F32, 1, 2, make([]byte, 4), Fit{2, 32, true}, Options{}); err == nil {
		t.Error("Lossy accepted too few bytes, want an error")
	}
}

// TestDequantizeRefuses tries matrices that contradict themselves.
func TestDequantizeRefuses(t *testing.T) {
	for name, corrupt := range map[string]func(m *fabric.Matrix){
		"no terms":     func(m *fabric.Matrix) { m.Terms = nil },
		"short plane":  func(m *fabric.Matrix) { m.Terms[1].Planes[0] = m.Terms[1].Planes[0][1:] },
		"few scales":   func(m *fabric.Matrix) { m.Terms[1].Scales.Half = m.Terms[1].Scales.Half[1:] },
		"two forms":    func(m *fabric.Matrix) { m.Terms[0].Scales.Sub = make([]int8, 8) },
		"no trit":      func(m *fabric.Matrix) { m.Terms[0].Planes[0][0] = 255 },
		"layout":       func(m *fabric.Matrix) { m.Layout = 0 },
		"no minima":    func(m *fabric.Matrix) { m.Min.Block = 32 },
		"other shape":  func(m *fabric.Matrix) { m.Rows = 3 },
		"no such size": func(m *fabric.Matrix) { m.Cols = 0 },
	} {
		m, _ := mustFit(t, gguf.F32, 2, 128, make([]byte, 4*256), Fit{2, 32, false}, Options{})
		row := make([]float32, 128)
		if err := Dequantize(row, m, 0); err != nil {
			t.Fatal(err)
		}
		corrupt(m)
		if err := Dequantize(row[:max(m.Cols, 0)], m, 0); err == nil {
			t.Errorf("%s: Dequantize returned no error, want one", name)
		}
	}
	m, _ := mustFit(t, gguf.F32, 2, 128, make([]byte, 4*256), Fit{2, 32, false}, Options{})
	for _, row := range []int{-1, 2} {
		if err := Dequantize(make([]float32, 128), m, row); err == nil {
			t.Errorf("row %d of 2: Dequantize returned no error, want one", row)
		}
	}
	// Without scales, the integers of a term are the weights.
	m.Terms[0].Scales = fabric.Scales{}
	m.Terms[0].Center = 5
	row := make([]float32, 128)
	if err := Dequantize(row, m, 1); err != nil || row[3] != 5 {
		t.Errorf("a center of 5 alone: got %v (error %v), want 5", row[3], err)
	}
}
