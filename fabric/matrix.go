// Package fabric is the arithmetic of an emulated memory-centric accelerator. Weights are stored as
// ternary planes (trits: -1, 0, +1), so that products need only additions and subtractions.
//
//   - A [Matrix] holds the planes and scales of a weight matrix. Package decompose makes them from ggml's tensors.
//     Package plan chooses how.
//   - A frame is the format in which a matrix is stored and transferred ([FrameReader]; TFMBS_DEVICE_SPEC.md).
//   - An [Operand] is a matrix prepared for products. [Operand.GEMV] and [Operand.GEMM] multiply it by [Activations],
//     i.e. quantised vectors. A [Pool] does so with several goroutines. The inner loops are in package kernel.
//
// Matrices and operands may be shared by any number of goroutines; each needs its own [Scratch].
package fabric

// This file defines the matrix: planes of trits, and the scales that turn them into weights.

import (
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// Matrix is a weight matrix made of planes of trits. If b is the block of column c in row r, its
// weight is
//
//	W[r,c] = sum over terms of Scale_b * (Center + sum over p of 3^p t_p[r,c])  -  Min_b
//
// Rows are ggml's rows: a row is one operand of a dot product, with ne[0] = Cols elements. A matrix
// is immutable once it is made, and any number of goroutines may read it.
type Matrix struct {
	Rows, Cols int
	Layout     trit.Layout // of every plane
	Origin     gguf.Type   // type of the tensor that it was made from
	Exact      bool        // decompose.Bytes restores the original blocks, bit for bit
	Terms      []Term
	Min        Scales // subtracted; the zero value if there is none
}

// Term is a group of planes that share scales. An exact decomposition has one term, whose planes
// are the digits of an integer, least significant first. A lossy one has a term for each plane, or
// one term whose planes share a factor.
type Term struct {
	Planes [][]byte // Rows * Layout.RowBytes(Cols) bytes each
	Center int32    // added to the integer
	Scales Scales
}

// Scales hold one factor per block of columns, row by row, in one of three forms. A row has
// ceil(Cols/Block) blocks and ceil(Cols/256) super-blocks. The last ones may be short.
//
//   - Half: an IEEE half per block
//   - Sub and Super: an integer per block times a half per super-block of 256
//   - neither: no factor (the zero Scales)
type Scales struct {
	Block int      // columns that share a factor: 16, 32, a multiple of 64, or at least Cols
	Half  []uint16 // IEEE 754 binary16
	Sub   []int8
	Super []uint16 // IEEE 754 binary16
}
