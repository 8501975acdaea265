package device

import (
	"math/rand/v2"
	"testing"
)

// TestPoolDay takes and gives pieces as if models came and went for a day. The free extents do not get more
// from hour to hour, and in the end there is one.
func TestPoolDay(t *testing.T) {
	p, err := NewPool(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	r := rand.New(rand.NewPCG(1, 1))
	sizes := []int{4096, 70_000, 700_000, 1 << 20, 4_000_000, 11_000_000}
	var live []span
	var worst [24]int
	for hour := range worst {
		for range 3600 {
			if p.Used() > p.Total()*3/4 || len(live) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(live))
				p.give(live[i].off, live[i].n)
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
			} else if n := sizes[r.IntN(len(sizes))]; true {
				off, ok := p.take(n)
				if !ok {
					t.Fatalf("hour %d: no room for %d of %d free", hour, n, p.Total()-p.Used())
				}
				if off%pageBytes != 0 {
					t.Fatalf("a piece at %d, want a multiple of %d", off, pageBytes)
				}
				live = append(live, span{off, roundUp(n, pageBytes)})
			}
			worst[hour] = max(worst[hour], p.Extents())
		}
		sum := 0
		for _, e := range live {
			sum += e.n
		}
		for i, e := range p.free {
			sum += e.n
			if i > 0 && p.free[i-1].off+p.free[i-1].n >= e.off {
				t.Fatalf("free extents touch: %v", p.free)
			}
		}
		if sum != p.Total() {
			t.Fatalf("hour %d: pieces and free extents have %d bytes, want %d", hour, sum, p.Total())
		}
	}
	early, late := 0, 0
	for i := range 12 {
		early, late = max(early, worst[i]), max(late, worst[12+i])
	}
	if late > 2*early {
		t.Errorf("most free extents of each hour: %v; want no more than twice as many in the second half", worst)
	}
	for _, e := range live {
		p.give(e.off, e.n)
	}
	if p.Used() != 0 || p.Extents() != 1 || p.Largest() != p.Total() {
		t.Errorf("%d bytes used, %d extents; want 0, 1", p.Used(), p.Extents())
	}
	if err := p.Give(make([]byte, 5)); err == nil {
		t.Error("Give accepts what is no piece")
	}
	a, err := p.Take(5)
	if err != nil || len(a) != 5 {
		t.Fatalf("Take(5): %d bytes, error %v; want 5", len(a), err)
	}
	copy(a, "abcde")
	if err := p.Give(a); err != nil {
		t.Error(err)
	}
	if err := p.Give(a); err == nil {
		t.Error("Give accepts a piece twice")
	}
}
