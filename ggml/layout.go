package ggml

// This file defines the layout of ggml's structs: which are known, how that of a target is chosen,
// and how a wrong one is recognised.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Layout holds the offsets, in bytes from the start of the struct, of the fields of ggml's structs
// that the tracer reads.
type Layout struct {
	// of struct ggml_tensor
	Type    uint32 `json:"type"`     // enum, 4 bytes
	NE      uint32 `json:"ne"`       // int64[4]
	NB      uint32 `json:"nb"`       // size_t[4]
	Op      uint32 `json:"op"`       // enum, 4 bytes
	Flags   uint32 `json:"flags"`    // int32; 0 where the struct has none (before April 2024)
	Src     uint32 `json:"src"`      // pointers, MaxSrc of them
	MaxSrc  uint32 `json:"max_src"`  // at most 16
	ViewSrc uint32 `json:"view_src"` // pointer
	Data    uint32 `json:"data"`     // pointer
	Name    uint32 `json:"name"`     // char[64]

	// of struct ggml_cgraph
	NNodes uint32 `json:"n_nodes"` // int
	Nodes  uint32 `json:"nodes"`   // pointer to an array of pointers to tensors

	// Origin says where the layout was learnt: "DWARF of PATH", "code of PATH" or "table: ...".
	Origin string `json:"origin"`
}

// TensorBytes is how many bytes of a tensor Check needs: every known struct ggml_tensor ends its
// name before that.
const TensorBytes = 512

// maxSrc bounds GGML_MAX_SRC: 10 in ggml since July 2023, 16 in ik_llama.cpp.
const maxSrc = 16

// nameBytes is GGML_MAX_NAME. A build may raise it; the field's start is the same.
const nameBytes = 64

// Candidates returns the layouts of released versions of ggml, the newest first.
func Candidates() []Layout {
	return []Layout{
		{
			Type: 0, NE: 16, NB: 48, Op: 80, Flags: 148, Src: 152, MaxSrc: 10, ViewSrc: 232, Data: 248, Name: 256,
			NNodes: 4, Nodes: 16,
			Origin: "table: ggml since November 2024",
		},
		{
			Type: 0, NE: 16, NB: 48, Op: 80, Flags: 148, Src: 160, MaxSrc: 10, ViewSrc: 240, Data: 256, Name: 264,
			NNodes: 4, Nodes: 16,
			Origin: "table: ggml with grad in its tensors (June to November 2024, and forks of then)",
		},
		{
			Type: 0, NE: 16, NB: 48, Op: 80, Flags: 148, Src: 160, MaxSrc: 16, ViewSrc: 288, Data: 304, Name: 312,
			NNodes: 4, Nodes: 16,
			Origin: "table: ik_llama.cpp of 2026",
		},
		{
			Type: 0, NE: 16, NB: 48, Op: 80, Flags: 148, Src: 160, MaxSrc: 10, ViewSrc: 264, Data: 280, Name: 288,
			NNodes: 4, Nodes: 16,
			Origin: "table: ggml with grad and perf_runs in its tensors (until June 2024)",
		},
	}
}

// equalOffsets reports whether two layouts have the same offsets, regardless of Origin.
func (l Layout) equalOffsets(o Layout) bool {
	l.Origin, o.Origin = "", ""
	return l == o
}

// String lists the offsets.
func (l Layout) String() string {
	return fmt.Sprintf("type %d, ne %d, nb %d, op %d, flags %d, src[%d] %d, view_src %d, data %d, name %d; "+
		"n_nodes %d, nodes %d (%s)",
		l.Type, l.NE, l.NB, l.Op, l.Flags, l.MaxSrc, l.Src, l.ViewSrc, l.Data, l.Name, l.NNodes, l.Nodes, l.Origin)
}

// check rejects offsets that no ggml can have: they come from an untrusted file.
func (l *Layout) check() error {
	for _, f := range []struct {
		name     string
		at, size uint32
	}{
		{"type", l.Type, 4}, {"ne", l.NE, 32}, {"nb", l.NB, 32}, {"op", l.Op, 4}, {"flags", l.Flags, 4},
		{"src", l.Src, 8 * l.MaxSrc}, {"view_src", l.ViewSrc, 8}, {"data", l.Data, 8}, {"name", l.Name, nameBytes},
		{"n_nodes", l.NNodes, 4}, {"nodes", l.Nodes, 8},
	} {
		if f.at > TensorBytes || f.size > TensorBytes-f.at {
			return fmt.Errorf("%s at %d: %w", f.name, f.at, errNoLayout)
		}
	}
	switch {
	case l.MaxSrc == 0 || l.MaxSrc > maxSrc:
		return fmt.Errorf("%d sources: %w", l.MaxSrc, errNoLayout)
	case l.NE%8 != 0 || l.NB%8 != 0 || l.Src%8 != 0 || l.ViewSrc%8 != 0 || l.Data%8 != 0 || l.Nodes%8 != 0 ||
		l.Op%4 != 0 || l.Type%4 != 0 || l.Flags%4 != 0 || l.NNodes%4 != 0:
		return fmt.Errorf("%v: not aligned: %w", l, errNoLayout)
	case l.NE == l.NB || l.ViewSrc == l.Data || l.Src+8*l.MaxSrc > l.ViewSrc && l.ViewSrc >= l.Src ||
		l.NNodes == l.Nodes:
		return fmt.Errorf("%v: fields overlap: %w", l, errNoLayout)
	}
	return nil
}

var errNoLayout = errors.New("not a layout that ggml can have")

// MismatchError says why a tensor of the target contradicts the layout with which it was read.
type MismatchError struct {
	Field  string
	Offset uint32
	Value  string
	Why    string
	Layout Layout
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the target's tensors do not have the expected layout (%s): %s at byte %d is %s, %s",
		e.Layout.Origin, e.Field, e.Offset, e.Value, e.Why)
}

// Check tests a layout against a tensor as read from the target. raw holds TensorBytes of it,
// little endian; fewer if the memory ends earlier. The tensor must be a node of a graph or a source
// of one, since ggml gives these a name. ops is the number of ops that the target's ggml has, 0 if
// unknown. Check returns a *MismatchError with the evidence if the tensor cannot have this layout.
func (l *Layout) Check(raw []byte, ops int) error {
	mismatch := func(field string, at uint32, value, why string) error {
		return &MismatchError{Field: field, Offset: at, Value: value, Why: why, Layout: *l}
	}
	if need := l.Name + nameBytes; uint32(len(raw)) < need {
		return mismatch("name", l.Name, fmt.Sprintf("beyond the %d bytes read", len(raw)), "too short for a tensor")
	}
	u32 := func(at uint32) uint32 { return binary.LittleEndian.Uint32(raw[at:]) }
	u64 := func(at uint32) uint64 { return binary.LittleEndian.Uint64(raw[at:]) }
	if op := u32(l.Op); ops > 0 && op >= uint32(ops) {
		return mismatch("op", l.Op, fmt.Sprint(op), fmt.Sprintf("but this ggml has %d ops", ops))
	}
	if t := u32(l.Type); t >= maxType {
		return mismatch("type", l.Type, fmt.Sprint(t), "no type of ggml or of a fork")
	}
	for i := range uint32(4) {
		if n := int64(u64(l.NE + 8*i)); n < 0 || n > maxExtent {
			return mismatch(fmt.Sprintf("ne[%d]", i), l.NE+8*i, fmt.Sprint(n), "not a number of elements")
		}
		if n := u64(l.NB + 8*i); n > maxExtent {
			return mismatch(fmt.Sprintf("nb[%d]", i), l.NB+8*i, fmt.Sprintf("%#x", n), "not a stride")
		}
	}
	if u64(l.NB) == 0 {
		return mismatch("nb[0]", l.NB, "0", "not the size of an element")
	}
	if f := u32(l.Flags); l.Flags != 0 && f >= 1<<16 {
		return mismatch("flags", l.Flags, fmt.Sprintf("%#x", f), "not a set of flags")
	}
	for i := range l.MaxSrc {
		if p := u64(l.Src + 8*i); p != 0 && !isTensorPointer(p) {
			return mismatch(fmt.Sprintf("src[%d]", i), l.Src+8*i, fmt.Sprintf("%#x", p), "not the address of a tensor")
		}
	}
	if p := u64(l.ViewSrc); p != 0 && !isTensorPointer(p) {
		return mismatch("view_src", l.ViewSrc, fmt.Sprintf("%#x", p), "not the address of a tensor")
	}
	if p := u64(l.Data); p != 0 && (p < firstAddress || p >= endAddress) {
		return mismatch("data", l.Data, fmt.Sprintf("%#x", p), "not an address")
	}
	name := raw[l.Name : l.Name+nameBytes]
	end := bytes.IndexByte(name, 0)
	switch {
	case end < 0:
		return mismatch("name", l.Name, fmt.Sprintf("%.16q...", name), "without an end")
	case end == 0:
		return mismatch("name", l.Name, "empty", "but ggml names the tensors of a graph")
	case !utf8.Valid(name[:end]) || bytes.ContainsFunc(name[:end], func(r rune) bool { return r < ' ' || r == 0x7f }):
		return mismatch("name", l.Name, fmt.Sprintf("%q", name[:end]), "not a name")
	}
	return nil
}

const (
	maxType      = 1 << 10 // ggml has some 40 types; forks number theirs up to 400
	maxExtent    = 1 << 48 // elements or bytes in one dimension
	firstAddress = 1 << 12
	endAddress   = 1 << 56 // user space of x86-64 with five-level page tables; arm64 has less
)

func isTensorPointer(p uint64) bool { return p%8 == 0 && p >= firstAddress && p < endAddress }

// Infer chooses the layout of a process that maps these files: from DWARF, else from code, else the
// newest of Candidates. It returns either a layout or an error. The error for two ggml with
// different layouts in one process is ErrTwoLayouts. The layout may be wrong: Check it on the first
// graph.
func Infer(images []*Image) (*Layout, error) {
	for _, origin := range []func(*Image) *Layout{
		func(im *Image) *Layout { return im.dwarf },
		func(im *Image) *Layout { return im.code },
	} {
		var chosen *Layout
		for _, im := range images {
			l := origin(im)
			switch {
			case l == nil:
			case chosen == nil:
				chosen = l
			case !chosen.equalOffsets(*l):
				return nil, fmt.Errorf("%w: %v, and %v", ErrTwoLayouts, chosen, l)
			}
		}
		if chosen != nil {
			l := *chosen
			return &l, nil
		}
	}
	l := Candidates()[0]
	return &l, nil
}

// ErrTwoLayouts says that a process holds two versions of ggml that keep their tensors differently.
var ErrTwoLayouts = errors.New("the process maps two versions of ggml whose tensors have different layouts:" +
	" trace them one at a time")
