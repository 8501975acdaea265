package pattern

// This file states how one sequence of reads is made of another: the shortest script of edits.
//
// E. W. Myers: An O(ND) difference algorithm and its variations. Algorithmica 1 (1986).

import (
	"cmp"
	"slices"
)

// Edit is one difference of a sequence from the canonical one.
type Edit struct {
	// KindMissing, KindExtra, KindSize, KindOp, or KindOrder: the same read at another place
	Kind     Kind   `json:"kind"`
	Position int    `json:"position"` // in the canonical sequence: of the read, or before which it is extra
	To       int    `json:"to"`       // of KindOrder: before which position it is instead; else Position
	Tensor   int32  `json:"-"`        // row of Pattern.Structure
	Name     string `json:"tensor_name"`
	Op       string `json:"op"`
	Expected int64  `json:"expected_bytes"` // 0 where nothing is expected
	Got      int64  `json:"bytes_accessed"` // 0 where nothing was read
}

// differ compares sequences. Its work is bounded: once it is used up, scripts are no longer the shortest.
type differ struct {
	same func(a, b Read) bool
	work int // comparisons that are left
}

// A script of more edits than this is not looked for.
const maxEdits = 400

// edits returns a script that makes got of want, ordered by position, and whether it was looked for
// as the shortest one.
func (d *differ) edits(want, got []Read) (script []Edit, shortest bool) {
	from := 0
	for from < min(len(want), len(got)) && d.same(want[from], got[from]) {
		from++
	}
	want, got = want[from:], got[from:]
	for len(want) > 0 && len(got) > 0 && d.same(want[len(want)-1], got[len(got)-1]) {
		want, got = want[:len(want)-1], got[:len(got)-1]
	}
	removed, added, shortest := d.shortest(want, got)
	return join(want, got, removed, added, from), shortest
}

// shortest returns which reads of want are left out, and which of got are put in: for these the
// position in want before which that is, by index of got.
func (d *differ) shortest(want, got []Read) (removed []int, added map[int]int, ok bool) {
	added = map[int]int{}
	n, m := len(want), len(got)
	var trace [][]int32 // for each number of edits, how far in want each diagonal comes
	limit := min(n+m, maxEdits)
	reach := make([]int32, 2*limit+3)
	center := limit + 1
	for edits := 0; edits <= limit; edits++ {
		for k := -edits; k <= edits; k += 2 {
			var x int
			if k == -edits || k != edits && reach[center+k-1] < reach[center+k+1] {
				x = int(reach[center+k+1]) // a read of got is put in
			} else {
				x = int(reach[center+k-1]) + 1 // one of want is left out
			}
			y := x - k
			for x < n && y < m && y >= 0 && d.same(want[x], got[y]) {
				x, y = x+1, y+1
				d.work--
			}
			d.work--
			reach[center+k] = int32(x)
			if x >= n && y >= m {
				return back(trace, n, m, edits)
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

// back follows the trace from the end to the beginning.
func back(trace [][]int32, x, y, edits int) (removed []int, added map[int]int, ok bool) {
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

// join makes edits of what is left out and put in: what is put in for a read of the same tensor
// differs in bytes or op, and a read that is left out in one place and put in in another has moved.
func join(want, got []Read, removed []int, added map[int]int, from int) []Edit {
	slices.Sort(removed)
	var script []Edit
	gone := map[Read][]int{} // of those that are left out, by what they are
	for _, i := range removed {
		gone[want[i].what()] = append(gone[want[i].what()], i)
	}
	used := map[int]bool{}
	order := make([]int, 0, len(added))
	for j := range added {
		order = append(order, j)
	}
	slices.Sort(order)
	var rest []int
	for _, j := range order {
		what := got[j].what()
		places := gone[what]
		if len(places) == 0 {
			rest = append(rest, j)
			continue
		}
		i := places[0]
		gone[what] = places[1:]
		used[i] = true
		script = append(script, Edit{Kind: KindOrder, Position: from + i, To: from + added[j], Tensor: got[j].Tensor,
			Op: got[j].Op, Expected: want[i].Bytes, Got: got[j].Bytes})
	}
	left := removed[:0:0]
	for _, i := range removed {
		if !used[i] {
			left = append(left, i)
		}
	}
	// What replaces a read stands beside it: both lists are in order, so that one pass pairs them.
	byTensor := map[int32][]int{}
	for _, i := range left {
		byTensor[want[i].Tensor] = append(byTensor[want[i].Tensor], i)
	}
	for _, j := range rest {
		e := Edit{Kind: KindExtra, Position: from + added[j], To: from + added[j], Tensor: got[j].Tensor,
			Op: got[j].Op, Got: got[j].Bytes}
		if places := byTensor[got[j].Tensor]; len(places) > 0 {
			i := places[0]
			byTensor[got[j].Tensor] = places[1:]
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
			script = append(script, Edit{Kind: KindMissing, Position: from + i, To: from + i, Tensor: want[i].Tensor,
				Op: want[i].Op, Expected: want[i].Bytes})
		}
	}
	slices.SortStableFunc(script, func(a, b Edit) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position),
			cmp.Compare(a.To, b.To))
	})
	return script
}
