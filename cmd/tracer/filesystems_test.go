package main

// This file tests tracing of models on the file systems on which people keep them.

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
)

// Wherever a model lies, the same reads are traced, each of its bytes is seen to come from disk once at least, and the
// disk is named by the layer that has it.
func TestFileSystems(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	from := llamatest.Model(t, denseModel)
	rows, device := map[string]int64{}, map[string]string{}
	for _, name := range testenv.FileSystems {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(testenv.Mount(t, name, from), filepath.Base(from))
			if name != "tmpfs" {
				dropCache(t, path)
			}
			target := in.Command(t.Context(), llama.Options{
				Model: path, Prompt: "a", Tokens: 20, Threads: 1, NoRepack: true,
			}).Args
			dir := filepath.Join(t.TempDir(), "capture")
			args := append([]string{"--no-probe", "--detail", "op+io", "-o", dir, "--"}, target...)
			if r := finish(t, exec.Command(tracerBinary, args...)); r.status != 0 {
				t.Fatalf("status %d, want 0: %s", r.status, r.stderr)
			}
			c, err := trace.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			m := c.Meta
			rows[name] = m.Rows
			if m.Disk != nil {
				device[name] = m.Disk.Device
			}
			if m.Rows == 0 || m.Rows != rows["ext4"] && rows["ext4"] > 0 {
				t.Errorf("%d rows, want those of ext4: %d", m.Rows, rows["ext4"])
			}
			info, err := os.Stat(from)
			if err != nil {
				t.Fatal(err)
			}
			size := info.Size()
			switch read := m.Rereads; {
			case name == "tmpfs" && read != nil && read.FirstBytes > 0:
				t.Errorf("%d bytes were read from disk, want none: it is in memory", read.FirstBytes)
			case name != "tmpfs" && (read == nil || read.FirstBytes < size*9/10):
				t.Errorf("%+v was read from disk, want nearly all %d bytes", read, size)
			}
			if name == "overlay" && m.Disk != nil && (m.Disk.Device[:2] == "0:" || m.Disk.ReadaheadKiB == 0) {
				t.Errorf("the disk is %+v, want that of the layer below", m.Disk)
			}
		})
	}
	t.Logf("rows: %v, devices: %v", rows, device)
}
