package measure

// This file tests the comparison with small workloads, and that the forward pass computes what the
// model does.

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestCompare(t *testing.T) {
	rows := map[string]Row{}
	for _, kind := range Kinds {
		w, err := Synthetic(kind, 64, 1000, 2, 2, 1)
		if err != nil {
			t.Fatal(err)
		}
		for name, tolerance := range map[string]Tolerance{
			kind + " bounded": 0.05, kind + " free": Tolerance(math.Inf(1)),
		} {
			s := Setting{KeyDigits: 2, QueryDigits: 2, Top: 64, Sinks: 4, Audit: 32, Tolerance: tolerance, Pause: 1}
			row, err := Compare(t.Context(), w, s, Timing{Pairs: 3, Evict: 1000})
			if err != nil {
				t.Fatal(err)
			}
			again, err := Compare(t.Context(), w, s, Timing{})
			if err != nil {
				t.Fatal(err)
			}
			same := row
			same.DenseMicros, same.TernaryMicros, same.Speedup, same.Quartiles = 0, 0, 0, [2]float64{}
			if same != again {
				t.Errorf("%s: a second comparison gave %+v, want %+v but for the times", name, again, row)
			}
			if !(row.DenseMicros > 0 && row.TernaryMicros > 0 &&
				row.Quartiles[0] <= row.Speedup && row.Speedup <= row.Quartiles[1]) {
				t.Errorf("%s: times of %+v, want times above 0, and a speedup between the quartiles", name, row)
			}
			rows[name] = row
		}
	}
	if r := rows["flat bounded"]; r.Fallbacks != 1 || r.Exact != 1 || r.Missed > 1e-5 || r.Error != 0 ||
		r.Recall != 1 ||
		r.EstimatedMissed < 0.5 || r.EstimatedError < 0.3 {
		t.Errorf("flat, with a bound: %+v, want fallbacks of all heads, and high estimates", r)
	}
	if r := rows["flat free"]; r.Fallbacks != 0 || r.Missed < 0.3 || math.Abs(r.EstimatedMissed-r.Missed) > 0.05 ||
		r.Error < 0.1 || r.Exact > 0.15 {
		t.Errorf("flat, without one: %+v, want no fallbacks, a large error, and a good estimate of the mass", r)
	}
	for _, kind := range Kinds[1:] {
		if r := rows[kind+" free"]; r.Recall < 0.7 || r.Error > 0.05 || r.MaxError < r.Error || r.MaxMissed < r.Missed {
			t.Errorf("%s, without a bound: %+v, want a recall of 0.7 and an error of at most 0.05", kind, r)
		}
		if r := rows[kind+" bounded"]; r.MaxError > 0.1 || r.Error > 0.05 {
			t.Errorf("%s, with a bound: %+v, want errors of at most 0.1, 0.05 on average", kind, r)
		}
	}
}

func TestCompareErrors(t *testing.T) {
	if _, err := Synthetic("round", 64, 10, 1, 1, 1); err == nil {
		t.Error("Synthetic accepted an unknown kind, want an error")
	}
	w, err := Synthetic("flat", 64, 10, 1, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compare(t.Context(), w, Setting{KeyDigits: 7, QueryDigits: 1}, Timing{}); err == nil {
		t.Error("Compare accepted seven digits, want an error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compare(ctx, w, Setting{KeyDigits: 1, QueryDigits: 1}, Timing{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: error %v, want %v", err, context.Canceled)
	}
}

func TestTolerance(t *testing.T) {
	for tolerance, want := range map[Tolerance][2]string{
		0.05: {"0.05", "0.05"}, Tolerance(math.Inf(1)): {"none", "null"},
	} {
		if b, err := json.Marshal(tolerance); err != nil || string(b) != want[1] || tolerance.String() != want[0] {
			t.Errorf("String() = %v, as JSON %s (error %v), want %q", tolerance, b, err, want)
		}
	}
}

func TestRecall(t *testing.T) {
	weights := make([]float32, 200)
	for i := range weights {
		weights[i] = float32(i)
	}
	if got := computeRecall(weights, []int32{0, 1, 135, 136, 199}); got != 2.0/64 {
		t.Errorf("recall %v, want 2/64", got)
	}
	if got := computeRecall(weights[:2], []int32{1}); got != 0.5 {
		t.Errorf("recall of one of two positions: %v, want 0.5", got)
	}
}

// TestModel checks the model's own perplexity, which shows that the forward pass is right. Any
// fault in it makes text far less likely, for example a wrong order of elements in the rotary
// embedding, or a missing norm. llama-perplexity reports 4.08 and 4.02, e^1.406 and e^1.391, for
// the second half of windows of 256.
func TestModel(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "..", "..", "shared", "data", "models")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no models in ../shared/data/models")
	}
	text, err := os.ReadFile(filepath.Join(dir, "eval-prose.txt"))
	if err != nil {
		t.Fatal(err)
	}
	w, nats, err := Model(filepath.Join(dir, "tiny-dense-f16.gguf"), text, 256, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Keys) != 2*6*4 || w.Dim != 64 || w.Group != 1 {
		t.Errorf("%d heads of %d elements, groups of %d, want %d, 64, 1", len(w.Keys), w.Dim, w.Group, 2*6*4)
	}
	for _, vectors := range [][][]float32{w.Keys, w.Values} {
		if slices.ContainsFunc(vectors, func(x []float32) bool { return len(x) != 256*64 }) {
			t.Error("a head does not have a vector for each position")
		}
	}
	t.Logf("%.3f nats", nats)
	if nats < 1.2 || nats > 1.7 {
		t.Errorf("%.3f nats per byte, want 1.2 to 1.7", nats)
	}
	if _, _, err := Model(filepath.Join(dir, "tiny-dense-f16.gguf"), text[:100], 256, 2); err == nil {
		t.Error("Model accepted a text that is too short, want an error")
	}
	if _, _, err := Model(filepath.Join(dir, "tiny-moe-q8_0.gguf"), text, 256, 1); err == nil {
		t.Error("Model accepted a model with experts, want an error")
	}
	if _, _, err := Model(filepath.Join(dir, "README"), text, 256, 1); err == nil {
		t.Error("Model accepted a file that is not a model, want an error")
	}
}
