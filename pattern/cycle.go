package pattern

// This file defines the cycle: what one token reads. It is the one definition of that, for whoever
// plans, predicts, measures or compares.

import (
	"cmp"
	"slices"
	"strings"

	"tensorcast/event"
	"tensorcast/ggml"
)

// Cycle is what one generated token reads, in order, in one llama_context with one model. Every
// token reads the same, save for what it gathers: rows and experts depend on the token. It holds no
// addresses: they are another run's.
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
	// Offset and Length are all that any token may read of the tensor: as a rule the whole tensor,
	// and a part of it where the op reads through a view (ggml_view). Offset is the first byte's in
	// the file.
	Offset int64 `json:"offset_bytes"`
	Length int64 `json:"size_bytes"`
	// Slice and Slices are for what is gathered: a token reads Slices slices of Slice bytes, which
	// ones depends on the token. 0 where all is read.
	Slice   int64 `json:"slice_bytes,omitempty"`
	Slices  int   `json:"slices,omitempty"`
	Experts bool  `json:"experts,omitempty"` // the slices are experts, else rows
	// Nanos is how long the op computes, without waiting for the disk as far as that was observed:
	// the least over the steps that were seen, as every disturbance adds. -1 if it was not
	// observed. An op of several weights has it in its first read, and 0 in the others, so that a
	// sum is true.
	Nanos int64 `json:"compute_ns"`
}

// End is the first byte behind the tensor.
func (r *CycleRead) End() int64 { return r.Offset + r.Length }

// Gathers says that which bytes are read depends on the token.
func (r *CycleRead) Gathers() bool { return r.Slice > 0 }

// same says that two reads are the same apart from what may differ between tokens: how many slices
// they gather, and how long they take.
func (r *CycleRead) same(o *CycleRead) bool {
	return r.File == o.File && r.Offset == o.Offset && r.Length == o.Length && r.Slice == o.Slice &&
		r.Experts == o.Experts && r.Op == o.Op && r.Tensor == o.Tensor
}

// place is where a tensor begins.
type place struct {
	file   int
	offset int64
}

// Bytes is how many distinct bytes of the files a token reads (M): a tensor that is read twice
// counts once.
func (c *Cycle) Bytes() int64 {
	whole := c.whole()
	var sum int64
	for _, e := range whole {
		sum += e.end - e.offset
	}
	gathered := map[place]int64{}
	for i := range c.Reads {
		r := &c.Reads[i]
		at := place{r.File, r.Offset}
		// The embedding's row lies in the whole tensor where that computes the logits too.
		if r.Gathers() && !within(whole, r) {
			gathered[at] = min(max(gathered[at], r.Slice*int64(r.Slices)), r.Length)
		}
	}
	for _, n := range gathered {
		sum += n
	}
	return sum
}

type extent struct {
	place
	end int64
}

// whole is what every token reads: disjoint extents in the order of the files.
func (c *Cycle) whole() []extent {
	var all []extent
	for i := range c.Reads {
		if r := &c.Reads[i]; !r.Gathers() {
			all = append(all, extent{place{r.File, r.Offset}, r.End()})
		}
	}
	slices.SortFunc(all, func(a, b extent) int {
		return cmp.Or(cmp.Compare(a.file, b.file),
			cmp.Compare(a.offset, b.offset))
	})
	joined := all[:0]
	for _, e := range all {
		if n := len(joined); n > 0 && joined[n-1].file == e.file && e.offset < joined[n-1].end {
			joined[n-1].end = max(joined[n-1].end, e.end)
			continue
		}
		joined = append(joined, e)
	}
	return joined
}

// within reports whether a read's tensor begins in one of the extents, which are in order.
func within(extents []extent, r *CycleRead) bool {
	i, found := slices.BinarySearchFunc(extents, place{r.File, r.Offset}, func(e extent, at place) int {
		return cmp.Or(cmp.Compare(e.file, at.file), cmp.Compare(e.offset, at.offset))
	})
	return found || i > 0 && extents[i-1].file == r.File && r.Offset < extents[i-1].end
}

// ReadsOf yields what an op reads of weights in files, as a cycle has it: with File -1, which the
// caller knows, and the place in Op.Sources that it is of.
func ReadsOf(o *event.Op, yield func(source int, r CycleRead) bool) {
	nanos := o.Duration
	if nanos >= 0 && o.Stall > 0 {
		nanos = max(nanos-o.Stall, 0)
	}
	for i := range o.Sources {
		s := &o.Sources[i]
		r := CycleRead{File: -1, Tensor: weightName(s.Name), Op: o.Name, Offset: s.Offset, Length: s.Bytes(),
			Nanos: max(nanos, -1)}
		if !s.InFile || r.Length <= 0 {
			continue
		}
		if o.GatherDim > 0 && o.GatherDim < len(s.NB) {
			selected := o.Selects
			if o.IDs != nil {
				selected = countDistinct(o.IDs)
			}
			r.gather(s.NB[o.GatherDim], int64(selected), o.ByExpert)
		}
		if nanos > 0 {
			nanos = 0
		}
		if !yield(i, r) {
			return
		}
	}
}

// gather makes r gather n slices. Where it is not known how many there are (0), it is one row, or
// all experts.
func (r *CycleRead) gather(slice, n int64, experts bool) {
	if slice <= 0 || slice > r.Length {
		return // not a slice of this tensor: nobody knows what is read of it, which may be all
	}
	all := r.Length / slice
	if n <= 0 {
		n = 1
		if experts {
			n = all
		}
	}
	r.Slice, r.Slices, r.Experts = slice, int(min(n, all)), experts
}

// weightName is a weight's name in the model file. An op may read it through a view, which ggml
// names "blk.0.ssm_a (reshaped)".
func weightName(name string) string {
	name, _, _ = strings.Cut(name, " (")
	return name
}

// gatherOf says how the op of a read gathers. Fused ops ("GET_ROWS+SCALE") gather as their first does.
func gatherOf(op string) (ggml.Gather, bool) {
	op, _, _ = strings.Cut(op, "+")
	return ggml.GatherOf(op)
}

// countDistinct is the number of different ids. It allocates nothing for as few as the experts of a
// token.
func countDistinct(ids []int32) int {
	const few = 32
	if len(ids) <= few {
		n := 0
		for i, id := range ids {
			if !slices.Contains(ids[:i], id) {
				n++
			}
		}
		return n
	}
	seen := make(map[int32]struct{}, len(ids))
	for _, id := range ids {
		seen[id] = struct{}{}
	}
	return len(seen)
}
