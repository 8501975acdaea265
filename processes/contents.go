package processes

// This file looks into the files that processes map.

import (
	"fmt"
	"time"

	"tensorcast/ggml"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
)

// Evidence is what a process maps.
type Evidence struct {
	GGML  bool // code that names ggml's functions
	Model bool // a GGUF file
}

func (e Evidence) any() bool { return e.GGML || e.Model }

const (
	// contentsLife is how long is believed what was found in a file. The file may be written meanwhile, and its inode
	// number may be used again for another one.
	contentsLife = time.Minute
	// maxNewFiles is how many files are opened in one look at a process, which may map any number of them. The rest is
	// looked at the next time.
	maxNewFiles = 512
	// maxFiles bounds the memory for what is known of files. A machine has some thousand that are mapped.
	maxFiles = 1 << 16
)

// contents remembers what files have in them, because most processes map the same ones.
type contents struct {
	known map[fileKey]content
}

// fileKey is a file as a memory map shows it. The path is a part of it, because overlay file systems may show two
// files under one number. Only files that are mapped to be executed are searched for code.
type fileKey struct {
	id         proc.FileID
	path       string
	executable bool
}

// content is what was found in a file.
type content struct {
	Evidence
	at time.Time
}

// examine returns what a process maps. complete is false if it maps more new files than are looked at in one call.
// A file that cannot be read is none of ggml's.
func (c *contents) examine(pid int, now time.Time) (e Evidence, complete bool, err error) {
	files, err := proc.Mappings(pid)
	if err != nil {
		return e, false, err
	}
	if len(c.known) > maxFiles {
		clear(c.known)
	}
	opened := 0
	for i := range files {
		m := &files[i]
		key := fileKey{m.File, m.Path, m.Executable}
		found, ok := c.known[key]
		if !ok || now.Sub(found.at) > contentsLife {
			if opened++; opened > maxNewFiles {
				return e, false, nil
			}
			found.Evidence, _ = readContent(m, pid)
			found.at = now
			c.known[key] = found
		}
		e.GGML = e.GGML || m.Executable && found.GGML
		e.Model = e.Model || !m.Executable && found.Model
	}
	return e, true, nil
}

// readContent looks into a file that a process maps.
func readContent(m *proc.Mapping, pid int) (e Evidence, err error) {
	f, err := m.Locate(pid).Open() // nothing but a regular file
	if err != nil {
		return e, err
	}
	defer f.Close()
	if e.Model = gguf.Is(f); e.Model || !m.Executable {
		return e, nil
	}
	if e.GGML, err = ggml.Names(f); err != nil {
		return e, fmt.Errorf("look for ggml in %s: %w", m.Path, err)
	}
	e.GGML = e.GGML && !proc.IsOwnTool(f) // they name its functions as text
	return e, nil
}
