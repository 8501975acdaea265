package readahead

// This file names the BPF object of this build.

// Objects returns the BPF object files that this package loads, by name. The caller must not change them.
func Objects() map[string][]byte { return map[string][]byte{"mappings": _MappingsBytes} }
