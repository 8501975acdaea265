// Package tryteplan determines how many trits the weights of each layer of a model need if they are to be
// edited or used in exact arithmetic (package tryte) instead of being multiplied as planes (package plan). "lab
// fabricplan --trytes" runs it.
package tryteplan

// This file calibrates the depths, and passes a model's weights through trytes.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"tensorcast/fabric/lab/tryte"
	"tensorcast/fabric/plan"
	"tensorcast/gguf"
)

// Plan says how many trits the weights of each layer need. It can be written and read with encoding/json.
type Plan struct {
	Bound  float64   `json:"bound_db"`           // every tensor's values are at least this far above their error
	Values int64     `json:"values"`             // number of values stored
	Trits  int64     `json:"trits"`              // number of trits for these
	Layers []Layer   `json:"layers"`             // in order
	Left   []LeftOut `json:"left_out,omitempty"` // tensors that are not stored as trytes
}

// Layer is a layer. All its values have the same depth, so that values of different tensors can be added and
// compared trit by trit.
type Layer struct {
	Layer   int      `json:"layer"` // -1 for tensors that belong to none
	Depth   int      `json:"depth"` // the largest need of its tensors
	Tensors []Tensor `json:"tensors"`
}

// Tensor is a tensor of a layer.
type Tensor struct {
	Name    string  `json:"name"`
	Type    string  `json:"type"` // type in the file
	Values  int64   `json:"values"`
	Need    int     `json:"need"`             // trits that it needs by itself
	Scale   float32 `json:"scale"`            // value of the number 1
	SNR     float64 `json:"snr_db,omitempty"` // signal-to-noise ratio of the sampled rows; absent if there is no error
	Clipped int64   `json:"clipped"`          // sampled values beyond the range
}

// LeftOut is a tensor that is not stored as trytes, with the reason.
type LeftOut struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// scaleSamples is the number of values to which a scale is fitted. Whether a depth suffices is tested on all
// sampled rows.
const scaleSamples = 1 << 14

// Config says how to calibrate. The zero value is valid.
type Config struct {
	Rows     int // number of rows of each tensor to sample, evenly spread; 0: all
	Workers  int // largest number of goroutines; 0: GOMAXPROCS
	Progress func(done, total int)
}

// Calibrate determines, for each layer, the smallest depth with which each of its tensors meets a bound in
// decibels, and for each tensor the scale with the least error at that depth. Tensors without a decoder, with
// values that are not finite, or for which tryte.MaxDepth trits do not suffice, are left out.
func Calibrate(ctx context.Context, w *gguf.Weights, bound float64, cfg Config) (*Plan, error) {
	if !(bound > 0) {
		return nil, fmt.Errorf("calibrate trytes for %g dB: want more than 0", bound)
	}
	t := &Plan{Bound: bound}
	layers := map[int][]*calibration{}
	total := 0
	for _, f := range w.Model.Files {
		for i := range f.Tensors {
			tensor := &f.Tensors[i]
			if f.BigEndian {
				t.Left = append(t.Left, LeftOut{tensor.Name, "its bytes are in big-endian order"})
				continue
			}
			h, _ := w.Lookup(tensor.Name)
			layers[tensor.Layer()] = append(layers[tensor.Layer()], &calibration{h: h})
			total++
		}
	}
	numbers := make([]int, 0, len(layers))
	for n := range layers {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	done := 0
	for _, n := range numbers {
		layer := Layer{Layer: n}
		findNeed := func(s *calibration) error { return s.findNeed(bound, cfg.Rows) }
		if err := forEach(ctx, layers[n], cfg.Workers, findNeed); err != nil {
			return nil, err
		}
		for _, s := range layers[n] {
			layer.Depth = max(layer.Depth, s.Need)
		}
		setDepth := func(s *calibration) error { return s.setDepth(layer.Depth, bound) }
		if err := forEach(ctx, layers[n], cfg.Workers, setDepth); err != nil {
			return nil, err
		}
		for _, s := range layers[n] {
			if s.reason != "" {
				t.Left = append(t.Left, LeftOut{s.h.Tensor.Name, s.reason})
				continue
			}
			layer.Tensors = append(layer.Tensors, s.Tensor)
			t.Values += s.Values
			t.Trits += s.Values * int64(layer.Depth)
		}
		if len(layer.Tensors) > 0 {
			t.Layers = append(t.Layers, layer)
		}
		done += len(layers[n])
		delete(layers, n)
		if cfg.Progress != nil {
			cfg.Progress(done, total)
		}
	}
	return t, nil
}

// forEach calls do for each tensor, in as many goroutines as workers; 0: GOMAXPROCS.
func forEach(ctx context.Context, all []*calibration, workers int, do func(*calibration) error) error {
	var group errgroup.Group
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	group.SetLimit(workers)
	for _, s := range all {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := do(s); err != nil {
				return fmt.Errorf("calibrate %s: %w", s.h.Tensor.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// calibration is a tensor being calibrated.
type calibration struct {
	Tensor
	h           gguf.Weight
	reason      string // why it is left out
	sampled     []float32
	scaleSample [][]float32 // some of these, to which the scale is fitted
}

// findNeed determines how many trits the tensor needs by itself to meet the bound in decibels. It samples as many
// rows as maxRows; 0: all.
func (s *calibration) findNeed(bound float64, maxRows int) error {
	t := s.h.Tensor
	s.Name, s.Type = t.Name, t.Type.String()
	rows, cols := matrixShape(t)
	s.Values = int64(rows) * int64(cols)
	if s.Values == 0 {
		s.reason = "it has no values"
		return nil
	}
	b, n, err := plan.SampleRows(s.h, rows, maxRows)
	if err != nil {
		return err
	}
	s.sampled = make([]float32, n*cols)
	if err := gguf.Dequantize(s.sampled, t.Type, b); errors.Is(err, gguf.ErrNoDecoder) {
		s.reason = err.Error()
		return nil
	} else if err != nil {
		return err
	}
	few := make([]float32, min(len(s.sampled), scaleSamples))
	for i := range few {
		few[i] = s.sampled[(2*i+1)*len(s.sampled)/(2*len(few))]
	}
	s.scaleSample = [][]float32{few}
	for _, v := range s.sampled {
		if v-v != 0 { // NaN or infinite
			s.reason = fmt.Sprintf("one of its values is %v", v)
			s.sampled = nil
			return nil
		}
	}
	c, err := tryte.Calibrate(s.scaleSample, bound)
	for depth := c.Depth; err == nil; depth++ {
		if depth > tryte.MaxDepth {
			err = tryte.ErrTarget
			break
		}
		if err = s.fitScale(depth, bound); err == nil && s.SNR >= bound {
			s.Need = depth
			return nil
		}
	}
	if !errors.Is(err, tryte.ErrTarget) {
		return err
	}
	s.reason = fmt.Sprintf("%d trits do not hold it with %g dB", tryte.MaxDepth, bound)
	s.sampled = nil
	return nil
}

// setDepth calibrates the tensor for its layer's depth.
func (s *calibration) setDepth(depth int, bound float64) error {
	if s.reason != "" {
		return nil
	}
	if s.Need < depth {
		if err := s.fitScale(depth, bound); err != nil {
			return err
		}
	}
	if math.IsInf(s.SNR, 1) {
		s.SNR = 0 // no error; JSON has no infinity
	}
	s.sampled, s.scaleSample = nil, nil
	return nil
}

// fitScale fits the scale for a depth: to a few values, or to all if the others differ from these, for example
// with one that is a hundred times as large.
func (s *calibration) fitScale(depth int, bound float64) error {
	for _, from := range [][][]float32{s.scaleSample, {s.sampled}} {
		c, err := tryte.CalibrateDepth(from, depth)
		if err != nil {
			return err
		}
		if s.measure(c); s.SNR >= bound {
			break
		}
	}
	return nil
}

// measure passes all sampled values through trytes.
func (s *calibration) measure(c tryte.Calibration) {
	h := newRoundTrip(c.Depth, c.Scale)
	row := make([]float32, chunkValues)
	for at := 0; at < len(s.sampled); at += chunkValues {
		part := s.sampled[at:min(at+chunkValues, len(s.sampled))]
		h.pass(row[:len(part)], part)
	}
	s.Scale, s.SNR, s.Clipped = c.Scale, h.snr(), h.clipped
}

// chunkValues is how many values are stored in one vector.
const chunkValues = 4096

// roundTrip stores values as trytes and measures the error.
type roundTrip struct {
	depth         int
	scale         float32
	v             *tryte.Vector
	signal, noise float64
	clipped       int64
}

func newRoundTrip(depth int, scale float32) *roundTrip {
	return &roundTrip{depth: depth, scale: scale, v: tryte.NewVector(chunkValues, depth)}
}

// pass stores src, of at most chunkValues values, as trytes and writes the resulting values to dst.
func (h *roundTrip) pass(dst, src []float32) {
	if h.v.Len() != len(src) {
		h.v = tryte.NewVector(len(src), h.depth)
	}
	h.clipped += int64(h.v.SetFloats(src, h.scale))
	h.v.Floats(dst, h.scale)
	for i, v := range src {
		e := float64(dst[i]) - float64(v)
		h.signal += float64(v) * float64(v)
		h.noise += e * e
	}
}

// snr is the ratio of signal to noise of all values so far, in decibels.
func (h *roundTrip) snr() float64 {
	if h.noise == 0 {
		return math.Inf(1)
	}
	return 10 * math.Log10(h.signal/h.noise)
}

// matrixShape is the tensor's shape as rows; one row if it is a vector.
func matrixShape(t *gguf.Tensor) (rows, cols int) {
	if len(t.Shape) == 0 {
		return 1, 1
	}
	return plan.MatrixShape(t)
}

// Lookup returns a tensor and its layer's depth.
func (t *Plan) Lookup(name string) (tensor *Tensor, depth int, ok bool) {
	for i := range t.Layers {
		for j := range t.Layers[i].Tensors {
			if t.Layers[i].Tensors[j].Name == name {
				return &t.Layers[i].Tensors[j], t.Layers[i].Depth, true
			}
		}
	}
	return nil, 0, false
}

// Hold passes all values of a tensor through trytes, in the order of the file, and calls emit with the
// resulting values, in pieces that are valid until emit returns. If emit fails, Hold returns its error. Other
// errors wrap plan.ErrModel if the calibration has no such tensor, or plan.ErrBound, after the last piece, if
// the whole tensor has a larger error than the bound allows, unlike the sampled rows.
func (t *Plan) Hold(ctx context.Context, w *gguf.Weights, name string, emit func(values []float32) error) error {
	fail := func(err error) error { return fmt.Errorf("hold %s as trytes: %w", name, err) }
	c, depth, ok := t.Lookup(name)
	h, found := w.Lookup(name)
	if !ok || !found {
		return fail(plan.ErrModel)
	}
	rows, cols := matrixShape(h.Tensor)
	if h.Tensor.Type.String() != c.Type || int64(rows)*int64(cols) != c.Values {
		return fail(fmt.Errorf("%d values of type %v, %d of %s were calibrated: %w", rows*cols, h.Tensor.Type,
			c.Values, c.Type, plan.ErrModel))
	}
	b, _, err := plan.SampleRows(h, rows, 0)
	if err != nil {
		return fail(err)
	}
	hold := newRoundTrip(depth, c.Scale)
	size := len(b) / rows
	src, dst := make([]float32, cols), make([]float32, min(cols, chunkValues))
	for r := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := gguf.Dequantize(src, h.Tensor.Type, b[r*size:(r+1)*size]); err != nil {
			return fail(err)
		}
		for at := 0; at < cols; at += chunkValues {
			part := src[at:min(at+chunkValues, cols)]
			hold.pass(dst[:len(part)], part)
			if err := emit(dst[:len(part)]); err != nil {
				return err
			}
		}
	}
	if snr := hold.snr(); !(snr >= t.Bound) {
		return fail(fmt.Errorf("%.2f dB over all rows, %.2f dB wanted: %w", snr, t.Bound, plan.ErrBound))
	}
	return nil
}
