package synth

// This file tests the files: their layout, their bytes, how they are written, and which models are
// refused.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"tensorcast/gguf"
	"tensorcast/internal/testenv"
)

// small is a valid dense model. Tests change the settings that they are about.
func small(change func(*Config)) Config {
	c := Config{Layers: 2, Embd: 256, FF: 768, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1}
	if change != nil {
		change(&c)
	}
	return c
}

func mustPlan(t *testing.T, cfg Config) *Plan {
	t.Helper()
	p, err := NewPlan(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustWrite(t *testing.T, cfg Config) (*Plan, []byte) {
	t.Helper()
	p := mustPlan(t, cfg)
	var b bytes.Buffer
	if err := p.Write(t.Context(), &b, nil); err != nil {
		t.Fatal(err)
	}
	return p, b.Bytes()
}

// TestParsesBack compares what gguf reads from the file with the plan: every tensor's extent, type and shape.
func TestParsesBack(t *testing.T) {
	for name, cfg := range map[string]Config{
		"F32":   small(func(c *Config) { c.Type = gguf.F32 }),
		"F16":   small(func(c *Config) { c.Type = gguf.F16 }),
		"Q8_0":  small(nil),
		"Q4_0":  small(func(c *Config) { c.Type = gguf.Q4_0 }),
		"Q2_0":  small(func(c *Config) { c.Type = gguf.Q2_0 }),
		"Q1_0":  small(func(c *Config) { c.Type = gguf.Q1_0 }),
		"TQ1_0": small(func(c *Config) { c.Type = gguf.TQ1_0 }),
		"TQ2_0": small(func(c *Config) { c.Type = gguf.TQ2_0 }),
		"Q4_K":  small(func(c *Config) { c.Type = gguf.Q4_K }),
		"odd":   small(func(c *Config) { c.Type, c.Embd, c.FF, c.Heads, c.KVHeads = gguf.F16, 90, 77, 5, 1 }),
		"tied":  small(func(c *Config) { c.Tied = true }),
		"vocab": small(func(c *Config) { c.Vocab = 2000 }),
		"moe":   small(func(c *Config) { c.Experts, c.Used = 8, 2 }),
		"sigmoid": small(func(c *Config) {
			c.Arch, c.Sigmoid, c.Experts, c.Used, c.Groups, c.GroupsUsed, c.Shared = "deepseek2", true, 8, 2, 4, 2, 3
		}),
		"fused Q4_K": small(func(c *Config) {
			c.Arch, c.Fused, c.Experts, c.Used, c.Type = "deepseek2", true, 8, 2,
				gguf.Q4_K
		}),
		"qwen2moe":  small(func(c *Config) { c.Arch, c.Experts, c.Used = "qwen2moe", 8, 2 }),
		"qwen3moe":  small(func(c *Config) { c.Arch, c.Experts, c.Used = "qwen3moe", 8, 2 }),
		"gpt-oss":   small(func(c *Config) { c.Arch, c.Experts, c.Used = "gpt-oss", 8, 2 }),
		"deepseek4": small(func(c *Config) { c.Arch, c.Experts, c.Used, c.Hashed = "deepseek4", 8, 2, 1 }),
		"table":     small(func(c *Config) { c.Table, c.PerLayer = 3<<20, 512 }),
		"table and experts": small(func(c *Config) {
			c.Table, c.Experts, c.Used, c.Tied, c.Fused = 1<<20, 8, 2, true, true
		}),
	} {
		t.Run(name, func(t *testing.T) {
			p, b := mustWrite(t, cfg)
			if int64(len(b)) != p.Size {
				t.Errorf("wrote %d bytes, want %d as planned", len(b), p.Size)
			}
			f, err := gguf.Parse(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				t.Fatal(err)
			}
			if f.Version != 3 {
				t.Errorf("version %d, want 3", f.Version)
			}
			var got []Tensor
			for _, ft := range f.Tensors {
				got = append(got, Tensor{Name: ft.Name, Type: ft.Type, Shape: ft.Shape, Offset: ft.Offset,
					Size: ft.Size})
			}
			var want []Tensor
			for _, pt := range p.Tensors {
				pt.spans = nil
				want = append(want, pt)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("tensors: got %v, want %v", got, want)
			}
			tokens, err := f.Strings("tokenizer.ggml.tokens")
			if err != nil || len(tokens) != p.Config.Vocab {
				t.Fatalf("%d tokens, want %d", len(tokens), p.Config.Vocab)
			}
			seen := map[string]bool{}
			for _, text := range tokens {
				if seen[text] {
					t.Fatalf("token %q twice", text)
				}
				seen[text] = true
			}
		})
	}
}

// TestLikeTrained compares the layout with that of trained models, as llama.cpp's own tools wrote
// them: the same tensors in the same order with the same shapes, and the same vocabulary.
func TestLikeTrained(t *testing.T) {
	testenv.SkipWithRace(t)
	for name, cfg := range map[string]Config{
		"tiny-dense-q8_0": small(func(c *Config) { c.Layers, c.KVHeads = 6, 4 }),
		"tiny-dense-f16":  small(func(c *Config) { c.Layers, c.KVHeads, c.Type = 6, 4, gguf.F16 }),
		"tiny-moe-q8_0":   small(func(c *Config) { c.Layers, c.KVHeads, c.FF, c.Experts, c.Used = 6, 4, 256, 16, 2 }),
	} {
		t.Run(name, func(t *testing.T) {
			// tensorcast lies beside shared.
			trained, err := gguf.Open(filepath.Join("../../../shared/data/models", name+".gguf"))
			if errors.Is(err, os.ErrNotExist) {
				t.Skip("no trained models in ../shared/data/models")
			} else if err != nil {
				t.Fatal(err)
			}
			_, b := mustWrite(t, cfg)
			f, err := gguf.Parse(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				t.Fatal(err)
			}
			if len(f.Tensors) != len(trained.Tensors) {
				t.Fatalf("%d tensors, want %d as in the trained model", len(f.Tensors), len(trained.Tensors))
			}
			for i, want := range trained.Tensors {
				got := f.Tensors[i]
				if got.Name != want.Name || got.Type != want.Type || !reflect.DeepEqual(got.Shape, want.Shape) ||
					got.Offset-f.DataOffset != want.Offset-trained.DataOffset {
					t.Errorf("tensor %d: got %v, trained %v", i, got, want)
				}
			}
			for _, key := range []string{"llama.embedding_length", "llama.feed_forward_length", "llama.block_count",
				"llama.attention.head_count_kv",
				"llama.rope.dimension_count", "llama.vocab_size", "llama.expert_count", "llama.expert_used_count",
				"general.file_type", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"} {
				got, _ := f.Uint(key)
				if want, _ := trained.Uint(key); got != want {
					t.Errorf("%s: %d, trained %d", key, got, want)
				}
			}
			got, err := f.Strings("tokenizer.ggml.tokens")
			if want, err2 := trained.Strings("tokenizer.ggml.tokens"); err != nil || err2 != nil ||
				!reflect.DeepEqual(got, want) {
				t.Errorf("vocabulary: got %q, %v, trained %q, %v", got, err, want, err2)
			}
		})
	}
}

// TestBytes pins the bytes. Equal seeds give equal files on every machine and in every later
// version, otherwise experiments could not be repeated. If a change of the values is intended,
// change the sums.
func TestBytes(t *testing.T) {
	testenv.SkipWithRace(t)
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{small(func(c *Config) { c.Type = gguf.F32; c.Tied = true }), "68fc8fd4ea2b298e"},
		{small(func(c *Config) { c.Type = gguf.F16 }), "af44779823e2c0c3"},
		{small(nil), "06fe578b00a5714e"},
		{small(func(c *Config) { c.Type = gguf.Q4_0 }), "7386812cb0fe0f97"},
		{small(func(c *Config) { c.Type, c.Experts, c.Used = gguf.Q4_K, 4, 2 }), "e5bd86b97041a666"},
		{small(func(c *Config) { c.Arch, c.Sigmoid, c.Fused, c.Experts, c.Used = "deepseek2", true, true, 4, 2 }),
			"b81768629aaec01c"},
		{small(func(c *Config) { c.Arch, c.Hashed, c.Experts, c.Used = "deepseek4", 1, 4, 2 }), "4039e93c7228f29d"},
		{small(func(c *Config) { c.Arch, c.Experts, c.Used = "gpt-oss", 4, 2 }), "549851cac977e222"},
		{small(func(c *Config) { c.Table, c.Experts, c.Used = 1<<20, 4, 2 }), "a4342573b61e91d5"},
		{small(func(c *Config) { c.Arch, c.Experts, c.Used = "qwen2moe", 4, 2 }), "79ab01b5346f6ece"},
		{small(func(c *Config) { c.Arch, c.Experts, c.Used = "qwen3moe", 4, 2 }), "e5466be45b84cd3a"},
	} {
		t.Run(tt.cfg.Arch+tt.cfg.Type.String(), func(t *testing.T) {
			_, b := mustWrite(t, tt.cfg)
			sum := sha256.Sum256(b)
			if got := hex.EncodeToString(sum[:8]); got != tt.want {
				t.Errorf("file's SHA-256 begins %s, want %s", got, tt.want)
			}
		})
	}
}

func TestSeedChangesEveryTensor(t *testing.T) {
	p, a := mustWrite(t, small(nil))
	q, b := mustWrite(t, small(func(c *Config) { c.Seed = 2 }))
	for i, x := range p.Tensors {
		y := q.Tensors[i]
		if bytes.Equal(a[x.Offset:x.Offset+x.Size], b[y.Offset:y.Offset+y.Size]) {
			t.Errorf("%s is the same with another seed", x.Name)
		}
	}
	// Two tensors of one model differ too.
	k, v := p.Tensors[3], p.Tensors[7]
	if k.Name != "blk.0.attn_k.weight" || v.Name != "blk.0.attn_v.weight" {
		t.Fatalf("tensors 3 and 7 are %s and %s", k.Name, v.Name)
	}
	if bytes.Equal(a[k.Offset+2:k.Offset+34], a[v.Offset+2:v.Offset+34]) {
		t.Error("attn_k and attn_v hold the same codes")
	}
}

// TestConstantMemory writes a model that is fifty times larger than the memory that writing may
// allocate.
func TestConstantMemory(t *testing.T) {
	cfg, err := Sized(300e6, Config{Type: gguf.F32})
	if err != nil {
		t.Fatal(err)
	}
	p := mustPlan(t, cfg)
	var last int64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = p.Write(t.Context(), io.Discard, func(written int64) {
		if written < last || written > last+chunkBytes {
			t.Fatalf("progress went from %d to %d, want steps of a chunk at most", last, written)
		}
		last = written
	})
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if last != p.Size {
		t.Errorf("progress ended at %d, want %d", last, p.Size)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 6<<20 {
		t.Errorf("writing %d bytes allocated %d, want 6 MiB at most", p.Size, got)
	}
}

// names lists a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestWriteFile(t *testing.T) {
	p, want := mustWrite(t, small(nil))
	dir := t.TempDir()
	target, link := filepath.Join(dir, "model.gguf"), filepath.Join(dir, "link.gguf")
	if err := os.Symlink("model.gguf", link); err != nil {
		t.Fatal(err)
	}
	for i, path := range []string{target, target, link} { // a new file, an old one, and a link
		if err := p.WriteFile(t.Context(), path, nil); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(target)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d: the file is not what Write writes", i)
		}
		if got := names(t, dir); !reflect.DeepEqual(got, []string{"link.gguf", "model.gguf"}) {
			t.Errorf("%d: the directory holds %q, want the link and the model", i, got)
		}
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v, %v; want a link", info, err)
	}
}

func TestWriteFileFails(t *testing.T) {
	p := mustPlan(t, small(nil))
	dir := t.TempDir()
	path := filepath.Join(dir, "model.gguf")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	err := p.WriteFile(ctx, path, func(written int64) {
		if written > p.Size/2 {
			cancel(reason)
		}
	})
	if !errors.Is(err, reason) {
		t.Errorf("cancelled: error %v, want the cause", err)
	}
	if err := p.WriteFile(t.Context(), dir, nil); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("to a directory: error %v, want one that says so", err)
	}
	if err := p.WriteFile(t.Context(), filepath.Join(dir, "none", "model.gguf"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("into no directory: error %v, want ErrNotExist", err)
	}
	if got := names(t, dir); !reflect.DeepEqual(got, []string{"model.gguf"}) {
		t.Errorf("failures left %q, want the old model only", got)
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("failures changed the old file to %d bytes", len(got))
	}
	if err := p.WriteFile(t.Context(), os.DevNull, nil); err != nil {
		t.Errorf("to a device: %v", err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Fatalf("%s was replaced", os.DevNull)
	}
}

// fullDisk accepts a limited number of bytes.
type fullDisk struct{ left int }

var errFull = errors.New("disk full")

func (d *fullDisk) Write(b []byte) (int, error) {
	n := min(len(b), d.left)
	d.left -= n
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

func TestWriteError(t *testing.T) {
	p := mustPlan(t, small(nil))
	for _, room := range []int64{0, 100, int64(len(p.header)), p.Size / 2, p.Size - 1} {
		if err := p.Write(t.Context(), &fullDisk{int(room)}, nil); !errors.Is(err, errFull) {
			t.Errorf("with room for %d bytes: error %v, want errFull", room, err)
		}
	}
	if err := p.Write(t.Context(), &fullDisk{int(p.Size)}, nil); err != nil {
		t.Errorf("with room for all: %v", err)
	}
}

func TestImpossible(t *testing.T) {
	for _, tt := range []struct {
		setting string
		change  func(*Config)
	}{
		{"layers", func(c *Config) { c.Layers = 0 }},
		{"layers", func(c *Config) { c.Layers = 513 }},
		{"embd", func(c *Config) { c.Embd = -256 }},
		{"embd", func(c *Config) { c.Embd = 272 }},
		{"embd", func(c *Config) { c.Type, c.Embd = gguf.Q4_K, 128 }},
		{"embd", func(c *Config) { c.Embd = 1 << 40 }},
		{"ff", func(c *Config) { c.FF = 0 }},
		{"ff", func(c *Config) { c.FF = 100 }},
		{"heads", func(c *Config) { c.Heads = 0 }},
		{"heads", func(c *Config) { c.Heads = 3 }},
		{"heads", func(c *Config) { c.Heads, c.KVHeads = 256, 1 }}, // width 1: no pairs to rotate
		{"kv-heads", func(c *Config) { c.KVHeads = 0 }},
		{"kv-heads", func(c *Config) { c.KVHeads = 3 }},
		{"kv-heads", func(c *Config) { c.KVHeads = 8 }},
		{"vocab", func(c *Config) { c.Vocab = 258 }},
		{"ctx", func(c *Config) { c.Ctx = -1 }},
		{"experts", func(c *Config) { c.Experts, c.Used = 1, 1 }},
		{"experts", func(c *Config) { c.Experts, c.Used = 513, 1 }},
		{"experts", func(c *Config) { c.Used = 2 }},
		{"used", func(c *Config) { c.Experts = 8 }},
		{"used", func(c *Config) { c.Experts, c.Used = 8, 9 }},
		{"type", func(c *Config) { c.Type = gguf.Q6_K }},
		{"type", func(c *Config) { c.Type = 4 }},
		{"arch", func(c *Config) { c.Arch = "gpt2" }},
		{"experts", func(c *Config) { c.Arch = "qwen3moe" }}, // it has no dense form
		{"used", func(c *Config) { c.Arch, c.Experts = "gpt-oss", 4 }},
		{"groups", func(c *Config) { c.Groups, c.GroupsUsed = 2, 1 }},
		{"groups", func(c *Config) { c.Experts, c.Used, c.Groups, c.GroupsUsed = 8, 2, 1, 1 }},
		{"groups", func(c *Config) { c.Experts, c.Used, c.Groups, c.GroupsUsed = 8, 2, 3, 1 }},
		{"groups", func(c *Config) { c.Experts, c.Used, c.Groups, c.GroupsUsed = 8, 2, 8, 1 }},
		{"groups-used", func(c *Config) { c.Experts, c.Used, c.Groups, c.GroupsUsed = 8, 2, 4, 4 }},
		{"groups-used", func(c *Config) { c.Experts, c.Used, c.Groups = 8, 2, 4 }},
		{"groups-used", func(c *Config) { c.Experts, c.Used, c.Groups, c.GroupsUsed = 8, 5, 4, 2 }},
		{"groups-used", func(c *Config) { c.Experts, c.Used, c.GroupsUsed = 8, 2, 2 }},
		{"shared", func(c *Config) { c.Shared = 1 }},
		{"shared", func(c *Config) { c.Arch, c.Experts, c.Used, c.Shared = "deepseek2", 8, 2, -1 }},
		{"shared", func(c *Config) { c.Arch, c.Experts, c.Used, c.Shared, c.FF = "deepseek2", 8, 2, 512, 1<<20 }},
		{"sigmoid", func(c *Config) { c.Arch, c.Experts, c.Used, c.Sigmoid = "qwen2moe", 8, 2, true }},
		{"fused", func(c *Config) { c.Experts, c.Used, c.Fused = 8, 2, true }},
		{"hashed", func(c *Config) { c.Arch, c.Experts, c.Used, c.Hashed = "deepseek2", 8, 2, 1 }},
		{"hashed", func(c *Config) { c.Arch, c.Experts, c.Used, c.Hashed = "deepseek4", 8, 2, 3 }},
		{"tied", func(c *Config) { c.Arch, c.Experts, c.Used, c.Tied = "gpt-oss", 8, 2, true }},
		{"table", func(c *Config) { c.Arch, c.Table = "llama", 1<<20 }},
		{"table", func(c *Config) { c.Arch, c.PerLayer = "llama", 256 }},
		{"table", func(c *Config) { c.Arch, c.Table = "gemma4", -1 }},
		{"table", func(c *Config) { c.Table = 1 << 40 }},
		{"per-layer", func(c *Config) { c.Table, c.PerLayer = 1<<20, 100 }},
		{"per-layer", func(c *Config) { c.Table, c.PerLayer = 1<<20, -32 }},
		{"layers", func(c *Config) { c.Table, c.Layers = 1<<20, 1 }},
		{"layers", func(c *Config) { c.Arch, c.Experts, c.Used, c.Layers = "deepseek2", 8, 2, 27 }},
		{"heads", func(c *Config) { c.Arch, c.Experts, c.Used, c.Heads, c.KVHeads = "deepseek2", 8, 2, 128, 1 }},
		{"heads", func(c *Config) { c.Arch, c.Experts, c.Used, c.Heads, c.KVHeads = "deepseek4", 8, 2, 16, 1 }},
	} {
		_, err := NewPlan(small(tt.change))
		var config *ConfigError
		if !errors.As(err, &config) || config.Setting != tt.setting {
			t.Errorf("%+v: error %v, want one about %s", small(tt.change), err, tt.setting)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("error of several lines: %q", err)
		}
	}
	// The largest model that is allowed must not overflow.
	p := mustPlan(t, Config{Layers: 512, Embd: 1 << 20, FF: 1 << 20, Heads: 1, KVHeads: 1, Experts: 512, Used: 1,
		Vocab: 1 << 12, Type: gguf.F32})
	if want := int64(512) * 3 * 512 << 42; p.Size < want || p.Size > want+want/100 {
		t.Errorf("largest model: %d bytes, want a little over %d", p.Size, want)
	}
}

func TestParseType(t *testing.T) {
	for _, want := range Types() {
		for _, name := range []string{want.String(), strings.ToLower(want.String())} {
			if got, err := ParseType(name); err != nil || got != want {
				t.Errorf("ParseType(%q) = %v, %v, want %v", name, got, err, want)
			}
		}
	}
	var config *ConfigError
	if _, err := ParseType("Q6_K"); !errors.As(err, &config) {
		t.Errorf("ParseType(Q6_K): error %v, want a *ConfigError", err)
	}
}

func TestSized(t *testing.T) {
	testenv.SkipWithRace(t)
	for _, tt := range []struct {
		target    float64
		tolerance float64
		cfg       Config
	}{
		{1e6, 0.06, Config{Type: gguf.Q8_0}},
		{20e6, 0.02, Config{Type: gguf.Q4_K}},
		{50e6, 0.02, Config{Type: gguf.Q8_0}},
		{100e6, 0.02, Config{Type: gguf.F32}},
		{1.2e9, 0.02, Config{Type: gguf.Q8_0}},
		{1.2e9, 0.02, Config{Type: gguf.Q4_K, Vocab: 32000, Tied: true}},
		{70e9, 0.02, Config{Type: gguf.Q4_0}},
		{300e6, 0.02, Config{Type: gguf.Q8_0, Experts: 32, Used: 4}},
		{1.4e9, 0.02, Config{Type: gguf.Q4_K, Experts: 32, Used: 4}},
		{60e9, 0.02, Config{Type: gguf.Q4_K, Experts: 128, Used: 8}},
	} {
		cfg, err := Sized(int64(tt.target), tt.cfg)
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		size := float64(mustPlan(t, cfg).Size)
		if off := size/tt.target - 1; off < -tt.tolerance || off > tt.tolerance {
			t.Errorf("%+v gives %.0f bytes, want the target within the tolerance", tt, size)
		}
		if tt.target >= 50e6 && (cfg.Layers < 4 || cfg.Layers > 2*max(4, cfg.Embd/128)) {
			t.Errorf("%+v gives %d layers of width %d", tt, cfg.Layers, cfg.Embd)
		}
	}
	for name, bad := range map[string]struct {
		target int64
		cfg    Config
	}{
		"zero":         {0, Config{Type: gguf.Q8_0}},
		"negative":     {-1, Config{Type: gguf.Q8_0}},
		"too small":    {1000, Config{Type: gguf.Q8_0}},
		"too large":    {1 << 62, Config{Type: gguf.Q8_0}},
		"bad type":     {1e9, Config{Type: gguf.Q6_K}},
		"no such type": {1e9, Config{Type: 4}},
		"bad experts":  {1e9, Config{Type: gguf.Q8_0, Experts: 4, Used: 5}},
		"a table":      {1e9, Config{Type: gguf.Q8_0, Table: 1e8}},
		"another arch": {1e9, Config{Type: gguf.Q8_0, Experts: 4, Used: 2, Arch: "gpt-oss"}},
	} {
		var config *ConfigError
		if cfg, err := Sized(bad.target, bad.cfg); !errors.As(err, &config) {
			t.Errorf("%s: %+v, error %v; want a *ConfigError", name, cfg, err)
		}
	}
}

// TestHashed checks the table by which token ids choose experts. No token has an expert twice, and
// all experts are about equally frequent. The table is larger than the piece that is generated at a
// time.
func TestHashed(t *testing.T) {
	const used, experts, vocab = 3, 7, 100_000
	p, b := mustWrite(t, small(func(c *Config) {
		c.Arch, c.Hashed, c.Experts, c.Used, c.Vocab, c.Embd, c.FF, c.Layers = "deepseek4", 1, experts, used, vocab,
			128, 32, 1
	}))
	i := slices.IndexFunc(p.Tensors, func(t Tensor) bool { return t.Name == "blk.0.ffn_gate_tid2eid.weight" })
	table := b[p.Tensors[i].Offset:][:p.Tensors[i].Size]
	if len(table) != 4*used*vocab {
		t.Fatalf("%d bytes, want 4 for each choice", len(table))
	}
	var count [experts]int
	for row := range slices.Chunk(table, 4*used) {
		seen := map[uint32]bool{}
		for id := range slices.Chunk(row, 4) {
			e := binary.LittleEndian.Uint32(id)
			if e >= experts || seen[e] {
				t.Fatalf("row %v", row)
			}
			seen[e] = true
			count[e]++
		}
	}
	for e, n := range count {
		if mean := used * vocab / experts; n < mean*98/100 || n > mean*102/100 {
			t.Errorf("expert %d is chosen %d times, want about the average of %d", e, n, mean)
		}
	}
}
