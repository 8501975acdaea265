package cmd_test

// This file opens tables in polars for Node, and in pandas, pyarrow, polars and DuckDB for Python, with the command
// lines of docs/tables.md.

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/tables"
	"tensorcast/trace/tracetest"
)

// nodeLine and pythonLine match the document's command lines.
var (
	nodeLine   = regexp.MustCompile(`(?m)^ *(node -e ".*")$`)
	pythonLine = regexp.MustCompile(`(?m)^ *(python3 -c ".*")$`)
)

func TestDataFrames(t *testing.T) {
	testenv.NeedMachine(t)
	dir := t.TempDir()
	capture := filepath.Join(dir, tables.DefaultDir)
	if err := tracetest.Write(capture, tracetest.Options{}); err != nil {
		t.Fatal(err)
	}
	// run runs a line of a shell.
	run := func(t *testing.T, line string, env ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-c", line)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run(t, bin["analyze"]+" --all --export")
	c, err := trace.Open(capture)
	if err != nil {
		t.Fatal(err)
	}
	var rows, read, experts, ofContext int64
	for a, err := range c.Accesses() {
		if err != nil {
			t.Fatal(err)
		}
		rows++
		read += a.Bytes
		experts += int64(len(a.Experts))
		if a.Context == 0 {
			ofContext += a.Bytes
		}
	}
	page, err := os.ReadFile(filepath.Join("..", "docs", "tables.md"))
	if err != nil {
		t.Fatal(err)
	}
	follow := func(t *testing.T, count int, lines *regexp.Regexp, in func(line string) string, env ...string) {
		t.Helper()
		all := lines.FindAllSubmatch(page, -1)
		if len(all) != count {
			t.Fatalf("docs/tables.md shows %d lines, want %d", len(all), count)
		}
		for _, m := range all {
			if out := run(t, in(string(m[1])), env...); strings.Count(out, "\n") < 2 {
				t.Errorf("%s: %q", m[1], out)
			}
		}
	}
	t.Run("polars", func(t *testing.T) {
		env := "NODE_PATH=" + llamatest.Get(t, llama.Polars)
		want := fmt.Sprintf("%d %d %d", rows, read, experts)
		for _, table := range []string{
			`readParquet("analysis/access.parquet")`,
			`readIPCStream(require("fs").readFileSync("tracer.capture/access.arrows"))`,
		} {
			got := run(t, `node -e 'const pl = require("nodejs-polars"), t = pl.`+table+`; `+
				`console.log(t.height, Number(t.getColumn("bytes_accessed").sum()), `+
				`t.select("experts").explode("experts").dropNulls().height)'`, env)
			if got != want || experts == 0 {
				t.Errorf("%s: rows, bytes and experts %s, want %s", table, got, want)
			}
		}
		for _, table := range trace.TableNames() {
			got := run(t, `node -e 'console.log(`+
				`require("nodejs-polars").readParquet("analysis/`+table+`.parquet").height > 0)'`, env)
			if got != "true" {
				t.Errorf("%s has rows: %s, want true", table, got)
			}
		}
		follow(t, 2, nodeLine, func(line string) string { return line }, env)
	})
	t.Run("python", func(t *testing.T) {
		python := llamatest.Python(t)
		in := func(line string) string { return strings.Replace(line, "python3 ", python+" ", 1) }
		frame := func(expression string) string {
			return run(t, in(`python3 -c "import pandas as pd; print(`+expression+`)"`))
		}
		got := frame("pd.read_csv('analysis/layers.csv').read_bytes.sum()")
		if want := fmt.Sprint(ofContext); got != want {
			t.Errorf("bytes of all layers %s, want %s", got, want)
		}
		// Null values are read as missing.
		if got := frame("pd.read_csv('analysis/rereads.csv').layer.isna().sum() > 0"); got != "True" {
			t.Errorf("there are tensors without a layer: %s, want True", got)
		}
		follow(t, 4, pythonLine, in)

		script, err := filepath.Abs(filepath.Join("testdata", "readers.py"))
		if err != nil {
			t.Fatal(err)
		}
		var tables map[string]int
		out := run(t, in("python3 "+script+" tracer.capture analysis"))
		if err := json.Unmarshal([]byte(out), &tables); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, name := range trace.TableNames() {
			if tables[name] == 0 {
				t.Errorf("%s has no rows: %s", name, out)
			}
		}
		out = run(t, in("python3 "+filepath.Join(filepath.Dir(script), "..", "..", "docs", "examples", "rereads.py")))
		want, err := c.Rereads(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		top := want.Tensors[0]
		line := fmt.Sprintf(`(?m)^ *%d +%s +%d `, top.Model, regexp.QuoteMeta(top.Name), top.RereadBytes)
		if top.RereadBytes == 0 || !regexp.MustCompile(line).MatchString(out) {
			t.Errorf("want %d bytes of %s that were read again:\n%s", top.RereadBytes, top.Name, out)
		}
		for _, name := range []string{"csv layers", "csv pattern", "csv rereads"} {
			if tables[name] == 0 {
				t.Errorf("%s has no rows: %s", name, out)
			}
		}
	})
}
