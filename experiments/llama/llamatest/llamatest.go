// Package llamatest gives tests an installed llama.cpp and synthetic models.
package llamatest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/internal/testenv"
)

// ForTest returns the installed llama.cpp, as Get does. Without npm, gcc or a network there can be none.
func ForTest(t testing.TB) *llama.Installation {
	t.Helper()
	return Get(t, llama.Install)
}

// Get returns what install gets for a test: a directory or a program from a cache, or from the network. If this machine
// cannot have it (llama.ErrUnavailable), the test is skipped with the reason; in CI (the variable CI is set) it fails
// instead. It implies testenv.NeedMachine.
func Get[T any](t testing.TB, install func(context.Context) (T, error)) T {
	t.Helper()
	return get(t, install, os.Getenv("CI") == "")
}

// get returns what install gets. If this machine cannot have it, the test is skipped if it may be, and fails otherwise.
func get[T any](t testing.TB, install func(context.Context) (T, error), maySkip bool) T {
	t.Helper()
	testenv.NeedMachine(t)
	shareProcessors(t)
	// The timeout is for a network that drops packets.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	got, err := install(ctx)
	switch {
	case err == nil:
	case maySkip && errors.Is(err, llama.ErrUnavailable):
		t.Skip(err)
	default:
		t.Fatal(err)
	}
	return got
}

// shareProcessors makes llama.cpp's programs compute with one thread where they are not told how many. ggml's threads
// wait for each other in loops. Where another test has a processor, a target of two threads takes many times the
// processor time. A variable that is set already stays as it is.
func shareProcessors(t testing.TB) {
	t.Helper()
	const variable = "LLAMA_ARG_THREADS"
	if os.Getenv(variable) != "" {
		return
	}
	// It stays for the process: t.Setenv refuses tests that run beside others.
	if err := os.Setenv(variable, "1"); err != nil {
		t.Fatal(err)
	}
}
