//go:build !amd64 || noasm

package hidden

// This file uses the kernel in Go where there is no assembly.

func variants() []variant { return []variant{inGo} }

func (v variant) multiplyRows(dst []float32, q []int8, x []float32) { rowsGo(dst, q, x) }
