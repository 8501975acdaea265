//go:build !amd64 || noasm

package popcount

// Variants lists the variants that this machine supports, the fastest first.
func Variants() []Variant { return []Variant{Go} }

func (Variant) rows(dst []int32, qp, qm, rowsPlus, rowsMinus []uint64) {
	rowsGo(dst, qp, qm, rowsPlus, rowsMinus)
}
