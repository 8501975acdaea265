package main

// This file makes the models of "lab matrix", or gets them.

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/matrix"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
)

// matrixModels makes models in a directory, in which they stay.
type matrixModels struct {
	dir      string
	progress func(done, total int64, what string)
}

// Describe implements [matrix.Materials].
func (m *matrixModels) Describe(ctx context.Context, model *matrix.Model) (matrix.Shape, error) {
	if s, _, err := m.made(ctx, model); s != nil || err != nil {
		if err != nil {
			return matrix.Shape{}, err
		}
		return matrix.Shape{Bytes: s.Size, Active: s.Active}, s.close()
	}
	path, err := m.found(ctx, model)
	if err != nil {
		return matrix.Shape{}, err
	}
	return shapeOf(path)
}

// found returns the path of a model that is not made: the user's own, or one that is downloaded if it is not there yet.
func (m *matrixModels) found(ctx context.Context, model *matrix.Model) (string, error) {
	if model.Path != "" {
		return filepath.Abs(model.Path)
	}
	if model.Get != llama.Gemma.Name {
		return "", fmt.Errorf("get: %q is not known: there is %s", model.Get, llama.Gemma.Name)
	}
	m.progress(0, llama.Gemma.Size, "getting "+model.Get)
	got, err := llama.GetModel(ctx, llama.Gemma)
	return got.File, err
}

// made is the model that has to be written, and a text that tells it from others; nil if it has not. The caller closes
// it.
func (m *matrixModels) made(ctx context.Context, model *matrix.Model) (s *synthModel, key string, err error) {
	switch {
	case model.Synth != "":
		s, err = synthOf(ctx, model.Synth)
		return s, strings.Join(strings.Fields(model.Synth), " "), err
	case model.Inflate > 1:
		source, err := m.found(ctx, model)
		if err != nil {
			return nil, "", err
		}
		s, err = inflated(source, model.Inflate, 1)
		return s, fmt.Sprintf("%s %d", source, model.Inflate), err
	}
	return nil, "", nil
}

// Make implements [matrix.Materials].
func (m *matrixModels) Make(ctx context.Context, model *matrix.Model) (path string, err error) {
	s, key, err := m.made(ctx, model)
	if err != nil {
		return "", err
	}
	if s == nil {
		return m.found(ctx, model)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	// The same flags give the same bytes. The name of the file appears in figures, so the hash is the directory's.
	sum := sha256.Sum256([]byte(key))
	name := model.Name + ".gguf"
	if path, err = filepath.Abs(filepath.Join(m.dir, fmt.Sprintf("%x", sum[:5]), name)); err != nil {
		return "", err
	}
	dir, err := outfile.OpenDir(filepath.Dir(path), 0o755)
	if err != nil {
		return "", err
	}
	dir.Close()
	switch info, err := os.Stat(path); {
	case err == nil && info.Size() == s.Size:
		return path, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	return path, outfile.Write(path, func(w io.Writer) error {
		return s.write(ctx, w, func(written int64) { m.progress(written, s.Size, "making "+name) })
	})
}

// synthOf is the model that flags of lab synth describe. The caller closes it.
func synthOf(ctx context.Context, flags string) (*synthModel, error) {
	o := newSynthOptions()
	cmd := &cobra.Command{Use: "synth"}
	cmd.SetContext(ctx)
	o.add(cmd)
	err := cmd.ParseFlags(strings.Fields(flags))
	if err == nil {
		err = checkSource(cmd, cmd.Flags().Args())
	}
	var m *synthModel
	if err == nil {
		m, err = o.model(cmd, cmd.Flags().Args())
	}
	if usage := (*cli.UsageError)(nil); errors.As(err, &usage) { // it is not this command line that is wrong
		err = usage.Err
	}
	if err != nil {
		return nil, fmt.Errorf("synth: %w", err)
	}
	return m, nil
}

// shapeOf describes a GGUF file.
func shapeOf(path string) (s matrix.Shape, err error) {
	f, err := regular.Open(path)
	if err != nil {
		return s, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return s, err
	}
	g, err := gguf.Parse(f, info.Size())
	if err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	s = matrix.Shape{Bytes: info.Size(), Active: 1}
	arch, _ := g.String("general.architecture")
	all, _ := g.Uint(arch + ".expert_count")
	if used, ok := g.Uint(arch + ".expert_used_count"); ok && used <= all && used > 0 {
		s.Active = float64(used) / float64(all)
	}
	return s, nil
}
