package pattern

// This file fuzzes the analyses of a capture's rows.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"iter"
	"reflect"
	"testing"

	"tensorcast/trace/tables"
)

// rowsIn turns bytes into rows that package trace would accept: they name existing tensors, and
// read no more bytes than these have.
func rowsIn(data []byte, structure []tables.StructureRow) iter.Seq2[*tables.Access, error] {
	ops := []string{"GET_ROWS", "MUL_MAT", "MUL_MAT_ID", "RMS_NORM+MUL", "ADD_ID", "", "\x1b[2J"}
	return func(yield func(*tables.Access, error) bool) {
		var clock int64
		for ; len(data) >= 12; data = data[12:] {
			tensor := int32(data[0]) % int32(len(structure))
			t := &structure[tensor]
			clock += int64(int8(data[9])) << (data[10] % 56)
			clock = min(max(clock, -1<<60), 1<<60)
			a := tables.Access{
				Tensor: tensor, Op: ops[int(data[1])%len(ops)], Step: int32(data[2]), Token: int32(data[3]) - 1,
				Phase: tables.Phase(data[4] % 3), Thread: int32(data[5] % 4), Context: int32(data[6] % 3),
				Bytes: int64(binary.LittleEndian.Uint16(data[7:])) * (t.Size / 65535), Offset: t.Offset,
				Timestamp: clock, Duration: int64(data[11])<<(data[10]%52) - 1, Stall: int64(data[9]) - 1,
			}
			if data[11]%3 == 0 {
				a.Experts = []int32{int32(data[7]), int32(data[8]), -1}[:data[11]%4]
			}
			if !yield(&a, nil) {
				return
			}
		}
	}
}

// FuzzBuild makes a pattern from any rows, and all results of a pattern. A cycle reads back as it
// was written.
func FuzzBuild(f *testing.F) {
	// The seeds are a prompt and two tokens of three reads, sizes whose sum overflows, and a token
	// that is cut short.
	var run []byte
	for step := range byte(3) {
		for read := range byte(3) {
			run = append(run, read, read, step, step, min(2, step+1), 0, 0, 255, 255, 10, 2, 10+3*read)
		}
	}
	for _, seed := range [][]byte{
		run, run[:len(run)-12],
		append(run, bytes.Repeat([]byte{4, 1, 9, 3, 2, 0, 0, 255, 255, 1, 50, 200}, 20)...),
	} {
		f.Add(seed, true, false, int8(-1))
	}
	structure := []tables.StructureRow{
		{Name: "token_embd.weight", Offset: 4096, Size: 65535, File: "m.gguf", Shape: []int64{64, 100}},
		{Name: "blk.0.ffn_up.weight", Offset: 1 << 20, Size: 3 * 65535, File: "m.gguf", Shape: []int64{64, 64}},
		{Name: "blk.0.ffn_up_exps.weight", Offset: 2 << 20, Size: 8 * 65535, File: "m.gguf",
			Shape: []int64{64, 64, 8}, Experts: 8, ExpertStride: 65535},
		{Name: "\x1b[2J", Offset: 3 << 20, Size: 65535, File: "other.gguf", Shape: []int64{0, 1 << 62, 1 << 62},
			Model: 1},
		{Name: "huge.weight", Offset: 1 << 50, Size: 1 << 50, File: "m.gguf", Shape: []int64{1 << 62, 1 << 62, 4}},
		{Name: "empty.weight", File: "m.gguf"},
	}
	meta := &tables.Meta{
		Models: []tables.ModelInfo{{Path: "/m.gguf",
			Files: []tables.ModelFile{{Name: "m.gguf", Bytes: 1 << 40, Fingerprint: someFingerprint}}}, {}},
	}
	f.Fuzz(func(t *testing.T, data []byte, complete, headless bool, llama int8) {
		batches := map[int32]int32{1: 1 + int32(len(data)%3), 2: 2}
		p, err := Build(structure, rowsIn(data, structure),
			Options{
				Context: int(llama), Complete: complete, Headless: headless, Batches: batches,
				Phase: tables.Phase(len(data) % 6), HasPhase: len(data)%6 < phases,
			})
		if err != nil {
			if !errors.Is(err, ErrNoAccesses) && !errors.Is(err, ErrNoPhase) && !errors.Is(err, ErrNoContext) &&
				!errors.Is(err, ErrTooMuch) {
				t.Error(err)
			}
			return
		}
		s := p.Summarize(meta, 3)
		if b := s.BytesPerToken; b.Min < 0 || b.Median < b.Min || b.Max < b.Median {
			t.Errorf("bytes per token %+v; want b.Min at least 0, b.Median at least %v, b.Max at least %v", b, b.Min,
				b.Median)
		}
		for _, top := range s.Top {
			if top.RunBytes < 0 || top.BytesPerToken < 0 {
				t.Errorf("%+v; want top.RunBytes at least 0, top.BytesPerToken at least 0", top)
			}
		}
		if err := s.WriteText(new(bytes.Buffer)); err != nil {
			t.Error(err)
		}
		if (p.Basis() == "") != p.Generates() || p.Passes() < 1 {
			t.Errorf("basis %q of %v, %d passes", p.Basis(), p.Phase, p.Passes())
		}
		for _, r := range p.Rows() {
			if r.RelativeTime < 0 || r.RelativeTime > 1 || r.Bytes < 0 {
				t.Errorf("%+v; want r.RelativeTime at least 0, r.RelativeTime at most 1, r.Bytes at least 0", r)
			}
		}
		c, err := p.Cycle(meta)
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrNoFiles) {
				t.Error(err)
			}
			return
		}
		var b bytes.Buffer
		if err := c.Write(&b); err != nil {
			t.Fatal(err)
		}
		if again, err := ReadCycle(&b); err != nil || !reflect.DeepEqual(again, c) {
			t.Errorf("%+v, %v, of %+v", again, err, c)
		}
	})
}
