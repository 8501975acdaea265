//go:build !noasm

package kernel

// This file declares the assembly functions, and chooses among them by level. The methods with
// names in "Asm" report whether there is assembly for the case and, if so, do the work.

import (
	"math/bits"

	"golang.org/x/sys/cpu"

	"tensorcast/fabric/trit"
)

var (
	hasAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C
	hasAVX512 = hasAVX2 && cpu.X86.HasBMI1 && cpu.X86.HasBMI2 &&
		cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL &&
		cpu.X86.HasAVX512VBMI && cpu.X86.HasAVX512VNNI && cpu.X86.HasAVX512GFNI
)

func (l Level) decodeAsm(layout trit.Layout, dst []byte, planes [][]byte, n int) bool {
	two := layout == trit.TwoBit
	switch {
	case l == AVX512 && two:
		decodeTwoBit512(&dst[0], &planes[0], len(planes), n, lookup)
	case l == AVX512:
		decodePT5x512(&dst[0], &planes[0], len(planes), n, lookup)
	case l == AVX2 && two:
		decodeTwoBit256(&dst[0], &planes[0], len(planes), n, lookup)
	case l == AVX2:
		decodePT5x256(&dst[0], &planes[0], len(planes), n, lookup)
	default:
		return false
	}
	return true
}

func (l Level) dotAsm(r *Rows) bool {
	switch {
	case l == AVX512 && r.Block < Stripe:
		dotPart512(r, &spread[r.Block/32])
	case l == AVX512:
		dot512(r)
	case l == AVX2 && r.Block < Stripe && r.Small:
		dotPartSmall256(r)
	case l == AVX2 && r.Block < Stripe:
		dotPart256(r)
	case l == AVX2 && r.Small:
		dotSmall256(r)
	case l == AVX2:
		dot256(r)
	default:
		return false
	}
	return true
}

// hasSinglePassAsm reports whether multiplyAsm supports this number of planes and this block.
func (l Level) hasSinglePassAsm(planes, block int) bool {
	switch l {
	case AVX512:
		return block < Stripe || block == 256 && planes == 1
	case AVX2:
		return block == 256 && planes == 1
	}
	return false
}

// multiplyAsm decodes and multiplies in one pass. It must only be called if hasSinglePassAsm is true.
func (l Level) multiplyAsm(p *Product) {
	two := p.Layout == trit.TwoBit
	switch {
	case p.Block < Stripe && two:
		twoBitPartx512(p, lookup, &spread[p.Block/32])
	case p.Block < Stripe:
		pt5Partx512(p, lookup, &spread[p.Block/32])
	default:
		l.multiplyOnePlane(p)
	}
}

// multiplyOnePlane multiplies one plane in blocks of 256. It takes as many rows at a time as the
// assembly supports, and the remaining rows one by one.
func (l Level) multiplyOnePlane(p *Product) {
	two := p.Layout == trit.TwoBit
	if !two && l == AVX2 {
		pt5x256x256(p, lookup)
		return
	}
	rowsAtOnce := 2
	if two && l == AVX512 {
		rowsAtOnce = 4
	}
	q := *p
	if q.Count -= q.Count % rowsAtOnce; q.Count > 0 {
		switch {
		case l == AVX2:
			twoBitPair256x256(&q)
		case two:
			twoBitFour256x512(&q)
		default:
			pt5Pair256x512(&q, lookup)
		}
	}
	if p.Count == q.Count {
		return
	}
	rest := [1][]byte{p.Planes[0][q.Count*p.Groups*64:]}
	q.Planes = rest[:]
	q.Factors, q.Dst, q.Count = p.Factors[q.Count*p.FactorPitch:], p.Dst[q.Count:], p.Count-q.Count
	switch {
	case l == AVX2:
		twoBit256x256(&q)
	case two:
		twoBit256x512(&q)
	default:
		pt5x256x512(&q, lookup)
	}
}

func (l Level) dotSparseAsm(r *SparseRows) bool {
	if l != AVX512 || len(r.Entries) == 0 {
		return false
	}
	dotSparse512(r)
	return true
}

func (l Level) expandAsm(dst []float32, pitch int, s *Scales) bool {
	switch {
	case l == AVX512 && s.Half != nil:
		expandHalf512(&dst[0], pitch, s)
	case l == AVX512:
		expandSub512(&dst[0], pitch, s, &superLanes[bits.TrailingZeros(uint(s.Per))])
	case l == AVX2 && s.Half != nil:
		expandHalf256(&dst[0], pitch, s)
	case l == AVX2 && s.Per >= 8:
		expandSub256(&dst[0], pitch, s)
	default:
		return false
	}
	return true
}

func (l Level) subtractAsm(dst, v []float32, pitch, n int) bool {
	switch {
	case l == AVX512:
		subtract512(&dst[0], len(dst), &v[0], pitch, n)
	case l == AVX2:
		eights := n / 8
		for i := range dst {
			row := v[i*pitch:][:n]
			if eights > 0 {
				subtract256(&dst[i], &row[0], eights)
			}
			for _, f := range row[8*eights:] {
				dst[i] -= f
			}
		}
	default:
		return false
	}
	return true
}

func (l Level) quantizeAsm(q []int8, scale, x []float32, block int) bool {
	switch {
	case l == AVX512 && block == 32:
		quantize32x512(&q[0], &scale[0], &x[0], len(x)/32)
	case l == AVX512:
		quantize256x512(&q[0], &scale[0], &x[0], len(x)/256)
	case l == AVX2 && block == 32:
		quantize32x256(&q[0], &scale[0], &x[0], len(x)/32)
	case l == AVX2:
		quantize256x256(&q[0], &scale[0], &x[0], len(x)/256)
	default:
		return false
	}
	return true
}

func (l Level) sumFoursAsm(dst []int32, q []int8) bool {
	switch l {
	case AVX512:
		sumFours512(&dst[0], &q[0], len(q)/Stripe)
	case AVX2:
		sumFours256(&dst[0], &q[0], len(q)/32)
	default:
		return false
	}
	return true
}

// spread holds for each lane of a stripe the index of its factor among those of the stripe: for
// blocks of 16 columns and for blocks of 32.
var spread = [2][16]int32{
	{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3},
	{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1},
}

// superLanes holds the lanes argument of expandSub512 for Scales.Per of 1, 2, 4, 8 and 16.
var superLanes = func() (all [5][2][16]int32) {
	for i := range all {
		for lane := range 16 {
			all[i][0][lane] = int32(lane >> i)
			all[i][1][lane] = 16 >> i
		}
	}
	return all
}()

//go:noescape
func decodePT5x512(dst *byte, planes *[]byte, count, n int, t *tables)

//go:noescape
func decodeTwoBit512(dst *byte, planes *[]byte, count, n int, t *tables)

//go:noescape
func dot512(r *Rows)

//go:noescape
func dotPart512(r *Rows, spread *[16]int32)

//go:noescape
func twoBit256x512(p *Product)

//go:noescape
func pt5x256x512(p *Product, t *tables)

//go:noescape
func twoBitFour256x512(p *Product)

//go:noescape
func pt5Pair256x512(p *Product, t *tables)

//go:noescape
func pt5Partx512(p *Product, t *tables, spread *[16]int32)

//go:noescape
func twoBitPartx512(p *Product, t *tables, spread *[16]int32)

//go:noescape
func expandHalf512(dst *float32, pitch int, s *Scales)

//go:noescape
func expandSub512(dst *float32, pitch int, s *Scales, lanes *[2][16]int32)

//go:noescape
func subtract512(dst *float32, count int, v *float32, pitch, n int)

//go:noescape
func quantize32x512(q *int8, scale *float32, x *float32, blocks int)

//go:noescape
func quantize256x512(q *int8, scale *float32, x *float32, blocks int)

//go:noescape
func sumFours512(dst *int32, q *int8, stripes int)

//go:noescape
func quantize32x256(q *int8, scale *float32, x *float32, blocks int)

//go:noescape
func quantize256x256(q *int8, scale *float32, x *float32, blocks int)

//go:noescape
func decodePT5x256(dst *byte, planes *[]byte, count, n int, t *tables)

//go:noescape
func decodeTwoBit256(dst *byte, planes *[]byte, count, n int, t *tables)

//go:noescape
func dot256(r *Rows)

//go:noescape
func dotPart256(r *Rows)

//go:noescape
func twoBit256x256(p *Product)

//go:noescape
func twoBitPair256x256(p *Product)

//go:noescape
func pt5x256x256(p *Product, t *tables)

//go:noescape
func dotSmall256(r *Rows)

//go:noescape
func dotPartSmall256(r *Rows)

//go:noescape
func expandHalf256(dst *float32, pitch int, s *Scales)

//go:noescape
func expandSub256(dst *float32, pitch int, s *Scales)

//go:noescape
func subtract256(dst *float32, v *float32, eights int)

//go:noescape
func sumFours256(dst *int32, q *int8, eights int)

//go:noescape
func dotSparse512(r *SparseRows)
