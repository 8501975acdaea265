package gguf

// This file holds the cache of dequantised tensors. Its memory is bounded: it evicts the entry that
// was released longest ago, and reuses that entry's buffer.

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
)

// ErrCacheFull says that a tensor's values do not fit into the cache together with those that have
// not been released.
var ErrCacheFull = errors.New("the cache of dequantised tensors is full")

const floatBytes = 4

// extent is a range of a model's file.
type extent struct {
	file      int
	off, size int64
}

// floatCache holds dequantised extents. Each buffer belongs either to one entry in entries or to free.
type floatCache struct {
	limit int64 // bytes

	mu      sync.Mutex
	used    int64 // bytes of all buffers, never above limit
	entries map[extent]*floatEntry
	idle    list.List // of *floatEntry without users, the most recently released first
	free    [][]float32
}

// floatEntry is a dequantised extent. Its values do not change once ready is closed.
type floatEntry struct {
	extent extent
	values []float32
	err    error
	ready  chan struct{} // closed once values or err is set
	users  int
	idle   *list.Element // nil while there are users
}

func newFloatCache(limit int64) *floatCache {
	return &floatCache{limit: limit, entries: map[extent]*floatEntry{}}
}

// acquire returns the entry of x. Unless there is an error, the caller releases it. If there is no
// entry, fill computes its n values, and other callers that ask for the same extent wait for the
// result.
func (c *floatCache) acquire(x extent, n int64, fill func([]float32) error) (*floatEntry, error) {
	c.mu.Lock()
	if e := c.entries[x]; e != nil {
		e.users++
		if e.idle != nil {
			c.idle.Remove(e.idle)
			e.idle = nil
		}
		c.mu.Unlock()
		<-e.ready
		return e, e.err // a failed entry is no longer in the table
	}
	values, err := c.takeBuffer(n)
	if err != nil {
		c.mu.Unlock()
		return nil, err
	}
	e := &floatEntry{extent: x, values: values, ready: make(chan struct{}), users: 1}
	c.entries[x] = e
	c.mu.Unlock()

	// fill is the caller's code: if it panics, those who wait must be released.
	done := false
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !done {
			e.err = errors.New("dequantising failed")
		}
		if e.err != nil {
			delete(c.entries, x)
			c.free = append(c.free, e.values)
			e.values = nil
		}
		close(e.ready)
	}()
	e.err = fill(values)
	done = true
	return e, e.err
}

// takeBuffer returns a buffer of n values: a free one of about that size, else a new one, for which
// idle entries are evicted.
func (c *floatCache) takeBuffer(n int64) ([]float32, error) {
	// n comes from the file and may be huge: multiplying it could overflow.
	if n > c.limit/floatBytes {
		return nil, fmt.Errorf("%w: %d values of %d bytes need more than all %d bytes", ErrCacheFull, n, floatBytes,
			c.limit)
	}
	for {
		if b := c.reuseBuffer(int(n)); b != nil {
			return b, nil
		}
		if c.used+n*floatBytes <= c.limit {
			c.used += n * floatBytes
			return make([]float32, n), nil
		}
		if last := len(c.free) - 1; last >= 0 {
			c.dropBuffer(c.free[last])
			c.free = c.free[:last]
			continue
		}
		oldest := c.idle.Back()
		if oldest == nil {
			return nil, fmt.Errorf("%w: %d values need %d bytes, of %d bytes %d are held", ErrCacheFull, n,
				n*floatBytes, c.limit, c.used)
		}
		e := c.idle.Remove(oldest).(*floatEntry)
		delete(c.entries, e.extent)
		c.free = append(c.free, e.values)
	}
}

// reuseBuffer returns the smallest free buffer that fits; nil if even that would waste more than a
// quarter.
func (c *floatCache) reuseBuffer(n int) []float32 {
	best := -1
	for i, b := range c.free {
		if cap(b) >= n && cap(b) <= n+n/4 && (best < 0 || cap(b) < cap(c.free[best])) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	b := c.free[best][:n]
	last := len(c.free) - 1
	c.free[best] = c.free[last]
	c.free = c.free[:last]
	return b
}

// dropBuffer leaves a buffer to the garbage collector.
func (c *floatCache) dropBuffer(b []float32) { c.used -= int64(cap(b)) * floatBytes }

// release ends a use of an entry. Without users, the entry stays until its buffer is needed.
func (c *floatCache) release(e *floatEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.users--; e.users == 0 {
		e.idle = c.idle.PushFront(e)
	}
}
