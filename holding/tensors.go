package holding

// This file looks for ggml's tensors in a process's memory. The addresses of their data show where
// the weights are.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"os"
	"slices"
	"strings"

	"tensorcast/ggml"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
)

// What is read of a process's memory is bounded. ggml's tables lie in the heap, which has some 10
// MB, or 100 MB with a large vocabulary. The areas of weights and of contexts' keys and values need
// not be read. If the kernel has joined such an area with one that holds a table, the table is at
// one of its ends.
const (
	maxScan   = 256 << 20 // bytes in all
	largeArea = 64 << 20  // of a larger area, other than the heap, only the ends are read
	areaEnd   = 8 << 20   // bytes that are read at each end then
	// chunkBytes is what is read at once. It is small, because the buffer may count against the
	// target's memory.
	chunkBytes   = 128 << 10
	overlapBytes = 1 << 10 // a tensor may lie across the end of a chunk
	areaCost     = 4 << 10 // what reading counts at least, however small the area
)

// maxHits bounds how many chunks are remembered between two scans. The tables of a model with a
// thousand weights take four.
const maxHits = 16

// maxFound bounds how many weights are remembered of a process whose model's file is not known.
const maxFound = 1 << 17

// longestName bounds a tensor's name: GGML_MAX_NAME is 64, and may be raised.
const longestName = 128

var weightSuffix = []byte(".weight\x00")

// seen is where a weight was found.
type seen struct{ mapped, copied, device, empty bool }

func (s seen) isSomewhere() bool { return s.mapped || s.copied || s.device }

// weight is a tensor of a file.
type weight struct {
	model *model
	of    *gguf.Tensor
	seen  seen
}

// table collects what is found.
type table struct {
	space   *space
	gpu     bool // the process uses a GPU, or may
	layouts []ggml.Layout
	byName  map[string][]*weight
	missing int // weights that were not found yet
	loose   map[string]looseWeight
	hits    []uint64 // addresses of chunks of memory with weights
}

// looseWeight is a weight of a model whose file is not known.
type looseWeight struct {
	size int64
	seen seen
}

// locateWeights fills in where the weights are.
func (e *Examiner) locateWeights(ctx context.Context, sp *space, models []*model, h *Holding) {
	t := &table{
		space: sp, gpu: len(h.Devices)+len(h.Backends) > 0, layouts: ggml.Candidates(),
		byName: map[string][]*weight{}, loose: map[string]looseWeight{},
	}
	var all []*weight
	for _, m := range models {
		for i := range m.gguf.Tensors {
			w := &weight{model: m, of: &m.gguf.Tensors[i]}
			all = append(all, w)
			if strings.HasSuffix(w.of.Name, ".weight") {
				t.byName[w.of.Name] = append(t.byName[w.of.Name], w)
				t.missing++
			}
		}
	}
	if mem, err := os.Open(e.sys.path(e.pid, "mem")); err == nil { // else: no ptrace access
		defer mem.Close()
		t.scan(ctx, mem, e.hits)
		e.hits = t.hits
	}
	if len(models) == 0 {
		for _, w := range t.loose {
			switch {
			case w.seen.copied:
				h.Weights.Copied += w.size
			case w.seen.device:
				h.Weights.Device += w.size
			}
		}
		h.Exact = h.Weights.Total() > 0
		return
	}
	t.sumWeights(all, h)
}

// sumWeights adds up where the weights of files are.
func (t *table) sumWeights(all []*weight, h *Holding) {
	var total, found int64
	for _, w := range all {
		total += w.of.Size
		if w.seen.isSomewhere() {
			found += w.of.Size
		}
	}
	h.Exact = total > 0 && total-found <= total/negligible
	var hidden int64 // bytes of weights of which nothing is known but that they are mapped
	hasOutput := t.byName["output.weight"] != nil
	perToken, routed := map[proc.FileID]int64{}, map[proc.FileID]int64{}
	tables := map[*model][][2]int64{}
	add := func(w *weight) {
		h.Weights.Mapped += w.of.Size
		if w.of.Experts() > 0 {
			routed[w.model.file.ID] += w.of.Size
			return
		}
		// Where the logits are computed from a copy, only rows are looked up in the file, too.
		if w.of.IsTable(hasOutput || w.seen.copied || w.seen.device) {
			tables[w.model] = append(tables[w.model], [2]int64{w.of.Offset, w.of.End()})
			return
		}
		perToken[w.model.file.ID] += w.of.Size
	}
	var unseen []*weight
	unread := map[*model][][2]int64{}
	for _, w := range all {
		if !w.seen.mapped && (w.seen.copied || w.seen.device) {
			unread[w.model] = append(unread[w.model], [2]int64{w.of.Offset, w.of.End()})
		}
		switch {
		case w.seen.mapped:
			add(w)
		case w.seen.copied:
			h.Weights.Copied += w.of.Size
		case w.seen.device:
			h.Weights.Device += w.of.Size
		case w.seen.empty:
			h.Weights.Unknown += w.of.Size // it is being loaded
		case isCovered(w.model.spans, w.of.Offset, w.of.End()):
			if !w.of.IsTable(hasOutput) { // nobody copies a table
				hidden += w.of.Size
			}
			unseen = append(unseen, w)
		case t.gpu:
			h.Weights.Device += w.of.Size
		default:
			h.Weights.Copied += w.of.Size
		}
	}
	// If the table of tensors was not found, but the process has not even half as much memory of
	// its own, it did not copy these weights.
	presumed := h.Exact || !t.gpu && h.Own < hidden/2
	for _, w := range unseen {
		if presumed {
			add(w)
		} else {
			h.Weights.Unknown += w.of.Size
		}
	}
	for m, ranges := range unread {
		m.countUnread(h, ranges)
	}
	for m, ranges := range tables {
		m.countTables(h, ranges)
	}
	for i := range h.Files {
		f := &h.Files[i]
		f.PerToken, f.Routed = perToken[f.ID], routed[f.ID]
		h.PerToken += f.PerToken
		h.Routed += f.Routed
	}
}

// scan reads the memory in which tables may be: first the chunks that had them before, then the
// heap, then the other areas, the smallest first.
func (t *table) scan(ctx context.Context, mem io.ReaderAt, before []uint64) {
	buf := make([]byte, overlapBytes+chunkBytes)
	left := int64(maxScan)
	// read looks at a chunk that ends at end or earlier. It returns false when there is no more of
	// this area.
	read := func(from, end uint64) bool {
		n, err := mem.ReadAt(buf[:min(end-from, uint64(len(buf)))], int64(from))
		left -= max(int64(n), areaCost)
		if t.search(buf[:n], from) && len(t.hits) < maxHits && !slices.Contains(t.hits, from) {
			t.hits = append(t.hits, from)
		}
		return n > 0 && (err == nil || errors.Is(err, io.EOF))
	}
	for _, from := range before {
		if a := t.space.areaAt(from); a != nil && a.mayHoldTables {
			read(from, a.end)
		}
	}
	for _, a := range t.space.scanOrder() {
		pieces := [][2]uint64{{a.start, a.end}}
		if a.end-a.start > largeArea && !a.heap {
			pieces = [][2]uint64{{a.start, a.start + areaEnd}, {a.end - areaEnd, a.end}}
		}
		for _, p := range pieces {
			for from := p[0]; ; from += chunkBytes {
				if left <= 0 || ctx.Err() != nil || t.foundAll() {
					return
				}
				if !read(from, p[1]) || p[1]-from <= uint64(len(buf)) {
					break
				}
			}
		}
	}
}

// scanOrder lists the areas that may hold tables: the heap, then the others, the smallest first.
func (s *space) scanOrder() []*area {
	var order []*area
	for i := range s.areas {
		if s.areas[i].mayHoldTables {
			order = append(order, &s.areas[i])
		}
	}
	slices.SortStableFunc(order, func(a, b *area) int {
		if a.heap != b.heap {
			if a.heap {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.end-a.start, b.end-b.start)
	})
	return order
}

// foundAll reports whether there is nothing left to find.
func (t *table) foundAll() bool { return len(t.byName) > 0 && t.missing == 0 }

// search looks for tensors with the names of weights in memory that begins at an address, and
// reports whether there are any.
func (t *table) search(memory []byte, address uint64) (found bool) {
	for at := 0; ; {
		i := bytes.Index(memory[at:], weightSuffix)
		if i < 0 {
			return found
		}
		end := at + i + len(weightSuffix) - 1
		at = end
		// The bytes before a name are the address of the tensor's data, whose last byte is zero in
		// all address spaces.
		begin := bytes.LastIndexByte(memory[max(0, end-longestName):end], 0) + max(0, end-longestName) + 1
		for _, l := range t.layouts {
			base := begin - int(l.Name)
			if base < 0 || (address+uint64(base))%8 != 0 {
				continue
			}
			if t.noteTensor(memory[base:], string(memory[begin:end]), &l) {
				found = true
				break
			}
		}
	}
}

// noteTensor takes note of a tensor with that name and layout that the memory begins with. It
// returns false if there is no such tensor, or if it does not belong to the model.
func (t *table) noteTensor(raw []byte, name string, l *ggml.Layout) bool {
	if l.Check(raw, 0) != nil {
		return false
	}
	u64 := func(at uint32) uint64 { return binary.LittleEndian.Uint64(raw[at:]) }
	if u64(l.ViewSrc) != 0 || binary.LittleEndian.Uint32(raw[l.Op:]) != 0 {
		return false // it is the result of an op
	}
	data := u64(l.Data)
	if len(t.byName) == 0 {
		overflow, size := bits.Mul64(u64(l.NB+24), u64(l.NE+24))
		return t.noteLoose(name, data, overflow == 0, size)
	}
	fits := false
	for _, w := range t.byName[name] {
		if !w.hasTypeAndShape(raw, l) {
			continue
		}
		fits = true
		s, here := t.classify(data, w)
		if s.mapped && !here {
			continue // the same name in another file
		}
		before := w.seen.isSomewhere()
		w.seen = seen{
			w.seen.mapped || s.mapped, w.seen.copied || s.copied, w.seen.device || s.device, w.seen.empty || s.empty,
		}
		if !before && w.seen.isSomewhere() {
			t.missing--
		}
	}
	return fits
}

// noteLoose takes note of a weight of a model whose file is not known. valid says that size, in
// bytes, did not overflow.
func (t *table) noteLoose(name string, data uint64, valid bool, size uint64) bool {
	if _, known := t.loose[name]; !known && len(t.loose) == maxFound {
		return false
	}
	w := looseWeight{size: clampBytes(size)}
	w.seen, _ = t.classify(data, nil)
	if valid && w.seen.isSomewhere() {
		t.loose[strings.Clone(name)] = w
	}
	return true
}

// hasTypeAndShape reports whether a tensor in memory has the shape of this weight, and its type unless
// that is not known.
func (w *weight) hasTypeAndShape(raw []byte, l *ggml.Layout) bool {
	if !w.of.Opaque() && w.of.Type.Number() != binary.LittleEndian.Uint32(raw[l.Type:]) {
		return false
	}
	for i := range uint32(4) {
		n := int64(1)
		if int(i) < len(w.of.Shape) {
			n = w.of.Shape[i]
		}
		if binary.LittleEndian.Uint64(raw[l.NE+8*i:]) != uint64(n) {
			return false
		}
	}
	return true
}

// classify finds out what is at the address of a weight's data. If it is a mapped file, here
// reports whether that is this weight's file and offset.
func (t *table) classify(data uint64, w *weight) (s seen, here bool) {
	if data == 0 {
		return seen{empty: true}, false
	}
	switch a := t.space.areaAt(data); {
	case a != nil && a.kind == kindFile:
		if w == nil {
			return seen{}, false
		}
		return seen{mapped: true}, a.file == w.model.file.ID && a.offset+(data-a.start) == uint64(w.of.Offset)
	case a != nil && a.kind == kindMemory:
		return seen{copied: true}, false
	case a != nil && a.kind == kindDevice, t.gpu:
		// A GPU's memory may have addresses that are only reserved in the process, or none in it.
		return seen{device: true}, false
	}
	return seen{}, false // left over from what was freed
}
