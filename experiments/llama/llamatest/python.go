package llamatest

// This file gets what comes from Python's package index.

import (
	"context"
	"errors"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/internal/testenv"
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

// fromIndex returns what get gets from Python's package index. The test is skipped with the reason where that is not
// possible, in CI too: packages there may be withdrawn by those who made them, which must not stop work on anything
// else. It implies testenv.NeedMachine.
func fromIndex[T any](t testing.TB, get func(context.Context) (T, error)) T {
	t.Helper()
	testenv.NeedMachine(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // for a network that drops packets
	defer cancel()
	got, err := get(ctx)
	if errors.Is(err, llama.ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return got
}
