package trace

// This file writes and reads capture.json.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
	"tensorcast/trace/tables"
)

func writeMeta(dir *outfile.Dir, m *tables.Meta) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", MetaFile, err)
	}
	return dir.Write(MetaFile, fileMode, func(w io.Writer) error {
		_, err := w.Write(append(data, '\n'))
		return err
	})
}

var (
	// ErrNoCapture means that a directory holds no capture.
	ErrNoCapture = errors.New("no capture here")
	// ErrOccupied means that the directory for a capture holds other files, which would be lost.
	ErrOccupied = errors.New("not part of a capture")
)

// readMeta reads and checks the description. Paths in it are only shown to people, never opened.
func readMeta(dir string) (*tables.Meta, error) {
	data, err := regular.ReadHere(filepath.Join(dir, MetaFile), maxMeta)
	if errors.Is(err, fs.ErrNotExist) {
		if several, _ := filepath.Glob(filepath.Join(dir, "*", MetaFile)); len(several) > 0 {
			return nil, fmt.Errorf("%s: %w, but of %d processes in directories of its own: name one, such as %s", dir,
				ErrNoCapture, len(several), filepath.Dir(several[0]))
		}
		return nil, fmt.Errorf("%s: %w: make one with tracer", dir, ErrNoCapture)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", MetaFile, err)
	}
	var m tables.Meta
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%s is %w: %.200w", filepath.Join(dir, MetaFile), ErrDamaged, err)
	}
	if m.Schema > SchemaVersion {
		return nil, fmt.Errorf("%s has schema version %d, this program reads %d: "+
			"a newer tensorcast made it, which also reads it", dir, m.Schema, SchemaVersion)
	}
	if m.Schema != SchemaVersion {
		return nil, fmt.Errorf("%s has schema version %d, this program reads %d: capture again", dir, m.Schema,
			SchemaVersion)
	}
	if err := checkMeta(&m); err != nil {
		return nil, fmt.Errorf("%s is %w: %w", filepath.Join(dir, MetaFile), ErrDamaged, err)
	}
	return &m, nil
}
