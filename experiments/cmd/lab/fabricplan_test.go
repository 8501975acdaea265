package main

// This file tests "lab fabricplan": its flags, its errors and its output.

import (
	"bytes"
	"context"
	"encoding/json"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/experiments/synth"
	"tensorcast/fabric/lab/tryteplan"
	"tensorcast/fabric/plan"
	"tensorcast/gguf"
)

func planModel(t *testing.T, typ gguf.Type) string {
	t.Helper()
	p, err := synth.NewPlan(synth.Config{Layers: 1, Embd: 64, FF: 96, Heads: 4, KVHeads: 2, Type: typ, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := p.WriteFile(t.Context(), path, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	return path
}

func plans(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	return lab(ctx, append([]string{"fabricplan"}, args...)...)
}

func TestFabricplanUsage(t *testing.T) {
	path := planModel(t, gguf.Q8_0)
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"no model":       {nil, 2, "-m"},
		"argument":       {[]string{"x.gguf"}, 2, "x.gguf"},
		"flag":           {[]string{"--frob"}, 2, "frob"},
		"two choices":    {[]string{"-m", path, "--profile", "fast", "--budget", "1"}, 2, "budget"},
		"two outputs":    {[]string{"-m", path, "--json", "--markdown"}, 2, "markdown"},
		"profile":        {[]string{"-m", path, "--profile", "slow"}, 2, "slow"},
		"bound":          {[]string{"-m", path, "--bound", "-3"}, 2, "-3"},
		"budget":         {[]string{"-m", path, "--budget", "0"}, 2, "budget"},
		"budget too low": {[]string{"-m", path, "--budget", "0.01"}, 1, "so few bytes"},
		"planes":         {[]string{"-m", path, "--planes", "7"}, 2, "7"},
		"block":          {[]string{"-m", path, "--planes", "2", "--block", "33"}, 2, "33"},
		"trytes":         {[]string{"-m", path, "--trytes", "0"}, 2, "--trytes 0"},
		"trytes, figure": {[]string{"-m", path, "--trytes", "40", "--figure", filepath.Join(dir, "x.png")}, 2,
			"--figure"},
		"trytes, nowhere": {[]string{"-m", path, "--trytes", "40", "--write", filepath.Join(dir, "none", "x.gguf")},
			1, "none"},
		"rows":          {[]string{"-m", path, "--rows", "-1"}, 2, "-1"},
		"no such model": {[]string{"-m", filepath.Join(dir, "none.gguf")}, 1, "none.gguf"},
		"no directory": {[]string{"-m", path, "--rows", "8", "--write", filepath.Join(dir, "none", "x.gguf")}, 1,
			"none"},
		"no figure": {[]string{"-m", path, "--rows", "8", "--figure", filepath.Join(dir, "none", "x.png")}, 1,
			"none"},
	} {
		code, stdout, stderr := plans(t.Context(), tt.args...)
		if code != tt.code || !strings.Contains(stderr, tt.stderr) || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, want %d; stdout %q, stderr %q", name, code, tt.code, stdout, stderr)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"-m", path}, {"-m", path, "--trytes", "40"}} {
		if code, _, stderr := plans(ctx, args...); code != 1 || stderr != "lab fabricplan: context canceled\n" {
			t.Errorf("%q, stopped: exit %d, %q; want 1 and that it was cancelled", args, code, stderr)
		}
	}
}

func modelWeights(t *testing.T, path string) map[string][]float32 {
	t.Helper()
	m, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := gguf.OpenWeights(m, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	all := map[string][]float32{}
	for i := range m.Files[0].Tensors {
		h, _ := w.Lookup(m.Files[0].Tensors[i].Name)
		v, err := h.Float32()
		if err != nil {
			t.Fatal(err)
		}
		all[h.Tensor.Name] = append([]float32(nil), v.Data...)
		v.Release()
	}
	return all
}

// TestFabricplanAccurate plans a file whose planes are exact. The model that is written is the same
// file.
func TestFabricplanAccurate(t *testing.T) {
	path := planModel(t, gguf.Q8_0)
	out := filepath.Join(t.TempDir(), "out.gguf")
	code, stdout, stderr := plans(t.Context(), "-m", path, "--profile", "accurate", "--rows", "8", "--write", out)
	if code != 0 || !strings.Contains(stdout, "6 exact") || stderr != "" {
		t.Fatalf("exit %d, stdout %q, stderr %q; want 0 and 6 exact", code, stdout, stderr)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the file differs")
	}
}

func TestFabricplanWrite(t *testing.T) {
	path := planModel(t, gguf.F16)
	for _, args := range [][]string{
		{"--profile", "fast"}, {"--bound", "20"}, {"--budget", "1.4"}, {"--planes", "2", "--block", "64"},
		{"--planes", "4", "--shared"},
	} {
		dir := t.TempDir()
		out, figure := filepath.Join(dir, "out.gguf"), filepath.Join(dir, "front.png")
		code, stdout, stderr := plans(t.Context(),
			append([]string{"-m", path, "--rows", "0", "--json", "--write", out, "--figure", figure}, args...)...)
		if code != 0 || stderr != "" {
			t.Fatalf("%q: exit %d, %s; want 0", args, code, stderr)
		}
		var p plan.Plan
		if err := json.Unmarshal([]byte(stdout), &p); err != nil {
			t.Fatal(err)
		}
		before, after := modelWeights(t, path), modelWeights(t, out)
		planned := map[string]*plan.Planned{}
		for i := range p.Tensors {
			planned[p.Tensors[i].Name] = &p.Tensors[i]
		}
		for name, was := range before {
			noise, signal := 0.0, 0.0
			for i, v := range was {
				e := float64(after[name][i] - v)
				noise, signal = noise+e*e, signal+float64(v)*float64(v)
			}
			want := 0.0
			if pl := planned[name]; pl != nil {
				want = pl.Noise
			}
			if math.Abs(noise/signal-want) > 1e-5*want {
				t.Errorf("%q: %s has noise %v, planned %v", args, name, noise/signal, want)
			}
		}
		f, err := os.Open(figure)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(f); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if code, stdout, _ := plans(t.Context(), "-m", path, "--markdown", "--rows", "16"); code != 0 ||
		!strings.Contains(stdout, "| --- |") {
		t.Errorf("markdown: exit %d, %q; want 0 and a table", code, stdout)
	}
}

// TestFabricplanTrytes writes a model whose layers are held in trytes, and compares it with the
// calibration.
func TestFabricplanTrytes(t *testing.T) {
	path := planModel(t, gguf.F16)
	out := filepath.Join(t.TempDir(), "out.gguf")
	code, stdout, stderr := plans(t.Context(), "-m", path, "--trytes", "30", "--rows", "0", "--json", "--write", out)
	if code != 0 || stderr != "" {
		t.Fatalf("exit %d, %s; want 0", code, stderr)
	}
	var c tryteplan.Plan
	if err := json.Unmarshal([]byte(stdout), &c); err != nil {
		t.Fatal(err)
	}
	before, after := modelWeights(t, path), modelWeights(t, out)
	for name, was := range before {
		tensor, depth, ok := c.Lookup(name)
		if !ok || depth < 1 || depth > 6 {
			t.Errorf("%s: %+v in %d trits, want 1 to 6", name, tensor, depth)
			continue
		}
		noise, signal := 0.0, 0.0
		for i, v := range was {
			e := float64(after[name][i] - v)
			noise, signal = noise+e*e, signal+float64(v)*float64(v)
		}
		if snr := 10 * math.Log10(signal/noise); noise > 0 && (math.Abs(snr-tensor.SNR) > 1e-4 || snr < 30) ||
			noise == 0 && tensor.SNR != 0 {
			t.Errorf("%s: %v dB, calibrated %+v", name, snr, tensor)
		}
	}
	if len(before) != len(after) {
		t.Errorf("%d tensors became %d, want as many", len(before), len(after))
	}
	for flag, want := range map[string]string{"--markdown": "| --- |", "-q": "least SNR"} {
		if code, stdout, _ := plans(t.Context(), "-m", path, "--trytes", "30", flag); code != 0 ||
			!strings.Contains(stdout, want) {
			t.Errorf("%s: exit %d, %q; want 0 and %q", flag, code, stdout, want)
		}
	}
}
