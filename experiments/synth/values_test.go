package synth

// This file tests the values of the weights against a second decoder.

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"tensorcast/gguf"
	"tensorcast/internal/testenv"
)

// decode is a second implementation, after ggml-quants.c, of how ggml reads each type.
func decode(t *testing.T, typ gguf.Type, b []byte) []float64 {
	t.Helper()
	half := func(b []byte) float64 {
		h := binary.LittleEndian.Uint16(b)
		exp, frac := int(h>>10&31), float64(h&1023)
		v := math.Ldexp(1024+frac, exp-25)
		switch exp {
		case 0:
			v = math.Ldexp(frac, -24)
		case 31:
			v = math.Inf(1)
		}
		return math.Copysign(v, float64(int16(h))+0.5)
	}
	var out []float64
	for block := range slices.Chunk(b, int(typ.BlockBytes())) {
		switch typ {
		case gguf.F32:
			out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(block))))
		case gguf.F16:
			out = append(out, half(block))
		case gguf.Q8_0:
			for _, q := range block[2:] {
				out = append(out, half(block)*float64(int8(q)))
			}
		case gguf.Q4_0:
			for _, shift := range []uint{0, 4} { // the first 16 elements are the low nibbles
				for _, q := range block[2:] {
					out = append(out, half(block)*(float64(q>>shift&15)-8))
				}
			}
		case gguf.Q2_0:
			for _, c := range block[2:] {
				for k := 0; k < 8; k += 2 {
					out = append(out, half(block)*(float64(c>>k&3)-1))
				}
			}
		case gguf.Q1_0:
			for _, c := range block[2:] {
				for k := range 8 {
					out = append(out, half(block)*(2*float64(c>>k&1)-1))
				}
			}
		case gguf.TQ2_0:
			for _, c := range block[:64] {
				for k := 0; k < 8; k += 2 {
					out = append(out, half(block[64:])*(float64(c>>k&3)-1))
				}
			}
		case gguf.TQ1_0:
			for i, c := range block[:52] {
				for k := range 5 {
					if i < 48 || k < 4 {
						out = append(out, half(block[52:])*(float64(uint16(c)*3>>8)-1))
					}
					c *= 3
				}
			}
		case gguf.Q4_K:
			d, dmin, packed, qs := half(block), half(block[2:]), block[4:16], block[16:]
			for j := range 8 {
				var sc, m byte
				if j < 4 {
					sc, m = packed[j]&63, packed[j+4]&63
				} else {
					sc = packed[j+4]&15 | packed[j-4]>>6<<4
					m = packed[j+4]>>4 | packed[j]>>6<<4
				}
				for _, q := range qs[j/2*32:][:32] {
					out = append(out, d*float64(sc)*float64(q>>(j%2*4)&15)-dmin*float64(m))
				}
			}
		default:
			t.Fatalf("no decoder of %v", typ)
		}
	}
	return out
}

func moments(values []float64) (mean, std float64) {
	for _, v := range values {
		mean += v
	}
	mean /= float64(len(values))
	for _, v := range values {
		std += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(std / float64(len(values)))
}

// TestValues decodes every tensor and compares mean and standard deviation with what the package doc promises.
func TestValues(t *testing.T) {
	testenv.SkipWithRace(t)
	for _, typ := range Types() {
		for name, change := range map[string]func(*Config){
			"dense": func(c *Config) {},
			"tied":  func(c *Config) { c.Tied = true },
			"moe":   func(c *Config) { c.Experts, c.Used = 4, 2 },
			// ffn_down so small that Q4_K's scales are subnormal
			"wide": func(c *Config) { c.Layers, c.FF = 1, 10240 },
		} {
			t.Run(typ.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				p, b := mustWrite(t, small(func(c *Config) { c.Type = typ; change(c) }))
				n, ff := float64(p.Config.Embd), float64(p.Config.FF)
				for _, x := range p.Tensors {
					values := decode(t, x.Type, b[x.Offset:x.Offset+x.Size])
					elems := int64(1)
					for _, d := range x.Shape {
						elems *= d
					}
					if int64(len(values)) != elems {
						t.Fatalf("%s: %d values, want %d", x.Name, len(values), elems)
					}
					wantMean, wantStd := 0., 1/math.Sqrt(n)
					component := x.Name
					if rest, ok := strings.CutPrefix(x.Name, "blk."); ok {
						_, component, _ = strings.Cut(rest, ".")
					}
					switch component {
					case "attn_norm.weight", "ffn_norm.weight":
						wantMean, wantStd = 1, normStd
					case "output_norm.weight":
						wantMean, wantStd = 1, normStd
						// The sign is random, so only the size is checked.
						if p.Config.Tied {
							for i, v := range values {
								values[i] = math.Abs(v) * math.Sqrt(n) / logitStd
							}
						}
					case "token_embd.weight":
						wantStd = 1
						if p.Config.Tied {
							values = printable(values, p.Config.Embd)
						}
					case "output.weight":
						wantStd *= logitStd
						values = printable(values, p.Config.Embd)
					case "attn_q.weight", "attn_k.weight":
						wantStd *= queryKeyGain
					case "ffn_down.weight", "ffn_down_exps.weight":
						wantStd = 1 / math.Sqrt(ff)
					}
					mean, std := moments(values)
					// The tolerance is 5 standard errors, and the change by rounding a scale to
					// F16.
					if tolerance := 5 * wantStd / math.Sqrt(float64(len(values))); math.IsNaN(mean) ||
						math.Abs(mean-wantMean) > tolerance {
						t.Errorf("%s: mean %g, want %g within %g", x.Name, mean, wantMean, tolerance)
					}
					tolerance := wantStd * max(0.01, 4/math.Sqrt(float64(len(values))))
					if math.IsNaN(std) || math.Abs(std-wantStd) > tolerance {
						t.Errorf("%s: std %g, want %g within %g", x.Name, std, wantStd, tolerance)
					}
					for i, v := range values {
						if math.Abs(v-wantMean) > 8*wantStd {
							t.Fatalf("%s: value %d is %g", x.Name, i, v)
						}
					}
				}
			})
		}
	}
}

// printable returns the rows of the bytes '!' to '~'.
func printable(values []float64, embd int) []float64 {
	return values[(firstByte+'!')*embd : (firstByte+'~'+1)*embd]
}

// TestDamped checks the rows of output.weight. Those of tokens that should not be generated are
// much smaller.
func TestDamped(t *testing.T) {
	for _, typ := range Types() {
		p, b := mustWrite(t, small(func(c *Config) { c.Type, c.Vocab = typ, 300 }))
		x := p.Tensors[0]
		if x.Name != "output.weight" {
			t.Fatalf("first tensor is %s, want output.weight", x.Name)
		}
		values := decode(t, typ, b[x.Offset:x.Offset+x.Size])
		for id := range 300 {
			_, std := moments(values[id*p.Config.Embd:][:p.Config.Embd])
			c := id - firstByte
			said := id >= ByteVocab || c == '\n' || c >= ' ' && c <= '~'
			if large := std > 0.5*logitStd/math.Sqrt(float64(p.Config.Embd)); large != said {
				t.Errorf("%v: row of token %d has std %g", typ, id, std)
			}
		}
	}
}

// TestChunks checks that the values do not depend on how much is generated at a time. Tensors
// larger than a chunk are written in pieces.
func TestChunks(t *testing.T) {
	p := mustPlan(t, small(nil))
	s := newSampler()
	var want bytes.Buffer
	if err := p.writeTensor(t.Context(), &want, s, p.Tensors[0], make([]byte, chunkBytes)); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{34, 100, 4096, 10007} {
		var got bytes.Buffer
		if err := p.writeTensor(t.Context(), &got, s, p.Tensors[0], make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("pieces of %d bytes give other values", size)
		}
	}
}
