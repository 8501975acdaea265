package replay

// This file tests studies, and the verdicts on traces of which the truth is known.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"tensorcast/moe"
)

func study(t testing.TB, tr *moe.Trace, o Options) (*Study, string) {
	t.Helper()
	st, err := NewStudy(t.Context(), tr, o)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := st.Document().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(st); err != nil {
		t.Error(err)
	}
	if strings.Contains(text.String(), "NaN") || strings.Contains(text.String(), "Inf") {
		t.Errorf("the document has a value that is none:\n%s", text.String())
	}
	return st, text.String()
}

var someTime = Options{
	Disk: Disk{Bandwidth: 1e9, Latency: 100 * time.Microsecond}, Compute: Compute{time.Millisecond, time.Millisecond},
	Workers: 2,
}

// The verdict says what is true of a planted trace.
func TestVerdict(t *testing.T) {
	const experts, layers, tokens = 16, 4, 600
	r := rand.New(rand.NewPCG(1, 2))
	make3 := func(choose func(token, layer int) []int32) *moe.Trace {
		all := make([][][]int32, tokens)
		for i := range all {
			for l := range layers {
				all[i] = append(all[i], choose(i, l))
			}
		}
		return planted(t, experts, mib, all)
	}
	for _, tc := range []struct {
		name  string
		trace *moe.Trace
		says  []string
	}{
		{"random", make3(func(int, int) []int32 { p := r.Perm(experts); return []int32{int32(p[0]), int32(p[1])} }),
			[]string{
				"no static set", "routing cannot be told from ids", "(at random: 12 %)",
				"with 40 % of the experts in " +
					"memory (26 MiB) LRU hits"}},
		{"cycle", make3(func(token, layer int) []int32 {
			return []int32{int32((token*2 + layer) % 16), int32((token*2 + layer + 1) % 16)}
		}), []string{
			"carry 25 % of the second (25 % if use were even): no static set", "LRU hits 0 %, the best set that " +
				"never changes 3", "reading ahead pays there", "ids alone tell 9"}},
		{"a hot pair", make3(func(int, int) []int32 {
			if r.IntN(10) > 0 {
				return []int32{3, 5}
			}
			p := r.Perm(experts)
			return []int32{int32(p[0]), int32(p[1])}
		}), []string{
			"the 4 of each layer's 16 experts that were used most in the first half carry 9", ": a static set",
			"LRU hits 9",
		}},
	} {
		st, text := study(t, tc.trace, someTime)
		verdict := strings.Join(st.Verdict, "\n")
		for _, want := range tc.says {
			if !strings.Contains(verdict, want) {
				t.Errorf("%s: the verdict lacks %q:\n%s", tc.name, want, text)
			}
		}
		if !strings.HasPrefix(text, st.Verdict[0]) {
			t.Errorf("%s: the document does not begin with the verdict:\n%s", tc.name, text)
		}
		if len(st.Rooms) != 4 || st.AllBytes != experts*layers*mib || st.TokenBytes != 2*layers*mib ||
			st.Decode != tokens {
			t.Errorf("%s: study %+v, want that of the trace", tc.name, st)
		}
		for i := range st.Rooms {
			room := &st.Rooms[i]
			belady := room.policyNamed(nameBelady)
			for _, p := range room.Policies {
				if !p.Ahead && p.HitRate > belady.HitRate || p.TokenTime() < room.BeladyTime {
					t.Errorf("%s: %s hits %.3f in %v, Belady %.3f, at least %v", tc.name, p.Name, p.HitRate,
						p.TokenTime(), belady.HitRate, room.BeladyTime)
				}
			}
			if room.BeladyTime > room.CausalTime || room.BeladyTime < st.compute {
				t.Errorf("%s: bounds %v, %v", tc.name, room.BeladyTime, room.CausalTime)
			}
		}
	}
}

// Without generated tokens, or without sizes, no cache is replayed, and the study says so.
func TestStudyOfLess(t *testing.T) {
	csv := "# route_trace v1\n# model=m n_layer=1 n_expert=4 n_expert_used=1\n" +
		"turn,phase,step,layer,slot,expert\n0,0,0,0,0,1\n0,0,1,0,0,1\n0,0,2,0,0,1\n0,0,3,0,0,2\n"
	for text, says := range map[string]string{
		csv: "no token was generated",
		strings.ReplaceAll(csv, "0,0,3", "0,1,3"): "the trace does not tell how large experts are",
	} {
		tr, err := moe.ReadCSV(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		st, printed := study(t, tr, someTime)
		if !strings.Contains(printed, says) || st.Rooms != nil {
			t.Errorf("the document is\n%s\nwant that it says why no cache is replayed", printed)
		}
	}
}

func TestStudyOfChosenRooms(t *testing.T) {
	tr := random(t, rand.New(rand.NewPCG(5, 6)), 3, 8, 2, 20)
	o := someTime
	calls := 0
	o.Rooms, o.Done = []int64{mib, 100 * mib}, func(done, total int) {
		if calls++; done != calls || total < 11 {
			t.Errorf("Done(%d, %d) after %d calls, want ascending calls", done, total, calls)
		}
	}
	st, text := study(t, tr, o)
	if len(st.Rooms) != 2 || st.Rooms[0].Bytes != mib || st.Rooms[1].Share < 4 ||
		!strings.Contains(text, "100 MiB of experts in memory (417 %)") || calls < 11 {
		t.Errorf("%d calls of Done, document\n%s", calls, text)
	}
	if lru := st.Rooms[1].policyNamed(nameLRU); lru.DemandBytes > st.AllBytes {
		t.Errorf("result %+v, want that each expert is read once where all fit", lru.Result)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewStudy(ctx, tr, o); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
