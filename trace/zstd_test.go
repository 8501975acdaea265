package trace

// This file tests how pages of Parquet files are compressed.

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow/go/v17/parquet/compress"
)

// TestPageCodec checks that a page has the bytes that Arrow's own codec gives it.
func TestPageCodec(t *testing.T) {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		t.Fatal(err)
	}
	ours, ok := codec.(pageCodec)
	if !ok {
		t.Fatalf("Parquet's pages are compressed by %T", codec)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{0, 1, 100, 1 << 10, 1 << 16, 1 << 20, 3 << 20} {
		page := make([]byte, size)
		for i := range page {
			page[i] = byte(random.IntN(1 + i%7))
		}
		for _, level := range []int{compress.DefaultCompressionLevel, 9} {
			got, want := ours.EncodeLevel(nil, page, level), ours.Codec.EncodeLevel(nil, page, level)
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes at level %d become %d bytes, of Arrow's own codec %d", size, level, len(got), len(want))
			}
			if back := ours.Decode(make([]byte, size), got); !bytes.Equal(back, page) {
				t.Errorf("%d bytes at level %d are not what they were", size, level)
			}
		}
	}
}
