package fabric

// This file finds planes whose zeros are worth skipping.

import (
	"bytes"
	"math"

	"tensorcast/fabric/kernel"
)

// thresholds decide what is skipped.
type thresholds struct {
	one, last         float64 // share of trits that are not 0 up to which a plane is stored as a list: one for a term's only plane, last for the last of several
	group, groupPlane float64 // share of groups that are zero in all planes from which on they are skipped: group for several planes, groupPlane for one
}

// measured are the thresholds at which skipping becomes faster, in cache and out of it: see BenchmarkSparse and BenchmarkZeroGroups.
var measured = thresholds{one: 0.025, last: 0.01, group: 0.3, groupPlane: 0.65}

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

// plan decides how t is multiplied. Planes become lists from the last on, because in exact decompositions that is the sparsest.
func (o *Operand) plan(t *Term, when thresholds) term {
	p := term{Term: t, dense: t.Planes}
	weight := float32(math.Pow(3, float64(len(t.Planes)-1)))
	for len(p.dense) > 0 && (len(p.dense) > 1 || t.Center == 0) && o.m.Cols <= kernel.MaxSparseCols {
		last, density := len(p.dense)-1, when.last
		if len(t.Planes) == 1 {
			density = when.one
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
		part := when.group
		if len(p.dense) == 1 {
			part = when.groupPlane
		}
		p.skip = o.listGroups(p.dense, part)
	}
	return p
}

// listTrits lists a plane's trits that are not 0. It returns false if their share exceeds density, or if there are too many for a list.
func (o *Operand) listTrits(plane []byte, density float64) (sparsePlane, bool) {
	trits, _ := o.m.Layout.Group()
	row := make([]byte, o.groups*trits)
	limit := density * float64(o.m.Rows) * float64(o.m.Cols)
	each := func(do func(row []byte) bool) bool {
		for r := range o.m.Rows {
			o.level.Decode(o.m.Layout, row, [][]byte{plane[r*o.rowBytes:]}, o.rowBytes)
			if !do(row) {
				return false
			}
		}
		return true
	}
	count := 0
	if !each(func(row []byte) bool {
		count += len(row) - bytes.Count(row, []byte{1})
		return float64(count) <= limit && int64(count) <= math.MaxUint32
	}) {
		return sparsePlane{}, false
	}
	s := sparsePlane{begin: make([]uint32, 1, o.m.Rows+1), entries: make([]uint16, 0, count)}
	each(func(row []byte) bool {
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

// listGroups marks the groups that are zero in all planes; it returns nil if their share is below part.
func (o *Operand) listGroups(planes [][]byte, part float64) []byte {
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
