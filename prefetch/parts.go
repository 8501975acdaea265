package prefetch

// This file tells what is held, for people: by tensors.

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"

	"tensorcast/gguf"
	"tensorcast/prefetch/pages"
)

// Part is a part of a tensor, all of which is held, or streamed.
type Part struct {
	File   string // base name
	Offset int64  // first byte in the file
	Bytes  int64
	Tensor string
	Visits int // times that a token reads it from disk where it is streamed: the uses between which it does not stay
	Kept   bool
}

// continues says whether a part is the rest of the part before it.
func (p *Part) continues(before *Part) bool {
	return before.File == p.File && before.Offset+before.Bytes == p.Offset && before.Tensor == p.Tensor &&
		before.Visits == p.Visits && before.Kept == p.Kept
}

// parts says what is held and what is streamed, in the order of the files.
func (f *followed) parts() (parts []Part) {
	s := f.schedule
	tensors, blocks := orderByFile(s.Reads), orderByFile(s.Blocks)
	first, covered := 0, int64(0) // the first block that a tensor may lie in, and up to where there are parts
	for i, read := range tensors {
		t := s.Reads[read]
		if i > 0 && t.File != s.Reads[tensors[i-1]].File {
			covered = 0
		}
		for ; first < len(blocks); first++ {
			b := s.Blocks[blocks[first]]
			if b.File > t.File || b.File == t.File && b.End() > max(t.Offset, covered) {
				break
			}
		}
		for _, b := range blocks[first:] {
			r := s.Blocks[b]
			if r.File != t.File || r.Offset >= t.End() {
				break
			}
			begin, end := max(r.Offset, t.Offset, covered), min(r.End(), t.End())
			if begin >= end {
				continue
			}
			covered = end
			p := Part{filepath.Base(f.files[t.File].path), begin, end - begin, s.Tensors[read], s.Uses[b], f.held[b]}
			if n := len(parts); n > 0 && p.continues(&parts[n-1]) {
				parts[n-1].Bytes += p.Bytes
			} else {
				parts = append(parts, p)
			}
		}
	}
	return parts
}

// orderByFile has the indices of ranges in the order of the files; of two that begin together the longer one
// first.
func orderByFile(all []pages.Range) []int {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(pages.CompareRanges(all[a], all[b]), cmp.Compare(all[b].Length, all[a].Length))
	})
	return order
}

// WriteParts writes parts as CSV, with a header. Names that a spreadsheet would take for a formula get a
// leading apostrophe.
func WriteParts(w io.Writer, parts []Part) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"file", "offset_bytes", "size_bytes", "tensor_name", "visits", "state"}}
	for _, p := range parts {
		state := "streamed"
		if p.Kept {
			state = "kept"
		}
		rows = append(rows, []string{
			gguf.SpreadsheetCell(p.File), strconv.FormatInt(p.Offset, 10), strconv.FormatInt(p.Bytes, 10),
			gguf.SpreadsheetCell(p.Tensor), strconv.Itoa(p.Visits), state,
		})
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}
