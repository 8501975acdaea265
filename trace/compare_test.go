package trace

// These tests read captures whose files contradict each other, and rows that no tracer writes.

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/trace/tables"
)

// rotated writes a capture with segments 1 to 3 of 4 rows each. Segment 0 is deleted.
func rotated(t *testing.T, complete bool) string {
	t.Helper()
	dir := t.TempDir()
	meta := &tables.Meta{Models: []tables.ModelInfo{{Fingerprint: "f00", Path: "m.gguf"}}}
	w, err := Create(dir, meta, testStructure)
	check(t, err)
	for i := range 4 {
		if i > 0 {
			check(t, w.Rotate(meta, 3))
		}
		plant(t, w, testRows(4))
	}
	if complete {
		check(t, w.Close(meta, true))
	} else {
		check(t, w.Flush(meta))
	}
	return dir
}

// readTables reads every table.
func readTables(c *Capture) error {
	_, err := readRows(c)
	for _, e := range c.Steps() {
		err = errors.Join(err, e)
	}
	for _, e := range c.Routes() {
		err = errors.Join(err, e)
	}
	for _, e := range c.PageIns() {
		err = errors.Join(err, e)
	}
	for _, e := range c.Buffers() {
		err = errors.Join(err, e)
	}
	for _, e := range c.Hidden() {
		err = errors.Join(err, e)
	}
	return err
}

// A contradiction in a complete capture is an error that says what to do. In an incomplete one it
// becomes a doubt, and the rest is read, unless a file can only be another capture's.
func TestContradictions(t *testing.T) {
	edit := func(change func(m map[string]any)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, MetaFile)
			data, err := os.ReadFile(path)
			check(t, err)
			var m map[string]any
			check(t, json.Unmarshal(data, &m))
			change(m)
			data, err = json.Marshal(m)
			check(t, err)
			check(t, os.WriteFile(path, data, 0o600))
		}
	}
	remove := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) { check(t, os.Remove(filepath.Join(dir, name))) }
	}
	copied := func(from, to string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, from))
			check(t, err)
			check(t, os.WriteFile(filepath.Join(dir, to), data, 0o600))
		}
	}
	foreign := func(name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			other := t.TempDir()
			meta := &tables.Meta{Models: []tables.ModelInfo{{Fingerprint: "0ther"}}}
			w, err := Create(other, meta, testStructure)
			check(t, err)
			plant(t, w, testRows(4))
			check(t, w.Close(meta, true))
			data, err := os.ReadFile(filepath.Join(other, name))
			check(t, err)
			in := name
			if name != StructureFile {
				in = segmentFile(name, 2)
			}
			check(t, os.WriteFile(filepath.Join(dir, in), data, 0o600))
		}
	}
	cut := func(name string, n int64) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			info, err := os.Stat(path)
			check(t, err)
			check(t, os.Truncate(path, info.Size()-n))
		}
	}
	for name, tc := range map[string]struct {
		damage func(t *testing.T, dir string)
		says   string // of a complete capture
		doubt  string // of an incomplete one; "" if it tells nothing
		fails  bool   // also of an incomplete one
	}{
		"nothing": {damage: func(*testing.T, string) {}},
		"fewer rows": {damage: edit(func(m map[string]any) { m["rows"] = 15 }),
			says: "tells of 15 rows of the access table, of which 4 were deleted, and the files hold 12"},
		"more rows": {damage: edit(func(m map[string]any) { m["rows"] = 1000 }),
			says: "tells of 1000 rows", doubt: "tells of 1000 rows"},
		"a segment is missing": {damage: remove("access.0002.arrows"), says: "access.0002.arrows is missing",
			doubt: "access.0002.arrows is missing"},
		"the first is missing": {damage: remove("steps.0001.arrows"), says: "steps.0001.arrows is missing",
			doubt: "steps.0001.arrows is missing"},
		"one of page-ins": {damage: remove("pagein.0002.arrows"), says: "pagein.0002.arrows is missing",
			doubt: "pagein.0002.arrows is missing"},
		"all tables": {damage: func(t *testing.T, dir string) {
			remove("access.0001.arrows")(t, dir)
			remove("access.0002.arrows")(t, dir)
			remove("access.0003.arrows")(t, dir)
		}, says: "access.0001.arrows is missing", doubt: "access.0001.arrows is missing"},
		"one that was deleted": {damage: copied("access.0001.arrows", "access.arrows"),
			says: "access.arrows is of no segment that capture.json tells of"},
		"one too many": {damage: copied("access.0001.arrows", "access.0005.arrows"),
			says: "access.0005.arrows is of no segment", doubt: "access.0005.arrows is of no segment"},
		"the next one": {damage: copied("access.0003.arrows", "access.0004.arrows"),
			says: "access.0004.arrows is of no segment"},
		"another capture's table": {damage: foreign(AccessFile),
			says: `access.0002.arrows is of a model with fingerprint "0ther"`, fails: true},
		"another's pages": {damage: foreign(PageInFile),
			says: `pagein.0002.arrows is of a model with fingerprint "0ther"`, fails: true},
		"another's structure": {damage: foreign(StructureFile),
			says: `structure.arrows is of a model with fingerprint "0ther"`, fails: true},
		"a table is cut": {damage: cut("access.0003.arrows", 1),
			says: "access.0003.arrows is damaged: it ends within a batch", doubt: "the files hold 8"},
		"another table is cut": {damage: cut("buffers.0003.arrows", 8),
			says: "buffers.0003.arrows is damaged: it ends within a batch"},
		"the structure is cut": {damage: cut(StructureFile, 8),
			says: "structure.arrows is damaged: it ends within a batch", fails: true},
		"a tensor beyond": {damage: edit(func(m map[string]any) {
			m["models"].([]any)[0].(map[string]any)["files"] = []any{
				map[string]any{"name": "m.gguf", "bytes": 12191, "fingerprint": "f00"},
			}
		}), says: `tensor "blk.0.ffn_up_exps.weight" has 4000 bytes at 8192 of "m.gguf", which has 12191`, fails: true},
		"an unknown file": {damage: edit(func(m map[string]any) {
			m["models"].([]any)[0].(map[string]any)["files"] = []any{
				map[string]any{"name": "n.gguf", "bytes": 1e6, "fingerprint": "f00"},
			}
		}), says: `tensor "token_embd.weight" is in file "m.gguf", of which capture.json does not tell`},
	} {
		for _, complete := range []bool{true, false} {
			t.Run(fmt.Sprint(name, complete), func(t *testing.T) {
				dir := rotated(t, complete)
				tc.damage(t, dir)
				c, err := Open(dir)
				if err == nil {
					err = readTables(c)
				}
				if tc.says != "" && (complete || tc.fails) {
					if err == nil || !strings.Contains(err.Error(), tc.says) || !errors.Is(err, ErrMixed) &&
						!errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "capture again") {
						t.Errorf("error %v, want %q", err, tc.says)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if doubts := strings.Join(c.Doubts, "\n"); tc.doubt == "" && doubts != "" ||
					!strings.Contains(doubts, tc.doubt) {
					t.Errorf("it doubts %q, want %q", doubts, tc.doubt)
				}
			})
		}
	}
}

// A tracer that is killed while it rotates leaves a segment that capture.json does not list. It is
// read. A segment that was about to be deleted is not.
func TestKilledWhileRotating(t *testing.T) {
	dir := rotated(t, false)
	data, err := os.ReadFile(filepath.Join(dir, "access.0003.arrows"))
	check(t, err)
	for _, name := range []string{"access.0004.arrows", AccessFile} {
		check(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	c := open(t, dir)
	rows, err := readRows(c)
	if err != nil || len(rows) != 16 || c.Doubts != nil {
		t.Errorf("%d rows, %v, doubts %q; want those of segments 1 to 4", len(rows), err, c.Doubts)
	}
}

// A row that no tracer writes is an error that names its table and number.
func TestNonsenseInRows(t *testing.T) {
	for name, tc := range map[string]struct {
		access func(a *tables.Access)
		page   func(r *tables.PageInRow)
		buffer func(r *tables.BufferRow)
		step   func(r *tables.StepRow)
		route  func(r *tables.Route)
		hidden func(r *tables.HiddenRow)
		table  string
		says   string
	}{
		"negative bytes": {access: func(a *tables.Access) { a.Bytes = -1 }, says: "it reads -1 bytes"},
		"more than the tensor": {access: func(a *tables.Access) { a.Bytes = 1001 },
			says: `it reads 1001 bytes at 4096 of tensor "token_embd.weight", which has 1000 at 4096`},
		"before the tensor": {access: func(a *tables.Access) { a.Offset = 4095 }, says: "at 4095 of tensor"},
		"behind the tensor": {access: func(a *tables.Access) { a.Offset = math.MaxInt64 },
			says: "at 9223372036854775807 of tensor"},
		"negative step":  {access: func(a *tables.Access) { a.Step = -5 }, says: "it is of step -5"},
		"negative token": {access: func(a *tables.Access) { a.Token = -2 }, says: "token -2"},
		"negative context": {access: func(a *tables.Access) { a.Context = math.MinInt32 },
			says: "context -2147483648"},
		"time": {access: func(a *tables.Access) { a.Timestamp = math.MinInt64 },
			says: "it is at -9223372036854775808 ns"},
		"duration": {access: func(a *tables.Access) { a.Duration = -2 }, says: "for -2 ns"},
		"long duration": {access: func(a *tables.Access) { a.Duration = math.MaxInt64 },
			says: "for 9223372036854775807 ns"},
		"stall": {access: func(a *tables.Access) { a.Stall = -7 }, says: "stalls for -7 ns"},
		"negative page-in": {page: func(r *tables.PageInRow) { r.Bytes = -4096 }, table: PageInFile,
			says: "it is of -4096 bytes"},
		"page-in far behind": {page: func(r *tables.PageInRow) { r.Offset = 1 << 60 }, table: PageInFile,
			says: "at 1152921504606846976"},
		"negative rereads": {page: func(r *tables.PageInRow) { r.Rereads = -1 }, table: PageInFile,
			says: "read -1 times"},
		"page-in of step -2": {page: func(r *tables.PageInRow) { r.Step = -2 }, table: PageInFile,
			says: "of step -2"},
		"page-in of model -1": {page: func(r *tables.PageInRow) { r.Model = -1 }, table: PageInFile,
			says: "of model -1"},
		"negative buffer": {buffer: func(r *tables.BufferRow) { r.Bytes = -8 }, table: BufferFile,
			says: "of -8 bytes"},
		"tokens": {step: func(r *tables.StepRow) { r.Tokens = -2 }, table: StepFile, says: "of -2"},
		"begin": {step: func(r *tables.StepRow) { r.Begin = math.MaxInt64 }, table: StepFile,
			says: "it begins at 9223372036854775807 ns"},
		"slot": {route: func(r *tables.Route) { r.Slot = -1 }, table: RouteFile, says: "slot -1"},
		"hidden step": {hidden: func(r *tables.HiddenRow) { r.Step = -1 }, table: HiddenFile,
			says: "of step -1"},
		"hidden token": {hidden: func(r *tables.HiddenRow) { r.Token = -2 }, table: HiddenFile,
			says: "token -2"},
		"hidden layer": {hidden: func(r *tables.HiddenRow) { r.Layer = -1 }, table: HiddenFile,
			says: "layer -1"},
		"hidden position": {hidden: func(r *tables.HiddenRow) { r.Position = -2 }, table: HiddenFile,
			says: "position -2"},
		"a name that is no name": {access: func(a *tables.Access) { a.Op = strings.Repeat("x", 256) },
			says: "column op has a name of 256 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			meta := &tables.Meta{}
			w, err := Create(dir, meta, testStructure)
			check(t, err)
			plant(t, w, testRows(4))
			// The bad row is the last of its table.
			a, p, b, s, r, h := testRows(1)[0], testPageIns[0], testBuffers[0], testSteps[0], tables.Route{},
				testHidden[0]
			switch {
			case tc.access != nil:
				tc.access(&a)
			case tc.page != nil:
				tc.page(&p)
			case tc.buffer != nil:
				tc.buffer(&b)
			case tc.step != nil:
				tc.step(&s)
			case tc.route != nil:
				tc.route(&r)
			case tc.hidden != nil:
				tc.hidden(&h)
			}
			check(t, errors.Join(w.Access(&a), w.PageIn(&p), w.Buffer(&b), w.Step(&s), w.Route(&r), w.Hidden(&h),
				w.Close(meta, true)))
			table, row := AccessFile, 4
			if tc.table != "" {
				table, row = tc.table, map[string]int{
					PageInFile: len(testPageIns), BufferFile: len(testBuffers),
					StepFile: len(testSteps), RouteFile: 1, HiddenFile: len(testHidden),
				}[tc.table]
			}
			err = readTables(open(t, dir))
			where := fmt.Sprintf("%s is damaged: row %d: ", table, row)
			if name == "a name that is no name" {
				where = table + " is damaged: rows from 0 on: "
			}
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), where) ||
				!strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %s%s", err, where, tc.says)
			}
		})
	}
}

func TestNonsenseInTheStructure(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(r *tables.StructureRow)
		says   string
	}{
		"no name":         {func(r *tables.StructureRow) { r.Name = "" }, "has no name"},
		"long name":       {func(r *tables.StructureRow) { r.Name = strings.Repeat("n", 256) }, "that is too long"},
		"negative offset": {func(r *tables.StructureRow) { r.Offset = -1 }, "has 4000 bytes at -1"},
		"negative size":   {func(r *tables.StructureRow) { r.Size = -1 }, "has -1 bytes"},
		"an exabyte":      {func(r *tables.StructureRow) { r.Size = 1 << 60 }, "has 1152921504606846976 bytes"},
		"experts":         {func(r *tables.StructureRow) { r.Experts = -1 }, "has -1 experts"},
		"experts beyond": {func(r *tables.StructureRow) { r.ExpertStride = math.MaxInt64 },
			"has 4 experts of 9223372036854775807 bytes in 4000"},
		"dimensions":     {func(r *tables.StructureRow) { r.Shape = make([]int64, 9) }, "has 9 dimensions"},
		"negative shape": {func(r *tables.StructureRow) { r.Shape = []int64{1, -1} }, "has 2 dimensions: [1 -1]"},
		"of another model": {func(r *tables.StructureRow) { r.Model = math.MaxInt32 },
			"it is of model 2147483647, after those of 1 models"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			meta := &tables.Meta{}
			structure := slices.Clone(testStructure)
			tc.change(&structure[1])
			w, err := Create(dir, meta, structure)
			check(t, err)
			check(t, w.Close(meta, true))
			if _, err := Open(dir); !errors.Is(err, ErrDamaged) ||
				!strings.Contains(err.Error(), "structure.arrows is damaged: row 1: ") ||
				!strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %q", err, tc.says)
			}
		})
	}
}

func TestNonsenseInTheDescription(t *testing.T) {
	for change, says := range map[string]string{
		`"pid": -1`:                        "pid is -1",
		`"rows": -1`:                       "rows is -1",
		`"rows": 1e300`:                    "capture.json is damaged",
		`"steps": 9000000000000000000`:     "steps is 9000000000000000000",
		`"segments": {"first": -1}`:        "-1 is the first",
		`"segments": {"last": -1}`:         "of segments up to -1",
		`"segments": {"last": 2000000000}`: "of segments up to 2000000000",
		`"segments": {"first": 2, "last": 3, "deleted": 1}`:          "that 1 were deleted and 2 is the first",
		`"segments": {"deleted_rows": 5}`:                            "with 5 rows of 0",
		`"counters": {"ops_lost": 18446744073709551615}`:             "the counter OpsLost is 18446744073709551615",
		`"outside_mapping": {"bytes": -1}`:                           "outside_mapping.bytes is -1",
		`"models": [{"bytes": -1}]`:                                  "the bytes of a model is -1",
		`"models": [{"files": [{"bytes": -1}]}]`:                     "the bytes of a file is -1",
		`"models": [` + strings.Repeat("{},", 1<<12) + `{}]`:         "it tells of 4097 models",
		`"models": [{"path": "` + strings.Repeat("x", 1<<13) + `"}]`: "a name in it is too long",
		`"command": ["` + strings.Repeat("x", maxMeta) + `"]`:        "file is too large",
		`"started": "yesterday"`:                                     "capture.json is damaged",
		`"models": ` + strings.Repeat("[", 1<<20):                    "capture.json is damaged",
	} {
		dir := t.TempDir()
		writeCapture(t, dir, nil, nil)
		check(t, os.WriteFile(filepath.Join(dir, MetaFile), []byte(`{"schema": 2, "complete": true, `+change+`}`),
			0o600))
		_, err := Open(dir)
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), MetaFile) ||
			len(err.Error()) > 500 {
			t.Errorf("%.60s: error %.600v, want %q", change, err, says)
		}
	}
}
