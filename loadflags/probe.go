package loadflags

// This file searches program files for texts that tell what the program understands.

import (
	"bytes"
	"debug/elf"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"tensorcast/ggml"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
)

// features is a set of what a program understands.
type features uint8

const (
	loadMode      features = 1 << iota // --load-mode
	oldFlags                           // --no-mmap and --mlock
	noRepack                           // --no-repack
	benchUsage                         // the flags of llama-bench
	benchMode                          // its --load-mode
	pythonLibrary                      // the arguments of llama-cpp-python
	pythonServer                       // the flags of its server
)

func (f features) has(some features) bool { return f&some != 0 }

// types is a set of element types.
type types map[gguf.Type]bool

// marks are the texts, and what a file that holds one tells. Names of variables are better marks than those of flags:
// compilers turn short texts into numbers.
var marks = []struct {
	text string
	is   features
}{
	{"LLAMA_ARG_LOAD_MODE\x00", loadMode},
	{"LLAMA_ARG_MMAP\x00", oldFlags},
	{"LLAMA_ARG_NO_MMAP\x00", oldFlags},
	{"LLAMA_ARG_REPACK\x00", noRepack},
	{"LLAMA_ARG_NO_REPACK\x00", noRepack},
	{"-p, --n-prompt <n>", benchUsage},
	{"--load-mode <none|mmap", benchMode},
}

// layouts are the names of the classes that copy weights to another layout, as compilers write them, and the type that
// each copies.
var layouts = []struct {
	text string
	of   gguf.Type
}{
	{"tensor_traitsI10block_q4_0L", gguf.Q4_0},
	{"tensor_traitsI10block_q4_KL", gguf.Q4_K},
	{"tensor_traitsI10block_q2_KL", gguf.Q2_K},
	{"tensor_traitsI10block_q5_KL", gguf.Q5_K},
	{"tensor_traitsI10block_q6_KL", gguf.Q6_K},
	{"tensor_traitsI10block_q8_0L", gguf.Q8_0},
	{"tensor_traitsI12block_iq4_nlL", gguf.IQ4NL},
	{"tensor_traitsI11block_mxfp4L", gguf.MXFP4},
}

// Limits on what is read of the files, in bytes. The constants of a program with all of llama.cpp take 5 MB, and those
// of one with code for many GPUs a few tens.
const (
	maxConstants = 64 << 20 // of a section
	maxSearched  = 256 << 20
	maxFiles     = 512
)

// found is what a search finds.
type found struct {
	features features
	types    types
	left     int64 // bytes that may still be read
}

// linkedFiles lists of a program's likely libraries those that it links, and ggml's, which it may load by name. Beside
// a program lie the libraries of other tools, whose flags it does not have.
func linkedFiles(exe string, libraries []string) []string {
	files := []string{exe}
	byName := map[string]string{}
	for _, path := range libraries {
		name := filepath.Base(path)
		if _, known := byName[name]; !known { // the loader takes the first, too
			byName[name] = path
		}
		if strings.HasPrefix(name, "libggml") {
			files = append(files, path)
		}
	}
	for next := 0; next < len(files) && len(files) < maxFiles; next++ {
		for _, name := range neededBy(files[next]) {
			if path, ok := byName[name]; ok && !slices.Contains(files, path) {
				files = append(files, path)
			}
		}
	}
	return files
}

// neededBy lists the names of the libraries that a file links.
func neededBy(path string) []string {
	file, err := regular.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	image, err := ggml.OpenELF(file)
	if err != nil {
		return nil
	}
	names, err := image.ImportedLibraries()
	if err != nil {
		return nil // a damaged file tells nothing
	}
	return names
}

// searchFiles searches the constants of files, but not the large ones of code for GPUs. Files that cannot be read tell
// nothing.
func searchFiles(files []string) found {
	f := found{types: types{}, left: maxSearched}
	seen := map[proc.FileID]bool{}
	for _, path := range files[:min(len(files), maxFiles)] {
		id, err := proc.FileOf(path)
		if err != nil || seen[id] || ggml.GPUOf(path) != "" {
			continue
		}
		seen[id] = true
		f.search(path)
	}
	return f
}

// search searches one file.
func (f *found) search(path string) {
	file, err := regular.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	image, err := ggml.OpenELF(file)
	if err != nil {
		return
	}
	for _, s := range image.Sections {
		constant := s.Type == elf.SHT_PROGBITS && s.Flags&elf.SHF_ALLOC != 0 &&
			s.Flags&(elf.SHF_EXECINSTR|elf.SHF_WRITE|elf.SHF_COMPRESSED) == 0
		if !constant || s.FileSize > maxConstants || int64(s.FileSize) > f.left {
			continue
		}
		f.left -= int64(s.FileSize)
		f.searchSection(io.NewSectionReader(s, 0, int64(s.FileSize)))
	}
}

// searchSection searches a section, piece by piece.
func (f *found) searchSection(r io.Reader) {
	const overlap = 64 // a text may lie across the end of a piece
	buf := make([]byte, 1<<20)
	kept := 0
	for {
		n, err := io.ReadFull(r, buf[kept:])
		piece := buf[:kept+n]
		for _, m := range marks {
			if !f.features.has(m.is) && bytes.Contains(piece, []byte(m.text)) {
				f.features |= m.is
			}
		}
		for _, l := range layouts {
			if !f.types[l.of] && bytes.Contains(piece, []byte(l.text)) {
				f.types[l.of] = true
			}
		}
		if err != nil {
			return // the end, or a damaged file
		}
		kept = copy(buf, piece[len(piece)-overlap:])
	}
}
