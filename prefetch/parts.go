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

// Parts says what is held of that which each token reads, and what is streamed, in the order of the files. It is empty while nothing is followed.
func (c *Controller) Parts() (parts []Part) {
	h := c.help
	if h == nil {
		return nil
	}
	s := h.schedule
	type tensor struct {
		pages.Range
		name string
	}
	var tensors []tensor
	for i, r := range s.Reads {
		tensors = append(tensors, tensor{r, s.Tensors[i]})
	}
	slices.SortFunc(tensors, func(a, b tensor) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset), cmp.Compare(b.Length, a.Length))
	})
	blocks := make([]int, len(s.Blocks)) // in the order of the files
	for b := range blocks {
		blocks[b] = b
	}
	slices.SortFunc(blocks, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.Blocks[a].File, s.Blocks[b].File), cmp.Compare(s.Blocks[a].Offset, s.Blocks[b].Offset))
	})
	first, told := 0, int64(0) // the first block that a tensor may lie in, and up to where all was told of
	for i, t := range tensors {
		if i > 0 && t.File != tensors[i-1].File {
			told = 0
		}
		for first < len(blocks) && (s.Blocks[blocks[first]].File < t.File || s.Blocks[blocks[first]].File == t.File && s.Blocks[blocks[first]].End() <= max(t.Offset, told)) {
			first++
		}
		for _, b := range blocks[first:] {
			r := s.Blocks[b]
			begin, end := max(r.Offset, t.Offset, told), min(r.End(), t.End())
			if r.File != t.File || r.Offset >= t.End() {
				break
			}
			if begin >= end {
				continue
			}
			told = end
			p := Part{filepath.Base(c.known[t.File].path), begin, end - begin, t.name, s.uses[b], h.held[b]}
			if n := len(parts); n > 0 {
				if l := &parts[n-1]; l.File == p.File && l.Offset+l.Bytes == p.Offset && l.Tensor == p.Tensor && l.Visits == p.Visits && l.Kept == p.Kept {
					l.Bytes += p.Bytes
					continue
				}
			}
			parts = append(parts, p)
		}
	}
	return parts
}

// WriteParts writes parts as CSV, with a header. Names that a spreadsheet would take for a formula get a leading apostrophe.
func WriteParts(w io.Writer, parts []Part) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"file", "offset_bytes", "size_bytes", "tensor_name", "visits", "state"}}
	for _, p := range parts {
		state := "streamed"
		if p.Kept {
			state = "kept"
		}
		rows = append(rows, []string{gguf.SpreadsheetCell(p.File), strconv.FormatInt(p.Offset, 10), strconv.FormatInt(p.Bytes, 10), gguf.SpreadsheetCell(p.Tensor), strconv.Itoa(p.Visits), state})
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}
