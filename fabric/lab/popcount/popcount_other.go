//go:build !amd64 || noasm

package popcount

// This file replaces the assembly on other processors, and in builds with the tag noasm.

// Variants lists the variants that this machine supports, the fastest first.
func Variants() []Variant { return []Variant{Go} }

func (Variant) dotRows(dst []int32, qp, qm, rowsPlus, rowsMinus []uint64) {
	dotRowsGo(dst, qp, qm, rowsPlus, rowsMinus)
}
