package dataset

// This file says what the columns of a data set mean.

import (
	"context"
	"fmt"

	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// Table describes a table of a data set for people.
type Table struct {
	Name    string
	About   string // a sentence
	Columns []Column
}

// Column describes a column for people.
type Column struct {
	Name string
	Type string // "int64", "text", "list of int32", ...; a type that may be null says so
	Unit string // "byte", "ns", ...; empty: none
	// About says what it is, in a sentence without a full stop.
	About string
}

// meaning is the unit and the meaning of a column.
type meaning struct{ unit, about string }

// aboutTables says what each table is of.
var aboutTables = map[string]string{
	"access":    "Each row is a weight that an op read, in the order of time.",
	"buffers":   "Each row is a buffer other than a weight that an op read or wrote.",
	"hidden":    "Each row is what a router or the attention of a layer read for one token.",
	"pagein":    "Each row is a range of a model's file that was read from disk, page by page as the kernel did it.",
	"route":     "Each row is an expert that a router chose for a token.",
	"run":       "The only row describes the run.",
	"steps":     "Each row is one call of llama_decode.",
	"structure": "Each row is a tensor of the model's file.",
}

// common are columns that mean the same in several tables.
var common = map[string]meaning{
	"timestamp":    {"ns", "time since the capture began"},
	"step":         {"", "number of the call of llama_decode, from 0; -1 between two calls"},
	"token":        {"", "number of the generated token in its context, from 0; -1 while warming up and in prompts"},
	"phase":        {"", "what the step was for: warmup, prompt or generation"},
	"thread":       {"", "number of the kernel's thread"},
	"pid":          {"", "number of the process"},
	"context":      {"", "number of the llama_context, from 0 in the order of appearance"},
	"layer":        {"", "number of the layer, from 0; -1 for tensors of no layer"},
	"op":           {"", "op of ggml; null where no op was running"},
	"tensor_name":  {"", "name of the tensor; null for bytes of the file that are no tensor's"},
	"file":         {"", "name of the model's file"},
	"offset_bytes": {"byte", "where it begins in the model's file"},
	"data_ptr":     {"byte", "address in the process, another one in each run"},
	"model_index":  {"", "number of the model in its capture; -1 for none"},
	"expert":       {"", "number of the expert, from 0; -1 for none"},
	"position":     {"", "index of the token in its step's batch; -1 where it is not known"},
}

// meanings are those of each table's other columns, or where they mean something more special.
var meanings = map[string]map[string]meaning{
	"access": {
		"bytes_accessed": {"byte", "distinct bytes of the tensor that the op read"},
		"duration_ns":    {"ns", "time of the whole op, the same in each of its rows; null where it was not observed"},
		"experts":        {"", "distinct experts that were read, in the order of their use; null for other tensors"},
		"stall_ns": {"ns", "how long the process's threads together waited for the disk during the op; " +
			"null where it was not observed"},
	},
	"buffers": {
		"seq":    {"", "number of the op in its step"},
		"buffer": {"", "name of the buffer"},
		"root":   {"", "name of the buffer that it is a view of; null for none"},
		"kind":   {"", "what the buffer is for"},
		"write":  {"", "whether it was written, not read"},
		"bytes":  {"byte", "size of what was read or written"},
	},
	"hidden": {
		"point":  {"", "what read the values: router, or attention"},
		"values": {"", "the hidden state, rounded to half precision; its length is the width of the model"},
	},
	"pagein": {
		"bytes":   {"byte", "length of the range"},
		"cause":   {"", "why it was read: fault, readahead, read or other"},
		"rereads": {"", "how often these bytes had been read from disk before during the capture"},
	},
	"route": {
		"slot": {"", "rank of the expert among those of the token; 0 has the highest score"},
	},
	"run": {
		"started":              {"", "when the capture began, in UTC (RFC 3339)"},
		"seconds":              {"s", "length of the capture"},
		"complete":             {"", "whether the capture ended as it should"},
		"detail":               {"", "what was observed: op+io is ops and reads from disk"},
		"contexts":             {"", "number of llama_contexts that decoded"},
		"steps":                {"", "number of calls of llama_decode"},
		"tokens":               {"", "number of generated tokens"},
		"generation_tokens":    {"", "number of tokens of the steps whose time is known"},
		"generation_seconds":   {"s", "time of these steps"},
		"lost":                 {"", "number of events that were lost; 0 means that the tables are complete"},
		"model_file":           {"", "name of the model's file"},
		"model_fingerprint":    {"", "hash of the model's metadata and tensors"},
		"model_bytes":          {"byte", "size of the model; null where it is not known"},
		"model_layers":         {"", "number of layers that have tensors"},
		"kernel":               {"", "release of the kernel"},
		"arch":                 {"", "architecture of the machine, as Go names it"},
		"cpu":                  {"", "model of the processor"},
		"cpus":                 {"", "number of logical processors"},
		"host_memory_bytes":    {"byte", "memory of the machine; null where it is not known"},
		"memory_limit_bytes":   {"byte", "limit of the process's control group; null without one"},
		"disk":                 {"", "which disk it was; empty in a data set for others"},
		"disk_readahead_bytes": {"byte", "readahead of the disk; null where it is not known"},
		"disk_bytes_per_second": {"byte/s", "what the disk delivered with many requests at a time; null where it was " +
			"not measured"},
	},
	"steps": {
		"tokens":    {"", "number of tokens in the batch"},
		"token_ids": {"", "ids of these tokens; null where they were not observed"},
		"sequences": {"", "numbers of the sequences in the batch; null where they were not observed"},
		"begin":     {"ns", "when the step began, since the capture began"},
		"end":       {"ns", "when it ended; null where it was not observed"},
		"derived":   {"", "whether begin and end are those of the step's ops, because the call was not observed"},
	},
	"structure": {
		"size_bytes":          {"byte", "size of the tensor"},
		"type":                {"", "type of its elements, as ggml names it"},
		"component":           {"", "name of the tensor without its layer"},
		"shape":               {"", "number of elements in each dimension, fastest first"},
		"expert_count":        {"", "number of experts in the tensor; 0 where it has none"},
		"expert_stride_bytes": {"byte", "size of an expert's part; 0 where it has none"},
	},
}

// Describe describes the tables that a capture has in a data set, in alphabetical order. It fails if a column has no
// description, or as the capture's readers do.
func Describe(ctx context.Context, c *trace.Capture, o Options) (all []Table, err error) {
	add := func(name string, columns []tables.Column) error {
		t := Table{Name: name, About: aboutTables[name]}
		for _, column := range columns {
			m, ok := meanings[name][column.Name]
			if !ok {
				m, ok = common[column.Name]
			}
			if !ok {
				return fmt.Errorf("the column %s of the table %s has no description", column.Name, name)
			}
			t.Columns = append(t.Columns, Column{column.Name, typeName(column.Values), m.unit, m.about})
		}
		all = append(all, t)
		return nil
	}
	for _, name := range o.tables(c) {
		for columns, err := range withoutModel(c.TableColumns(ctx, name)) {
			if err == nil {
				err = add(name, columns)
			}
			if err != nil {
				return nil, err
			}
			break // all batches have the same columns
		}
	}
	run, err := runColumns(ctx, c, o)
	if err == nil {
		err = add(runTable, run)
	}
	return all, err
}

// typeName names the type of a column's values for people.
func typeName(values any) string {
	switch values.(type) {
	case []int32:
		return "int32"
	case []int64:
		return "int64"
	case []uint64:
		return "uint64"
	case []float64:
		return "float64"
	case []bool:
		return "bool"
	case []string:
		return "text"
	case []*int64:
		return "int64 or null"
	case []*string:
		return "text or null"
	case [][]int32:
		return "list of int32, or null"
	case [][]int64:
		return "list of int64"
	case [][]float32:
		return "list of float32"
	}
	return fmt.Sprintf("%T", values)
}
