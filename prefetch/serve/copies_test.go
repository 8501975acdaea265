package serve

// This file tests the advice on how a target is to be started.

import (
	"strings"
	"testing"
)

// The advice leaves out what the target's command line has already, and names what is to be left out of it.
func TestAdviseMapped(t *testing.T) {
	for line, want := range map[string]string{
		"llama-cli -m m.gguf --no-repack --load-mode none": "start llama.cpp without --load-mode none",
		"llama-cli -m m.gguf --load-mode none":             "start llama.cpp with --no-repack, and without --load-mode none",
		"llama-cli -m m.gguf":                              "start llama.cpp with --no-repack, and with --load-mode mmap",
		"":                                                 "start llama.cpp with --no-repack, and with --load-mode mmap",
	} {
		s := server{words: strings.Fields(line)}
		if got := s.adviseMapped(); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
