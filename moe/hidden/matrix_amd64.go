//go:build !noasm

package hidden

// This file chooses between the kernels.

import "golang.org/x/sys/cpu"

// variants lists the variants that this machine supports, the fastest first.
func variants() []variant {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		return []variant{avx2, inGo}
	}
	return []variant{inGo}
}

func (v variant) multiplyRows(dst []float32, q []int8, x []float32) {
	if v == avx2 {
		rowsAVX2(dst, q, x)
		return
	}
	rowsGo(dst, q, x)
}

// rowsAVX2 is rowsGo. It requires that len(dst) is a multiple of rowGroup, len(x) one of colGroup and not
// 0, and len(q) their product.
//
//go:noescape
func rowsAVX2(dst []float32, q []int8, x []float32)
