package synth

// This file generates the random values: it turns uniformly random bytes, in place, into blocks of
// a ggml type.
//
// Values are drawn from a table with equally likely quantiles of a normal distribution, which costs
// one lookup per byte. Quantised blocks are not quantised from anything: their codes are drawn
// directly, with a scale per block that varies as much as in real files, so that decoded values
// have mean 0 and the wanted standard deviation. Only operations are used that round the same on
// every CPU, so that equal seeds give equal bytes everywhere. (Explicit conversions keep Go from
// fusing a multiplication and an addition.)

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"tensorcast/gguf"
	"tensorcast/gguf/half"
)

// span is a run of elements of a tensor with the same distribution. Its length is a whole number of
// blocks. Only F32 supports a mean other than 0, and random signs.
type span struct {
	elems      int64
	mean, std  float32
	randomSign bool
	choose, of int // I32: each run of so many elements is a choice among so many numbers, without repetition
}

// stream returns the source of a tensor's random bytes. It depends only on the seed and the
// tensor's name. So the values of a tensor depend neither on other tensors nor on how much is read
// at a time.
func stream(seed uint64, tensor string) *rand.ChaCha8 {
	return rand.NewChaCha8(sha256.Sum256(append(binary.LittleEndian.AppendUint64(nil, seed), tensor...)))
}

// sampler holds the tables. It is read-only after newSampler.
type sampler struct {
	normal [1 << 16]float32 // quantiles of N(0, 1)

	q8    [256]byte // maps a random byte to an int8 code
	q8Std float64   // standard deviation of the codes
	// q4 and q4k map a random byte to two codes of 4 bits. Q4_0 decodes a code c to d*(c-8), so its
	// codes are symmetric about 8 (1 to 15). Q4_K decodes it to d*scale*c - dmin*min. Here dmin*min
	// = 7.5*d*scale, so its codes are symmetric about 7.5.
	q4, q4k       [256]byte
	q4Std, q4kStd float64

	// q2 maps a random byte to four codes of Q2_0 or TQ2_0, which are weights of -1, 0, 0 or 1
	// times the scale. With +2, too, the mean would not be 0.
	q2 [256]byte

	// q1 is the byte itself: eight codes of Q1_0, which are weights of -1 or 1 times the scale.
	q1 [256]byte

	// five and four map a random byte to five trits of TQ1_0, and to the four trits in the last
	// bytes of a block.
	five, four [256]byte
	tq1Std     float64

	// jitter holds factors for the scale of a block of Q8_0, Q4_0, Q2_0 or Q1_0. Their mean square
	// is 1.
	jitter [16]float64
}

// The scales of Q4_K's sub-blocks are uniform in 32..63 (the upper half of their 6 bits, where most
// scales in real files are).
const (
	subScaleMin  = 32
	subScaleMask = 31
)

func newSampler() *sampler {
	s := new(sampler)
	quantile := func(i, n int) float64 { // of N(0, 1), at the middle of the i-th of n equal parts
		// It is rounded because the last bits of Erfinv may differ between CPUs.
		return math.Round(math.Sqrt2*math.Erfinv(float64(2*i+1-n)/float64(n))*(1<<18)) / (1 << 18)
	}
	var sum float64
	for i := range s.normal {
		q := quantile(i, len(s.normal))
		s.normal[i] = float32(q)
		sum += float64(q * q)
	}
	lost := math.Sqrt(sum / float64(len(s.normal))) // cutting off the tails reduces the variance a little
	for i, q := range s.normal {
		s.normal[i] = float32(float64(q) / lost)
	}

	sum = 0
	for i := range s.q8 {
		code := math.Round(127 * quantile(i, 256) / quantile(255, 256))
		s.q8[i] = byte(int8(code))
		sum += float64(code * code)
	}
	s.q8Std = math.Sqrt(sum / 256)

	var low4, low4k [16]byte
	var sum4, sum4k float64
	for i := range 8 { // the upper half, and its mirror image, so that the mean is exactly 0
		q := quantile(8+i, 16) / quantile(15, 16)
		c := math.Round(7 * q)
		low4[8+i], low4[7-i] = byte(8+c), byte(8-c)
		sum4 += float64(c * c)
		k := math.Floor(7.5 * q)
		low4k[8+i], low4k[7-i] = byte(8+k), byte(7-k)
		sum4k += float64((k + 0.5) * (k + 0.5))
	}
	s.q4Std, s.q4kStd = math.Sqrt(sum4/8), math.Sqrt(sum4k/8)
	for i := range 256 {
		s.q4[i] = low4[i&15] | low4[i>>4]<<4
		s.q1[i] = byte(i)
		s.q4k[i] = low4k[i&15] | low4k[i>>4]<<4
		for k := 0; k < 8; k += 2 {
			s.q2[i] |= [4]byte{0, 1, 1, 2}[i>>k&3] << k
		}
	}

	nonzero := 0
	for i := range 256 {
		five, four := spreadEvenly(i, 243), spreadEvenly(i, 81)
		// A fraction of 3^5 becomes one of 256, rounded up.
		s.five[i], s.four[i] = byte((five*256+242)/243), byte((3*four*256+242)/243)
		for range 5 {
			if nonzero += 48; five%3 == 1 {
				nonzero -= 48
			}
			five /= 3
		}
		for range 4 {
			if nonzero += 4; four%3 == 1 {
				nonzero -= 4
			}
			four /= 3
		}
	}
	s.tq1Std = math.Sqrt(float64(nonzero) / (256 * 256))

	sum = 0
	for i := range s.jitter {
		s.jitter[i] = 0.75 + float64(i)/30
		sum += float64(s.jitter[i] * s.jitter[i])
	}
	for i := range s.jitter {
		s.jitter[i] /= math.Sqrt(sum / 16)
	}
	return s
}

// spreadEvenly maps 256 bytes to n codes, an odd number, that are about equally frequent. Codes c and
// n-1-c, whose trits have opposite signs, are exactly equally frequent.
func spreadEvenly(b, n int) int {
	if b < 256/n*n {
		return b % n
	}
	switch left, c := b-256/n*n, (b-256/n*n)/2*n/16; {
	case b == 255:
		return n / 2
	case left%2 == 0:
		return c
	default:
		return n - 1 - c
	}
}

// shape turns the uniformly random bytes of buf, a whole number of blocks of type t, into blocks
// with the distribution sp.
func (s *sampler) shape(t gguf.Type, buf []byte, sp span) error {
	switch t {
	case gguf.F32:
		s.shapeF32(buf, sp)
	case gguf.F16:
		s.shapeF16(buf, sp)
	case gguf.I32:
		shapeChoices(buf, sp)
	case gguf.Q8_0:
		s.shapeBlocks(buf, 34, &s.q8, float64(sp.std)/s.q8Std)
	case gguf.Q4_0:
		s.shapeBlocks(buf, 18, &s.q4, float64(sp.std)/s.q4Std)
	case gguf.Q2_0:
		s.shapeBlocks(buf, 18, &s.q2, float64(sp.std)*math.Sqrt2)
	case gguf.Q1_0:
		s.shapeBlocks(buf, 18, &s.q1, float64(sp.std))
	case gguf.TQ2_0:
		shapeTrits(buf, 66, &s.q2, &s.q2, float64(sp.std)*math.Sqrt2)
	case gguf.TQ1_0:
		shapeTrits(buf, 54, &s.five, &s.four, float64(sp.std)/s.tq1Std)
	case gguf.Q4_K:
		s.shapeQ4K(buf, sp)
	default:
		return fmt.Errorf("no way to make values of type %v", t)
	}
	return nil
}

func (s *sampler) shapeF32(buf []byte, sp span) {
	for ; len(buf) >= 4; buf = buf[4:] {
		r := binary.LittleEndian.Uint32(buf)
		v := float32(s.normal[r&0xffff]*sp.std) + sp.mean
		if sp.randomSign && r>>31 != 0 {
			v = -v
		}
		binary.LittleEndian.PutUint32(buf, math.Float32bits(v))
	}
}

func (s *sampler) shapeF16(buf []byte, sp span) {
	for ; len(buf) >= 2; buf = buf[2:] {
		binary.LittleEndian.PutUint16(buf, half.Round(s.normal[binary.LittleEndian.Uint16(buf)]*sp.std))
	}
}

func shapeChoices(buf []byte, sp span) {
	row := make([]uint32, 0, sp.choose) // the numbers that the run has so far, sorted
	for ; len(buf) >= 4; buf = buf[4:] {
		v := binary.LittleEndian.Uint32(buf) % uint32(sp.of-len(row)) // the v-th of those that are left
		at := 0
		for ; at < len(row) && row[at] <= v; at++ {
			v++
		}
		binary.LittleEndian.PutUint32(buf, v)
		if row = slices.Insert(row, at, v); len(row) == sp.choose {
			row = row[:0]
		}
	}
}

// shapeBlocks makes blocks of an F16 scale d followed by codes: Q8_0, Q4_0, Q2_0 and Q1_0. With the
// scale unit, the codes have the wanted standard deviation.
func (s *sampler) shapeBlocks(buf []byte, blockBytes int, codes *[256]byte, unit float64) {
	var scales [16]uint16
	for i, j := range s.jitter {
		scales[i] = half.Round(float32(unit * j))
	}
	for ; len(buf) >= blockBytes; buf = buf[blockBytes:] {
		binary.LittleEndian.PutUint16(buf, scales[buf[0]&15])
		qs := buf[2:blockBytes]
		for i, r := range qs {
			qs[i] = codes[r]
		}
	}
}

// shapeTrits makes blocks of codes of trits followed by an F16 scale: TQ1_0 and TQ2_0. The last
// four bytes of codes are of another kind. The scale is the same everywhere, as in models that were
// trained with ternary weights.
func shapeTrits(buf []byte, blockBytes int, codes, last *[256]byte, scale float64) {
	for ; len(buf) >= blockBytes; buf = buf[blockBytes:] {
		end := blockBytes - 2
		for i, r := range buf[:end] {
			if i < end-4 {
				buf[i] = codes[r]
			} else {
				buf[i] = last[r]
			}
		}
		binary.LittleEndian.PutUint16(buf[end:], half.Round(float32(scale)))
	}
}

// shapeQ4K makes blocks of 256 elements: F16 d, F16 dmin, 12 bytes with 8 scales and 8 minima of 6
// bits, 128 bytes of codes.
func (s *sampler) shapeQ4K(buf []byte, sp span) {
	var sum float64
	for r := range subScaleMask + 1 {
		sum += float64((subScaleMin + r) * (subScaleMin + r))
	}
	meanScale := math.Sqrt(sum / (subScaleMask + 1))
	// d is rounded to a multiple of 16 units in the last place, so that 7.5*d is an F16, too, and the mean exactly 0.
	d := (half.Round(float32(float64(sp.std)/(s.q4kStd*meanScale))) + 8) &^ 0xf
	dmin := half.Round(7.5 * half.Float32(d))

	const blockBytes = 144
	for ; len(buf) >= blockBytes; buf = buf[blockBytes:] {
		binary.LittleEndian.PutUint16(buf, d)
		binary.LittleEndian.PutUint16(buf[2:], dmin)
		packed := buf[4:16]
		var sc [8]byte // of each sub-block of 32 elements; its minimum is the same number
		for i := range sc {
			sc[i] = subScaleMin + packed[i]&subScaleMask
		}
		for i := range 4 {
			packed[i] = sc[i] | sc[i+4]>>4<<6
			packed[i+4] = packed[i]
			packed[i+8] = sc[i+4]&15 | sc[i+4]<<4
		}
		qs := buf[16:blockBytes]
		for i, r := range qs {
			qs[i] = s.q4k[r]
		}
	}
}

// appendRow appends given values in type t, F32, F16 or Q8_0. With Q8_0 their number is a multiple of the
// block's.
func appendRow(b []byte, t gguf.Type, row []float32) ([]byte, error) {
	switch t {
	case gguf.F32:
		for _, v := range row {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	case gguf.F16:
		for _, v := range row {
			b = binary.LittleEndian.AppendUint16(b, half.Round(v))
		}
	case gguf.Q8_0:
		for block := range slices.Chunk(row, int(t.BlockElems())) {
			most := float32(0)
			for _, v := range block {
				most = max(most, v, -v)
			}
			unit := cmp.Or(float64(most)/127, 1)
			b = binary.LittleEndian.AppendUint16(b, half.Round(most/127))
			for _, v := range block {
				b = append(b, byte(int8(math.RoundToEven(float64(v)/unit))))
			}
		}
	default:
		return nil, fmt.Errorf("no way to encode values in type %v", t)
	}
	return b, nil
}
