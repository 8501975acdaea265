package pattern

// This file defines the cycle: what one token reads. It is the one definition of that, for whoever plans, predicts, measures or compares.

import (
	"tensorcast/event"
	"tensorcast/ggml"
)

// Cycle is what one generated token reads, in order, in one llama_context with one model. Every token reads the same, save for what it gathers:
// rows and experts depend on the token. It holds no addresses: they are another run's.
//
// A Cycle is not changed once it is made: it may be read concurrently.
type Cycle struct {
	Files []CycleFile `json:"files"`
	Reads []CycleRead `json:"reads"` // in order of use; a tensor that is read twice is there twice
}

// CycleFile is one file of the model.
type CycleFile struct {
	Name        string `json:"name"`        // base name
	Size        int64  `json:"size_bytes"`  // of the whole file
	Fingerprint string `json:"fingerprint"` // see gguf.File.Fingerprint
}

// CycleRead is one op reading one weight.
type CycleRead struct {
	File   int    `json:"file"` // index of Cycle.Files
	Tensor string `json:"tensor_name"`
	Op     string `json:"op"`
	Offset int64  `json:"offset_bytes"` // first byte of the tensor in the file
	Length int64  `json:"size_bytes"`   // of the tensor: all that any token may read of it
	// Slice and Slices are for what is gathered: a token reads Slices slices of Slice bytes, which ones depends on the token. 0 where all is read.
	Slice   int64 `json:"slice_bytes,omitempty"`
	Slices  int   `json:"slices,omitempty"`
	Experts bool  `json:"experts,omitempty"` // the slices are experts, else rows
	// Nanos is how long the op computes, without waiting for the disk as far as that was observed: the least over the steps that were seen, as every
	// disturbance adds. -1 if it was not observed. An op of several weights has it in its first read, and 0 in the others, so that a sum is true.
	Nanos int64 `json:"compute_ns"`
}

// End is the first byte behind the tensor.
func (r *CycleRead) End() int64 { return r.Offset + r.Length }

// Gathers says that which bytes are read depends on the token.
func (r *CycleRead) Gathers() bool { return r.Slice > 0 }

// Bytes is how many distinct bytes of the files a token reads (M): a tensor that is read twice counts once.
func (c *Cycle) Bytes() int64 {
	type place struct {
		file   int
		offset int64
	}
	most := map[place]int64{}
	for i := range c.Reads {
		r := &c.Reads[i]
		n := r.Length
		if r.Gathers() {
			n = min(n, r.Slice*int64(r.Slices))
		}
		at := place{r.File, r.Offset}
		most[at] = min(max(most[at], n), r.Length) // the embedding's row lies in the whole that the logits read
	}
	var sum int64
	for _, n := range most {
		sum += n
	}
	return sum
}

// ReadsOf yields what an op reads of weights in files, as a cycle has it: with File -1, which the caller knows, and the place in Op.Sources that it is of.
func ReadsOf(o *event.Op, yield func(source int, r CycleRead) bool) {
	gather, gathers := ggml.GatherOf(o.Name)
	nanos := o.Duration
	if nanos >= 0 && o.Stall > 0 {
		nanos = max(nanos-o.Stall, 0)
	}
	for i := range o.Sources {
		s := &o.Sources[i]
		if !s.InFile {
			continue
		}
		r := CycleRead{File: -1, Tensor: s.Name, Op: o.Name, Offset: s.Offset, Length: s.Bytes(), Nanos: nanos}
		if gathers && o.GatherDim > 0 {
			r.Slice, r.Experts = s.NB[gather.Dim], gather.Experts
			r.Slices = max(o.Selects, distinctIDs(o.IDs))
		}
		if nanos > 0 {
			nanos = 0
		}
		if !yield(i, r) {
			return
		}
	}
}

func distinctIDs(ids []int32) int {
	seen := make(map[int32]struct{}, len(ids))
	for _, id := range ids {
		seen[id] = struct{}{}
	}
	return len(seen)
}
