package matrix

// This file tests whole matrices, on a scripted target.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/pressure"
	"tensorcast/experiments/results"
	"tensorcast/internal/cgroup/cgrouptest"
)

// script reads the model once for each token.
const script = `printf b >&3
for i in 1 2 3; do cat "$1" >/dev/null; printf t >&3; sleep 0.02; done
echo '{"text":"x","tokens":[1,2,3],"token_ms":[30,20,20],"tok_s":40}'`

const modelBytes = 24 << 20

// made is the only model.
type made string

func (m made) Describe(context.Context, *Model) (Shape, error) {
	return Shape{Bytes: modelBytes, Active: 1}, nil
}

func (m made) Make(context.Context, *Model) (string, error) { return string(m), nil }

// scripted makes a plan of one model, and says how it is measured.
func scripted(t *testing.T) (*Plan, Options) {
	t.Helper()
	cgrouptest.Need(t)
	dir := t.TempDir()
	model, target := filepath.Join(dir, "model"), filepath.Join(dir, "target.sh")
	content := make([]byte, modelBytes)
	rand.NewChaCha8([32]byte{}).Read(content)
	if err := errors.Join(os.WriteFile(model, content, 0o644),
		os.WriteFile(target, []byte(script), 0o644)); err != nil {
		t.Fatal(err)
	}
	// A repacked model is not traced, as a script cannot be.
	f := parse(t, `
repeat: 2
tokens: 3
skip: 1
models:
  - {name: one, path: x, repack: true}
memory:
  - {name: fits, share: 1.5}
  - {name: half, share: 0.5}
strategies:
  - {name: plain}
  - {name: again}
  - {name: other, helper: "{sleep} 100"}
left-out:
  - {strategies: other, memory: fits, because: It makes no sense.}
`)
	p, err := NewPlan(t.Context(), f, made(model))
	if err != nil {
		t.Fatal(err)
	}
	return p, Options{Dir: dir, Materials: made(model), Commands: map[string]string{"sleep": "/bin/sleep"},
		Target:  func(llama.Options) []string { return []string{"/bin/sh", target, model} },
		Command: "lab matrix",
		Disk: pressure.DiskOptions{Settings: []pressure.DiskSetting{{Block: 1 << 20, Depth: 4}},
			PointTime: 20 * time.Millisecond},
	}
}

// skipWhere skips the test where a series cannot be measured.
func skipWhere(t *testing.T, err error) {
	t.Helper()
	if err != nil && (errors.Is(err, pressure.ErrNoDirectIO) || strings.Contains(err.Error(), "put the model on one")) {
		t.Skip(err)
	}
}

// A matrix that is interrupted leaves a whole document, and goes on where it was: no run is made twice, and each round
// has the reversed order of the one before.
func TestRun(t *testing.T) {
	p, o := scripted(t)
	path := filepath.Join(o.Dir, "one.json")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last time.Duration
	o.Progress = func(done, total time.Duration, what string) {
		if done < 0 || done > total || total != p.Estimate() {
			t.Errorf("%v of %v are over, want no more than %v", done, total, p.Estimate())
		}
		last = max(last, done)
		if d, err := results.ReadFile(path); err == nil && strings.HasPrefix(what, "one: again: token") {
			if r, err := pressure.ReadReport(d.Report, -1); err == nil && len(r.Runs) == 5 { // at the second setting
				cancel()
			}
		}
	}
	var notes []string
	o.Note = func(line string) { notes = append(notes, line) }
	err := p.Run(ctx, o)
	skipWhere(t, err)
	if !errors.Is(err, context.Canceled) || len(notes) != 1 || !strings.Contains(notes[0], "goes on where it was") ||
		last == 0 {
		t.Fatalf("%v after %v, %q; want that it was cancelled and can go on", err, last, notes)
	}
	d, err := results.ReadFile(path)
	if err != nil || !d.Interrupted {
		t.Fatalf("%v, %+v; want a document that says that it was interrupted", err, d)
	}

	o.Progress, notes = nil, nil
	if err := p.Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	read := func() (*results.Document, *pressure.Report) {
		d, err := results.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := pressure.ReadReport(d.Report, -1)
		if err != nil {
			t.Fatal(err)
		}
		return d, r
	}
	d, r := read()
	var runs []string
	for _, run := range r.Runs {
		runs = append(runs, fmt.Sprintf("%s %d", run.Variant, run.Setting))
	}
	want := []string{"plain 0", "again 0", "again 0", "plain 0", "plain 1", "again 1", "other 1", "other 1", "again 1",
		"plain 1"}
	if !slices.Equal(runs, want) || d.Interrupted || len(r.Resumed) != 1 || len(r.States) != 3 ||
		d.Command != "lab matrix" || r.LeftOut[0].Because != "It makes no sense." {
		t.Errorf("runs %q, want %q; %+v", runs, want, r.Resumed)
	}
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "one: 10 runs in ") {
		t.Errorf("%q", notes)
	}

	// What is complete is not measured again. Another matrix is refused, and so is a file that is no document.
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context(), o); err != nil || len(notes) != 2 || !strings.Contains(notes[1], "complete already") {
		t.Errorf("%v, %q", err, notes)
	}
	again, err := NewPlan(t.Context(), p.File, o.Materials)
	if err != nil {
		t.Fatal(err)
	}
	again.File.Skip = 0
	if err := again.Run(t.Context(), o); !errors.Is(err, pressure.ErrOtherSeries) ||
		!strings.Contains(err.Error(), "move it away") {
		t.Errorf("another start-up: %v, want ErrOtherSeries", err)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before) {
		t.Errorf("%v; want the document as it was", err)
	}
	d.Build.Commit = "0123456789abcdef"
	if err := writeDocument(path, d); err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context(), o); !errors.Is(err, ErrOtherBuild) {
		t.Errorf("%v, want ErrOtherBuild", err)
	}
	if err := os.WriteFile(path, []byte(`{"schema": "x"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context(), o); !errors.Is(err, results.ErrNotDocument) {
		t.Errorf("%v, want ErrNotDocument", err)
	}
}

func writeDocument(path string, d *results.Document) error {
	var b strings.Builder
	if err := d.Write(&b); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// A model that cannot be had does not keep the others from being measured, but is an error.
func TestRunFails(t *testing.T) {
	p, err := NewPlan(t.Context(), parse(t, sample), shapes{})
	if err != nil {
		t.Fatal(err)
	}
	p.File.Strategies = p.File.Strategies[:1]
	err = p.Run(t.Context(), Options{Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "it is not there\nexperts: ") {
		t.Errorf("%v, want an error for each model", err)
	}
}
