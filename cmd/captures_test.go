package cmd_test

// This file makes the data set of captures for others with a real llama.cpp, and reads it as others do.

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
)

// The archive has each run with all tables, a card that describes exactly these, and nothing that names a path or this
// machine.
func TestCaptures(t *testing.T) {
	testenv.NeedRoot(t)
	llamatest.ForTest(t)
	dir := t.TempDir()
	cmd := exec.Command(bin["lab"], "dataset", "-o", "captures.tar.gz", "-n", "3", "--trained", "none")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(bin["tracer"])+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Count(string(out), "is left out") != 2 {
		t.Errorf("%s; want that two trained models are not there", out)
	}
	files := unpack(t, filepath.Join(dir, "captures.tar.gz"), dir)
	card, err := os.ReadFile(filepath.Join(dir, "tensorcast-captures", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]bool{}
	for _, name := range files {
		if filepath.Ext(name) != ".parquet" {
			continue
		}
		columns, texts := readParquet(t, filepath.Join(dir, name))
		table := filepath.Base(name)
		tables[table] = true
		if got := describedColumns(string(card), table); !slices.Equal(got, columns) {
			t.Errorf("%s has the columns %q, and the card describes %q", name, columns, got)
		}
		for _, text := range texts {
			checkNoMachine(t, name, text)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^### `).FindAll(card, -1)); n != len(tables) || !tables["pagein.parquet"] ||
		!tables["route.parquet"] || !tables["hidden.parquet"] {
		t.Errorf("the card describes %d tables, and there are %v", n, tables)
	}
	for _, line := range strings.Split(string(card), "\n") {
		checkNoMachine(t, "README.md", line)
	}
	t.Run("loader", func(t *testing.T) { runLoader(t, filepath.Join(dir, "tensorcast-captures")) })
}

// unpack unpacks an archive, and lists its files.
func unpack(t *testing.T, archive, to string) (names []string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil || h.Uname != "" || h.Gname != "" || h.ModTime.Unix() != 0 || !filepath.IsLocal(h.Name) {
			t.Fatalf("%v, %+v; want neither owner nor time", err, h)
		}
		data, err := io.ReadAll(r)
		path := filepath.Join(to, h.Name)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

// readParquet returns the names of a file's columns, and all different texts in them.
func readParquet(t *testing.T, path string) (columns, texts []string) {
	t.Helper()
	r, err := file.OpenParquetFile(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := range r.MetaData().KeyValueMetadata().Len() {
		texts = append(texts, r.MetaData().KeyValueMetadata().Values()[i])
	}
	a, err := pqarrow.NewFileReader(r, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	table, err := a.ReadTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	for i := range int(table.NumCols()) {
		columns = append(columns, table.Schema().Field(i).Name)
		for _, chunk := range table.Column(i).Data().Chunks() {
			if values, ok := chunk.(*array.String); ok {
				for row := range values.Len() {
					texts = append(texts, values.Value(row))
				}
			}
		}
	}
	slices.Sort(texts)
	return columns, slices.Compact(texts)
}

// describedColumns are the columns that a data card describes for a table.
func describedColumns(card, table string) (names []string) {
	_, section, _ := strings.Cut(card, "### "+table+"\n")
	section, _, _ = strings.Cut(section, "\n#")
	for _, found := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(section, -1) {
		names = append(names, found[1])
	}
	return names
}

// aPath is a path from the root.
var aPath = regexp.MustCompile(`(^|[\s"'=(:,])/[\w.]`)

// checkNoMachine checks that a text names neither a path nor this machine, nor who uses it.
func checkNoMachine(t *testing.T, where, text string) {
	t.Helper()
	if aPath.MatchString(text) {
		t.Errorf("%s has a path: %q", where, text)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`\b` + regexp.QuoteMeta(host) + `\b`).MatchString(text) {
		t.Errorf("%s has the name of this machine: %q", where, text)
	}
	for _, variable := range []string{"HOME", "SUDO_USER"} {
		if value := os.Getenv(variable); len(value) > 3 && strings.Contains(text, value) {
			t.Errorf("%s has %s: %q", where, variable, text)
		}
	}
}

// runLoader runs the example of how to read the data set.
func runLoader(t *testing.T, set string) {
	out, err := exec.Command(llamatest.Python(t), filepath.Join(set, "load.py")).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) != 2 ||
		!strings.HasPrefix(lines[0], "model=synthetic-dense run=memory-0.5: 3 tokens, ") ||
		!strings.Contains(lines[1], "; most used is expert ") || !strings.Contains(lines[1], " hidden states") {
		t.Errorf("%v: %s; want a line for each run", err, out)
	}
}
