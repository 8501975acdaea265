package gguf

// This file holds the table of tensor types that forks of ggml read and its main line does not. Who
// runs the largest models runs these forks.
//
// The layouts were read in August 2026 from
//
//   - ik_llama.cpp: type_traits in ggml/src/ggml.c (with row_meta_size, the bytes of a row before its
//     blocks), the blocks in ggml/src/ggml-common.h, commit 8337e4cd. IQ1_TN and IQ2_TN were removed
//     there in October 2024 and were read from the commit before.
//   - BitNet: ggml_nbytes in ggml/src/ggml.c of the llama.cpp that microsoft/BitNet has as a
//     submodule (Eddie-Wang1120/llama.cpp, branch merge-dev).
//   - PrismML: ggml/include/ggml.h and ggml/src/ggml-common.h of PrismML-Eng/llama.cpp.
//   - llama.cpp of 2024: the types that repacked weights in the file. Its ggml.h still lists their
//     numbers as removed. They have the bytes of Q4_0 and IQ4_NL in another order.

import (
	"errors"
	"iter"
	"math"
	"math/bits"
)

// MaxNumber bounds the numbers that files store for types. The largest in use is 399.
const MaxNumber = 1<<variantShift - 1

// Types that share their number with another one have the index of the variant above the number.
const (
	variantShift = 16
	variant1     = 1 << variantShift

	// opaque is the variant of a number whose known types do not fit what a file has.
	opaque = math.MaxUint16 << variantShift
)

// Types of forks that are named in code. Q2_0G128 is how PrismML published Q2_0 at first, with its
// own number 42, before ggml's main line gave that to groups of 64.
const (
	Q2_0G128 = Q2_0 | variant1

	i2s     Type = 36
	iq4nl44      = i2s | variant1
	i8s     Type = 37
	iq4nl48      = i8s | variant1
	tl1     Type = 38
	iq4nl88      = tl1 | variant1
	tl2          = MXFP4 | variant1
	pq2_0   Type = 142
	iq2tn        = pq2_0 | variant1
	ptq1_0  Type = 143
	iq1tn        = ptq1_0 | variant1
)

const (
	inIK     = "ik_llama.cpp"
	inBitNet = "BitNet"
	inPrism  = "PrismML's llama.cpp"
	in2024   = "llama.cpp of 2024"
)

// forkTypes has what ggml's main line does not read. Types ending in R4 to R16 interleave the blocks
// of so many rows: a row has as many bytes as without that.
var forkTypes = map[Type]typeInfo{
	31: {blocks: blocks{"Q4_0_4_4", 32, 18}, fork: in2024},
	32: {blocks: blocks{"Q4_0_4_8", 32, 18}, fork: in2024},
	33: {blocks: blocks{"Q4_0_8_8", 32, 18}, fork: in2024},

	i2s:     {blocks: blocks{name: "I2_S"}, whole: quartersBytes, fork: inBitNet},
	iq4nl44: {blocks: blocks{"IQ4_NL_4_4", 32, 18}, fork: in2024},
	i8s:     {blocks: blocks{"I8_S", 1, 1}, fork: inBitNet},
	iq4nl48: {blocks: blocks{"IQ4_NL_4_8", 32, 18}, fork: in2024},
	tl1:     {blocks: blocks{name: "TL1"}, whole: quartersBytes, fork: inBitNet},
	iq4nl88: {blocks: blocks{"IQ4_NL_8_8", 32, 18}, fork: in2024},
	tl2:     {blocks: blocks{name: "TL2"}, whole: tl2Bytes, fork: inBitNet},

	// block_pq2_0: half d, 32 bytes of codes. block_ptq1_0: 24 bytes with five trits each, 2 with
	// four, half d.
	Q2_0G128: {blocks: blocks{"Q2_0_G128", 128, 34}, fork: inPrism},
	pq2_0:    {blocks: blocks{"PQ2_0", 128, 34}, fork: inPrism},
	ptq1_0:   {blocks: blocks{"PTQ1_0", 128, 28}, fork: inPrism},
	iq2tn:    {blocks: blocks{"IQ2_TN", 256, 64}, head: 4, fork: inIK},
	iq1tn:    {blocks: blocks{"IQ1_TN", 256, 52}, head: 2, fork: inIK},

	133: {blocks: blocks{"Q6_0", 32, 26}, fork: inIK},
	134: {blocks: blocks{"IQ1_BN", 64, 13}, head: 2, fork: inIK},
	135: {blocks: blocks{"IQ2_BN", 64, 16}, head: 4, fork: inIK},
	137: {blocks: blocks{"IQ2_K", 256, 76}, fork: inIK},
	138: {blocks: blocks{"IQ3_K", 256, 110}, fork: inIK},
	139: {blocks: blocks{"IQ4_K", 256, 144}, fork: inIK},
	140: {blocks: blocks{"IQ5_K", 256, 176}, fork: inIK},
	141: {blocks: blocks{"IQ6_K", 256, 212}, fork: inIK},
	144: {blocks: blocks{"IQ4_KS", 256, 136}, head: 4, fork: inIK},
	145: {blocks: blocks{"IQ2_KS", 256, 70}, head: 2, fork: inIK},
	146: {blocks: blocks{"IQ4_KSS", 256, 128}, head: 4, fork: inIK},
	151: {blocks: blocks{"Q8_KV", 32, 32}, head: 8, fork: inIK},
	152: {blocks: blocks{"IQ5_KS", 256, 168}, head: 4, fork: inIK},
	153: {blocks: blocks{"IQ2_KT", 256, 68}, head: 4, fork: inIK},
	154: {blocks: blocks{"IQ3_KT", 256, 100}, head: 4, fork: inIK},
	155: {blocks: blocks{"IQ4_KT", 256, 128}, head: 4, fork: inIK},
	156: {blocks: blocks{"IQ3_KS", 256, 102}, head: 2, fork: inIK},
	157: {blocks: blocks{"IQ2_KL", 256, 86}, head: 2, fork: inIK},
	158: {blocks: blocks{"IQ1_KT", 256, 56}, head: 4, fork: inIK},

	202: {blocks: blocks{"Q4_0_R8", 32, 18}, fork: inIK},
	206: {blocks: blocks{"Q5_0_R4", 32, 22}, fork: inIK},
	208: {blocks: blocks{"Q8_0_R8", 32, 34}, fork: inIK},
	210: {blocks: blocks{"Q2_K_R4", 256, 84}, fork: inIK},
	211: {blocks: blocks{"Q3_K_R4", 256, 110}, fork: inIK},
	212: {blocks: blocks{"Q4_K_R4", 256, 144}, fork: inIK},
	213: {blocks: blocks{"Q5_K_R4", 256, 176}, fork: inIK},
	214: {blocks: blocks{"Q6_K_R4", 256, 210}, fork: inIK},
	216: {blocks: blocks{"IQ2_XXS_R4", 256, 66}, fork: inIK},
	217: {blocks: blocks{"IQ2_XS_R4", 256, 74}, fork: inIK},
	218: {blocks: blocks{"IQ3_XXS_R4", 256, 98}, fork: inIK},
	219: {blocks: blocks{"IQ1_S_R4", 32, 6}, head: 2, fork: inIK},
	220: {blocks: blocks{"IQ4_NL_R4", 32, 18}, fork: inIK},
	221: {blocks: blocks{"IQ3_S_R4", 256, 110}, fork: inIK},
	222: {blocks: blocks{"IQ2_S_R4", 256, 82}, fork: inIK},
	223: {blocks: blocks{"IQ4_XS_R8", 256, 136}, fork: inIK},
	229: {blocks: blocks{"IQ1_M_R4", 32, 7}, head: 2, fork: inIK},
	230: {blocks: blocks{"BF16_R16", 1, 2}, fork: inIK},
	233: {blocks: blocks{"Q6_0_R4", 32, 26}, fork: inIK},
	335: {blocks: blocks{"IQ2_BN_R4", 64, 16}, head: 4, fork: inIK},
	337: {blocks: blocks{"IQ2_K_R4", 256, 76}, fork: inIK},
	338: {blocks: blocks{"IQ3_K_R4", 256, 110}, fork: inIK},
	339: {blocks: blocks{"IQ4_K_R4", 256, 144}, fork: inIK},
	340: {blocks: blocks{"IQ5_K_R4", 256, 176}, fork: inIK},
	344: {blocks: blocks{"IQ4_KS_R4", 256, 136}, head: 4, fork: inIK},
	352: {blocks: blocks{"IQ5_KS_R4", 256, 168}, head: 4, fork: inIK},
	353: {blocks: blocks{"MXFP4_R8", 32, 17}, fork: inIK},
	397: {blocks: blocks{"Q8_K_R16", 256, 258}, fork: inIK},
	398: {blocks: blocks{"Q8_KV_R8", 32, 32}, head: 4, fork: inIK},
	399: {blocks: blocks{"Q8_K_R8", 256, 258}, fork: inIK},
}

// sharesNumber reports whether several known types have the number of t.
func sharesNumber(t Type) bool {
	_, ok := forkTypes[Type(t.Number())|variant1]
	return ok
}

// typesWithNumber are the known types that have a number, that of ggml's main line first.
func typesWithNumber(number uint32) iter.Seq[Type] {
	return func(yield func(Type) bool) {
		for t := Type(number); t.Known() && yield(t); t += variant1 {
		}
	}
}

// ReportedType is the type that a running ggml means by a number, when the first stride of a tensor
// of it (nb[0], the bytes of a block) is given. It tells apart the types that share a number.
func ReportedType(number uint32, blockBytes int64) Type {
	if number > MaxNumber {
		return Type(number)
	}
	for t := range typesWithNumber(number) {
		if t.BlockBytes() == blockBytes {
			return t
		}
	}
	return Type(number)
}

// quartersBytes is the size of I2_S and TL1: two bits per element, then 32 bytes with one scale.
func quartersBytes(shape []int64) (int64, error) {
	n, err := elements(shape)
	if err != nil {
		return 0, err
	}
	return n/4 + 32, nil
}

var errTL2 = errors.New("it has a shape that TL2 cannot have")

// tl2Bytes is the size of TL2: three elements in five bits, but for the last 256 of a row, of which
// two have four bits. That is padded to 32 bytes, and 32 with one scale follow.
func tl2Bytes(shape []int64) (int64, error) {
	const tail = 256
	n, err := elements(shape)
	switch {
	case err != nil:
		return 0, err
	case shape[0] < tail || len(shape) < 2 || n != shape[0]*shape[1]:
		return 0, errTL2
	}
	hi, most := bits.Mul64(uint64(shape[0]-tail), uint64(shape[1]))
	if hi != 0 || most > math.MaxInt64/5 {
		return 0, errLarge
	}
	bytes := int64(most)/3*5/8 + tail*shape[1]/2*4/8
	return (bytes+31)/32*32 + 32, nil
}

// elements is the number of elements of a shape. It is an error if that does not fit 63 bits.
func elements(shape []int64) (int64, error) {
	all := int64(1)
	for _, n := range shape {
		hi, lo := bits.Mul64(uint64(all), uint64(n))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, errLarge
		}
		all = int64(lo)
	}
	return all, nil
}
