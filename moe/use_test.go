package moe

// This file tests the counts of experts' use.

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// What was planted is counted: a prompt of two tokens, three generated tokens, one layer. Expert 2 is
// hot.
func TestUse(t *testing.T) {
	tr, err := ReadCSV(strings.NewReader(`# route_trace v1
# model=m n_layer=1 n_expert=4 n_expert_used=2
# layer=0 expert_bytes=10
turn,phase,step,layer,slot,expert
0,0,0,0,0,2
0,0,0,0,1,0
0,0,1,0,0,2
0,0,1,0,1,1
0,1,2,0,0,2
0,1,2,0,1,1
0,1,3,0,0,0
0,1,3,0,1,2
0,1,4,0,0,2
0,1,4,0,1,0
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Use{
		{Expert: 0, Prompt: 1, Generated: 2, First: 0, Last: 4, Reuse: 2},
		{Expert: 1, Prompt: 1, Generated: 1, First: 1, Last: 2, Reuse: 1},
		{Expert: 2, Prompt: 2, Generated: 3, First: 0, Last: 4, Reuse: 1},
		{Expert: 3, First: -1, Last: -1},
	}
	if got := tr.Uses(); !slices.Equal(got, want) {
		t.Errorf("use %+v, want %+v", got, want)
	}
	tokens := []TokenUse{{2, 0, 2, 2}, {2, 1, 1, 3}, {2, 2, 0, 3}, {2, 1, 0, 3}, {2, 2, 0, 3}}
	if got := tr.TokenUses(); !reflect.DeepEqual(got, tokens) {
		t.Errorf("tokens %+v, want %+v", got, tokens)
	}
	layers := []LayerUse{
		{
			Layer: 0, Chosen: 10, Used: 3, Entropy: entropy([]int{3, 2, 5}, 10) * math.Log(3) / math.Log(4),
			Hottest: 2, Coldest: 3, Most: 5, Least: 0, Hot: 5, Kept: 6,
		},
	}
	if got := tr.LayerUses(); len(got) != 1 || math.Abs(got[0].Entropy-layers[0].Entropy) > 1e-9 {
		t.Errorf("layers %+v, want %+v", got, layers)
	} else if got[0].Entropy = layers[0].Entropy; got[0] != layers[0] {
		t.Errorf("layers %+v, want %+v", got, layers)
	}
	// Two generated tokens together touch 2, 1 and 0, then 0 and 2: three of four experts, then two.
	together := []Together{{1, 0.5, 0.5}, {2, 0.75, (3. + 2) / 2 / 4}}
	if got := tr.Together(); !slices.Equal(got, together) {
		t.Errorf("together %+v, want %+v", got, together)
	}
}

// The length of the prompt is among the numbers of tokens. Where there are fewer tokens than a number,
// nothing is known.
func TestTogether(t *testing.T) {
	s := Shape{Layers: 3, Experts: 8, K: 2}
	r := rand.New(rand.NewPCG(5, 6))
	tr := synthetic(t, s, 23, func(int, int, [][]int32) []int32 { return distinct(r, s) }, nil)
	for i := range 9 {
		tr.Tokens[i].Phase = Prompt
	}
	first := tr.FirstDecode()
	if all := tr.Together(); len(all) != 5 || all[4].Tokens != 9 || all[3].Tokens != 8 {
		t.Fatalf("together %+v, want 1, 2, 4, 8 and 9 tokens", all)
	}
	for _, at := range tr.Together() {
		for _, part := range []struct {
			from, to int
			got      float64
		}{{0, first, at.Prompt}, {first, len(tr.Tokens), at.Generated}} {
			sum, windows := 0, 0
			for begin := part.from; begin+at.Tokens <= part.to; begin++ {
				windows++
				for layer := range s.Layers {
					seen := map[int32]bool{}
					for token := begin; token < begin+at.Tokens; token++ {
						for _, e := range tr.Chosen(token, layer) {
							seen[e] = true
						}
					}
					sum += len(seen)
				}
			}
			if windows == 0 {
				if !math.IsNaN(part.got) {
					t.Errorf("%d of %d tokens touch %g, want NaN", at.Tokens, part.to-part.from, part.got)
				}
				continue
			}
			if want := float64(sum) / float64(windows*s.Layers*s.Experts); math.Abs(part.got-want) > 1e-12 {
				t.Errorf("%d tokens from %d to %d touch %g, want %g", at.Tokens, part.from, part.to, part.got, want)
			}
		}
	}
}
