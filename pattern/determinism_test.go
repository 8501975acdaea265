package pattern

// These tests plant departures from the canonical sequence, and compare the scripts of edits with
// a slow search.

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"tensorcast/trace"
	"tensorcast/trace/tables"
)

func never() error { return nil }

func determined(t *testing.T, p *Pattern, sizes map[int32]int32) *Determinism {
	t.Helper()
	d, err := p.Determinism(sizes, never)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Planted departures are found, with their edits and their cause, and nothing else is.
func TestDepartures(t *testing.T) {
	swap := func(s []planted) []planted { s[3], s[4] = s[4], s[3]; return s }
	last := len(denseStep(0)) - 1
	for name, tc := range map[string]struct {
		change func(int, []planted) []planted
		tokens []int32
		cause  Cause
		edits  []Edit
	}{
		"none": {},
		"swapped": {at(7, swap), []int32{7}, CauseUnknown,
			[]Edit{
				{Kind: KindOrder, Position: 3, To: 5, Name: "blk.0.ffn_up.weight", Op: "MUL_MAT", Expected: 2000,
					Got: 2000},
			}},
		"first": {at(0, swap), []int32{0}, CauseWarmup,
			[]Edit{
				{Kind: KindOrder, Position: 3, To: 5, Name: "blk.0.ffn_up.weight", Op: "MUL_MAT", Expected: 2000,
					Got: 2000},
			}},
		"last": {at(19, swap), []int32{19}, CauseUnknown, // one step does not show that all later ones are like it
			[]Edit{
				{Kind: KindOrder, Position: 3, To: 5, Name: "blk.0.ffn_up.weight", Op: "MUL_MAT", Expected: 2000,
					Got: 2000},
			}},
		"from 17 on": {func(i int, s []planted) []planted {
			if i >= 17 {
				s[2].op = "OTHER"
			}
			return s
		}, []int32{17, 18, 19}, CauseContext, []Edit{
			{Kind: KindOp, Position: 2, To: 2, Name: "blk.0.attn_k.weight", Op: "OTHER", Expected: 1000, Got: 1000},
		}},
		"two places": {at(5, func(s []planted) []planted {
			s[6].bytes = 10
			return append(slices.Delete(s, 1, 2), planted{tensor: 9, op: "ADD", bytes: 500})
		}), []int32{5}, CauseUnknown, []Edit{
			{Kind: KindMissing, Position: 1, To: 1, Name: "blk.0.attn_q.weight", Op: "MUL_MAT", Expected: 1000},
			{Kind: KindSize, Position: 6, To: 6, Name: "blk.1.attn_k.weight", Op: "MUL_MAT", Expected: 1000, Got: 10},
			{Kind: KindExtra, Position: last + 1, To: last + 1, Name: "unused.weight", Op: "ADD", Got: 500},
		}},
		"no logits": {at(9, func(s []planted) []planted { return s[:last] }), []int32{9}, CauseSampling,
			[]Edit{
				{Kind: KindMissing, Position: last, To: last, Name: "output.weight", Op: "MUL_MAT", Expected: 9000},
			}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := mustBuild(t, run(t, 20, tc.change).build)
			d := determined(t, p, nil)
			if tc.tokens == nil {
				if len(d.Departures) != 0 {
					t.Fatalf("departures %+v; want 0", d.Departures)
				}
			} else {
				if len(d.Departures) != 1 {
					t.Fatalf("departures %+v; want 1", d.Departures)
				}
				dep := d.Departures[0]
				for i := range dep.Edits {
					dep.Edits[i].Tensor = 0
				}
				if !slices.Equal(dep.Tokens, tc.tokens) || dep.Cause != tc.cause ||
					!slices.Equal(dep.Edits, tc.edits) || dep.Rough || dep.Skeleton {
					t.Errorf("%+v\nwant %v, %s, %+v", dep, tc.tokens, tc.cause, tc.edits)
				}
			}
			if len(d.Groups) != 3 || len(d.Steps) != 22 {
				t.Fatalf("%d steps in groups %+v; want len(d.Groups) = 3, len(d.Steps) = 22", len(d.Steps), d.Groups)
			}
			g := d.Groups[2]
			if g.Phase != "generation" || g.Batch != 1 || g.Steps != 20 || g.Tokens != 20 ||
				g.Following != 20-len(tc.tokens) || g.Reads != 10 || g.SkeletonReads != 10 ||
				g.SkeletonFollowing != g.Following {
				t.Errorf("group %+v, want 20 generation steps of 1 token and 10 reads, %d of them following", g,
					20-len(tc.tokens))
			}
			for _, s := range d.Steps {
				if (s.Departure >= 0) != (s.Phase == tables.PhaseGeneration && slices.Contains(tc.tokens, s.Token)) {
					t.Errorf("step %+v, want departures of the tokens %v only", s, tc.tokens)
				}
			}
		})
	}
}

// Prompts are compared with prompts of the same number of tokens.
func TestPromptSizes(t *testing.T) {
	c := newCapture(t, denseModel)
	for i := range 6 {
		s := denseStep(0)
		if i%2 == 1 {
			s[1].op = "OTHER" // larger batches may be computed by another op
		}
		c.add(tables.PhasePrompt, 1, s)
	}
	c.add(tables.PhaseGeneration, 1, denseStep(1))
	p, _ := mustBuild(t, c.build)
	d := determined(t, p, map[int32]int32{0: 8, 1: 512, 2: 8, 3: 512, 4: 8, 5: 512})
	if len(d.Departures) != 0 || len(d.Groups) != 3 || d.Groups[0].Tokens != 24 || d.Groups[1].Batch != 512 ||
		d.Groups[1].Following != 3 {
		t.Errorf("verdict %+v, want 3 groups without departures", d)
	}
	if d = determined(t, p, nil); len(d.Groups) != 2 || len(d.Departures) != 1 || d.Groups[0].Following != 3 {
		t.Errorf("without sizes: %+v; want len(d.Groups) = 2, len(d.Departures) = 1, d.Groups[0].Following = 3", d)
	}
}

// The skeleton of a mixture of experts stays the same if an additional expert is read.
func TestSkeleton(t *testing.T) {
	c := newCapture(t, moeModel)
	for i := range 9 {
		s := moeStep(int64(i), []int32{int32(i % 8), int32((i + 1) % 8)}, []int32{3, 4})
		if i == 4 {
			s[2].experts, s[2].bytes = []int32{5}, 1000
		}
		c.add(tables.PhaseGeneration, 1, s)
	}
	p, _ := mustBuild(t, c.build)
	d := determined(t, p, nil)
	g := d.Groups[0]
	if g.Following != 8 || g.SkeletonFollowing != 9 || g.SkeletonReads != 1 || g.SkeletonBytes != 64 ||
		g.Bytes != 4064 || g.Reads != 3 {
		t.Errorf("group %+v, want 8 steps that follow with 3 reads of 4064 bytes, and 9 whose skeleton follows", g)
	}
	if len(d.Departures) != 1 || d.Departures[0].Cause != CauseRouting ||
		!slices.Equal(d.Departures[0].Tokens, []int32{4}) || !d.Departures[0].Skeleton {
		t.Errorf("departures %+v, want one of token 4 by routing, with the same skeleton", d.Departures)
	}
}

// If a step's batch size is not known, its sequence tells the size.
func TestCauseBatch(t *testing.T) {
	c := newCapture(t, denseModel)
	two := func() []planted { s := denseStep(0); s[1].op = "OTHER"; return s }
	batches := map[int32]int32{}
	for i := range 12 {
		s := denseStep(int64(i))
		switch {
		case i == 5: // of two tokens, but the steps table does not say so
			s = two()
		case i%3 == 0:
			s = two()
			batches[int32(i)] = 2
		}
		c.add(tables.PhaseGeneration, 1, s)
	}
	if _, _, err := c.build(); err != nil {
		t.Fatal(err)
	}
	p := reopened(t, c, Options{Context: MostRead, Complete: true, Batches: batches})
	d := determined(t, p, nil)
	if len(d.Departures) != 1 || d.Departures[0].Cause != CauseBatch ||
		!slices.Equal(d.Departures[0].Tokens, []int32{5}) {
		t.Errorf("%+v; want len(d.Departures) = 1, d.Departures[0].Cause = %v, d.Departures[0].Tokens = %v",
			d.Departures, CauseBatch, []int32{5})
	}
}

// least returns the length of the shortest script, computed by the table of all prefixes.
func least(a, b []Read) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			above := row[j+1]
			if sameRead(a[i], b[j]) {
				row[j+1] = diagonal
			} else {
				row[j+1] = 1 + min(above, row[j])
			}
			diagonal = above
		}
	}
	return row[len(b)]
}

// Scripts are the shortest, and turn one sequence into the other.
func TestShortest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func() (reads []Read) {
		for range r.IntN(14) {
			reads = append(reads, Read{Tensor: int32(r.IntN(4)), Bytes: int64(r.IntN(2))})
		}
		return reads
	}
	for range 5000 {
		want, got := random(), random()
		d := differ{same: sameRead, work: 1 << 20}
		removed, added, ok := d.shortestScript(want, got)
		if n := least(want, got); !ok || len(removed)+len(added) != n {
			t.Fatalf("%v to %v: %d and %d edits, want %d", want, got, len(removed), len(added), n)
		}
		var made []Read
		next := 0
		put := func(before int) {
			for at, ok := added[next]; ok && at == before; at, ok = added[next] {
				made = append(made, got[next])
				next++
			}
		}
		next = 0
		for i := 0; i <= len(want); i++ {
			put(i)
			if i < len(want) && !slices.Contains(removed, i) {
				made = append(made, want[i])
				next++
			}
			put(-1)
		}
		if !slices.Equal(made, got) {
			t.Fatalf("%v to %v: removed %v, added %v give %v", want, got, removed, added, made)
		}
	}
}

// The work is bounded. A script that is found beyond that is marked as rough. It still turns one
// sequence into the other.
func TestRough(t *testing.T) {
	var want, got []Read
	for i := range 3000 {
		want, got = append(want, Read{Tensor: int32(i), Op: "A"}), append(got, Read{Tensor: int32(i), Op: "B"})
	}
	d := differ{same: sameRead, work: 1 << 30}
	script, shortest := d.findScript(want, got)
	if shortest || len(script) != 3000 || script[7].Kind != KindOp || script[7].Position != 7 {
		t.Errorf("%d edits, shortest %v, %+v", len(script), shortest, script[7])
	}
	d = differ{same: sameRead, work: 10}
	if script, shortest := d.findScript(want[:50], got[1:51]); shortest || len(script) != 51 {
		t.Errorf("%d edits, shortest %v", len(script), shortest)
	}
}

func TestDeterminismCancelled(t *testing.T) {
	p, _ := mustBuild(t, run(t, 3, nil).build)
	stop := errors.New("stop")
	if _, err := p.Determinism(nil, func() error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// reopened returns the pattern of a capture that was closed.
func reopened(t *testing.T, c *capture, o Options) *Pattern {
	t.Helper()
	read, err := trace.Open(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Build(read.Structure, read.Accesses(), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
