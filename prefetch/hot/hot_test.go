package hot

// This file tests how scores are kept and read again.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/pattern"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
)

// newModel is a mixture of two layers, as a target maps it. Its name goes into the metadata.
func newModel(t *testing.T, name string, experts int64) models.Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	file := gguftest.MoE(2, experts)
	file.KVs = append(file.KVs, gguftest.KV{Key: "general.name", Value: name})
	file.Write(t, path)
	part, err := gguf.OpenPart(path)
	if err != nil {
		t.Fatal(err)
	}
	m := models.Model{Parts: part.Files}
	if m.Files, err = pattern.FilesOf(part); err != nil {
		t.Fatal(err)
	}
	return m
}

// someScores are of a model of newModel with four experts.
func someScores() mixture.Scores {
	return mixture.Scores{0: {0, 0.25, 1, 1e-9}, 1: {0.5, 0, 0, 0.125}}
}

// isClose says whether scores are the same but for their quantisation.
func isClose(a, b mixture.Scores) bool {
	for number := range a {
		if len(a[number]) != len(b[number]) {
			return false
		}
		for i, p := range a[number] {
			if math.Abs(float64(p-b[number][i])) > 1.0/math.MaxUint16 {
				return false
			}
		}
	}
	return len(a) == len(b)
}

// Scores are kept for each model, and read again for the same one wherever its file lies.
func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s := NewStore(dir)
	m := newModel(t, "one", 4)
	if scores, err := s.Load(m); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before anything was kept: %v, %v; want %v", scores, err, fs.ErrNotExist)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("looking for scores made the directory (%v), want none", err)
	}
	if err := s.Forget(m); err != nil {
		t.Error(err)
	}
	if err := s.Save(m, someScores()); err != nil {
		t.Fatal(err)
	}
	elsewhere, other := newModel(t, "one", 4), newModel(t, "another", 4)
	if got, err := s.Load(elsewhere); err != nil || !isClose(got, someScores()) || got[0][3] == 0 {
		t.Errorf("%v, %v; want %v", got, err, someScores())
	}
	if got, err := s.Load(other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of another model: %v, %v; want %v", got, err, fs.ErrNotExist)
	}
	name := nameOf(dir, m)
	for path, want := range map[string]fs.FileMode{
		name: 0o600, filepath.Dir(name): fs.ModeDir | 0o700, dir: fs.ModeDir | 0o700,
	} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want mode %v", path, info, err, want)
		}
	}
	if err := s.Forget(elsewhere); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Load(m); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("forgotten: %v, %v; want %v", got, err, fs.ErrNotExist)
	}
}

// nameOf is the path of the file that keeps a model's scores.
func nameOf(dir string, m models.Model) string {
	return filepath.Join(dir, subDirectory, identify(&m).String()+suffix)
}

// A file that others could have written or can read, that is damaged, of another model, a link, or no file at all, is
// refused.
func TestStoreRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, m := NewStore(dir), newModel(t, "one", 4)
	path := nameOf(dir, m)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func() []byte {
		b, err := os.ReadFile(path)
		must(err)
		return b
	}
	write := func(b []byte) { must(os.WriteFile(path, b, 0o600)) }
	writeOf := func(model models.Model, scores mixture.Scores) {
		b, err := encode(identify(&model), scores)
		must(err)
		write(b)
	}
	for name, tc := range map[string]struct {
		damage func()
		want   error
	}{
		"mode":           {func() { must(os.Chmod(path, 0o640)) }, ErrUnsafe},
		"half a file":    {func() { write(read()[:20]) }, ErrInvalid},
		"another model":  {func() { writeOf(newModel(t, "two", 4), someScores()) }, ErrOtherModel},
		"more experts":   {func() { writeOf(m, mixture.Scores{0: make([]float32, 5)}) }, ErrOtherModel},
		"another layer":  {func() { writeOf(m, mixture.Scores{7: make([]float32, 4)}) }, ErrOtherModel},
		"too long":       {func() { write(make([]byte, maxFile+1)) }, ErrInvalid},
		"nothing":        {func() { write(nil) }, ErrInvalid},
		"a link":         {func() { must(os.Rename(path, path+"~")); must(os.Symlink(path+"~", path)) }, nil},
		"a directory":    {func() { must(os.Remove(path)); must(os.Mkdir(path, 0o700)) }, nil},
		"open directory": {func() { must(os.Chmod(dir, 0o777)) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			must(s.Save(m, someScores()))
			tc.damage()
			scores, err := s.Load(m)
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v, %v; want the error %v", scores, err, tc.want)
			}
			must(os.Chmod(dir, 0o700))
			must(os.RemoveAll(filepath.Join(dir, subDirectory)))
		})
	}
}

// The file of the largest models that there are is small. One that would be too large is not written.
func TestFileSize(t *testing.T) {
	scores := mixture.Scores{}
	for layer := range int32(94) {
		scores[layer] = make([]float32, 512)
	}
	if b, err := encode(identity{}, scores); err != nil || len(b) > 100_000 {
		t.Errorf("%d bytes, %v; want at most 100000", len(b), err)
	}
	for layer := range int32(2000) {
		scores[layer] = make([]float32, 512)
	}
	if b, err := encode(identity{}, scores); err == nil {
		t.Errorf("%d bytes, want an error", len(b))
	}
}

// Each damage of a file is noticed.
func TestDecodeDamaged(t *testing.T) {
	whole, err := encode(identity{1, 2, 3}, someScores())
	if err != nil {
		t.Fatal(err)
	}
	if id, scores, err := decode(whole); err != nil || id != (identity{1, 2, 3}) || !isClose(scores, someScores()) {
		t.Fatalf("%v, %v, %v", id, scores, err)
	}
	for n := range whole {
		if _, _, err := decode(whole[:n]); !errors.Is(err, ErrInvalid) {
			t.Errorf("cut after %d bytes: %v, want %v", n, err, ErrInvalid)
		}
		b := append([]byte(nil), whole...)
		b[n] ^= 4
		if _, _, err := decode(b); !errors.Is(err, ErrInvalid) {
			t.Errorf("with another byte %d: %v, want %v", n, err, ErrInvalid)
		}
	}
	// With a checksum that is right.
	layers := headBytes - 4
	for name, change := range map[string]func(b []byte) []byte{
		"version":         func(b []byte) []byte { b[len(magic)]++; return b },
		"more layers":     func(b []byte) []byte { b[layers]++; return b },
		"fewer layers":    func(b []byte) []byte { b[layers]--; return b },
		"millions":        func(b []byte) []byte { b[layers+3] = 255; return b },
		"no experts":      func(b []byte) []byte { binary.LittleEndian.PutUint32(b[headBytes+4:], 0); return b },
		"many experts":    func(b []byte) []byte { b[headBytes+7] = 255; return b },
		"negative layer":  func(b []byte) []byte { b[headBytes+3] = 255; return b },
		"the same layers": func(b []byte) []byte { b[headBytes] = 1; return b },
		"more":            func(b []byte) []byte { return append(b, 0, 0) },
	} {
		b := change(append([]byte(nil), whole[:len(whole)-4]...))
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
		if _, scores, err := decode(b); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, %v; want %v", name, scores, err, ErrInvalid)
		}
	}
}

// FuzzDecode decodes any bytes, with a checksum that is right. What it accepts are scores, which are the same when they
// are written and read again.
func FuzzDecode(f *testing.F) {
	for _, scores := range []mixture.Scores{someScores(), {}, {7: make([]float32, 300)}} {
		b, err := encode(identity{9}, scores)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:len(b)-4])
		f.Add(b[:len(b)-5])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
		id, scores, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%v, want %v", err, ErrInvalid)
			}
			return
		}
		for number, layer := range scores {
			for _, p := range layer {
				if !(p >= 0 && p <= 1) || number < 0 {
					t.Fatalf("layer %d has the score %v, want 0 to 1", number, p)
				}
			}
		}
		again, err := encode(id, scores)
		if err != nil || string(again) != string(b) {
			t.Fatalf("written again it is %x, %v; want %x", again, err, b)
		}
	})
}

// An importance matrix's counts become scores: each expert's share of what a token chooses.
func TestImatrix(t *testing.T) {
	path := gguftest.WriteImatrix(t, "imatrix", map[string][]float32{
		"blk.0.ffn_down_exps.weight": {9, 9, 9, 9}, "blk.0.ffn_gate_exps.weight": {10, 0, 30, 60},
		"blk.1.ffn_gate_up_exps.weight": {0, 0, 0, 0}, "blk.0.attn_q.weight": {100}, "output.weight": {100},
	})
	counts, err := ReadImatrix(path)
	if want := (Counts{0: {10, 0, 30, 60}, 1: {0, 0, 0, 0}}); err != nil || !reflect.DeepEqual(counts, want) {
		t.Fatalf("%v, %v; want %v", counts, err, want)
	}
	scores, err := counts.Scores(newModel(t, "one", 4)) // of which a token chooses 2
	if want := (mixture.Scores{0: {0.2, 0, 0.6, 1}, 1: {0, 0, 0, 0}}); err != nil || !reflect.DeepEqual(scores, want) {
		t.Errorf("%v, %v; want %v", scores, err, want)
	}
	if scores, err := counts.Scores(newModel(t, "eight", 8)); !errors.Is(err, ErrOtherModel) {
		t.Errorf("of a model with 8 experts: %v, %v; want %v", scores, err, ErrOtherModel)
	}
}

// A big-endian importance matrix has its counts in that order, too.
func TestBigEndianImatrix(t *testing.T) {
	be := binary.BigEndian
	text := func(b []byte, s string) []byte { return append(be.AppendUint64(b, uint64(len(s))), s...) }
	b := be.AppendUint32([]byte("GGUF"), 3)
	b = be.AppendUint64(be.AppendUint64(b, 1), 1) // a tensor, and a metadata entry
	b = be.AppendUint32(text(b, "general.type"), uint32(gguf.ValueString))
	b = text(text(b, "imatrix"), "blk.0.ffn_gate_exps.weight.counts")
	b = be.AppendUint64(be.AppendUint64(be.AppendUint32(b, 2), 1), 4) // the shape: 1 by 4
	b = be.AppendUint64(be.AppendUint32(b, gguf.F32.Number()), 0)
	b = append(b, make([]byte, -len(b)&(gguftest.Alignment-1))...)
	for _, count := range []float32{10, 0, 30, 60} {
		b = be.AppendUint32(b, math.Float32bits(count))
	}
	path := filepath.Join(t.TempDir(), "imatrix.gguf")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	counts, err := ReadImatrix(path)
	if want := (Counts{0: {10, 0, 30, 60}}); err != nil || !reflect.DeepEqual(counts, want) {
		t.Errorf("%v, %v; want %v", counts, err, want)
	}
}

// What is no importance matrix of a mixture is refused, with a reason.
func TestNoImatrix(t *testing.T) {
	old := filepath.Join(t.TempDir(), "imatrix.dat")
	if err := os.WriteFile(old, []byte("\x02\x00\x00\x00\x16\x00\x00\x00blk.0.ffn_gate.weight"), 0o600); err != nil {
		t.Fatal(err)
	}
	counts := func(values ...float32) map[string][]float32 {
		return map[string][]float32{"blk.0.ffn_gate_exps.weight": values}
	}
	for path, want := range map[string]error{
		old: ErrOldImatrix,
		filepath.Join(t.TempDir(), "missing.gguf"):                                                   fs.ErrNotExist,
		gguftest.WriteImatrix(t, "model", counts(1, 2)):                                              ErrNoImatrix,
		gguftest.WriteImatrix(t, "imatrix", counts(1, -2)):                                           ErrNoImatrix,
		gguftest.WriteImatrix(t, "imatrix", counts(1, float32(math.NaN()))):                          ErrNoImatrix,
		gguftest.WriteImatrix(t, "imatrix", counts(1, float32(math.Inf(1)))):                         ErrNoImatrix,
		gguftest.WriteImatrix(t, "imatrix", counts(make([]float32, maxExperts+1)...)):                ErrNoImatrix,
		gguftest.WriteImatrix(t, "imatrix", map[string][]float32{"blk.0.ffn_gate.weight": {5}}):      ErrNoCounts,
		gguftest.WriteImatrix(t, "imatrix", map[string][]float32{"blk.0.ffn_gate_exps.weight": {5}}): ErrNoCounts,
	} {
		got, err := ReadImatrix(path)
		if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), path) {
			t.Errorf("%v, %v; want %v, with the path", got, err, want)
		}
	}
}
