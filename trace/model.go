package trace

// This file tracks the models of a capture: which file belongs to which model, and which of their
// layers the CPU computes.

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"tensorcast/event"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/internal/visible"
	"tensorcast/trace/tables"
)

// model is a model that the target reads.
type model struct {
	index       int32 // index in Meta.Models
	parts       []*modelPart
	expertsUsed int          // experts per token; 0 if the model does not say
	warmupIDs   []int32      // token ids of a warm-up, see warmupTokens
	layers      map[int]bool // layers that have tensors; true once seen
	draftLayers int          // layers at the end that serve drafts and are not part of a decode
	split       splitKey     // set if the parts are seen one by one, else zero
}

// splitKey identifies the parts of one split model.
type splitKey struct {
	dir            string
	count, tensors uint64
}

// modelPart is a file of a model.
type modelPart struct {
	model *model
	file  *gguf.File
	name  string                 // base name
	id    event.FileID           // as stat tells it
	rows  map[*gguf.Tensor]int32 // structure rows
	pages pageCounts
}

func newModel(index int, m *gguf.Model) *model {
	first := m.Files[0]
	mod := &model{index: int32(index), layers: map[int]bool{}, warmupIDs: warmupTokens(first)}
	if arch, ok := first.String("general.architecture"); ok {
		if n, ok := first.Uint(arch + ".expert_used_count"); ok && n < 1<<16 {
			mod.expertsUsed = int(n)
		}
		if n, ok := first.Uint(arch + ".nextn_predict_layers"); ok && n < 1<<16 {
			mod.draftLayers = int(n)
		}
	}
	return mod
}

// addFiles makes files parts of the model. It returns their rows of the structure table, which are
// numbered from row on.
func (m *model) addFiles(files []*gguf.File, row int) []tables.StructureRow {
	var rows []tables.StructureRow
	for _, f := range files {
		p := &modelPart{
			model: m, file: f, name: filepath.Base(f.Path), id: proc.IDOf(f.Info()),
			rows: make(map[*gguf.Tensor]int32, len(f.Tensors)),
		}
		for i := range f.Tensors {
			t := &f.Tensors[i]
			p.rows[t] = int32(row + len(rows))
			rows = append(rows, tables.StructureRow{
				Name: shownName(t.Name), Offset: t.Offset, Size: t.Size, Type: t.Type.String(),
				Layer: int32(t.Layer()), Component: shownName(t.Component()),
				File: p.name, Shape: t.Shape, Experts: int32(t.Experts()), ExpertStride: t.ExpertStride(),
				Model: m.index,
			})
			if layer := t.Layer(); layer >= 0 {
				m.layers[layer] = false
			}
		}
		m.parts = append(m.parts, p)
	}
	return rows
}

// shownName is a tensor's name as tables have it: some text, whatever the file has.
func shownName(name string) string {
	if name == "" {
		return `""`
	}
	return visible.Line(name)
}

// files returns the files of the model's parts.
func (m *model) files() []*gguf.File {
	files := make([]*gguf.File, len(m.parts))
	for i, p := range m.parts {
		files[i] = p.file
	}
	return files
}

// openModel reads the model at path. One of its files must have the id, else the error is
// proc.ErrOtherFile. The other parts of a split model are found by name. If that fails, as in a download
// cache that names files by their content, the model is the one part, and split is set.
func openModel(path string, id event.FileID) (m *gguf.Model, split splitKey, err error) {
	m, split, err = readModel(path)
	if err == nil && !slices.ContainsFunc(m.Files,
		func(f *gguf.File) bool { return proc.IDOf(f.Info()) == id }) {
		err = fmt.Errorf("%s: %w", path, proc.ErrOtherFile)
	}
	return m, split, err
}

func readModel(path string) (m *gguf.Model, split splitKey, err error) {
	m, err = gguf.OpenModel(path)
	if !errors.Is(err, gguf.ErrPartName) {
		return m, split, err
	}
	if m, err = gguf.OpenPart(path); err != nil {
		return nil, split, err
	}
	split.dir = filepath.Dir(path)
	split.count, _ = m.Files[0].Uint("split.count")
	split.tensors, _ = m.Files[0].Uint("split.tensors.count")
	return m, split, nil
}

// identifyFiles returns names, sizes and fingerprints of a model's files.
func identifyFiles(m *gguf.Model) ([]tables.ModelFile, error) {
	var files []tables.ModelFile
	for _, f := range m.Files {
		fingerprint, err := f.Fingerprint()
		if err != nil {
			return nil, fmt.Errorf("identify the model: %w", err)
		}
		files = append(files, tables.ModelFile{Name: filepath.Base(f.Path), Bytes: f.Size, Fingerprint: fingerprint})
	}
	return files, nil
}

// lacksPart reports whether another, a single part of a split model, belongs to this model and is not
// among its parts yet.
func (m *model) lacksPart(another *gguf.Model, split splitKey) bool {
	if split == (splitKey{}) || split != m.split {
		return false
	}
	no, _ := another.Files[0].Uint("split.no")
	for _, p := range m.parts {
		if have, _ := p.file.Uint("split.no"); have == no {
			return false
		}
	}
	return true
}

// warmupTokens are the token ids that llama.cpp's common library decodes once before the prompt, to
// touch the weights: BOS and EOS. (Until 2026 it also called llama_set_warmup.) A prompt does not
// consist of just these.
func warmupTokens(f *gguf.File) []int32 {
	var ids []int32
	for _, key := range []string{"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"} {
		if id, ok := f.Uint(key); ok {
			ids = append(ids, int32(id))
		}
	}
	if ids == nil {
		return []int32{0}
	}
	return ids
}

// describeLayers lists the layers that were seen. The others are listed as computed elsewhere once
// a step is over.
func (m *model) describeLayers(info *tables.ModelInfo, stepOver bool) {
	layers := slices.Sorted(maps.Keys(m.layers))
	var seen, elsewhere []int
	for i, layer := range layers {
		switch {
		case m.layers[layer]:
			seen = append(seen, layer)
		case i < len(layers)-m.draftLayers:
			elsewhere = append(elsewhere, layer)
		}
	}
	info.Layers = len(m.layers)
	info.LayersSeen, info.LayersElsewhere = formatRanges(seen), ""
	if stepOver {
		info.LayersElsewhere = formatRanges(elsewhere)
	}
}

// formatRanges formats ascending numbers, for example as "0-11,20".
func formatRanges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		text := strconv.Itoa(numbers[i])
		if j > i {
			text += "-" + strconv.Itoa(numbers[j])
		}
		parts = append(parts, text)
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// noteLayer records that the CPU read a weight of a layer.
func (m *model) noteLayer(layer int) {
	if seen, exists := m.layers[layer]; exists && !seen {
		m.layers[layer] = true
	}
}

// layerOf returns the layer in a tensor's name, -1 if there is none.
func layerOf(name string) int { return (&gguf.Tensor{Name: name}).Layer() }

// trimProcessRoot removes the /proc/PID/root prefix of a process's root directory from a path.
func trimProcessRoot(path string, pid int32) string {
	return strings.TrimPrefix(path, fmt.Sprintf("/proc/%d/root", pid))
}
