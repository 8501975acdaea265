// Package fabric is the arithmetic of an emulated memory-centric accelerator: weights live in it as ternary planes, and products become
// sign logic.
package fabric

// This file holds the matrix: planes of trits and the scales that make weights of them.

import (
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// Matrix is a weight matrix as planes of trits. With b the block of column c in row r, its weight is
//
//	W[r,c] = sum over terms of Scale_b * (Center + sum over p of 3^p t_p[r,c])  -  Min_b
//
// Rows are ggml's (a row is a dot product's operand, ne[0] = Cols elements). A matrix does not change once it is made; any number of
// goroutines may read it.
type Matrix struct {
	Rows, Cols int
	Layout     trit.Layout // of every plane
	Origin     gguf.Type   // the type that it was made of
	Exact      bool        // reconstruction gives back the original blocks, bit for bit
	Terms      []Term
	Min        Scales // subtracted; the zero Scales if there is none
}

// Term is planes that share scales. Exact decompositions have one term whose planes are the digits of an integer, least significant first;
// lossy ones have a term of one plane for each plane, or one term whose planes share a factor.
type Term struct {
	Planes [][]byte // Rows * Layout.RowBytes(Cols) bytes each
	Center int32    // added to the integer
	Scales Scales
}

// Scales are one factor per block of columns, in one of three forms: all of a row's first, then the next row's. A row has
// ceil(Cols/Block) blocks and ceil(Cols/256) super-blocks; the last may be short.
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
