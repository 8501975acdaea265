package main

// This file writes the table to a file, completely or not at all, and never over the model.

import (
	"fmt"
	"io"
	"os"

	"tensorcast/gguf"
	"tensorcast/internal/outfile"
)

// writeOutput writes the file at path with write. It refuses to overwrite a file of the models. A
// regular file is replaced atomically and keeps its mode. Symbolic links are followed. Anything
// else (a device, a pipe) is written directly.
func writeOutput(path string, inputs []string, models []*gguf.Model, write func(io.Writer) error) error {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		for _, m := range models {
			for _, f := range m.Files {
				inputs = append(inputs, f.Path)
			}
		}
		for _, input := range inputs {
			if in, err := os.Stat(input); err == nil && os.SameFile(in, info) {
				return fmt.Errorf("write the table: %s is the model itself", path)
			}
		}
	}

	if err := outfile.Write(path, write); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}
