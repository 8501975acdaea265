package main

// This file tests which advice is added to which error.

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"tensorcast/capture/preload"
	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/trace"
)

// The errors of libraries name no flags, because other programs have other flags. tracer adds the
// flags that help.
func TestAdvice(t *testing.T) {
	flag := regexp.MustCompile(`(^|\s)--?[a-z]+`)
	for err, want := range map[error]string{
		event.ErrOldGGML:        "--detail graph",
		event.ErrNoBTF:          "--preload",
		event.ErrUserNamespace:  "--preload",
		event.ErrPIDNamespace:   "",
		event.ErrNoGGML:         "--follow",
		preload.ErrNoCompiler:   "without --preload",
		preload.ErrNotLoaded:    "without --preload",
		preload.ErrNoGraph:      "without --preload",
		preload.ErrOtherProcess: "--follow",
		trace.ErrOccupied:       "-o",
		event.ErrPermission:     "",
		event.ErrNoDecode:       "",
		event.ErrLost:           "--buffer",
		proc.ErrNoProcess:       "",
		proc.ErrForeignProc:     "",
	} {
		if found := flag.FindString(err.Error()); found != "" {
			t.Errorf("the library's error %v names the flag %s, want none", err, found)
		}
		var o options
		wrapped := fmt.Errorf("process 7: %w", err)
		got := o.advise(wrapped)
		if !errors.Is(got, err) || !strings.HasPrefix(got.Error(), wrapped.Error()) ||
			!strings.Contains(got.Error(), want) {
			t.Errorf("%v: with advice %q, want %q", err, got, want)
		}
		if want == "" && got != wrapped {
			t.Errorf("%v: with advice %q, want no advice", err, got)
		}
	}
	following := options{follow: true}
	if got := following.advise(event.ErrNoGGML); strings.Contains(got.Error(), "--follow") {
		t.Errorf("with --follow: %v, want no advice to add --follow", got)
	}
	if err := following.advise(nil); err != nil {
		t.Errorf("advise(nil) = %v, want nil", err)
	}
}

// Advice on how a process is to be started goes by its own command line, not by that of a shell that it was before.
func TestAdviseLoading(t *testing.T) {
	shell := []string{"sh", "-c", "exec llama-cli"}
	var libraries []string
	advise := (&options{}).adviseLoading(shell, func() []string { return libraries })
	if got := advise(shell); !strings.Contains(got, "with --no-repack") {
		t.Errorf("of the shell: %q, want --no-repack", got)
	}
	got := advise(strings.Fields("llama-cli -m m.gguf --no-repack --load-mode none"))
	if got != "start llama.cpp without --load-mode none" {
		t.Errorf("of what it became: %q, want only what is to be left out", got)
	}
	libraries = []string{"/env/lib/python3.11/site-packages/llama_cpp/lib/libggml-cpu.so"}
	if got := advise(strings.Fields("python3 ask.py")); !strings.Contains(got, "with use_mmap=True") {
		t.Errorf("of a Python with llama-cpp-python: %q, want its arguments", got)
	}
}
