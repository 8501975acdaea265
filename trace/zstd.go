package trace

// This file compresses the pages of Parquet files.

import (
	"fmt"
	"sync"

	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/klauspost/compress/zstd"
)

func init() { compress.RegisterCodec(compress.Codecs.Zstd, newPageCodec()) }

// pageCodec writes the bytes of Arrow's own codec for Zstandard (v17). That one makes an encoder for each page, of
// several megabytes for each processor, which costs more than the compression does. This one uses encoders again. It
// may be used by several goroutines.
type pageCodec struct {
	compress.Codec // Arrow's own
	encoders       *sync.Pool
}

func newPageCodec() pageCodec {
	own, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		panic(fmt.Sprintf("Arrow has no codec for Zstandard: %v", err))
	}
	return pageCodec{own, &sync.Pool{New: func() any {
		encoder, err := zstd.NewWriter(nil, zstd.WithZeroFrames(true), zstd.WithEncoderConcurrency(1))
		if err != nil {
			panic(fmt.Sprintf("options of the encoder: %v", err))
		}
		return encoder
	}}}
}

// EncodeLevel compresses src into dst, if that is large enough.
func (c pageCodec) EncodeLevel(dst, src []byte, level int) []byte {
	if level != compress.DefaultCompressionLevel {
		return c.Codec.EncodeLevel(dst, src, level)
	}
	encoder := c.encoders.Get().(*zstd.Encoder)
	defer c.encoders.Put(encoder)
	return encoder.EncodeAll(src, dst[:0])
}
