package readahead

// This file names the BPF object of this build.

// Objects returns the BPF object files that this package loads, by name. They are not to be changed.
func Objects() map[string][]byte { return map[string][]byte{"mappings": _MappingsBytes} }
