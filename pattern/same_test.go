package pattern_test

// These tests feed one stream of events both to a capture and to a Builder. Both must give the same
// cycle.

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"tensorcast/capture/preload"
	"tensorcast/ebpf"
	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/pattern"
	"tensorcast/trace"
)

// both passes a stream of events of one context to a capture and to a Builder.
type both struct {
	t        *testing.T
	session  *trace.Session
	builder  *pattern.Builder
	dir      string
	files    []pattern.CycleFile
	byID     map[event.FileID]int
	prompted bool
	tokens   int
}

func newBoth(t *testing.T, detail string) *both {
	b := &both{t: t, dir: filepath.Join(t.TempDir(), "capture"), byID: map[event.FileID]int{}}
	var err error
	if b.session, err = trace.NewSession(trace.RecorderOptions{
		Dir: b.dir, PID: os.Getpid(), Detail: detail,
	}); err != nil {
		t.Fatal(err)
	}
	b.builder = pattern.NewBuilder(func(id event.FileID) (int, bool) { i, ok := b.byID[id]; return i, ok })
	return b
}

// handle passes on the next event. The Builder gets the decodes that a capture counts as generated
// tokens.
func (b *both) handle(e event.Event) error {
	switch e := e.(type) {
	case event.FileSeen:
		if err := b.registerFile(e); err != nil {
			return err
		}
	case event.DecodeBegin:
		if b.prompted && e.Tokens == 1 && !e.Warmup {
			b.builder.Begin()
			b.tokens++
		}
		b.prompted = b.prompted || !e.Warmup
	case event.DecodeEnd:
		b.builder.End()
	case *event.Op:
		b.builder.Op(e)
	}
	return b.session.Handle(e)
}

// registerFile registers a file if it belongs to the model.
func (b *both) registerFile(e event.FileSeen) error {
	m, err := gguf.OpenModel(e.Path)
	if errors.Is(err, gguf.ErrNotGGUF) {
		return nil
	}
	if err != nil {
		return err
	}
	if b.files == nil {
		if b.files, err = pattern.FilesOf(m); err != nil {
			return err
		}
	}
	info, err := os.Stat(e.Path)
	if err != nil {
		return err
	}
	for i, f := range m.Files {
		if other, err := os.Stat(f.Path); err == nil && os.SameFile(info, other) {
			b.byID[e.File] = i
		}
	}
	return nil
}

// finish ends the capture. It returns the pattern of what was captured, and its cycle.
func (b *both) finish() (*pattern.Pattern, *pattern.Cycle) {
	t := b.t
	t.Helper()
	if _, err := b.session.Finish(nil); err != nil {
		t.Fatal(err)
	}
	c, err := trace.Open(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	options, err := pattern.OptionsOf(c.Meta, c.Steps())
	if err != nil {
		t.Fatal(err)
	}
	p, err := pattern.Build(c.Structure, c.Accesses(), options)
	if err != nil {
		t.Fatal(err)
	}
	cycle, err := p.Cycle(c.Meta)
	if err != nil {
		t.Fatal(err)
	}
	return p, cycle
}

// compareCycles ends the capture, checks that the two cycles are equal, and returns the cycle.
func (b *both) compareCycles() *pattern.Cycle {
	t := b.t
	t.Helper()
	_, captured := b.finish()
	learned := b.builder.Cycle()
	if learned == nil || b.builder.Steps() != b.tokens || b.tokens == 0 {
		t.Fatalf("%d of %d tokens have the same sequence", b.builder.Steps(), b.tokens)
	}
	if o := b.builder.Outside(); o != (pattern.Outside{}) {
		t.Errorf("outside %+v; want %v", o, (pattern.Outside{}))
	}
	if len(learned.Reads) != len(captured.Reads) {
		t.Fatalf("%d reads were learned, %d captured", len(learned.Reads), len(captured.Reads))
	}
	for i := range learned.Reads {
		if learned.Reads[i] != captured.Reads[i] {
			t.Errorf("read %d: learned %+v, captured %+v", i, learned.Reads[i], captured.Reads[i])
		}
	}
	if _, err := captured.MatchFiles(b.files); err != nil {
		t.Error(err)
	}
	var file bytes.Buffer
	if err := captured.Write(&file); err != nil {
		t.Fatal(err)
	}
	read, err := pattern.ReadCycle(&file)
	if err != nil || !reflect.DeepEqual(read, captured) {
		t.Errorf("written and read again it is another: %v; want %v", err, captured)
	}
	return captured
}

// probed runs a command under probes.
func probed(t *testing.T, cmd *exec.Cmd, handle func(event.Event) error) {
	t.Helper()
	child, err := proc.Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	tracer, err := ebpf.New(ebpf.Options{PID: child.PID(), Hints: cmd.Args, Detail: ebpf.DetailIO})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tracer.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := tracer.AttachLikely(cmd.Path, os.Environ()); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ran := make(chan error, 1)
	go func() { ran <- tracer.Run(ctx, handle) }()
	status, err := 0, child.Release()
	if err == nil {
		status, err = child.Wait()
	}
	end()
	if runErr := <-ran; err != nil || runErr != nil || status != 0 {
		t.Fatalf("status %d, %v, %v; want 0", status, err, runErr)
	}
	if counters, err := tracer.Counters(); err != nil || counters.Lost() > 0 || counters.Incomplete() > 0 {
		t.Fatalf("counters %+v, %v; want counters.Lost() at most 0, counters.Incomplete() at most 0", counters, err)
	}
}

// preloaded runs a command with the preloaded library.
func preloaded(t *testing.T, cmd *exec.Cmd, handle func(event.Event) error) {
	t.Helper()
	session, err := preload.Start(t.Context(), preload.Options{Tick: func() error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}()
	cmd.Env = session.Environ(os.Environ())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		end()
	}()
	if err := errors.Join(session.Run(ctx, cmd.Process.Pid, handle), <-ended); err != nil {
		t.Fatal(err)
	}
}

// The real llama.cpp is observed by probes and by the preloaded library. A capture and a Builder
// give the same cycle, and a token's bytes are those that the driver reports.
func TestCaptureAndBuilderTellTheSame(t *testing.T) {
	in := llamatest.ForTest(t)
	for name, config := range map[string]synth.Config{
		"dense":   {Layers: 3, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1},
		"experts": {Layers: 3, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 8, Used: 3, Type: gguf.Q8_0, Seed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			o := llama.Options{
				Model: llamatest.Model(t, config), Prompt: "once upon", Tokens: 8, Threads: 2,
				NoRepack: true, Warmup: "none",
			}
			cmd := in.Command(t.Context(), o)
			truth := tokenBytes(t, in, o)
			check := func(c *pattern.Cycle, timed bool) {
				t.Helper()
				if got := c.Bytes(); got != truth {
					t.Errorf("a token reads %d bytes, want %d", got, truth)
				}
				var experts int
				for i := range c.Reads {
					r := &c.Reads[i]
					if r.Experts {
						experts++
						if r.Slices != config.Used || r.Slice*int64(config.Experts) != r.Length {
							t.Errorf("read %+v of %d of %d experts", *r, config.Used, config.Experts)
						}
					}
					if timed != (r.Nanos >= 0) {
						t.Errorf("read %+v", *r)
					}
				}
				if want := 3 * config.Layers; config.Experts > 0 && experts != want || config.Experts == 0 &&
					experts != 0 {
					t.Errorf("%d reads of experts, want %d", experts, want)
				}
			}
			t.Run("probes", func(t *testing.T) {
				testenv.NeedRoot(t)
				b := newBoth(t, "")
				probed(t, in.Command(t.Context(), o), b.handle)
				check(b.compareCycles(), true)
			})
			t.Run("preload", func(t *testing.T) {
				b := newBoth(t, "preload")
				preloaded(t, cmd, b.handle)
				check(b.compareCycles(), false)
			})
		})
	}
}

// tokenBytes returns how many bytes a generated token reads, according to the driver.
func tokenBytes(t *testing.T, in *llama.Installation, o llama.Options) int64 {
	t.Helper()
	o.Ops = filepath.Join(t.TempDir(), "ops")
	if _, err := in.Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	ops, err := llama.ReadOps(o.Ops)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, op := range ops {
		if op.Decode == ops[len(ops)-1].Decode {
			sum += op.Bytes // these models read no weight twice
		}
	}
	return sum
}

// The second of a model's two files is seen first. Reads are still numbered by the files' order in
// the model.
func TestSplitModelsTellTheSame(t *testing.T) {
	dir := t.TempDir()
	split := func(no uint16, name string, tensors ...gguftest.Tensor) string {
		path := filepath.Join(dir, name)
		m := gguftest.Model{
			KVs: []gguftest.KV{{Key: "split.no", Value: no}, {Key: "split.count", Value: uint16(2)},
				{Key: "split.tensors.count", Value: int32(3)}},
			Tensors: tensors,
		}
		if no == 0 {
			m.KVs = append(m.KVs, gguftest.KV{Key: "general.architecture", Value: "llama"})
		}
		m.Write(t, path)
		return path
	}
	paths := []string{
		split(0, "m-00001-of-00002.gguf", gguftest.Tensor{
			Name: "token_embd.weight", Type: gguf.F32, Shape: []int64{8, 100},
		}),
		split(1, "m-00002-of-00002.gguf",
			gguftest.Tensor{Name: "blk.0.ffn_up_exps.weight", Type: gguf.Q8_0, Shape: []int64{64, 5, 8}},
			gguftest.Tensor{Name: "output.weight", Type: gguf.F32, Shape: []int64{8, 100}}),
	}
	model, err := gguf.OpenModel(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	ids := []event.FileID{{Dev: 1, Ino: 10}, {Dev: 1, Ino: 11}}
	source := func(name string) event.Source {
		at, ok := model.Lookup(name)
		if !ok {
			t.Fatalf("no tensor %s", name)
		}
		s := event.Source{
			Name: name, InFile: true, File: ids[at.File], Offset: at.Tensor.Offset,
			Type: at.Tensor.Type, NE: [4]int64{1, 1, 1, 1},
		}
		copy(s.NE[:], at.Tensor.Shape)
		s.NB[0] = at.Tensor.Type.BlockBytes()
		s.NB[1] = s.NB[0] * (s.NE[0] / at.Tensor.Type.BlockElems())
		s.NB[2], s.NB[3] = s.NB[1]*s.NE[1], s.NB[1]*s.NE[1]*s.NE[2]
		return s
	}
	b := newBoth(t, "")
	hand := func(events ...event.Event) {
		t.Helper()
		for _, e := range events {
			if err := b.handle(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range ids {
		here, err := proc.FileOf(paths[1-i])
		if err != nil {
			t.Fatal(err)
		}
		hand(event.FileSeen{File: ids[1-i], Path: paths[1-i], ID: here})
	}
	time := int64(0)
	for decode := range uint32(6) {
		begin := event.DecodeBegin{Time: time, TID: 7, Context: 5, Decode: decode + 1, Tokens: 1}
		if decode == 0 {
			begin.Tokens = 4
		}
		hand(begin)
		for i, o := range []event.Op{
			{Name: "GET_ROWS", GatherDim: 1, IDs: []int32{int32(decode)}, IDRows: 1,
				Sources: []event.Source{source("token_embd.weight")}},
			{Name: "MUL_MAT_ID", GatherDim: 2, ByExpert: true, IDs: []int32{int32(decode), 7}, IDRows: 1,
				Sources: []event.Source{source("blk.0.ffn_up_exps.weight")}},
			{Name: "RMS_NORM+MUL", Sources: []event.Source{source("output.weight"), source("token_embd.weight")}},
		} {
			time += 1000
			o.Time, o.TID, o.Decode, o.Duration, o.Stall = time, 7, decode+1, 900-int64(decode*uint32(i+1)),
				int64(decode)
			hand(&o)
		}
		hand(event.DecodeEnd{Time: time + 1000, TID: 7, Decode: decode + 1})
	}
	c := b.compareCycles()
	want := []pattern.CycleRead{
		{File: 0, Tensor: "token_embd.weight", Op: "GET_ROWS", Offset: model.Files[0].Tensors[0].Offset, Length: 3200,
			Slice: 32, Slices: 1, Nanos: 890},
		{File: 1, Tensor: "blk.0.ffn_up_exps.weight", Op: "MUL_MAT_ID", Offset: model.Files[1].Tensors[0].Offset,
			Length: 2720, Slice: 340, Slices: 2, Experts: true, Nanos: 885},
		{File: 1, Tensor: "output.weight", Op: "RMS_NORM+MUL", Offset: model.Files[1].Tensors[1].Offset, Length: 3200,
			Nanos: 880},
		{File: 0, Tensor: "token_embd.weight", Op: "RMS_NORM+MUL", Offset: model.Files[0].Tensors[0].Offset,
			Length: 3200, Nanos: 0},
	}
	if !reflect.DeepEqual(c.Reads, want) {
		t.Errorf("reads\n%+v, want\n%+v", c.Reads, want)
	}
}

// A real llama.cpp that only reads a prompt goes through the model once for each 512 tokens. Its capture has the
// cycle of a token, though the prompt gathers more rows and experts, and ends early where no output is wanted.
func TestPromptHasTheCycleOfAToken(t *testing.T) {
	in := llamatest.ForTest(t)
	for name, config := range map[string]synth.Config{
		"dense":   {Layers: 3, Embd: 256, FF: 512, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1},
		"experts": {Layers: 3, Embd: 256, FF: 256, Heads: 4, KVHeads: 2, Experts: 8, Used: 3, Type: gguf.Q8_0, Seed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			build := func(o llama.Options) (*pattern.Pattern, *pattern.Cycle) {
				t.Helper()
				b := newBoth(t, "preload")
				preloaded(t, in.Command(t.Context(), o), b.handle)
				return b.finish()
			}
			o := llama.Options{
				Model: llamatest.Model(t, config), Prompt: "once upon", Tokens: 4, Threads: 2, NoRepack: true,
				Warmup: "none",
			}
			_, want := build(o)
			o.Tokens, o.Prompt, o.Context = 0, strings.Repeat("many words of a long text ", 50), 2048
			p, got := build(o)
			if p.Generates() || p.Passes() != 3 {
				t.Errorf("%s: %d passes; want 3 of a prompt of 1300 tokens", p.Basis(), p.Passes())
			}
			if len(got.Reads) != len(want.Reads) {
				t.Fatalf("%d reads in a pass, want the %d of a token", len(got.Reads), len(want.Reads))
			}
			for i := range got.Reads {
				r := got.Reads[i]
				if r.Gathers() && r.Slices < want.Reads[i].Slices {
					t.Errorf("read %+v gathers less than that of a token, %+v", r, want.Reads[i])
				}
				r.Slices = want.Reads[i].Slices
				if r != want.Reads[i] {
					t.Errorf("read %d: %+v, want %+v", i, r, want.Reads[i])
				}
			}
		})
	}
}
