package ebpf

// These tests look at event.Lookup, which reports the rows of a table before they are read.

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

// tabled has a table of 2 MiB with a row for each of some 1900 tokens. The embeddings have 250 KiB.
var tabled = synth.Config{
	Layers: 4, Embd: 128, FF: 64, Heads: 4, KVHeads: 2, Ctx: 256, Type: gguf.Q8_0, Seed: 4,
	Experts: 8, Used: 2, Table: 2 << 20, PerLayer: 256,
}

// The rows that each decode looks up in a large table are reported once, before the op that does it is over. They are
// those by which that op gathers. Tables that are smaller than was asked for are not reported.
func TestLookup(t *testing.T) {
	const layers, embeddings = "per_layer_token_embd.weight", "token_embd.weight"
	for name, tc := range map[string]struct {
		opts   Options
		tables []string
	}{
		"large":    {Options{Lookups: 1 << 20}, []string{layers}},
		"all":      {Options{Lookups: 1}, []string{embeddings, layers}},
		"none":     {Options{Lookups: 4 << 20}, nil},
		"unasked":  {Options{AtOnce: true}, nil},
		"io":       {Options{Lookups: 1 << 20, Detail: DetailIO}, []string{layers}},
		"selected": {Options{Lookups: 1 << 20, Selected: true}, []string{layers}},
		"small": {
			Options{Lookups: 1 << 20, Small: true, Interval: time.Millisecond, AtOnce: true}, []string{layers},
		},
		"graph": {Options{Lookups: 1 << 20, Detail: DetailGraph}, []string{layers}},
		"tiny":  {Options{Lookups: 1 << 20, Small: true, templates: 8}, []string{layers}},
	} {
		t.Run(name, func(t *testing.T) {
			in, o := llamaOptions(t, tabled)
			o.Prompt = " ab abc cd ab" // a row twice
			events, _ := watch(t, tc.opts, in.Command(t.Context(), o), nil)
			told := map[string]*event.Lookup{} // by table, of the present decode
			prompts, single := 0, 0
			for _, e := range events {
				switch e := e.(type) {
				case event.DecodeBegin:
					told = map[string]*event.Lookup{}
				case event.Lookup:
					name := e.Table.Name
					if told[name] != nil || e.Decode == 0 || e.PID == 0 || e.TID == 0 || !e.Table.InFile {
						t.Fatalf("%+v after %+v", e, told[name])
					}
					told[name] = &e
					if len(e.IDs) > 1 {
						prompts++
					} else {
						single++
					}
				case *event.Op:
					if e.GatherDim != 1 || e.ByExpert {
						continue
					}
					source := e.Sources[0]
					l := told[source.Name]
					if !slices.Contains(tc.tables, source.Name) {
						if l != nil {
							t.Errorf("the rows of %s were reported", source.Name)
						}
						continue
					}
					if l != nil && l.Seq == 0 && tc.opts.Detail == DetailGraph {
						l.Seq = e.Seq
					}
					if l == nil || l.Seq != e.Seq || l.Graph != e.Graph || l.Decode != e.Decode || l.Table != source ||
						l.Time < e.Time || e.Duration > 0 && l.Time > e.Time+e.Duration || !slices.Equal(l.IDs, e.IDs) {
						t.Errorf("reported %+v, then %+v", l, e)
					}
				}
			}
			if n := len(tc.tables); prompts < n || single < n*(o.Tokens-1) || n == 0 && prompts+single > 0 {
				t.Errorf("%d lookups of several rows and %d of one, in %d tables", prompts, single, n)
			}
		})
	}
	if tr, err := New(Options{PID: unix.Getpid(), Lookups: -1}); err == nil ||
		!strings.Contains(err.Error(), "0 or more") {
		t.Errorf("New: %v, %v, want an error", tr, err)
	}
}
