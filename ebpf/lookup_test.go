package ebpf

// These tests look at event.Lookup, which reports the rows of a table before they are read.

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cc"
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
			prompts, single := checkLookups(t, events, tc.tables, tc.opts.Detail)
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

// checkLookups compares the lookups among events with the ops that did them, which read these tables. It returns the
// number of lookups of several rows, and of those of one.
func checkLookups(t *testing.T, events []event.Event, tables []string, detail Detail) (prompts, single int) {
	t.Helper()
	told := map[string]*event.Lookup{} // by table, of the present decode
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
			if !slices.Contains(tables, source.Name) {
				if l != nil {
					t.Errorf("the rows of %s were reported", source.Name)
				}
				continue
			}
			if l != nil && l.Seq == 0 && detail == DetailGraph {
				l.Seq = e.Seq
			}
			if l == nil || l.Seq != e.Seq || l.Graph != e.Graph || l.Decode != e.Decode || l.Table != source ||
				l.Time < e.Time || e.Duration > 0 && l.Time > e.Time+e.Duration || !slices.Equal(l.IDs, e.IDs) {
				t.Errorf("reported %+v, then %+v", l, e)
			}
		}
	}
	return prompts, single
}

// mapperSource is a library whose thread changes its process's memory map nearly all the time: it protects 64 MiB of
// small pages, again and again.
const mapperSource = `
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

static const size_t size = 64 << 20;

static void *mapper(void *pages) {
	for (;;) {
		mprotect(pages, size, PROT_READ);
		mprotect(pages, size, PROT_READ | PROT_WRITE);
	}
}

__attribute__((constructor)) static void begin(void) {
	pthread_t thread;
	void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return;
	madvise(pages, size, MADV_NOHUGEPAGE);
	memset(pages, 1, size);
	pthread_create(&thread, NULL, mapper, pages);
}
`

// While another thread changes the target's memory map, the programs cannot look up what file a table is in. Its rows
// are reported all the same.
func TestLookupWhileMapping(t *testing.T) {
	library := filepath.Join(t.TempDir(), "mapper.so")
	if err := cc.Compile(t.Context(), library, mapperSource, "-shared", "-fPIC", "-pthread"); errors.Is(err,
		cc.ErrNoCompiler) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]Options{
		"op":    {Small: true, templates: 8}, // so few that each token's ops are learned again
		"graph": {Detail: DetailGraph},
	} {
		opts.Lookups = 1 << 20
		t.Run(name, func(t *testing.T) {
			in, o := llamaOptions(t, tabled)
			o.Tokens = 10
			cmd := in.Command(t.Context(), o)
			cmd.Env = append(cmd.Environ(), "LD_PRELOAD="+library)
			events, _ := watch(t, opts, cmd, nil)
			prompts, single := checkLookups(t, events, []string{"per_layer_token_embd.weight"}, opts.Detail)
			if prompts == 0 || single < o.Tokens-1 {
				t.Errorf("%d lookups of several rows and %d of one", prompts, single)
			}
		})
	}
}
