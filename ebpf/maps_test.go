package ebpf

// These tests check the sizes of the maps, and that small maps see the same as large ones.

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/experiments/synth"
	"tensorcast/internal/testenv"
)

// With small maps the same is seen as with large ones. That also holds where a graph has more nodes
// than are remembered, so that ids wrap around the table all the time.
func TestSmallMaps(t *testing.T) {
	testenv.NeedRoot(t)
	for name, cfg := range map[string]synth.Config{"dense": dense, "moe": moe} {
		in, o := llamaOptions(t, cfg)
		ops := func(opts Options) (lines []string) {
			events, _ := watch(t, opts, in.Command(t.Context(), o), nil)
			for _, op := range eventsOf[*event.Op](events) {
				lines = append(lines, fmt.Sprint(describeOp(op), op.IDs))
			}
			return lines
		}
		want := ops(Options{})
		for variant, opts := range map[string]Options{
			"small": {Small: true}, "tiny": {Small: true, templates: 8, Interval: 10 * time.Millisecond},
			"graphs": {Small: true, Detail: DetailGraph},
		} {
			got := ops(opts)
			if len(got) != len(want) || len(want) == 0 {
				t.Fatalf("%s, %s: %d ops, want %d", name, variant, len(got), len(want))
			}
			for i := range want {
				if opts.Detail != DetailGraph && got[i] != want[i] {
					t.Fatalf("%s, %s: op %d is %s, want %s", name, variant, i, got[i], want[i])
				}
			}
		}
	}
}

// The programs' maps take as much memory as Options promises, by the kernel's account.
func TestMapBytes(t *testing.T) {
	testenv.NeedRoot(t)
	for name, tc := range map[string]struct {
		opts     Options
		from, to int64
	}{
		"recorder": {Options{}, 12 << 20, 24 << 20},
		"io":       {Options{Detail: DetailIO, Follow: true}, 12 << 20, 24 << 20},
		"graphs":   {Options{Detail: DetailGraph}, 12 << 20, 24 << 20},
		"helper":   {Options{Small: true}, 1 << 20, 3 << 20},
	} {
		tc.opts.PID = os.Getpid()
		tr, err := New(tc.opts)
		if err != nil {
			t.Fatal(err)
		}
		got := readMapMemory(t)
		if got < tc.from || got > tc.to {
			t.Errorf("%s: %d bytes, want %d to %d", name, got, tc.from, tc.to)
		}
		t.Logf("%s: %d KiB", name, got>>10)
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// readMapMemory is the memory in bytes of the maps that this process has open, each counted once,
// as the kernel accounts it.
func readMapMemory(t *testing.T) (sum int64) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the one that Glob had open
		}
		fields := map[string]string{}
		for line := range bytes.Lines(data) {
			name, value, _ := strings.Cut(string(line), ":")
			fields[name] = strings.TrimSpace(value)
		}
		if fields["map_type"] == "" || seen[fields["map_id"]] {
			continue
		}
		seen[fields["map_id"]] = true
		n, err := strconv.ParseInt(fields["memlock"], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
