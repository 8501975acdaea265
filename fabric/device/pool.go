package device

// This file divides the device's memory, one large region, among planes.

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrNoRoom says that no free extent of the pool is large enough.
var ErrNoRoom = errors.New("no room in the pool")

// Pool divides one region of memory. Pieces begin at multiples of 4 KiB. A request takes the smallest free
// extent that it fits in, and the first of equals. Free neighbours are joined at once, so an empty pool is one
// extent again. It is for one goroutine at a time.
type Pool struct {
	memory []byte
	free   []span      // free extents by offset; no two touch
	taken  map[int]int // length of each piece, by offset
	used   int         // bytes that are taken
}

type span struct{ off, n int }

// NewPool reserves bytes, rounded up to 4 KiB. Memory is taken from the system as it is used, in pages of 2 MiB
// where these are allowed.
func NewPool(bytes int) (*Pool, error) {
	if bytes <= 0 || bytes > 1<<46 {
		return nil, fmt.Errorf("a pool of %d bytes", bytes)
	}
	bytes = roundUp(bytes, pageBytes)
	memory, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve a pool of %d bytes: %w", bytes, err)
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // a kernel without large pages gives small ones
	return &Pool{memory: memory, free: []span{{0, bytes}}, taken: map[int]int{}}, nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// Close gives the region back. Nothing of it may be used afterwards.
func (p *Pool) Close() error {
	if err := unix.Munmap(p.memory); err != nil {
		return fmt.Errorf("give the pool back: %w", err)
	}
	return nil
}

// Total is the size in bytes.
func (p *Pool) Total() int { return len(p.memory) }

// Used is in bytes.
func (p *Pool) Used() int { return p.used }

// Extents is the number of free extents.
func (p *Pool) Extents() int { return len(p.free) }

// Largest is the size of the largest free extent in bytes.
func (p *Pool) Largest() int {
	n := 0
	for _, e := range p.free {
		n = max(n, e.n)
	}
	return n
}

// Take returns n bytes, of any content. The error is ErrNoRoom.
func (p *Pool) Take(n int) ([]byte, error) {
	off, ok := p.take(n)
	if !ok {
		return nil, ErrNoRoom
	}
	return p.memory[off : off+n : off+n], nil
}

// take finds and takes an extent of n bytes, rounded up to pages.
func (p *Pool) take(n int) (off int, ok bool) {
	if n <= 0 || n > len(p.memory) {
		return 0, false
	}
	n = roundUp(n, pageBytes)
	best := -1
	for i, e := range p.free {
		if e.n >= n && (best < 0 || e.n < p.free[best].n) {
			best = i
		}
	}
	if best < 0 {
		return 0, false
	}
	e := &p.free[best]
	off = e.off
	e.off, e.n = e.off+n, e.n-n
	if e.n == 0 {
		p.free = slices.Delete(p.free, best, best+1)
	}
	p.taken[off] = n
	p.used += n
	return off, true
}

// Give takes back a piece, which must not be used any more. Its pages go back to the system.
func (p *Pool) Give(b []byte) error {
	off := p.offset(b)
	n, ok := p.taken[off]
	if !ok {
		return fmt.Errorf("%d bytes given back to the pool are none of its pieces", len(b))
	}
	p.release(off, n)
	p.give(off, n)
	return nil
}

const hugeBytes = 2 << 20 // size of a large page

// release gives pages back to the system. If that fails, it only costs memory. Of a large page of which a part
// is still used, the kernel would keep all until memory is short, unless the page is split first: MADV_COLD
// does that.
func (p *Pool) release(off, n int) {
	end := off + n
	// The region need not begin at a large page.
	skew := int(address(p.memory) % hugeBytes)
	first, last := roundUp(off+skew, hugeBytes)-skew, (end+skew)/hugeBytes*hugeBytes-skew
	if first > off {
		_ = unix.Madvise(p.memory[off:min(first, end)], unix.MADV_COLD)
	}
	if last < end && last >= first {
		_ = unix.Madvise(p.memory[last:end], unix.MADV_COLD)
	}
	_ = unix.Madvise(p.memory[off:end], unix.MADV_DONTNEED)
}

// give puts an extent back among the free ones.
func (p *Pool) give(off, n int) {
	delete(p.taken, off)
	p.used -= n
	i, _ := slices.BinarySearchFunc(p.free, off, func(e span, off int) int { return e.off - off })
	p.free = slices.Insert(p.free, i, span{off, n})
	if i+1 < len(p.free) && off+n == p.free[i+1].off {
		p.free[i].n += p.free[i+1].n
		p.free = slices.Delete(p.free, i+1, i+2)
	}
	if i > 0 && p.free[i-1].off+p.free[i-1].n == off {
		p.free[i-1].n += p.free[i].n
		p.free = slices.Delete(p.free, i, i+1)
	}
}

// Shrink takes back all but the first n bytes of b, a piece, and returns these.
func (p *Pool) Shrink(b []byte, n int) ([]byte, error) {
	off := p.offset(b)
	had, ok := p.taken[off]
	if !ok || n <= 0 || n > len(b) {
		return b, fmt.Errorf("%d bytes of the pool, cut to %d, are none of its pieces", len(b), n)
	}
	if keep := roundUp(n, pageBytes); keep < had {
		p.release(off+keep, had-keep)
		p.taken[off] = keep
		p.give(off+keep, had-keep)
	}
	return b[:n:n], nil
}

// offset is where b begins in the region; -1 if it is not in it.
func (p *Pool) offset(b []byte) int {
	if len(b) == 0 {
		return -1
	}
	d := int(address(b) - address(p.memory))
	if d < 0 || d >= len(p.memory) {
		return -1
	}
	return d
}
