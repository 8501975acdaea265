package cmd_test

// This file opens tables in polars and in pandas, with the command lines of docs/tables.md.

import (
	"context"
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

// nodeLine and pandasLine match the document's command lines that can be run. With pandas these are
// the lines that read CSV, because for other formats pandas needs a package that Debian does not
// have.
var (
	nodeLine   = regexp.MustCompile(`(?m)^ *(node -e ".*")$`)
	pandasLine = regexp.MustCompile(`(?m)^ *(python3 -c ".*read_csv.*")$`)
)

func TestDataFrames(t *testing.T) {
	testenv.NeedMachine(t)
	dir := t.TempDir()
	capture := filepath.Join(dir, tables.DefaultDir)
	if err := tracetest.Write(capture, tracetest.Options{}); err != nil {
		t.Fatal(err)
	}
	// run runs a line of a shell, with Debian's python3.
	run := func(t *testing.T, line string, env ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-c", strings.Replace(line, "python3 ", "/usr/bin/python3 ", 1))
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
	follow := func(t *testing.T, lines *regexp.Regexp, env ...string) {
		t.Helper()
		all := lines.FindAllSubmatch(page, -1)
		if len(all) != 2 {
			t.Fatalf("docs/tables.md shows %d lines, want 2", len(all))
		}
		for _, m := range all {
			if out := run(t, string(m[1]), env...); strings.Count(out, "\n") < 2 {
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
		follow(t, nodeLine, env)
	})
	t.Run("pandas", func(t *testing.T) {
		err := exec.Command("/usr/bin/python3", "-c", "import pandas").Run()
		if err != nil && os.Getenv("CI") == "" {
			t.Skip("no pandas here: apt-get install python3-pandas")
		}
		python := func(expression string) string {
			return run(t, `python3 -c "import pandas as pd; print(`+expression+`)"`)
		}
		got := python("pd.read_csv('analysis/layers.csv').read_bytes.sum()")
		if want := fmt.Sprint(ofContext); got != want {
			t.Errorf("bytes of all layers %s, want %s", got, want)
		}
		// Null values are read as missing.
		if got := python("pd.read_csv('analysis/rereads.csv').layer.isna().sum() > 0"); got != "True" {
			t.Errorf("there are tensors without a layer: %s, want True", got)
		}
		follow(t, pandasLine)
	})
}
