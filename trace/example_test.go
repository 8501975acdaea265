package trace_test

// This file has the examples of the package's documentation.

import (
	"fmt"
	"os"
	"strings"

	"tensorcast/event"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// This writes a table for pandas, polars or DuckDB: which tensors were read from disk again.
func ExampleWriteCSV() {
	columns := []tables.Column{
		{Name: "tensor_name", Values: []string{"output.weight", "blk.0.ffn_up.weight"}},
		{Name: "reread_bytes", Values: []int64{1671168, 4096}},
		{Name: "stall_s", Values: []float64{0.25, 0}},
	}
	if err := trace.WriteCSV(os.Stdout, columns); err != nil {
		fmt.Println(err)
	}
	// Output:
	// tensor_name,reread_bytes,stall_s
	// output.weight,1671168,0.25
	// blk.0.ffn_up.weight,4096,0
}

// A recorder turns events into a capture. Without a directory it only prints.
func ExampleRecorder() {
	r, err := trace.NewRecorder(trace.RecorderOptions{
		CSV: os.Stdout, PID: 42, Command: []string{"llama-cli", "-m", "model.gguf"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range []event.Event{
		event.DecodeBegin{TID: 43, Decode: 1, Tokens: 5, Context: 0x7f00},
		event.DecodeEnd{TID: 43, Decode: 1},
	} {
		if err := r.Handle(e); err != nil {
			fmt.Println(err)
		}
	}
	meta, err := r.Finish(nil)
	what, why, _ := strings.Cut(err.Error(), ": ")
	fmt.Println(meta.Steps, "step:", what)
	fmt.Println(why)
	// Output:
	// timestamp,token,tensor_name,data_ptr,bytes_accessed
	// 1 step: weights are read outside the model file's mapping
	// no op of the 1 decodes read a weight from a mapped file: do the layers run on a GPU? Use -ngl 0
}
