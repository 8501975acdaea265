package llamatest

// This file makes models whose types only a fork would know.

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/gguf"
)

// Copy copies a model to a file that the test may change, and returns its path.
func Copy(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "copy-"+filepath.Base(path))
	if err := os.WriteFile(to, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return to
}

// RenameType gives the tensors of one type the number of another in the file's head, where it is. A
// llama.cpp that has loaded the model goes on computing with what it has read, and everybody who opens
// the file from now on sees the new number. The model is of version 3, little endian.
func RenameType(t testing.TB, path string, from gguf.Type, number uint32) {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// Otherwise readahead would read weights that are not in memory, which this process's control group would pay for.
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, f.DataOffset)
	if _, err := file.ReadAt(head, 0); err != nil {
		t.Fatal(err)
	}
	for i := range f.Tensors {
		x := &f.Tensors[i]
		if x.Type != from {
			continue
		}
		name := append(binary.LittleEndian.AppendUint64(nil, uint64(len(x.Name))), x.Name...)
		// Behind the name are the number of dimensions, these, and the type.
		at := int64(bytes.Index(head, name) + len(name) + 4 + 8*len(x.Shape))
		if binary.LittleEndian.Uint32(head[at:]) != from.Number() {
			t.Fatalf("the record of %s is not where it should be", x.Name)
		}
		if _, err := file.WriteAt(binary.LittleEndian.AppendUint32(nil, number), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Sync(); err != nil { // dirty pages cannot be paged out
		t.Fatal(err)
	}
}
