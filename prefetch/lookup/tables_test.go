package lookup

// This file tests what is read and what is paged out of tables, with levers that only remember.

import (
	"slices"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

const (
	mib = 1 << 20
	row = 10000 // bytes: rows begin anywhere in a page
)

// memory is a page cache of one file.
type memory struct {
	resident map[int64]bool // by page
	reads    []pages.Range
	full     bool // Evict refuses
}

func (m *memory) pages(r pages.Range, do func(n int64)) {
	for n := r.Offset / pages.PageSize; n < (r.End()+pages.PageSize-1)/pages.PageSize; n++ {
		do(n)
	}
}

func (m *memory) ReadNow(r pages.Range) error {
	m.reads = append(m.reads, r)
	m.fault(r)
	return nil
}

// fault puts a range into memory.
func (m *memory) fault(r pages.Range) { m.pages(r, func(n int64) { m.resident[n] = true }) }

func (m *memory) Evict(r pages.Range) bool {
	if !m.full {
		m.pages(r, func(n int64) { delete(m.resident, n) })
	}
	return !m.full
}

func (m *memory) ResidentBytes(r pages.Range) (bytes int64, err error) {
	m.pages(r, func(n int64) {
		if m.resident[n] {
			bytes += pages.PageSize
		}
	})
	return bytes, nil
}

// rig has a table of 100 MB that begins and ends within a page, between two weights that every token reads.
type rig struct {
	*Tables
	*memory
	now     time.Time
	table   pages.Range
	refused []string
}

func newRig(t *testing.T, more ...pattern.CycleRead) *rig {
	t.Helper()
	r := &rig{memory: &memory{resident: map[int64]bool{}}, now: time.Unix(1, 0)}
	r.table = pages.Range{Offset: mib + 100, Length: 10000 * row}
	c := &pattern.Cycle{Reads: append([]pattern.CycleRead{
		{Tensor: "before", Offset: 0, Length: mib + 100},
		{Tensor: "table", Offset: r.table.Offset, Length: r.table.Length, Slice: row, Slices: 1},
		{Tensor: "behind", Offset: r.table.End(), Length: mib},
	}, more...)}
	r.Tables = New(c, Options{
		Levers: r.memory, Now: func() time.Time { return r.now },
		Refuse: func(what string, _ ...any) { r.refused = append(r.refused, what) },
	})
	if r.Tables != nil {
		r.SetRoom(1 << 30)
	}
	return r
}

func (r *rig) lookUp(t *testing.T, seq uint64, ids ...int32) (read int64) {
	t.Helper()
	read, err := r.LookUp(0, event.Lookup{
		Seq: seq, IDs: ids, Table: event.Source{Name: "table", Offset: r.table.Offset, NB: [4]int64{4, row, row, row}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// sweep lets all pieces that wait be looked at.
func (r *rig) sweep(t *testing.T) {
	t.Helper()
	r.now = r.now.Add(time.Second)
	if err := r.Sweep(); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) rowAt(id int32) pages.Range { return r.tables[0].rowAt(id) }

// countResident is how many bytes of the table are in memory.
func (r *rig) countResident() int64 {
	n, _ := r.ResidentBytes(wholePages(r.table))
	return n
}

// Rows of a batch are read once each, in the order of the batch, and only those that are missing.
func TestRowsAreReadAtOnce(t *testing.T) {
	r := newRig(t)
	r.fault(r.rowAt(7))
	if got, want := r.lookUp(t, 1, 500, 7, 3, 500), int64(0); got <= want {
		t.Errorf("read %d bytes, want more", got)
	}
	if want := []pages.Range{r.rowAt(500), r.rowAt(3)}; !slices.Equal(r.reads, want) {
		t.Errorf("read %v, want %v", r.reads, want)
	}
	if s := r.Summary(nil); s.Rows != 3 || s.Missed != 2 || s.All != r.table.Length {
		t.Errorf("%+v, want 3 rows of which 2 were missing", s)
	}
	r.reads = nil
	if read := r.lookUp(t, 2, 500, 3); read != 0 || r.reads != nil {
		t.Errorf("read %d bytes again, %v", read, r.reads)
	}
	// Another table is somebody else's.
	if _, err := r.LookUp(1, event.Lookup{IDs: []int32{1}, Table: event.Source{Offset: r.table.Offset}}); err != nil {
		t.Error(err)
	}
	if len(r.refused) > 0 || r.reads != nil {
		t.Errorf("refused %q, read %v", r.refused, r.reads)
	}
}

// What a target says is checked: nothing outside the table is read, and no more than a part of the room.
func TestLies(t *testing.T) {
	for name, ids := range map[string][]int32{
		"negative": {1, -1}, "behind the end": {1, 10000}, "far behind": {1, 1<<31 - 1},
	} {
		r := newRig(t)
		if read := r.lookUp(t, 1, ids...); read != 0 || len(r.reads) > 0 || len(r.refused) != 1 {
			t.Errorf("%s: read %d bytes, %v; refused %q", name, read, r.reads, r.refused)
		}
	}
	r := newRig(t)
	if read, err := r.LookUp(0, event.Lookup{IDs: []int32{1}, Table: event.Source{
		Offset: r.table.Offset, NB: [4]int64{4, 2 * row, 0, 0},
	}}); read != 0 || err != nil || len(r.refused) != 1 {
		t.Errorf("rows of another size: read %d, %v, refused %q", read, err, r.refused)
	}
	all := make([]int32, 9000)
	for i := range all {
		all[i] = int32(i)
	}
	for _, tc := range []struct{ room, most int64 }{{0, leastBatch}, {100 * mib, 25 * mib}, {1 << 40, mostBatch}} {
		r := newRig(t)
		r.SetRoom(tc.room)
		r.lookUp(t, 1, all...)
		if got := int64(len(r.reads)) * row; got > tc.most || got < tc.most-row {
			t.Errorf("with room for %d bytes %d are read for a batch, want %d", tc.room, got, tc.most)
		}
		// The target has read the rest by itself.
		r.fault(pages.Range{Offset: r.table.Offset, Length: int64(len(all)) * row})
		r.NoteOp(&event.Op{Seq: 1})
		r.sweep(t)
		if got := r.countResident(); got > r.Kept()+2*pages.PageSize {
			t.Errorf("%d bytes of the table stay, want %d", got, r.Kept())
		}
	}
}

// The rows that were used last stay. Others, and what faults have read around rows, are paged out when the op is over.
// Pages in which other weights lie stay, too.
func TestWhatStays(t *testing.T) {
	r := newRig(t)
	r.fault(pages.Range{Length: r.table.End() + mib}) // everything: the target has just loaded it
	edges := wholePages(r.table).Length - r.tables[0].inner().Length
	r.lookUp(t, 5, 1, 2, 3000)
	r.sweep(t)
	if got := r.countResident(); got < r.table.Length {
		t.Errorf("%d bytes are in memory while the op looks rows up, want all", got)
	}
	r.NoteOp(&event.Op{Seq: 4})
	r.sweep(t)
	if got := r.countResident(); got < r.table.Length {
		t.Errorf("%d bytes are in memory before the op is over, want all", got)
	}
	r.NoteOp(&event.Op{Seq: 5})
	r.sweep(t)
	used, _ := r.ResidentBytes(wholePages(r.rowAt(1)))
	if got, want := r.countResident(), r.Resident()+edges; got != want || used < row {
		t.Errorf("%d bytes are in memory, %d of row 1; want %d", got, used, want)
	}
	for _, at := range []pages.Range{{Length: mib}, {Offset: r.table.End(), Length: mib}} {
		if n, _ := r.ResidentBytes(at); n < mib {
			t.Errorf("of the weights at %d %d bytes are in memory, want all", at.Offset, n)
		}
	}
	for id := range int32(600) { // tokens, each with a row that it looks up first
		r.lookUp(t, uint64(10+id), 1, 4000+id)
		r.fault(pages.Range{Offset: r.rowAt(4000+id).Offset - 60000, Length: 120000})
		r.NoteOp(&event.Op{Seq: uint64(10 + id)})
		r.sweep(t)
		if id%50 > 0 {
			continue
		}
		if got := r.countResident(); got > keptBytes+edges {
			t.Fatalf("after %d tokens %d bytes are in memory, want %d at most", id, got, keptBytes)
		}
	}
	if n, _ := r.ResidentBytes(r.rowAt(1)); n < row {
		t.Errorf("of a row that each token looks up %d bytes are in memory", n)
	}
	if n, _ := r.ResidentBytes(r.rowAt(4599)); n < row {
		t.Errorf("of the last row %d bytes are in memory", n)
	}
	if s := r.Summary(&Summary{Rows: 1, Missed: 1, Read: 1, Strays: 1}); s.Strays < 100*mib || s.Rows != 1+3+1200 {
		t.Errorf("%+v", s)
	}
}

// The first and the last row give way like others. The pages that they share with other weights stay.
func TestRowsAtTheEdges(t *testing.T) {
	r := newRig(t)
	edges := []int32{0, 9999}
	weights := []pages.Range{wholePages(pages.Range{Length: mib + 100}),
		wholePages(pages.Range{Offset: r.table.End(), Length: mib})}
	for _, at := range weights {
		r.fault(at)
	}
	others := make([]int32, 2*keptBytes/row)
	for i := range others {
		others[i] = 4000 + int32(i)
	}
	for i, ids := range [][]int32{edges, others} {
		r.lookUp(t, uint64(i+1), ids...)
		r.NoteOp(&event.Op{Seq: uint64(i + 1)})
		r.sweep(t)
	}
	for _, id := range edges {
		if n, _ := r.ResidentBytes(cutTo(wholePages(r.rowAt(id)), r.tables[0].inner())); n != 0 {
			t.Errorf("of row %d, which was not used for longest, %d bytes are in memory beside the edge", id, n)
		}
	}
	for _, at := range weights {
		if n, _ := r.ResidentBytes(at); n < at.Length {
			t.Errorf("of the pages from %d, which have other weights, %d bytes are in memory, want %d",
				at.Offset, n, at.Length)
		}
	}
}

// What the target has read while nobody was told is found when all is looked at again.
func TestLookAgain(t *testing.T) {
	r := newRig(t)
	r.sweep(t)
	r.fault(r.table)
	r.sweep(t)
	if got := r.countResident(); got < r.table.Length {
		t.Errorf("%d bytes are in memory, want all: nothing was looked up", got)
	}
	r.LookAgain()
	r.sweep(t)
	if got := r.countResident(); got > 2*pages.PageSize {
		t.Errorf("%d bytes stay", got)
	}
}

// What cannot be paged out now, because too much waits for that, is paged out later.
func TestFullQueue(t *testing.T) {
	r := newRig(t)
	r.fault(r.table)
	r.full = true
	r.sweep(t)
	r.full = false
	r.sweep(t)
	if got := r.countResident(); got > 2*pages.PageSize {
		t.Errorf("%d bytes stay", got)
	}
}

// Only a large weight of which nothing else is read is a table.
func TestWhatIsATable(t *testing.T) {
	if r := newRig(t, pattern.CycleRead{Tensor: "table", Offset: mib + 100, Length: 10000 * row}); r.Tables != nil {
		t.Error("a weight that is also read as a whole is a table")
	}
	for name, read := range map[string]pattern.CycleRead{
		"a small one": {Length: LeastBytes - 1, Slice: row, Slices: 1},
		"experts":     {Length: LeastBytes, Slice: mib, Slices: 1, Experts: true},
		"a weight":    {Length: LeastBytes},
	} {
		if New(&pattern.Cycle{Reads: []pattern.CycleRead{read}}, Options{Now: time.Now}) != nil {
			t.Errorf("%s is a table", name)
		}
	}
	twice := pattern.CycleRead{Offset: mib + 100, Length: 10000 * row, Slice: row, Slices: 1}
	if r := newRig(t, twice); r.Size() != r.table.Length || r.SizeIn(0) != r.table.Length || r.SizeIn(1) != 0 {
		t.Errorf("tables of %d bytes, %d of them in the file; want %d", r.Size(), r.SizeIn(0), r.table.Length)
	}
}
