package gguf

// These tests look up tensors, bytes and metadata in a file.

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func TestIs(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "GGU": false, "GGUF": true, "GGUFrest": true, "FUGG": false, string(small().encode()): true,
	} {
		if got := Is(strings.NewReader(text)); got != want {
			t.Errorf("%.8q: %v", text, got)
		}
	}
}

func TestAtAndLookup(t *testing.T) {
	f := mustParse(t, small().encode())
	// Ask about every byte, and compare with a plain scan.
	for off := int64(-1); off <= f.Size; off++ {
		var want *Tensor
		for i := range f.Tensors {
			if x := &f.Tensors[i]; off >= x.Offset && off < x.Offset+x.Size {
				want = x
			}
		}
		if got, ok := f.At(off); got != want || ok != (want != nil) {
			t.Errorf("byte %d: %v, want %v", off, got, want)
		}
	}
	for i := range f.Tensors {
		if got, ok := f.Lookup(f.Tensors[i].Name); got != &f.Tensors[i] || !ok {
			t.Errorf("lookup of %q: %v", f.Tensors[i].Name, got)
		}
	}
	for _, name := range []string{"", "output", "output.weight2", "zzz"} {
		if got, ok := f.Lookup(name); ok || got != nil {
			t.Errorf("lookup of %q: %v", name, got)
		}
	}
}

// Locate gives for every byte the tensor and the expert that a plain scan finds.
func TestLocate(t *testing.T) {
	f := mustParse(t, small().encode())
	experts := 0
	for off := int64(-1); off <= f.Size; off++ {
		want := Location{Expert: -1}
		for i := range f.Tensors {
			x := &f.Tensors[i]
			if off < x.Offset || off >= x.End() {
				continue
			}
			want.Tensor = x
			for e := range x.Experts() {
				if first := x.Offset + int64(e)*x.ExpertStride(); off >= first && off < first+x.ExpertStride() {
					want.Expert = e
					experts++
				}
			}
		}
		if got, ok := f.Locate(off); got != want || ok != (want.Tensor != nil) {
			t.Errorf("byte %d: %+v, want %+v", off, got, want)
		}
	}
	if experts != 2*18*8+32 {
		t.Errorf("%d bytes of experts", experts)
	}
	for _, off := range []int64{-1, 0, f.Size} {
		if x, _ := f.Lookup("blk.1.ffn_up_exps.weight"); x.ExpertAt(off) != -1 {
			t.Errorf("byte %d belongs to an expert, want none", off)
		}
	}
}

func TestKind(t *testing.T) {
	for name, want := range map[string]Kind{
		"token_embd.weight": KindEmbedding, "position_embd.weight": KindEmbedding,
		"per_layer_token_embd.weight": KindEmbedding,
		"token_embd_norm.weight":      KindNorm, "output_norm.weight": KindNorm, "blk.0.attn_q_norm.weight": KindNorm,
		"blk.0.post_attention_norm.weight": KindNorm,
		"output.weight":                    KindOutput, "output.bias": KindOutput,
		"blk.3.attn_qkv.weight": KindAttention, "blk.3.attn_sinks.weight": KindAttention,
		"blk.3.ffn_up.weight": KindFeedForward, "blk.3.ffn_gate_exps.scale": KindFeedForward,
		"blk.3.ffn_gate_inp.weight": KindRouter, "blk.3.ffn_gate_inp_shexp.weight": KindRouter,
		"blk.3.exp_probs_b.bias":        KindRouter,
		"blk.3.ffn_gate_up_exps.weight": KindExpert, "blk.3.ffn_up.7.weight": KindExpert,
		"blk.3.ffn_up_shexp.weight": KindSharedExpert,
		"blk.3.ssm_in.weight":       KindRecurrent, "blk.3.time_mix_key.weight": KindRecurrent,
		"rope_freqs.weight": KindOther,
	} {
		x := &Tensor{Name: name, Type: F32, Shape: []int64{8, 2, 4}, Size: 256}
		if got := x.Kind(); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if KindRecurrent.String() != "recurrent" || kindCount.String() != "kind(10)" {
		t.Error("names of kinds")
	}
}

// Models of 2023 have a tensor per expert.
func TestSingleExperts(t *testing.T) {
	for name, want := range map[string]int{
		"blk.3.ffn_up.7.weight": 7, "blk.3.ffn_gate.0.weight": 0, "blk.3.ffn_down.12.bias": 12,
		"blk.3.ffn_up.weight": -1, "blk.3.ffn_up.-1.weight": -1, "blk.3.ffn_up.7.scale": -1, "blk.3.ffn_up.7": -1,
		"blk.3.attn_q.7.weight": -1,
	} {
		x := &Tensor{Name: name, Type: F32, Shape: []int64{8, 2}, Offset: 64, Size: 64}
		if got := x.ExpertAt(100); got != want || x.Experts() != 0 || x.ExpertAt(63) != -1 || x.ExpertAt(128) != -1 {
			t.Errorf("%s: expert %d, want %d", name, got, want)
		}
	}
}

func fingerprint(t *testing.T, f *File) string {
	t.Helper()
	s, err := f.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFingerprint(t *testing.T) {
	b := small().encode()
	f := mustParse(t, b)
	sum := sha256.Sum256(binary.LittleEndian.AppendUint64(bytes.Clone(b[:f.DataOffset]), uint64(len(b))))
	if got, want := fingerprint(t, f), hex.EncodeToString(sum[:16]); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	if longer := mustParse(t, append(b, 0)); fingerprint(t, longer) == fingerprint(t, f) {
		t.Error("another size gives the same fingerprint")
	}
	other := small()
	other.kvs[0].value = str("llama2")
	if fingerprint(t, mustParse(t, other.encode())) == fingerprint(t, f) {
		t.Error("other metadata give the same fingerprint")
	}
}

func TestMetadata(t *testing.T) {
	for _, enc := range encodings {
		m := small()
		m.version, m.big = enc.version, enc.big
		t.Run(enc.name, func(t *testing.T) { testMetadata(t, mustParse(t, m.encode())) })
	}
	if ValueFloat64.String() != "f64" || valueTypeCount.String() != "type(13)" {
		t.Error("value type names")
	}
}

func testMetadata(t *testing.T, f *File) {
	type result struct {
		value any
		ok    bool
	}
	get := map[string]func(string) result{
		"String": func(k string) result { v, ok := f.String(k); return result{v, ok} },
		"Uint":   func(k string) result { v, ok := f.Uint(k); return result{v, ok} },
		"Float":  func(k string) result { v, ok := f.Float(k); return result{v, ok} },
		"Bool":   func(k string) result { v, ok := f.Bool(k); return result{v, ok} },
		"Strings": func(k string) result {
			v, err := f.Strings(k)
			if err != nil && !errors.Is(err, ErrNoValue) {
				t.Error(err)
			}
			return result{v, err == nil}
		},
	}
	// The one getter that answers for a key, and its answer. All others must say no.
	want := map[string]struct {
		getter string
		value  any
	}{
		"general.architecture":  {"String", "llama"},
		"general.alignment":     {"Uint", uint64(64)},
		"llama.block_count":     {"Uint", uint64(2)},
		"llama.context_length":  {"Uint", uint64(1 << 40)},
		"split.count":           {"Uint", uint64(1)},
		"v.u8":                  {"Uint", uint64(200)},
		"v.i8":                  {}, // negative
		"v.i16":                 {"Uint", uint64(300)},
		"v.i32":                 {}, // negative
		"v.i64":                 {"Uint", uint64(7)},
		"v.f32":                 {"Float", 0.5},
		"v.f64":                 {"Float", -2.0},
		"v.bool":                {"Bool", true},
		"v.empty":               {"String", ""},
		"tokenizer.ggml.tokens": {"Strings", []string{"<s>", "", "héllo", "a longer token than the others"}},
		"tokenizer.ggml.scores": {},
		"v.none":                {"Strings", []string{}},
		"no.such.key":           {},
	}
	for i := range f.Metadata {
		if _, ok := want[f.Metadata[i].Key]; !ok {
			t.Errorf("key %q is not tested", f.Metadata[i].Key)
		}
	}
	for key, w := range want {
		for name, g := range get {
			r := g(key)
			if r.ok != (name == w.getter) {
				t.Errorf("%s(%q) = %v, %v", name, key, r.value, r.ok)
			} else if r.ok && !reflect.DeepEqual(r.value, w.value) {
				t.Errorf("%s(%q) = %v, want %v", name, key, r.value, w.value)
			}
		}
	}
	for i := range f.Metadata {
		if kv := &f.Metadata[i]; kv.Key == "tokenizer.ggml.scores" &&
			(kv.Type != ValueArray || kv.Elem != ValueFloat32 || kv.Len != 4) {
			t.Errorf("scores are %+v, want an array of 4 f32", kv)
		}
	}
}

func TestTensorNames(t *testing.T) {
	tests := []struct {
		name      string
		shape     []int64
		layer     int
		component string
		experts   int
		stride    int64
	}{
		{"token_embd.weight", []int64{64, 10}, -1, "token_embd.weight", 0, 0},
		{"blk.0.attn_q.weight", []int64{64, 64}, 0, "attn_q.weight", 0, 0},
		{"blk.79.attn_q.bias", []int64{64}, 79, "attn_q.bias", 0, 0},
		{"blk.3.ffn_gate_exps.weight", []int64{64, 2, 8}, 3, "ffn_gate_exps.weight", 8, 64 * 2 * 4},
		{"blk.3.ffn_up_exps.weight", []int64{64, 2, 8}, 3, "ffn_up_exps.weight", 8, 64 * 2 * 4},
		{"blk.3.ffn_down_exps.weight", []int64{64, 2, 8}, 3, "ffn_down_exps.weight", 8, 64 * 2 * 4},
		{"blk.3.ffn_gate_up_exps.weight", []int64{64, 4, 8}, 3, "ffn_gate_up_exps.weight", 8, 64 * 4 * 4},
		{"blk.3.ffn_up_chexps.weight", []int64{64, 2, 4}, 3, "ffn_up_chexps.weight", 4, 64 * 2 * 4},
		{"blk.3.ffn_down_exps.bias", []int64{64, 8}, 3, "ffn_down_exps.bias", 8, 64 * 4},
		{"blk.3.ffn_gate_exps.weight", []int64{64, 2}, 3, "ffn_gate_exps.weight", 0, 0},
		{"blk.3.ffn_gate_exps.scale", []int64{8}, 3, "ffn_gate_exps.scale", 0, 0},
		{"blk.3.ffn_norm_exps.weight", []int64{64}, 3, "ffn_norm_exps.weight", 0, 0},
		{"blk.3.ffn_gate_shexp.weight", []int64{64, 2}, 3, "ffn_gate_shexp.weight", 0, 0},
		{"blk.3.ffn_gate_inp.weight", []int64{64, 8}, 3, "ffn_gate_inp.weight", 0, 0},
		{"blk.3.ffn_gate_exps.weight.lora_a", []int64{64, 2, 8}, 3, "ffn_gate_exps.weight.lora_a", 0, 0},
		{"enc.blk.0.attn_q.weight", []int64{64}, -1, "enc.blk.0.attn_q.weight", 0, 0},
		{"blk.2147483647.x", []int64{1}, 2147483647, "x", 0, 0},
		{"blk.2147483648.x", []int64{1}, -1, "blk.2147483648.x", 0, 0},
		{"blk.-1.x", []int64{1}, -1, "blk.-1.x", 0, 0},
		{"blk.+1.x", []int64{1}, -1, "blk.+1.x", 0, 0},
		{"blk..x", []int64{1}, -1, "blk..x", 0, 0},
		{"blk.1.", []int64{1}, -1, "blk.1.", 0, 0},
		{"blk.1", []int64{1}, -1, "blk.1", 0, 0},
		{"blk.1_0.x", []int64{1}, -1, "blk.1_0.x", 0, 0},
	}
	for _, tt := range tests {
		size := int64(4)
		for _, ne := range tt.shape {
			size *= ne
		}
		x := &Tensor{Name: tt.name, Type: F32, Shape: tt.shape, Offset: 100, Size: size}
		if x.Layer() != tt.layer || x.Component() != tt.component {
			t.Errorf("%s: layer %d, component %q", tt.name, x.Layer(), x.Component())
		}
		if x.Experts() != tt.experts || x.ExpertStride() != tt.stride {
			t.Errorf("%s %v: %d experts every %d bytes, want %d, %d", tt.name, tt.shape, x.Experts(),
				x.ExpertStride(), tt.experts, tt.stride)
		}
		projection := ""
		if tt.experts > 0 {
			projection = regexp.MustCompile(`ffn_(.*)_c?h?exps`).FindStringSubmatch(tt.name)[1]
		}
		if x.Projection() != projection {
			t.Errorf("%s: projection %q, want %q", tt.name, x.Projection(), projection)
		}
		if x.End() != 100+size {
			t.Errorf("%s: end %d", tt.name, x.End())
		}
	}
}
