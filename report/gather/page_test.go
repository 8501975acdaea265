package gather

// This file tests the sums, the report and the outlook on planted rows.

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/report"
	"tensorcast/trace/tables"
)

var structure = []tables.StructureRow{
	{Name: "blk.0.a", Component: "a", Offset: 0, Size: 1 << 20, Layer: 0, File: "m.gguf", Type: "Q8_0"},
	{Name: "blk.1.a", Component: "a", Offset: 1 << 20, Size: 1 << 20, Layer: 1, File: "m.gguf", Type: "Q8_0"},
	{Name: "output", Component: "output", Offset: 10 << 20, Size: 1 << 19, Layer: -1, File: "m.gguf", Type: "F16"},
	{Name: "never read", Component: "x", Offset: 20 << 20, Size: 1 << 19, Layer: -1, File: "m.gguf", Type: "F16"},
	{Name: "of another model", Component: "x", Offset: 0, Size: 1, Layer: 0, File: "other.gguf", Model: 1},
}

// planted has a prompt and steps of one token. Each takes 100 ms and has three reads. Step 3 reads tensor
// 1 from disk for the second time, and waits 80 ms.
func planted(t *testing.T, steps int, io bool) *Collector {
	t.Helper()
	var rows []tables.StepRow
	for i := range steps {
		s := tables.StepRow{
			Step: int32(i), Phase: tables.PhaseGeneration, Tokens: 1, Token: int32(i) - 1, Begin: int64(i) * 1e9,
			End: int64(i)*1e9 + 100e6,
		}
		if i == 0 {
			s.Phase, s.Tokens = tables.PhasePrompt, 7
		}
		rows = append(rows, s, tables.StepRow{
			Step: int32(1000 + i), Context: 1, Phase: tables.PhaseGeneration, Begin: 1, End: 2,
		})
	}
	c := New(structure, 0, 0, rows)
	for i := range steps {
		for n, tensor := range []int32{1, 0, 2} {
			a := tables.Access{
				Step: int32(i), Tensor: tensor, Offset: structure[tensor].Offset, Bytes: structure[tensor].Size,
				Duration: 10e6, Timestamp: int64(i)*1e9 + int64(n)*25e6, Stall: tables.NotObserved,
			}
			if io {
				a.Stall = 0
				if i == 3 && tensor == 1 {
					a.Stall = 80e6
				}
			}
			if err := c.Access(&a); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Access(&tables.Access{Context: 1, Step: 1000, Tensor: 4, Bytes: 1}); err != nil {
		t.Fatal(err)
	}
	if io {
		c.ObservePageIns()
		c.PageIn(&tables.PageInRow{Step: 0, Tensor: 1, Bytes: 1 << 20})
		c.PageIn(&tables.PageInRow{Step: 3, Tensor: 1, Bytes: 1 << 19, Rereads: 1})
		c.PageIn(&tables.PageInRow{Step: -1, Tensor: 0, Bytes: 4096, Timestamp: 4e9 + 200e6}) // between steps
		c.PageIn(&tables.PageInRow{Step: -1, Tensor: 0, Bytes: 1 << 16, Timestamp: 4e9 + 50e6, PID: 7})
		c.PageIn(&tables.PageInRow{Step: 3, Tensor: 4, Bytes: 1 << 19, Model: 1})
	}
	return c
}

func table(t *testing.T, r *report.Report, name string) *report.Table {
	t.Helper()
	for i := range r.Tables {
		if r.Tables[i].Name == name {
			return &r.Tables[i]
		}
	}
	t.Fatalf("no table %q", name)
	return nil
}

// What was planted is found, where it was planted, and nothing else is.
func TestPlanted(t *testing.T) {
	const steps = 6
	r := planted(t, steps, true).Report("m.gguf", &tables.Meta{}, Compute{})
	if len(r.Steps) != steps || r.Steps[0] != (report.Step{Label: "step 0", Phase: "prompt"}) ||
		r.Steps[3] != (report.Step{Label: "token 2", Phase: "generation"}) {
		t.Errorf("steps %+v, want %d, beginning with a prompt", r.Steps, steps)
	}
	for _, s := range r.Series {
		var want [steps]float64
		switch s.Name {
		case "read from disk":
			want[0], want[3], want[4] = 1<<20, 1<<19, 1<<16
		case "of it again":
			want[3] = 1 << 19
		case "waiting for disk":
			want[3] = 80e6
		default:
			t.Errorf("series %q is not expected", s.Name)
		}
		for i, v := range s.Values {
			if math.Abs(v-want[i]) > 1e-6*want[i] {
				t.Errorf("%s of step %d is %g, want %g", s.Name, i, v, want[i])
			}
		}
	}
	if len(r.Heat) != 4 || r.Heat[0].Name != "from disk" || r.Heat[0].Rows[0].Name != "blk.1.a" ||
		len(r.Heat[0].Rows) != 3 {
		t.Fatalf("heatmaps %+v", r.Heat)
	}
	for _, h := range r.Heat {
		for row := range h.Rows {
			for step := range steps {
				want := 0.0
				switch {
				case h.Name == "from disk" && row == 0 && step == 0:
					want = 1 << 20
				case h.Name == "from disk" && row == 0 && step == 3:
					want = 1 << 19
				case h.Name == "from disk" && row == 1 && step == 4:
					want = 1 << 16
				case h.Name == "waiting" && row == 0 && step == 3:
					want = 80e6
				case h.Name == "time":
					want = 10e6
				case h.Name == "reads":
					want = h.Rows[row].Weight
				}
				if got := h.At(row, step); got != want {
					t.Errorf("%s of %s in step %d is %g, want %g", h.Name, h.Rows[row].Name, step, got, want)
				}
			}
		}
	}
	// A step reads 1 MiB at offset 1 MiB, then at 0 (back), then 10 MiB further (large), and back to the
	// first tensor in the next step.
	if got, want := table(t, r, "Gaps").Rows,
		[][]any{
			{gapNames[0], 0.0, 0.0},
			{gapNames[1], 0.0, 0.0},
			{gapNames[2], 6.0, 6.0 * (1 << 19)},
			{gapNames[3], 0.0, 0.0},
			{gapNames[4], 0.0, 0.0},
			{gapNames[5], 11.0, 11.0 * (1 << 20)},
		}; !reflect.DeepEqual(got, want) {
		t.Errorf("gaps %v, want %v", got, want)
	}
	if got, want := table(t, r, "Layers").Rows, [][]any{
		{"none", 6.0, 6.0 * (1 << 19), 60e6, 0.0, 0.0, 0.0},
		{"0", 6.0, 6.0 * (1 << 20), 60e6, 4096.0 + 1<<16, 0.0, 0.0},
		{"1", 6.0, 6.0 * (1 << 20), 60e6, 3.0 * (1 << 19), float64(1 << 19), 80e6},
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("layers %v, want %v", got, want)
	}
	if got := table(t, r, "Components").Rows; len(got) != 2 || got[0][0] != "a" || got[0][1] != 12.0 {
		t.Errorf("components %v, want 2, the first with 12 accesses", got)
	}
	phases := slices.Clone(table(t, r, "Phases").Rows)
	if len(phases) > 0 {
		phases[0] = slices.DeleteFunc(slices.Clone(phases[0]), func(v any) bool {
			f, ok := v.(float64)
			return ok && math.IsNaN(f)
		})
	}
	if got, want := phases, [][]any{
		// NaN is not equal to itself: what is not known of the load is left out below.
		{phaseLoad, 4096.0, 0.0},
		{"prompt", 1.0, 7.0, 100e6, 3.0, 2.5 * (1 << 20), float64(1 << 20), 0.0, 0.0},
		{"generation", 5.0, 5.0, 500e6, 15.0, 12.5 * (1 << 20), float64(1<<19 + 1<<16), float64(1 << 19), 80e6},
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("phases %v, want %v", got, want)
	}
	if got := table(t, r, "Tensors").Rows; len(got) != 3 || got[0][0] != "blk.1.a" || got[1][1] != 0.0 {
		t.Errorf("tensors %v, want 3, blk.1.a first", got)
	}
	if len(r.Series) != 3 || r.Main != "generation" {
		t.Errorf("%d series, the main phase is %q; want three, and generation", len(r.Series), r.Main)
	}
	if m := r.Reads; m == nil || m.Size != 20.5*(1<<20) || m.StepsPerColumn*float64(m.Columns) != steps {
		t.Errorf("reads %+v, want those of %d steps in 20.5 MiB", m, steps)
	}
	if len(r.Notes) != 2 || !strings.HasPrefix(r.Notes[0], "a limit") ||
		!strings.Contains(r.Notes[1], "--no-probe") || len(r.Verdict) != 2 ||
		r.Verdict[0] != "Memory is short: for the 2.5 MiB that a token reads, 32 KiB come from disk, 0 B of "+
			"them not for the first time." {
		t.Errorf("notes %q, verdict %q, want two of each", r.Notes, r.Verdict)
	}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Error(err)
	}
}

// A gap begins at the end of what was read, to either side. The bounds belong to the longer class.
func TestGapOf(t *testing.T) {
	const at = 10_000_000
	for _, tc := range []struct {
		to   int64
		want gap
	}{
		{at, gapSequential},
		{at + 128<<10 - 1, gapSequential},
		{at + 128<<10, gapSmall},
		{at + 1<<20 - 1, gapSmall},
		{at + 1<<20, gapLarge},
		{at - 1, gapBackClose},
		{at - 128<<10, gapBackSmall},
		{at - 1<<20 + 1, gapBackSmall},
		{at - 1<<20, gapBackLarge},
		{0, gapBackLarge},
	} {
		if got := gapOf(at, tc.to); got != tc.want {
			t.Errorf("from %d to %d: %s, want %s", at, tc.to, gapNames[got], gapNames[tc.want])
		}
	}
}

// Of a mixture, the slices of the chosen experts are the reads, in the order in which the capture has
// them.
func TestExpertsAreReads(t *testing.T) {
	const stride = placeRows / 8 << 10 // a row of cells is a KiB
	structure := []tables.StructureRow{
		{Name: "exps", Size: 8 * stride, Experts: 8, ExpertStride: stride, File: "m.gguf"},
	}
	c := New(structure, 0, 0, []tables.StepRow{{Step: 0, Phase: tables.PhaseGeneration, Begin: 0, End: 100}})
	if err := c.Access(&tables.Access{
		Bytes: 3 * stride, Timestamp: 50, Duration: 30, Experts: []int32{2, 3, 0},
	}); err != nil {
		t.Fatal(err)
	}
	// Each expert is read for a tenth of the step. A place that was read is so as a whole.
	read := map[int]float64{}
	for column := range c.places.columns {
		for row := range placeRows {
			class, share := c.places.merged(1)(column, row)
			if share == 0 {
				continue
			}
			expert := row * 8 / placeRows
			read[expert] += share
			begin := map[int]float64{2: 0.5, 3: 0.6, 0: 0.7}[expert] * float64(c.places.columns)
			if at := float64(column); begin == 0 || at < begin-1 || at > begin+0.1*float64(c.places.columns) {
				t.Fatalf("expert %d is read in column %d of %d", expert, column, c.places.columns)
			}
			if want := map[int]gap{2: gapSequential, 3: gapSequential, 0: gapBackSmall}[expert]; gap(class) != want {
				t.Fatalf("expert %d is %s, want %s", expert, gapNames[class], gapNames[want])
			}
		}
	}
	for expert, rows := range read {
		if math.Abs(rows-placeRows/8) > 1e-3 {
			t.Errorf("of expert %d %g rows are read, want %d", expert, rows, placeRows/8)
		}
	}
	// There is no gap before the first read.
	if len(read) != 3 || c.gaps[gapSequential].accesses != 1 || c.gaps[gapBackSmall].accesses != 1 {
		t.Errorf("%d experts, gaps %+v; want 3, a sequential gap and one back", len(read), c.gaps)
	}
}

// The verdict follows from what tokens wait for. What was not observed is named with the flag that
// records it, and is not drawn as zero.
func TestVerdict(t *testing.T) {
	c := planted(t, 6, true)
	for i := range c.steps {
		c.steps[i].stall, c.steps[i].disk = 70e6, 2<<20
	}
	if v := c.Report("", &tables.Meta{}, Compute{}).Verdict; len(v) != 2 || v[0] != "Memory is short: for the 2.5 MiB "+
		"that a token reads, 2 MiB come from disk, 0 B of them not for the first time." ||
		!strings.HasPrefix(v[1], "Waiting for the disk takes 70 %") {
		t.Errorf("verdict %q, want that memory is short, and 70 %% of waiting", v)
	}
	for i := range c.steps {
		c.steps[i].disk = 0
	}
	if v := c.Report("", &tables.Meta{}, Compute{}).Verdict; len(v) != 2 ||
		v[0] != "Memory suffices: of the 2.5 MiB that a token reads, 0 B come from disk." {
		t.Errorf("verdict %q, want that memory suffices", v)
	}
	r := planted(t, 6, false).Report("", &tables.Meta{}, Compute{})
	if len(r.Verdict) != 0 || len(r.Notes) != 2 || len(r.Heat) != 2 || r.Heat[0].Name != "time" || len(r.Series) != 0 {
		t.Errorf("verdict %q, notes %q, %d heatmaps, %d series, want none, 2, 2 and none", r.Verdict, r.Notes,
			len(r.Heat), len(r.Series))
	}
	if v := planted(t, 2, true).Report("", &tables.Meta{}, Compute{}).Verdict; len(v) != 1 ||
		!strings.HasPrefix(v[0], "No token") {
		t.Errorf("verdict on one token %q, want that there is none", v)
	}
}

// A long capture takes bounded memory: steps share columns.
func TestBounded(t *testing.T) {
	var many []tables.StructureRow
	for i := range 100 {
		many = append(many, tables.StructureRow{Name: fmt.Sprint(i)})
	}
	steps := make([]tables.StepRow, maxCells/100+1)
	for i := range steps {
		steps[i].Step = int32(i)
	}
	c := New(many, 0, 0, steps)
	if err := c.Access(&tables.Access{Step: 3, Tensor: 7, Bytes: 10}); err != nil || c.stepsPerColumn != 2 {
		t.Fatalf("%v, %d steps in a bin", err, c.stepsPerColumn)
	}
	h := c.Report("", &tables.Meta{}, Compute{}).Heat
	if len(h) != 1 || h[0].Name != "reads" || h[0].At(0, 2) != 5 || h[0].At(0, 3) != 5 || h[0].At(0, 4) != 0 {
		t.Errorf("%d heatmaps, reads of steps 2 to 4: %g, %g, %g, want 1 with 5, 5, 0", len(h), h[0].At(0, 2), h[0].At(0, 3), h[0].At(0, 4))
	}
}

// Rows that contradict the structure table are refused.
func TestRefuses(t *testing.T) {
	c := New(structure, 0, 0, []tables.StepRow{{}})
	for _, a := range []tables.Access{
		{Tensor: -1},
		{Tensor: 5},
		{Bytes: -1},
		{Offset: -1},
		{Offset: math.MaxInt64, Bytes: 1},
	} {
		if c.Access(&a) == nil {
			t.Errorf("Access took %+v, want an error", a)
		}
	}
}

// What is expected follows from what was planted: a token of 2.5 MiB, 1 MiB of room, and a disk of 20
// MiB/s.
func TestOutlook(t *testing.T) {
	c := planted(t, 6, true)
	for i := range c.steps {
		c.steps[i].disk, c.steps[i].reread, c.steps[i].stall = 2<<20, 1<<20, 70e6
		c.steps[i].row.End = c.steps[i].row.Begin + 250e6
	}
	meta := &tables.Meta{
		Memory: &tables.Memory{LimitBytes: 3 << 19, Of: "/a memory.max", OtherBytes: 1 << 19},
		Disk:   &tables.Disk{BytesPerSecond: 20 << 20, Measured: time.Unix(1, 0)},
	}
	c.Helped = func(memory int64, compute time.Duration, disk float64) time.Duration {
		if memory != 1<<20 || compute <= 0 || disk != 20<<20 {
			t.Errorf("Helped is asked for %d bytes, %v of computing, a disk of %g, want %d, more than 0, %d", memory,
				compute, disk, 1<<20, 20<<20)
		}
		return 250 * time.Millisecond * 10 / 11
	}
	o := c.Outlook(meta, Computing(50*time.Millisecond))
	if o.TokensPerSecond != 4 || o.DiskRate != 8<<20 || o.Missing != 3<<19 || o.Fits != 20 ||
		math.Abs(o.Ahead-1/0.075) > 1e-9 || math.Abs(o.Helped-4.4) > 1e-6 {
		t.Errorf("outlook %+v, want that of a token in 250 ms", o)
	}
	if rate := o.TouchedRate(50 * time.Millisecond); math.Abs(rate-10<<20) > 1 {
		t.Errorf("TouchedRate = %g, want %d", rate, 10<<20)
	}
	want := []string{
		"Memory is short: for the 2.5 MiB that a token reads, 2 MiB come from disk, 1 MiB of them not for the first " +
			"time, at 40 % of what this disk can read (20 MiB/s).",
		"With 1.5 MiB more than the limit of 1.5 MiB (/a memory.max) it would be about 5.0 times as fast (20 " +
			"tok/s instead of 4); as it is, prefetchd is expected to reach 4.4 tok/s (13.3 at most).",
		"Waiting for the disk takes 28 % of a token's time, summed over its threads; what the kernel does to read " +
			"and to map pages is not in that.",
	}
	if got := o.Sentences(); !reflect.DeepEqual(got, want) {
		t.Errorf("sentences %q, want %q", got, want)
	}
	// Nothing is promised if something that it follows from is missing.
	for name, less := range map[string]func(m *tables.Meta) time.Duration{
		"no limit":   func(m *tables.Meta) time.Duration { m.Memory = nil; return time.Second / 20 },
		"no compute": func(m *tables.Meta) time.Duration { return 0 },
		"room": func(m *tables.Meta) time.Duration {
			m.Memory = &tables.Memory{LimitBytes: 3 << 20}
			return time.Second / 20
		},
		"no faster": func(m *tables.Meta) time.Duration { return time.Second },
	} {
		m := *meta
		compute := less(&m)
		if got := c.Outlook(&m, Computing(compute)).Sentences(); len(got) != 2 {
			t.Errorf("%s: sentences %q, want two", name, got)
		}
	}
	m := *meta
	m.Disk = nil
	got := c.Outlook(&m, Computing(time.Second/20)).Sentences()
	if len(got) != 3 || strings.Contains(got[1], "prefetchd") || strings.Contains(got[0], "%") {
		t.Errorf("no disk: sentences %q, want three without prefetchd", got)
	}
}

// What is not known well is a range. Of a disk that was measured long before, the age is said, and it may be faster or
// slower by now.
func TestOutlookRanges(t *testing.T) {
	c := planted(t, 6, true)
	for i := range c.steps {
		c.steps[i].disk, c.steps[i].reread, c.steps[i].stall = 2<<20, 1<<20, 70e6
		c.steps[i].row.End = c.steps[i].row.Begin + 250e6
	}
	started := time.Unix(1e9, 0)
	meta := &tables.Meta{
		Started: started, Seconds: 60,
		Memory: &tables.Memory{LimitBytes: 3 << 19, Of: "limit", OtherBytes: 1 << 19},
		Disk:   &tables.Disk{BytesPerSecond: 20 << 20, Least: 18 << 20, Most: 24 << 20, Measured: started},
	}
	const missing = 3 << 19
	c.Helped = func(_ int64, compute time.Duration, disk float64) time.Duration {
		return compute + time.Duration(missing/disk*1e9)
	}
	waited := Compute{Expected: 50e6, Least: 40e6, Most: 200e6}
	o := c.Outlook(meta, waited)
	if o.FitsRange != (Range{5, 25}) || math.Abs(o.Ahead-1/0.0625) > 1e-6 ||
		math.Abs(o.HelpedRange.Least-1/(0.2+1.5/18)) > 1e-6 || math.Abs(o.HelpedRange.Most-1/(0.04+1.5/24)) > 1e-6 {
		t.Errorf("outlook %+v, want 5 to 25 tok/s where it fits", o)
	}
	want := []string{
		"With 1.5 MiB more than the limit of 1.5 MiB (limit) it would be about 5.0 times as fast (20 tok/s, 5 to 25, " +
			"instead of 4); as it is, prefetchd is expected to reach 8 tok/s (3.53 to 9.76, 16 at most).",
		"How long a token computes is not known well, as all weights came from disk in every step: at most 200 ms, what " +
			"they took less what they waited; at least 40 ms, in which memory delivers the bytes.",
	}
	if got := o.Sentences(); len(got) != 4 || !reflect.DeepEqual(got[1:3], want) {
		t.Errorf("sentences %q, want %q in the middle", got, want)
	}
	waited.Least, waited.Told = 0, 0.75
	want = []string{
		"With 1.5 MiB more than the limit of 1.5 MiB (limit) it would be about 5.0 times as fast (20 tok/s, 5 at least, instead of 4)",
		"as weights of 25 % of the bytes came from disk in every step: at most 200 ms, what they took less what they waited.",
	}
	got := c.Outlook(meta, waited).Sentences()
	if len(got) != 4 || !strings.HasPrefix(got[1], want[0]) || !strings.HasSuffix(got[2], want[1]) {
		t.Errorf("sentences %q, want %q in them", got, want)
	}
	meta.Disk.Measured = started.Add(-3 * 24 * time.Hour)
	o = c.Outlook(meta, Computing(50e6))
	if o.Age != 3*24*3600+60 || o.BandwidthRange != (Range{12 << 20, 36 << 20}) ||
		!strings.Contains(o.Sentences()[0], "(20 MiB/s, measured 3 days before)") {
		t.Errorf("outlook %+v, %q, want a measurement of 3 days before, and a wider range", o, o.Sentences())
	}
}

// Where nothing is generated, the outlook is of decodes. Each goes through the model twice here, so what memory lacks
// is of what one pass reads, and it comes from disk twice.
func TestOutlookOfDecodes(t *testing.T) {
	const steps, tokens = 5, 8
	var rows []tables.StepRow
	for i := range int64(steps) {
		rows = append(rows, tables.StepRow{
			Step: int32(i), Phase: tables.PhasePrompt, Tokens: tokens, Token: -1, Begin: i * 1e9, End: i*1e9 + 400e6,
		})
	}
	c := New(structure, 0, 0, rows)
	c.Passes = 2
	c.ObservePageIns()
	var asked time.Duration
	c.Helped = func(memory int64, compute time.Duration, disk float64) time.Duration {
		asked = compute
		return 100 * time.Millisecond
	}
	for step := range int32(steps) {
		for n, tensor := range []int32{0, 1, 2, 0, 1, 2} {
			if err := c.Access(&tables.Access{
				Step: step, Phase: tables.PhasePrompt, Tensor: tensor, Offset: structure[tensor].Offset,
				Bytes: structure[tensor].Size, Duration: 10e6, Timestamp: int64(step)*1e9 + int64(n)*25e6,
				Stall: tables.NotObserved,
			}); err != nil {
				t.Fatal(err)
			}
		}
		c.PageIn(&tables.PageInRow{Step: step, Tensor: 0, Bytes: 2 << 20, Rereads: step})
	}
	meta := &tables.Meta{
		Memory: &tables.Memory{LimitBytes: 1<<20 + 1<<19, Of: "limit"},
		Disk:   &tables.Disk{BytesPerSecond: 10 << 20, Measured: time.Unix(1, 0)},
	}
	o := c.Outlook(meta, Computing(80*time.Millisecond))
	const read = 5 << 20 // of a decode: twice 2.5 MiB
	if o.TokensPerStep != tokens || o.Passes != 2 || o.Read != read/tokens || o.TokensPerSecond != tokens/0.4 ||
		o.Missing != 1<<20 || o.Fits != tokens/0.08 || math.Abs(o.Ahead-tokens/0.2) > 1e-9 ||
		asked != 40*time.Millisecond || math.Abs(o.Helped-tokens/0.2) > 1e-9 {
		t.Errorf("outlook %+v, Helped was asked for %v", o, asked)
	}
	said := strings.Join(o.Sentences(), " ")
	for _, want := range []string{
		"for the 5 MiB that a decode reads, 2 MiB come from disk, 2 MiB of them",
		"With 1 MiB more than the limit of 1.5 MiB", "(100 tok/s instead of 20)",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in %q", want, said)
		}
	}
	facts := map[string]string{}
	for _, f := range c.Report("m", meta, Computing(80*time.Millisecond)).Facts {
		facts[f.Name] = f.Value
	}
	want := map[string]string{
		"speed": "20 tok/s", "read per decode": "5 MiB", "from disk per decode": "2 MiB",
		"again from disk per decode": "2 MiB", "decodes": "4", "tokens of a decode": "8",
		"passes through the model": "2",
	}
	if !reflect.DeepEqual(facts, want) {
		t.Errorf("facts %v, want %v", facts, want)
	}
}
