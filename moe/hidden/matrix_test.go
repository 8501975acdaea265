package hidden

// These tests compare the kernels with plain arithmetic, and with each other.

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

func gaussian(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// checkRows compares a kernel's products with those in float64.
func checkRows(t testing.TB, v variant, q []int8, x []float32, rows int) {
	t.Helper()
	const guard = 12345
	got := make([]float32, rows+1)
	got[rows] = guard
	v.multiplyRows(got[:rows], q, x)
	if got[rows] != guard {
		t.Fatalf("%v: a product of %d rows of %d writes behind the result", v, rows, len(x))
	}
	for r := range rows {
		want, size := 0.0, 0.0
		for c, f := range x {
			p := float64(q[r*len(x)+c]) * float64(f)
			want += p
			size += math.Abs(p)
		}
		const u = 0x1p-24
		if most := (float64(len(x))/4+8)*u*size + 0x1p-149*float64(len(x)); size < math.MaxFloat32/2 &&
			!(math.Abs(float64(got[r])-want) <= most) {
			t.Fatalf("%v: row %d of %d x %d is %g, want %g within %g", v, r, rows, len(x), got[r], want, most)
		}
	}
}

func TestRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, v := range variants() {
		for _, rows := range []int{0, 4, 8, 36, 128} {
			for _, cols := range []int{16, 32, 48, 256, 2048, 2064} {
				q := make([]int8, rows*cols)
				for i := range q {
					q[i] = int8(rng.IntN(256) - 128)
				}
				checkRows(t, v, q, gaussian(rng, cols), rows)
			}
		}
	}
}

func FuzzRows(f *testing.F) {
	f.Add([]byte("some weights"), uint8(1), uint8(1), int64(7))
	f.Fuzz(func(t *testing.T, data []byte, groups, blocks uint8, seed int64) {
		rows, cols := int(groups%9)*rowGroup, (1+int(blocks%9))*colGroup
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		q, x := make([]int8, rows*cols), make([]float32, cols)
		for i := range q {
			q[i] = int8(rng.Uint32())
			if i < len(data) {
				q[i] = int8(data[i])
			}
		}
		for i := range x {
			x[i] = float32(rng.NormFloat64())
			if j := 4 * i; j+4 <= len(data) {
				if v := math.Float32frombits(binary.LittleEndian.Uint32(data[j:])); isFinite(v) &&
					math.Abs(float64(v)) < 1e30 {
					x[i] = v
				}
			}
		}
		for _, v := range variants() {
			checkRows(t, v, q, x, rows)
		}
	})
}

// Rounding to 8 bits changes a weight by half a scale at most. Rows and columns of padding add nothing.
func TestMatrix(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, size := range [][2]int{{1, 1}, {3, 5}, {16, 256}, {33, 100}} {
		rows, cols := size[0], size[1]
		values := gaussian(rng, rows*cols)
		clear(values[:cols]) // a row of zeros
		m, ok := newMatrix(values, rows, cols)
		if !ok {
			t.Fatalf("newMatrix refused %d x %d", rows, cols)
		}
		x := make([]float32, m.stride)
		copy(x, gaussian(rng, cols))
		dst := make([]float32, padded(rows, rowGroup))
		m.multiply(dst, x)
		for r := range rows {
			want, most := 0.0, 1e-4
			for c := range cols {
				want += float64(values[r*cols+c]) * float64(x[c])
				most += float64(m.scale[r]) / 2 * math.Abs(float64(x[c])) * 1.001
			}
			if math.Abs(float64(dst[r])-want) > most {
				t.Errorf("%d x %d: row %d is %g, want %g within %g", rows, cols, r, dst[r], want, most)
			}
		}
	}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), math.MaxFloat32} {
		if _, ok := newMatrix([]float32{1, bad}, 1, 2); ok {
			t.Errorf("newMatrix took %g, want that it is refused", bad)
		}
	}
	if m, ok := newMatrix([]float32{0x1p-140, -0x1p-149}, 1, 2); !ok || m.scale[0] != 0 {
		t.Errorf("a matrix of the least numbers: %v, %+v, want scale 0", ok, m)
	}
}

func BenchmarkRows(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 6))
	const experts, dim = 128, 2048
	// As many as a model has layers, so that they do not stay in the nearest cache.
	var layers []matrix
	for range 48 {
		m, _ := newMatrix(gaussian(rng, experts*dim), experts, dim)
		layers = append(layers, m)
	}
	x, dst := gaussian(rng, dim), make([]float32, experts)
	for _, v := range variants() {
		b.Run(v.String(), func(b *testing.B) {
			i := 0
			for b.Loop() {
				m := &layers[i%len(layers)]
				v.multiplyRows(dst, m.q, x)
				i++
			}
		})
	}
}
