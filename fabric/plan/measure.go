package plan

// This file measures the size and error of the possible forms of a model's matrices, and makes the
// matrices of a plan.

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"tensorcast/fabric"
	"tensorcast/fabric/decompose"
	"tensorcast/fabric/trit"
	"tensorcast/gguf"
)

// ErrModel says that a plan was made for another model.
var ErrModel = errors.New("the plan is of another model")

// ErrBound says that a whole matrix does not meet the bound, although the sample of its rows did.
var ErrBound = errors.New("the bound is not kept")

// Config says how to measure. The zero value is valid.
type Config struct {
	Rows     int             // number of rows of each matrix to sample, evenly spread; 0: all
	Forms    []decompose.Fit // forms to measure in addition to exact planes; nil: Forms()
	Workers  int             // largest number of goroutines; 0: GOMAXPROCS
	Progress func(done, total int)
}

// Forms returns the fitted forms that are worth measuring. These are 1 to 6 planes with one factor
// for each block of 16 to 256, and 2 to 4 planes with a factor each for a block of 32 or 64.
func Forms() []decompose.Fit {
	var forms []decompose.Fit
	for planes := 1; planes <= 6; planes++ {
		for _, block := range []int{16, 32, 64, 128, 256} {
			forms = append(forms, decompose.Fit{Planes: planes, Block: block, Shared: true})
		}
		if planes >= 2 && planes <= 4 {
			forms = append(forms, decompose.Fit{Planes: planes, Block: 32}, decompose.Fit{Planes: planes, Block: 64})
		}
	}
	return forms
}

// role says which forms a tensor may get.
type role int

const (
	stays    role = iota
	lossless      // only exact planes
	lossy         // any planes
)

// roleOf returns the role of a tensor. Tensors that are multiplied by vectors may get planes: the
// projections of attention, feed-forward and experts. The projection to the vocabulary decides
// directly between tokens, so it must be lossless. Embeddings stay as they are, because their rows
// are only looked up. So do routers and norms, because they are small.
func roleOf(t *gguf.Tensor) role {
	if len(t.Shape) < 2 || !strings.HasSuffix(t.Name, ".weight") {
		return stays
	}
	switch t.Kind() {
	case gguf.KindOutput:
		return lossless
	case gguf.KindAttention, gguf.KindFeedForward, gguf.KindExpert, gguf.KindSharedExpert:
		return lossy
	}
	return stays
}

// MatrixShape is the shape of a tensor as a matrix. The rows of all experts follow each other.
func MatrixShape(t *gguf.Tensor) (rows, cols int) {
	rows = 1
	for _, n := range t.Shape[1:] {
		rows *= int(n)
	}
	return rows, int(t.Shape[0])
}

// Measure measures all matrices of a model. It leaves out forms that a matrix cannot have: because
// it has no exact planes, because its type has no decoder, or because weights are not finite. The
// native form is always included.
func Measure(ctx context.Context, w *gguf.Weights, cfg Config) (*Survey, error) {
	forms := cfg.Forms
	if forms == nil {
		forms = Forms()
	}
	s := &Survey{}
	var todo []*gguf.Tensor
	bigEndian := map[*gguf.Tensor]bool{} // such weights are not decoded
	for _, f := range w.Model.Files {
		for i := range f.Tensors {
			t := &f.Tensors[i]
			n := int64(1)
			for _, d := range t.Shape {
				n *= d
			}
			s.Weights += n
			if roleOf(t) == stays {
				s.Other += t.Size
				continue
			}
			todo = append(todo, t)
			bigEndian[t] = f.BigEndian
		}
	}
	for i, t := range todo {
		m := Tensor{Name: t.Name, Type: t.Type, Choices: []Choice{{Native: true, Bytes: t.Size}}}
		m.Rows, m.Cols = MatrixShape(t)
		if !bigEndian[t] {
			h, _ := w.Lookup(t.Name)
			b, rows, err := SampleRows(h, m.Rows, cfg.Rows)
			if err == nil {
				err = measureForms(ctx, &m, b, rows, roleOf(t), forms, cfg.Workers)
			}
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", t.Name, err)
			}
		}
		s.Tensors = append(s.Tensors, m)
		if cfg.Progress != nil {
			cfg.Progress(i+1, len(todo))
		}
	}
	return s, nil
}

// SampleRows copies at most limit rows of a matrix of the given number of rows, evenly spread, and
// returns how many these are. A limit of 0 means all rows. If the file is truncated meanwhile,
// SampleRows returns an error. Without the copy, touching those pages in another goroutine would
// end the process.
func SampleRows(h gguf.Weight, rows, limit int) (sample []byte, n int, err error) {
	n = rows
	if limit > 0 {
		n = min(n, limit)
	}
	err = h.View(func(b []byte) error {
		size := len(b) / rows
		sample = make([]byte, 0, n*size)
		for i := range n {
			at := (2*i + 1) * rows / (2 * n)
			sample = append(sample, b[at*size:(at+1)*size]...)
		}
		return nil
	})
	return sample, n, err
}

// measureForms adds the possible forms of a matrix to m, measured with the sampled rows in b.
func measureForms(ctx context.Context, m *Tensor, b []byte, rows int, r role, forms []decompose.Fit,
	workers int) error {
	o := decompose.Options{Workers: workers}
	add := func(c Choice, of *fabric.Matrix) {
		// Rows are similar, so the size is scaled up from the sample.
		c.Bytes = storedBytes(of) / int64(rows) * int64(m.Rows)
		m.Choices = append(m.Choices, c)
	}
	exact, err := decompose.Exact(ctx, m.Type, rows, m.Cols, b, o)
	switch {
	case err == nil:
		add(Choice{Exact: true, Planes: len(exact.Terms[0].Planes)}, exact)
	case !errors.Is(err, decompose.ErrInexact):
		return err
	}
	if r == lossless {
		return nil
	}
	for _, f := range forms {
		fitted, e, err := decompose.Lossy(ctx, m.Type, rows, m.Cols, b, f, o)
		switch {
		case errors.Is(err, gguf.ErrNoDecoder) || errors.Is(err, decompose.ErrNotFinite):
			return nil
		case err != nil:
			return err
		case e.Signal == 0:
			// Any form of zeros is exact.
			e.Noise, e.Signal = 0, 1
		}
		c := Choice{Planes: f.Planes, Block: f.Block, Shared: f.Shared, Noise: e.Noise / e.Signal}
		if c.Noise > 0 {
			c.SNR = decibels(c.Noise)
		}
		add(c, fitted)
	}
	return nil
}

// storedBytes is the size of a matrix's planes and scales in a frame (planes as sequential PT-5),
// without the header.
func storedBytes(m *fabric.Matrix) int64 {
	scales := func(s *fabric.Scales) int64 { return int64(2*len(s.Half) + len(s.Sub) + 2*len(s.Super)) }
	n := scales(&m.Min)
	for i := range m.Terms {
		n += scales(&m.Terms[i].Scales) + int64(len(m.Terms[i].Planes)*m.Rows*trit.PT5.RowBytes(m.Cols))
	}
	return n
}

// Decompose makes the matrix that a plan has for a tensor. It returns nil if the tensor stays
// native. The error wraps ErrModel if the weights do not have this tensor, or ErrBound if the whole
// matrix does not meet the plan's bound.
func (p *Plan) Decompose(ctx context.Context, t *Planned, w *gguf.Weights, o decompose.Options) (*fabric.Matrix,
	error) {
	h, ok := w.Lookup(t.Name)
	if !ok {
		return nil, fmt.Errorf("%s: no such tensor: %w", t.Name, ErrModel)
	}
	rows, cols := 0, 0
	if roleOf(h.Tensor) != stays {
		rows, cols = MatrixShape(h.Tensor)
	}
	if h.Tensor.Type.String() != t.Type || rows != t.Rows || cols != t.Cols {
		return nil, fmt.Errorf("%s: %v %d x %d, planned for %s %d x %d: %w",
			t.Name, h.Tensor.Type, rows, cols, t.Type, t.Rows, t.Cols, ErrModel)
	}
	if t.Native {
		return nil, nil
	}
	m, e, err := decomposeTensor(ctx, h, t, o)
	if err == nil && p.Bound > 0 && e.SNR() < p.Bound {
		err = fmt.Errorf("%.2f dB over all rows, %.2f dB wanted: %w", e.SNR(), p.Bound, ErrBound)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Name, err)
	}
	return m, nil
}

// decomposeTensor makes the matrix, and returns its error if it is not exact.
func decomposeTensor(ctx context.Context, h gguf.Weight, t *Planned, o decompose.Options) (
	*fabric.Matrix, decompose.FitError, error) {
	b, _, err := SampleRows(h, t.Rows, 0)
	if err != nil {
		return nil, decompose.FitError{}, err
	}
	if t.Exact {
		m, err := decompose.Exact(ctx, h.Tensor.Type, t.Rows, t.Cols, b, o)
		return m, decompose.FitError{}, err
	}
	return decompose.Lossy(ctx, h.Tensor.Type, t.Rows, t.Cols, b, t.fit(), o)
}
