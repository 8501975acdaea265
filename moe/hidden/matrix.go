package hidden

// This file has the routers' matrices in 8 bits, and their product with a vector. The product is in Go
// here, and in AVX2 in matrix_amd64.s.

import "math"

// Rows and columns are padded with zeros to multiples of these, which is what the kernels process at a
// time.
const (
	rowGroup = 4
	colGroup = 16
)

func padded(n, group int) int { return (n + group - 1) / group * group }

// matrix is a matrix of int8, with a scale for each row. The error of each weight is at most half a
// scale.
type matrix struct {
	rows, cols int
	stride     int       // padded columns
	q          []int8    // padded rows x stride
	scale      []float32 // by row
}

// newMatrix rounds a matrix of rows x cols, given row by row. It reports false if a value is not finite.
func newMatrix(values []float32, rows, cols int) (matrix, bool) {
	m := matrix{rows: rows, cols: cols, stride: padded(cols, colGroup), scale: make([]float32, rows)}
	m.q = make([]int8, padded(rows, rowGroup)*m.stride)
	for r := range rows {
		row := values[r*cols : (r+1)*cols]
		most := float32(0)
		for _, v := range row {
			if v != v {
				return m, false
			}
			most = max(most, v, -v)
		}
		if most > math.MaxFloat32/2 {
			return m, false
		}
		// A scale below the least normal number would lose its last bits.
		const levels, least = 127, 0x1p-126
		scale := most / levels
		if scale < least {
			continue
		}
		m.scale[r] = scale
		for c, v := range row {
			m.q[r*m.stride+c] = int8(math.RoundToEven(float64(v) / float64(scale)))
		}
	}
	return m, true
}

// bytes is the memory that the matrix takes.
func (m *matrix) bytes() int64 { return int64(len(m.q)) + 4*int64(len(m.scale)) }

// multiply writes the product with x to dst. x has m.stride elements, which are 0 behind the columns. dst
// has room for the padded rows. The error of an element, besides that of rounding the matrix, is at most
// (stride/4 + 8) u times the sum of the magnitudes of the products, with u = 2^-24.
func (m *matrix) multiply(dst, x []float32) {
	dst = dst[:padded(m.rows, rowGroup)]
	fastest.multiplyRows(dst, m.q, x[:m.stride])
	for r, s := range m.scale {
		dst[r] *= s
	}
}

// variant is an implementation of the kernel.
type variant uint8

const (
	inGo variant = iota
	avx2         // AVX2 and FMA
)

func (v variant) String() string { return [...]string{"go", "avx2"}[v] }

// fastest is the variant that is used.
var fastest = variants()[0]

// rowsGo sets dst[r] to the sum of q[r len(x) + c] x[c] over c.
func rowsGo(dst []float32, q []int8, x []float32) {
	for r := range dst {
		row := q[r*len(x) : (r+1)*len(x)]
		var s0, s1, s2, s3 float32
		for c := 0; c+4 <= len(row); c += 4 {
			s0 += float32(float32(row[c]) * x[c]) // converted, so that no compiler fuses it with the sum
			s1 += float32(float32(row[c+1]) * x[c+1])
			s2 += float32(float32(row[c+2]) * x[c+2])
			s3 += float32(float32(row[c+3]) * x[c+3])
		}
		dst[r] = (s0 + s1) + (s2 + s3)
	}
}
