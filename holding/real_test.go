package holding

// These tests look at a real llama.cpp.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/testenv"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(envMapped); path != "" {
		if err := keepMapped(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// modelConfig is a model of 39 MB as F32, or 5 MB as Q4_0. On a processor with AVX2, llama.cpp
// repacks Q4_0 by default. It never repacks F32.
func modelConfig(typ gguf.Type) synth.Config {
	return synth.Config{Layers: 4, Embd: 512, FF: 1024, Heads: 8, KVHeads: 4, Type: typ, Seed: 3}
}

// startLlama starts llama.cpp and returns its process id when it has loaded its model. end ends it.
func startLlama(t *testing.T, in *llama.Installation, o llama.Options) (pid int, end func()) {
	t.Helper()
	o.Prompt, o.Tokens, o.Threads, o.Repeat, o.Stream = "x", 8, 1, 1<<20, true
	cmd := in.Command(t.Context(), o)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(end)
	if _, err := llama.NewStream(out); err != nil {
		t.Fatal(err)
	}
	// From here on it fills the pipe, and waits.
	return cmd.Process.Pid, end
}

func examine(t *testing.T, pid int) *Holding {
	t.Helper()
	h, err := New(pid).Examine(t.Context(), Options{Others: true})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// reasonsOf returns the reasons of the findings that block, or of the others.
func reasonsOf(v Verdict, blocks bool) (all []Reason) {
	for _, f := range v.Findings {
		if f.Blocks == blocks {
			all = append(all, f.Reason)
		}
	}
	return all
}

// However a real llama.cpp loads its weights, Examine finds out what it computes with.
func TestLoadModes(t *testing.T) {
	testenv.NeedRoot(t) // to read another process's memory
	in := llamatest.ForTest(t)
	f32, q40 := llamatest.Model(t, modelConfig(gguf.F32)), llamatest.Model(t, modelConfig(gguf.Q4_0))
	moe := modelConfig(gguf.F32)
	moe.FF, moe.Experts, moe.Used = 256, 4, 2
	experts := llamatest.Model(t, moe)
	for name, tc := range map[string]struct {
		options llama.Options
		mode    Mode
		blocks  []Reason
		text    string // a part of the verdict's line
	}{
		"mapped":       {llama.Options{Model: f32}, ModeMapped, nil, "would help: keeps about"},
		"not repacked": {llama.Options{Model: q40, NoRepack: true}, ModeMapped, nil, "would help: keeps about"},
		"repacked":     {llama.Options{Model: q40}, ModeCopied, []Reason{Copied}, "; leave it so, because prompts "},
		"not mapped":   {llama.Options{Model: f32, LoadMode: "none"}, ModeCopied, []Reason{Copied}, "; leave it so"},
		"direct":       {llama.Options{Model: f32, LoadMode: "dio"}, ModeCopied, []Reason{Copied}, "; leave it so"},
		"locked": {
			llama.Options{Model: f32, LoadMode: "mmap+mlock"}, ModeMapped, []Reason{Locked},
			"to let it share, start llama.cpp without --load-mode=mmap+mlock",
		},
		"experts":        {llama.Options{Model: experts}, ModeMapped, nil, "would help: keeps about"},
		"repacked draft": {llama.Options{Model: f32, Model2: q40}, ModePartly, nil, "would help: keeps about"},
	} {
		t.Run(name, func(t *testing.T) {
			pid, end := startLlama(t, in, tc.options)
			h := examine(t, pid)
			end()
			v := h.Judge(-1, false)
			if h.Mode != tc.mode || !h.Exact || !slices.Equal(reasonsOf(v, true), tc.blocks) ||
				v.Helps != (tc.blocks == nil) || !strings.Contains(v.Line(), tc.text) ||
				strings.Contains(v.Line(), "\n") {
				t.Errorf("%s, exact %v: %s\n%+v\n%+v", h.Mode, h.Exact, v.Line(), h, v)
			}
			files := 1
			if h.Mode == ModeCopied && tc.options.LoadMode != "" {
				files = 0
			} else if tc.options.Model2 != "" {
				files = 2
			}
			if len(h.Files) != files || len(h.Others) > 0 {
				t.Fatalf("%d files, others %v", len(h.Files), h.Others)
			}
			total := int64(0)
			for _, path := range []string{tc.options.Model, tc.options.Model2} {
				if path == "" {
					continue
				}
				total += weightBytes(t, path)
			}
			if h.Weights.Total() != total || h.Weights.Unknown > 0 || h.Weights.Device > 0 {
				t.Errorf("%+v of %d bytes", h.Weights, total)
			}
			checkUnread(t, name, h)
			if name == "mapped" {
				f := h.Files[0]
				if f.Path != f32 || f.Mapped != total || f.Resident < total || !f.PageOut || f.PerToken >= total ||
					f.PerToken < total/2 || v.Keep != f.PerToken {
					t.Errorf("%+v, want all %d bytes of %s mapped and resident", f, total, f32)
				}
				if v := h.Judge(f.PerToken, false); v.Helps || !slices.Equal(reasonsOf(v, true), []Reason{Fits}) {
					t.Errorf("with room for all: %+v", v)
				}
				if v := h.Judge(f.PerToken/2, false); !v.Helps || v.Keep != f.PerToken/2 {
					t.Errorf("with room for a half: %+v", v)
				}
				if v := h.Judge(0, true); v.Helps || reasonsOf(v, true)[0] != OtherPrefetcher {
					t.Errorf("helped by another one: %+v", v)
				}
			}
			if name == "experts" {
				checkExperts(t, h, experts)
			} else if h.Routed != 0 || v.Routed != 0 {
				t.Errorf("%d bytes of experts: %+v", h.Routed, v)
			}
		})
	}
}

// checkUnread checks which bytes of the files are not read any more: those of the copies, which are as large as the
// matrices of a type that is copied.
func checkUnread(t *testing.T, name string, h *Holding) {
	t.Helper()
	want := int64(0)
	if strings.HasPrefix(name, "repacked") {
		want = h.Weights.Copied
	}
	unread, resident := h.Unread()
	inRanges := int64(0)
	for _, f := range h.Files {
		for _, r := range f.UnreadRanges {
			inRanges += r[1] - r[0]
		}
	}
	if unread != want || inRanges != want || resident < want {
		t.Errorf("%d bytes are not read any more, %d in ranges, %d resident; want %d", unread, inRanges, resident, want)
	}
	path := llamatest.Model(t, modelConfig(gguf.Q4_0))
	m, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	if foreseen := h.program.Foresee(m); name == "repacked" && foreseen.Bytes != h.Weights.Copied {
		t.Errorf("%d bytes of copies were foreseen, %d are there", foreseen.Bytes, h.Weights.Copied)
	}
}

// checkExperts checks what is found out about a model with experts. These are counted apart from
// what every token reads, which is kept first.
func checkExperts(t *testing.T, h *Holding, path string) {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var trunk, routed int64
	for i := range f.Tensors {
		switch x := &f.Tensors[i]; {
		case strings.Contains(x.Name, "_exps."):
			routed += x.Size
		case x.Name != "token_embd.weight":
			trunk += x.Size
		}
	}
	if routed < trunk/2 || h.Routed != routed || h.PerToken != trunk || h.Files[0].Routed != routed ||
		h.Files[0].PerToken != trunk {
		t.Errorf("%d bytes of experts and %d besides, want %d and %d", h.Routed, h.PerToken, routed, trunk)
	}
	notes := []Reason{RoutedExperts}
	if h.Files[0].ReadAhead >= largeReadahead { // llama.cpp has closed the file
		notes = append(notes, Readahead)
	}
	for room, want := range map[int64]struct{ keep, experts int64 }{
		-1: {trunk, routed}, trunk / 2: {trunk / 2, 0}, trunk: {trunk, 0}, trunk + routed/2: {trunk, routed / 2},
		trunk + routed - 1: {trunk, routed - 1},
	} {
		v := h.Judge(room, false)
		line := fmt.Sprintf("would help: keeps about %s of the %s that every token reads, and %s of %s of experts",
			formatBytes(want.keep), formatBytes(trunk), formatBytes(want.experts), formatBytes(routed))
		if v.Keep != want.keep || v.Experts != want.experts || v.PerToken != trunk || v.Routed != routed ||
			v.Line() != line || len(reasonsOf(v, true)) > 0 || !slices.Equal(reasonsOf(v, false), notes) {
			t.Errorf("with room for %d: %s\n%+v, want %s", room, v.Line(), v, line)
		}
	}
	if v := h.Judge(trunk+routed, false); v.Helps || !slices.Equal(reasonsOf(v, true), []Reason{Fits}) ||
		!strings.Contains(v.Line(), formatBytes(trunk+routed)) {
		t.Errorf("with room for all: %s\n%+v", v.Line(), v)
	}
}

// weightBytes is the size of all tensors of a file.
func weightBytes(t *testing.T, path string) (n int64) {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Tensors {
		n += f.Tensors[i].Size
	}
	return n
}

// A model in two files is one model. Of its table of embeddings, in the first file, rows are read,
// because the second file has an output matrix.
func TestSplit(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, modelConfig(gguf.F32))
	parts := llamatest.Split(t, model)
	var whole, split *Holding
	for path, h := range map[string]**Holding{model: &whole, parts[0]: &split} {
		pid, end := startLlama(t, in, llama.Options{Model: path})
		*h = examine(t, pid)
		end()
	}
	if len(split.Files) != 2 || !split.Exact || split.Mode != ModeMapped || split.Weights != whole.Weights ||
		split.PerToken != whole.PerToken || split.Files[0].PerToken+split.Files[1].PerToken != split.PerToken {
		t.Errorf("%+v\nas one file %+v", split, whole)
	}
}

// Two processes that use one model are noticed, as long as both run.
func TestOthers(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, modelConfig(gguf.F32))
	first, _ := startLlama(t, in, llama.Options{Model: model})
	second, end := startLlama(t, in, llama.Options{Model: model})
	h := examine(t, first)
	if len(h.Others) != 1 || h.Others[0] != (Other{second, "llamarun"}) {
		t.Fatalf("others: %v, want %d", h.Others, second)
	}
	v := h.Judge(-1, false)
	if i := slices.IndexFunc(v.Findings, func(f Finding) bool { return f.Reason == Shared }); i < 0 ||
		!v.Findings[i].Blocks || !slices.Equal(v.Findings[i].PIDs, []int{second}) || v.Helps {
		t.Errorf("%+v, want %s with process %d to block", v, Shared, second)
	}
	end()
	mapAsTool(t, model)
	if h := examine(t, first); len(h.Others) > 0 {
		t.Errorf("after its end, beside one of our tools: %v", h.Others)
	}
}

// envMapped is a file that this test program maps and touches, as a prefetchd of another target does.
const envMapped = "HOLDING_TEST_MAPPED"

// mapAsTool runs this test program as a tool that maps a file, until the test ends.
func mapAsTool(t *testing.T, path string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), envMapped+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// keepMapped maps a file, touches each page, says so, and waits to be killed.
func keepMapped(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	fmt.Println(len(data))
	time.Sleep(time.Hour)
	return nil
}

// A model on tmpfs is memory already. A model that was deleted, or has a name that would act on a
// terminal, is found nevertheless.
func TestPlaces(t *testing.T) {
	testenv.NeedRoot(t)
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, modelConfig(gguf.F32))
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	data, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	there := filepath.Join(dir, "a\x1b[31m\u202e.gguf")
	if err := os.WriteFile(there, data, 0o600); err != nil {
		t.Fatal(err)
	}
	pid, end := startLlama(t, in, llama.Options{Model: there})
	h := examine(t, pid)
	v := h.Judge(-1, false)
	if !slices.Equal(reasonsOf(v, true), []Reason{InMemory}) || v.Helps || h.Files[0].Store != StoreMemory ||
		strings.ContainsAny(v.Line(), "\x1b\u202e") || !strings.Contains(v.Line(), "tmpfs") {
		t.Errorf("%q, want %s to block, in printable text\n%+v", v.Line(), InMemory, h)
	}
	end()

	pid, _ = startLlama(t, in, llama.Options{Model: model})
	if err := os.Remove(model); err != nil {
		t.Fatal(err)
	}
	h = examine(t, pid)
	if v := h.Judge(-1, false); !v.Helps || len(h.Files) != 1 || h.Mode != ModeMapped {
		t.Errorf("deleted: %+v\n%+v", v, h)
	}
}

// BenchmarkExamine measures what Examine costs, with a vocabulary of usual size.
func BenchmarkExamine(b *testing.B) {
	testenv.NeedRoot(b)
	in := llamatest.ForTest(b)
	cfg := modelConfig(gguf.Q4_0)
	cfg.Layers, cfg.Vocab = 32, 128000
	cmd := in.Command(b.Context(), llama.Options{
		Model: llamatest.Model(b, cfg), Prompt: "x", Tokens: 8, Threads: 1, NoRepack: true, Repeat: 1 << 20,
		Stream: true,
	})
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := llama.NewStream(out); err != nil {
		b.Fatal(err)
	}
	e := New(cmd.Process.Pid)
	for name, look := range map[string]func() (*Holding, error){
		"first":  func() (*Holding, error) { return New(cmd.Process.Pid).Examine(b.Context(), Options{}) },
		"again":  func() (*Holding, error) { return e.Examine(b.Context(), Options{}) },
		"others": func() (*Holding, error) { return e.Examine(b.Context(), Options{Others: true}) },
	} {
		b.Run(name, func(b *testing.B) {
			before := processorTime(b)
			for b.Loop() {
				if h, err := look(); err != nil || !h.Exact {
					b.Fatalf("%+v, %v", h, err)
				}
			}
			// On a busy machine the time per operation says little.
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// processorTime is the CPU time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
