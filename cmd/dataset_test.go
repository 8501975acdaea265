package cmd_test

// This file reads the runs of many machines as one data set, in DuckDB and in Spark, as docs/fleet.md says.

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
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/dataset"
	"tensorcast/trace/tables"
	"tensorcast/trace/tracetest"
)

const (
	manyRuns   = 100
	manyModels = 4
)

// appendRuns appends one capture under many names to the data set "runs" in a directory: the first by the command. It
// returns how many tokens it generated, and how many rows its table of accesses has.
func appendRuns(t *testing.T, dir string) (tokens, accesses int64) {
	t.Helper()
	capture := filepath.Join(dir, "tracer.capture")
	if err := tracetest.Write(capture, tracetest.Options{}); err != nil {
		t.Fatal(err)
	}
	c, err := trace.Open(capture)
	if err != nil {
		t.Fatal(err)
	}
	for i := range manyRuns {
		o := dataset.Options{Model: fmt.Sprintf("model %d", i%manyModels), Run: fmt.Sprintf("machine-%03d", i)}
		if i > 0 {
			if _, err := dataset.Append(t.Context(), filepath.Join(dir, "runs"), c, o); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for _, again := range []bool{false, true} {
			cmd := exec.Command(bin["analyze"], "export", "--dataset", "runs", "--run", o.Run, "--model", o.Model)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if text := string(out); (err != nil) != again || !strings.Contains(text, map[bool]string{
				false: "appended the run machine-000 of model_0 to runs: 7 tables", true: "--replace",
			}[again]) || strings.Count(text, "\n") != 1 {
				t.Fatalf("analyze export, again: %v: %v\n%s", again, err, text)
			}
		}
	}
	for s, err := range c.Steps() {
		if err != nil {
			t.Fatal(err)
		}
		if s.Phase == tables.PhaseGeneration {
			tokens += int64(s.Tokens)
		}
	}
	for _, err := range c.Accesses() {
		if err != nil {
			t.Fatal(err)
		}
		accesses++
	}
	if tokens == 0 || accesses == 0 {
		t.Fatalf("the capture has %d tokens and %d accesses, want some", tokens, accesses)
	}
	return tokens, accesses
}

// fleetPage is the document whose queries are run.
func fleetPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "fleet.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// One query reads all runs of a data set, and knows the model and the name of each.
func TestDataset(t *testing.T) {
	testenv.NeedMachine(t)
	dir := t.TempDir()
	tokens, accesses := appendRuns(t, dir)
	t.Run("duckdb", func(t *testing.T) { queryInDuckDB(t, dir, tokens, accesses) })
	t.Run("spark", func(t *testing.T) { queryInSpark(t, dir, tokens) })
}

// queryInDuckDB asks DuckDB, also what docs/fleet.md asks.
func queryInDuckDB(t *testing.T, dir string, tokens, accesses int64) {
	program := duckDB(t)
	query := func(sql string) string {
		t.Helper()
		cmd := exec.Command(program, sql)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", sql, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for _, tt := range []struct{ sql, want string }{
		{
			"SELECT count(*), count(DISTINCT model), count(DISTINCT run), sum(generation_tokens)::BIGINT " +
				"FROM read_parquet('runs/*/*/run.parquet', hive_partitioning = true)",
			fmt.Sprintf("%d|%d|%d|%d", manyRuns, manyModels, manyRuns, manyRuns*tokens),
		},
		{
			"SELECT count(*) FROM read_parquet('runs/*/*/access.parquet', hive_partitioning = true) WHERE model = 'model_1'",
			fmt.Sprint(accesses * manyRuns / manyModels),
		},
		{ // the number of a model in its capture is another column than the partition's
			"SELECT DISTINCT model_index FROM read_parquet('runs/*/*/access.parquet', hive_partitioning = true) ORDER BY 1",
			"0\n1",
		},
	} {
		if got := query(tt.sql); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.sql, got, tt.want)
		}
	}
	lines := oneLiner.FindAllStringSubmatch(fleetPage(t), -1)
	if len(lines) < 2 {
		t.Fatalf("docs/fleet.md has %d queries, want at least 2", len(lines))
	}
	for _, m := range lines {
		if got := query(m[1]); strings.Count(got, "\n") < 1 {
			t.Errorf("%s: %q, want some rows", m[1], got)
		}
	}
}

// sparkProgram matches the program of Spark in the document, which prints one row for each model.
var sparkProgram = regexp.MustCompile("(?s)```python\n(.*?)```")

// queryInSpark runs the program that docs/fleet.md shows, if the variable SPARK is set: it takes a Java, half a minute
// and, the first time, 320 MB. `make spark` sets it, and installs what is missing.
func queryInSpark(t *testing.T, dir string, tokens int64) {
	if os.Getenv("SPARK") == "" {
		t.Skip("it takes half a minute and a Java: make spark runs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	python, err := llama.Spark(ctx)
	if err != nil {
		t.Fatal(err)
	}
	program := sparkProgram.FindStringSubmatch(fleetPage(t))
	if program == nil {
		t.Fatal("docs/fleet.md has no program of Python")
	}
	file := filepath.Join(dir, "query.py")
	if err := os.WriteFile(file, []byte(program[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, python, file)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	cmd.Env = append(os.Environ(), "SPARK_LOCAL_IP=127.0.0.1", "PYSPARK_PYTHON="+python)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	for i := range manyModels {
		want := fmt.Sprintf(`(?m)^\|\s*model_%d\|\s*%d\|\s*%d\|`, i, manyRuns/manyModels, tokens*manyRuns/manyModels)
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("no row %s in\n%s", want, out)
		}
	}
}
