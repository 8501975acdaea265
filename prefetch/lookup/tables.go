package lookup

// This file knows the tables of a model, and reads the rows that are about to be looked up.

import (
	"cmp"
	"container/list"
	"slices"
	"time"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/prefetch/pages"
)

// LeastBytes is the size of the smallest table that is helped, in bytes. A smaller one is soon in memory as a whole.
const LeastBytes = 32 << 20

const (
	// keptBytes of the rows that were used last stay, or one part in keptShare of the room if that is less. More would
	// not pay: a row that is missing costs one fault, but what every token reads, and what is not kept of it, is read
	// again for each token.
	keptBytes = 4 << 20
	keptShare = 16
	// One lookup reads no more than one part in batchShare of the room, within these bounds in bytes. The rest is left
	// to the target. 512 rows of 16 KiB are 8 MiB.
	batchShare = 4
	leastBatch = 4 << 20
	mostBatch  = 64 << 20
)

// Levers are what tables need of the page cache.
type Levers interface {
	ReadNow(r pages.Range) error
	Evict(r pages.Range) bool
	ResidentBytes(r pages.Range) (int64, error)
}

// Options of Tables.
type Options struct {
	Levers Levers
	// Refuse is told, at most once by what it keeps itself, that the target says something impossible.
	Refuse func(what string, args ...any)
	Now    func() time.Time
}

// Tables is all tables of a model.
type Tables struct {
	opts   Options
	levers Levers
	tables []table
	size   int64 // bytes of all tables
	kept   int64 // bytes of rows that may stay
	batch  int64 // bytes that one lookup may read

	// Pages of rows that were looked up lately, the one that was used last in front. They may be in memory.
	used  list.List // of page
	known map[page]*list.Element
	busy  bool   // the op of the last lookup may not be over
	spare bool   // see LeaveRest
	seq   uint64 // of that op

	strays strays
	total  totals
}

// table is one table.
type table struct {
	pages.Range
	row int64 // bytes of a row
}

// page is a page of a table's file.
type page struct {
	table  int
	number int64 // counted from the beginning of the file
}

// totals add up over the life of Tables.
type totals struct {
	rows   int64 // that were looked up, each once in a batch
	missed int64 // of these, not in memory when they became known
	read   int64 // bytes that were read for them
	strays int64 // bytes that were paged out, and were no rows that had been looked up lately
}

// New finds the large tables of a cycle; nil if it has none. What is looked up of a weight that every token reads as a
// whole, too, is no table.
func New(cycle *pattern.Cycle, opts Options) *Tables {
	t := &Tables{opts: opts, levers: opts.Levers, known: map[page]*list.Element{}}
	for i := range cycle.Reads {
		r := &cycle.Reads[i]
		at := pages.Range{File: r.File, Offset: r.Offset, Length: r.Length}
		isKnown := func(o table) bool { return o.Overlaps(at) }
		if !r.Gathers() || r.Experts || r.Length < LeastBytes || isReadWhole(cycle, at) ||
			slices.ContainsFunc(t.tables, isKnown) {
			continue
		}
		t.tables = append(t.tables, table{at, r.Slice})
		t.size += r.Length
	}
	if len(t.tables) == 0 {
		return nil
	}
	t.SetRoom(0)
	t.LookAgain()
	return t
}

// isReadWhole says whether every token reads something of a range, whatever it looks up.
func isReadWhole(cycle *pattern.Cycle, at pages.Range) bool {
	return slices.ContainsFunc(cycle.Reads, func(r pattern.CycleRead) bool {
		return !r.Gathers() && at.Overlaps(pages.Range{File: r.File, Offset: r.Offset, Length: r.Length})
	})
}

// Size is how many bytes all tables have.
func (t *Tables) Size() int64 { return t.size }

// SizeIn is how many bytes of a file are tables.
func (t *Tables) SizeIn(file int) (bytes int64) {
	for _, o := range t.tables {
		if o.File == file {
			bytes += o.Length
		}
	}
	return bytes
}

// Kept is how many bytes of rows stay: room that other weights cannot have.
func (t *Tables) Kept() int64 { return t.kept }

// Resident is how many bytes of rows may be in memory because they were looked up lately.
func (t *Tables) Resident() int64 { return int64(t.used.Len()) * pages.PageSize }

// SetRoom says how many bytes of the model may be in memory.
func (t *Tables) SetRoom(bytes int64) {
	t.kept = min(keptBytes, max(bytes/keptShare, 0))
	t.batch = min(max(bytes/batchShare, leastBatch), mostBatch)
}

// LeaveRest says that there is memory to spare: from now on nothing is paged out, and what was read stays as long as
// the kernel leaves it.
func (t *Tables) LeaveRest() {
	t.spare = true
	t.forget()
}

// forget forgets which rows were used.
func (t *Tables) forget() {
	t.used.Init()
	clear(t.known)
	t.strays = strays{}
}

// LookUp is told which rows of a table an op is about to look up, and reads what is missing of them. file is the number
// of the table's file. It returns how many bytes it asked for.
func (t *Tables) LookUp(file int, e event.Lookup) (read int64, err error) {
	at := slices.IndexFunc(t.tables, func(o table) bool { return o.File == file && o.Offset == e.Table.Offset })
	if at < 0 || len(e.IDs) == 0 || !t.isPossible(at, &e) {
		return 0, nil
	}
	t.busy, t.seq = true, e.Seq
	seen := make(map[int32]struct{}, len(e.IDs))
	var asked int64 // bytes of rows, in memory or not
	for _, id := range e.IDs {
		if _, again := seen[id]; again {
			continue
		}
		seen[id] = struct{}{}
		r := t.tables[at].rowAt(id)
		if asked += r.Length; asked > t.batch {
			t.strays.noteMiss(at, &t.tables[at], r, t.opts.Now()) // it is left to the target
			continue
		}
		n, err := t.readRow(at, r)
		if err != nil {
			return read, err
		}
		read += n
	}
	t.total.rows += int64(len(seen))
	t.total.read += read
	if t.spare {
		t.forget()
	}
	return read, nil
}

// isPossible checks what a target says that it looks up.
func (t *Tables) isPossible(at int, e *event.Lookup) bool {
	o := &t.tables[at]
	if e.Table.NB[1] != o.row {
		t.opts.Refuse("the target says that rows of a table have another size than before",
			"table", e.Table.Name, "bytes", e.Table.NB[1], "before", o.row)
		return false
	}
	for _, id := range e.IDs {
		if id < 0 || int64(id) >= o.Length/o.row {
			t.opts.Refuse("the target says that it looks up a row that its table has not",
				"table", e.Table.Name, "row", id, "rows", o.Length/o.row)
			return false
		}
	}
	return true
}

// rowAt is where a row lies.
func (o *table) rowAt(id int32) pages.Range {
	return pages.Range{File: o.File, Offset: o.Offset + int64(id)*o.row, Length: o.row}
}

// readRow begins to read what is missing of a row, and returns how many bytes that is.
func (t *Tables) readRow(at int, r pages.Range) (bytes int64, err error) {
	whole := wholePages(r)
	resident, err := t.levers.ResidentBytes(whole)
	if err != nil {
		return 0, err
	}
	isNew := t.use(at, whole)
	if isNew || resident < whole.Length { // where this is told late, the target has read it by itself
		t.strays.noteMiss(at, &t.tables[at], r, t.opts.Now())
	}
	if resident >= whole.Length {
		return 0, nil
	}
	t.total.missed++
	return whole.Length - resident, t.levers.ReadNow(r)
}

// wholePages is a range with all of the pages that it has bytes in.
func wholePages(r pages.Range) pages.Range {
	first := r.Offset &^ (pages.PageSize - 1)
	end := (r.End() + pages.PageSize - 1) &^ (pages.PageSize - 1)
	return pages.Range{File: r.File, Offset: first, Length: end - first}
}

// use notes that the pages of a row were used last. isNew says that some of them were not used lately.
func (t *Tables) use(at int, r pages.Range) (isNew bool) {
	for n := r.Offset / pages.PageSize; n < r.End()/pages.PageSize; n++ {
		p := page{at, n}
		if e := t.known[p]; e != nil {
			t.used.MoveToFront(e)
			continue
		}
		t.known[p] = t.used.PushFront(p)
		isNew = true
	}
	return isNew
}

// NoteOp is told that an op is over.
func (t *Tables) NoteOp(o *event.Op) {
	if t.busy && o.Seq >= t.seq {
		t.busy = false
	}
}

// trim has the rows paged out that were not used for longest, as far as they are more than may stay.
func (t *Tables) trim() {
	if t.Resident() <= t.kept {
		return
	}
	var old []page
	for t.Resident() > t.kept {
		p := t.used.Remove(t.used.Back()).(page)
		delete(t.known, p)
		old = append(old, p)
	}
	slices.SortFunc(old, func(a, b page) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.number, b.number))
	})
	for len(old) > 0 {
		n := 1
		for n < len(old) && old[n] == (page{old[0].table, old[0].number + int64(n)}) {
			n++
		}
		t.evict(old[0], int64(n))
		old = old[n:]
	}
}

// evict has pages of a table paged out, without those in which other weights lie, too. It does not matter if too much
// waits for that: what stays is a stray.
func (t *Tables) evict(first page, n int64) {
	o := &t.tables[first.table]
	r := pages.Range{File: o.File, Offset: first.number * pages.PageSize, Length: n * pages.PageSize}
	if r = cutTo(r, o.inner()); r.Length > 0 && !t.levers.Evict(r) {
		t.strays.addRange(first.table, r, t.opts.Now())
	}
}

// inner is the pages that have nothing but the table.
func (o *table) inner() pages.Range {
	first := (o.Offset + pages.PageSize - 1) &^ (pages.PageSize - 1)
	end := o.End() &^ (pages.PageSize - 1)
	return pages.Range{File: o.File, Offset: first, Length: max(end-first, 0)}
}

// cutTo is the part of a range that lies within another one.
func cutTo(r, within pages.Range) pages.Range {
	first, end := max(r.Offset, within.Offset), min(r.End(), within.End())
	return pages.Range{File: r.File, Offset: first, Length: max(end-first, 0)}
}

// Summary says what was done for tables. Sizes are bytes.
type Summary struct {
	All    int64 `json:"bytes"`      // of all tables
	Rows   int64 `json:"rows"`       // that were looked up, each once for each decode
	Missed int64 `json:"missed"`     // of these, not in memory when they became known
	Read   int64 `json:"read_bytes"` // for these
	Strays int64 `json:"strays"`     // bytes in memory besides, most of them read around faults, that were paged out
}

// Summary adds what was done to what had been done before. before is nil, or the summary of earlier tables.
func (t *Tables) Summary(before *Summary) *Summary {
	s := &Summary{All: t.size, Rows: t.total.rows, Missed: t.total.missed, Read: t.total.read, Strays: t.total.strays}
	if before != nil {
		s.Rows += before.Rows
		s.Missed += before.Missed
		s.Read += before.Read
		s.Strays += before.Strays
	}
	return s
}
