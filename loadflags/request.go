package loadflags

// This file reads from a command line and an environment how a program was asked to load its weights.

import "strings"

// Request is how a program was asked to load its weights.
type Request struct {
	Unmapped []string // what asks it to read weights into memory of its own, as it was written
	Locked   []string // what asks it to lock them in memory, as it was written
	InLayout bool     // it was asked to leave weights in the layout of the file
}

// A setting is a flag or a variable that changes how weights are loaded.
type setting struct {
	flags    []string
	env      string // "" if there is none
	hasValue bool   // the flag has a word behind it
	apply    func(r *Request, f features, value, written string)
}

// settings are those of programs that read flags as llama-server does. Their variables are read in this order.
var settings = []setting{
	{flags: []string{"--no-repack", "-nr"}, env: "LLAMA_ARG_NO_REPACK", apply: applyInLayout},
	{flags: []string{"--repack"}, env: "LLAMA_ARG_REPACK", apply: applyRepack},
	{flags: []string{"--mlock"}, env: "LLAMA_ARG_MLOCK", apply: applyLock},
	{flags: []string{"--mmap"}, env: "LLAMA_ARG_MMAP", apply: applyMap},
	{flags: []string{"--no-mmap"}, env: "LLAMA_ARG_NO_MMAP", apply: applyNoMap},
	{flags: []string{"--direct-io", "-dio"}, env: "LLAMA_ARG_DIO", apply: applyDirect},
	{flags: []string{"--load-mode", "-lm"}, env: "LLAMA_ARG_LOAD_MODE", hasValue: true, apply: applyMode},
}

// benchSettings are those of llama-bench.
var benchSettings = []setting{
	{flags: []string{"--load-mode", "-lm"}, hasValue: true, apply: applyModes},
	{flags: []string{"--mmap", "-mmp"}, hasValue: true, apply: applyMap},
	{flags: []string{"--direct-io", "-dio"}, hasValue: true, apply: applyDirect},
}

func applyMode(r *Request, _ features, value, written string) {
	r.Unmapped, r.Locked = nil, nil // it decides alone
	switch value {
	case "none", "dio":
		r.Unmapped = []string{written}
	case "mlock":
		r.Unmapped, r.Locked = []string{written}, []string{written}
	case "mmap+mlock":
		r.Locked = []string{written}
	}
}

// applyModes takes several modes, which llama-bench tries one after the other.
func applyModes(r *Request, f features, value, written string) {
	var all Request
	for mode := range strings.SplitSeq(value, ",") {
		var one Request
		applyMode(&one, f, mode, written)
		if len(one.Unmapped) > 0 {
			all.Unmapped = one.Unmapped
		}
		if len(one.Locked) > 0 {
			all.Locked = one.Locked
		}
	}
	r.Unmapped, r.Locked = all.Unmapped, all.Locked
}

func applyMap(r *Request, f features, value, written string) {
	if isFalse(value) {
		applyNoMap(r, f, value, written)
		return
	}
	r.Unmapped = nil
	if f.has(loadMode) {
		r.Locked = nil
	}
}

func applyNoMap(r *Request, f features, _, written string) {
	if f.has(loadMode) { // the flags are names of modes there, of which the last one counts
		r.Unmapped, r.Locked = nil, nil
	}
	r.Unmapped = append(r.Unmapped, written)
}

func applyDirect(r *Request, f features, value, written string) {
	if !isFalse(value) {
		applyNoMap(r, f, value, written)
	}
}

func applyLock(r *Request, f features, value, written string) {
	switch {
	case isFalse(value):
	case f.has(loadMode):
		applyMode(r, f, "mlock", written)
	default:
		r.Locked = append(r.Locked, written)
	}
}

func applyInLayout(r *Request, _ features, _, _ string) { r.InLayout = true }

func applyRepack(r *Request, _ features, value, _ string) { r.InLayout = isFalse(value) }

// isFalse reports whether a value turns a setting off. Of several that llama-bench tries, one is enough.
func isFalse(value string) bool {
	for v := range strings.SplitSeq(value, ",") {
		switch v {
		case "0", "off", "false", "disabled", "no":
			return true
		}
	}
	return false
}

// parseRequest reads a command line and an environment. Flags count more than variables.
func parseRequest(f features, command, env []string) (r Request) {
	known := settings
	switch {
	case f.has(pythonServer):
		known = pythonSettings
	case f.has(pythonLibrary):
		return Request{} // a script loads the model, and neither words nor variables say how
	case f.has(benchUsage):
		known, env = benchSettings, nil
	}
	if f.has(pythonServer) {
		r.Locked = []string{"its default"}
	}
	for _, s := range known {
		for _, kv := range env {
			if name, value, _ := strings.Cut(kv, "="); name == s.env {
				s.apply(&r, f, value, kv+" in its environment")
			}
		}
	}
	for i := 1; i < len(command); i++ {
		if command[i] == "--" {
			break
		}
		name, value, joined := strings.Cut(command[i], "=")
		if strings.HasPrefix(name, "--") {
			name = strings.ReplaceAll(name, "_", "-")
		}
		s, ok := findSetting(known, name)
		if !ok {
			continue
		}
		written := command[i]
		if s.hasValue && !joined && i+1 < len(command) {
			i++
			value, written = command[i], written+" "+command[i]
		}
		s.apply(&r, f, value, written)
	}
	return r
}

// findSetting returns the setting with a flag.
func findSetting(known []setting, flag string) (setting, bool) {
	for _, s := range known {
		for _, name := range s.flags {
			if name == flag {
				return s, true
			}
		}
	}
	return setting{}, false
}
