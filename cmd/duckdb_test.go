package cmd_test

// This file opens exported tables in a real DuckDB, with the queries of docs/tables.md.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/trace"
	"tensorcast/trace/tables"
	"tensorcast/trace/tracetest"
)

// duckDB returns a program that runs SQL queries.
func duckDB(t *testing.T) string {
	t.Helper()
	lib := llamatest.Get(t, llama.DuckDB)
	program := filepath.Join(t.TempDir(), "duckdb")
	cmd := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-o", program,
		filepath.Join("testdata", "duckdb.c"), filepath.Join(lib, "libduckdb.so"), "-Wl,-rpath,"+lib)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// oneLiner matches a query in docs/tables.md.
var oneLiner = regexp.MustCompile("(?m)^ *duckdb -c \"(.*)\"")

func TestDuckDB(t *testing.T) {
	program := duckDB(t)
	dir := t.TempDir()
	if err := tracetest.Write(filepath.Join(dir, tables.DefaultDir), tracetest.Options{Segments: 2}); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run(bin["analyze"], "--export")
	// Each table has the rows of the capture.
	c, err := trace.Open(filepath.Join(dir, tables.DefaultDir))
	if err != nil {
		t.Fatal(err)
	}
	var rows, experts, bytes int64
	for a, err := range c.Accesses() {
		if err != nil {
			t.Fatal(err)
		}
		rows++
		bytes += a.Bytes
		experts += int64(len(a.Experts))
	}
	query := func(sql string) string { return strings.TrimSpace(run(program, sql)) }
	want := query("SELECT " + fmt.Sprint(rows) + ", " + fmt.Sprint(bytes) + ", " + fmt.Sprint(experts))
	got := query("SELECT count(*), sum(bytes_accessed), sum(len(experts)) FROM 'analysis/access.parquet'")
	if got != want || rows == 0 || experts == 0 {
		t.Errorf("access: %s, want %s and no 0", got, want)
	}
	for _, table := range trace.TableNames() {
		if got := query("SELECT count(*) > 0 FROM 'analysis/" + table + ".parquet'"); got != "true" {
			t.Errorf("%s has rows: %s, want true", table, got)
		}
	}
	for _, tc := range []struct{ sql, want string }{
		{
			"SELECT count(*) - count(tensor_name), count(tensor_name) > 0 FROM 'analysis/pagein.parquet' " +
				"WHERE file = 'moe.gguf' AND expert = -1 AND cause = 'readahead'",
			fmt.Sprint(countNameless(t, c)) + "|false\n",
		},
		{
			"SELECT shape::VARCHAR, expert_stride_bytes FROM 'analysis/structure.parquet' " +
				"WHERE tensor_name = 'blk.0.ffn_up_exps.weight'",
			"[20, 50, 8]|1000\n",
		},
		{
			"SELECT typeof(data_ptr), typeof(duration_ns), typeof(experts) FROM 'analysis/access.parquet' LIMIT 1",
			"UBIGINT|BIGINT|INTEGER[]\n",
		},
	} {
		if got := run(program, tc.sql); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.sql, got, tc.want)
		}
	}
	// The queries of the document.
	page, err := os.ReadFile(filepath.Join("..", "docs", "tables.md"))
	if err != nil {
		t.Fatal(err)
	}
	queries := oneLiner.FindAllSubmatch(page, -1)
	if len(queries) < 3 {
		t.Fatalf("docs/tables.md has %d queries, want at least 3", len(queries))
	}
	for _, q := range queries {
		if out := run(program, string(q[1])); strings.Count(out, "\n") < 1 {
			t.Errorf("%s: no rows, want some", q[1])
		}
	}
}

// countNameless counts the page-ins outside all tensors.
func countNameless(t *testing.T, c *trace.Capture) (n int64) {
	t.Helper()
	for r, err := range c.PageIns() {
		if err != nil {
			t.Fatal(err)
		}
		if r.Tensor < 0 {
			n++
		}
	}
	return n
}
