package vec

// This file checks that no kernel accesses memory before or after its slices. The slices are at the
// edges of a page between two inaccessible pages.

import (
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guardedPage returns memory whose neighbours on both sides can neither be read nor written.
func guardedPage(t *testing.T) []float32 {
	t.Helper()
	size := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, 3*size, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) }) // the process ends soon
	b = b[size : 2*size]
	if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), size/4)
}

func TestEdges(t *testing.T) {
	dst, a, b, n := guardedPage(t), guardedPage(t), guardedPage(t), guardedPage(t)
	ints := unsafe.Slice((*int32)(unsafe.Pointer(&n[0])), len(n))
	rng := rand.New(rand.NewPCG(1, 1))
	for _, p := range [][]float32{a, b} {
		copy(p, randomFloats(rng, len(p)))
	}
	forVariants(t, func(t *testing.T, v variant) {
		for size := range 100 {
			start := len(a) - size
			if err := checkKernels(v, dst[start:], a[start:], b[start:], ints[start:], 0.5); err != nil {
				t.Fatal(err)
			}
			if err := checkKernels(v, dst[:size], a[:size], b[:size], ints[:size], 0.5); err != nil {
				t.Fatal(err)
			}
		}
		for d := 1; d <= 100; d++ {
			for rows := range 10 {
				at := ints[len(ints)-rows:]
				for i := range at {
					at[i] = int32(i)
				}
				k, q, w, sum := a[len(a)-rows*d:], b[len(b)-d:], b[len(b)-rows:], dst[len(dst)-d:]
				v.dotRows(dst[len(dst)-rows:], q, k, at)
				v.addRows(sum, w, k, at)
			}
		}
	})
}
