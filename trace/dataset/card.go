package dataset

// This file makes the data card of a data set that is for others, and its archive.

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tensorcast/internal/tabular"
)

// Card is what a data card says besides what the tables' columns mean.
type Card struct {
	Title   string
	Intro   string // paragraphs in Markdown
	Licence string // a paragraph
	Runs    []CardRun
	Tables  []Table // of all runs
}

// CardRun is a run, and how it was made.
type CardRun struct {
	Model, Run string
	Made       string // how the model was made, a sentence
	Command    string // what was run, without paths
}

// MergeTables adds the descriptions of more tables to those of others. Tables of the same name are the same.
func MergeTables(all, more []Table) []Table {
	for _, t := range more {
		if !slices.ContainsFunc(all, func(o Table) bool { return o.Name == t.Name }) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b Table) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// WriteMarkdown writes the card.
func (c *Card) WriteMarkdown(w io.Writer) error {
	runs := &tabular.Table{Columns: tabular.Left("model", "run", "how the model was made", "what was run")}
	for _, r := range c.Runs {
		runs.Rows = append(runs.Rows, []string{r.Model, r.Run, r.Made, "`" + r.Command + "`"})
	}
	parts := []any{"# " + c.Title, c.Intro, "## Runs", tabular.Document{runs}, "## Tables",
		"`step` joins the tables. A table has the same columns in all runs, but not every run has every table."}
	for _, t := range c.Tables {
		columns := &tabular.Table{Columns: tabular.Left("column", "type", "unit", "meaning")}
		for _, column := range t.Columns {
			columns.Rows = append(columns.Rows,
				[]string{"`" + column.Name + "`", column.Type, column.Unit, column.About})
		}
		parts = append(parts, fmt.Sprintf("### %s.parquet", t.Name), t.About, tabular.Document{columns})
	}
	parts = append(parts, "## Licence", c.Licence)
	for i, part := range parts {
		if i > 0 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		var err error
		switch part := part.(type) {
		case string:
			_, err = io.WriteString(w, strings.TrimSpace(part)+"\n")
		case tabular.Document:
			err = part.WriteMarkdown(w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// WriteArchive writes all files of a directory as a compressed archive (tar and gzip), below the directory root in it.
// Everybody may read them, and their time is the given one. The same files give the same bytes. It fails if there is
// something else than files and directories.
func WriteArchive(w io.Writer, dir, root string, at time.Time) error {
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error { // in alphabetical order
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", file)
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		data, err := os.Open(file)
		if err != nil {
			return err
		}
		defer data.Close()
		header := &tar.Header{Name: path.Join(root, filepath.ToSlash(name)), Size: info.Size(), Mode: 0o644,
			ModTime: at.UTC().Truncate(time.Second), Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err = io.Copy(archive, data)
		return err
	})
	if err != nil {
		return fmt.Errorf("archive %s: %w", dir, err)
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zipped.Close()
}
