package reuse

// These tests compare the policies with slow ones and with each other.

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// random returns a random sequence of a few blocks, and the reads that were added, by step.
func random(r *rand.Rand, granule int64, group int) (*Sequence, [][]read) {
	s := New(granule, []int64{1000, 95}, group)
	var steps [][]read
	for range 2 + r.IntN(12) {
		s.Step()
		var step []read
		for range r.IntN(8) {
			one := read{int32(r.IntN(2)), int64(r.IntN(9)) * 10, int64(r.IntN(30))}
			if err := s.Read(one.file, one.offset, one.bytes); err != nil {
				panic(err)
			}
			step = append(step, one)
		}
		steps = append(steps, step)
	}
	return s, steps
}

type read struct {
	file          int32
	offset, bytes int64
}

// blocksOf computes slowly what New and Read do: the blocks of each group of steps, and their
// bytes.
func blocksOf(steps [][]read, granule int64, group int) (uses [][]blockKey, size map[blockKey]int64) {
	size = map[blockKey]int64{}
	seen := map[blockKey]map[int64]bool{} // the bytes of a block that were read since its last use in this step
	for i, step := range steps {
		if i%group == 0 {
			uses = append(uses, nil)
			clear(seen)
		}
		now := &uses[len(uses)-1]
		add := func(p blockKey, bytes, from, to int64) {
			size[p] = bytes
			again := seen[p] == nil || granule == 0
			for at := from; at < to; at++ {
				again = again || seen[p][at]
			}
			n := len(*now)
			isOne := n > 0 && (*now)[n-1] == p || group > 1 && slices.Contains(*now, p) || !again
			if !isOne || seen[p] == nil {
				seen[p] = map[int64]bool{}
			}
			for at := from; at < to; at++ {
				seen[p][at] = true
			}
			if !isOne {
				*now = append(*now, p)
			}
		}
		for _, r := range step {
			if granule == 0 {
				if r.bytes > 0 {
					add(blockKey{r.file, r.offset, r.bytes}, r.bytes, 0, 0)
				}
				continue
			}
			for b := int64(0); b < 100; b++ {
				if b*granule < r.offset+r.bytes && (b+1)*granule > r.offset && r.bytes > 0 {
					end := []int64{1000, 95}[r.file]
					bytes := granule
					if end > b*granule {
						bytes = min(granule, end-b*granule)
					}
					from, to := max(r.offset, b*granule), min(r.offset+r.bytes, (b+1)*granule)
					add(blockKey{file: r.file, first: b}, bytes, from, to)
				}
			}
		}
	}
	return uses, size
}

// lru runs an LRU memory, slowly. A block is found if it and all blocks that were used since fit.
// In that sense a block that is larger than the memory drops all others.
func lru(uses [][]blockKey, size map[blockKey]int64, room int64, from int) (missed int64) {
	var stack []blockKey // the last used first
	for step, all := range uses {
		for _, p := range all {
			sum, hit := size[p], false
			if i := slices.Index(stack, p); i >= 0 {
				for _, q := range stack[:i] {
					sum += size[q]
				}
				hit = sum <= room
				stack = slices.Delete(stack, i, i+1)
			}
			stack = slices.Insert(stack, 0, p)
			if !hit && step >= from {
				missed += size[p]
			}
		}
	}
	return missed
}

// The stack distances give the misses of an LRU memory of each size.
func TestLRU(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 400 {
		granule, group, from := int64(r.IntN(3)*16), 1+r.IntN(3), r.IntN(3)
		s, steps := random(r, granule, group)
		uses, size := blocksOf(steps, granule, group)
		if s.Steps() != len(uses) || s.Blocks() != len(size) {
			t.Fatalf("%d steps, %d blocks; want %d, %d", s.Steps(), s.Blocks(), len(uses), len(size))
		}
		n := len(uses) - from
		if n <= 0 {
			continue
		}
		c := s.LRU(from)
		for room := int64(0); room < 300; room += 7 {
			if got, want := c.Missed(room), float64(lru(uses, size, room, from))/float64(n); !near(got, want) {
				t.Fatalf("granule %d, group %d, from %d: with %d bytes %g are missed, want %g", granule, group, from,
					room, got, want)
			}
		}
		for i, size := range c.Sizes() {
			if c.Missed(size) >= c.Missed(size-1) || i > 0 && size <= c.Sizes()[i-1] {
				t.Fatalf("size %d is no step of the curve", size)
			}
		}
	}
}

func near(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 }

// best returns the fewest misses of any policy, for blocks of one size, by trying all choices.
func best(uses []int32, room int, in []int32) int {
	if len(uses) == 0 {
		return 0
	}
	b := uses[0]
	if slices.Contains(in, b) {
		return best(uses[1:], room, in)
	}
	if len(in) < room {
		return 1 + best(uses[1:], room, append(slices.Clone(in), b))
	}
	least := len(uses) + 1
	for i := range in {
		other := slices.Clone(in)
		other[i] = b
		least = min(least, 1+best(uses[1:], room, other))
	}
	return least
}

// No choice misses less than Belady's. LRU and random choices miss at least as much.
func TestBelady(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		s := New(1, nil, 1)
		s.Step()
		for range 11 {
			if err := s.Read(0, int64(r.IntN(5)), 1); err != nil {
				t.Fatal(err)
			}
		}
		for room := 1; room <= 4; room++ {
			got, want := s.Belady(int64(room), 0), best(s.uses, room, nil)
			if got != float64(want) {
				t.Fatalf("%v: with %d blocks Belady misses %g, the best choice %d; want %v", s.uses, room, got, want,
					float64(want))
			}
			if lru, random := s.LRU(0).Missed(int64(room)), s.Random(int64(room), 0); lru < got || random < got {
				t.Fatalf("%v: LRU misses %g, random choices %g, Belady %g", s.uses, lru, random, got)
			}
		}
	}
}

// A cycle is larger than memory. LRU misses all of it. Belady and a fixed set miss only what does
// not fit.
func TestCycle(t *testing.T) {
	const blocks, steps = 100, 50
	s := New(10, []int64{995}, 1)
	for range steps {
		s.Step()
		if err := s.Read(0, 0, 995); err != nil {
			t.Fatal(err)
		}
	}
	if s.WorkingSet() != 995 || s.Blocks() != blocks || s.PerStep(1) != 995 {
		t.Fatalf("%d bytes in %d blocks, %g per step; want s.WorkingSet() = 995, s.Blocks() = %v, s.PerStep(1) = 995",
			s.WorkingSet(), s.Blocks(), s.PerStep(1), blocks)
	}
	c := s.LRU(1)
	if c.Missed(994) != 995 || c.Missed(995) != 0 {
		t.Errorf("LRU misses %g and %g; want c.Missed(994) = 995, c.Missed(995) = 0", c.Missed(994), c.Missed(995))
	}
	if got := s.Fixed(600, 1); got != 395 {
		t.Errorf("a fixed set misses %g, want 395", got)
	}
	// One block is always in use, so Belady keeps 59 of the others, and 40 or 41 of a cycle are
	// missed.
	if got := s.Belady(600, 1); got < 395 || got > 415 {
		t.Errorf("Belady misses %g; want got at least 395, got at most 415", got)
	}
	if got := s.Random(600, 1); got < 420 || got > 900 {
		t.Errorf("random choices miss %g; want got at least 420, got at most 900", got)
	}
	if s.Belady(995, 1) != 0 || s.Random(995, 1) != 0 || s.Fixed(995, 1) != 0 || s.Fixed(0, 1) != 995 ||
		s.Belady(5, 1) != 990 {
		t.Errorf("all: %g, %g, %g; nothing: %g, %g", s.Belady(995, 1), s.Random(995, 1), s.Fixed(995, 1),
			s.Fixed(0, 1), s.Belady(5, 1))
	}
}

// A new block must be read once, whatever the policy.
func TestFresh(t *testing.T) {
	s := New(0, nil, 1)
	for step := range int64(4) {
		s.Step()
		for _, r := range []read{{0, 0, 10}, {0, 100 + 10*step, 10}} {
			if err := s.Read(r.file, r.offset, r.bytes); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, got := range map[string]float64{
		"fixed": s.Fixed(1000, 1), "Belady": s.Belady(1000, 1), "LRU": s.LRU(1).Missed(1000),
		"random": s.Random(1000, 1),
	} {
		if got != 10 {
			t.Errorf("%s misses %g, want 10", name, got)
		}
	}
}

// Impossible reads are refused.
func TestRefuses(t *testing.T) {
	s := New(0, nil, 1)
	if s.Read(0, 0, 1) == nil {
		t.Error("a read before the first step")
	}
	s.Step()
	for _, r := range []read{{-1, 0, 1}, {0, -1, 1}, {0, 0, -1}, {0, 1 << 62, 1 << 62}} {
		if s.Read(r.file, r.offset, r.bytes) == nil {
			t.Errorf("read %+v is accepted, want an error", r)
		}
	}
	if s.PerStep(0) != 0 || s.LRU(0).Missed(5) != 0 || s.Belady(1, 0) != 0 || s.PerStep(7) != 0 {
		t.Error("an empty sequence reads")
	}
}

func BenchmarkLRU(b *testing.B) {
	s := New(2<<20, nil, 1)
	for range 5000 {
		s.Step()
		_ = s.Read(0, 0, 1<<30)
	}
	for b.Loop() {
		s.LRU(1)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.uses)), "ns/use")
}

// Two tensors that share a folio do not make it two folios: a step that reads everything reads what there is, and LRU's
// curve stays at that until all of it fits. What a step does read twice counts twice.
func TestSharedBlocks(t *testing.T) {
	const granule = 2 << 20
	const tensor = 5 << 19 // one and a quarter folios
	s := New(granule, []int64{8 * tensor}, 1)
	for range 4 {
		s.Step()
		for _, i := range []int64{3, 0, 6, 1, 4, 7, 2, 5} { // neighbours are not read one after the other
			if err := s.Read(0, i*tensor, tensor); err != nil {
				t.Fatal(err)
			}
		}
	}
	whole := float64(8 * tensor)
	if got := s.PerStep(1); got != whole {
		t.Errorf("a step reads %g bytes, want %g", got, whole)
	}
	curve := s.LRU(1)
	for _, share := range []float64{0, 0.2, 0.5, 0.8, 0.99} {
		if got := curve.Missed(int64(share * whole)); got != whole {
			t.Errorf("with %g of it in memory %g bytes are missed, want all of %g", share, got, whole)
		}
	}
	if got := curve.Missed(8 * tensor); got != 0 {
		t.Errorf("with all of it in memory %g bytes are missed, want none", got)
	}
	s.Step()
	for range 2 {
		for _, i := range []int64{0, 4} {
			if err := s.Read(0, i*tensor, tensor); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, want := s.PerStep(4), 2*4.*granule; got != want {
		t.Errorf("a step that reads two tensors twice reads %g bytes, want %g", got, want)
	}
}
