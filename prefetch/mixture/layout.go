package mixture

// This file finds where the experts of a model lie in its files.

import (
	"cmp"
	"slices"

	"tensorcast/gguf"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// layout is where the experts of a model lie.
type layout struct {
	layers []layer       // in the order of use
	index  map[int32]int // of layers, by their numbers in the model
	most   int64         // bytes that one layer chooses at most, as the cycle has it

	tensors []tensor // that are cut into experts, layer by layer
}

// findExperts finds the layers of a cycle that have experts. piece is as pages.DemandReader.SlicePieceBytes.
func findExperts(cycle *pattern.Cycle, blocks []pages.Range, piece func(file int) int64) layout {
	found := layout{index: map[int32]int{}}
	chooses := map[int]int64{}    // bytes, by index of the layer
	tensors := map[int][]tensor{} // by index of the layer
	blocks = slices.Clone(blocks)
	sortRanges(blocks)
	type start struct {
		file   int
		offset int64
	}
	seen := map[start]bool{}
	for i := range cycle.Reads {
		r := &cycle.Reads[i]
		number := layerOf(r)
		if !r.Experts || r.Slice <= 0 || r.Length/r.Slice > maxExperts || number < 0 || seen[start{r.File, r.Offset}] {
			continue
		}
		seen[start{r.File, r.Offset}] = true
		n := int(r.Length / r.Slice)
		at, known := found.index[number]
		if !known {
			at = len(found.layers)
			found.index[number] = at
			found.layers = append(found.layers, layer{experts: make([]expert, n), step: 1})
		}
		l := &found.layers[at]
		if len(l.experts) != n { // a bias of another kind: it is small
			continue
		}
		whole := pages.Range{File: r.File, Offset: r.Offset, Length: r.Length}
		for e := range n {
			slice := pages.Range{File: r.File, Offset: r.Offset + int64(e)*r.Slice, Length: r.Slice}
			l.experts[e].addSlice(slice, blocks, piece(r.File))
		}
		tensors[at] = append(tensors[at], tensor{layer: at, part: l.tensors, whole: whole,
			own: trimToPages(trimBlocks(whole, blocks))})
		l.tensors++
		l.chose = max(l.chose, min(r.Slices, n))
		chooses[at] += int64(r.Slices) * r.Slice
		found.most = max(found.most, chooses[at])
	}
	for i := range found.layers {
		found.layers[i].first = len(found.tensors)
		found.tensors = append(found.tensors, tensors[i]...)
	}
	return found
}

// layerOf is the number of the layer that a tensor belongs to; negative if it belongs to none.
func layerOf(r *pattern.CycleRead) int32 { return int32((&gguf.Tensor{Name: r.Tensor}).Layer()) }

// addSlice adds a slice to an expert. blocks are in the order of the files.
func (e *expert) addSlice(slice pages.Range, blocks []pages.Range, piece int64) {
	e.slices = append(e.slices, slice)
	own := trimBlocks(slice, blocks)
	e.bytes += own.Length
	own = trimToPages(own)
	for _, p := range pages.SlicePieces(slice, piece) {
		from, end := max(own.Offset, p.Offset), min(own.End(), p.End())
		if from == p.Offset && p.Length >= pages.MinSlice { // the first page of each piece stays
			from += pages.PageSize
		}
		if from < end {
			e.owned = append(e.owned, pages.Range{File: slice.File, Offset: from, Length: end - from})
		}
	}
}

func sortRanges(all []pages.Range) { slices.SortFunc(all, pages.CompareRanges) }

// trimBlocks is a slice without the blocks that overlap its ends. Blocks are in the order of the files.
func trimBlocks(r pages.Range, blocks []pages.Range) pages.Range {
	first, end := r.Offset, r.End()
	i, _ := slices.BinarySearchFunc(blocks, r, func(b, r pages.Range) int {
		return cmp.Or(cmp.Compare(b.File, r.File), cmp.Compare(b.End(), r.Offset+1))
	})
	for ; i < len(blocks) && blocks[i].File == r.File && blocks[i].Offset <= first; i++ {
		first = blocks[i].End()
	}
	if i < len(blocks) && blocks[i].File == r.File {
		end = min(end, blocks[i].Offset)
	}
	return pages.Range{File: r.File, Offset: first, Length: max(end-first, 0)}
}

// trimToPages is the whole pages of a range.
func trimToPages(r pages.Range) pages.Range {
	first, end := (r.Offset+pages.PageSize-1)&^(pages.PageSize-1), r.End()&^(pages.PageSize-1)
	return pages.Range{File: r.File, Offset: first, Length: max(end-first, 0)}
}

// AddUnread adds to a cycle those experts of a file that were not read, because they were computed elsewhere.
// That may change. file is the number that the cycle has for it. All experts come behind what else is read,
// layer by layer.
func AddUnread(cycle *pattern.Cycle, file int, part *gguf.File) {
	var experts []pattern.CycleRead
	chosen := 1
	cycle.Reads = slices.DeleteFunc(cycle.Reads, func(r pattern.CycleRead) bool {
		if r.Experts {
			experts, chosen = append(experts, r), max(chosen, r.Slices)
		}
		return r.Experts
	})
	for k := range part.Tensors {
		t := &part.Tensors[k]
		isRead := func(r pattern.CycleRead) bool { return r.File == file && r.Offset == t.Offset }
		if t.ExpertStride() == 0 || t.Layer() < 0 || slices.ContainsFunc(experts, isRead) {
			continue
		}
		experts = append(experts, pattern.CycleRead{File: file, Tensor: t.Name, Offset: t.Offset, Length: t.Size,
			Slice: t.ExpertStride(), Slices: chosen, Experts: true, Nanos: -1})
	}
	slices.SortStableFunc(experts, func(a, b pattern.CycleRead) int { return cmp.Compare(layerOf(&a), layerOf(&b)) })
	cycle.Reads = append(cycle.Reads, experts...)
}
