package moe

// This file tests how routing traces are read: from CSV, from a capture's rows, and from bad input.

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"tensorcast/internal/testenv"
	"tensorcast/trace/tables"
)

// public reads a public trace that lies beside the repository. If there is none, it skips the test.
func public(t testing.TB, name string) *Trace {
	t.Helper()
	tr, err := ReadCSV(testenv.OpenShared(t, "data", "moe-routes", name+".route.csv.gz"))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestPublicTraces(t *testing.T) {
	for _, tc := range []struct {
		name                   string
		shape                  Shape
		tokens, prompt, chosen int
		model                  string
		bytes                  int64
	}{
		{"qwen", Shape{48, 128, 6}, 156, 28, 7902 + 36864, "Qwen3-30B-A3B-Q4_K_M.gguf", 24 * 6 * (2654208 + 3059712)},
		{"gptoss", Shape{36, 128, 2}, 149, 85, 5952 + 4608, "gpt-oss-120b-Q4_K_M.gguf", 36 * 2 * 13219200},
	} {
		tr := public(t, tc.name)
		if tr.Shape() != tc.shape || len(tr.Tokens) != tc.tokens || tr.FirstDecode() != tc.prompt ||
			len(tr.chosen) != tc.chosen || tr.Model != tc.model || tr.TokenBytes() != tc.bytes {
			t.Errorf("%s: %v, %d tokens, %d of the prompt, %d choices, %s, %d bytes per token, want %+v", tc.name,
				tr.Shape(), len(tr.Tokens), tr.FirstDecode(), len(tr.chosen), tr.Model, tr.TokenBytes(), tc)
		}
	}
}

const heading = "# route_trace v1\n# model=/m/a.gguf arch=x n_layer=3 n_expert=8 n_expert_used=2\n# layer=0 " +
	"expert_bytes=100 dense_bytes=5\n# layer=2 expert_bytes=300\n" +
	"turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"

// good has a prompt of two tokens, which comes by layer. Its last layer has one token. Layer 1 has no experts.
const good = heading +
	"0,0,0,0,0,7,0.5,0,1\n0,0,0,0,1,1,0.5,0,1\n0,0,1,0,0,2,0.5,0,1\n0,0,1,0,1,3,0.5,0,1\n" +
	"0,0,1,2,0,6,1,0,1\n0,0,1,2,1,5,1,0,1\n" +
	"0,1,2,0,0,4,1,1,0\n0,1,2,0,1,5,1,1,0\n0,1,2,2,0,0,1,1,0\n0,1,2,2,1,1,1,1,0\n"

func TestReadCSV(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	fmt.Fprint(z, good)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"plain": good, "gzip": zipped.String(), "CRLF": strings.ReplaceAll(good, "\n", "\r\n"),
		"no newline": strings.TrimRight(good, "\n"),
	} {
		tr, err := ReadCSV(strings.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !slices.Equal(tr.Layers, []Layer{{0, 100}, {2, 300}}) || tr.Model != "a.gguf" ||
			tr.Shape() != (Shape{2, 8, 2}) || len(tr.Tokens) != 3 || tr.FirstDecode() != 2 {
			t.Errorf("%s: trace %+v, want that of the lines", name, tr)
		}
		for i, want := range [][]int32{{7, 1}, {}, {2, 3}, {6, 5}, {4, 5}, {0, 1}} {
			if got := tr.Chosen(i/2, i%2); !slices.Equal(got, want) {
				t.Errorf("%s: token %d, layer %d: %v, want %v", name, i/2, i%2, got, want)
			}
		}
	}
}

// Errors name the line.
func TestReadCSVRefuses(t *testing.T) {
	row := func(s string) string { return heading + "0,1,5,0,0,7,1\n0,1,5,0,1,6,1\n" + s + "\n" }
	for _, tc := range []struct{ text, says string }{
		{"", "no routing trace"},
		{"turn,phase\n", "no routing trace"},
		{csvMagic, "no routes"},
		{heading, "no routes"},
		{row("0,1,5,0,1"), "line 8: 5 fields: expert is missing"},
		{row("0,1,x,0,0,1"), `line 8: step is "x", want a whole number`},
		{row("0,1,99999999999,0,0,1"), `line 8: step is "99999999999", want a whole number`},
		{row("0,2,6,0,0,1"), "line 8: phase is 2"},
		{row("0,1,6,3,0,1"), "line 8: layer 3 is none of the model's 3"},
		{row("0,1,6,-1,0,1"), "line 8: layer -1"},
		{row("0,1,6,0,0,8"), "line 8: expert 8, want 0 to 7"},
		{row("0,1,6,0,0,-1"), "line 8: expert -1, want 0 to 7"},
		{row("0,1,6,0,2,1"), "line 8: slot 2, want 0 to 1"},
		{row("0,1,6,0,1,1"), "line 8: slot 1 of step 6, layer 0: want slot 0 next"},
		{row("0,1,5,0,0,1"), "line 8: slot 0 of step 5, layer 0: want slot 2 next"},
		{row("0,1,6,0,0,1\n0,1,6,0,1,1"), "line 9: step 6, layer 0 chooses expert 1 twice"},
		{row("0,1,4,0,0,1"), "line 8: step 4, position 0 after step 5: steps must ascend"},
		{row("0,1,6,0,0,1\n0,1,5,0,0,1"), "line 9: step 5, position 0 after step 6, position 0 of the same layer"},
		{row("0,0,5,1,0,1"), "line 8: step 5 is of the phase prompt, and of decode before"},
		{row("0,1,5,1,0,1\n0,1,5,2,0,1\n0,1,5,1,1,2"), "line 10: slot 1 of step 5, layer 1: want slot 1 next, and " +
			"one after the other"},
		{row("-1,1,5,0,0,1"), "line 8: turn -1"},
		{csvMagic + "\nturn,phase,step,layer,slot\n", "line 2: the columns are"},
		{csvMagic + "\nturn,phase,step,layer,slot,expert\n", "line 2: the lines above say 0 layers"},
		{csvMagic + "\n# n_layer=-1\n", `line 2: n_layer is "-1"`},
		{
			csvMagic + "\n# n_layer=2 n_expert=4 n_expert_used=5\nturn,phase,step,layer,slot,expert\n",
			"line 3: the lines above say 2 layers, 4 experts, 5 per token",
		},
		{
			csvMagic + "\n# n_layer=1024 n_expert=1024 n_expert_used=1\nturn,phase,step,layer,slot,expert\n",
			"line 3: 1024 layers with 1024 experts, want 131072",
		},
		{csvMagic + "\n# n_layer=1 n_expert=1 n_expert_used=1\n# layer=0 " +
			"expert_bytes=1099511627776\nturn,phase,step,layer,slot,expert\n" + many(9000),
			"9000 tokens of 1099511627776 bytes of experts are too many"},
		{csvMagic + "\n# layer=5000 expert_bytes=4\n", "line 2: layer 5000"},
		{csvMagic + "\n#" + strings.Repeat("x", maxLine), "line 2: bufio.Scanner: token too long"},
		{"\x1f\x8bxxxxxxxxxxxx", "decompress: "},
	} {
		tr, err := ReadCSV(strings.NewReader(tc.text))
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q...: trace %v, error %v, want %q", strings.TrimPrefix(tc.text, heading), tr, err, tc.says)
		}
	}
}

// many has n rows, each of a token of its own.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "0,1,%d,0,0,0\n", i)
	}
	return b.String()
}

// A trace that claims many layers takes no more memory than the bound.
func TestReadCSVIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(csvMagic + "\n# n_layer=1024 n_expert=2 n_expert_used=1\nturn,phase,step,layer,slot,expert\n")
	for i := range maxCells/maxLayers + 1 {
		fmt.Fprintf(&b, "0,1,%d,0,0,1\n", i)
	}
	_, err := ReadCSV(strings.NewReader(b.String()))
	if err == nil || !strings.Contains(err.Error(), "more than 4096 tokens are too many") {
		t.Errorf("error %v, want that there are too many tokens", err)
	}
}

func TestRowsAreBounded(t *testing.T) {
	b, err := newBuilder(&Trace{Experts: 9, Layers: []Layer{{}}})
	if err != nil || b.rowLimit != maxChoices {
		t.Fatalf("builder %+v, error %v, want one of at most %d rows", b, err, maxChoices)
	}
	b.rowLimit = 3
	for slot := range int32(4) {
		if err := b.addRow(row{slot: slot, expert: slot}); (err != nil) != (slot == 3) {
			t.Errorf("row %d: error %v, want one for row 3 only", slot, err)
		}
	}
}

func FuzzReadCSV(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(heading + "1,1,0,2,0,3\n"))
	f.Add(
		[]byte(csvMagic + "\n# n_layer=1 n_expert=1 n_expert_used=1\nexpert,slot,layer,step,phase,turn\n0,0,0,0,1,0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := ReadCSV(bytes.NewReader(data))
		if err != nil {
			return
		}
		check(t, tr)
	})
}

// check fails the test if a trace is not as readers promise.
func check(t *testing.T, tr *Trace) {
	t.Helper()
	if len(tr.Tokens) == 0 || len(tr.Layers) == 0 || tr.K < 1 || tr.K > tr.Experts {
		t.Fatalf("%d tokens, %d layers, %d of %d experts, want at least 1 of each", len(tr.Tokens), len(tr.Layers),
			tr.K, tr.Experts)
	}
	total := 0
	for token := range tr.Tokens {
		for layer := range tr.Layers {
			chosen := slices.Clone(tr.Chosen(token, layer))
			total += len(chosen)
			slices.Sort(chosen)
			if len(slices.Compact(chosen)) != len(tr.Chosen(token, layer)) || len(chosen) > 0 &&
				(chosen[0] < 0 || int(chosen[len(chosen)-1]) >= tr.Experts) {
				t.Fatalf("token %d, layer %d: experts %v, want different ones below %d", token, layer,
					tr.Chosen(token, layer), tr.Experts)
			}
		}
	}
	if total != len(tr.chosen) {
		t.Fatalf("%d choices are reached, want %d", total, len(tr.chosen))
	}
}

func rowsOf[R any](rows []R, err error) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		for _, r := range rows {
			if !yield(r, nil) {
				return
			}
		}
		if err != nil {
			var none R
			yield(none, err)
		}
	}
}

func TestFromRoutes(t *testing.T) {
	steps, err := Steps(rowsOf([]*tables.StepRow{
		{Step: 0, Phase: tables.PhaseWarmup},
		{Step: 1, Phase: tables.PhasePrompt, TokenIDs: []int32{10, 11}},
		{Step: 2, Phase: tables.PhasePrompt, Context: 1, TokenIDs: []int32{99}}, // a draft model
		{Step: 3, Phase: tables.PhaseGeneration, TokenIDs: []int32{12}},
	}, nil), 0)
	if err != nil || len(steps) != 2 {
		t.Fatalf("steps %v, error %v, want steps 1 and 3", steps, err)
	}
	structure := []tables.StructureRow{
		{Name: "blk.1.ffn_up_exps.weight", Layer: 1, Experts: 4, ExpertStride: 10},
		{Name: "blk.1.ffn_down_exps.weight", Layer: 1, Experts: 4, ExpertStride: 20},
		{Name: "blk.0.ffn_up.weight", Layer: 0},
		{Name: "blk.2.ffn_up_exps.weight", Layer: 2, Experts: 4, ExpertStride: 40},
		{Name: "blk.0.ffn_up_exps.weight", Layer: 0, Experts: 9, ExpertStride: 40, Model: 1},
	}
	rows := []tables.Route{
		{Step: 0, Layer: 1, Expert: 3},
		{Step: 0, Layer: 1, Slot: 1, Expert: 2},
		{Step: 0, Layer: 1, Slot: 2, Expert: 1},
		{Step: 1, Layer: 1, Expert: 3},
		{Step: 1, Layer: 1, Slot: 1, Expert: 0},
		{Step: 1, Layer: 1, Expert: 2, Position: 1},
		{Step: 1, Layer: 1, Slot: 1, Expert: 1, Position: 1},
		{Step: 1, Layer: 2, Expert: 0, Position: 1},
		{Step: 1, Layer: 2, Expert: 3, Position: tables.NoPosition},
		{Step: 2, Layer: 0, Expert: 8},
		{Step: 3, Layer: 1, Expert: 1},
		{Step: 3, Layer: 2, Expert: 2},
	}
	tr, err := FromRoutes(EmptyTrace("m.gguf", structure, 0), rowsOf(rows, nil), steps)
	if err != nil {
		t.Fatal(err)
	}
	check(t, tr)
	if tr.Model != "m.gguf" || tr.Shape() != (Shape{2, 4, 2}) ||
		!slices.Equal(tr.Layers, []Layer{{1, 30}, {2, 40}}) || tr.TokenBytes() != 140 ||
		!slices.Equal(tr.Tokens, []Token{{1, 0, Prompt, 10}, {1, 1, Prompt, 11}, {3, 0, Decode, 12}}) ||
		!slices.Equal(tr.Chosen(0, 0), []int32{3, 0}) || len(tr.Chosen(0, 1)) != 0 ||
		!slices.Equal(tr.Chosen(1, 1), []int32{0}) || !slices.Equal(tr.Chosen(2, 1), []int32{2}) {
		t.Errorf("trace %+v, want that of the rows of steps 1 and 3", tr)
	}
	rows[10].Expert = 4
	if _, err := FromRoutes(EmptyTrace("m.gguf", structure, 0), rowsOf(rows, nil), steps); err == nil ||
		err.Error() != "row 10 of the routes: expert 4, want 0 to 3" {
		t.Errorf("error %v, want that of row 10", err)
	}
	broken := errors.New("broken")
	if _, err := FromRoutes(EmptyTrace("m.gguf", structure, 0), rowsOf(rows[:3], broken), steps); !errors.Is(err,
		broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	if _, err := FromRoutes(EmptyTrace("m.gguf", structure, 0), rowsOf(rows[:3], nil), steps); !errors.Is(err,
		ErrNoRoutes) {
		t.Errorf("error %v, want %v", err, ErrNoRoutes)
	}
	if EmptyTrace("m.gguf", structure[2:3], 0) != nil {
		t.Error("EmptyTrace of a dense model is not nil")
	}
}

// The context that chose most often is taken, or the one that is asked for.
func TestChoosingContext(t *testing.T) {
	structure := []tables.StructureRow{{Model: 4}, {Model: 7}}
	rows := []*tables.Access{
		{Context: 2, Tensor: 1, Experts: []int32{1}},
		{Context: 0, Tensor: 0},
		{Context: 1, Tensor: 0, Experts: []int32{0, 3}},
		{Context: 1, Tensor: 0, Experts: []int32{2, 3}},
		{Context: 2, Tensor: 1, Experts: []int32{0}},
	}
	for _, tc := range []struct {
		rows                     []*tables.Access
		context, chosen, ofModel int32
		err                      error
	}{
		{rows, -1, 1, 4, nil}, // as often as context 2
		{append(rows, rows[0]), -1, 2, 7, nil},
		{rows, 2, 2, 7, nil},
		{rows, 0, 0, 0, ErrNoRoutes},
		{rows[1:2], -1, 0, 0, ErrNoRoutes},
	} {
		chosen, model, err := ChoosingContext(rowsOf(tc.rows, nil), structure, tc.context)
		if chosen != tc.chosen || model != tc.ofModel || !errors.Is(err, tc.err) {
			t.Errorf("context %d of %d rows: context %d, model %d, error %v, want %d, %d, %v",
				tc.context, len(tc.rows), chosen, model, err, tc.chosen, tc.ofModel, tc.err)
		}
	}
}
