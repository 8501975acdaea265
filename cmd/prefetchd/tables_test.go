package main

// This file tests the help for a model with a table of which tokens look up rows.

import (
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch/pages"
)

// tableConfig is 84 MB, of which 64 MB are a table with rows of 8.7 kB.
var tableConfig = synth.Config{
	Layers: 8, Embd: 256, FF: 1024, Heads: 4, KVHeads: 4, Type: gguf.Q8_0, Seed: 7, Table: 64 << 20, PerLayer: 1024,
}

// findTable returns the table of a model's file.
func findTable(t *testing.T, path string) *gguf.Tensor {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	table, ok := f.Lookup("per_layer_token_embd.weight")
	if !ok {
		t.Fatal("the model has no table")
	}
	return table
}

// countResident is how many bytes of a tensor are in memory.
func countResident(t *testing.T, path string, w *gguf.Tensor) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := pagecache.ResidencyOf(f, nil).Bytes(w.Offset, w.Size)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// wordsOf is a prompt of so many words. Nearly each is a token of its own, and they lie all over the table.
func wordsOf(n int) string {
	random := rand.New(rand.NewPCG(1, 2))
	var text strings.Builder
	for range n {
		text.WriteByte(' ')
		for range 2 + random.IntN(2) {
			text.WriteByte(byte('a' + random.IntN(26)))
		}
	}
	return text.String()
}

// TestTable checks that rows of a table that a prompt looks up are read before the target touches them, that the table
// is not kept, and that it is not counted as weights. The text is what it is without help.
func TestTable(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	const words, times = 150, 3
	path := llamatest.Model(t, tableConfig)
	table := findTable(t, path)
	r := newRigOf(t, "table", path, 2, 20)
	r.options.Prompt, r.options.Repeat = wordsOf(words), times
	plainRun(r)
	dropFromCache(t, path)
	r.start()
	h := r.help("--budget", "8MB")
	r.finish() // it compares the first text
	resident := countResident(t, path, table)
	s := h.summary(t)
	x := s.Tables
	t.Logf("tables %+v; %d bytes of the table are in memory in the end", x, resident)
	if x == nil || s.Idle != "" {
		t.Fatalf("summary %+v, tables %+v", s, x)
	}
	got, err := llama.ParseResult(r.stdout.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for _, again := range got.Repeat {
		if again.Text != got.Text {
			t.Errorf("the text is %q, and %q when its rows are read again", got.Text, again.Text)
		}
	}
	if rest := r.size - table.Size; s.PerToken > rest || s.PerToken < rest/2 {
		t.Errorf("each token reads %d bytes, of %d besides the table", s.PerToken, rest)
	}
	// The target has loaded the table when the help begins, or loads it just then. It is freed by whichever phase helps
	// at that moment, so the strays say nothing here. The third prompt meets a table that is not in memory. The second
	// may have begun before.
	row := table.Size / table.Shape[1]
	if x.All != table.Size || x.Rows < words*(times-1) || x.Missed < words*(times-2)*8/10 || x.Read < x.Missed*row/2 ||
		x.Read > x.Missed*(row+2*pages.PageSize) {
		t.Errorf("tables %+v, want one of %d bytes with rows of %d, which each prompt reads", x, table.Size, row)
	}
	if resident > table.Size/8 {
		t.Errorf("%d bytes of the table stay in memory", resident)
	}
}

// TestTableBesides checks that rows are read ahead where all but the table fits, with fewer probes.
func TestTableBesides(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	const share = 0.4 // of the model: room for its weights, and never for all of its table
	path := llamatest.Model(t, tableConfig)
	r := newRigOf(t, "table besides", path, share, 20)
	r.options.Prompt, r.options.Idle = wordsOf(100), 4
	plainRun(r)
	dropFromCache(t, path)
	r.start()
	h := r.help("-v")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("standard error:\n%s", h.stderr.String())
		}
	})
	testenv.WaitFor(t, "prefetchd to be idle", func() bool {
		said := h.stderr.String()
		return strings.Contains(said, "everything fits") &&
			strings.Contains(said, "rows are read when they are looked up")
	})
	limit := int64(share*float64(r.size)) + ownMemory
	// Somebody takes memory for a moment, and with it the table. A prefetchd that looked just then would not be idle.
	h.signal(t, syscall.SIGSTOP)
	for _, bytes := range []int64{limit / 2, limit} {
		if err := r.group.SetLimit(bytes); err != nil {
			t.Fatal(err)
		}
	}
	h.signal(t, syscall.SIGCONT)
	r.finish()
	s := h.summary(t)
	t.Logf("tables %+v", s.Tables)
	if x := s.Tables; x == nil || x.Rows < 100 || x.Missed < 10 || x.Strays != 0 {
		t.Errorf("tables %+v, want one of which a prompt reads some rows", x)
	}
}
