package trace

// This file adds models to a capture when the target reads a weight of one of their files.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/trace/tables"
)

const (
	maxRecorded = 64 // models
	// A structure row and its tensor take some 300 bytes. Models have up to a few thousand tensors.
	maxStructureRows = 1 << 19
)

// recordFile finds the model that a file belongs to. If the file is seen for the first time and is a
// model, its tensors are added to the structure.
func (r *Recorder) recordFile(e event.FileSeen) error {
	if _, known := r.files[e.File]; known {
		return nil
	}
	if p := r.partWithID(e.ID); p != nil {
		return r.registerFile(e.File, p)
	}
	opened, split, err := openModel(e.Path, e.ID)
	if err == nil {
		err = r.checkRoom(opened)
	}
	switch {
	case errors.Is(err, gguf.ErrNotGGUF):
		r.opts.Log.Debug("not a model", "file", e.Path)
		return r.registerFile(e.File, nil)
	case err != nil && len(r.models) > 0:
		r.warnOfFile(e.Path, err)
		return r.registerFile(e.File, nil)
	case err != nil:
		return fmt.Errorf("read the structure of the model: %w", err)
	}
	rows, err := r.addModel(opened, split, trimProcessRoot(e.Path, cmp.Or(e.PID, int32(r.opts.PID))))
	if err != nil {
		return err
	}
	r.rows = append(r.rows, rows...)
	if err := r.openTables(rows); err != nil {
		return err
	}
	return r.registerFile(e.File, r.partWithID(e.ID))
}

// warnOfFile says that a file is not recorded. A target may read any number of them, so most are told of
// only in the log's details.
func (r *Recorder) warnOfFile(path string, err error) {
	const told = 8
	level := slog.LevelWarn
	if r.unrecorded++; r.unrecorded > told {
		level = slog.LevelDebug
	}
	const message = "the target reads weights of another file, which is not recorded"
	r.opts.Log.Log(context.Background(), level, message, "file", path, "error", err)
	if r.unrecorded == told {
		r.opts.Log.Warn("further files that are not recorded are not told of")
	}
}

// partWithID returns the part of a known model whose file has the id, nil if there is none.
func (r *Recorder) partWithID(id event.FileID) *modelPart {
	for _, m := range r.models {
		for _, p := range m.parts {
			if p.id == id {
				return p
			}
		}
	}
	return nil
}

// registerFile notes what a mapped file is: a part of a model, or, if p is nil, none. The page-ins that
// were kept until this was known are written or dropped.
func (r *Recorder) registerFile(id event.FileID, p *modelPart) error {
	r.files[id] = p
	return r.releasePending(id)
}

// checkRoom returns an error if the capture cannot hold one more model with its tensors.
func (r *Recorder) checkRoom(opened *gguf.Model) error {
	models, rows := len(r.models)+1, len(r.rows)+opened.Tensors()
	if models > maxRecorded || rows > maxStructureRows {
		return fmt.Errorf("with its %d tensors the capture would have %d models with %d tensors, more than it holds",
			opened.Tensors(), models, rows)
	}
	return nil
}

// addModel adds a file that is seen for the first time: as a new model (with the parts that belong to
// it), or as a part of a known one. It returns its structure rows.
func (r *Recorder) addModel(opened *gguf.Model, split splitKey, path string) ([]tables.StructureRow, error) {
	files, err := identifyFiles(opened)
	if err != nil {
		return nil, err
	}
	for i, m := range r.models {
		if m.lacksPart(opened, split) {
			info := &r.meta.Models[i]
			info.Bytes += opened.Size()
			info.Tensors += opened.Tensors()
			info.Files = append(info.Files, files...)
			return m.addFiles(opened.Files, len(r.rows)), nil
		}
	}
	m := newModel(len(r.models), opened)
	m.split = split
	r.models = append(r.models, m)
	r.meta.Models = append(r.meta.Models, tables.ModelInfo{
		Path: path, Fingerprint: files[0].Fingerprint, Bytes: opened.Size(), Tensors: opened.Tensors(), Files: files,
	})
	return m.addFiles(opened.Files, len(r.rows)), nil
}
