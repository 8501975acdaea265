//go:build !amd64 || noasm

package vec

// This file uses the kernels in Go on machines without assembly.

func variants() []variant { return []variant{inGo} }

func (v variant) dot(a, b []float32) float32                      { return dotGo(a, b) }
func (v variant) add(dst, a, b []float32)                         { addGo(dst, a, b) }
func (v variant) axpy(dst, a []float32, s float32)                { axpyGo(dst, a, s) }
func (v variant) scale(x []float32, s float32)                    { scaleGo(x, s) }
func (v variant) max(x []float32) float32                         { return maxGo(x) }
func (v variant) sumSquares(x []float32) float64                  { return sumSquaresGo(x) }
func (v variant) mulScaled(dst, x, w []float32, s float32)        { mulScaledGo(dst, x, w, s) }
func (v variant) addInt32(dst, w []float32, n []int32, s float32) { addInt32Go(dst, w, n, s) }
func (v variant) expSum(dst, x []float32, shift float32) float64  { return expSumGo(dst, x, shift) }
func (v variant) countAtLeast(x []float32, t float32) int         { return countAtLeastGo(x, t) }
func (v variant) indexAtLeast(dst []int32, x []float32, t float32) int {
	return indexAtLeastGo(dst, x, t)
}
func (v variant) sumBelow(x []float32, t float32) float64    { return sumBelowGo(x, t) }
func (v variant) dotRows(dst, q, rows []float32, at []int32) { dotRowsOneByOne(v, dst, q, rows, at) }
func (v variant) addRows(dst, w, rows []float32, at []int32) { addRowsOneByOne(v, dst, w, rows, at) }
