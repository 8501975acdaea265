package hidden

// This file tests how what was learned is saved and loaded.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// learnt makes a predictor that has seen some tokens, and the flow that they came from.
func learnt(t testing.TB, r *Routers, o Options, tokens int) (*Predictor, *flow) {
	t.Helper()
	p := newPredictor(t, r, o)
	f := newFlow(t, rand.New(rand.NewPCG(3, 4)), r, 0.1)
	f.run(p, tokens, 0, true, true)
	return p, f
}

func saved(t testing.TB, p *Predictor) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := p.Save(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// says returns the scores for a token.
func says(p *Predictor, in []layerInputs) (all []float32) {
	scores := make([]float32, p.routers.Experts)
	p.Begin(1)
	for layer := range in {
		p.Attention(layer, in[layer].attention)
		p.Scores(layer, scores)
		all = append(all, scores...)
		p.Router(layer, in[layer].router)
		p.Observe(layer, nil)
	}
	return all
}

// A loaded predictor predicts as the saved one, and exactly so where ids are not mixed in. It starts
// warm: its first tokens are as good as the last ones before saving.
func TestSave(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 3, 64, 16, 2)
	o := Options{IDs: -1, Attention: true}
	p, f := learnt(t, r, o, 700)
	q := newPredictor(t, r, o)
	if err := q.Load(bytes.NewReader(saved(t, p))); err != nil {
		t.Fatal(err)
	}
	in, _ := f.token()
	p.Begin(1) // nothing is kept of the token before
	if a, b := says(p, in), says(q, in); !slices.Equal(a, b) {
		t.Errorf("scores after loading\n%v\nwant\n%v", b, a)
	}
	// The same tokens for both.
	f.rng = rand.New(rand.NewPCG(8, 9))
	warm, _ := f.run(q, 60, 0, false, true)
	f.rng = rand.New(rand.NewPCG(8, 9))
	cold, _ := f.run(newPredictor(t, r, o), 60, 0, false, true)
	t.Logf("of the first 60 tokens it recalls %.3f, without what was learned %.3f", warm, cold)
	if warm < cold+0.05 {
		t.Errorf("recall of the first 60 tokens after loading %.3f, without %.3f, want 0.05 more", warm, cold)
	}
}

// A file that is damaged, or of another model, is refused, and changes nothing.
func TestLoadRefuses(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 2, 16, 8, 2)
	o := Options{IDs: -1}
	from, f := learnt(t, r, o, 50)
	data := saved(t, from)
	p, _ := learnt(t, r, o, 20)
	before := saved(t, p)
	sum := func(b []byte) []byte {
		b = b[:len(b)-4]
		c := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		return binary.BigEndian.AppendUint32(slices.Clone(b), c)
	}
	header := len(magic) + 4 + int(binary.LittleEndian.Uint32(data[len(magic):]))
	put := func(at int, x float32) []byte {
		b := slices.Clone(data)
		binary.LittleEndian.PutUint32(b[at:], math.Float32bits(x))
		return sum(b)
	}
	l := from.links[0][1]
	variance := header + 4*len(l.weights)
	otherID := *r
	otherID.ID = strings.Repeat("f", 32)
	for name, tc := range map[string]struct {
		data []byte
		in   *Predictor
		want error
	}{
		"empty":             {nil, p, ErrInvalid},
		"text":              {[]byte("# something else, and long enough to be read"), p, ErrInvalid},
		"cut":               {data[:len(data)-1], p, ErrInvalid},
		"cut in its header": {data[:20], p, ErrInvalid},
		"longer":            {append(slices.Clone(data), 0), p, ErrInvalid},
		"a bit":             {func() []byte { b := slices.Clone(data); b[header+9] ^= 1; return b }(), p, ErrInvalid},
		"NaN":               {put(header, float32(math.NaN())), p, ErrInvalid},
		"infinite":          {put(header+8, float32(math.Inf(1))), p, ErrInvalid},
		"a variance":        {put(variance, -1), p, ErrInvalid},
		"version":           {sum(bytes.Replace(data, []byte(`"version":1`), []byte(`"version":2`), 1)), p, ErrInvalid},
		"long header":       {append([]byte(magic), 255, 255, 255, 255), p, ErrInvalid},
		"other routers":     {data, newPredictor(t, &otherID, o), ErrOtherModel},
		"other options":     {data, newPredictor(t, r, Options{IDs: -1, Attention: true}), ErrOtherModel},
	} {
		err := tc.in.Load(bytes.NewReader(tc.data))
		if !errors.Is(err, tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %v in one line", name, err, tc.want)
		}
		if tc.in == p && !bytes.Equal(saved(t, p), before) {
			t.Fatalf("%s: the predictor has changed", name)
		}
	}
	if err := p.Load(bytes.NewReader(data)); err != nil || !bytes.Equal(saved(t, p), data) {
		t.Errorf("the whole file: error %v, want none and the same state", err)
	}
	f.run(p, 5, 0, true, true)
}

type fails struct{}

func (fails) Write([]byte) (int, error) { return 0, fs.ErrPermission }

func TestSaveFails(t *testing.T) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 2, 16, 8, 2)
	if err := newPredictor(t, r, Options{}).Save(fails{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("error %v, want %v", err, fs.ErrPermission)
	}
}

// FuzzLoad loads any file: it is refused, or the predictor's scores are finite.
func FuzzLoad(f *testing.F) {
	r := planted(rand.New(rand.NewPCG(1, 2)), 2, 8, 4, 2)
	o := Options{IDs: -1}
	p, flow := learnt(f, r, o, 20)
	data := saved(f, p)
	f.Add(data)
	f.Add(data[:50])
	in, _ := flow.token()
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newPredictor(t, r, o)
		if len(b) > 4 { // the checksum stops neither an attacker nor a fuzzer
			b = binary.BigEndian.AppendUint32(slices.Clone(b[:len(b)-4]),
				crc32.Checksum(b[:len(b)-4], crc32.MakeTable(crc32.Castagnoli)))
		}
		if err := p.Load(bytes.NewReader(b)); err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrOtherModel) {
				t.Errorf("error %v, want %v or %v", err, ErrInvalid, ErrOtherModel)
			}
			return
		}
		for range 3 {
			for _, s := range says(p, in) {
				if !isFinite(s) {
					t.Fatalf("score %g, want a finite one", s)
				}
			}
			for layer := range in {
				p.Learn(layer)
			}
		}
	})
}
