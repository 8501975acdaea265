// Package tracetest makes captures for tests: small ones that have all tables, and damaged ones.
package tracetest

// This file writes a capture.

import (
	"errors"

	"tensorcast/event"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

const fingerprint = "00112233445566778899aabbccddeeff"

// Options describe a capture for Write.
type Options struct {
	Segments int  // how many are begun; 0 means 1
	Keep     int  // how many of them are kept; 0 keeps all
	Killed   bool // the capture is not complete, as if its tracer had been killed
}

// Structure returns the structure of the captures of Write: a model with experts, and a draft model.
func Structure() []tables.StructureRow {
	row := func(
		model int32, file, name, component string, layer int32, offset, size int64, shape ...int64,
	) tables.StructureRow {
		r := tables.StructureRow{
			Name: name, Offset: offset, Size: size, Type: "Q8_0", Layer: layer, Component: component, File: file,
			Shape: shape, Model: model,
		}
		if len(shape) == 3 {
			r.Experts, r.ExpertStride = int32(shape[2]), size/shape[2]
		}
		return r
	}
	return []tables.StructureRow{
		row(0, "moe.gguf", "token_embd.weight", "token_embd.weight", -1, 4096, 6400, 64, 100),
		row(0, "moe.gguf", "blk.0.attn_q.weight", "attn_q.weight", 0, 12288, 4096, 64, 64),
		row(0, "moe.gguf", "blk.0.ffn_up_exps.weight", "ffn_up_exps.weight", 0, 16384, 8000, 20, 50, 8),
		row(0, "moe.gguf", "blk.1.attn_q.weight", "attn_q.weight", 1, 24576, 4096, 64, 64),
		row(0, "moe.gguf", "blk.1.ffn_up_exps.weight", "ffn_up_exps.weight", 1, 28672, 8000, 20, 50, 8),
		row(0, "moe.gguf", "output.weight", "output.weight", -1, 36864, 6400, 64, 100),
		row(1, "draft.gguf", "token_embd.weight", "token_embd.weight", -1, 4096, 640, 64, 10),
		row(1, "draft.gguf", "output.weight", "output.weight", -1, 8192, 640, 64, 10),
	}
}

// Write writes a capture of two contexts, each with a model of its own, with all tables. Every
// segment has several steps.
func Write(dir string, o Options) error {
	structure := Structure()
	meta := &tables.Meta{
		PID: 100, Command: []string{"llama-cli", "-m", "moe.gguf"}, Detail: tables.DetailOpIO, Contexts: 2,
		Libraries: []string{"/opt/llama/libggml-cpu.so"},
		Models: []tables.ModelInfo{
			{
				Path: "/models/moe.gguf", Fingerprint: fingerprint, Bytes: 1 << 20, Tensors: 6, Layers: 2,
				LayersSeen: "0-1",
				Files:      []tables.ModelFile{{Name: "moe.gguf", Bytes: 1 << 20, Fingerprint: fingerprint}},
			},
			{
				Path: "/models/draft.gguf", Fingerprint: "ff" + fingerprint[2:], Bytes: 1 << 16, Tensors: 2,
				Files: []tables.ModelFile{{Name: "draft.gguf", Bytes: 1 << 16, Fingerprint: "ff" + fingerprint[2:]}},
			},
		},
		Rereads: &tables.Rereads{
			FirstBytes: 8000, RereadBytes: 1000, ByCause: map[string]int64{"fault": 1000},
			ByProcess: []tables.ProcessBytes{{PID: 100, Bytes: 1000}},
		},
		Counters: event.Counters{Hits: 100, OpsSent: 90, Received: 90, NoWeight: 10},
	}
	w, err := trace.Create(dir, meta, structure)
	if err != nil {
		return err
	}
	c := captureWriter{w: w, structure: structure}
	segments := max(o.Segments, 1)
	for segment := range segments {
		if segment > 0 {
			c.note(w.Rotate(meta, o.Keep))
		}
		for range 4 {
			c.writeSteps(meta)
		}
		if segment < segments-1 || o.Killed {
			c.note(w.Flush(meta)) // so that a segment has several batches
			c.writeSteps(meta)
		}
	}
	if o.Killed {
		c.note(w.Flush(meta))
	} else {
		c.note(w.Close(meta, true))
	}
	return c.err
}

// captureWriter writes steps, and collects the errors.
type captureWriter struct {
	w         *trace.Writer
	structure []tables.StructureRow
	steps     int32
	tokens    int32
	clock     int64 // ns since the capture began
	err       error
}

func (c *captureWriter) note(err error) { c.err = errors.Join(c.err, err) }

// writeSteps writes the rows of one step of each context.
func (c *captureWriter) writeSteps(meta *tables.Meta) {
	phase, token := tables.PhaseGeneration, c.tokens
	if c.steps == 0 {
		phase, token = tables.PhasePrompt, -1
	} else {
		c.tokens++
	}
	for context, tensors := range [][]int32{{0, 1, 2, 3, 4, 5}, {6, 7}} {
		begin := c.clock
		for i, tensor := range tensors {
			t := &c.structure[tensor]
			c.clock += 1000
			a := tables.Access{
				Timestamp: c.clock, Step: c.steps, Token: token, Phase: phase, Thread: 101 + int32(context),
				Op: "MUL_MAT", Tensor: tensor, DataPtr: 0x7f0000000000 + uint64(t.Offset),
				Offset: t.Offset, Bytes: t.Size, Layer: t.Layer, Duration: 900, Context: int32(context),
				Stall: int64(i) * 10,
			}
			switch {
			case i == 0:
				a.Op, a.Bytes, a.Offset = "GET_ROWS", 64, t.Offset+64*int64(c.steps%10)
			case t.Experts > 0:
				a.Op, a.Experts = "MUL_MAT_ID", []int32{c.steps % 8, (c.steps + 3) % 8}
				a.Bytes = 2 * t.ExpertStride
				for slot, e := range a.Experts {
					c.note(c.w.Route(&tables.Route{
						Step: c.steps, Token: token, Layer: t.Layer, Slot: int32(slot), Expert: e,
					}))
				}
				c.note(c.w.Hidden(&tables.HiddenRow{
					Step: c.steps, Token: token, Layer: t.Layer, Point: event.Point(c.steps % 2),
					Values: []float32{0.5, float32(c.steps), -1},
				}))
				c.note(c.w.PageIn(&tables.PageInRow{
					Timestamp: c.clock, Step: c.steps, File: t.File, Offset: t.Offset, Bytes: 1000, Tensor: tensor,
					Expert: a.Experts[0], PID: 100, Thread: 101,
					Cause: event.Cause(c.steps % 4), Rereads: c.steps / 4, Op: a.Op, Model: t.Model,
				}))
			}
			c.note(c.w.Access(&a))
			c.note(c.w.Buffer(&tables.BufferRow{
				Timestamp: c.clock, Step: c.steps, Op: a.Op, Seq: c.clock / 1000,
				Buffer: "cache_k_l0 (view)", Root: "cache_k_l0", Kind: tables.BufferKV,
				Write: i%2 == 0, DataPtr: 4096, Bytes: 512,
			}))
		}
		c.note(c.w.PageIn(&tables.PageInRow{
			Timestamp: c.clock, Step: -1, File: "moe.gguf", Bytes: 4096, Tensor: -1, Expert: -1,
			PID: 100, Thread: 101, Cause: event.CauseReadahead,
		}))
		c.note(c.w.Step(&tables.StepRow{
			Step: c.steps, PID: 100, Thread: 101 + int32(context), Context: int32(context), Phase: phase, Tokens: 1,
			Token: token, TokenIDs: []int32{c.steps}, Sequences: []int32{0}, Begin: begin, End: c.clock,
		}))
		c.steps++
		meta.Steps++
	}
	meta.Tokens = int(c.tokens)
}
