package hot

// This file reads importance matrices, in which llama.cpp's llama-imatrix counts how many tokens each expert got.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"

	"tensorcast/gguf"
	"tensorcast/internal/regular"
	"tensorcast/pattern"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
)

var (
	// ErrOldImatrix says that a file is no GGUF file. Importance matrices were none before 2025.
	ErrOldImatrix = errors.New("it is no GGUF file: an importance matrix in the older format (.dat) does not say how " +
		"often each expert was chosen, not even once it is converted; make a new one with llama-imatrix -o NEW.gguf")
	// ErrNoImatrix says that a GGUF file is no importance matrix.
	ErrNoImatrix = errors.New("it is no importance matrix")
	// ErrNoCounts says that an importance matrix counts no choices: it is of a dense model, or was converted from the
	// older format, which does not tell experts apart.
	ErrNoCounts = errors.New("this importance matrix counts no choices of experts")
)

// countsSuffix ends the names of the tensors that count: "blk.3.ffn_gate_exps.weight.counts" has a number for each
// expert. As many tokens pass all matrices of an expert, so one of them is enough.
const countsSuffix = ".counts"

// countedBy has the names of the matrices, as a counting tensor's component begins.
var countedBy = []string{"ffn_gate_exps.", "ffn_up_exps.", "ffn_gate_up_exps.", "ffn_down_exps."}

// Counts are how many tokens each expert got: by the layer's number in the model, and by expert.
type Counts map[int32][]float64

// ReadImatrix reads the counts of an importance matrix, a GGUF file as llama-imatrix writes it. Errors are
// [*fs.PathError]; they wrap ErrOldImatrix, ErrNoImatrix, ErrNoCounts, those of gguf.Open, or the file system's.
func ReadImatrix(path string) (Counts, error) {
	fail := func(err error) (Counts, error) {
		if at := (*fs.PathError)(nil); errors.As(err, &at) {
			return nil, err
		}
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	file, err := regular.Open(path)
	if err != nil {
		return fail(err)
	}
	isGGUF := gguf.Is(file)
	if err := file.Close(); err != nil {
		return fail(err)
	}
	if !isGGUF {
		return fail(ErrOldImatrix)
	}
	f, err := gguf.Open(path)
	if err != nil {
		return fail(err)
	}
	if kind, _ := f.String("general.type"); kind != "imatrix" {
		return fail(ErrNoImatrix)
	}
	r, err := f.Reopen()
	if err != nil {
		return fail(err)
	}
	defer r.Close()
	counts, err := readCounts(f, r)
	if err != nil {
		return fail(err)
	}
	return counts, nil
}

// readCounts reads what a file counts.
func readCounts(f *gguf.File, r io.ReaderAt) (Counts, error) {
	counts, ranks := Counts{}, map[int32]int{}
	for i := range f.Tensors {
		t := &f.Tensors[i]
		component := t.Component()
		rank := slices.IndexFunc(countedBy, func(stem string) bool { return strings.HasPrefix(component, stem) })
		if rank < 0 || !strings.HasSuffix(component, countsSuffix) || t.Layer() < 0 || t.Layer() > math.MaxInt32 {
			continue
		}
		layer := int32(t.Layer())
		if known, is := ranks[layer]; is && known <= rank {
			continue
		}
		n := t.Size / 4
		if t.Type != gguf.F32 || n > maxExperts || len(counts) >= maxLayers {
			return nil, fmt.Errorf("%w: %s has %d bytes of type %v", ErrNoImatrix, t.Name, t.Size, t.Type)
		}
		if n <= 1 { // of a dense model, or all experts are counted together
			continue
		}
		values, err := readFloats(f, r, t)
		if err != nil {
			return nil, err
		}
		counts[layer], ranks[layer] = values, rank
	}
	if len(counts) == 0 {
		return nil, ErrNoCounts
	}
	return counts, nil
}

// readFloats reads a tensor of F32, whose values must be counts.
func readFloats(f *gguf.File, r io.ReaderAt, t *gguf.Tensor) ([]float64, error) {
	b := make([]byte, t.Size)
	if _, err := r.ReadAt(b, t.Offset); err != nil {
		return nil, fmt.Errorf("read %s: %w", t.Name, err)
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if f.BigEndian {
		order = binary.BigEndian
	}
	values := make([]float64, t.Size/4)
	for i := range values {
		v := float64(math.Float32frombits(order.Uint32(b[4*i:])))
		if !(v >= 0 && v <= math.MaxFloat32) {
			return nil, fmt.Errorf("%w: %s has the count %v", ErrNoImatrix, t.Name, v)
		}
		values[i] = v
	}
	return values, nil
}

// Scores are the counts as scores of a model: of the choices that a layer makes for a token, each expert gets its
// share. The error is ErrOtherModel if the model has other experts than were counted.
func (c Counts) Scores(m models.Model) (mixture.Scores, error) {
	scores, used := mixture.Scores{}, float64(max(pattern.ExpertsUsed(m.Parts), 1))
	for number, counts := range c {
		var sum float64
		for _, n := range counts {
			sum += n
		}
		layer := make([]float32, len(counts))
		if sum > 0 {
			for i, n := range counts {
				layer[i] = float32(min(n/sum*used, 1))
			}
		}
		scores[number] = layer
	}
	if err := checkGeometry(m.Parts, scores); err != nil {
		return nil, err
	}
	return scores, nil
}
