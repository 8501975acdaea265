package trace

// This file tests that a row which does not match the schema is an error, and harms nothing else.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/ipc"

	"tensorcast/internal/outfile"
)

// A row that does not match the schema is an error that names the table, at once or with the batch.
// Neither this row nor a later one is written, and the table stays readable.
func TestRowsThatAreNotAsTheSchema(t *testing.T) {
	route := func(s *stream, columns int) {
		for i := range columns {
			s.int32(int32(i))
		}
	}
	step := func(s *stream, upTo int, tokenIDs func()) {
		for i, set := range []func(){
			func() { s.int32(1) }, func() { s.int32(1) }, func() { s.int32(1) }, func() { s.int32(1) },
			func() { s.shortIndex(0) }, func() { s.int32(1) },
			func() { s.int32(1) }, tokenIDs, func() { s.null() }, func() { s.int64(1) }, func() { s.null() },
			func() { s.bool(true) },
		} {
			if i < upTo {
				set()
			}
		}
	}
	list := func(s *stream) func() { return func() { s.list([]int32{1, 2}) } }
	for name, test := range map[string]struct {
		table string
		row   func(s *stream)
		want  string // of endRow or, if late, of flush
		late  bool
	}{
		"none": {RouteFile, func(s *stream) {}, "write table route.arrows: a row sets 0 of 6 columns",
			false},
		"one is missing": {RouteFile, func(s *stream) { route(s, 5) },
			"write table route.arrows: a row sets 5 of 6 columns", false},
		"one too many": {RouteFile, func(s *stream) { route(s, 7) },
			"write table route.arrows: a row sets 7 of 6 columns", false},
		"many too many": {StepFile, func(s *stream) {
			step(s, 12, list(s))
			step(s, 12,
				list(s))
			s.text("x")
			s.textOrNull("")
		}, "write table steps.arrows: a row sets 26 of 12 columns", false},
		"too wide": {RouteFile, func(s *stream) { s.int64(1); route(s, 5) },
			"write table route.arrows: column step: values for 1 rows of int32 take 8 bytes, not 4", true},
		"too narrow": {RouteFile, func(s *stream) { route(s, 5); s.shortIndex(1) },
			"write table route.arrows: column position: values for 1 rows of int32 take 1 bytes, not 4", true},
		"a bit": {RouteFile, func(s *stream) { s.bool(true); route(s, 5) },
			"column step: values for 1 rows of int32 take 1 bytes, not 4", true},
		"no list": {StepFile, func(s *stream) { step(s, 12, func() { s.int32(1) }) },
			"column token_ids: values for 1 rows of list", true},
		"a list elsewhere": {RouteFile, func(s *stream) { route(s, 5); s.list([]int32{1}) },
			"column position: a list is in a column of int32", true},
		"null is forbidden": {RouteFile, func(s *stream) { route(s, 5); s.null() },
			"column position: 1 values are null, which the schema does not allow", true},
		"no dictionary": {RouteFile, func(s *stream) { route(s, 5); s.text("x") },
			"write table route.arrows: column position has no dictionary", false},
		"as the schema": {StepFile, func(s *stream) { step(s, 12, list(s)) }, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d, err := outfile.OpenDir(dir, dirMode)
			check(t, err)
			defer d.Close()
			s, err := createStream(d, test.table, columnsOf[test.table], 0, "")
			if err != nil {
				t.Fatal(err)
			}
			defer s.release()
			good := func() {
				if test.table == RouteFile {
					route(s, 6)
				} else {
					step(s, 12, list(s))
				}
			}
			good()
			check(t, s.endRow())
			check(t, s.flush())

			test.row(s)
			err = s.endRow()
			if test.late {
				check(t, err)
				err = s.flush()
			}
			rows := 1
			if test.want == "" {
				check(t, err)
				rows = 2
			} else if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want %q", err, test.want)
			} else {
				for range 20 {
					good()
					if again := s.endRow(); again == nil || again.Error() != err.Error() {
						t.Fatalf("a row afterwards: %v, want %v", again, err)
					}
				}
			}
			if end := s.endSegment(); (end == nil) != (err == nil) {
				t.Errorf("end: %v; want %v", end, (err == nil))
			}
			if got := countRows(t, filepath.Join(dir, test.table)); got != rows {
				t.Errorf("%d rows can be read, want %d", got, rows)
			}
		})
	}
}

// countRows counts the rows of a whole table.
func countRows(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := ipc.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	rows := 0
	for r.Next() {
		rows += int(r.Record().NumRows())
	}
	check(t, r.Err())
	return rows
}
