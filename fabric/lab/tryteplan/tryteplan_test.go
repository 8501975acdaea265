package tryteplan

// This file tests plans for models with known values.

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/fabric/lab/tryte"
	"tensorcast/fabric/plan"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
)

// openWeights opens a model's weights until the test ends.
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

// writeModel writes a model and opens its weights. Tensors have the given values, as F32, or else zeros.
func writeModel(t *testing.T, values map[string][]float32, tensors []gguftest.Tensor) *gguf.Weights {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	m := &gguftest.Model{KVs: []gguftest.KV{{Key: "general.architecture", Value: "llama"}}, Tensors: tensors}
	m.Write(t, path)
	file, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, tensor := range file.Files[0].Tensors {
		var b []byte
		for _, v := range values[tensor.Name] {
			bits := math.Float32bits(v)
			b = append(b, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
		}
		if _, err := f.WriteAt(b, tensor.Offset); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return openWeights(t, path)
}

// randomLevels are n numbers of depth trits times scale. The first is the largest of the range.
func randomLevels(rng *rand.Rand, n, depth int, scale float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.IntN(2*int(tryte.Max(depth))+1)-int(tryte.Max(depth))) * scale
	}
	x[0] = float32(tryte.Max(depth)) * scale
	return x
}

// randomNormal are n values of the standard normal distribution.
func randomNormal(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// TestCalibrate calibrates tensors of values that need a known number of trits.
func TestCalibrate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	nan := randomNormal(rng, 64)
	nan[40] = float32(math.NaN())
	// One value in some tens of thousands is 3^3 times as large as the others' range. It needs three trits more, and
	// is in no small sample.
	outlier := randomLevels(rng, 128*1024, 2, 0.25)
	outlier[0], outlier[77*1024+5] = 0, float32(tryte.Max(5))*0.25
	values := map[string][]float32{
		"blk.0.attn_norm.weight": randomLevels(rng, 256, 3, 0.375),
		"blk.0.attn_q.weight":    randomLevels(rng, 256*128, 1, 2.5),
		"blk.1.attn_q.weight":    randomNormal(rng, 256*128),
		"blk.1.attn_q.bias":      nan,
		"blk.2.ffn_up.weight":    outlier,
		"output_norm.weight":     {1e-39, 2, -3},
	}
	w := writeModel(t, values, []gguftest.Tensor{
		{Name: "blk.2.ffn_up.weight", Type: gguf.F32, Shape: []int64{1024, 128}},
		{Name: "blk.0.attn_norm.weight", Type: gguf.F32, Shape: []int64{256}},
		{Name: "blk.0.attn_q.weight", Type: gguf.F32, Shape: []int64{256, 64, 2}},
		{Name: "blk.1.attn_q.weight", Type: gguf.F32, Shape: []int64{256, 128}},
		{Name: "blk.1.attn_q.bias", Type: gguf.F32, Shape: []int64{64}},
		{Name: "blk.1.attn_k.weight", Type: gguf.IQ2S, Shape: []int64{256, 4}},
		{Name: "blk.1.attn_v.weight", Type: gguf.F16, Shape: []int64{256, 4}},
		{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{3}},
	})
	var progress []int
	got, err := Calibrate(t.Context(), w, 60,
		Config{Workers: 2, Progress: func(done, total int) { progress = append(progress, done, total) }})
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 8, 3, 8, 7, 8, 8, 8}; !slices.Equal(progress, want) {
		t.Errorf("progress %v, want %v", progress, want)
	}
	depths := map[int]int{}
	trits := int64(0)
	for _, l := range got.Layers {
		depths[l.Layer] = l.Depth
		for _, c := range l.Tensors {
			trits += c.Values * int64(l.Depth)
		}
	}
	// For normal values, seven trits give 58 dB at best, and eight give 67.
	if want := map[int]int{-1: depths[-1], 0: 3, 1: 8, 2: 5}; !reflect.DeepEqual(depths, want) || trits != got.Trits {
		t.Errorf("depths %v, want %v; %d trits, want %d", depths, want, got.Trits, trits)
	}
	for _, tt := range []struct {
		name   string
		need   int
		scale  float32
		factor float64
		exact  bool
	}{
		{"blk.0.attn_norm.weight", 3, 0.375, 1e-6, true},
		{"blk.0.attn_q.weight", 1, 2.5 / 13, 12, true}, // 2.5 in three trits: any number from 1 to 13
		{"blk.1.attn_q.weight", 8, 10. / 6561, 0.3, false},
		{"blk.1.attn_v.weight", 1, 1, 0, true},
		{"blk.2.ffn_up.weight", 5, 0.25, 1e-6, true},
	} {
		c, depth, ok := got.Lookup(tt.name)
		if !ok {
			t.Errorf("%s is left out, want it in a layer: %v", tt.name, got.Left)
			continue
		}
		if c.Need != tt.need || math.Abs(float64(c.Scale/tt.scale)-1) > tt.factor+1e-9 ||
			(c.SNR == 0 || c.SNR > 130) != tt.exact || c.SNR != 0 && c.SNR < 60 || tt.exact && c.Clipped != 0 {
			t.Errorf("calibration %+v, want %+v", c, tt)
		}
		// Trytes hold the values with the ratio that the calibration says.
		want := values[tt.name]
		if want == nil {
			want = make([]float32, c.Values)
		}
		i, signal, noise := 0, 0.0, 0.0
		err = got.Hold(t.Context(), w, tt.name, func(held []float32) error {
			for _, x := range held {
				if n := math.Round(float64(x) / float64(c.Scale)); math.Abs(n) > float64(tryte.Max(depth)) ||
					float32(n)*c.Scale != x {
					t.Fatalf("%s: value %d is %v, want a number of %d trits times %v", tt.name, i, x, depth, c.Scale)
				}
				e := float64(x) - float64(want[i])
				signal += float64(want[i]) * float64(want[i])
				noise += e * e
				i++
			}
			return nil
		})
		if snr := 10 * math.Log10(signal/noise); err != nil || int64(i) != c.Values || noise > 0 &&
			math.Abs(snr-c.SNR) > 1e-6 || noise == 0 && c.SNR != 0 {
			t.Errorf("%s: %d values held with %v dB, %v; want %+v", tt.name, i, snr, err, c)
		}
	}
	var left []string
	for _, l := range got.Left {
		left = append(left, l.Name+": "+l.Why)
	}
	if want := []string{"blk.1.attn_q.bias: one of its values is NaN",
		"blk.1.attn_k.weight: IQ2_S: no decoder to float32"}; !slices.Equal(left, want) {
		t.Errorf("left out %q, want %q", left, want)
	}

	data, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var again Plan
	if err := json.Unmarshal(data, &again); err != nil || !reflect.DeepEqual(&again, got) {
		t.Errorf("written as JSON and read again: %v, %+v, want %+v", err, again, got)
	}
	var text, markdown strings.Builder
	if err := errors.Join(got.WriteText(&text), got.WriteMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{text.String(), markdown.String()} {
		for _, want := range []string{"60 dB", "none", "1: 1, 3: 1", "blk.0.attn_norm.weight", "no decoder",
			"lossless"} {
			if !strings.Contains(out, want) {
				t.Errorf("the report is\n%s\nwant %q in it", out, want)
			}
		}
	}
}

func TestCalibrateErrors(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	// Sampled are the middle rows of the two halves. The first row, which is not sampled, has far larger values.
	x := randomLevels(rng, 64*8, 1, 1)
	for i := range 64 {
		x[i] *= 1000
	}
	w := writeModel(t, map[string][]float32{"blk.0.ffn_up.weight": x},
		[]gguftest.Tensor{{Name: "blk.0.ffn_up.weight", Type: gguf.F32, Shape: []int64{64, 8}}})
	c, err := Calibrate(t.Context(), w, 40, Config{Rows: 2})
	if err != nil || len(c.Layers) != 1 || c.Layers[0].Depth != 1 {
		t.Fatalf("two of eight rows: %+v, %v; want one layer with a depth of 1", c, err)
	}
	discard := func([]float32) error { return nil }
	if err := c.Hold(t.Context(), w, "blk.0.ffn_up.weight", discard); !errors.Is(err, plan.ErrBound) {
		t.Errorf("a bound that only the sampled rows meet: %v, want %v", err, plan.ErrBound)
	}
	stop := errors.New("stop")
	fail := func([]float32) error { return stop }
	if err := c.Hold(t.Context(), w, "blk.0.ffn_up.weight", fail); !errors.Is(err, stop) {
		t.Errorf("an emit that fails: %v, want its error", err)
	}
	for _, name := range []string{"blk.0.ffn_down.weight", "blk.0.ffn_up.weight"} {
		other := writeModel(t, nil,
			[]gguftest.Tensor{{Name: "blk.0.ffn_up.weight", Type: gguf.F16, Shape: []int64{64, 8}}})
		if err := c.Hold(t.Context(), other, name, discard); !errors.Is(err, plan.ErrModel) {
			t.Errorf("another model's %s: %v, want %v", name, err, plan.ErrModel)
		}
	}
	fine := writeModel(t, map[string][]float32{"blk.0.ffn_up.bias": randomNormal(rng, 64)},
		[]gguftest.Tensor{{Name: "blk.0.ffn_up.bias", Type: gguf.F32, Shape: []int64{64}}})
	if c, err := Calibrate(t.Context(), fine, 1000, Config{}); err != nil || len(c.Layers) != 0 ||
		len(c.Left) != 1 || !strings.Contains(c.Left[0].Why, "1000 dB") {
		t.Errorf("a bound of 1000 dB: %+v, %v; want the only tensor left out because of it", c, err)
	}
	if _, err := Calibrate(t.Context(), w, 0, Config{}); err == nil {
		t.Error("Calibrate with a bound of 0 = nil, want an error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Calibrate(ctx, w, 40, Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Calibrate, canceled: %v, want %v", err, context.Canceled)
	}
	if err := c.Hold(ctx, w, "blk.0.ffn_up.weight", discard); !errors.Is(err, context.Canceled) {
		t.Errorf("Hold, canceled: %v, want %v", err, context.Canceled)
	}
}
