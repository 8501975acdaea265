package host

// This file measures how fast the processors read memory together.

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"tensorcast/internal/pagecache"
	"tensorcast/internal/vec"
)

// How memory is measured.
const (
	memoryTime   = 100 * time.Millisecond // at least
	memoryPasses = 3                      // at least
	memoryLeast  = 16 << 20               // bytes; fewer lie in the caches of many processors
	memoryMost   = 512 << 20              // bytes
	memoryUsual  = 64 << 20               // bytes, where caches are small or their sizes are not known
)

// MemoryRate measures how many bytes per second this process's processors read from memory together. It is the most
// of several passes over memory that is four times as large as the last cache, but not larger than room (bytes),
// which is what this process may take. It takes some tenths of a second of all processors. It is an error if room
// is so little that caches would be measured instead.
func MemoryRate(room int64) (perSecond float64, err error) {
	size := min(max(memoryUsual, 4*lastCache("/sys")), memoryMost, room)
	if size < memoryLeast {
		return 0, fmt.Errorf("measure memory: there is room for %d bytes, want %d or more", max(size, 0), int64(memoryLeast))
	}
	buffer, free, err := pagecache.DirectBuffer(int(size))
	if err != nil {
		return 0, fmt.Errorf("measure memory: %w", err)
	}
	defer func() { err = errors.Join(err, free()) }()
	clear(buffer) // other values may be denormal numbers, which are slow to multiply
	floats := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(buffer))), len(buffer)/4)
	workers := runtime.GOMAXPROCS(0)
	share := len(floats) / workers
	begun := time.Now()
	for pass := 0; pass < memoryPasses || time.Since(begun) < memoryTime; pass++ {
		var group errgroup.Group
		started := time.Now()
		for w := range workers {
			group.Go(func() error {
				mine := floats[w*share : (w+1)*share]
				half := len(mine) / 2
				if sum := vec.Dot(mine[:half], mine[half:2*half]); sum != 0 { // so that it is not left out
					return fmt.Errorf("measure memory: zeros have the sum %g", sum)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return 0, err
		}
		if took := time.Since(started).Seconds(); took > 0 {
			perSecond = max(perSecond, float64(len(buffer))/took)
		}
	}
	return perSecond, nil
}

// lastCache is the size in bytes of the largest cache of the first processor. It is 0 if the kernel does not tell.
func lastCache(sys string) (bytes int64) {
	for index := range 8 {
		text, err := os.ReadFile(fmt.Sprintf("%s/devices/system/cpu/cpu0/cache/index%d/size", sys, index))
		if err != nil {
			break
		}
		// drivers/base/cacheinfo.c writes all sizes in KiB, as in "32768K".
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(text)), "K"), 10, 32)
		if err == nil {
			bytes = max(bytes, kib<<10)
		}
	}
	return bytes
}
