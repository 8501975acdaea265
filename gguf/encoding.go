package gguf

// This file decodes numbers in the encodings of the format's versions.

import (
	"encoding/binary"
	"math"
)

// encoding is the byte order of a file's numbers and the width of its lengths and counts: 32 bits
// in version 1, 64 bits later. (In version 1, dimensions have 32 bits, too. In all versions offsets
// have 64 bits, types and the number of dimensions 32.)
type encoding struct {
	big         bool
	lengthBytes int64 // bytes of a length: 4 or 8
}

func (encoding) u8(b []byte) uint8      { return b[0] }
func (encoding) i8(b []byte) int8       { return int8(b[0]) }
func (encoding) bool(b []byte) bool     { return b[0] != 0 }
func (e encoding) i16(b []byte) int16   { return int16(e.u16(b)) }
func (e encoding) i32(b []byte) int32   { return int32(e.u32(b)) }
func (e encoding) i64(b []byte) int64   { return int64(e.u64(b)) }
func (e encoding) f32(b []byte) float32 { return math.Float32frombits(e.u32(b)) }
func (e encoding) f64(b []byte) float64 { return math.Float64frombits(e.u64(b)) }

func (e encoding) u16(b []byte) uint16 {
	if e.big {
		return binary.BigEndian.Uint16(b)
	}
	return binary.LittleEndian.Uint16(b)
}

func (e encoding) u32(b []byte) uint32 {
	if e.big {
		return binary.BigEndian.Uint32(b)
	}
	return binary.LittleEndian.Uint32(b)
}

func (e encoding) u64(b []byte) uint64 {
	if e.big {
		return binary.BigEndian.Uint64(b)
	}
	return binary.LittleEndian.Uint64(b)
}

// length decodes a length, a count or a dimension.
func (e encoding) length(b []byte) uint64 {
	if e.lengthBytes == 4 {
		return uint64(e.u32(b))
	}
	return e.u64(b)
}
