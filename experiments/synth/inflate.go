package synth

// This file makes a model heavier without changing its output. So a small trained model has its real
// text and routing, and the bytes of a large one.
//
// The feed-forward width is multiplied: that of each expert, or in a model without experts that of
// each layer. The added blocks have a scale of 0 and random digits. So an added hidden unit is 0, and
// its column of the down projection is, too. ggml adds up whole blocks in their order, so each sum
// gets zeros at its end and keeps its bits. The digits are random so that neither a file system nor a
// disk can compress the file.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"tensorcast/gguf"
	"tensorcast/gguf/rewrite"
)

// maxInflation is far beyond any use; with it no size exceeds 63 bits.
const maxInflation = 1 << 16

// ErrNotInflatable says that a model cannot be inflated. The message says why.
var ErrNotInflatable = errors.New("cannot be inflated")

// Inflation is a plan for a heavier model. It is immutable and may be used by several goroutines.
type Inflation struct {
	// Size is the size of the whole file in bytes.
	Size int64
	// ExpertBytes is the size of an expert in one layer, all its matrices together. It is that of
	// the layer where it is largest, and 0 if the model has no experts.
	ExpertBytes int64
	// Zeros is how many of the bytes are added zeros, which can be compressed. Types without a
	// scale have no other way to store a 0.
	Zeros int64

	file    *gguf.File
	factor  int64
	seed    uint64
	padded  map[string]padding // by the tensor's name
	numbers []rewrite.Number
}

// padding says how a tensor grows. The tensor consists of pieces of the same size. Each is followed
// by factor-1 times as many bytes that decode to 0.
type padding struct {
	dim   int   // the dimension that grows
	piece int64 // bytes
	// scales are the offsets of the scales, which are halves, in a block. It is nil if the type has
	// none; then zeros are added.
	scales []int
}

// scales are the offsets of the scales, and of the minima, in a block. If all of them are 0, so are
// all values, whatever the other bytes are, because the scales of sub-blocks are multiplied by
// them. The layouts are those of ggml-common.h.
var scales = map[gguf.Type][]int{
	gguf.F32: nil, gguf.F16: nil, gguf.BF16: nil,
	gguf.Q8_0: {0}, gguf.Q4_0: {0}, gguf.Q2_0: {0}, gguf.Q1_0: {0}, gguf.TQ1_0: {52}, gguf.TQ2_0: {64},
	gguf.Q5_0: {0}, gguf.Q4_1: {0, 2}, gguf.Q5_1: {0, 2},
	gguf.Q2_K: {80, 82}, gguf.Q3_K: {108}, gguf.Q4_K: {0, 2}, gguf.Q5_K: {0, 2}, gguf.Q6_K: {208},
	gguf.IQ4NL: {0}, gguf.IQ4XS: {0},
}

// NewInflation plans a copy of the model in file f in which the feed-forward width is factor times
// as large. In a mixture of experts this is the experts' width, and dense layers keep theirs. Equal
// arguments give equal bytes. Errors are [*ConfigError] for the factor, and [ErrNotInflatable].
//
// The model keeps its text and its routing. In llama.cpp's CPU backend the logits keep their bits
// if the width is a multiple of 16, which is how many values its activation functions handle at
// once. The rest of a width is computed in another way, and with another width other values could
// be in that rest.
func NewInflation(f *gguf.File, factor int, seed uint64) (*Inflation, error) {
	if factor < 2 || factor > maxInflation {
		return nil, &ConfigError{"inflate", fmt.Sprintf("%d is outside 2 to %d", factor, maxInflation)}
	}
	inf := &Inflation{file: f, factor: int64(factor), seed: seed, padded: map[string]padding{}}
	if err := inf.plan(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInflatable, err)
	}
	return inf, nil
}

// plan chooses the tensors and numbers to change.
func (inf *Inflation) plan() error {
	f := inf.file
	if parts, _ := f.Uint("split.count"); parts > 1 {
		return fmt.Errorf("the model is split into %d files: merge them first", parts)
	}
	g, err := findGrowth(f)
	if err != nil {
		return err
	}
	if err := inf.setNumbers(&g); err != nil {
		return err
	}
	inf.Size = f.DataOffset
	perLayer := map[int]int64{}
	for i := range f.Tensors {
		t := &f.Tensors[i]
		size := t.Size
		grows, err := inf.planPadding(t, g)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		if grows {
			if size > (1<<62-inf.Size)/inf.factor {
				return errors.New("it would take more than 2^62 bytes")
			}
			size *= inf.factor
			if inf.padded[t.Name].scales == nil {
				inf.Zeros += size - t.Size
			}
		}
		if n := int64(t.Experts()); n > 0 {
			perLayer[t.Layer()] += size / n
			inf.ExpertBytes = max(inf.ExpertBytes, perLayer[t.Layer()])
		}
		inf.Size += (size + f.Alignment - 1) / f.Alignment * f.Alignment
	}
	return nil
}

// growth says which feed-forward networks of a model grow.
type growth struct {
	experts bool  // the experts grow, or else the dense layers
	width   int64 // their feed-forward width
	dense   bool  // the model has dense layers
	shared  bool  // shared experts grow, too, because llama.cpp computes their width from numbers that change
}

// findGrowth finds out what of the model in f can grow.
func findGrowth(f *gguf.File) (g growth, err error) {
	for i := range f.Tensors {
		t := &f.Tensors[i]
		switch name, _ := strings.CutSuffix(t.Component(), ".weight"); {
		case t.Experts() > 0 && strings.HasPrefix(name, "ffn_down") && strings.HasSuffix(name, "_exps"):
			if g.experts && g.width != t.Shape[0] {
				return g, fmt.Errorf("the experts' width differs: %d in %s, %d elsewhere", t.Shape[0], t.Name, g.width)
			}
			g.experts, g.width = true, t.Shape[0]
		case name == "ffn_up":
			g.dense = true
		}
	}
	if g.experts {
		return g, nil
	}
	if !g.dense {
		return g, errors.New("it has no feed-forward networks (tensors named blk.N.ffn_up.weight, " +
			"or blk.N.ffn_down_exps.weight)")
	}
	arch, _ := f.String("general.architecture")
	key := arch + ".feed_forward_length"
	width, ok := f.Uint(key)
	if !ok || width == 0 || width > 1<<31 {
		return g, fmt.Errorf("%s is not one number that is the width of all layers", key)
	}
	g.width = int64(width)
	return g, nil
}

// setNumbers plans the metadata for the growth, and completes g.
func (inf *Inflation) setNumbers(g *growth) error {
	f := inf.file
	arch, _ := f.String("general.architecture")
	ownKey, ffKey := arch+".expert_feed_forward_length", arch+".feed_forward_length"
	own, hasOwn := f.Uint(ownKey)
	ff, hasFF := f.Uint(ffKey)
	used, _ := f.Uint(arch + ".expert_used_count")
	set := func(key string, v uint64) {
		inf.numbers = append(inf.numbers, rewrite.Number{Key: key, Value: v * uint64(inf.factor)})
	}
	width := g.width
	if !g.experts {
		set(ffKey, uint64(width))
		return nil
	}
	if hasOwn {
		if own != uint64(width) {
			return fmt.Errorf("%s is %d, but the experts' width is %d", ownKey, own, width)
		}
		set(ownKey, own)
	}
	// If the experts' width has no key of its own, it is the feed-forward width, or all used
	// experts share that width. If it has a key, the feed-forward width is that of dense layers, if
	// there are any.
	ofExperts := hasFF && (ff == uint64(width) || !hasOwn && ff == uint64(width)*used) && !(hasOwn && g.dense)
	switch {
	case !hasOwn && !ofExperts:
		return fmt.Errorf("neither %s nor %s is the experts' width, %d", ownKey, ffKey, width)
	case !hasOwn && g.dense:
		return fmt.Errorf("%s is also the width of dense layers", ffKey)
	case ofExperts:
		set(ffKey, ff)
	}
	_, sharedOwn := f.Uint(arch + ".expert_shared_feed_forward_length")
	_, sharedCount := f.Uint(arch + ".expert_shared_count") // their width is that of this many experts together
	g.shared = !sharedOwn && (ofExperts || sharedCount)
	return nil
}

// planPadding plans how t grows, and reports whether it does.
func (inf *Inflation) planPadding(t *gguf.Tensor, g growth) (bool, error) {
	rest, ok := strings.CutPrefix(t.Component(), "ffn_")
	if !ok {
		return false, nil
	}
	name, suffix, _ := strings.Cut(rest, ".")
	projection, ofExperts := strings.CutSuffix(name, "_exps")
	switch {
	case ofExperts:
		if t.Experts() == 0 { // a scale of each expert, for example
			return false, nil
		}
	case t.Experts() > 0:
		return false, errors.New("not known how to inflate it")
	case g.experts:
		if projection, ok = strings.CutSuffix(name, "_shexp"); !ok || !g.shared {
			return false, nil
		}
	}
	p := padding{}
	parts := int64(1) // parts that follow one another in the dimension that grows
	switch {
	case projection == "down" && suffix == "weight", projection != "down" && suffix == "bias":
		p.dim = 0
	case projection == "down": // the bias of down has the model's width, which does not grow
		return false, nil
	case suffix == "weight":
		p.dim = 1
	default:
		return false, nil
	}
	switch projection {
	case "gate_up": // the rows of gate, followed by those of up
		parts = 2
	case "up":
		// Phi 3 and others store gate and up of a dense layer as one tensor, which is named up.
		if !g.experts && p.dim < len(t.Shape) && t.Shape[p.dim] == 2*g.width {
			parts = 2
		}
	case "gate", "down":
	default: // the router of shared experts, for example
		return false, nil
	}
	if p.scales, ok = scales[t.Type]; !ok {
		return false, fmt.Errorf("blocks of type %v have no scale that could be 0", t.Type)
	}
	if p.dim >= len(t.Shape) || t.Shape[p.dim]%(g.width*parts) != 0 {
		return false, fmt.Errorf("its shape, %v, does not fit a width of %d", t.Shape, g.width)
	}
	p.piece = t.Size
	for _, n := range t.Shape[p.dim+1:] {
		p.piece /= n
	}
	p.piece /= parts
	inf.padded[t.Name] = p
	return true, nil
}

// Write reads the model from r, which must still hold the file that was planned for, and writes
// exactly Size bytes to w, unless it returns an error. It takes a few MiB of memory for any size,
// and calls progress (if not nil) with the number of bytes written so far. When ctx ends, it
// returns ctx's cause. Errors are those of [rewrite.Write].
func (inf *Inflation) Write(ctx context.Context, w io.Writer, r io.ReaderAt, progress func(written int64)) error {
	if progress == nil {
		progress = func(int64) {}
	}
	out := &countingWriter{w: w, progress: progress}
	buf := make([]byte, chunkBytes)
	return rewrite.Write(ctx, out, inf.file, r, func(t *gguf.Tensor) (rewrite.Replacement, bool) {
		p, ok := inf.padded[t.Name]
		if !ok {
			return rewrite.Replacement{}, false
		}
		shape := slices.Clone(t.Shape)
		shape[p.dim] *= inf.factor
		return rewrite.Replacement{Type: t.Type, Shape: shape, Write: func(w io.Writer) error {
			return inf.writeTensor(w, r, t, p, buf)
		}}, true
	}, inf.numbers...)
}

// writeTensor writes t with its padding; buf is working space.
func (inf *Inflation) writeTensor(w io.Writer, r io.ReaderAt, t *gguf.Tensor, p padding, buf []byte) error {
	random := stream(inf.seed, t.Name)
	in := bufio.NewReaderSize(io.NewSectionReader(r, t.Offset, t.Size), 64<<10)
	kept := make([]byte, min(p.piece, 64<<10))
	block := int(t.Type.BlockBytes())
	if p.scales == nil {
		clear(buf)
	}
	for range t.Size / p.piece {
		for left := p.piece; left > 0; {
			b := kept[:min(left, int64(len(kept)))]
			if _, err := io.ReadFull(in, b); err == io.EOF || err == io.ErrUnexpectedEOF {
				return gguf.ErrTruncated
			} else if err != nil {
				return err
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
			left -= int64(len(b))
		}
		for left := p.piece * (inf.factor - 1); left > 0; {
			b := buf[:min(left, int64(len(buf)/block*block))]
			if p.scales != nil {
				random.Read(b) // never fails
				for at := 0; at < len(b); at += block {
					for _, s := range p.scales {
						b[at+s], b[at+s+1] = 0, 0
					}
				}
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
			left -= int64(len(b))
		}
	}
	return nil
}
