package gguf

// These tests compare what is read of a file, and how fast, with two other readers: gpustack/gguf-parser-go, and npm's
// @huggingface/gguf. They are fetched when they are needed, in the versions that testdata/peers names.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// peer is another reader.
type peer struct {
	name    string
	command []string // to which the file is added
	sizes   bool     // it tells the sizes of tensors
}

// fetchPeers makes the readers that can be had here. It skips the test if none can.
func fetchPeers(tb testing.TB) (peers []peer) {
	source, err := filepath.Abs("testdata/peers")
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	run := func(in string, args ...string) error {
		cmd := exec.CommandContext(tb.Context(), args[0], args[1:]...)
		cmd.Dir = in
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	if err := run(source, "go", "mod", "download"); err != nil {
		tb.Logf("gguf-parser-go cannot be had: %v", err)
	} else {
		program := filepath.Join(dir, "peers")
		if err := run(source, "go", "build", "-o", program, "."); err != nil {
			tb.Fatal(err)
		}
		peers = append(peers, peer{"gguf-parser-go", []string{program}, true})
	}
	for _, name := range []string{"package.json", "peer.mjs"} {
		data, err := os.ReadFile(filepath.Join(source, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := run(dir, "npm", "install", "--silent", "--no-fund", "--no-audit"); err != nil {
		tb.Logf("@huggingface/gguf cannot be had: %v", err)
	} else {
		peers = append(peers, peer{"@huggingface/gguf", []string{"node", filepath.Join(dir, "peer.mjs")}, false})
	}
	if len(peers) == 0 {
		tb.Skip("no other reader can be fetched here: see above")
	}
	return peers
}

// read has a peer read a file. more are further arguments.
func (p *peer) read(tb testing.TB, path string, more ...string) []byte {
	tb.Helper()
	args := append(append(p.command[1:len(p.command):len(p.command)], path), more...)
	cmd := exec.CommandContext(tb.Context(), p.command[0], args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("%s of %s: %v", p.name, filepath.Base(path), err)
	}
	return out
}

// peerFiles are files that the peers read, too, by their names.
func peerFiles(tb testing.TB) map[string]string {
	files := map[string]string{}
	for name, m := range map[string]*model{"small": small(), "vocabulary": vocabulary()} {
		path := filepath.Join(tb.TempDir(), name+".gguf")
		if err := os.WriteFile(path, m.encode(), 0o600); err != nil {
			tb.Fatal(err)
		}
		files[name] = path
	}
	trained, err := filepath.Glob("../../shared/data/models/*.gguf")
	if err != nil {
		tb.Fatal(err)
	}
	for _, path := range trained {
		files[filepath.Base(path)] = path
	}
	return files
}

// The peers find the same tensors, of the same shapes and types, at the same places. One also tells their sizes.
func TestPeers(t *testing.T) {
	t.Parallel() // with TestGGUFPyMaps, since both wait for single-threaded programs
	peers := fetchPeers(t)
	for name, path := range peerFiles(t) {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range peers {
			var theirs struct {
				Keys    int
				Tensors []struct {
					Name         string
					Shape        []int64
					Type         uint32
					Offset, Size int64
				}
			}
			if err := json.Unmarshal(p.read(t, path), &theirs); err != nil {
				t.Fatalf("%s of %s: %v", p.name, name, err)
			}
			if theirs.Keys != len(f.Metadata) || len(theirs.Tensors) != len(f.Tensors) {
				t.Errorf("%s: %s has %d keys and %d tensors, we have %d and %d", name, p.name, theirs.Keys,
					len(theirs.Tensors), len(f.Metadata), len(f.Tensors))
			}
			for _, their := range theirs.Tensors {
				our, found := f.Lookup(their.Name)
				if !found {
					t.Fatalf("%s: only %s has %q", name, p.name, their.Name)
				}
				if !p.sizes {
					their.Size = our.Size
				}
				if fmt.Sprint(their.Shape) != fmt.Sprint(our.Shape) || their.Type != uint32(our.Type) ||
					their.Offset != our.Offset || their.Size != our.Size {
					t.Errorf("%s: %s has %+v, we have %+v", name, p.name, their, our)
				}
			}
		}
	}
}

// BenchmarkPeers reads files with this package and with the peers. Of us and of gguf-parser-go it tells the memory that
// was allocated in all. Of the other one, which collects garbage when it likes, it tells the process's memory in the
// end.
func BenchmarkPeers(b *testing.B) {
	const times = "5"
	peers, files := fetchPeers(b), peerFiles(b)
	for name, path := range files {
		b.Run(name+"/tensorcast", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Open(path); err != nil {
					b.Fatal(err)
				}
			}
		})
		for _, p := range peers {
			b.Run(name+"/"+p.name, func(b *testing.B) {
				best, memory := int64(math.MaxInt64), int64(0)
				for b.Loop() {
					var nanos, bytes int64
					if _, err := fmt.Sscan(string(p.read(b, path, times)), &nanos, &bytes); err != nil {
						b.Fatal(err)
					}
					best, memory = min(best, nanos), bytes
				}
				b.ReportMetric(float64(best), "ns/op")
				b.ReportMetric(float64(memory)/1e6, "MB")
			})
		}
	}
}
