package pattern

// This file finds the shortest script of edits that turns one sequence of reads into another.
//
// E. W. Myers: An O(ND) difference algorithm and its variations. Algorithmica 1 (1986).

import (
	"cmp"
	"slices"
)

// Edit is one difference of a sequence from the canonical one.
type Edit struct {
	// Kind is KindMissing, KindExtra, KindSize, KindOp, or KindOrder (the same read at another
	// position).
	Kind Kind `json:"kind"`
	// in the canonical sequence: that of the read, or before which the extra read comes
	Position int    `json:"position"`
	To       int    `json:"to"` // for KindOrder, before which position the read comes instead; else Position
	Tensor   int32  `json:"-"`  // row of Pattern.Structure
	Name     string `json:"tensor_name"`
	Op       string `json:"op"`
	Expected int64  `json:"expected_bytes"` // 0 where nothing is expected
	Got      int64  `json:"bytes_accessed"` // 0 where nothing was read
}

// differ compares sequences. Its work is bounded. Once that is used up, scripts need not be the
// shortest.
type differ struct {
	same func(a, b Read) bool
	work int // comparisons that are left
}

// maxEdits is the length up to which the shortest script is searched for.
const maxEdits = 400

// findScript returns a script that turns want into got, ordered by position, and whether it comes
// from the search for the shortest one.
func (d *differ) findScript(want, got []Read) (script []Edit, shortest bool) {
	from := 0
	for from < min(len(want), len(got)) && d.same(want[from], got[from]) {
		from++
	}
	want, got = want[from:], got[from:]
	for len(want) > 0 && len(got) > 0 && d.same(want[len(want)-1], got[len(got)-1]) {
		want, got = want[:len(want)-1], got[:len(got)-1]
	}
	removed, added, shortest := d.shortestScript(want, got)
	return buildScript(want, got, removed, added, from), shortest
}

// shortestScript returns which reads of want are removed, and which of got are added. added maps
// the index in got to the position in want before which the read is added. If no script was found
// within the limits, ok is false, and all reads are removed and added.
func (d *differ) shortestScript(want, got []Read) (removed []int, added map[int]int, ok bool) {
	added = map[int]int{}
	n, m := len(want), len(got)
	var trace [][]int32 // for each number of edits, how far each diagonal reaches in want
	limit := min(n+m, maxEdits)
	reach := make([]int32, 2*limit+3)
	center := limit + 1
	for edits := 0; edits <= limit; edits++ {
		for k := -edits; k <= edits; k += 2 {
			var x int
			if k == -edits || k != edits && reach[center+k-1] < reach[center+k+1] {
				x = int(reach[center+k+1]) // a read of got is added
			} else {
				x = int(reach[center+k-1]) + 1 // a read of want is removed
			}
			y := x - k
			for x < n && y < m && y >= 0 && d.same(want[x], got[y]) {
				x, y = x+1, y+1
				d.work--
			}
			d.work--
			reach[center+k] = int32(x)
			if x >= n && y >= m {
				return traceBack(trace, n, m, edits)
			}
		}
		if d.work < 0 {
			break
		}
		trace = append(trace, slices.Clone(reach[center-edits:center+edits+1]))
	}
	for i := range want {
		removed = append(removed, i)
	}
	for j := range got {
		added[j] = n
	}
	return removed, added, false
}

// traceBack follows the trace from the end to the beginning.
func traceBack(trace [][]int32, x, y, edits int) (removed []int, added map[int]int, ok bool) {
	added = map[int]int{}
	for e := edits; e > 0; e-- {
		before := trace[e-1] // of diagonals -(e-1) to e-1
		at := func(k int) int32 {
			if k < -(e-1) || k > e-1 {
				return -1
			}
			return before[k+e-1]
		}
		k := x - y
		if k == -e || k != e && at(k-1) < at(k+1) {
			x = int(at(k + 1))
			y = x - (k + 1)
			added[y] = x
		} else {
			x = int(at(k - 1))
			y = x - (k - 1)
			removed = append(removed, x)
		}
	}
	return removed, added, true
}

// buildScript turns removed and added reads into edits. A read that is removed at one position and
// added at another has moved. An added read that replaces one of the same tensor differs in bytes
// or op.
func buildScript(want, got []Read, removed []int, added map[int]int, from int) []Edit {
	slices.Sort(removed)
	var script []Edit
	gone := map[Read][]int{} // the removed reads, by identity
	for _, i := range removed {
		gone[want[i].identity()] = append(gone[want[i].identity()], i)
	}
	used := map[int]bool{}
	order := make([]int, 0, len(added))
	for j := range added {
		order = append(order, j)
	}
	slices.Sort(order)
	var rest []int
	for _, j := range order {
		read := got[j].identity()
		moved := gone[read]
		if len(moved) == 0 {
			rest = append(rest, j)
			continue
		}
		i := moved[0]
		gone[read] = moved[1:]
		used[i] = true
		script = append(script, Edit{
			Kind: KindOrder, Position: from + i, To: from + added[j], Tensor: got[j].Tensor,
			Op: got[j].Op, Expected: want[i].Bytes, Got: got[j].Bytes,
		})
	}
	left := removed[:0:0]
	for _, i := range removed {
		if !used[i] {
			left = append(left, i)
		}
	}
	// A read and its replacement have the same tensor. Both lists are in order, so one pass pairs
	// them.
	byTensor := map[int32][]int{}
	for _, i := range left {
		byTensor[want[i].Tensor] = append(byTensor[want[i].Tensor], i)
	}
	for _, j := range rest {
		e := Edit{
			Kind: KindExtra, Position: from + added[j], To: from + added[j], Tensor: got[j].Tensor,
			Op: got[j].Op, Got: got[j].Bytes,
		}
		if replaced := byTensor[got[j].Tensor]; len(replaced) > 0 {
			i := replaced[0]
			byTensor[got[j].Tensor] = replaced[1:]
			used[i] = true
			e.Kind, e.Position, e.To, e.Expected = KindOp, from+i, from+i, want[i].Bytes
			if want[i].Op == got[j].Op {
				e.Kind = KindSize
			}
		}
		script = append(script, e)
	}
	for _, i := range left {
		if !used[i] {
			script = append(script, Edit{
				Kind: KindMissing, Position: from + i, To: from + i, Tensor: want[i].Tensor,
				Op: want[i].Op, Expected: want[i].Bytes,
			})
		}
	}
	slices.SortStableFunc(script, func(a, b Edit) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.To, b.To))
	})
	return script
}
