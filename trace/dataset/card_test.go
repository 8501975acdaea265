package dataset

// This file tests the data card and the archive.

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/trace/tables"
)

// Each column of each table has a description, with the name that it has in a data set, and there are no others.
func TestDescribe(t *testing.T) {
	c := open(t)
	o := Options{Hidden: true}
	all, err := Describe(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, table := range all {
		if table.About == "" || len(table.Columns) == 0 {
			t.Errorf("%+v, want what it is of, and columns", table)
		}
		for _, column := range table.Columns {
			described[table.Name+" "+column.Name], described[column.Name] = true, true
			if column.About == "" || column.Type == "" || strings.HasPrefix(column.Type, "[") ||
				column.Name == "model" {
				t.Errorf("%s: %+v", table.Name, column)
			}
			if unit := strings.HasSuffix(column.Name, "_bytes"); unit && column.Unit != "byte" {
				t.Errorf("%s: %+v, want bytes", table.Name, column)
			}
		}
	}
	for name, columns := range meanings {
		for column := range columns {
			if c.HasTable(name) && !described[name+" "+column] {
				t.Errorf("there is no column %s in %s", column, name)
			}
		}
	}
	for column := range common {
		if !described[column] {
			t.Errorf("no table has a column %s", column)
		}
	}
	card := Card{Title: "Captures", Intro: "What this is.", Licence: "Free.", Tables: MergeTables(nil, all),
		Runs: []CardRun{{"moe", "1", "It was trained.", "llamarun -n 4"}}}
	var text strings.Builder
	if err := card.WriteMarkdown(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Captures\n\nWhat this is.\n\n## Runs\n\n| model |", "### access.parquet\n\nEach row",
		"| `bytes_accessed` | int64 | byte | distinct bytes", "| `model_index` | int32 |", "## Licence\n\nFree.\n",
		"| moe | 1 | It was trained. | `llamarun -n 4` |"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the card does not say %q:\n%s", want, &text)
		}
	}
	if n := len(MergeTables(all, all)); n != len(all) {
		t.Errorf("%d tables of twice the same %d", n, len(all))
	}
}

// What others get does not say which disk it was.
func TestForOthers(t *testing.T) {
	c := open(t)
	c.Meta.Disk = &tables.Disk{Identity: "a serial number"}
	for others, want := range map[bool]string{false: "a serial number", true: ""} {
		columns, err := runColumns(t.Context(), c, Options{ForOthers: others})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(columns, func(c tables.Column) bool { return c.Name == "disk" })
		if got := columns[i].Values.([]string)[0]; got != want {
			t.Errorf("for others %v: %q, want %q", others, got, want)
		}
	}
}

// The same files give the same archive, whoever has them and since when.
func TestWriteArchive(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	pack := func(mode os.FileMode) []byte {
		dir := t.TempDir()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "b"), 0o700),
			os.WriteFile(filepath.Join(dir, "b", "c"), []byte("second"), mode),
			os.WriteFile(filepath.Join(dir, "a"), []byte("first"), mode)); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := WriteArchive(&b, dir, "top", at); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	data := pack(0o600)
	if again := pack(0o640); !bytes.Equal(data, again) {
		t.Error("two archives of the same files differ")
	}
	zipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(zipped)
	var got []string
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil || h.Mode != 0o644 || h.Uid != 0 || h.Uname != "" || !h.ModTime.Equal(at.Truncate(time.Second)) {
			t.Errorf("%v, %+v", err, h)
		}
		got = append(got, h.Name+" "+string(text))
	}
	if want := []string{"top/a first", "top/b/c second"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := WriteArchive(io.Discard, dir, "top", at); err == nil ||
		!strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a link: %v", err)
	}
}
