package costs

// This file tests what is measured for a moment: that it comes from the disk, and that nothing stays in memory.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/pagecache"
)

// What faults read is measured, and dropped again. What is in memory cannot be measured.
func TestTouchRate(t *testing.T) {
	f := newCostFile(t, 48*mib)
	at := locate(t, f.Name())
	rate, err := TouchRate(t.Context(), at, 2)
	if err != nil || rate < 1e6 || rate > 1e11 {
		t.Fatalf("%g bytes per second, %v", rate, err)
	}
	if n, err := pagecache.Resident(f.File, 0, f.size); err != nil || n != 0 {
		t.Errorf("%d bytes stay in memory, %v", n, err)
	}
	f.readIn(0, f.size)
	if rate, err := TouchRate(t.Context(), at, 2); err == nil || !strings.Contains(err.Error(), "in memory") {
		t.Errorf("all in memory: %g, %v", rate, err)
	}
	f2 := newCostFile(t, 48*mib)
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := TouchRate(ended, locate(t, f2.Name()), 2); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was cancelled", err)
	}
}

// Slices are gathered past the page cache. More of them do not come sooner.
func TestGatherTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, make([]byte, 32*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	at := locate(t, path)
	one, err := GatherTime(t.Context(), at, mib/2, 1)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("no O_DIRECT here")
	}
	many, err2 := GatherTime(t.Context(), at, mib/2, 32)
	if err != nil || err2 != nil || one <= 0 || many < one {
		t.Errorf("one: %v, %v; many: %v, %v", one, err, many, err2)
	}
	for name, tc := range map[string]struct {
		slice int64
		count int
	}{"more than the file": {33 * mib, 1}, "more than at once": {mib, MaxGather/mib + 1}} {
		if _, err := GatherTime(t.Context(), at, tc.slice, tc.count); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Costs are measured in fewer rounds.
func TestMeasureBriefly(t *testing.T) {
	f := newCostFile(t, 48*mib)
	c, err := MeasureBriefly(t.Context(), locate(t, f.Name()))
	if err != nil || len(c.Ways) == 0 || c.Ways[0].Rounds > briefRounds || c.Ways[0].Sum() <= 0 {
		t.Errorf("%+v, %v", c, err)
	}
}
