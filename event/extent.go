package event

// This file computes how many bytes a tensor in the target spans. The target may report any
// numbers, so nothing here overflows.

import (
	"math/bits"

	"tensorcast/gguf"
)

// MaxBytes is 64 TiB, more than any tensor has. A tensor whose reported shape is larger or
// contradicts itself has the extent MaxBytes.
const MaxBytes = 1 << 46

// Bytes is the source's extent in bytes, in [0, MaxBytes] (ggml_nbytes). An op that does not gather
// reads all of it.
func (s *Source) Bytes() int64 { return extentOf(s.Type, &s.NE, &s.NB) }

// Bytes is the buffer's extent in bytes, in [0, MaxBytes] (ggml_nbytes).
func (b *Buffer) Bytes() int64 { return extentOf(b.Type, &b.NE, &b.NB) }

// extentOf computes ggml_nbytes from a tensor's elements (ne) and strides in bytes (nb). It is 0
// for a tensor without elements, and for a type that no ggml has. Of a type that is not known, the
// strides of its rows tell the size.
func extentOf(number gguf.Type, ne, nb *[4]int64) int64 {
	t := gguf.ReportedType(uint32(number), nb[0])
	empty := t > gguf.MaxNumber && !t.Known()
	for d := range 4 {
		if ne[d] < 0 || nb[d] < 0 {
			return MaxBytes
		}
		empty = empty || ne[d] == 0
	}
	if empty {
		return 0
	}
	var total int64
	add := func(n, size, per int64) {
		hi, lo := bits.Mul64(uint64(n), uint64(size))
		if hi != 0 || lo/uint64(per) > MaxBytes {
			total = MaxBytes
			return
		}
		total = min(total+int64(lo)/per, MaxBytes)
	}
	switch elems := t.BlockElems(); {
	case elems == 1:
		add(1, t.BlockBytes(), 1)
		add(ne[0]-1, nb[0], 1)
	case elems > 1:
		add(1, t.HeadBytes(), 1)
		add(ne[0], nb[0], elems)
	case t.Known(): // its rows have no size of their own, and ggml's strides say nothing
		size, err := t.Bytes(ne[:])
		if err != nil {
			return MaxBytes
		}
		return min(size, MaxBytes)
	default:
		add(1, nb[1], 1)
	}
	for d := 1; d < 4; d++ {
		add(ne[d]-1, nb[d], 1)
	}
	return total
}

// Slices returns how many slices of the source an op can gather along dimension dim (1 to 3), and
// the bytes of each. Both are 0 if there is no such dimension or the source contradicts itself.
// Neither is negative, and their product does not overflow.
func (s *Source) Slices(dim int) (n, size int64) {
	if dim <= 0 || dim >= len(s.NE) || s.Bytes() <= 0 || s.Bytes() >= MaxBytes {
		return 0, 0
	}
	n = max(s.NE[dim], 0)
	if t := gguf.ReportedType(uint32(s.Type), s.NB[0]); t.Known() && t.BlockElems() == 0 {
		return n, s.Bytes() / max(n, 1) // about so many: ggml's strides are not those of the file
	}
	if size = s.NB[dim]; n <= 1 || size > s.Bytes() { // with one element, the stride means nothing
		size = s.Bytes()
	}
	return n, size
}
