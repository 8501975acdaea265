// This file reads the ground truth that the driver dumps.

package llama

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Op is one read of a weight tensor by one computed op. An op with several weights has one record for each; ops that read none have
// no record. Ops that ggml fuses at run time are listed one by one.
type Op struct {
	Decode  int `json:"decode"`  // llama_decode call since the start, from 0, the warm-up's included
	Repeat  int `json:"repeat"`  // generation it belongs to, from 0; the warm-up counts to the first
	Context int `json:"context"` // from 0; contexts that are decoded concurrently interleave
	// Sequences says how many sequences of the context are in the batch: those from 0 up.
	Sequences int  `json:"sequences"`
	NTokens   int  `json:"n_tokens"` // of the llama_decode call
	Warmup    bool `json:"warmup"`

	Node int    `json:"node"` // place among the computed nodes of the call, from 0 (ops that compute nothing are not counted)
	Op   string `json:"op"`   // ggml's name: MUL_MAT, GET_ROWS, ...
	Name string `json:"name"` // of the node
	Src  int    `json:"src"`  // which source of the op the weight is

	Tensor string `json:"tensor"` // the weight (the tensor itself where the source is a view of it)
	Data   uint64 `json:"data"`   // the source's address
	File   string `json:"file"`   // the file that is mapped there; "" if none is
	Offset int64  `json:"offset"` // of the source in File, bytes; -1 if no file is mapped there: a copy of the weight was read
	// Bytes is how many distinct bytes were read: the selected rows of a GET_ROWS, the selected experts' slices of a MUL_MAT_ID or
	// ADD_ID, each once; else the whole source (of a view: the extent from its first to its last byte).
	Bytes int64 `json:"bytes"`

	Experts     []int32 `json:"experts"`      // distinct selected experts in order of first appearance (by token, then by slot); nil if not selected by expert
	LastExperts []int32 `json:"last_experts"` // the last token's experts by slot
}

// ReadOps reads a dump of the driver, in the order of execution.
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
