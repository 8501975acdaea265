package ebpf

// This file tests which decodes are reported as partial.

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// If the library that computes gets its probes while a decode runs, some of that decode's ops are missed. It is
// reported as partial. All ops of the following decodes are seen.
func TestPartial(t *testing.T) {
	in, o := llamaOptions(t, dense)
	o.Tokens, o.Pause = 20, 50
	cmd := in.Command(t.Context(), o)
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	child, err := proc.Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(Options{PID: child.PID(), Interval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	libraries, err := filepath.Glob(filepath.Join(filepath.Dir(cmd.Path), "lib*.so*"))
	if err != nil {
		t.Fatal(err)
	}
	var early []string
	for _, path := range libraries {
		if !strings.HasPrefix(filepath.Base(path), "libggml-cpu") {
			early = append(early, path)
		}
	}
	if _, err := tr.attachFiles(tr.main, early); err != nil {
		t.Fatal(err)
	}
	tr.main.search.next = time.Now().Add(time.Hour) // only the test looks for further libraries
	const attachAt = 3                              // the decode whose beginning lets the test set the other probes
	ops, partial := map[uint32]int{}, map[uint32]bool{}
	runToEnd(t, tr, child, child.Release, func(e event.Event) error {
		switch e := e.(type) {
		case event.DecodeBegin:
			if e.Decode == attachAt {
				return tr.AttachMapped()
			}
		case event.DecodeEnd:
			partial[e.Decode] = e.Partial
		case *event.Op:
			ops[e.Decode]++
		}
		return nil
	})
	last := uint32(len(partial))
	if last <= attachAt || !partial[attachAt] || partial[last] || ops[last] == 0 {
		t.Fatalf("partial decodes %v, ops %v", partial, ops)
	}
	for decode := uint32(1); decode <= last; decode++ {
		if !partial[decode] && (decode <= attachAt || ops[decode] != ops[last]) {
			t.Errorf("decode %d is reported as whole, with %d ops; the last one, %d, has %d", decode, ops[decode], last,
				ops[last])
		}
	}
}
