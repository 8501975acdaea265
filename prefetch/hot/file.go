package hot

// This file is the format in which scores are kept. All numbers are in little-endian order:
//
//	magic      8 bytes, "tcasthot"
//	version    uint32
//	identity   32 bytes, see Identify
//	layers     uint32
//	per layer  number in the model, uint32; experts, uint32; a score for each expert, uint16, in 65535ths
//	checksum   uint32, CRC-32C of all that comes before
//
// Layers are in the order of their numbers.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"

	"tensorcast/prefetch/mixture"
)

const (
	magic   = "tcasthot"
	version = 1 // rises whenever the meaning of a value changes
	// maxFile bounds a file, in bytes. A model of 94 layers with 512 experts has 97 kB.
	maxFile = 1 << 20
	// maxLayers and maxExperts bound what a file may have, and with that what reading it takes.
	maxLayers  = 4096
	maxExperts = 4096
	headBytes  = len(magic) + 4 + identityBytes + 4
)

// ErrInvalid says that a file holds no scores, or is damaged, or is of another version of this program.
var ErrInvalid = errors.New("no scores of experts")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns the file of a model's scores. Scores that are not from 0 to 1 are cut. The error says that it would be
// too large.
func encode(id identity, scores mixture.Scores) ([]byte, error) {
	b := append([]byte(magic), binary.LittleEndian.AppendUint32(nil, version)...)
	b = append(b, id[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(scores)))
	for _, number := range slices.Sorted(maps.Keys(scores)) {
		layer := scores[number]
		b = binary.LittleEndian.AppendUint32(b, uint32(number))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(layer)))
		for _, p := range layer {
			b = binary.LittleEndian.AppendUint16(b, quantize(p))
		}
		if len(layer) > maxExperts || len(b) > maxFile-crc32.Size || len(scores) > maxLayers || number < 0 {
			return nil, errors.New("the model has too many experts for their scores to be kept")
		}
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// quantize returns a score in 65535ths. One that is not 0 stays so.
func quantize(p float32) uint16 {
	if !(p > 0) { // or not a number
		return 0
	}
	return uint16(max(math.Round(float64(min(p, 1))*math.MaxUint16), 1))
}

// decode returns the scores of a file. Errors wrap ErrInvalid.
func decode(b []byte) (id identity, scores mixture.Scores, err error) {
	fail := func(format string, args ...any) (identity, mixture.Scores, error) {
		return identity{}, nil, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
	}
	if len(b) < headBytes+crc32.Size || len(b) > maxFile || !bytes.HasPrefix(b, []byte(magic)) {
		return fail("it is cut off, too long, or begins with something else")
	}
	b, sum := b[:len(b)-crc32.Size], binary.LittleEndian.Uint32(b[len(b)-crc32.Size:])
	if v := binary.LittleEndian.Uint32(b[len(magic):]); v != version {
		return fail("it is of version %d, this program reads %d", v, version)
	}
	if crc32.Checksum(b, castagnoli) != sum {
		return fail("its checksum is wrong")
	}
	b = b[len(magic)+4:]
	b = b[copy(id[:], b):]
	layers := binary.LittleEndian.Uint32(b)
	if b = b[4:]; layers > maxLayers {
		return fail("it has %d layers", layers)
	}
	scores = mixture.Scores{}
	last := int64(-1)
	for range layers {
		if len(b) < 8 {
			return fail("it ends within a layer")
		}
		number, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		b = b[8:]
		if int64(number) <= last || number > math.MaxInt32 || n == 0 || n > maxExperts || len(b) < 2*int(n) {
			return fail("layer %d with %d experts is not possible", number, n)
		}
		last = int64(number)
		layer := make([]float32, n)
		for i := range layer {
			layer[i] = float32(binary.LittleEndian.Uint16(b[2*i:])) / math.MaxUint16
		}
		scores[int32(number)] = layer
		b = b[2*n:]
	}
	if len(b) > 0 {
		return fail("something follows its layers")
	}
	return id, scores, nil
}
