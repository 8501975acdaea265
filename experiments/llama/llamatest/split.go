package llamatest

// This file splits models, as llama.cpp's gguf-split does.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"tensorcast/gguf"
)

// Split writes the model at path again as two files of about the same size, the metadata in the
// first one, and returns their paths.
func Split(t testing.TB, path string) (parts [2]string) {
	t.Helper()
	return [2]string(SplitInto(t, path, 2))
}

// SplitInto is Split for any number of parts, up to that of tensors. Each has at least one tensor.
func SplitInto(t testing.TB, path string, count int) (parts []string) {
	t.Helper()
	model, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tensors := model.Files[0].Tensors
	str := func(b []byte, s string) []byte {
		return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
	}
	const header = 24 // magic, version, number of tensors, number of key-value pairs
	kvs := binary.LittleEndian.Uint64(whole[header-8:])
	table := bytes.Index(whole, str(nil, tensors[0].Name)) // after the key-value pairs
	for i := range tensors {
		if at := bytes.Index(whole, str(nil, tensors[i].Name)); at < table {
			table = at
		}
	}
	dir := t.TempDir()
	for no := range count {
		end := 1 // of the tensors in this part
		for left := count - no - 1; len(tensors)-end > left &&
			(left == 0 || tensors[end].Offset < int64(len(whole))*int64(no+1)/int64(count)); end++ {
		}
		mine := tensors[:end]
		tensors = tensors[end:]
		pairs, n := []byte(nil), uint64(3)
		if no == 0 {
			pairs, n = whole[header:table:table], kvs+3
		}
		const u16, i32 = 2, 5 // types of values
		pairs = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32(str(pairs, "split.no"), u16),
			uint16(no))
		pairs = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32(str(pairs, "split.count"), u16),
			uint16(count))
		pairs = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(str(pairs, "split.tensors.count"),
			i32), uint32(model.Tensors()))
		b := append([]byte(nil), whole[:8]...)
		b = binary.LittleEndian.AppendUint64(b, uint64(len(mine)))
		b = append(binary.LittleEndian.AppendUint64(b, n), pairs...)
		const alignment = 32
		offset := uint64(0)
		for i := range mine {
			b = binary.LittleEndian.AppendUint32(str(b, mine[i].Name), uint32(len(mine[i].Shape)))
			for _, n := range mine[i].Shape {
				b = binary.LittleEndian.AppendUint64(b, uint64(n))
			}
			b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(b, uint32(mine[i].Type)), offset)
			offset += (uint64(mine[i].Size) + alignment - 1) / alignment * alignment
		}
		pad := func() { b = append(b, make([]byte, -len(b)&(alignment-1))...) }
		pad()
		for i := range mine {
			b = append(b, whole[mine[i].Offset:mine[i].End()]...)
			pad()
		}
		parts = append(parts, filepath.Join(dir, fmt.Sprintf("split-%05d-of-%05d.gguf", no+1, count)))
		if err := os.WriteFile(parts[no], b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return parts
}
