package gguf

// This file tests what the cache of dequantised tensors counts.

import (
	"errors"
	"testing"
)

// acquire returns an entry of n values, and how the cache refused it.
func acquire(c *floatCache, off, n int64, failure error) (*floatEntry, error) {
	return c.acquire(extent{off: off, size: n}, n, func([]float32) error { return failure })
}

// A tensor that cannot be dequantised leaves its room to the next one.
func TestCacheAfterFailure(t *testing.T) {
	c := newFloatCache(100 * floatBytes)
	broken := errors.New("broken")
	if _, err := acquire(c, 0, 100, broken); !errors.Is(err, broken) {
		t.Fatalf("%v; want the error of the caller", err)
	}
	if _, err := acquire(c, 1, 100, nil); err != nil {
		t.Errorf("%v; want the room of the one that failed", err)
	}
}

// A buffer that was reused for fewer values gives all of its room back.
func TestCacheOfReusedBuffer(t *testing.T) {
	c := newFloatCache(100 * floatBytes)
	for n := int64(100); n >= 90; n -= 10 { // the second one takes the buffer of the first
		e, err := acquire(c, n, n, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.release(e)
	}
	if c.used != 100*floatBytes {
		t.Fatalf("%d bytes are used, want those of one buffer", c.used)
	}
	for n := int64(40); n <= 60; n += 20 { // both are held, and fill the cache
		if _, err := acquire(c, n, n, nil); err != nil {
			t.Errorf("%d values: %v; want that both have room", n, err)
		}
	}
}
