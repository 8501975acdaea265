package results

// This file reads tables whose figures were copied, because the runs that they are of were not kept.

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"tensorcast/internal/regular"
	"tensorcast/internal/tabular"
)

// CopiedDir is the directory of copied tables, in [Dir].
const CopiedDir = "copied"

// maxCopied bounds the size of a copied table.
const maxCopied = 1 << 20

// Columns whose names end so belong to the column before whose name they begin with.
const (
	leastSuffix    = " min"
	greatestSuffix = " max"
	metSuffix      = " met"
)

// Copied is a table whose figures were copied from a text or a terminal. New measurements are documents.
type Copied struct {
	columns []string
	rows    [][]string
}

// ReadCopied reads the copied table with a name. dir is the directory of documents. Its file is a CSV table (RFC 4180)
// in UTF-8, whose first row has the names of the columns. Three kinds of columns may follow the column NAME:
//
//   - NAME min and NAME max are the least and the greatest of the runs that NAME is the median of.
//   - NAME met says "yes" where a goal was reached.
//
// So every cell of figures is one number, for programs that read the file.
func ReadCopied(dir, name string) (*Copied, error) {
	if !nameForm.MatchString(name) {
		return nil, fmt.Errorf("%q is no name of a table: want letters, digits, points, - and _", name)
	}
	path := filepath.Join(dir, CopiedDir, name+".csv")
	data, err := regular.Read(path, maxCopied)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no table %q in %s: %w", name, filepath.Dir(path), err)
	} else if err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll() // it checks that all rows are as long as the first
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("%s: want a row of names, and one at least below it", path)
	}
	c := &Copied{columns: rows[0], rows: rows[1:]}
	for i, name := range c.columns {
		for _, suffix := range []string{leastSuffix, greatestSuffix, metSuffix} {
			if of, ok := strings.CutSuffix(name, suffix); ok && c.find(of, i) < 0 {
				return nil, fmt.Errorf("%s: column %q belongs to %q, and there is none before it", path, name, of)
			}
		}
	}
	return c, nil
}

// find returns the column with a name that is nearest before the column at before; -1 if there is none. Names may
// occur twice, in tables with several columns of the same kind.
func (c *Copied) find(name string, before int) int {
	for i := before - 1; i >= 0; i-- {
		if c.columns[i] == name {
			return i
		}
	}
	return -1
}

// WriteMarkdown writes the table. A median with its least and greatest is one cell, "2 (1 to 3)", and what reached a
// goal is bold.
func (c *Copied) WriteMarkdown(w io.Writer) error {
	type column struct{ at, least, greatest, met int } // -1: there is none
	var all []column
	t := &tabular.Table{}
	for i, name := range c.columns {
		of := -1
		for _, suffix := range []string{leastSuffix, greatestSuffix, metSuffix} {
			base, ok := strings.CutSuffix(name, suffix)
			if !ok {
				continue
			}
			of = c.find(base, i)
			for j := range all {
				switch {
				case all[j].at != of:
				case suffix == leastSuffix:
					all[j].least = i
				case suffix == greatestSuffix:
					all[j].greatest = i
				default:
					all[j].met = i
				}
			}
		}
		if of < 0 {
			all = append(all, column{i, -1, -1, -1})
			t.Columns = append(t.Columns, tabular.Left(name)...)
		}
	}
	for _, row := range c.rows {
		var cells []string
		for _, col := range all {
			cell := row[col.at]
			if col.met >= 0 && row[col.met] == "yes" {
				cell = "**" + cell + "**"
			}
			if col.least >= 0 && col.greatest >= 0 && row[col.least]+row[col.greatest] != "" {
				cell += fmt.Sprintf(" (%s to %s)", row[col.least], row[col.greatest])
			}
			cells = append(cells, cell)
		}
		t.Rows = append(t.Rows, cells)
	}
	return tabular.Document{t}.WriteMarkdown(w)
}
