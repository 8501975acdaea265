package main

// This file owns writing the table to a file: never over the model, and whole or not at all.

import (
	"fmt"
	"io"
	"os"

	"tensorcast/gguf"
	"tensorcast/internal/outfile"
)

// writeOutput writes data to the file at path, made from the models that the inputs name. A regular file is replaced in one step and
// keeps its mode, through symbolic links; anything else (a device, a pipe) is written to as it is.
func writeOutput(path string, inputs []string, models []*gguf.Model, data []byte) error {
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

	if err := outfile.Write(path, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}
