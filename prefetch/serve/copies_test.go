package serve

// This file tests what is said of a target that will copy more of its model than there is memory. How that is found
// out about a real one is tested in cmd/prefetchd.

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/gguf/gguftest"
	"tensorcast/loadflags"
	"tensorcast/prefetch/room"
)

// The kernel ends a process at a limit only if that is no memory.high.
func TestWarningOfCopies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	gguftest.MoE(2, 4).Write(t, path)
	for name, tc := range map[string]struct {
		free room.Room
		want string // a part of the warning; "" if there is none
	}{
		"the machine":    {room.Room{Level: room.LevelHost}, "this machine leaves it 0 B: the kernel will end it"},
		"memory.max":     {room.Room{Level: "/a memory.max"}, "(/a memory.max, 0 B) leaves it 0 B: the kernel will end it"},
		"memory.high":    {room.Room{Level: "/a memory.high", Delays: true}, "0 B: the kernel will delay each"},
		"there is room":  {room.Room{Level: "/a memory.max", Bytes: 1 << 40}, ""},
		"below high, it": {room.Room{Level: "/a memory.high", Bytes: 1 << 40, Delays: true}, ""},
	} {
		var log bytes.Buffer
		s := &server{opts: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
		s.warnOfCopies(path, tc.free, func() loadflags.Program {
			return loadflags.OfCommand([]string{"llama-cli", "--no-mmap"}, nil)
		})
		if got := log.String(); !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf("%s: want %q in %q", name, tc.want, got)
		}
	}
}

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

// Of a target that the kernel ended it is said what takes its memory: locks that it asked for, or copies.
func TestAdviseLess(t *testing.T) {
	const python = "/env/lib/python3.11/site-packages/llama_cpp/lib/libllama.so"
	for line, want := range map[string]string{
		"llama-cli -m m.gguf --no-mmap": "so that weights are not copied when they are loaded, start llama.cpp with " +
			"--no-repack, and without --no-mmap",
		"llama-cli -m m.gguf --mlock": "so that it does not lock its model in memory, start llama.cpp without --mlock",
		"python3 -m llama_cpp.server --model m.gguf": "so that it does not lock its model in memory, start " +
			"llama_cpp.server with --use_mlock false",
		"python3 -m llama_cpp.server --model m.gguf --use_mlock false": "so that weights are not copied when they are " +
			"loaded, llama-cpp-python has no argument against copies",
	} {
		s := server{words: strings.Fields(line), libraries: []string{python}}
		if !strings.HasPrefix(line, "python3") {
			s.libraries = nil
		}
		if got := s.adviseLess(); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
