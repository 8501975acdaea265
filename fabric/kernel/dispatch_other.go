//go:build !amd64 || noasm

package kernel

import "tensorcast/fabric/trit"

// This file replaces the assembly on other processors.

const hasAVX2, hasAVX512 = false, false

func (l Level) decodeAssembly(trit.Layout, []byte, [][]byte, int) bool  { return false }
func (l Level) dotAssembly(*Rows) bool                                  { return false }
func (l Level) hasProduct(int, int) bool                                { return false }
func (l Level) productAssembly(*Product)                                {}
func (l Level) expandAssembly([]float32, int, *Scales) bool             { return false }
func (l Level) subtractAssembly(_, _ []float32, _, _ int) bool          { return false }
func (l Level) quantizeAssembly([]int8, []float32, []float32, int) bool { return false }
func (l Level) sumAssembly([]int32, []int8) bool                        { return false }
func (l Level) sparseAssembly(*SparseRows) bool                         { return false }
func (l Level) codesAssembly(*Codes) bool                               { return false }
func (l Level) arrangeAssembly(_, _ []int8) bool                        { return false }
func (l Level) decodeCodesAssembly([]byte, []float32, []byte, int) bool { return false }
func (l Level) codesTileAssembly(*Tile) bool                            { return false }
func (l Level) tileAssembly(*Tile) bool                                 { return false }
func (l Level) bandsAssembly(*Bands) bool                               { return false }
func (l Level) orderedAssembly(*Ordered) bool                           { return false }
func (l Level) orderedSuperAssembly(*OrderedSuper) bool                 { return false }
