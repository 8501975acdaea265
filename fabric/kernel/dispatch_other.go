//go:build !amd64 || noasm

package kernel

// This file replaces the assembly on other processors, and in builds with the tag noasm.

import "tensorcast/fabric/trit"

const hasAVX2, hasAVX512 = false, false

func (l Level) decodeAsm(trit.Layout, []byte, [][]byte, int) bool  { return false }
func (l Level) dotAsm(*Rows) bool                                  { return false }
func (l Level) hasSinglePassAsm(int, int) bool                     { return false }
func (l Level) multiplyAsm(*Product)                               {}
func (l Level) expandAsm([]float32, int, *Scales) bool             { return false }
func (l Level) subtractAsm(_, _ []float32, _, _ int) bool          { return false }
func (l Level) quantizeAsm([]int8, []float32, []float32, int) bool { return false }
func (l Level) sumFoursAsm([]int32, []int8) bool                   { return false }
func (l Level) dotSparseAsm(*SparseRows) bool                      { return false }
func (l Level) multiplyCodesAsm(*Codes) bool                       { return false }
func (l Level) arrangeAsm(_, _ []int8) bool                        { return false }
func (l Level) decodeCodesAsm([]byte, []float32, []byte, int) bool { return false }
func (l Level) multiplyCodesTileAsm(*Tile) bool                    { return false }
func (l Level) multiplyTileAsm(*Tile) bool                         { return false }
func (l Level) multiplyBandsAsm(*Bands) bool                       { return false }
func (l Level) multiplyOrderedAsm(*Ordered) bool                   { return false }
func (l Level) multiplyOrderedSuperAsm(*OrderedSuper) bool         { return false }
