package loadflags

// This file knows llama-cpp-python: how its processes are told from others, and what its server reads. Its arguments
// are those of its class Llama. The server takes each as a flag with a value and as a variable, in capitals.

import (
	"path/filepath"
	"slices"
	"strings"
)

// pythonSettings are those of llama_cpp.server. With an adapter (LoRA) it maps nothing.
var pythonSettings = []setting{
	{flags: []string{"--use-mlock"}, env: "USE_MLOCK", hasValue: true, apply: applyPythonLock},
	{flags: []string{"--use-mmap"}, env: "USE_MMAP", hasValue: true, apply: applyPythonMap},
	{flags: []string{"--lora-path"}, env: "LORA_PATH", hasValue: true, apply: applyNoMap},
}

func applyPythonLock(r *Request, _ features, value, written string) {
	r.Locked = nil
	if !isFalsePython(value) {
		r.Locked = []string{written}
	}
}

func applyPythonMap(r *Request, _ features, value, written string) {
	r.Unmapped = slices.DeleteFunc(r.Unmapped, func(other string) bool {
		return !strings.Contains(strings.ToLower(other), "lora_path") // which counts, whatever this says
	})
	if isFalsePython(value) {
		r.Unmapped = append(r.Unmapped, written)
	}
}

// isFalsePython reports whether a value is one that the server takes for false.
func isFalsePython(value string) bool {
	return slices.Contains([]string{"0", "off", "f", "false", "n", "no"}, strings.ToLower(strings.TrimSpace(value)))
}

// isOfPython reports whether a library is one of those that llama-cpp-python brings: they lie in a directory of its
// package, which is called llama_cpp.
func isOfPython(path string) bool {
	return slices.Contains(strings.Split(filepath.Dir(path), "/"), "llama_cpp")
}

// pythonFeatures returns what a program with this command line understands. mapped says that it has mapped libraries
// of llama-cpp-python. What a file of settings says (--config_file) is not known, nor what a script does.
func pythonFeatures(mapped bool, command []string) features {
	for i, word := range command {
		isServer := word == "llama_cpp.server" && i > 0 && command[i-1] == "-m" ||
			strings.HasPrefix(word, "llama_cpp.server.app:") // as uvicorn starts it
		switch {
		case !isServer:
		case slices.ContainsFunc(command, func(w string) bool { return strings.HasPrefix(w, "--config_file") }):
			return pythonLibrary
		default:
			return pythonServer
		}
	}
	if mapped {
		return pythonLibrary
	}
	return 0
}
