package gather

// This file tests figures whose values are planted.

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tensorcast/heatmap"
	"tensorcast/pattern"
	"tensorcast/trace/tables"
)

// fileOrdered is a model whose order in the file is not that of the first reads.
var fileOrdered = []tables.StructureRow{
	{Name: "output.weight", Component: "output.weight", Offset: 100, Size: 900, Layer: -1},
	{Name: "token_embd.weight", Component: "token_embd.weight", Offset: 1000, Size: 6400, Layer: -1},
	{Name: "blk.0.ffn_down.weight", Component: "ffn_down.weight", Offset: 8000, Size: 300, Layer: 0},
	{Name: "blk.0.ffn_up.weight", Component: "ffn_up.weight", Offset: 9000, Size: 200, Layer: 0},
}

// readTokens is the pattern of a prompt and of tokens that read these tensors of fileOrdered: the embeddings of one
// token, and the others as a whole. The capture is complete.
func readTokens(t *testing.T, tokens ...[]int32) *pattern.Pattern {
	t.Helper()
	steps := append([][]int32{{1, 3, 2, 0}}, tokens...)
	rows := func(yield func(*tables.Access, error) bool) {
		for step, tensors := range steps {
			a := tables.Access{Step: int32(step), Token: int32(step) - 1, Phase: tables.PhaseGeneration, Duration: 10}
			if step == 0 {
				a.Phase = tables.PhasePrompt
			}
			for i, tensor := range tensors {
				a.Tensor, a.Bytes, a.Offset = tensor, fileOrdered[tensor].Size, fileOrdered[tensor].Offset
				a.Timestamp, a.Op = int64(step*1000+i*10), "MUL_MAT"
				if tensor == 1 {
					a.Op, a.Bytes = "GET_ROWS", 64
				}
				if !yield(&a, nil) {
					return
				}
			}
		}
	}
	p, err := pattern.Build(fileOrdered, rows, pattern.Options{Context: pattern.MostRead, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The heatmap of accesses has the planted shares. What a token that is cut short has not read was not observed.
func TestAccessFigure(t *testing.T) {
	nan := float32(math.NaN())
	for _, tc := range []struct {
		fileOrder bool
		labels    []string
		values    []float32 // a row per tensor: the prompt, two tokens, and one that is cut short
	}{
		{false, []string{"token_embd.weight", "blk.0 ffn_up.weight", "blk.0 ffn_down.weight", "output.weight"},
			[]float32{
				0.01, 0.01, 0.01, 0.01,
				1, 1, 1, 1,
				1, 1, 1, nan,
				1, 1, 1, nan,
			}},
		{true, []string{"output.weight", "token_embd.weight", "blk.0 ffn_down.weight", "blk.0 ffn_up.weight"},
			[]float32{
				1, 1, 1, nan,
				0.01, 0.01, 0.01, 0.01,
				1, 1, 1, nan,
				1, 1, 1, 1,
			}},
	} {
		t.Run(fmt.Sprint("file order ", tc.fileOrder), func(t *testing.T) {
			whole := []int32{1, 3, 2, 0}
			f, err := AccessFigure(readTokens(t, whole, whole, whole[:2]), tc.fileOrder)
			if err != nil {
				t.Fatal(err)
			}
			m := f.Matrix
			var labels []string
			for _, r := range m.Rows {
				labels = append(labels, strings.TrimSpace(r.Block+" "+r.Label))
			}
			if !reflect.DeepEqual(labels, tc.labels) {
				t.Errorf("rows %v, want %v", labels, tc.labels)
			}
			for i, want := range tc.values {
				if got := m.Values[i]; got != want && (got == got || want == want) {
					t.Errorf("row %d, column %d is %g, want %g", i/4, i%4, got, want)
				}
			}
			first, last := m.Columns[0], m.Columns[3]
			if first.Panel != "prompt" || last.Panel != "generated tokens" || last.Number != 2 || last.Marked {
				t.Errorf("columns %+v, want the prompt first, and the unmarked token 2 last", m.Columns)
			}
		})
	}
}

// A heatmap whose matrix would not fit in memory is refused.
func TestAccessFigureTooLarge(t *testing.T) {
	for _, tc := range []struct {
		tensors, steps int
		want           string
	}{
		{1000, 3000, "<nil>"},
		{300, 170000, "300 tensors in 170000 steps are too many to draw"},
		{20000, 900, "20000 tensors in 900 steps are too many to draw"},
	} {
		p := &pattern.Pattern{Structure: make([]tables.StructureRow, tc.tensors), Steps: make([]pattern.Step, tc.steps)}
		if _, err := AccessFigure(p, false); fmt.Sprint(err) != tc.want {
			t.Errorf("error %v, want %s", err, tc.want)
		}
	}
}

// Where tokens differ in what they read, the figure does not say that they are alike.
func TestTokensAlike(t *testing.T) {
	unobserved := float32(math.NaN())
	generated := heatmap.Column{Panel: phasePanels[tables.PhaseGeneration]}
	m := &heatmap.Matrix{
		Rows:    make([]heatmap.Row, 2),
		Columns: []heatmap.Column{{Panel: phasePanels[tables.PhasePrompt]}, generated, generated},
		Values:  []float32{3, 1, 1, 4, 0.5, unobserved},
	}
	saysAlike := func() bool {
		return strings.Contains(AccessText(&pattern.Summary{}, m, false, "").Subtitle, "analyze heatmap")
	}
	if !stepsAlike(m, generated.Panel) || !saysAlike() {
		t.Error("the prompt, or what was not observed, counts as a difference")
	}
	m.Values[1] = 0.25
	if stepsAlike(m, generated.Panel) || saysAlike() {
		t.Error("another value of a token does not count as a difference")
	}
}

// The scale puts the greatest value at its end, and the least of a logarithmic one above nothing.
func TestGridScale(t *testing.T) {
	s := gridScale{least: 1, most: 1e6}
	if got := s.share(250000); got != 0.25 {
		t.Errorf("share = %g, want 0.25", got)
	}
	s.log = true
	for v, want := range map[float64]float64{1e6: 1, 1e3: 0.25, 0: 0} {
		if got := s.share(v); math.Abs(got-want) > 1e-4 {
			t.Errorf("logarithmic share of %g = %g, want %g", v, got, want)
		}
	}
	if got := s.share(1); !(got > 0 && got < 1e-6) {
		t.Errorf("logarithmic share of the least = %g, want a little more than 0", got)
	}
	if got := (&gridScale{least: 5, most: 5, log: true}).share(5); got != 1 {
		t.Errorf("share of the only value = %g, want 1", got)
	}
}

// The line below a figure has the machine, the limit and the command.
func TestCaption(t *testing.T) {
	meta := &tables.Meta{
		Detail: tables.DetailOp, Host: tables.Host{CPUs: 2, MemoryBytes: 1 << 30, Kernel: "6.1"},
		Memory: &tables.Memory{LimitBytes: 566 << 20}, Command: []string{"/opt/llama-cli", "-m", "m.gguf"},
	}
	const want = "2 CPUs; 1.0 GiB; limit 566 MiB; Linux 6.1; tracer --detail op; llama-cli -m m.gguf"
	if got := Caption(meta); got != want {
		t.Errorf("Caption = %q, want %q", got, want)
	}
	if !slices.Equal(meta.Command, []string{"/opt/llama-cli", "-m", "m.gguf"}) {
		t.Errorf("Caption changed the command to %q", meta.Command)
	}
}

// A figure of what was read again has only tensors of which something was. Where there are none it has no bars.
func TestRereadsFigure(t *testing.T) {
	if b := planted(t, 6, true).RereadsFigure(""); !slices.Equal(b.Labels, []string{"blk.1.a"}) {
		t.Errorf("bars of %q, want of blk.1.a", b.Labels)
	}
	if b := planted(t, 2, false).RereadsFigure(""); len(b.Labels) != 0 || len(b.Panels) != 0 {
		t.Errorf("bars of %q in %d panels, want none", b.Labels, len(b.Panels))
	}
}
