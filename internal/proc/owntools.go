package proc

// This file recognises the project's own programs.

import (
	"debug/buildinfo"
	"io"
)

// module is the Go module of this project.
const module = "tensorcast"

// IsOwnTool says whether a program file is one of this project's, of whatever build. They name ggml's functions and map
// models, as llama.cpp's programs do, and compute nothing.
func IsOwnTool(file io.ReaderAt) bool {
	info, err := buildinfo.Read(file)
	return err == nil && info.Main.Path == module
}
