package vec

// This file compares the kernels with those of a real libggml-cpu: the results, and in a benchmark
// the times. Tests must not use cgo, so a small C program calls the library.

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"tensorcast/experiments/llama/llamatest"
)

// ggml is the running C program that calls the library.
type ggml struct {
	in  io.Writer
	out io.Reader
}

// newGGML starts the program until the test ends.
func newGGML(tb testing.TB) *ggml {
	tb.Helper()
	dir := llamatest.ForTest(tb).Dir
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		if os.Getenv("CI") != "" {
			tb.Fatal("CI must have gcc")
		}
		tb.Skip("gcc is not installed, the program that calls libggml-cpu cannot be built")
	}
	program := filepath.Join(tb.TempDir(), "ggmlvec")
	compile := exec.Command(gcc, "-std=gnu11", "-O2", "-Wall", "-Werror", "-o", program, "testdata/ggmlvec.c", "-ldl")
	if out, err := compile.CombinedOutput(); err != nil {
		tb.Fatalf("compile ggmlvec: %v\n%s", err, out)
	}
	libraries, err := filepath.Glob(filepath.Join(dir, "libggml-cpu*.so"))
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{filepath.Join(dir, "libggml-base.so")}, libraries...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			tb.Errorf("ggmlvec: %v", err)
		}
	})
	return &ggml{in, out}
}

// answer is what ggml computes of x and w.
type answer struct {
	norm, soft []float32
	dot        float32
	ns         [2]float64 // times of a dot product, and of exponentials and their sum
}

// compute has ggml compute its answer for x and w, repeats times for the times.
func (g *ggml) compute(tb testing.TB, x, w []float32, scale, eps float32, repeats int) answer {
	tb.Helper()
	a := answer{norm: make([]float32, len(x)), soft: make([]float32, len(x))}
	for _, v := range []any{int32(len(x)), int32(repeats), scale, eps, x, w} {
		if err := binary.Write(g.in, binary.NativeEndian, v); err != nil {
			tb.Fatal(err)
		}
	}
	for _, v := range []any{a.norm, a.soft, &a.dot, &a.ns} {
		if err := binary.Read(g.out, binary.NativeEndian, v); err != nil {
			tb.Fatal(err)
		}
	}
	return a
}

// TestAgainstGGML checks that the norm is ggml's bit for bit. The dot product and the softmax may
// differ from ggml's by no more than both may differ from the exact result.
func TestAgainstGGML(t *testing.T) {
	g := newGGML(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{1, 2, 15, 16, 17, 33, 64, 100, 256, 768, 1000, 2048, 4096, 4099} {
		x, w := randomFloats(rng, size), randomFloats(rng, size)
		const scale, eps = 5, 1e-5
		want := g.compute(t, x, w, scale, eps, 1)
		norm, soft := make([]float32, size), append([]float32(nil), x...)
		RMSNorm(norm, x, w, eps)
		Softmax(soft, scale)
		largest := float64(Max(x) * scale)
		var mag float64
		for i := range x {
			mag += math.Abs(float64(x[i]) * float64(w[i]))
			if norm[i] != want.norm[i] {
				t.Fatalf("norm of %d: element %d is %v, want ggml's %v", size, i, norm[i], want.norm[i])
			}
			tolerance := 2 * (math.Abs(float64(x[i]*scale)-largest) + 8) * u * float64(want.soft[i])
			if !isNear(soft[i], float64(want.soft[i]), tolerance) {
				t.Fatalf("softmax of %d: element %d is %v, want ggml's %v within %v",
					size, i, soft[i], want.soft[i], tolerance)
			}
		}
		if got := Dot(x, w); !isNear(got, float64(want.dot), 2*(float64(size)/4+8)*u*mag) {
			t.Errorf("dot product of %d is %v, want about ggml's %v", size, got, want.dot)
		}
	}
}

// BenchmarkAgainstGGML runs ggml's loop in C and then ours in each iteration. "x-ggml" is how many
// times as fast ours is.
func BenchmarkAgainstGGML(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, kernel := range []struct {
		name string
		run  func(dst, x, w []float32)
		ns   int
	}{
		{"Dot", func(_, x, w []float32) { Dot(x, w) }, 0},
		{"ExpSum", func(dst, x, _ []float32) { ExpSum(dst, x, 3) }, 1},
	} {
		for _, size := range []int{128, 4096} {
			b.Run(fmt.Sprintf("%s/%d", kernel.name, size), func(b *testing.B) {
				g := newGGML(b)
				x, w, dst := randomFloats(rng, size), randomFloats(rng, size), make([]float32, size)
				const repeats = 2000
				var ours, theirs float64
				n := 0
				for b.Loop() {
					theirs += g.compute(b, x, w, 1, 1e-5, repeats).ns[kernel.ns]
					start := time.Now()
					for range repeats {
						kernel.run(dst, x, w)
					}
					ours += float64(time.Since(start).Nanoseconds()) / repeats
					n++
				}
				b.ReportMetric(0, "ns/op") // of both together
				b.ReportMetric(ours/float64(n), "ns/call")
				b.ReportMetric(theirs/ours, "x-ggml")
			})
		}
	}
}
