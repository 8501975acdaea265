package ggml

// This file learns the layout of ggml's structs from the machine code of ggml's own accessors:
// ggml_get_data(tensor), for example, shows at which offset a tensor keeps its data pointer.

import (
	"debug/elf"
	"errors"
	"fmt"
)

// accessors maps a function of ggml to what its execution shows of the layout. Each returns false
// if the code was not as expected.
var accessors = map[string]func(*machine, *Layout) bool{
	"ggml_get_name": func(m *machine, l *Layout) bool {
		return m.result.kind == ofArgument && setOffset(&l.Name, m.result.n)
	},
	"ggml_get_data": func(m *machine, l *Layout) bool {
		return m.result.kind == fromField && setOffset(&l.Data, m.result.n)
	},
	"ggml_is_view":      func(m *machine, l *Layout) bool { return m.setFirstField(8, &l.ViewSrc) },
	"ggml_get_unary_op": func(m *machine, l *Layout) bool { return m.setFirstField(4, &l.Op) },
	"ggml_set_input": func(m *machine, l *Layout) bool {
		return len(m.fields) > 0 && setOffset(&l.Flags, m.fields[0].offset)
	},
	"ggml_nelements":     func(m *machine, l *Layout) bool { return m.setFieldArray(4, &l.NE) },
	"ggml_is_transposed": func(m *machine, l *Layout) bool { return m.setFieldArray(2, &l.NB) },
	"ggml_graph_n_nodes": func(m *machine, l *Layout) bool { return m.setFirstField(4, &l.NNodes) },
	"ggml_graph_nodes": func(m *machine, l *Layout) bool {
		return m.result.kind == fromField && setOffset(&l.Nodes, m.result.n)
	},
}

// setOffset stores an offset, if it can be one in a tensor.
func setOffset(to *uint32, n int64) bool {
	if n < 0 || n >= TensorBytes {
		return false
	}
	*to = uint32(n)
	return true
}

// setFirstField stores the offset of the first field that was read, if it has the right size.
func (m *machine) setFirstField(size int, to *uint32) bool {
	return len(m.fields) > 0 && m.fields[0].size == size && setOffset(to, m.fields[0].offset)
}

// setFieldArray stores the offset of n consecutive fields of 8 bytes, if these and no others were
// read, in any order and width.
func (m *machine) setFieldArray(n int, to *uint32) bool {
	if len(m.fields) == 0 {
		return false
	}
	low, read := m.fields[0].offset, map[int64]bool{}
	for _, a := range m.fields {
		if a.size < 8 {
			return false
		}
		low = min(low, a.offset)
		for i := range int64(a.size / 8) {
			read[a.offset+8*i] = true
		}
	}
	for i := range int64(n) {
		if !read[low+8*i] {
			return false
		}
	}
	return len(read) == n && setOffset(to, low)
}

var errContradiction = errors.New("ggml's accessors contradict each other")

// codeLayout learns the layout from the accessors. It returns nil if the file does not hold them.
func codeLayout(f *elf.File, path string, all *symbols) (*Layout, error) {
	l := Layout{Origin: "code of " + path}
	known, err := readAccessors(f, all, &l)
	if err != nil {
		return nil, err
	}
	if !known["ggml_get_data"] && !known["ggml_get_name"] {
		return nil, nil
	}
	if err := l.addNeighbours(known); err != nil {
		return nil, err
	}
	src, haveSrc := findSources(f, all, &l)
	if err := l.addSources(known, src, haveSrc); err != nil {
		return nil, err
	}
	today := Candidates()[0]
	if !known["ggml_graph_n_nodes"] {
		l.NNodes = today.NNodes
	}
	if !known["ggml_graph_nodes"] {
		l.Nodes = today.Nodes
	}
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", l.Origin, err)
	}
	return &l, nil
}

// readAccessors executes the accessors that the file holds, and sets the offsets that they show.
// known has those that showed one, by the accessor's name.
func readAccessors(f *elf.File, all *symbols, l *Layout) (known map[string]bool, err error) {
	known = map[string]bool{}
	for name, learn := range accessors {
		s, ok := all.byName[name]
		if !ok {
			continue
		}
		m, err := interpret(f, s, untilReturn)
		if err != nil {
			return nil, err
		}
		known[name] = learn(m, l)
	}
	return known, nil
}

// addNeighbours sets the offsets of fields that lie beside known ones, and checks that the
// accessors agree on that: view_src, view_offs, data and name follow each other, and so do ne and
// nb.
func (l *Layout) addNeighbours(known map[string]bool) error {
	data, name := known["ggml_get_data"], known["ggml_get_name"]
	switch {
	case data && name && l.Name != l.Data+8:
		return fmt.Errorf("%w: data at %d, name at %d", errContradiction, l.Data, l.Name)
	case data:
		l.Name = l.Data + 8
	case l.Name < 8:
		return fmt.Errorf("%w: name at %d", errContradiction, l.Name)
	default:
		l.Data = l.Name - 8
	}
	if known["ggml_is_view"] && l.ViewSrc+16 != l.Data { // view_offs lies between them
		return fmt.Errorf("%w: view_src at %d, data at %d", errContradiction, l.ViewSrc, l.Data)
	}
	if l.Data < 16 {
		return fmt.Errorf("%w: data at %d", errContradiction, l.Data)
	}
	l.ViewSrc = l.Data - 16
	if !known["ggml_nelements"] || !known["ggml_get_unary_op"] {
		return fmt.Errorf("found where data lies (%d), but not ne and op: the code of ggml_nelements or "+
			"ggml_get_unary_op is not as known compilers make it",
			l.Data)
	}
	if known["ggml_is_transposed"] && l.NB != l.NE+32 {
		return fmt.Errorf("%w: ne at %d, nb at %d", errContradiction, l.NE, l.NB)
	}
	l.NB = l.NE + 32
	return nil
}

// addSources sets the offset and number of the sources: from a known layout that agrees with what
// the code shows, else from the code alone. src is where ggml_mul_mat stores its operands, if
// haveSrc.
func (l *Layout) addSources(known map[string]bool, src uint32, haveSrc bool) error {
	for _, c := range Candidates() {
		agrees := c.Data == l.Data && c.NE == l.NE && c.Op == l.Op && c.ViewSrc == l.ViewSrc &&
			(!known["ggml_set_input"] || c.Flags == l.Flags) && (!haveSrc || c.Src == src)
		if agrees {
			l.Flags, l.Src, l.MaxSrc = c.Flags, c.Src, c.MaxSrc
			return nil
		}
	}
	if !haveSrc { // an assumed offset that is off by a few fields would go unnoticed
		return fmt.Errorf("unknown layout of ggml_tensor: data is at offset %d, but the code of ggml_mul_mat "+
			"does not show the offset of src",
			l.Data)
	}
	l.Src = src
	l.MaxSrc = min((l.ViewSrc-src)/8, maxSrc)
	return nil
}

// findSources finds where ggml_mul_mat stores its two operands in the tensor that it creates.
func findSources(f *elf.File, all *symbols, l *Layout) (uint32, bool) {
	s, ok := all.byName["ggml_mul_mat"]
	if !ok {
		return 0, false
	}
	m, err := interpret(f, s, wholeFunction)
	if err != nil {
		return 0, false
	}
	isTensor := false // set once the op field is written, which shows that this is the new tensor
	written := map[int64]bool{}
	first := int64(l.ViewSrc)
	for _, a := range m.stores {
		isTensor = isTensor || a.offset == int64(l.Op) && a.size == 4
		if a.size < 8 || a.offset < int64(max(l.Op, l.Flags))+4 || a.offset+int64(a.size) > int64(l.ViewSrc) {
			continue
		}
		for i := range int64(a.size / 8) {
			written[a.offset+8*i] = true
		}
		first = min(first, a.offset)
	}
	if !isTensor || !written[first] || !written[first+8] || len(written) != 2 {
		return 0, false
	}
	return uint32(first), true
}
