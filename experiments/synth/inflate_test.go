package synth

// This file tests models with heavier experts: the tensors, the metadata and the errors.

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/testenv"
)

// TestScales checks that a block whose scales are 0 decodes to zeros, whatever else it holds.
func TestScales(t *testing.T) {
	random := stream(1, "")
	for typ, offsets := range scales {
		if len(offsets) == 0 {
			continue
		}
		block := make([]byte, typ.BlockBytes())
		values := make([]float32, typ.BlockElems())
		decode := func() bool {
			if err := gguf.Dequantize(values, typ, block); err != nil {
				t.Fatal(err)
			}
			return !slices.ContainsFunc(values, func(v float32) bool { return v != 0 })
		}
		for range 100 {
			random.Read(block)
			for _, s := range offsets {
				block[s], block[s+1] = 0, 0
			}
			if !decode() {
				t.Fatalf("%v: %x decodes to %v", typ, block, values)
			}
		}
		// Each of the scales matters: none is set to 0 in vain.
		for _, s := range offsets {
			block[s], block[s+1] = 0x00, 0x3c // 1
			if decode() {
				t.Errorf("%v: %x decodes to zeros", typ, block)
			}
			block[s], block[s+1] = 0, 0
		}
	}
}

func inflated(t *testing.T, b []byte, factor int, seed uint64) ([]byte, *Inflation) {
	t.Helper()
	f, err := gguf.Parse(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	inf, err := NewInflation(f, factor, seed)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var last int64
	if err := inf.Write(t.Context(), &out, bytes.NewReader(b), func(n int64) { last = n }); err != nil {
		t.Fatal(err)
	}
	if int64(out.Len()) != inf.Size || last != inf.Size {
		t.Errorf("wrote %d bytes, reported %d, want %d", out.Len(), last, inf.Size)
	}
	return out.Bytes(), inf
}

// values decodes a tensor of the file in b.
func values(t *testing.T, b []byte, tensor *gguf.Tensor) []float32 {
	t.Helper()
	n := int64(1)
	for _, d := range tensor.Shape {
		n *= d
	}
	v := make([]float32, n)
	if err := gguf.Dequantize(v, tensor.Type, b[tensor.Offset:tensor.End()]); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestInflate checks every value: the old ones are where a wider expert has them, all others are 0.
func TestInflate(t *testing.T) {
	testenv.SkipWithRace(t)
	const factor = 3
	for _, typ := range Types() {
		t.Run(typ.String(), func(t *testing.T) {
			_, old := mustWrite(t, small(func(c *Config) {
				c.Type, c.Experts, c.Used, c.FF, c.Layers = typ, 3, 2,
					256, 1
			}))
			b, inf := inflated(t, old, factor, 1)
			was, err := gguf.Parse(bytes.NewReader(old), int64(len(old)))
			if err != nil {
				t.Fatal(err)
			}
			is, err := gguf.Parse(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				t.Fatal(err)
			}
			if ff, _ := is.Uint("llama.feed_forward_length"); ff != 256*factor {
				t.Errorf("feed_forward_length is %d, want %d", ff, 256*factor)
			}
			var expert int64
			for i := range was.Tensors {
				from, to := &was.Tensors[i], &is.Tensors[i]
				if to.Experts() == 0 {
					if to.Name != from.Name || !bytes.Equal(old[from.Offset:from.End()], b[to.Offset:to.End()]) {
						t.Errorf("%s has changed", from.Name)
					}
					continue
				}
				expert += to.ExpertStride()
				dim := 1
				if strings.Contains(to.Name, "down") {
					dim = 0
				}
				shape := slices.Clone(from.Shape)
				shape[dim] *= factor
				if to.Name != from.Name || to.Type != from.Type || !slices.Equal(to.Shape, shape) {
					t.Fatalf("%+v became %+v", from, to)
				}
				want, got := values(t, old, from), values(t, b, to)
				for j, v := range got {
					x, y, e := int64(j)%shape[0], int64(j)/shape[0]%shape[1], int64(j)/(shape[0]*shape[1])
					w := float32(0)
					if x < from.Shape[0] && y < from.Shape[1] {
						w = want[x+from.Shape[0]*(y+from.Shape[1]*e)]
					}
					if v != w {
						t.Fatalf("%s: column %d of row %d of expert %d is %g, want %g", to.Name, x, y, e, v, w)
					}
				}
				// The added bytes differ from block to block, so that nothing can be stored once
				// for several.
				if blocks := distinctBlocks(to, b); scales[typ] != nil && blocks != to.Size/typ.BlockBytes() {
					t.Errorf("%s: %d different blocks, want %d", to.Name, blocks, to.Size/typ.BlockBytes())
				}
			}
			if inf.ExpertBytes != expert {
				t.Errorf("an expert has %d bytes, want the plan's %d", expert, inf.ExpertBytes)
			}
			if zeros := int64(len(b) - len(old)); (scales[typ] == nil) != (inf.Zeros == zeros) ||
				scales[typ] != nil && inf.Zeros != 0 {
				t.Errorf("%v: %d bytes of zeros, the plan has %d", typ, zeros, inf.Zeros)
			}
			if again, _ := inflated(t, old, factor, 1); !bytes.Equal(again, b) {
				t.Error("the second time there are other bytes")
			}
			if other, _ := inflated(t, old, factor, 2); bytes.Equal(other, b) != (scales[typ] == nil) {
				t.Error("another seed must give other bytes if, and only if, the type has a scale")
			}
		})
	}
}

func distinctBlocks(t *gguf.Tensor, b []byte) int64 {
	seen := map[string]bool{}
	for block := range slices.Chunk(b[t.Offset:t.End()], int(t.Type.BlockBytes())) {
		seen[string(block)] = true
	}
	return int64(len(seen))
}

// TestInflateNumbers checks which numbers change, and whether shared experts grow, for the ways in
// which architectures tell widths.
func TestInflateNumbers(t *testing.T) {
	type shape = []int64
	exps := func(more ...gguftest.Tensor) []gguftest.Tensor {
		return append([]gguftest.Tensor{
			{Name: "blk.0.ffn_up_exps.weight", Type: gguf.F32, Shape: shape{4, 8, 2}},
			{Name: "blk.0.ffn_down_exps.weight", Type: gguf.F32, Shape: shape{8, 4, 2}},
		}, more...)
	}
	up := func(name string, dims ...int64) gguftest.Tensor {
		return gguftest.Tensor{Name: "blk.0." + name, Type: gguf.F32, Shape: dims}
	}
	for name, tt := range map[string]struct {
		kvs     map[string]uint32
		tensors []gguftest.Tensor
		want    map[string]uint64
		shapes  map[string]shape
		err     string
	}{
		"one width": {kvs: map[string]uint32{"feed_forward_length": 8}, tensors: exps(),
			want: map[string]uint64{"feed_forward_length": 24}},
		"shared by used": {kvs: map[string]uint32{"feed_forward_length": 16, "expert_used_count": 2},
			tensors: exps(), want: map[string]uint64{"feed_forward_length": 48}},
		"its own": {kvs: map[string]uint32{"feed_forward_length": 5, "expert_feed_forward_length": 8}, tensors: exps(),
			want: map[string]uint64{"feed_forward_length": 5, "expert_feed_forward_length": 24}},
		"both": {kvs: map[string]uint32{"feed_forward_length": 8, "expert_feed_forward_length": 8}, tensors: exps(),
			want: map[string]uint64{"feed_forward_length": 24, "expert_feed_forward_length": 24}},
		"dense layers": {kvs: map[string]uint32{"feed_forward_length": 8, "expert_feed_forward_length": 8},
			tensors: exps(up("ffn_up.weight", 4, 8)),
			want:    map[string]uint64{"feed_forward_length": 8, "expert_feed_forward_length": 24},
			shapes:  map[string]shape{"blk.0.ffn_up.weight": {4, 8}}},
		"shared, counted": {kvs: map[string]uint32{"expert_feed_forward_length": 8, "expert_shared_count": 2},
			tensors: exps(up("ffn_gate_shexp.weight", 4, 16), up("ffn_down_shexp.weight", 16, 4)),
			want:    map[string]uint64{"expert_feed_forward_length": 24, "expert_shared_count": 2},
			shapes:  map[string]shape{"blk.0.ffn_gate_shexp.weight": {4, 48}, "blk.0.ffn_down_shexp.weight": {48, 4}}},
		"shared, own width": {kvs: map[string]uint32{"expert_feed_forward_length": 8,
			"expert_shared_feed_forward_length": 6}, tensors: exps(up("ffn_gate_shexp.weight", 4, 6)),
			want:   map[string]uint64{"expert_shared_feed_forward_length": 6},
			shapes: map[string]shape{"blk.0.ffn_gate_shexp.weight": {4, 6}}},
		"biases": {kvs: map[string]uint32{"feed_forward_length": 8},
			tensors: exps(up("ffn_up_exps.bias", 8, 2), up("ffn_down_exps.bias", 4, 2)),
			shapes:  map[string]shape{"blk.0.ffn_up_exps.bias": {24, 2}, "blk.0.ffn_down_exps.bias": {4, 2}}},
		"dense": {kvs: map[string]uint32{"feed_forward_length": 8},
			tensors: []gguftest.Tensor{up("ffn_up.weight", 4, 8), up("ffn_up.bias", 8), up("ffn_down.weight", 8, 4),
				up("ffn_down.bias", 4), up("ffn_norm.weight", 4), up("attn_q.weight", 4, 8)},
			want: map[string]uint64{"feed_forward_length": 24},
			shapes: map[string]shape{"blk.0.ffn_up.weight": {4, 24}, "blk.0.ffn_up.bias": {24},
				"blk.0.ffn_down.weight": {24, 4}, "blk.0.ffn_down.bias": {4}, "blk.0.ffn_norm.weight": {4},
				"blk.0.attn_q.weight": {4, 8}}},
		"dense, gate and up in one": {kvs: map[string]uint32{"feed_forward_length": 8},
			tensors: []gguftest.Tensor{up("ffn_up.weight", 4, 16), up("ffn_down.weight", 8, 4)},
			shapes:  map[string]shape{"blk.0.ffn_up.weight": {4, 48}, "blk.0.ffn_down.weight": {24, 4}}},
		"dense, another width": {kvs: map[string]uint32{"feed_forward_length": 9},
			tensors: []gguftest.Tensor{up("ffn_up.weight", 4, 8)}, err: "does not fit"},
		"dense, no width": {tensors: []gguftest.Tensor{up("ffn_up.weight", 4, 8)}, err: "feed_forward_length is not"},
		"neither": {kvs: map[string]uint32{"feed_forward_length": 8},
			tensors: []gguftest.Tensor{up("attn_q.weight", 4, 8)}, err: "no feed-forward networks"},
		"another": {kvs: map[string]uint32{"feed_forward_length": 9}, tensors: exps(), err: "neither"},
		"contradicted": {kvs: map[string]uint32{"expert_feed_forward_length": 9}, tensors: exps(),
			err: "expert_feed_forward_length is 9"},
		"one for both": {kvs: map[string]uint32{"feed_forward_length": 8}, tensors: exps(up("ffn_up.weight", 4, 8)),
			err: "dense layers"},
		"no scale": {kvs: map[string]uint32{"feed_forward_length": 8},
			tensors: exps(gguftest.Tensor{Name: "blk.1.ffn_up_exps.weight", Type: gguf.MXFP4,
				Shape: shape{32, 8, 2}}), err: "blk.1.ffn_up_exps.weight: blocks of type MXFP4"},
		"chunks": {kvs: map[string]uint32{"feed_forward_length": 8},
			tensors: exps(up("ffn_up_chexps.weight", 4, 8, 2)), err: "not known"},
		"odd shape": {kvs: map[string]uint32{"feed_forward_length": 8},
			tensors: exps(up("ffn_gate_exps.weight", 4, 7, 2)), err: "does not fit"},
		"two widths": {kvs: map[string]uint32{"feed_forward_length": 8},
			tensors: append(exps(), gguftest.Tensor{Name: "blk.1.ffn_down_exps.weight", Type: gguf.F32,
				Shape: shape{4, 4, 2}}), err: "differs"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &gguftest.Model{KVs: []gguftest.KV{{Key: "general.architecture", Value: "a"}}, Tensors: tt.tensors}
			for key, v := range tt.kvs {
				m.KVs = append(m.KVs, gguftest.KV{Key: "a." + key, Value: v})
			}
			path := filepath.Join(t.TempDir(), "m.gguf")
			m.Write(t, path)
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			inf, err := NewInflation(f, 3, 1)
			if tt.err != "" {
				if !errors.Is(err, ErrNotInflatable) || !strings.Contains(err.Error(), tt.err) ||
					strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := inf.Write(t.Context(), &out, bytes.NewReader(b), nil); err != nil {
				t.Fatal(err)
			}
			is, err := gguf.Parse(bytes.NewReader(out.Bytes()), int64(out.Len()))
			if err != nil {
				t.Fatal(err)
			}
			for key, want := range tt.want {
				if got, _ := is.Uint("a." + key); got != want {
					t.Errorf("%s is %d, want %d", key, got, want)
				}
			}
			for tensor, want := range tt.shapes {
				if got, ok := is.Lookup(tensor); !ok || !slices.Equal(got.Shape, want) {
					t.Errorf("%+v, want shape %v", got, want)
				}
			}
		})
	}
}

// TestInflateFused checks that both halves of a tensor of gate and up grow.
func TestInflateFused(t *testing.T) {
	const row = 4 * 4
	for name, tt := range map[string]struct {
		fused, down gguftest.Tensor
		shape       []int64
	}{
		"experts": {gguftest.Tensor{Name: "blk.0.ffn_gate_up_exps.weight", Type: gguf.F32, Shape: []int64{4, 16, 2}},
			gguftest.Tensor{Name: "blk.0.ffn_down_exps.weight", Type: gguf.F32, Shape: []int64{8, 4, 2}},
			[]int64{4, 32, 2}},
		"dense": {gguftest.Tensor{Name: "blk.0.ffn_up.weight", Type: gguf.F32, Shape: []int64{4, 16}},
			gguftest.Tensor{Name: "blk.0.ffn_down.weight", Type: gguf.F32, Shape: []int64{8, 4}}, []int64{4, 32}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &gguftest.Model{
				KVs: []gguftest.KV{{Key: "general.architecture", Value: "a"},
					{Key: "a.feed_forward_length", Value: uint32(8)}},
				Tensors: []gguftest.Tensor{tt.fused, tt.down},
			}
			path := filepath.Join(t.TempDir(), "m.gguf")
			m.Write(t, path)
			old, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			f, err := gguf.Parse(bytes.NewReader(old), int64(len(old)))
			if err != nil {
				t.Fatal(err)
			}
			fused, _ := f.Lookup(tt.fused.Name)
			for i := range fused.Size {
				old[fused.Offset+i] = byte(i / row)
			}
			b, _ := inflated(t, old, 2, 1)
			if f, err = gguf.Parse(bytes.NewReader(b), int64(len(b))); err != nil {
				t.Fatal(err)
			}
			fused, _ = f.Lookup(tt.fused.Name)
			if fused == nil || !slices.Equal(fused.Shape, tt.shape) {
				t.Fatalf("%+v, want the shape %v", fused, tt.shape)
			}
			for i := range fused.Size / row {
				want := byte(0)
				if i%16 < 8 { // the halves of each network, without the added values
					want = byte(i/16*8 + i%16)
				}
				got := b[fused.Offset+i*row : fused.Offset+(i+1)*row]
				if !bytes.Equal(got, bytes.Repeat([]byte{want}, row)) {
					t.Errorf("row %d is %v, want %d", i, got, want)
				}
			}
		})
	}
}

func TestInflateFails(t *testing.T) {
	_, b := mustWrite(t, small(func(c *Config) { c.Experts, c.Used = 4, 2 }))
	f, err := gguf.Parse(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	var config *ConfigError
	for _, factor := range []int{math.MinInt, -1, 0, 1, maxInflation + 1, math.MaxInt} {
		if _, err := NewInflation(f, factor, 1); !errors.As(err, &config) || config.Setting != "inflate" {
			t.Errorf("factor %d: %v, want an error of the setting inflate", factor, err)
		}
	}
	inf, err := NewInflation(f, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []int64{0, inf.Size / 2, inf.Size - 1} {
		if err := inf.Write(t.Context(), &fullDisk{int(room)}, bytes.NewReader(b), nil); !errors.Is(err, errFull) {
			t.Errorf("with room for %d bytes: error %v, want errFull", room, err)
		}
	}
	if err := inf.Write(t.Context(), io.Discard, bytes.NewReader(b[:len(b)-100]), nil); !errors.Is(err,
		gguf.ErrTruncated) {
		t.Errorf("cut off: %v, want ErrTruncated", err)
	}
}
