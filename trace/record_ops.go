package trace

// This file joins ops with the models' tensors and writes the rows of the access and buffers tables.
// It also accounts for weights that are read from memory outside the model files' mappings.

import (
	"fmt"
	"slices"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/trace/tables"
)

// sourceRead is the part of an access row that is the same each time an op reads one of its sources.
type sourceRead struct {
	tables.Access
	part   *modelPart // nil if the source is in no model file
	slices int64      // rows or experts that the source has, if the op gathers
	stride int64      // bytes of each
	embeds bool       // the rows are token embeddings
}

// resolvedOp is what a Recorder keeps in an op's memo: the reads of the op.
type resolvedOp struct {
	by    *Recorder
	files int // how many files were known when they were resolved
	reads []sourceRead
}

// recordOp writes what an op of an open step touches.
func (r *Recorder) recordOp(o *event.Op) error {
	s := r.steps.find(o.TID, o.Decode)
	if s == nil {
		r.lost.orphans++ // the capture began during a decode, or the decode's begin was lost
		return nil
	}
	reads, err := r.resolve(o)
	if err != nil {
		return err
	}
	var selected []int32 // nil: not known
	if o.IDs != nil {
		if selected, err = r.gatheredIDs(o, reads); err != nil {
			return err
		}
	}
	r.accesses = r.accesses[:0]
	for i := range reads {
		read := &reads[i]
		if read.embeds {
			r.collectTokenIDs(s, o, selected != nil)
		}
		if read.part == nil {
			continue
		}
		r.accesses = append(r.accesses, read.Access)
		if err := r.completeAccess(&r.accesses[len(r.accesses)-1], o, s, read, selected); err != nil {
			return err
		}
	}
	if err := r.writeAccesses(o.Stall); err != nil {
		return err
	}
	if err := r.writeBuffers(o, s); err != nil {
		return err
	}
	return r.releasePageInsOf(o)
}

// resolve finds the sources of an op in the models.
func (r *Recorder) resolve(o *event.Op) ([]sourceRead, error) {
	if o.Memo != nil {
		if known, ok := o.Memo.Value.(*resolvedOp); ok && known.by == r && known.files == len(r.files) {
			return known.reads, nil
		}
	}
	reads := r.reads[:0]
	if o.Memo != nil {
		reads = nil
	}
	for i := range o.Sources {
		read, err := r.resolveSource(o, &o.Sources[i])
		if err != nil {
			return nil, err
		}
		reads = append(reads, read)
	}
	if o.Memo != nil {
		o.Memo.Value = &resolvedOp{by: r, files: len(r.files), reads: reads}
	} else {
		r.reads = reads
	}
	return reads, nil
}

func (r *Recorder) resolveSource(o *event.Op, src *event.Source) (sourceRead, error) {
	read := sourceRead{embeds: o.GatherDim == 1 && !o.ByExpert && src.Name == event.TokenEmbeddings}
	if !src.InFile {
		return read, r.noteOutside(o, src)
	}
	p := r.files[src.File]
	if p == nil {
		return read, nil
	}
	t, err := findTensor(src, p.file, p.model.files())
	if err != nil {
		return read, fmt.Errorf("op %s: %w", o.Name, err)
	}
	row := p.rows[t]
	read.part = p
	read.Access = tables.Access{
		Op: o.Name, Tensor: row, DataPtr: src.Data, Offset: src.Offset, Bytes: src.Bytes(), Layer: r.rows[row].Layer,
	}
	read.slices, read.stride = src.Slices(o.GatherDim)
	if t.Opaque() {
		read.boundBy(t, src, o.GatherDim)
	}
	p.model.noteLayer(int(read.Layer))
	return read, nil
}

// boundBy makes what is known of a read of an opaque tensor agree with the tensor's extent. The target
// may know the type's size. If it does not, or contradicts the file, a matrix is read as a whole, and
// an expert's slice is an equal part of it, if there are such.
func (read *sourceRead) boundBy(t *gguf.Tensor, src *event.Source, dim int) {
	rest := t.End() - read.Offset
	if read.Bytes > 0 && read.Bytes <= rest {
		return
	}
	read.Bytes, read.slices, read.stride = rest, 0, 0
	if dim > 0 && dim < len(src.NE) && src.NE[dim] > 0 {
		read.slices, read.stride = src.NE[dim], rest/src.NE[dim]
	}
}

// gatheredIDs returns the distinct ids of an op, in order of first occurrence. Each is the number of a
// slice of the op's first source. Negative ids are left out, because a fork of ggml uses them to gather
// nothing.
//
// It returns nil if the ids are not known. A graph that is reported before it runs has not computed its
// ids yet, and the memory for them holds anything.
func (r *Recorder) gatheredIDs(o *event.Op, reads []sourceRead) ([]int32, error) {
	r.selected = appendDistinct(r.selected[:0], o.IDs)
	if o.GatherDim <= 0 || len(reads) == 0 || reads[0].part == nil {
		return r.selected, nil
	}
	for _, id := range r.selected {
		if int64(id) < reads[0].slices {
			continue
		}
		if o.Duration < 0 {
			r.lost.unknownIDs++
			return nil, nil
		}
		return nil, fmt.Errorf("%w: op %s gathers slice %d of %s, which has %d",
			event.ErrLayout, o.Name, id, r.rows[reads[0].Tensor].Name, reads[0].slices)
	}
	return r.selected, nil
}

// appendDistinct appends each id that is not negative once, in order of first occurrence, to out, which
// must be empty. The result is not nil.
func appendDistinct(out, ids []int32) []int32 {
	if out == nil {
		out = make([]int32, 0, min(len(ids), 64))
	}
	if len(ids) <= 32 { // the usual case: the experts of a token
		for _, id := range ids {
			if id >= 0 && !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
		return out
	}
	seen := make(map[int32]bool, len(ids))
	for _, id := range ids {
		if id >= 0 && !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

// completeAccess fills in what is particular to this run of the op in the row of one source. selected
// are the ids by which the op gathers, nil if they are not known.
func (r *Recorder) completeAccess(
	a *tables.Access, o *event.Op, s *step, read *sourceRead, selected []int32,
) error {
	a.Timestamp, a.Duration = o.Time-r.begun, max(o.Duration, tables.NotObserved)
	a.Step, a.Token, a.Phase, a.Thread, a.Context = s.Step, s.Token, s.Phase, o.TID, s.Context
	if o.GatherDim <= 0 || o.GatherDim > 3 {
		return nil
	}
	if s.mayBeWarmup != nil && !o.ByExpert && selected != nil {
		r.decideWarmup(s, read.part.model, o.IDs)
		a.Phase = s.Phase
	}
	if selected == nil {
		a.Bytes = min(a.Bytes, min(maxGathered(o, s, read.part.model), read.slices)*read.stride)
		return nil
	}
	a.Bytes = min(a.Bytes, min(int64(len(selected)), read.slices)*read.stride)
	switch {
	case o.ByExpert:
		a.Experts = selected
		return r.writeRoutes(o, s, a.Layer)
	case len(selected) == 1 && !r.opts.NoTokenIDs:
		a.Offset += int64(selected[0]) * read.stride
	}
	return nil
}

// maxGathered returns how many rows or experts the batch's tokens gather, or at most can, where the ids
// are not known.
func maxGathered(o *event.Op, s *step, m *model) int64 {
	if o.Selects > 0 {
		return int64(o.Selects)
	}
	n := max(int64(s.Tokens), 1)
	if o.ByExpert {
		if m.expertsUsed == 0 || s.Phase == tables.PhaseWarmup { // the warm-up uses all experts
			return 1 << 32
		}
		n *= int64(m.expertsUsed)
	}
	return n
}

// writeAccesses writes the rows of an op. The row that reads most gets the op's stall (ns), so that sums
// over rows are right.
func (r *Recorder) writeAccesses(stall int64) error {
	most := 0
	for i := range r.accesses {
		if r.accesses[i].Bytes > r.accesses[most].Bytes {
			most = i
		}
	}
	for i := range r.accesses {
		a := &r.accesses[i]
		a.Stall = stall
		if stall > 0 && i != most {
			a.Stall = 0
		}
		if err := r.writeAccess(a); err != nil {
			return err
		}
	}
	if stall > 0 && len(r.accesses) > 0 {
		if r.rereads == nil {
			r.rereads = &rereadAccount{}
		}
		r.rereads.addStall(r.accesses[most].Tensor, stall)
	}
	return nil
}

func (r *Recorder) writeAccess(a *tables.Access) error {
	r.rowsWritten++
	if r.csv != nil {
		if err := r.csv.writeAccess(a, r.rows[a.Tensor].Name); err != nil {
			return err
		}
	}
	if r.w == nil {
		return nil
	}
	return r.w.Access(a)
}

func (r *Recorder) writeBuffers(o *event.Op, s *step) error {
	if r.w == nil {
		return nil
	}
	for i := range o.Buffers {
		b := &o.Buffers[i]
		if b.Bytes() >= event.MaxBytes {
			return fmt.Errorf("%w: op %s touches %q of type %v with %v elements", event.ErrLayout, o.Name, b.Name,
				b.Type, b.NE)
		}
		row := tables.BufferRow{
			Timestamp: o.Time - r.begun, Step: s.Step, Op: o.Name, Seq: int64(o.Seq), Buffer: b.Name, Root: b.Root,
			Kind: tables.KindOf(b), Write: b.Write, DataPtr: b.Data, Bytes: b.Bytes(),
		}
		if err := r.w.Buffer(&row); err != nil {
			return err
		}
	}
	return nil
}

// maxOutside is how many weights outside a mapping are counted.
const maxOutside = 1 << 16

// outsideWeights are the bytes of the weights that are read from memory outside the model files'
// mappings, by name.
type outsideWeights map[string]int64

// noteOutside counts a weight that is in no file's mapping.
func (r *Recorder) noteOutside(o *event.Op, src *event.Source) error {
	if _, known := r.outside[src.Name]; known || len(r.outside) >= maxOutside {
		return nil
	}
	n := src.Bytes()
	if n >= event.MaxBytes || !isPrintable(src.Name) {
		return fmt.Errorf("%w: op %s reads %q of type %v with %v elements", event.ErrLayout, o.Name, src.Name,
			src.Type, src.NE)
	}
	r.outside[src.Name] = n
	if len(r.models) == 1 { // with several models it is unknown which one the weight belongs to
		r.models[0].noteLayer(layerOf(src.Name))
	}
	return nil
}

// summary gives the first name in alphabetical order as an example.
func (o outsideWeights) summary() tables.Outside {
	sum := tables.Outside{Tensors: len(o)}
	for name, size := range o {
		sum.Bytes += size
		if sum.Example == "" || name < sum.Example {
			sum.Example = name
		}
	}
	return sum
}
