package host

// This file tests the measurement of memory.

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Memory is read at a rate that machines have. Where there is no room for it, the caches are not measured instead.
func TestMemoryRate(t *testing.T) {
	rate, err := MemoryRate(64 << 20)
	if err != nil || rate < 1e8 || rate > 1e13 {
		t.Errorf("%g bytes per second, %v; want 1e8 to 1e13", rate, err)
	}
	for _, room := range []int64{memoryLeast - 1, 0, -1} {
		if rate, err := MemoryRate(room); err == nil || rate != 0 {
			t.Errorf("with room for %d bytes: %g, want an error", room, rate)
		}
	}
}

// The last cache is the largest. A size that is no number is left out.
func TestLastCache(t *testing.T) {
	sys := t.TempDir()
	if got := lastCache(sys); got != 0 {
		t.Errorf("without caches %d, want 0", got)
	}
	for index, text := range []string{"32K\n", "32K\n", "1024K\n", "32768K\n", "much\n"} {
		dir := filepath.Join(sys, fmt.Sprintf("devices/system/cpu/cpu0/cache/index%d", index))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "size"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := lastCache(sys); got != 32<<20 {
		t.Errorf("%d bytes, want %d", got, 32<<20)
	}
}
