package host

// This file tests how cores are counted.

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// CPUs that share a core count once, and where it is not said which do, each counts.
func TestCores(t *testing.T) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if got := countCores(filepath.Join(dir, "none%d")); got != may.Count() {
		t.Errorf("%d cores, want the %d CPUs", got, may.Count())
	}
	for cpu := range len(may) * 64 {
		path := filepath.Join(dir, fmt.Sprintf("cpu%d", cpu))
		if err := os.WriteFile(path, []byte("0-1023\n"), 0o600); may.IsSet(cpu) && err != nil {
			t.Fatal(err)
		}
	}
	if got := countCores(filepath.Join(dir, "cpu%d")); got != 1 {
		t.Errorf("%d cores, want 1", got)
	}
}
