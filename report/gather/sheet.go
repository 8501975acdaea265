package gather

// This file makes tables of the sums: for files, for the page, and for the terminal.

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/event"
	"tensorcast/internal/tabular"
	"tensorcast/report"
	"tensorcast/trace/tables"
)

// Sheet is a table with a name, an explanation, and columns of equal length.
type Sheet struct {
	Name    string // a heading
	About   string
	columns []column
}

// Units of a column's numbers.
const (
	unitBytes = "B"
	unitTime  = "ns"
)

// column has either texts or numbers. A number is nil if it was not observed.
type column struct {
	key  string // name in files
	name string // name on a page
	unit string
	text []string
	ints []*int64
}

// Columns are the columns of a file. Numbers that were not observed are null. Bytes are in bytes and
// times in nanoseconds, as the columns' names say.
func (s *Sheet) Columns() (all []tables.Column) {
	for _, c := range s.columns {
		one := tables.Column{Name: c.key, Values: c.text}
		if c.text == nil {
			one.Values = c.ints
		}
		all = append(all, one)
	}
	return all
}

// Rows is the number of rows.
func (s *Sheet) Rows() int {
	if len(s.columns) == 0 {
		return 0
	}
	return max(len(s.columns[0].text), len(s.columns[0].ints))
}

// observedColumns are the columns that hold anything.
func (s *Sheet) observedColumns() (all []column) {
	for _, c := range s.columns {
		if c.text != nil || slices.ContainsFunc(c.ints, func(v *int64) bool { return v != nil }) {
			all = append(all, c)
		}
	}
	return all
}

// table is the sheet as a table of a report.
func (s *Sheet) table() report.Table {
	t := report.Table{Name: s.Name, About: s.About}
	columns := s.observedColumns()
	for _, c := range columns {
		t.Columns = append(t.Columns, report.Column{Name: c.name, Unit: c.unit})
	}
	for i := range s.Rows() {
		row := make([]any, 0, len(columns))
		for _, c := range columns {
			switch {
			case c.text != nil:
				row = append(row, c.text[i])
			case c.ints[i] == nil:
				row = append(row, math.NaN())
			default:
				row = append(row, float64(*c.ints[i]))
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// Text is the table for a terminal: its first rows, without columns that hold nothing.
func (s *Sheet) Text(rows int) *tabular.Table {
	t := &tabular.Table{Title: s.Name + ". " + s.About}
	shown := min(rows, s.Rows())
	lines := make([][]string, shown)
	for _, c := range s.observedColumns() {
		if c.text != nil {
			t.Columns = append(t.Columns, tabular.Left(c.name)...)
		} else {
			t.Columns = append(t.Columns, tabular.Right(c.name)...)
		}
		for i := range lines {
			lines[i] = append(lines[i], c.cellText(i))
		}
	}
	t.Rows = lines
	return t
}

func (c *column) cellText(i int) string {
	switch {
	case c.text != nil:
		return c.text[i]
	case c.ints[i] == nil:
		return "-"
	case c.unit == unitBytes:
		return humanize.IBytes(uint64(max(*c.ints[i], 0)))
	case c.unit == unitTime:
		return time.Duration(*c.ints[i]).Round(time.Microsecond).String()
	}
	return strconv.FormatInt(*c.ints[i], 10)
}

// addTexts adds a column of texts.
func (s *Sheet) addTexts(key, name string, values []string) {
	s.columns = append(s.columns, column{key: key, name: name, text: append([]string{}, values...)})
}

// addNumbers adds a column of n numbers.
func (s *Sheet) addNumbers(key, name, unit string, n int, value func(i int) (v int64, known bool)) {
	c := column{key: key, name: name, unit: unit, ints: make([]*int64, n)}
	for i := range n {
		if v, known := value(i); known {
			c.ints[i] = &v
		}
	}
	s.columns = append(s.columns, c)
}

// addTotals adds the columns that all sums have.
func (c *Collector) addTotals(s *Sheet, sums []*total) {
	add := func(key, name, unit string, observed bool, value func(t *total) int64) {
		s.addNumbers(key, name, unit, len(sums), func(i int) (int64, bool) { return value(sums[i]), observed })
	}
	add("accesses", "accesses", "", true, func(t *total) int64 { return t.accesses })
	add("read_bytes", "read", unitBytes, true, func(t *total) int64 { return t.bytes })
	add("op_ns", "time of ops", unitTime, c.hasTime, func(t *total) int64 { return t.nanos })
	add("disk_bytes", "from disk", unitBytes, c.hasDisk, func(t *total) int64 { return t.disk })
	add("reread_bytes", "again", unitBytes, c.hasDisk, func(t *total) int64 { return t.reread })
	add("stall_ns", "waiting", unitTime, c.hasStall, func(t *total) int64 { return t.stall })
}

func (t *total) add(o *total) {
	t.accesses += o.accesses
	t.bytes += o.bytes
	t.disk += o.disk
	t.reread += o.reread
	t.stall += o.stall
	t.nanos += o.nanos
	for i, n := range o.causes {
		t.causes[i] += n
	}
}

const allSteps = "Sums over all steps of the capture. An op's time is in the row of each tensor that it reads."

// Tensors has a row for each tensor that was read, in the order of the first reads.
func (c *Collector) Tensors() *Sheet { return c.tensorSheet("Tensors", c.firstReads) }

// Rereads has a row for each tensor that was read, and why it was read from disk again. Tensors are
// sorted by the bytes that were read again, and then by the bytes that were read.
func (c *Collector) Rereads() *Sheet {
	order := c.orderByRereads()
	s := c.tensorSheet("Re-reads", order)
	for cause, name := range event.CauseNames() {
		s.addNumbers("reread_"+name+"_bytes", "again: "+name, unitBytes, len(order),
			func(i int) (int64, bool) { return c.perTensor[order[i]].causes[cause], c.hasDisk })
	}
	return s
}

func (c *Collector) orderByRereads() []int32 {
	order := slices.Clone(c.firstReads)
	slices.SortStableFunc(order, func(a, b int32) int {
		x, y := &c.perTensor[a], &c.perTensor[b]
		return cmp.Or(cmp.Compare(y.reread, x.reread), cmp.Compare(y.bytes, x.bytes))
	})
	return order
}

func (c *Collector) tensorSheet(name string, order []int32) *Sheet {
	s := &Sheet{Name: name, About: allSteps}
	text := func(key, name string, value func(r *tables.StructureRow) string) {
		all := make([]string, len(order))
		for i, t := range order {
			all[i] = value(&c.structure[t])
		}
		s.addTexts(key, name, all)
	}
	text("tensor_name", "tensor", func(r *tables.StructureRow) string { return r.Name })
	s.addNumbers("layer", "layer", "", len(order), func(i int) (int64, bool) {
		layer := int64(c.structure[order[i]].Layer)
		return layer, layer >= 0
	})
	text("component", "component", func(r *tables.StructureRow) string { return r.Component })
	text("type", "type", func(r *tables.StructureRow) string { return r.Type })
	s.addNumbers("size_bytes", "size", unitBytes, len(order),
		func(i int) (int64, bool) { return c.structure[order[i]].Size, true })
	sums := make([]*total, len(order))
	for i, t := range order {
		sums[i] = &c.perTensor[t]
	}
	c.addTotals(s, sums)
	return s
}

// sumBy sums tensors up by a key, and sorts the sums by it. of are the sums of each tensor: perTensor or perCounted.
func sumBy[K cmp.Ordered](
	c *Collector, of []total, keyOf func(r *tables.StructureRow) K,
) (keys []K, sums []*total) {
	all := map[K]*total{}
	for _, t := range c.firstReads {
		k := keyOf(&c.structure[t])
		if all[k] == nil {
			all[k] = &total{}
			keys = append(keys, k)
		}
		all[k].add(&of[t])
	}
	slices.Sort(keys)
	for _, k := range keys {
		sums = append(sums, all[k])
	}
	return keys, sums
}

func (c *Collector) sumByLayer(of []total) (names []string, sums []*total) {
	layers, sums := sumBy(c, of, func(r *tables.StructureRow) int32 { return r.Layer })
	for _, l := range layers {
		if l < 0 {
			names = append(names, "none")
		} else {
			names = append(names, strconv.Itoa(int(l)))
		}
	}
	return names, sums
}

// Layers has a row for each layer, and one for what is in none.
func (c *Collector) Layers() *Sheet {
	s := &Sheet{Name: "Layers", About: allSteps}
	names, sums := c.sumByLayer(c.perTensor)
	s.addTexts("layer", "layer", names)
	c.addTotals(s, sums)
	return s
}

func (c *Collector) sumByComponent(of []total) ([]string, []*total) {
	return sumBy(c, of, func(r *tables.StructureRow) string { return r.Component })
}

// Components has a row for each component, such as attn_q.weight of all layers.
func (c *Collector) Components() *Sheet {
	s := &Sheet{Name: "Components", About: allSteps}
	names, sums := c.sumByComponent(c.perTensor)
	s.addTexts("component", "component", names)
	c.addTotals(s, sums)
	return s
}

// Gaps has a row for each class of gaps.
func (c *Collector) Gaps() *Sheet {
	s := &Sheet{Name: "Gaps", About: "Where a read begins, from the end of the one before in the same file. Each " +
		"chosen expert is a read of its own."}
	s.addTexts("gap", "gap", gapNames)
	s.addNumbers("accesses", "reads", "", len(gapNames), func(i int) (int64, bool) { return c.gaps[i].accesses, true })
	s.addNumbers("read_bytes", "read", unitBytes, len(gapNames),
		func(i int) (int64, bool) { return c.gaps[i].bytes, true })
	return s
}

// phaseLoad is the name of what was read outside of steps, most of it as the model is loaded.
const phaseLoad = "load"

// phaseSum is what the steps of a phase did, or what was read outside of steps.
type phaseSum struct {
	name                                                      string
	outside                                                   bool // nothing but reads from disk is known
	steps, tokens, nanos, accesses, read, disk, reread, stall int64
	hasStall                                                  bool
	// Slices of the tensors whose experts were observed: those that were read, and all. An expert of a
	// layer has several.
	touched, slices int64
}

// sumLoad sums up what was read from disk of tensors outside of steps.
func (c *Collector) sumLoad() phaseSum {
	p := phaseSum{name: phaseLoad, outside: true}
	inSteps := func(m *matrix, tensor int32) (sum int64) {
		for _, v := range m.rows[tensor] {
			sum += int64(v)
		}
		return sum
	}
	for i := range c.perTensor {
		p.disk += c.perTensor[i].disk - inSteps(&c.fromDisk, int32(i))
		p.reread += c.perTensor[i].reread - inSteps(&c.reread, int32(i))
	}
	return p
}

func (c *Collector) sumPhases() (all []phaseSum) {
	if load := c.sumLoad(); load.disk > 0 {
		all = append(all, load)
	}
	for i, name := range tables.PhaseNames() {
		p := phaseSum{name: name}
		for j := range c.steps {
			s := &c.steps[j]
			if s.row.Phase != tables.Phase(i) {
				continue
			}
			p.steps++
			p.tokens += int64(max(s.row.Tokens, 0))
			if t := s.seconds(); t > 0 {
				p.nanos += s.row.End - s.row.Begin
			}
			p.accesses += s.accesses
			p.read += s.bytes
			p.disk += s.disk
			p.reread += s.reread
			p.stall += s.stall
			p.hasStall = p.hasStall || s.hasStall
		}
		for tensor, touched := range c.touchedExperts[i] {
			p.touched += touched.count()
			p.slices += int64(c.structure[tensor].Experts)
		}
		if p.steps > 0 {
			all = append(all, p)
		}
	}
	return all
}

// Phases has a row for each phase that was observed.
func (c *Collector) Phases() *Sheet {
	all := c.sumPhases()
	s := &Sheet{Name: "Phases", About: "Sums over the steps of each phase. What was read from disk before the first " +
		"step, or between steps, is load."}
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.name
	}
	s.addTexts("phase", "phase", names)
	add := func(key, name, unit string, observed func(p *phaseSum) bool, value func(p *phaseSum) int64) {
		s.addNumbers(key, name, unit, len(all), func(i int) (int64, bool) { return value(&all[i]), observed(&all[i]) })
	}
	ofSteps := func(p *phaseSum) bool { return !p.outside }
	ofDisk := func(*phaseSum) bool { return c.hasDisk }
	ofStalls := func(p *phaseSum) bool { return c.hasStall && !p.outside }
	add("steps", "steps", "", ofSteps, func(p *phaseSum) int64 { return p.steps })
	add("tokens", "tokens", "", ofSteps, func(p *phaseSum) int64 { return p.tokens })
	add("step_ns", "time", unitTime, ofSteps, func(p *phaseSum) int64 { return p.nanos })
	add("accesses", "accesses", "", ofSteps, func(p *phaseSum) int64 { return p.accesses })
	add("read_bytes", "read", unitBytes, ofSteps, func(p *phaseSum) int64 { return p.read })
	add("disk_bytes", "from disk", unitBytes, ofDisk, func(p *phaseSum) int64 { return p.disk })
	add("reread_bytes", "again", unitBytes, ofDisk, func(p *phaseSum) int64 { return p.reread })
	add("stall_ns", "waiting", unitTime, ofStalls, func(p *phaseSum) int64 { return p.stall })
	// Slices of tensors are counted. An expert of a layer has several.
	s.addNumbers("expert_slices_touched", "slices of experts touched", "", len(all),
		func(i int) (int64, bool) { return all[i].touched, all[i].slices > 0 })
	s.addNumbers("expert_slices", "of all", "", len(all),
		func(i int) (int64, bool) { return all[i].slices, all[i].slices > 0 })
	return s
}
