package pages

// This file defines the part of a file that all levers act on.

import "cmp"

// MinBlock is the least unit, in bytes, in which the model is held and streamed. Blocks are aligned in the
// file, because a lock that cuts a large folio keeps the whole folio in memory.
const MinBlock = 1 << 20

// Range is a part of a file of the model.
type Range struct {
	File   int   // index of the file, as Files.Open returned it
	Offset int64 // first byte in the file
	Length int64 // bytes
}

// End is the offset of the first byte behind the range.
func (r Range) End() int64 { return r.Offset + r.Length }

// Overlaps says whether two ranges have a byte in common.
func (r Range) Overlaps(q Range) bool {
	return r.File == q.File && r.Offset < q.End() && q.Offset < r.End()
}

// CompareRanges orders ranges by file and offset.
func CompareRanges(a, b Range) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Offset, b.Offset))
}
