package ggml

// These tests check layouts, and recognise wrong ones.

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// rawTensor makes the bytes of a tensor with this layout.
func rawTensor(l Layout, name string) []byte {
	raw := make([]byte, TensorBytes)
	put32 := func(at uint32, v uint32) { binary.LittleEndian.PutUint32(raw[at:], v) }
	put64 := func(at uint32, v uint64) { binary.LittleEndian.PutUint64(raw[at:], v) }
	put32(l.Type, 8)
	put64(8, 0x5581c0de1000) // buffer
	for i, n := range []uint64{2048, 6, 1, 1} {
		put64(l.NE+8*uint32(i), n)
	}
	for i, n := range []uint64{34, 2176, 13056, 13056} {
		put64(l.NB+8*uint32(i), n)
	}
	put32(l.Op, 29)
	put32(l.Flags, 16)
	put64(l.Src, 0x7f36d2401230)
	put64(l.Src+8, 0x7f36d2405670)
	put64(l.ViewSrc, 0x7f36d2409990)
	put64(l.ViewSrc+8, 4096)
	put64(l.Data, 0x7f3512345040)
	copy(raw[l.Name:], name)
	put64(l.Name+64, 0x7f36d2400000) // extra
	return raw
}

func TestCheck(t *testing.T) {
	const ops = 101
	all := append(Candidates(), Layout{
		Type: 0, NE: 24, NB: 56, Op: 88, Flags: 156, Src: 160, MaxSrc: 6, ViewSrc: 208, Data: 224, Name: 232,
		NNodes: 4, Nodes: 24,
	})
	names := []string{"blk.0.attn_q.weight", "ffn_norm-3", "Qcur-0", "node_7", " (view)", "x", strings.Repeat("n", 63)}
	for i, is := range all {
		for j, read := range all {
			for _, name := range names {
				err := read.Check(rawTensor(is, name), ops)
				var mismatch *MismatchError
				switch {
				case i == j && err != nil:
					t.Errorf("layout %d, %q: %v", i, name, err)
				case i != j && !errors.As(err, &mismatch):
					t.Errorf("a tensor %q of layout %d is taken for one of layout %d: %v", name, i, j, err)
				}
			}
		}
	}
	l := Candidates()[0]
	for name, tc := range map[string]struct {
		change func([]byte) []byte
		field  string
	}{
		"no op":        {func(b []byte) []byte { b[l.Op] = ops; return b }, "op"},
		"no type":      {func(b []byte) []byte { b[l.Type+1] = 4; return b }, "type"},
		"negative":     {func(b []byte) []byte { b[l.NE+8+7] = 0x80; return b }, "ne[1]"},
		"stride":       {func(b []byte) []byte { b[l.NB+16+7] = 1; return b }, "nb[2]"},
		"no size":      {func(b []byte) []byte { clear(b[l.NB : l.NB+8]); return b }, "nb[0]"},
		"flags":        {func(b []byte) []byte { b[l.Flags+3] = 1; return b }, "flags"},
		"source":       {func(b []byte) []byte { b[l.Src+8*9] = 3; return b }, "src[9]"},
		"kernel":       {func(b []byte) []byte { b[l.Src+7] = 0xff; return b }, "src[0]"},
		"view":         {func(b []byte) []byte { b[l.ViewSrc] |= 1; return b }, "view_src"},
		"data":         {func(b []byte) []byte { b[l.Data+7] = 'x'; return b }, "data"},
		"name ends":    {func(b []byte) []byte { copy(b[l.Name:], strings.Repeat("n", 64)); return b }, "name"},
		"no name":      {func(b []byte) []byte { b[l.Name] = 0; return b }, "name"},
		"no text":      {func(b []byte) []byte { b[l.Name] = 0xff; return b }, "name"},
		"control":      {func(b []byte) []byte { b[l.Name] = 7; return b }, "name"},
		"short":        {func(b []byte) []byte { return b[:l.Name+10] }, "name"},
		"nothing read": {func([]byte) []byte { return nil }, "name"},
	} {
		err := l.Check(tc.change(rawTensor(l, "ffn_out-1")), ops)
		var mismatch *MismatchError
		if !errors.As(err, &mismatch) || mismatch.Field != tc.field {
			t.Errorf("%s: %v, want a mismatch of %s", name, err, tc.field)
		} else if !strings.Contains(err.Error(), mismatch.Value) || !strings.Contains(err.Error(), l.Origin) {
			t.Errorf("%s: no evidence in %q", name, err)
		}
	}
	// Forks number types beyond ggml's. If the number of ops is unknown, every op is allowed.
	raw := rawTensor(l, "x")
	binary.LittleEndian.PutUint32(raw[l.Type:], 399)
	binary.LittleEndian.PutUint32(raw[l.Op:], 1<<20)
	if err := l.Check(raw, 0); err != nil {
		t.Error(err)
	}
}

func TestValid(t *testing.T) {
	for i, l := range Candidates() {
		if err := l.check(); err != nil {
			t.Errorf("candidate %d: %v", i, err)
		}
	}
	for name, change := range map[string]func(*Layout){
		"too far":    func(l *Layout) { l.Name = TensorBytes - 8 },
		"wraps":      func(l *Layout) { l.Data = 1<<32 - 8 },
		"no sources": func(l *Layout) { l.MaxSrc = 0 },
		"sources":    func(l *Layout) { l.MaxSrc = 1 << 29 },
		"alignment":  func(l *Layout) { l.Src = 153 },
		"overlap":    func(l *Layout) { l.Src = 168 },
		"same":       func(l *Layout) { l.NB = l.NE },
	} {
		l := Candidates()[0]
		change(&l)
		if err := l.check(); !errors.Is(err, errNoLayout) {
			t.Errorf("%s: %v, want %v", name, err, errNoLayout)
		}
	}
}
