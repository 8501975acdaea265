package reuse

// These tests compare the replay with readahead with a slow one.

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// slowAround computes the bytes that LRUWithReadahead counts, slowly, with lists of blocks, the
// oldest first.
func slowAround(s *Sequence, size int64, from int, half int64) (missed int64) {
	of := make([]blockKey, len(s.sizes))
	end := map[int32]int64{}
	for p, b := range s.index {
		of[b] = p
		end[p.file] = max(end[p.file], (s.files[p.file]+s.granule-1)/s.granule, p.first+1)
	}
	bytes := func(p blockKey) int64 {
		if b, ok := s.index[p]; ok {
			return s.sizes[b]
		}
		return s.granule
	}
	var memory []blockKey
	mark := map[blockKey]int64{}
	held := func() (sum int64) {
		for _, p := range memory {
			sum += bytes(p)
		}
		return sum
	}
	counts := false
	fetch := func(p blockKey) {
		if counts {
			missed += bytes(p)
		}
		for len(memory) > 0 && held()+bytes(p) > size {
			delete(mark, memory[0])
			memory = memory[1:]
		}
		memory = append(memory, p)
	}
	window := func(file int32, from, to int64) {
		to = min(to, end[file])
		for first := max(from, 0); first < to; first++ {
			p := blockKey{file: file, first: first}
			if slices.Contains(memory, p) {
				continue
			}
			fetch(p)
			delete(mark, p)
			if first == to-max(half/2, 1) {
				mark[p] = to
			}
		}
	}
	newest := func(p blockKey) {
		if i := slices.Index(memory, p); i >= 0 {
			memory = append(slices.Delete(memory, i, i+1), p)
		}
	}
	for i, b := range s.uses {
		counts = i >= s.firstUse(from)
		p := of[b]
		switch {
		case slices.Contains(memory, p):
			newest(p)
			if next := mark[p]; next > 0 {
				delete(mark, p)
				window(p.file, next, next+2*half)
			}
		case bytes(p) > size:
			if counts {
				missed += bytes(p)
			}
		default:
			window(p.file, p.first-half, p.first+half)
			if !slices.Contains(memory, p) {
				fetch(p)
			}
			newest(p)
		}
	}
	return missed
}

func TestAround(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	wasted := false
	for range 400 {
		s, _ := random(r, 8, 1)
		from := r.IntN(2)
		for _, size := range []int64{4, 40, 100, 300, 2000} {
			for _, half := range []int64{1, 2, 4} {
				got, want := s.LRUWithReadahead(size, from, 16*half),
					float64(slowAround(s, size, from, half))/float64(s.Steps()-from)
				if !near(got, want) {
					t.Fatalf("size %d, from %d, half %d: %g, want %g", size, from, half, got, want)
				}
				wasted = wasted || got > s.LRU(from).Missed(size)
			}
			if got, want := s.LRUWithReadahead(size, from, 15), s.LRU(from).Missed(size); got != want {
				t.Fatalf("a window below two blocks: %g, LRU %g", got, want)
			}
		}
	}
	if !wasted {
		t.Error("no window ever cost anything")
	}
}

// A cycle through a whole file is read by windows without additional bytes. Each lone block costs a
// window.
func TestAroundShapes(t *testing.T) {
	const granule, blocks = 1 << 10, 200
	cycle, lone := New(granule, []int64{blocks * granule}, 1), New(granule, []int64{blocks * granule}, 1)
	for step := range 5 {
		cycle.Step()
		lone.Step()
		for b := range int64(blocks) {
			if err := cycle.Read(0, b*granule, granule); err != nil {
				t.Fatal(err)
			}
		}
		for i := range int64(4) {
			if err := lone.Read(0, (20+40*i+int64(step))*granule, granule); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := cycle.LRUWithReadahead(100*granule, 1, 8*granule); got < blocks*granule || got > 1.1*blocks*granule {
		t.Errorf("a cycle reads %g, want about %d", got, blocks*granule)
	}
	if got := cycle.LRUWithReadahead(blocks*granule, 1, 8*granule); got != 0 {
		t.Errorf("a cycle that fits reads %g; want 0", got)
	}
	if got := lone.LRUWithReadahead(16*granule, 1, 16*granule); got < 50*granule || got > 64*granule {
		t.Errorf("four lone blocks read %g, want most of four windows of 16", got)
	}
}

// Kept blocks are never read, not even by readahead. Of the rest, a cyclic scan that does not fit
// is missed as a whole.
func TestKept(t *testing.T) {
	for _, granule := range []int64{1e6, 0} {
		s := New(granule, []int64{100e6}, 1)
		for range 4 {
			s.Step()
			for at := int64(0); at < 100e6; at += 1e6 {
				if err := s.Read(0, at, 1e6); err != nil {
					t.Fatal(err)
				}
			}
		}
		// the middle of a block decides whether it is kept
		kept := []Extent{{Offset: 90e6, Bytes: 10e6}, {Bytes: 60.4e6}, {File: 1, Bytes: 100e6}}
		for _, tc := range []struct{ size, window, want int64 }{
			{20e6, 0, 30e6}, {20e6, 8e6, 30e6}, {30e6, 0, 0}, {30e6, 8e6, 0}, {0, 0, 30e6},
		} {
			if got := s.PinnedWithReadahead(kept, tc.size, 1, tc.window); got != float64(tc.want) {
				t.Errorf("blocks of %d, %+v: %g bytes; want %v", granule, tc, got, float64(tc.want))
			}
		}
		if all, lru := s.PinnedWithReadahead(nil, 50e6, 1, 0), s.LRU(1).Missed(50e6); all != lru {
			t.Errorf("blocks of %d, nothing kept: %g bytes, LRU %g", granule, all, lru)
		}
	}
}
