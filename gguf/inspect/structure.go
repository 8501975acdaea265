package inspect

// This file makes the tables of extents: a row per tensor, or per expert.

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"tensorcast/gguf"
	"tensorcast/internal/pagecache"
)

// six are the first columns of the tables of this file.
var six = []column{
	{"tensor_name", text}, {"offset_bytes", int64s}, {"size_bytes", int64s}, {"type", text}, {"layer", int32s},
	{"component", text},
}

// sixCells replaces cells by those of the first six columns.
func sixCells(cells []cell, t *gguf.Tensor, offset, size int64) []cell {
	return append(cells[:0],
		shown(t.Name), num(offset), num(size), str(t.Type.String()), num(t.Layer()), shown(t.Component()))
}

// Structure returns a row per tensor, in the order of models, files and offsets. The first six
// columns are always
//
//	tensor_name   as in the file, but for what is no printable text (see package visible)
//	offset_bytes  absolute in its file
//	size_bytes    without padding, unless the type is not known
//	type          ggml's name, that of a fork, or "type(N)"
//	layer         N of "blk.N.", -1 if the tensor is in no layer
//	component     the name after "blk.N.", else the whole name
//
// If there is more than one file, the column file follows.
func Structure(models []*gguf.Model) *Table {
	names := fileNames(models)
	t := &Table{columns: six}
	if len(names) > 1 {
		t.columns = append(six[:len(six):len(six)], column{"file", text})
	}
	t.each = func(row func([]cell) error) error {
		var cells []cell
		for _, m := range models {
			for _, f := range m.Files {
				for i := range f.Tensors {
					x := &f.Tensors[i]
					cells = append(sixCells(cells, x, x.Offset, x.Size), str(names[f]))
					if err := row(cells); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	return t
}

// Wide returns Structure's table with the column file and after it
//
//	shape                elements per dimension, fastest first: "4096x14336x8"
//	expert_count         0 unless the tensor has a slice per expert
//	expert_stride_bytes  size of a slice, and distance from one slice to the next; 0 likewise, and if
//	                     it is not known
//	kind                 "attention", "expert", ...
//	resident_bytes       bytes of the tensor in the page cache, exact to a page at either end; null
//	                     if that is not known
//
// The kernel is asked about the residency of each tensor. The files must not have changed since
// they were opened. If the kernel does not say what of a file is resident, unknown is called once
// for that file, with the reason, which names the file.
func Wide(models []*gguf.Model, unknown func(error)) *Table {
	names := fileNames(models)
	t := &Table{columns: append(six[:len(six):len(six)],
		column{"file", text}, column{"shape", text}, column{"expert_count", int64s},
		column{"expert_stride_bytes", int64s}, column{"kind", text}, column{"resident_bytes", int64sOrNull})}
	t.each = func(row func([]cell) error) error {
		for _, m := range models {
			for _, f := range m.Files {
				if err := eachWideRow(f, names[f], unknown, row); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return t
}

// eachWideRow calls row with each row of a file.
func eachWideRow(f *gguf.File, name string, unknown func(error), row func([]cell) error) (err error) {
	file, err := f.Reopen()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	residency := pagecache.ResidencyOf(file, nil)
	known := true
	if err := residency.Check(); errors.Is(err, pagecache.ErrUnknown) {
		unknown(err)
		known = false
	}
	var cells []cell
	for i := range f.Tensors {
		x := &f.Tensors[i]
		var resident cell
		if known {
			resident, err = residencyCell(residency, x)
			if errors.Is(err, fs.ErrPermission) {
				unknown(err)
				known = false
			} else if err != nil {
				return err
			}
		}
		resident.null = !known
		cells = append(sixCells(cells, x, x.Offset, x.Size),
			str(name), str(shapeText(x)), num(x.Experts()), num(x.ExpertStride()), str(x.Kind().String()), resident)
		if err := row(cells); err != nil {
			return err
		}
	}
	return nil
}

// residencyCell is the cell of how many bytes of a tensor are in the page cache.
func residencyCell(file *pagecache.Residency, t *gguf.Tensor) (cell, error) {
	n, err := file.Bytes(t.Offset, t.Size)
	return num(min(n, t.Size)), err
}

// maxSlices bounds the rows of Experts: even a small file can declare any number of experts.
const maxSlices = 1 << 24

// Experts returns a row per expert's slice, in the order of models, files and offsets. It has the
// six columns of Structure, with the slice's extent, then
//
//	expert      from 0; -1 for all of them, where it is not known where the slices of a type begin
//	projection  "gate", "up", "down" or "gate_up"; "" where each expert has tensors of its own
//
// and, if there is more than one file, the column file. Shared experts, which every token uses, are
// not listed.
func Experts(models []*gguf.Model) (*Table, error) {
	names := fileNames(models)
	if err := checkSlices(models); err != nil {
		return nil, err
	}
	t := &Table{columns: append(six[:len(six):len(six)], column{"expert", int32s}, column{"projection", text})}
	if len(names) > 1 {
		t.columns = append(t.columns, column{"file", text})
	}
	t.each = func(row func([]cell) error) error {
		var cells []cell
		for _, m := range models {
			for _, f := range m.Files {
				for i := range f.Tensors {
					x := &f.Tensors[i]
					if x.Kind() != gguf.KindExpert {
						continue
					}
					n, stride, first := x.Experts(), x.ExpertStride(), 0
					if stride == 0 { // a tensor that holds a single expert, or of which slices are not known
						n, stride, first = 1, x.Size, x.ExpertAt(x.Offset)
					}
					projection := str(x.Projection())
					cells = sixCells(cells, x, 0, stride)
					for e := range n {
						cells[1] = num(x.Offset + int64(e)*stride)
						cells = append(cells[:len(six)], num(first+e), projection, str(names[f]))
						if err := row(cells); err != nil {
							return err
						}
					}
				}
			}
		}
		return nil
	}
	return t, nil
}

// checkSlices returns an error if the experts have more than maxSlices slices.
func checkSlices(models []*gguf.Model) error {
	slices := 0
	for _, m := range models {
		for _, f := range m.Files {
			for i := range f.Tensors {
				t := &f.Tensors[i]
				n := t.Experts()
				if n > maxSlices-slices {
					return fmt.Errorf("%s: tensor %.100q has %d experts, more rows than a table of %d",
						f.Path, t.Name, n, maxSlices)
				}
				slices += n
			}
		}
	}
	return nil
}

// shapeText is a tensor's shape as text ("4096x14336x8").
func shapeText(t *gguf.Tensor) string {
	var s strings.Builder
	for i, n := range t.Shape {
		if i > 0 {
			s.WriteByte('x')
		}
		s.WriteString(strconv.FormatInt(n, 10))
	}
	return s.String()
}
