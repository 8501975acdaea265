package ggml

// This file finds the libraries that a command is likely to load, and tells those for GPUs.

import (
	"debug/elf"
	"path/filepath"
	"slices"
	"strings"

	"tensorcast/internal/regular"
)

// LikelyLibraries lists the llama.cpp libraries that the dynamic loader finds for a program: next
// to it, in its run path and in LD_LIBRARY_PATH (env is its environment). With probes on them
// before the program loads them, the first token's events are not missed.
func LikelyLibraries(exe string, env []string) []string {
	dir := filepath.Dir(exe)
	dirs := []string{dir, filepath.Join(dir, "lib"), filepath.Join(dir, "..", "lib")}
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "LD_LIBRARY_PATH="); ok {
			dirs = append(dirs, filepath.SplitList(v)...)
		}
	}
	dirs = append(dirs, runPath(exe, dir)...)
	var files []string
	for _, d := range dirs {
		for _, pattern := range []string{"libggml*.so*", "libllama*.so*"} {
			found, err := filepath.Glob(filepath.Join(d, pattern))
			if err == nil {
				files = append(files, found...)
			}
		}
	}
	return files[:min(len(files), maxLikely)]
}

// maxLikely is how many libraries are looked at before a program has mapped them.
const maxLikely = 256

// runPath lists the directories of a program's run path, with $ORIGIN replaced by origin.
func runPath(exe, origin string) []string {
	file, err := regular.Open(exe)
	if err != nil {
		return nil
	}
	defer file.Close()
	f, err := OpenELF(file)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		entries, err := f.DynString(tag)
		if err != nil {
			continue
		}
		for _, e := range entries {
			for _, d := range filepath.SplitList(e) {
				d = strings.ReplaceAll(d, "${ORIGIN}", origin)
				dirs = append(dirs, strings.ReplaceAll(d, "$ORIGIN", origin))
			}
		}
	}
	return dirs
}

// gpus are ggml's libraries that keep weights in other memory than the processor's, by the word in their names
// (libggml-cuda.so).
var gpus = []string{
	"cuda", "hip", "musa", "vulkan", "sycl", "opencl", "cann", "webgpu", "metal", "rpc", "hexagon", "zdnn", "virtgpu",
}

// GPUOf returns the word for the GPUs that a library of ggml is for; "" if the path is not that of such a library.
func GPUOf(path string) string {
	rest, ok := strings.CutPrefix(filepath.Base(path), "libggml-")
	i := slices.IndexFunc(gpus, func(word string) bool {
		return strings.HasPrefix(rest, word+".") || strings.HasPrefix(rest, word+"-")
	})
	if !ok || i < 0 {
		return ""
	}
	return gpus[i]
}
