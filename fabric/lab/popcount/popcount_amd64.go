//go:build !noasm

package popcount

// This file chooses among the assembly functions of popcount_amd64.s.

import "golang.org/x/sys/cpu"

// Variants lists the variants that this machine supports, the fastest first.
func Variants() []Variant {
	var v []Variant
	if x := &cpu.X86; x.HasAVX512F && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VPOPCNTDQ && x.HasBMI2 {
		v = append(v, AVX512)
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT {
		v = append(v, AVX2)
	}
	return append(v, Go)
}

func (v Variant) dotRows(dst []int32, qp, qm, rowsPlus, rowsMinus []uint64) {
	switch v {
	case AVX512:
		dotRowsAVX512(&dst[0], len(dst), len(qp), &qp[0], &qm[0], &rowsPlus[0], &rowsMinus[0])
	case AVX2:
		dotRowsAVX2(&dst[0], len(dst), len(qp), &qp[0], &qm[0], &rowsPlus[0], &rowsMinus[0])
	default:
		dotRowsGo(dst, qp, qm, rowsPlus, rowsMinus)
	}
}

// dotRowsAVX512 computes the dot products of rows rows. rows and words must be at least 1.
//
//go:noescape
func dotRowsAVX512(dst *int32, rows, words int, qp, qm, rp, rm *uint64)

// dotRowsAVX2 does the same with other instructions.
//
//go:noescape
func dotRowsAVX2(dst *int32, rows, words int, qp, qm, rp, rm *uint64)
