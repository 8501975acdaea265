package outfile

// This file tests directories that appear at once.

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A staged directory appears with its files, or not at all. It takes the place of another one only with Replace.
func TestStage(t *testing.T) {
	d := openTest(t, filepath.Join(t.TempDir(), "d"))
	stage := func(content string) *StagedDir {
		t.Helper()
		s, err := d.Stage("new", 0o700)
		must(t, err)
		must(t, s.Write("file", 0o600, text(content)))
		return s
	}
	read := func() string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(d.Path("new"), "file"))
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		must(t, err)
		return string(b)
	}
	entries := func(want int) {
		t.Helper()
		if all, err := d.Entries(); err != nil || len(all) != want {
			t.Errorf("%v, %v; want %d entries", all, err, want)
		}
	}
	s := stage("discarded")
	if got, want := s.Path("file"), filepath.Join(d.Path("new"), "file"); got != want {
		t.Errorf("its file is called %s, want %s, as it will be", got, want)
	}
	s.Discard()
	s.Discard()
	entries(0)
	s = stage("first")
	if got := read(); got != "" {
		t.Errorf("before Commit there is %q", got)
	}
	must(t, s.Commit())
	s.Discard()
	if got := read(); got != "first" {
		t.Errorf("after Commit there is %q, want first", got)
	}
	s = stage("second")
	if err := s.Commit(); !errors.Is(err, fs.ErrExist) || read() != "first" {
		t.Errorf("a second Commit: %v, with %q; want %v and first", err, read(), fs.ErrExist)
	}
	must(t, s.Replace())
	if got := read(); got != "second" {
		t.Errorf("after Replace there is %q, want second", got)
	}
	entries(1)
	must(t, d.Write("file", 0o600, text("")))
	s, err := d.Stage("file", 0o700)
	must(t, err)
	if err := s.Commit(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file: %v, want %v", err, fs.ErrExist)
	}
	s.Discard()
	entries(2)
}

// What a killed process has begun is swept. What somebody fills is not, nor is anything with another name.
func TestSweepStaged(t *testing.T) {
	d := openTest(t, filepath.Join(t.TempDir(), "d"))
	filled, err := d.Stage("new", 0o700)
	must(t, err)
	defer filled.Discard()
	for _, name := range []string{tempName("old", 1, 0), "kept"} {
		must(t, os.Mkdir(d.Path(name), 0o700))
		must(t, os.WriteFile(filepath.Join(d.Path(name), "file"), nil, 0o600))
	}
	must(t, d.SweepStaged())
	if all, err := d.Entries(); err != nil || len(all) != 2 || all[1].Name != "kept" {
		t.Errorf("left are %v, %v; want the one that is filled, and kept", all, err)
	}
}
