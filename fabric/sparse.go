package fabric

// This file finds planes whose zeros are worth skipping.

import (
	"bytes"
	"math"

	"tensorcast/fabric/kernel"
)

// thresholds decide which zeros are skipped. All are shares between 0 and 1.
type thresholds struct {
	// The share of trits that are not 0, up to which a plane is stored as a list: for the only
	// plane of a term, and for the last of several planes.
	onlyPlane, lastPlane float64
	// The share of groups that are zero in all planes, from which on they are skipped: if there are
	// several planes, and if there is one.
	groups, groupsOfOne float64
}

// measuredThresholds are the thresholds at which skipping becomes faster, in cache and out of it
// (see BenchmarkSparse and BenchmarkZeroGroups).
var measuredThresholds = thresholds{onlyPlane: 0.025, lastPlane: 0.01, groups: 0.3, groupsOfOne: 0.65}

// term describes how a term of the matrix is multiplied.
type term struct {
	*Term
	dense  [][]byte // planes that are decoded together: all, or all but the last
	skip   []byte   // if not nil, a byte per group, row by row: 1 if the group is zero in all planes of dense
	sparse []sparsePlane
}

// sparsePlane is a plane as a list of its trits that are not 0, as in kernel.SparseRows.
type sparsePlane struct {
	begin   []uint32
	entries []uint16
	weight  float32
}

// planTerm decides how t is multiplied. It turns planes into lists from the last plane on, because
// the last is the sparsest in exact decompositions.
func (o *Operand) planTerm(t *Term, limits thresholds) term {
	p := term{Term: t, dense: t.Planes}
	weight := float32(math.Pow(3, float64(len(t.Planes)-1)))
	for len(p.dense) > 0 && (len(p.dense) > 1 || t.Center == 0) && o.m.Cols <= kernel.MaxSparseCols {
		last, density := len(p.dense)-1, limits.lastPlane
		if len(t.Planes) == 1 {
			density = limits.onlyPlane
		}
		s, ok := o.listTrits(p.dense[last], density)
		if !ok {
			break
		}
		s.weight = weight
		weight /= 3
		p.sparse = append(p.sparse, s)
		p.dense = p.dense[:last]
	}
	if len(p.dense) > 0 && t.Center == 0 {
		part := limits.groups
		if len(p.dense) == 1 {
			part = limits.groupsOfOne
		}
		p.skip = o.findZeroGroups(p.dense, part)
	}
	return p
}

// listTrits lists the trits of a plane that are not 0. It returns false if their share exceeds
// density, or if there are too many for a list.
func (o *Operand) listTrits(plane []byte, density float64) (sparsePlane, bool) {
	trits, _ := o.m.Layout.Group()
	row := make([]byte, o.groups*trits)
	limit := density * float64(o.m.Rows) * float64(o.m.Cols)
	// forEachRow decodes rows until do returns false, and reports whether all were decoded.
	forEachRow := func(do func(row []byte) bool) bool {
		for r := range o.m.Rows {
			o.level.Decode(o.m.Layout, row, [][]byte{plane[r*o.rowBytes:]}, o.rowBytes)
			if !do(row) {
				return false
			}
		}
		return true
	}
	count := 0
	few := forEachRow(func(row []byte) bool {
		count += len(row) - bytes.Count(row, []byte{1})
		return float64(count) <= limit && int64(count) <= math.MaxUint32
	})
	if !few {
		return sparsePlane{}, false
	}
	s := sparsePlane{begin: make([]uint32, 1, o.m.Rows+1), entries: make([]uint16, 0, count)}
	forEachRow(func(row []byte) bool {
		for c, digit := range row[:o.m.Cols] {
			switch digit {
			case 0:
				s.entries = append(s.entries, uint16(2*c+1))
			case 2:
				s.entries = append(s.entries, uint16(2*c))
			}
		}
		s.begin = append(s.begin, uint32(len(s.entries)))
		return true
	})
	return s, true
}

// findZeroGroups marks the groups that are zero in all planes. It returns nil if their share is
// below part.
func (o *Operand) findZeroGroups(planes [][]byte, part float64) []byte {
	var zero [groupBytes]byte
	trits, _ := o.m.Layout.Group()
	o.m.Layout.Pack(zero[:], make([]int8, trits))
	skip := make([]byte, o.m.Rows*o.groups)
	zeros := 0
	for g := range skip {
		skip[g] = 1
		for _, plane := range planes {
			if [groupBytes]byte(plane[g*groupBytes:]) != zero {
				skip[g] = 0
				break
			}
		}
		zeros += int(skip[g])
	}
	if float64(zeros) < part*float64(len(skip)) {
		return nil
	}
	return skip
}
