package llama

// This file reads the ground truth that the driver writes.

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Op is one read of a weight by one computed op. An op with several weights has a record for each;
// an op without has none. Ops that ggml fuses at run time are listed one by one.
type Op struct {
	Decode  int `json:"decode"`  // number of the llama_decode call, from 0, including the warm-up
	Repeat  int `json:"repeat"`  // generation that it belongs to, from 0; the warm-up belongs to the first
	Context int `json:"context"` // number of the context, from 0; contexts that decode concurrently interleave
	// Sequences is the number of sequences of the context in the batch; they are numbered from 0.
	Sequences int  `json:"sequences"`
	NTokens   int  `json:"n_tokens"` // tokens in the llama_decode call
	Warmup    bool `json:"warmup"`

	// index among the nodes that the call computed, from 0 (nodes that compute nothing are not
	// counted)
	Node int    `json:"node"`
	Op   string `json:"op"`   // ggml's name: MUL_MAT, GET_ROWS, ...
	Name string `json:"name"` // name of the node
	Src  int    `json:"src"`  // index of the source that is the weight

	Tensor string `json:"tensor"` // the weight's name (of a view: the tensor that is viewed)
	Data   uint64 `json:"data"`   // address of the source
	File   string `json:"file"`   // the file that is mapped at Data; "" if none
	// offset of the source in File, bytes; -1 without a file: a copy of the weight was read
	Offset int64 `json:"offset"`
	// Bytes is the number of distinct bytes read: of GET_ROWS the selected rows, of MUL_MAT_ID and
	// ADD_ID the selected experts' slices, each counted once; else the whole source (of a view: the
	// extent from its first to its last byte).
	Bytes int64 `json:"bytes"`

	// distinct selected experts in order of first appearance (by token, then by slot); nil if the
	// op does not select experts
	Experts     []int32 `json:"experts"`
	LastExperts []int32 `json:"last_experts"` // the last token's experts by slot
	// IDs are all tokens' experts: those of the first token by slot, then those of the second one.
	// In the last layer a graph may compute only the tokens whose output is wanted.
	IDs []int32 `json:"ids"`
}

// ReadOps reads a file that the driver wrote with Options.Ops, in the order of execution.
func ReadOps(path string) ([]Op, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read ops: %w", err)
	}
	defer f.Close()
	var ops []Op
	d := json.NewDecoder(bufio.NewReader(f))
	d.DisallowUnknownFields()
	for {
		var op Op
		if err := d.Decode(&op); err == io.EOF {
			return ops, nil
		} else if err != nil {
			return nil, fmt.Errorf("read ops %s: record %d: %w", path, len(ops)+1, err)
		}
		ops = append(ops, op)
	}
}
