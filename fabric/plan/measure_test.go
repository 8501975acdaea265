package plan

// This file tests measuring, decomposing, and the reports.

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot/cmpimg"

	"tensorcast/experiments/synth"
	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/testenv"
)

var update = flag.Bool("update", false, "rewrite the golden image in testdata")

// openWeights opens the weights of a model file until the test ends.
func openWeights(t *testing.T, path string) *gguf.Weights {
	t.Helper()
	m, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := gguf.OpenWeights(m, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// newModel writes a small model with random weights, and opens it.
func newModel(t *testing.T, typ gguf.Type, experts int) *gguf.Weights {
	t.Helper()
	cfg := synth.Config{
		Layers: 1, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Type: typ, Seed: 1,
		Experts: experts, Used: min(2, experts),
	}
	p, err := synth.NewPlan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := p.WriteFile(t.Context(), path, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	return openWeights(t, path)
}

var fewForms = []decompose.Fit{
	{Planes: 1, Block: 32, Shared: true}, {Planes: 2, Block: 32},
	{Planes: 3, Block: 64, Shared: true}, {Planes: 6, Block: 16, Shared: true},
}

// mustMeasure measures a model. An error ends the test.
func mustMeasure(t *testing.T, w *gguf.Weights, cfg Config) *Survey {
	t.Helper()
	s, err := Measure(t.Context(), w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMeasure(t *testing.T) {
	w := newModel(t, gguf.Q8_0, 2)
	var progress []int
	s := mustMeasure(t, w, Config{Forms: fewForms, Progress: func(done, total int) {
		progress = append(progress, done, total)
	}})
	var size, weights int64
	for _, f := range w.Model.Files {
		for _, tensor := range f.Tensors {
			size += tensor.Size
			n := int64(1)
			for _, d := range tensor.Shape {
				n *= d
			}
			weights += n
		}
	}
	native := s.Other
	for i := range s.Tensors {
		m := &s.Tensors[i]
		native += m.Choices[0].Bytes
		at, _ := w.Model.Lookup(m.Name)
		n := int64(m.Rows) * int64(m.Cols)
		want := []Choice{
			{Native: true, Bytes: at.Tensor.Size},
			{Exact: true, Planes: 6, Bytes: int64(m.Rows)*6*52 + n/32*2}, // 256 columns are 52 bytes
		}
		if m.Name != "output.weight" {
			for j, f := range fewForms {
				scales := n / int64(f.Block) * 2
				if !f.Shared {
					scales *= int64(f.Planes)
				}
				c := Choice{
					Planes: f.Planes, Block: f.Block, Shared: f.Shared,
					Bytes: int64(m.Rows*f.Planes)*52 + scales,
				}
				if 2+j < len(m.Choices) {
					c.Noise, c.SNR = m.Choices[2+j].Noise, m.Choices[2+j].SNR
				}
				least := []float64{5, 14, 20, 45}[j]
				if c.SNR < least || math.Abs(c.SNR+10*math.Log10(c.Noise)) > 1e-9 {
					t.Errorf("%s, %v: noise %v, %v dB, want the noise in decibels, at least %v",
						m.Name, &c, c.Noise, c.SNR, least)
				}
				want = append(want, c)
			}
		}
		if !reflect.DeepEqual(m.Choices, want) {
			t.Errorf("%s, %d x %d:\n got %v\nwant %v", m.Name, m.Rows, m.Cols, m.Choices, want)
		}
		if strings.Contains(m.Name, "exps") && m.Rows != 2*256 {
			t.Errorf("%s: %d rows of two experts, want %d", m.Name, m.Rows, 2*256)
		}
		for _, other := range []string{"norm", "inp", "token_embd"} {
			if strings.Contains(m.Name, other) {
				t.Errorf("%s was measured, want no tensor with %q in its name", m.Name, other)
			}
		}
	}
	if native != size || s.Weights != weights {
		t.Errorf("the survey has %d bytes, %d weights; want %d, %d", native, s.Weights, size, weights)
	}
	if n := len(s.Tensors); len(progress) != 2*n || !slices.Equal(progress[2*n-2:], []int{n, n}) {
		t.Errorf("Progress was called with %v, want %d pairs, the last %d, %d", progress, n, n, n)
	}
	// The measurements of a sample are close to those of all rows.
	sampled := mustMeasure(t, w, Config{Forms: fewForms, Rows: 64})
	for i := range s.Tensors {
		for j, c := range sampled.Tensors[i].Choices {
			if whole := s.Tensors[i].Choices[j]; c.Bytes != whole.Bytes || math.Abs(c.SNR-whole.SNR) > 0.3 {
				t.Errorf("%s, %v: a sample has %d bytes, %v dB, want %d, about %v as all rows",
					s.Tensors[i].Name, &c, c.Bytes, c.SNR, whole.Bytes, whole.SNR)
			}
		}
	}
	h, _ := w.Lookup("blk.0.ffn_up_exps.weight")
	b, err := h.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	row := len(b) / 512
	got, n, err := SampleRows(h, 512, 2)
	middles := append(slices.Clone(b[128*row:129*row]), b[384*row:385*row]...)
	if err != nil || n != 2 || !bytes.Equal(got, middles) {
		t.Errorf("SampleRows of 2 of 512 rows returned %d: % x (error %v), want the middles of the halves, % x",
			n, got, err, middles)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Measure(ctx, w, Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Measure returned %v after a cancellation, want %v", err, context.Canceled)
	}
}

// TestMeasureOddTypes measures zeros, and types that have no planes at all.
func TestMeasureOddTypes(t *testing.T) {
	m := &gguftest.Model{KVs: []gguftest.KV{{Key: "general.architecture", Value: "llama"}}, Tensors: []gguftest.Tensor{
		{Name: "blk.0.attn_q.weight", Type: gguf.IQ2S, Shape: []int64{256, 4}},
		{Name: "blk.0.attn_k.weight", Type: gguf.F32, Shape: []int64{40, 4}},
		{Name: "blk.0.attn_k.bias", Type: gguf.F32, Shape: []int64{40}},
		{Name: "blk.0.ffn_up_exps.bias", Type: gguf.F32, Shape: []int64{40, 3}},
		{Name: "blk.0.ffn_up.weight", Type: gguf.TQ1_0, Shape: []int64{256, 2}},
	}}
	path := filepath.Join(t.TempDir(), "odd.gguf")
	m.Write(t, path)
	w := openWeights(t, path)
	s := mustMeasure(t, w, Config{Forms: fewForms[:2]})
	got := map[string]int{}
	for i := range s.Tensors {
		got[s.Tensors[i].Name] = len(s.Tensors[i].Choices)
	}
	want := map[string]int{"blk.0.attn_q.weight": 1, "blk.0.attn_k.weight": 3, "blk.0.ffn_up.weight": 4}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("forms %v, want %v", got, want)
	}
	for _, profile := range Profiles() {
		if p := s.Plan(profile); p.Noise != 0 {
			t.Errorf("%s: zeros have the noise %v, want 0", profile.Name, p.Noise)
		}
	}
}

// decomposeAll makes the matrices of a plan one by one and calls use with each, except for tensors
// that stay native.
func decomposeAll(ctx context.Context, p *Plan, w *gguf.Weights, use func(t *Planned, m *fabric.Matrix) error) error {
	for i := range p.Tensors {
		m, err := p.Decompose(ctx, &p.Tensors[i], w, decompose.Options{})
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		if err := use(&p.Tensors[i], m); err != nil {
			return err
		}
	}
	return nil
}

func TestDecompose(t *testing.T) {
	w := newModel(t, gguf.Q4_K, 0)
	s := mustMeasure(t, w, Config{Forms: fewForms})
	for _, profile := range []Profile{{"lossless", math.Inf(1)}, {"15 dB", 15}, {"5 dB", 5}} {
		p := s.Plan(profile)
		planes := map[string]bool{}
		err := decomposeAll(t.Context(), p, w, func(planned *Planned, m *fabric.Matrix) error {
			planes[planned.Name] = true
			h, _ := w.Lookup(planned.Name)
			b, err := h.Bytes()
			if err != nil {
				return err
			}
			if m.Exact {
				again := make([]byte, len(b))
				if err := decompose.RestoreBlocks(again, m); err != nil || !bytes.Equal(again, b) {
					t.Errorf("%s: error %v, or restored bytes that differ from the original ones", planned.Name, err)
				}
			}
			want, row := make([]float32, m.Rows*m.Cols), make([]float32, m.Cols)
			if err := gguf.Dequantize(want, h.Tensor.Type, b); err != nil {
				return err
			}
			signal, noise := 0.0, 0.0
			for r := range m.Rows {
				if err := decompose.Dequantize(row, m, r); err != nil {
					return err
				}
				for c, v := range row {
					x := float64(want[r*m.Cols+c])
					signal += x * x
					noise += (x - float64(v)) * (x - float64(v))
				}
			}
			if got := noise / signal; math.Abs(got-planned.Noise) > 1e-6*planned.Noise {
				t.Errorf("%s, %v: noise %v, want %v as planned", planned.Name, planned, got, planned.Noise)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.Tensors {
			if got, want := planes[p.Tensors[i].Name], !p.Tensors[i].Native; got != want {
				t.Errorf("%s: %s: has planes: %v, want %v", p.Profile, p.Tensors[i].Name, got, want)
			}
		}
	}
	p := s.Plan(Profile{"5 dB", 5})
	nothing := func(*Planned, *fabric.Matrix) error { return nil }
	if err := decomposeAll(t.Context(), p, newModel(t, gguf.Q8_0, 0), nothing); !errors.Is(err, ErrModel) {
		t.Errorf("another model: error %v, want ErrModel", err)
	}
	p.Bound = 30
	if err := decomposeAll(t.Context(), p, w, nothing); !errors.Is(err, ErrBound) {
		t.Errorf("a bound that is not kept: error %v, want ErrBound", err)
	}
}

func TestReports(t *testing.T) {
	w := newModel(t, gguf.Q8_0, 0)
	s := mustMeasure(t, w, Config{Forms: fewForms, Rows: 64})
	p := s.Plan(Profiles()[1])
	var text, markdown strings.Builder
	if err := errors.Join(s.WriteText(&text, p), s.WriteMarkdown(&markdown, p)); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{text.String(), markdown.String()} {
		for _, want := range []string{
			"balanced", "attn_q.weight", "accurate", "fast", "lossless", "native", "23.5 dB",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("got\n%s\nwant one with %q", out, want)
			}
		}
	}
	// The ends of the front are in the table, no matter what is left out between them.
	s = randomSurvey(20, 9, rand.New(rand.NewPCG(1, 1)))
	front := s.Front()
	rows := s.frontTable().Rows
	first := formatDecibels(front[0].SNR())
	if len(rows) > frontRows+2 || rows[0][2] != first || rows[len(rows)-1][2] != "lossless" ||
		len(front) < 2*frontRows {
		t.Errorf("table with %d of %d points from %s to %s, want at most %d from %s to lossless",
			len(rows), len(front), rows[0], rows[len(rows)-1], frontRows+2, first)
	}
}

// TestFigure compares the figure to a golden image that was checked by eye.
func TestFigure(t *testing.T) {
	testenv.SkipWithRace(t)
	s := &Survey{Weights: 20000, Other: 600}
	for i := range 10 {
		m := Tensor{Name: string(rune('a' + i)), Choices: []Choice{{Native: true, Bytes: 4000}}}
		for _, f := range Forms() {
			noise := math.Pow(10, -(9.7*float64(f.Planes)-3+0.1*float64(i)-math.Log2(float64(f.Block)/32))/10)
			m.Choices = append(m.Choices, Choice{
				Planes: f.Planes, Block: f.Block, Shared: f.Shared, Noise: noise, SNR: decibels(noise),
				Bytes: int64(f.Planes*404 + 2000/f.Block*2),
			})
		}
		s.Tensors = append(s.Tensors, m)
	}
	draw := func() []byte {
		var b bytes.Buffer
		if err := s.WriteFigure(&b, "model.gguf"); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	got := draw()
	path := filepath.Join("testdata", "front.png")
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, got, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run the test with -update to make it)", err)
	}
	same := func(a, b []byte) bool {
		ok, err := cmpimg.EqualApprox("png", a, b, 0.05)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !same(got, want) {
		t.Errorf("the figure differs from %s (run the test with -update to write it)", path)
	}
	for i := range s.Tensors {
		for j := range s.Tensors[i].Choices {
			s.Tensors[i].Choices[j].Bytes += 300
		}
	}
	if same(draw(), want) {
		t.Error("a figure with other bytes passed for the golden image, want a difference")
	}
}
