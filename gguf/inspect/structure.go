package inspect

// This file makes the tables of extents: a row per tensor, or per expert.

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"tensorcast/gguf"
)

// Structure returns a row per tensor, in the order of models, files and offsets. The first six columns are always
//
//	tensor_name   as in the file
//	offset_bytes  absolute in its file
//	size_bytes    without padding
//	type          ggml's name
//	layer         N of "blk.N.", -1 if the tensor is in no layer
//	component     the name after "blk.N.", else the whole name
//
// If there is more than one file, the column file follows. Wide tables have it too, and after it
//
//	shape                elements per dimension, fastest first: "4096x14336x8"
//	expert_count         0 unless the tensor has a slice per expert
//	expert_stride_bytes  from one slice to the next, and a slice's size; 0 likewise
//	kind                 "attention", "expert", ...
//	resident_bytes       of the tensor that are in the page cache, exact to a page at either end
//
// A wide table queries the page cache for each tensor; the files must not have changed since they were opened.
func Structure(models []*gguf.Model, wide bool) (*Table, error) {
	var (
		c        columns
		names    = fileNames(models)
		shapes   []string
		experts  []int64
		stride   []int64
		kinds    []string
		resident []int64
	)
	for _, m := range models {
		var w *gguf.Weights
		if wide {
			var err error
			if w, err = gguf.OpenWeights(m, 0); err != nil {
				return nil, err
			}
		}
		for i, f := range m.Files {
			for j := range f.Tensors {
				t := &f.Tensors[j]
				c.add(t, t.Offset, t.Size, names[f])
				if !wide {
					continue
				}
				shapes = append(shapes, shape(t))
				experts = append(experts, int64(t.Experts()))
				stride = append(stride, t.ExpertStride())
				kinds = append(kinds, t.Kind().String())
				n, err := w.At(gguf.Location{Tensor: t, Expert: -1, File: i}).Resident()
				if err != nil {
					return nil, errors.Join(err, w.Close())
				}
				resident = append(resident, n)
			}
		}
		if wide {
			if err := w.Close(); err != nil {
				return nil, err
			}
		}
	}
	t := &Table{Columns: c.six()}
	if wide || len(names) > 1 {
		t.Columns = append(t.Columns, Column{"file", c.file})
	}
	if wide {
		t.Columns = append(t.Columns, Column{"shape", shapes}, Column{"expert_count", experts}, Column{"expert_stride_bytes", stride},
			Column{"kind", kinds}, Column{"resident_bytes", resident})
	}
	return t, nil
}

// maxSlices bounds the rows of Experts: even a small file can declare any number of experts.
const maxSlices = 1 << 24

// Experts returns a row per expert's slice, in the order of models, files and offsets. It has the six columns of Structure, with the
// slice's extent, then
//
//	expert      from 0
//	projection  "gate", "up", "down" or "gate_up"; "" where each expert has tensors of its own
//
// and, if there is more than one file, the column file. Shared experts, which every token uses, are not listed.
func Experts(models []*gguf.Model) (*Table, error) {
	var (
		c           columns
		names       = fileNames(models)
		experts     []int32
		projections []string
	)
	for _, m := range models {
		for _, f := range m.Files {
			for i := range f.Tensors {
				t := &f.Tensors[i]
				if t.Kind() != gguf.KindExpert {
					continue
				}
				n, stride, first := t.Experts(), t.ExpertStride(), 0
				if n == 0 { // a tensor that holds a single expert
					n, stride, first = 1, t.Size, t.ExpertAt(t.Offset)
				}
				if n > maxSlices-len(experts) {
					return nil, fmt.Errorf("%s: tensor %.100q has %d experts, more rows than a table of %d", f.Path, t.Name, n, maxSlices)
				}
				projection := t.Projection()
				for e := range n {
					c.add(t, t.Offset+int64(e)*stride, stride, names[f])
					experts = append(experts, int32(first+e))
					projections = append(projections, projection)
				}
			}
		}
	}
	t := &Table{Columns: append(c.six(), Column{"expert", experts}, Column{"projection", projections})}
	if len(names) > 1 {
		t.Columns = append(t.Columns, Column{"file", c.file})
	}
	return t, nil
}

// columns are the columns that both tables have.
type columns struct {
	name, typ, component, file []string
	offset, size               []int64
	layer                      []int32
}

func (c *columns) add(t *gguf.Tensor, offset, size int64, file string) {
	c.name = append(c.name, t.Name)
	c.offset = append(c.offset, offset)
	c.size = append(c.size, size)
	c.typ = append(c.typ, t.Type.String())
	c.layer = append(c.layer, int32(t.Layer()))
	c.component = append(c.component, t.Component())
	c.file = append(c.file, file)
}

func (c *columns) six() []Column {
	return []Column{
		{"tensor_name", c.name}, {"offset_bytes", c.offset}, {"size_bytes", c.size}, {"type", c.typ}, {"layer", c.layer}, {"component", c.component},
	}
}

func shape(t *gguf.Tensor) string {
	var s strings.Builder
	for i, n := range t.Shape {
		if i > 0 {
			s.WriteByte('x')
		}
		s.WriteString(strconv.FormatInt(n, 10))
	}
	return s.String()
}
