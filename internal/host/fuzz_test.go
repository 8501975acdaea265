package host

// This file fuzzes the texts of the proc file system.

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// FuzzTexts reads arbitrary texts, as a container with its own proc file system may have.
func FuzzTexts(f *testing.F) {
	names := []string{"cpuinfo", "meminfo", "loadavg"}
	var ours [3][]byte
	for i, name := range names {
		text, err := os.ReadFile(filepath.Join("/proc", name))
		if err != nil {
			f.Fatal(err)
		}
		ours[i] = text
	}
	f.Add(ours[0], ours[1], ours[2])
	f.Add([]byte("processor\t: 0\nmodel name\t: a CPU\n\nprocessor\t: 1\n"),
		[]byte("MemTotal: 1024 kB\nMemFree: 1 kB\n"), []byte("0.5 0.25 0.1 1/100 5\n"))
	f.Add([]byte("processor : \n"), []byte("MemTotal:\n"), []byte("\n"))
	f.Add([]byte(nil), []byte("MemTotal: 18446744073709551615 kB\n"), []byte("NaN -1 1e999"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, cpuinfo, meminfo, loadavg []byte) {
		for i, text := range [][]byte{cpuinfo, meminfo, loadavg} {
			if err := os.WriteFile(filepath.Join(dir, names[i]), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var h Info
		h.readProc(dir)
		if _, err := json.Marshal(h); err != nil || h.Memory < 0 || h.Load < 0 {
			t.Errorf("%+v, %v; want JSON, and no amount below 0", h, err)
		}
	})
}
