package tables

// This file tests the text about bytes that were read from disk again.

import (
	"strings"
	"testing"
)

func TestRereadsText(t *testing.T) {
	some := Rereads{
		FirstBytes: 25_000_000, RereadBytes: 12_000_000, StallNS: 1_234_567_890,
		ByCause:   map[string]int64{"fault": 9_000_000, "readahead": 3_000_000},
		ByProcess: []ProcessBytes{{7, 8_000_000}, {9, 4_000_000}},
		Tensors: []TensorRereads{
			{Name: "blk.0.ffn_up.weight", FirstBytes: 20_000_000, RereadBytes: 11_000_000,
				ByCause: map[string]int64{"fault": 11_000_000}, StallNS: 45_600_000},
			{FirstBytes: 4096, RereadBytes: 512, ByCause: map[string]int64{"readahead": 512}},
			{Name: "output.weight", FirstBytes: 5_000_000},
		},
	}
	const sentence = "read from disk: 24 MiB for the first time, 11 MiB again (fault 75 %, readahead 25 %); of that " +
		"7.6 MiB by process 7, 3.8 MiB by process 9; ops stalled for 1.23s, summed over threads\n"
	for name, test := range map[string]struct {
		r    Rereads
		top  int
		want string
	}{
		"nothing": {Rereads{}, 5, "read from disk: nothing, the weights were in memory\n"},
		"once": {Rereads{FirstBytes: 1000, Tensors: []TensorRereads{{Name: "x", FirstBytes: 1000}}}, 5,
			"read from disk: 1000 B for the first time, 0 B again\n"},
		"without table": {some, 0, sentence},
		"the first": {some, 1, sentence + `
top tensors by bytes that were read from disk again
 again   first   stall  cause  tensor
10 MiB  19 MiB  45.6ms  fault  blk.0.ffn_up.weight
`},
		"those that were read again": {some, 5, sentence + `
top tensors by bytes that were read from disk again
 again    first   stall  cause      tensor
10 MiB   19 MiB  45.6ms  fault      blk.0.ffn_up.weight
 512 B  4.0 KiB      0s  readahead  (metadata and padding)
`},
	} {
		var text strings.Builder
		if err := test.r.WriteText(&text, test.top); err != nil || text.String() != test.want {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", name, err, text.String(), test.want)
		}
	}
}
