package hidden

// This file reads a model's routers.

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"

	"tensorcast/gguf"
	"tensorcast/internal/vec"
	"tensorcast/moe"
)

// ErrNoRouters says that a model has no routers, or none of a kind that this package knows.
var ErrNoRouters = errors.New("no routers")

// Bounds of routers. Those of published models are far below.
const (
	maxDim     = 1 << 16
	maxExperts = 1 << 12
	maxLayers  = 1 << 10
	maxWeights = 1 << 28 // of all matrices
	maxVocab   = 1 << 20
)

// gating is how a router's products become what is compared (llama.cpp's llama_expert_gating_func_type).
type gating uint8

const (
	gateSoftmax gating = 1
	gateSigmoid gating = 2
	// The products are compared as they are. The softmax of the chosen ones weighs them.
	gateLogits       gating = 3
	gateSqrtSoftplus gating = 4
)

// Routers are the routers of a model: copies of their matrices in 8 bits, and how they choose. They do
// not change once they were read, and may be used concurrently.
type Routers struct {
	Dim     int     // of the vectors that routers read
	Experts int     // of each layer
	K       int     // how many a token chooses
	Blocks  []int32 // by layer: its number in the model ("blk.N"), ascending
	ID      string  // differs for other routers: 32 hex digits

	layers             []router
	gate               gating
	groups, groupsUsed int // 0 where experts are not chosen by groups
	ignoresShift       bool
}

// router is the router of one layer.
type router struct {
	matrix matrix
	bias   []float32 // added to the products; nil: none
	prefer []float32 // added to what is compared; nil: none
	// norm are the weights of the norm whose result the router reads, and shift is what that norm adds.
	// They are nil if they are not known, or there are none.
	norm, shift []float32
	// Reciprocals of the weights of that norm, and of the norm before attention. They are 0 where weights
	// are too small to divide by, and nil if the weights are not known.
	inverse, attnInverse []float32
	attnShift            []float32
	// The greatest possible root of the mean square of each norm's result; 0 if that is not known.
	maxRMS, attnMaxRMS float32
	// table has the experts to which each token of the vocabulary is sent, K for each. It is nil where
	// the token's id does not choose.
	table []uint16
}

// ReadRouters reads the routers of a model. It maps the model's files while it runs, and reads only the routers
// and norms of them. Errors wrap ErrNoRouters, or are those of package gguf.
func ReadRouters(m *gguf.Model) (*Routers, error) {
	w, err := gguf.OpenWeights(m, 0)
	if err != nil {
		return nil, fmt.Errorf("read routers: %w", err)
	}
	defer w.Close()
	r, err := readRouters(m, w)
	if err != nil {
		return nil, fmt.Errorf("read routers: %w", err)
	}
	return r, nil
}

func readRouters(m *gguf.Model, w *gguf.Weights) (*Routers, error) {
	r := &Routers{}
	for _, f := range m.Files {
		if f.BigEndian {
			return nil, fmt.Errorf("%w: weights in big-endian order", errors.ErrUnsupported)
		}
		for i := range f.Tensors {
			t := &f.Tensors[i]
			if t.Component() != "ffn_gate_inp.weight" || t.Layer() < 0 {
				continue
			}
			if len(t.Shape) != 2 || t.Shape[0] > maxDim || t.Shape[1] > maxExperts {
				return nil, fmt.Errorf("%w: %.100s has the shape %v", ErrNoRouters, t.Name, t.Shape)
			}
			dim, experts := int(t.Shape[0]), int(t.Shape[1])
			if len(r.Blocks) == 0 {
				r.Dim, r.Experts = dim, experts
			}
			if dim != r.Dim || experts != r.Experts {
				return nil, fmt.Errorf("%w: %.100s is of %d x %d, another one of %d x %d", ErrNoRouters, t.Name, dim,
					experts, r.Dim, r.Experts)
			}
			if len(r.Blocks) == maxLayers || (len(r.Blocks)+1)*dim*experts > maxWeights {
				return nil, fmt.Errorf("%w: more than %d layers of %d x %d are too many", ErrNoRouters, len(r.Blocks),
					dim, experts)
			}
			r.Blocks = append(r.Blocks, int32(t.Layer()))
		}
	}
	if len(r.Blocks) == 0 {
		return nil, fmt.Errorf("%w: the model has no blk.N.ffn_gate_inp.weight", ErrNoRouters)
	}
	slices.Sort(r.Blocks)
	if err := r.readMetadata(m); err != nil {
		return nil, err
	}
	l := loader{w: w, k: r.K}
	for _, block := range r.Blocks {
		r.layers = append(r.layers, l.readRouter(block, r.Dim, r.Experts))
	}
	if l.err != nil {
		return nil, l.err
	}
	biased := slices.ContainsFunc(r.layers, func(l router) bool { return l.prefer != nil })
	if r.gate == 0 {
		r.gate = gateSoftmax
		if biased {
			r.gate = gateSigmoid
		}
	}
	r.ignoresShift = !biased && r.groups == 0
	sum, err := r.computeID(m)
	r.ID = sum
	return r, err
}

// readMetadata reads how experts are chosen.
func (r *Routers) readMetadata(m *gguf.Model) error {
	number := func(key string) int {
		for _, f := range m.Files {
			if arch, ok := f.String("general.architecture"); ok {
				if n, ok := f.Uint(arch + "." + key); ok {
					return int(min(n, math.MaxInt32))
				}
			}
		}
		return 0
	}
	if r.K = number("expert_used_count"); r.K < 1 || r.K > r.Experts {
		return fmt.Errorf("%w: %d experts are chosen of %d (expert_used_count)", ErrNoRouters, r.K, r.Experts)
	}
	gate := number("expert_gating_func")
	if gate < 0 || gate > int(gateSqrtSoftplus) {
		return fmt.Errorf("%w: experts are compared in an unknown way (expert_gating_func %d)", ErrNoRouters, gate)
	}
	r.gate = gating(gate)
	if groups, used := number("expert_group_count"), number("expert_group_used_count"); groups > 1 && used > 0 &&
		used < groups {
		if r.Experts%groups != 0 || r.Experts/groups*used < r.K {
			return fmt.Errorf("%w: %d experts in %d groups, %d of which are chosen", ErrNoRouters, r.Experts, groups,
				used)
		}
		r.groups, r.groupsUsed = groups, used
	}
	return nil
}

// loader reads tensors. It keeps its first error.
type loader struct {
	w   *gguf.Weights
	k   int // experts that a token chooses
	err error
}

// readVector reads the first of these components of a block that is there. It has to have n elements. The
// result is nil if there is none.
func (l *loader) readVector(block int32, n int, components ...string) []float32 {
	for _, c := range components {
		name := fmt.Sprintf("blk.%d.%s", block, c)
		h, ok := l.w.Lookup(name)
		if !ok || l.err != nil {
			continue
		}
		elements := int64(1)
		for _, s := range h.Tensor.Shape {
			elements *= s // at most the file's size
		}
		if elements != int64(n) {
			l.err = fmt.Errorf("%w: %.100s has %d elements, not %d", ErrNoRouters, name, elements, n)
			return nil
		}
		values := make([]float32, n)
		if l.err = l.dequantize(h, values); l.err != nil {
			return nil
		}
		for _, v := range values {
			if !isFinite(v) {
				l.err = fmt.Errorf("%w: %.100s has values that are not finite", ErrNoRouters, name)
				return nil
			}
		}
		return values
	}
	return nil
}

func (l *loader) dequantize(h gguf.Weight, values []float32) error {
	return h.View(func(data []byte) error { return gguf.Dequantize(values, h.Tensor.Type, data) })
}

func (l *loader) readRouter(block int32, dim, experts int) router {
	r := router{
		bias:      l.readVector(block, experts, "ffn_gate_inp.bias"),
		prefer:    l.readVector(block, experts, "exp_probs_b.bias", "exp_probs_b"),
		norm:      l.readVector(block, dim, "ffn_norm.weight", "post_attention_norm.weight"),
		shift:     l.readVector(block, dim, "ffn_norm.bias"),
		attnShift: l.readVector(block, dim, "attn_norm.bias"),
	}
	attn := l.readVector(block, dim, "attn_norm.weight")
	r.inverse, r.maxRMS = reciprocals(r.norm), rmsBound(r.norm, r.shift)
	r.attnInverse, r.attnMaxRMS = reciprocals(attn), rmsBound(attn, r.attnShift)
	values := l.readVector(block, dim*experts, "ffn_gate_inp.weight")
	if l.err != nil {
		return r
	}
	r.table = l.readTable(block, experts)
	ok := false
	if r.matrix, ok = newMatrix(values, experts, dim); !ok {
		l.err = fmt.Errorf("%w: blk.%d.ffn_gate_inp.weight has values that are too large", ErrNoRouters, block)
	}
	return r
}

// readTable reads to which experts each token's id is sent.
func (l *loader) readTable(block int32, experts int) []uint16 {
	name := fmt.Sprintf("blk.%d.ffn_gate_tid2eid.weight", block)
	h, ok := l.w.Lookup(name)
	if !ok || l.err != nil {
		return nil
	}
	if s := h.Tensor.Shape; h.Tensor.Type != gguf.I32 || len(s) != 2 || s[0] != int64(l.k) || s[1] > maxVocab {
		l.err = fmt.Errorf("%w: %s has the type %v and the shape %v", ErrNoRouters, name, h.Tensor.Type, s)
		return nil
	}
	table := make([]uint16, 0, h.Tensor.Size/4)
	l.err = h.View(func(data []byte) error {
		for ; len(data) >= 4; data = data[4:] {
			e := binary.LittleEndian.Uint32(data)
			if e >= uint32(experts) {
				return fmt.Errorf("%w: it has expert %d of %d", ErrNoRouters, int32(e), experts)
			}
			table = append(table, uint16(e))
		}
		return nil
	})
	return table
}

// reciprocals are 1/w. Where a weight is far smaller than most, what it was multiplied with cannot be
// told from the product, and the reciprocal is taken for 0.
func reciprocals(w []float32) []float32 {
	if w == nil {
		return nil
	}
	const share = 1. / 1024
	least := share * rms(w)
	inv := make([]float32, len(w))
	for i, v := range w {
		if max(v, -v) > least {
			inv[i] = 1 / v
		}
	}
	return inv
}

// rmsBound is the greatest possible root of the mean square of a norm's result. What the norm multiplies
// with its weights has a root of 1 at most. There is room for norms of other kinds. It is 0 if the
// weights are not known.
func rmsBound(w, shift []float32) float32 {
	most, moved := float32(0), float32(0)
	for _, v := range w {
		most = max(most, v, -v)
	}
	for _, v := range shift {
		moved = max(moved, v, -v)
	}
	const room = 8
	return room * (most + moved)
}

// rms is the root of the mean square.
func rms(x []float32) float32 {
	return float32(math.Sqrt(float64(vec.Dot(x, x)) / float64(max(len(x), 1))))
}

func isFinite(x float32) bool { return x-x == 0 }

// computeID hashes the fingerprints of the model's files, and the routers: models that differ only in
// their weights have the same fingerprints.
func (r *Routers) computeID(m *gguf.Model) (string, error) {
	h := sha256.New()
	for _, f := range m.Files {
		fingerprint, err := f.Fingerprint()
		if err != nil {
			return "", err
		}
		h.Write([]byte(fingerprint))
	}
	var buf []byte
	for i := range r.layers {
		l := &r.layers[i]
		buf = buf[:0]
		for _, q := range l.matrix.q {
			buf = append(buf, byte(q))
		}
		for _, v := range [][]float32{l.matrix.scale, l.bias, l.prefer, l.norm} {
			for _, x := range v {
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(x))
			}
		}
		h.Write(buf)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// Shape is the shape of the model's routing.
func (r *Routers) Shape() moe.Shape {
	return moe.Shape{Layers: len(r.Blocks), Experts: r.Experts, K: r.K}
}

// Index is the layer of a block of the model; -1 if the block has no router.
func (r *Routers) Index(block int32) int {
	if i, ok := slices.BinarySearchFunc(r.Blocks, block, func(a, b int32) int { return cmp.Compare(a, b) }); ok {
		return i
	}
	return -1
}

// Bytes is the memory that the routers take.
func (r *Routers) Bytes() int64 {
	sum := int64(0)
	for i := range r.layers {
		l := &r.layers[i]
		sum += l.matrix.bytes() + 2*int64(len(l.table))
		for _, v := range [][]float32{l.bias, l.prefer, l.norm, l.shift, l.inverse, l.attnInverse, l.attnShift} {
			sum += 4 * int64(len(v))
		}
	}
	return sum
}
