package device

// This file has the format that doc.go describes: offsets, operations, the descriptor of a job and its
// completion, and statuses.

import (
	"encoding/binary"
	"math"

	"golang.org/x/sys/unix"
)

// Magic begins every packet and memory file: "TFMBSDEV" in bytes of a little-endian number.
const (
	Magic   = 0x5645_4453_424d_4654
	Version = 1

	kindOpen   = 1
	kindStatus = 2
	kindRoom   = 3
	kindWish   = 4

	helloBytes = 32
	maxWishes  = 1 << 14 // most indices of tensors behind a hello
	pageBytes  = 4096

	// DescriptorBytes and CompletionBytes are the sizes of the rings' entries.
	DescriptorBytes = 128
	CompletionBytes = 64

	maxEntries = 4096
)

// The offsets of the words of the header that both sides use, and the values of the word asleep.
const (
	wordSubmitted = 64
	wordTaken     = 128
	wordCompleted = 192
	wordReaped    = 256
	wordDoorbell  = 320
	wordAsleep    = 384
	wordBell      = 448
	wordWaiting   = 512
	wordWanted    = 576
	wordHeld      = 640

	asleepForWork = 1
	asleepForRoom = 2
)

// Op says what a job does. The numbers are part of the format.
type Op uint32

// Operations.
const (
	OpEmpty   Op = iota // nothing
	OpFrame             // upload the frame of WBytes bytes at W: the completion's Value is its handle
	OpPlanes            // upload Planes planes of Rows x Cols trits at W: Value is a handle
	OpProduct           // Y = weights of Handle x X
	OpRelease           // the handle is not needed any more
	OpPin               // the planes stay in the pool
	OpUnpin
	// OpBlocks uploads Rows x Cols weights in WBytes bytes at W, rows of blocks of the ggml type XType as in a
	// GGUF file: Value is a handle. Cols is a multiple of 32.
	OpBlocks
	// OpFind finds weights that are held of a file: Value is a handle. X is the file's device number and
	// XStride its inode, as stat(2) has them. W, WBytes, XType, Rows and Cols are as of OpBlocks, but W is an
	// offset in the file. Scale is the FNV-1a hash (64 bits) of the first 32 bytes of each quarter of the
	// matrix.
	OpFind
	opEnd
)

// Flags of a descriptor.
const (
	FlagDegrade  = 1 << iota // a product may use fewer planes than the weights have, if others were evicted
	FlagTwoBit               // planes are kept with two bits a trit: larger, faster
	FlagScales               // Scale is given
	FlagFast                 // OpBlocks: planes may be fitted, within the bound of the profile fast
	FlagBalanced             // OpBlocks: the same for the profile balanced
	flagsEnd
)

// Types of vectors.
const (
	TypePT5     = 1 // x: trits, five in a byte
	TypeInt8    = 2 // x
	TypeFloat32 = 3 // x and y
	TypeInt32   = 4 // y
)

// Descriptor is a job. Offsets count from the start of the arena. What an operation does not use must be 0.
//
// Planes (OpPlanes) lie one after the other, lowest digit first. Each is a PT-5 stream of Rows*Cols trits in
// ceil(Rows*Cols/5) bytes: rows need not begin at a byte. With FlagScales, Scale has an IEEE half for each
// block of Block columns of each row.
type Descriptor struct {
	Op      Op     //   0
	Flags   uint32 //   4
	Tag     uint64 //   8 returned in the completion
	Handle  uint64 //  16
	W       uint64 //  24
	WBytes  uint64 //  32
	X       uint64 //  40
	XStride uint64 //  48 bytes from a vector to the next; with N of 1 it does not matter
	Y       uint64 //  56
	YStride uint64 //  64
	Scale   uint64 //  72 OpProduct, int8: float32 for each block, vector after vector
	Rows    uint32 //  80
	Cols    uint32 //  84
	N       uint32 //  88 vectors
	Planes  uint32 //  92
	XType   uint32 //  96
	YType   uint32 // 100
	Block   uint32 // 104
	Layer   uint32 // 108 OpPlanes, OpFrame: which layer of a model it belongs to, for statistics
	_       uint64 // 112
	// 120 u32 Cancel, which the client may set at any time; 124 u32 zero
}

const descriptorCancel = 120

// decode reads an entry, which must be a copy. It reports false if a reserved field is not 0, or the operation
// or a flag is not known.
func (d *Descriptor) decode(b *[DescriptorBytes]byte) bool {
	u32, u64 := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
	*d = Descriptor{
		Op: Op(u32(b[0:])), Flags: u32(b[4:]), Tag: u64(b[8:]), Handle: u64(b[16:]),
		W: u64(b[24:]), WBytes: u64(b[32:]), X: u64(b[40:]), XStride: u64(b[48:]),
		Y: u64(b[56:]), YStride: u64(b[64:]), Scale: u64(b[72:]),
		Rows: u32(b[80:]), Cols: u32(b[84:]), N: u32(b[88:]), Planes: u32(b[92:]),
		XType: u32(b[96:]), YType: u32(b[100:]), Block: u32(b[104:]), Layer: u32(b[108:]),
	}
	return u64(b[112:]) == 0 && u32(b[124:]) == 0 && d.Op < opEnd && d.Flags < flagsEnd
}

// Encode writes the entry, with Cancel 0.
func (d *Descriptor) Encode(b *[DescriptorBytes]byte) {
	p32, p64 := binary.NativeEndian.PutUint32, binary.NativeEndian.PutUint64
	clear(b[:])
	for i, v := range []uint32{uint32(d.Op), d.Flags} {
		p32(b[4*i:], v)
	}
	for i, v := range []uint64{d.Tag, d.Handle, d.W, d.WBytes, d.X, d.XStride, d.Y, d.YStride, d.Scale} {
		p64(b[8+8*i:], v)
	}
	for i, v := range []uint32{d.Rows, d.Cols, d.N, d.Planes, d.XType, d.YType, d.Block, d.Layer} {
		p32(b[80+4*i:], v)
	}
}

// Completion tells of a job that is over.
type Completion struct {
	Tag    uint64 //  0
	Status int32  //  8 0, or a negated errno
	Planes uint32 // 12 planes that a product used
	Value  uint64 // 16 a handle
	Nanos  uint64 // 24 how long it took
	Ops    uint64 // 32 products of a weight's trits and a value
	Zeros  uint64 // 40 those of them in which the trit is 0, so that there is nothing to add
	Lanes  uint32 // 48 columns that a processor handles at a time, times goroutines
	_      uint32 // 52
	Bytes  uint64 // 56 of weights that were read
}

// Encode writes the entry.
func (c *Completion) Encode(b *[CompletionBytes]byte) {
	p32, p64 := binary.NativeEndian.PutUint32, binary.NativeEndian.PutUint64
	clear(b[:])
	p64(b[0:], c.Tag)
	p32(b[8:], uint32(c.Status))
	p32(b[12:], c.Planes)
	p64(b[16:], c.Value)
	p64(b[24:], c.Nanos)
	p64(b[32:], c.Ops)
	p64(b[40:], c.Zeros)
	p32(b[48:], c.Lanes)
	p64(b[56:], c.Bytes)
}

// Decode reads the entry.
func (c *Completion) Decode(b *[CompletionBytes]byte) {
	u32, u64 := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
	*c = Completion{
		Tag: u64(b[0:]), Status: int32(u32(b[8:])), Planes: u32(b[12:]), Value: u64(b[16:]), Nanos: u64(b[24:]),
		Ops: u64(b[32:]), Zeros: u64(b[40:]),
		Lanes: u32(b[48:]), Bytes: u64(b[56:]),
	}
}

// Limits of a job. They bound what a client can make the device allocate.
const (
	maxDim     = 1 << 24
	maxTrits   = 1 << 34 // of a plane
	maxVectors = 1 << 12
	maxPlanes  = 6
	maxValues  = 1 << 26 // of all vectors of a job, x and y
	maxHandles = 1 << 16
)

// arenaBytes returns the bytes [off, off+n) of the arena, or nil if n is 0 or they are not all in it.
func arenaBytes(arena []byte, off, n uint64) []byte {
	if n == 0 || off > uint64(len(arena)) || n > uint64(len(arena))-off {
		return nil
	}
	return arena[off : off+n : off+n]
}

// arenaVectors returns the part of the arena from the first to the last of n vectors of size bytes, which begin
// stride bytes apart; nil if they are not all in it, or overlap.
func arenaVectors(arena []byte, off, n, size, stride uint64) []byte {
	if n == 0 {
		return nil
	}
	if n > 1 && (stride < size || stride > math.MaxInt64/n) {
		return nil
	}
	return arenaBytes(arena, off, (n-1)*stride+size)
}

// Statuses that jobs complete with.
const (
	statusInvalid   = -int32(unix.EINVAL)
	statusFault     = -int32(unix.EFAULT) // an offset or a length outside the arena
	statusNoHandle  = -int32(unix.EBADF)
	statusNoMemory  = -int32(unix.ENOMEM)
	statusRange     = -int32(unix.ERANGE)     // sums, or the error of fitted planes, are larger than allowed
	statusNoPlanes  = -int32(unix.EOPNOTSUPP) // weights of this type, or these weights, have no exact planes
	statusCancelled = -int32(unix.ECANCELED)
	statusNotHeld   = -int32(unix.ENOENT)
	statusLoading   = -int32(unix.EAGAIN)  // the weights are not held yet
	statusGone      = -int32(unix.ESTALE)  // the weights were held, and were let go
	statusBadFrame  = -int32(unix.EBADMSG) // the upload is malformed
)
