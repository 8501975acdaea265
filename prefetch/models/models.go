// Package models finds the model files that a process maps, and says where the weights lie in them.
//
// Files are recognised by what they contain, not by their names. What a target or a path says is checked
// against the file before it is believed.
package models

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/pattern"
)

// Model has the model files that a target maps. Its slices have one element for each file, in the same order.
type Model struct {
	Files  []pattern.CycleFile
	Mapped []Mapped
	Parts  []*gguf.File
}

// Mapped is a file as a target maps it.
type Mapped struct {
	Path string       // where this process can open it
	ID   event.FileID // as stat tells it, see event.FileSeen
	Base uint64       // address in the target of the file's first byte
	More []uint64     // the same of further mappings: a target may load a model twice
}

// Size is how many bytes all files have together.
func (m *Model) Size() (sum int64) {
	for _, f := range m.Files {
		sum += f.Size
	}
	return sum
}

// IsWhole says whether these are all files of one model.
func (m *Model) IsWhole() bool {
	for _, p := range m.Parts {
		if count, _ := p.Uint("split.count"); max(count, 1) != uint64(len(m.Parts)) {
			return false
		}
	}
	return len(m.Parts) > 0
}

// TableBytes is how many bytes of file i are tables of which tokens only look up rows. Whether token embeddings are
// such is known if the output is in the same file.
func (m *Model) TableBytes(i int) int64 {
	if i >= len(m.Parts) || m.Parts[i] == nil {
		return 0
	}
	return tableBytes(m.Parts[i])
}

func tableBytes(part *gguf.File) (sum int64) {
	_, hasOutput := part.Lookup("output.weight")
	for k := range part.Tensors {
		if t := &part.Tensors[k]; t.IsTable(hasOutput) {
			sum += t.Size
		}
	}
	return sum
}

func (m *Model) add(of knownFile, base uint64) {
	m.Files = append(m.Files, of.file)
	m.Mapped = append(m.Mapped, Mapped{Path: of.path, ID: of.id, Base: base})
	m.Parts = append(m.Parts, of.part)
}

// knownFile is a model file that was read. A target keeps the same files for long, and they are asked for
// often.
type knownFile struct {
	path string
	id   event.FileID
	info fs.FileInfo
	file pattern.CycleFile
	part *gguf.File
}

// isUnchanged says whether the file at path still is what was read.
func (f *knownFile) isUnchanged(path string) bool {
	now, err := os.Stat(path)
	return err == nil && f.path == path && os.SameFile(now, f.info) && now.Size() == f.info.Size() &&
		now.ModTime().Equal(f.info.ModTime())
}

// MappedBy returns a function that lists the GGUF files which the process pid maps at the time, in the order
// of their addresses. Its errors are those of proc.Mappings, OpenPart and pattern.FilesOf. The error is
// proc.ErrNoProcess for a process that is ending, too. It is not safe for concurrent use.
func MappedBy(pid int) func() (Model, error) {
	others := map[proc.FileID]bool{} // files that are no models
	known := map[proc.FileID]knownFile{}
	return func() (Model, error) {
		var m Model
		mappings, err := proc.Mappings(pid)
		if err != nil {
			return m, err
		}
		if len(mappings) == 0 && !proc.HasMemory(pid) {
			return m, fmt.Errorf("process %d has no memory any more: %w", pid, proc.ErrNoProcess)
		}
		seen := map[proc.FileID]int{} // their places in m
		for _, mapping := range mappings {
			if mapping.Executable || others[mapping.File] {
				continue
			}
			base := mapping.Start - mapping.Offset
			if n, is := seen[mapping.File]; is {
				m.Mapped[n].addBase(base)
				continue
			}
			at := mapping.Locate(pid)
			f, found := known[at.ID]
			if !found || !f.isUnchanged(at.Path) {
				f, err = readFile(at)
				if errors.Is(err, gguf.ErrNotGGUF) {
					others[mapping.File] = true
					continue
				}
				if err != nil {
					return m, err
				}
				known[at.ID] = f
			}
			seen[mapping.File] = len(m.Mapped)
			m.add(f, base)
		}
		return m, nil
	}
}

// readFile reads what is known about the model file at a place.
func readFile(at proc.Place) (knownFile, error) {
	id := at.ID
	part, err := OpenPart(at.Path, id)
	if err != nil {
		return knownFile{}, err
	}
	files, err := pattern.FilesOf(part)
	if err != nil {
		return knownFile{}, err
	}
	return knownFile{at.Path, id, part.Files[0].Info(), files[0], part.Files[0]}, nil
}

// addBase notes another mapping, unless it is a further part of one that is known.
func (at *Mapped) addBase(base uint64) {
	if !at.Has(base) && len(at.More) < mostMappings {
		at.More = append(at.More, base)
	}
}

// Has says whether the file's first byte is at an address, in one of its mappings.
func (at *Mapped) Has(base uint64) bool { return at.Base == base || slices.Contains(at.More, base) }

// mostMappings of a file are noted, besides the first.
const mostMappings = 64

// Maps says whether the target maps a model file at an address.
func (m *Model) Maps(base uint64) bool {
	return slices.ContainsFunc(m.Mapped, func(at Mapped) bool { return at.Has(base) })
}
