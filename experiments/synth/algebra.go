package synth

// This file has the linear algebra of planted routing: sets of dimensions, and systems of equations with
// a symmetric matrix. Products are rounded before they are added (explicit conversions), so that the
// results are the same on every CPU.

import (
	"math"
	"math/bits"
)

// bitset is a set of small numbers.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }

func (b bitset) set(i int, in bool) {
	b[i/64] &^= 1 << (i % 64)
	if in {
		b[i/64] |= 1 << (i % 64)
	}
}

func (b bitset) count() (n int) {
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// and returns what is in both sets.
func (b bitset) and(c bitset) bitset {
	both := make(bitset, len(b))
	for i := range b {
		both[i] = b[i] & c[i]
	}
	return both
}

// countDifferent counts the numbers in a set that are in one of two others.
func countDifferent(x, y, in bitset) (n int) {
	for i, w := range in {
		n += bits.OnesCount64((x[i] ^ y[i]) & w)
	}
	return n
}

// addSigned adds v to the sums of the numbers in the set, and subtracts it from the others.
func (b bitset) addSigned(sums []float64, v float64) {
	pattern := math.Float64bits(v)
	for i := range sums {
		sign := ^b[i/64] >> (i % 64) << 63
		sums[i] += math.Float64frombits(pattern ^ sign)
	}
}

// addScaled adds v times x to sums.
func addScaled(sums []float64, v float64, x []float64) {
	x = x[:len(sums)]
	for i := range sums {
		sums[i] += float64(v * x[i])
	}
}

// dot is the product of two vectors. It sums four parts, which a processor computes beside each other.
func dot(x, y []float64) float64 {
	y = y[:len(x)]
	var sums [4]float64
	i := 0
	for ; i+4 <= len(x); i += 4 {
		sums[0] += float64(x[i] * y[i])
		sums[1] += float64(x[i+1] * y[i+1])
		sums[2] += float64(x[i+2] * y[i+2])
		sums[3] += float64(x[i+3] * y[i+3])
	}
	for ; i < len(x); i++ {
		sums[0] += float64(x[i] * y[i])
	}
	return sums[0] + sums[1] + (sums[2] + sums[3])
}

// decompose replaces the lower half of a symmetric matrix of n x n by its Cholesky factor, by rows. It
// reports false if the matrix has none, as it is singular.
func decompose(g []float64, n int) bool {
	for i := range n {
		row := g[i*n : i*n+i+1]
		for j := range row {
			before := g[j*n : j*n+j+1]
			sum := row[j] - dot(row[:j], before[:j])
			if j < i {
				row[j] = sum / before[j]
				continue
			}
			const least = 1e-6 // the elements are whole numbers
			if sum < least {
				return false
			}
			row[j] = math.Sqrt(sum)
		}
	}
	return true
}

// substitute replaces each column of b by the solution of the equations that it is the right side of. The
// matrix of n x n was decomposed; b has n rows.
func substitute(factor []float64, n int, b []float64) {
	columns := len(b) / n
	row := func(i int) []float64 { return b[i*columns : (i+1)*columns] }
	divide := func(i int) {
		for c := range row(i) {
			row(i)[c] /= factor[i*n+i]
		}
	}
	for i := range n {
		for k, v := range factor[i*n : i*n+i] {
			addScaled(row(i), -v, row(k))
		}
		divide(i)
	}
	for i := n - 1; i >= 0; i-- {
		divide(i)
		for k, v := range factor[i*n : i*n+i] {
			addScaled(row(k), -v, row(i))
		}
	}
}
