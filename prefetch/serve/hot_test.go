package serve

// This file tests where what is known of a mixture's experts comes from.

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/pattern"
	"tensorcast/prefetch/hot"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
)

// The last run counts before an importance matrix, unless it is to be forgotten. Without a directory nothing is kept.
// What cannot be kept is told once.
func TestHotExperts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	gguftest.MoE(1, 4).Write(t, path)
	part, err := gguf.OpenPart(path)
	if err != nil {
		t.Fatal(err)
	}
	m := models.Model{Parts: part.Files}
	if m.Files, err = pattern.FilesOf(part); err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	o := Options{
		SocketDir: filepath.Join(t.TempDir(), "run"), Imatrix: hot.Counts{0: {1, 2, 3, 4}},
		Log: slog.New(slog.NewTextHandler(&logged, nil)),
	}
	expect := func(when string, o Options, want mixture.Source) {
		t.Helper()
		known := newHotExperts(&o).known(m)
		if (known == nil) != (want == "") || known != nil && (known.From != want || len(known.Scores) != 1) {
			t.Errorf("%s: %+v is known, want from %q", when, known, want)
		}
	}
	with := func(change func(*Options)) Options {
		other := o
		change(&other)
		return other
	}
	expect("before a run", o, mixture.Imatrix)
	expect("before a run, without a matrix", with(func(o *Options) { o.Imatrix = nil }), "")
	h := newHotExperts(&o)
	h.keep(m, mixture.Scores{0: {0, 0, 0.5, 0}})
	expect("after a run", o, mixture.LastRun)
	expect("after a run that is to be forgotten", with(func(o *Options) { o.ForgetExperts = true }), mixture.Imatrix)
	expect("without a directory", with(func(o *Options) { o.SocketDir = "" }), mixture.Imatrix)
	expect("with another matrix", with(func(o *Options) { o.SocketDir, o.Imatrix = "", hot.Counts{0: {1, 2}} }), "")
	if n := strings.Count(logged.String(), "\n"); n != 1 || !strings.Contains(logged.String(), "not of this model") {
		t.Errorf("logged %q, want one line about the matrix of another model", logged.String())
	}
	if known := newHotExperts(&o).known(models.Model{}); known != nil {
		t.Errorf("of no file at all %+v is known, want nothing", known)
	}
	h.keep(m, nil)
	expect("after a run without win", o, mixture.Imatrix)
	if err := os.Chmod(o.SocketDir, 0o777); err != nil {
		t.Fatal(err)
	}
	logged.Reset()
	for range 3 {
		h.keep(m, mixture.Scores{0: {0, 0, 0.5, 0}})
	}
	if n := strings.Count(logged.String(), "\n"); n != 1 {
		t.Errorf("logged %q, want one line about what cannot be kept", logged.String())
	}
}
