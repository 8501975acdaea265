package pattern

// This file defines the cycle: what one token reads. All code that plans, predicts, measures or
// compares uses this one definition.

import (
	"cmp"
	"slices"
	"strings"

	"tensorcast/event"
	"tensorcast/ggml"
)

// Cycle is what one generated token reads, in order, in one llama_context with one model. Every
// token reads the same, except for the rows and experts that it gathers: these depend on the token.
// Where nothing is generated, it is what the tokens of a prompt read together in one pass through the model.
// It holds no addresses, because they differ from run to run.
//
// A Cycle is not changed once it is made, so it may be read concurrently.
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
	// Offset and Length are the range that any token may read of the tensor. Usually that is the
	// whole tensor, or a part of it if the op reads through a view (ggml_view). Offset is counted
	// from the beginning of the file.
	Offset int64 `json:"offset_bytes"`
	Length int64 `json:"size_bytes"`
	// Slice and Slices describe what is gathered: a token reads Slices slices of Slice bytes. Which
	// ones depends on the token. Both are 0 if everything is read.
	Slice   int64 `json:"slice_bytes,omitempty"`
	Slices  int   `json:"slices,omitempty"`
	Experts bool  `json:"experts,omitempty"` // the slices are experts, else rows
	// Nanos is how many ns the op computes, without waiting for the disk as far as that was
	// observed. It is the shortest time over the steps that were seen, because every disturbance
	// adds. It is -1 if not observed. For an op of several weights the first read has the time and
	// the others have 0, so that sums are right.
	Nanos int64 `json:"compute_ns"`
}

// End returns the offset of the first byte behind the range.
func (r *CycleRead) End() int64 { return r.Offset + r.Length }

// Gathers reports whether it depends on the token which bytes are read.
func (r *CycleRead) Gathers() bool { return r.Slice > 0 }

// matches reports whether two reads are the same apart from what may differ between tokens: how
// many slices they gather, and how long they take.
func (r *CycleRead) matches(o *CycleRead) bool {
	return r.File == o.File && r.Offset == o.Offset && r.Length == o.Length && r.Slice == o.Slice &&
		r.Experts == o.Experts && r.Op == o.Op && r.Tensor == o.Tensor
}

// filePosition is where a tensor begins.
type filePosition struct {
	file   int
	offset int64
}

// Bytes returns how many distinct bytes of the files a token reads (M). A tensor that is read twice
// counts once.
func (c *Cycle) Bytes() int64 {
	whole := c.wholeExtents()
	var sum int64
	for _, e := range whole {
		sum += e.end - e.offset
	}
	gathered := map[filePosition]int64{}
	for i := range c.Reads {
		r := &c.Reads[i]
		at := filePosition{r.File, r.Offset}
		// If the embedding also computes the logits, the whole tensor is read, and the row lies in
		// it.
		if r.Gathers() && !startsWithin(whole, r) {
			gathered[at] = min(max(gathered[at], r.Slice*int64(r.Slices)), r.Length)
		}
	}
	for _, n := range gathered {
		sum += n
	}
	return sum
}

type extent struct {
	filePosition
	end int64
}

// wholeExtents returns what every token reads: disjoint extents in the order of the files.
func (c *Cycle) wholeExtents() []extent {
	var all []extent
	for i := range c.Reads {
		if r := &c.Reads[i]; !r.Gathers() {
			all = append(all, extent{filePosition{r.File, r.Offset}, r.End()})
		}
	}
	slices.SortFunc(all, func(a, b extent) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.offset, b.offset))
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

// startsWithin reports whether a read's tensor begins in one of the extents, which are in order.
func startsWithin(extents []extent, r *CycleRead) bool {
	i, found := slices.BinarySearchFunc(extents, filePosition{r.File, r.Offset}, func(e extent, at filePosition) int {
		return cmp.Or(cmp.Compare(e.file, at.file), cmp.Compare(e.offset, at.offset))
	})
	return found || i > 0 && extents[i-1].file == r.File && r.Offset < extents[i-1].end
}

// ReadsOf yields what an op reads of weights in files, in the form of a cycle's reads, with the
// index in Op.Sources of each. File is -1, and the caller fills it in.
func ReadsOf(o *event.Op, yield func(source int, r CycleRead) bool) {
	nanos := o.Duration
	if nanos >= 0 && o.Stall > 0 {
		nanos = max(nanos-o.Stall, 0)
	}
	for i := range o.Sources {
		s := &o.Sources[i]
		r := CycleRead{
			File: -1, Tensor: weightName(s.Name), Op: o.Name, Offset: s.Offset, Length: s.Bytes(),
			Nanos: max(nanos, -1),
		}
		if !s.InFile || r.Length <= 0 {
			continue
		}
		if o.GatherDim > 0 && o.GatherDim < len(s.NB) {
			selected := o.Selects
			if o.IDs != nil {
				selected = countDistinct(o.IDs)
			}
			r.setGather(s.NB[o.GatherDim], int64(selected), o.ByExpert)
		}
		if nanos > 0 {
			nanos = 0
		}
		if !yield(i, r) {
			return
		}
	}
}

// setGather makes r gather n slices. If n is 0, the number is not known: one row, or all experts,
// are assumed.
func (r *CycleRead) setGather(slice, n int64, experts bool) {
	if slice <= 0 || slice > r.Length {
		return // not a slice of this tensor, so all of it may be read
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

// weightName returns a weight's name in the model file. An op may read it through a view, which
// ggml names "blk.0.ssm_a (reshaped)".
func weightName(name string) string {
	name, _, _ = strings.Cut(name, " (")
	return name
}

// gatherOf returns how the op of a read gathers. Fused ops ("GET_ROWS+SCALE") gather as their first
// op does.
func gatherOf(op string) (ggml.Gather, bool) {
	op, _, _ = strings.Cut(op, "+")
	return ggml.GatherOf(op)
}

// countDistinct returns the number of different ids. It allocates nothing for few ids, such as the
// experts of a token.
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
