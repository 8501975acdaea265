package device

import (
	"crypto/sha256"
	"log/slog"
	"sync/atomic"
	"testing"

	"tensorcast/fabric"
	"tensorcast/fabric/trit"
)

// TestAhead uses ten weights in turns, of which seven have room. To evict what was used least recently would
// miss ten in each pass. With the order known, three or four are missed (Belady: 30 in nine passes, as what is
// being used has its place). If planes are brought back before they are needed, no product waits. Up to five
// are brought back in a pass, as each takes its place before it is used.
func TestAhead(t *testing.T) {
	const weights, room, passes, rows, cols = 10, 7, 12, 64, 256
	for _, ahead := range []bool{false, true} {
		size := trit.TwoBit.RowBytes(cols) * rows
		s, err := newStore(room*size, weights*size, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		var all []*weight
		for i := range weights {
			b := make([]byte, size)
			row := make([]int8, cols)
			row[i] = 1
			for r := range rows {
				trit.TwoBit.Pack(b[r*len(b)/rows:(r+1)*len(b)/rows], row)
			}
			m := &fabric.Matrix{Rows: rows, Cols: cols, Layout: trit.TwoBit,
				Terms: []fabric.Term{{Planes: [][]byte{b}}}}
			w, err := s.addUpload(sha256.Sum256(b), m, weightForm{})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, w)
		}
		var before residencyCounts
		for pass := range passes {
			before = s.counts
			for i, w := range all {
				u, err := s.beginProduct(w, false)
				if err != nil {
					t.Fatal(err)
				}
				var a *fabric.Activations
				if a, err = fabric.NewActivations(cols, 256); err != nil {
					t.Fatal(err)
				}
				x := make([]float32, cols)
				x[i] = 1
				a.Quantize(x)
				y := make([]float32, rows)
				u.operand.GEMV(y, a, &fabric.Scratch{})
				if y[rows-1] < 0.99 {
					t.Errorf("pass %d, weight %d: result %g, want 1: these are the planes of another weight",
						pass, i, y[rows-1])
				}
				s.endProduct(w)
				for ahead && s.fetchOne() {
				}
			}
		}
		misses, fetched := s.counts.Misses-before.Misses, s.counts.Ahead-before.Ahead
		if least := uint64(weights - room); !ahead && (misses < least || misses > least+1 || fetched != 0) ||
			ahead && (misses != 0 || fetched < least || fetched > least+2) {
			t.Errorf("ahead %v: the last pass missed %d and had %d brought back, want %d of one",
				ahead, misses, fetched, least)
		}
		for _, w := range all {
			s.release(w, 0)
		}
		if s.pool.Used() != 0 || s.hostBytes != 0 {
			t.Errorf("ahead %v: %d bytes are left in the pool and %d on the host, want none", ahead,
				s.pool.Used(), s.hostBytes)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNoAllocations: a token's products, of different shapes, allocate nothing once each was computed.
func TestNoAllocations(t *testing.T) {
	s, err := newStore(1<<20, 1<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	pool := fabric.NewPool(1)
	defer pool.Close()
	e := executor{
		arena: make([]byte, 64<<10), store: s, pool: pool, workers: 1,
		tokens: &atomic.Uint64{}, handles: map[uint64]*handle{},
	}
	const rows = 64
	var jobs []Descriptor
	for i, cols := range []int{256, 512, 256, 1024} {
		b := make([]byte, trit.TwoBit.RowBytes(cols)*rows)
		for r := range rows {
			trit.TwoBit.Pack(b[r*len(b)/rows:(r+1)*len(b)/rows], make([]int8, cols))
		}
		m := &fabric.Matrix{Rows: rows, Cols: cols, Layout: trit.TwoBit, Terms: []fabric.Term{{Planes: [][]byte{b}}}}
		w, err := s.addUpload([sha256.Size]byte{byte(i)}, m, weightForm{})
		if err != nil {
			t.Fatal(err)
		}
		e.handles[uint64(i+1)] = &handle{weight: w}
		jobs = append(jobs, Descriptor{Op: OpProduct, Handle: uint64(i + 1), Rows: rows, Cols: uint32(cols),
			N: 1, XType: TypeFloat32, YType: TypeFloat32, Block: 256, Y: 32 << 10})
	}
	never := func() bool { return false }
	if n := testing.AllocsPerRun(20, func() {
		for i := range jobs {
			var c Completion
			if e.execute(&jobs[i], &c, never); c.Status != 0 {
				t.Fatal(c.Status)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations for a token of %d products, want 0", n, len(jobs))
	}
	e.close()
	if err := s.close(); err != nil {
		t.Error(err)
	}
}
