// Package loadflags owns the words of advice on how llama.cpp loads its weights: which flag, variable or field
// changes what, for the program that is advised.
//
// Programs differ. Newer ones have --load-mode, older ones --no-mmap and --mlock, and in between some have both.
// llama-bench reads its flags itself. A program that calls libllama has none of them, and llama-cpp-python has words of
// its own. Which it is, is found out from texts in the program's files and from where they lie, never from a version.
// What is not known is said for each kind.
package loadflags

// This file defines what is known of a program, and finds it out.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/procfs"

	"tensorcast/ggml"
	"tensorcast/internal/proc"
)

// Program is what is known of a program that loads a model, or is to load one. The zero value is a program of which
// nothing is known.
type Program struct {
	features features
	request  Request
	running  bool
	starter  string // the program that starts it with flags of its own choice; "" if none is known
	builtFor types  // the types that its libraries can copy to another layout
	gpu      bool   // it has a library of ggml for a GPU
	python   bool   // it maps the libraries of llama-cpp-python
}

// OfProcess finds out about a running process. What may not be read is not known.
func OfProcess(pid int) Program {
	p := Program{running: true, starter: starterOf(pid)}
	var files []string
	if mapped, err := proc.Mappings(pid); err == nil {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			exe = "" // it is ending
		}
		for _, m := range mapped {
			// A host maps many libraries that tell nothing, and reading them takes memory.
			name := filepath.Base(m.Path)
			if m.Executable && (m.Path == exe || strings.Contains(name, "llama") || strings.Contains(name, "ggml")) {
				files = append(files, m.Locate(pid).Path)
				p.python = p.python || isOfPython(m.Path)
			}
		}
	}
	env, err := proc.Environ(pid)
	if err != nil {
		env = nil // it belongs to somebody else
	}
	p.read(files, proc.CommandLine(pid), env)
	return p
}

// OfCommand finds out about a command that does not run, which would have this environment. If it ran before, libraries
// are files that it was seen to map.
func OfCommand(command, env []string, libraries ...string) Program {
	p := Program{python: slices.ContainsFunc(libraries, isOfPython)}
	var files []string
	if len(command) > 0 {
		if exe, err := exec.LookPath(command[0]); err == nil {
			if real, err := filepath.EvalSymlinks(exe); err == nil {
				exe = real // as the dynamic loader resolves $ORIGIN
			}
			files = linkedFiles(exe, ggml.LikelyLibraries(exe, env))
		}
	}
	p.read(files, command, env)
	return p
}

// OfWords finds out what a command line says of itself, and the paths of libraries that the program was seen to map.
// Its files are not looked at.
func OfWords(command []string, libraries ...string) Program {
	p := Program{python: slices.ContainsFunc(libraries, isOfPython)}
	p.read(nil, command, nil)
	return p
}

// read reads files, a command line and an environment.
func (p *Program) read(files, command, env []string) {
	found := searchFiles(files)
	p.builtFor = found.types
	p.gpu = slices.ContainsFunc(files, func(path string) bool { return ggml.GPUOf(path) != "" })
	p.features = found.features
	p.features |= pythonFeatures(p.python, command)
	if p.features.has(benchUsage) && len(command) > 0 {
		name := filepath.Base(command[0])
		// One program may hold all tools. Then its first argument says which.
		if name == "llama" && !(len(command) > 1 && command[1] == "bench") {
			p.features &^= benchUsage
		}
	}
	p.request = parseRequest(p.features, command, env)
}

// Request is how the program was asked to load its weights.
func (p Program) Request() Request { return p.request }

// starters are programs that start a llama.cpp with flags of their own choice and their own environment, by the name
// that the kernel shows.
var starters = []string{"ollama", "llama-swap", "local-ai", "llama-server"}

// starterOf returns the name of the program that has started a process, if it is one of starters.
func starterOf(pid int) string {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return ""
	}
	stat, err := p.Stat()
	if err != nil {
		return ""
	}
	parent, err := procfs.NewProc(stat.PPID)
	if err != nil {
		return ""
	}
	name, err := parent.Comm()
	if err != nil || !slices.Contains(starters, strings.TrimSpace(name)) {
		return ""
	}
	return strings.TrimSpace(name)
}
