package ggml

// This file reads the layout of ggml's structs from DWARF debug information.

import (
	"debug/dwarf"
	"fmt"
)

// dwarfLayout looks for struct ggml_tensor, and for struct ggml_cgraph, which not every file
// describes. It returns nil if there is no complete ggml_tensor.
func dwarfLayout(d *dwarf.Data, path string) (*Layout, error) {
	r := &boundedEntries{Reader: d.Reader()}
	tensor, graph := map[string]member{}, map[string]member{}
	for tensor["name"].size == 0 || len(graph) == 0 {
		e, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("read the debug information of %s: %w", path, err)
		}
		if e == nil {
			break
		}
		if e.Tag == dwarf.TagCompileUnit {
			continue
		}
		if e.Tag == dwarf.TagStructType && e.Children {
			if name, _ := e.Val(dwarf.AttrName).(string); name == "ggml_tensor" || name == "ggml_cgraph" {
				members, err := membersOf(d, r)
				if err != nil {
					return nil, fmt.Errorf("read struct %s in the debug information of %s: %w", name, path, err)
				}
				if name == "ggml_tensor" {
					tensor = members
				} else {
					graph = members
				}
				continue
			}
		}
		r.SkipChildren()
	}
	if len(tensor) == 0 {
		return nil, nil
	}
	return layoutOfMembers(tensor, graph, path)
}

// layoutOfMembers makes a layout of the fields of both structs; graph may be empty.
func layoutOfMembers(tensor, graph map[string]member, path string) (*Layout, error) {
	today := Candidates()[0]
	l := Layout{NNodes: today.NNodes, Nodes: today.Nodes, Origin: "DWARF of " + path}
	for _, f := range []struct {
		name string
		to   *uint32
		from map[string]member
		need bool
		size int64 // 0: any
	}{
		{"type", &l.Type, tensor, true, 4},
		{"ne", &l.NE, tensor, true, 32},
		{"nb", &l.NB, tensor, true, 32},
		{"op", &l.Op, tensor, true, 4},
		{"flags", &l.Flags, tensor, false, 4},
		{"src", &l.Src, tensor, true, 0},
		{"view_src", &l.ViewSrc, tensor, true, 8},
		{"data", &l.Data, tensor, true, 8},
		{"name", &l.Name, tensor, true, 0},
		{"n_nodes", &l.NNodes, graph, false, 4},
		{"nodes", &l.Nodes, graph, false, 8},
	} {
		m, ok := f.from[f.name]
		switch {
		case !ok && f.need:
			return nil, fmt.Errorf("struct ggml_tensor in the debug information of %s has no %s", path, f.name)
		case !ok:
			continue
		case m.offset < 0 || m.offset >= TensorBytes || f.size != 0 && m.size != f.size:
			return nil, fmt.Errorf("struct ggml_tensor in the debug information of %s has %d bytes of %s at %d", path,
				m.size, f.name, m.offset)
		}
		*f.to = uint32(m.offset)
	}
	l.MaxSrc = uint32(min(tensor["src"].size/8, maxSrc))
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", l.Origin, err)
	}
	return &l, nil
}

// member is a field of a struct: its offset and size in bytes.
type member struct{ offset, size int64 }

// membersOf reads the fields of the struct whose entry r has just returned.
func membersOf(d *dwarf.Data, r *boundedEntries) (map[string]member, error) {
	members := map[string]member{}
	for {
		e, err := r.Next()
		if err != nil {
			return nil, err
		}
		if e == nil || e.Tag == 0 {
			return members, nil
		}
		name, named := e.Val(dwarf.AttrName).(string)
		offset, placed := e.Val(dwarf.AttrDataMemberLoc).(int64)
		kind, typed := e.Val(dwarf.AttrType).(dwarf.Offset)
		if e.Tag == dwarf.TagMember && named && placed && typed {
			size, err := sizeOf(d, kind, maxNesting)
			if err != nil {
				return nil, err
			}
			members[name] = member{offset, size}
		}
		r.SkipChildren()
	}
}

// boundedEntries is a dwarf.Reader that fails when the strings of its entries are more than
// maxDebugText in total. An entry is small, but a string that it names may be long.
type boundedEntries struct {
	*dwarf.Reader
	text int
}

// Next returns the next entry, nil at the end.
func (r *boundedEntries) Next() (*dwarf.Entry, error) {
	e, err := r.Reader.Next()
	if err != nil || e == nil {
		return e, err
	}
	for i := range e.Field {
		if s, ok := e.Field[i].Val.(string); ok {
			r.text += len(s)
		}
	}
	if r.text > maxDebugText {
		return nil, fmt.Errorf("the names in debug information: %w", errTooLarge)
	}
	return e, nil
}

// maxNesting is how many types a member's type may consist of. An array of a typedef of a pointer
// has three.
const maxNesting = 16

// sizeOf is the size of a type in bytes; 0 if it has none. (dwarf.Type.Size does not return for a
// typedef of itself.)
func sizeOf(d *dwarf.Data, at dwarf.Offset, nesting int) (int64, error) {
	if nesting == 0 {
		return 0, errNoLayout
	}
	r := d.Reader()
	r.Seek(at)
	e, err := r.Next()
	if err != nil || e == nil {
		return 0, err
	}
	if size, ok := e.Val(dwarf.AttrByteSize).(int64); ok {
		return size, nil
	}
	of, typed := e.Val(dwarf.AttrType).(dwarf.Offset)
	switch {
	case e.Tag == dwarf.TagPointerType:
		return int64(r.AddressSize()), nil
	case !typed:
		return 0, nil
	}
	size, err := sizeOf(d, of, nesting-1)
	if err != nil || e.Tag != dwarf.TagArrayType || !e.Children {
		return size, err
	}
	for {
		e, err := r.Next()
		if err != nil || e == nil || e.Tag == 0 {
			return size, err
		}
		n, counted := e.Val(dwarf.AttrCount).(int64)
		if last, ok := e.Val(dwarf.AttrUpperBound).(int64); !counted && ok {
			n = last + 1
		}
		if n < 0 || n > TensorBytes || size > TensorBytes { // no member of a tensor
			return 0, nil
		}
		size *= n
		r.SkipChildren()
	}
}
