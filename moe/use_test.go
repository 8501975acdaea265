package moe

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// What was planted is counted: two tokens of a prompt, three generated, one layer; expert 2 is hot.
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
	if got := tr.Use(); !slices.Equal(got, want) {
		t.Errorf("use %+v, want %+v", got, want)
	}
	tokens := []TokenUse{{2, 0, 2, 2}, {2, 1, 1, 3}, {2, 2, 0, 3}, {2, 1, 0, 3}, {2, 2, 0, 3}}
	if got := tr.TokenUses(); !reflect.DeepEqual(got, tokens) {
		t.Errorf("tokens %+v, want %+v", got, tokens)
	}
}
