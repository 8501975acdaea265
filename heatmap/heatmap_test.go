package heatmap

// This file tests figures: by golden images, by the pixels of cells, and by what would make them unreadable.

import (
	"bytes"
	"encoding/base64"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot/cmpimg"

	"tensorcast/internal/testenv"
)

var update = flag.Bool("update", false, "rewrite the golden images in testdata")

// component is a tensor of a layer and the share of it that a generated token reads.
type component struct {
	name  string
	share float32
}

var (
	denseLayer = []component{
		{"attn_norm.weight", 1},
		{"attn_q.weight", 1},
		{"attn_k.weight", 1},
		{"attn_v.weight", 1},
		{"attn_output.weight", 1},
		{"ffn_norm.weight", 1}, {"ffn_gate.weight", 1}, {"ffn_up.weight", 1}, {"ffn_down.weight", 1},
	}
	moeLayer = []component{
		{"attn_norm.weight", 1},
		{"attn_q.weight", 1},
		{"attn_k.weight", 1},
		{"attn_v.weight", 1},
		{"attn_output.weight", 1},
		{"ffn_norm.weight", 1},
		{"ffn_gate_inp.weight", 1},
		{"ffn_gate_exps.weight", 0.125},
		{"ffn_up_exps.weight", 0.125},
		{"ffn_down_exps.weight", 0.125},
	}
)

// model is a run of a model: a warm-up, prompt steps and tokens. The warm-up reads all experts, and a
// prompt many.
func model(layer []component, layers, prompts, tokens int) *Matrix {
	m := &Matrix{Rows: []Row{{Label: "token_embd.weight"}}}
	shares := []float32{1.0 / 32000}
	for l := range layers {
		for _, c := range layer {
			m.Rows = append(m.Rows, Row{Label: c.name, Block: fmt.Sprintf("blk.%d", l)})
			shares = append(shares, c.share)
		}
	}
	m.Rows = append(m.Rows, Row{Label: "output_norm.weight"}, Row{Label: "output.weight"})
	shares = append(shares, 1, 1)
	columns := func(panel string, n int) {
		for i := range n {
			m.Columns = append(m.Columns, Column{Panel: panel, Number: i})
		}
	}
	columns("warm-up", 1)
	columns("prompt", prompts)
	columns("generated tokens", tokens)
	for r, share := range shares {
		for c := range m.Columns {
			v := share
			switch expert := share == 0.125; {
			case expert && c == 0:
				v = 1
			case expert && c <= prompts:
				v = 0.7 + 0.2*float32(math.Sin(float64(r)))
			case r == 0 && c <= prompts:
				v *= 5
			}
			m.Values = append(m.Values, v)
		}
	}
	return m
}

func (m *Matrix) cell(row, column int) *float32 { return &m.Values[row*len(m.Columns)+column] }

func cutShort(m *Matrix, from int) {
	for r := from; r < len(m.Rows); r++ {
		*m.cell(r, len(m.Columns)-1) = float32(math.NaN())
	}
}

func figures() map[string]*Matrix {
	dense := model(denseLayer, 6, 1, 32)
	*dense.cell(20, 2+7) = 0
	dense.Columns[2+7].Marked = true
	cutShort(dense, 30)

	moe := model(moeLayer, 16, 2, 64)
	cutShort(moe, 90)

	large := model(denseLayer, 33, 1, 1000)
	for r := 100; r < 109; r++ {
		*large.cell(r, 2+500) = 0
	}
	large.Columns[2+500].Marked = true
	cutShort(large, 200)

	return map[string]*Matrix{
		"dense": dense, "moe": moe, "large": large,
		"one": {Rows: []Row{{Label: "output.weight"}}, Columns: []Column{{Panel: "generated tokens"}},
			Values: []float32{1}},
		"binned":  model(moeLayer, 40, 40, 2500),
		"noblock": blockless(300, 100),
		"small":   small(),
	}
}

// blockless is a model whose tensors belong to no layer.
func blockless(rows, tokens int) *Matrix {
	m := &Matrix{}
	for r := range rows {
		m.Rows = append(m.Rows,
			Row{Label: fmt.Sprintf("a_tensor_with_a_name_that_says_nothing.%d.and_is_long.weight", r)})
	}
	for c := range tokens {
		m.Columns = append(m.Columns, Column{Panel: "generated tokens", Number: c})
	}
	m.Values = slices.Repeat([]float32{0.3}, rows*tokens)
	return m
}

// small has one of everything that a figure can show.
func small() *Matrix {
	m := model(moeLayer, 2, 1, 9)
	*m.cell(3, 6) = 0
	m.Columns[6].Marked = true
	cutShort(m, 12)
	*m.cell(len(m.Rows)-1, 4) = 2
	m.Rows = append(m.Rows, Row{Label: "rope_freqs.weight"})
	m.Values = append(m.Values, make([]float32, len(m.Columns))...)
	return m
}

func texts(name string, m *Matrix) Text {
	return Text{
		Title: name + "-1.2B-Q8_0.gguf: weights read per token",
		Subtitle: fmt.Sprintf("%d tensors in access order; 1.1 GB read per token; sequence identical in 30 of 31 "+
			"generated tokens", len(m.Rows)),
		Scale: "Share of a tensor's bytes that a step reads (square-root scale; more than 100 % is drawn as 100 %)",
		Mark:  "sequence differs",
	}
}

func render(t *testing.T, m *Matrix, text Text) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := Write(&buf, m, text, "png"); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// weighted has rows of different heights, and a scale of its own.
func weighted() (*Matrix, Text) {
	m := model(moeLayer, 3, 1, 4)
	for i := range m.Rows {
		m.Rows[i].Weight = 1
		if strings.Contains(m.Rows[i].Label, "exps") {
			m.Rows[i].Weight = 30
		}
	}
	*m.cell(5, 3) = float32(math.NaN())
	text := texts("weighted", m)
	text.Caption = "2 CPUs; 24 GiB; limit 566 MiB; Linux 6.18; tracer --detail op+io; llama-cli -m weighted.gguf"
	text.Ticks, text.Nothing = []Tick{{0, "> 0"}, {0.25, "3 MiB"}, {1, "12 MiB"}}, "nothing"
	return m, text
}

func TestGolden(t *testing.T) {
	testenv.SkipWithRace(t)
	for _, name := range []string{"small", "one", "weighted"} {
		t.Run(name, func(t *testing.T) {
			m := figures()[name]
			words := texts
			if name == "weighted" {
				var text Text
				m, text = weighted()
				words = func(string, *Matrix) Text { return text }
			}
			got := render(t, m, words(name, m))
			path := filepath.Join("testdata", name+".png")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v (run the test with -update to make it)", err)
			}
			if !looksSame(t, got, want) {
				t.Errorf("the figure is not %s; see -update", path)
			}
			if !bytes.Equal(got, render(t, m, words(name, m))) {
				t.Error("the same matrix gives two different files")
			}
			// The comparison itself can fail: it finds one cell of another colour.
			*m.cell(0, 0) = 0.5
			if looksSame(t, render(t, m, words(name, m)), want) {
				t.Error("a figure with another cell passes for the golden image")
			}
		})
	}
}

// looksSame allows for glyphs whose edges other processors round differently.
func looksSame(t *testing.T, a, b []byte) bool {
	t.Helper()
	if decode(t, a).Bounds() != decode(t, b).Bounds() {
		return false
	}
	ok, err := cmpimg.EqualApprox("png", a, b, 0.05)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func decode(t *testing.T, data []byte) image.Image {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestFigures draws every shape, and checks what would make it unreadable. If HEATMAP_DIR is set, the
// pictures are left there.
func TestFigures(t *testing.T) {
	testenv.SkipWithRace(t)
	for name, m := range figures() {
		t.Run(name, func(t *testing.T) {
			data := render(t, m, texts(name, m))
			if dir := os.Getenv("HEATMAP_DIR"); dir != "" {
				if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			f := layOut(m, texts(name, m))
			if f.width > 3000 || f.height > 5000 {
				t.Errorf("the figure has %d x %d pixels, want at most 3000 x 5000", f.width, f.height)
			}
			line := f.lineHeight(smallStyle)
			if f.rowLabels {
				line = rowText
			}
			for i, l := range f.labels {
				if i > 0 && l.middle-f.labels[i-1].middle < line {
					t.Errorf("labels %q and %q overlap: %d and %d", f.labels[i-1].text, l.text, f.labels[i-1].middle,
						l.middle)
				}
				if l.middle < f.top-line || l.middle > f.bottom+line {
					t.Errorf("label %q at %d is outside of the cells, %d to %d", l.text, l.middle, f.top, f.bottom)
				}
				if w := f.textWidth(l.text, smallStyle); w > f.left-labelGap-margin {
					t.Errorf("label %q leaves the figure", l.text)
				}
			}
		})
	}
}

// Every cell has the colour of its value in its middle.
func TestCellColours(t *testing.T) {
	m := small()
	f := layOut(m, texts("small", m))
	img := decode(t, render(t, m, texts("small", m)))
	for i, p := range f.panels {
		for r, values := range p.cells {
			for c, v := range values {
				x, y := f.panelLeft[i]+c*f.cellWidth[i]+f.cellWidth[i]/2, f.rowTop[r]+f.rowHeight[r]/2
				got := color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)
				if isNaN(v) {
					if got != notObserved && got != frame {
						t.Errorf("row %d, column %d was not observed and is %v", r, p.first+c, got)
					}
					continue
				}
				if want := cellColor(*m.cell(r, p.first+c)); got != want {
					t.Errorf("row %d, column %d is %v, want %v", r, p.first+c, got, want)
				}
			}
		}
	}
}

func TestScale(t *testing.T) {
	luminance := func(c color.RGBA) float64 { return 0.2126*float64(c.R) + 0.7152*float64(c.G) + 0.0722*float64(c.B) }
	before := math.Inf(1)
	for i := 0; i <= 100; i++ {
		l := luminance(scaleColor(float64(i) / 100))
		if l > before {
			t.Errorf("at %d %% the scale gets lighter", i)
		}
		before = l
	}
	for _, tc := range []struct {
		v    float32
		want color.RGBA
	}{
		{-1, notRead},
		{0, notRead},
		{1e-9, cividis[0]},
		{1, cividis[len(cividis)-1]},
		{7, cividis[len(cividis)-1]},
		{1.0 / 9, cividis[3]},
	} {
		if got := cellColor(tc.v); got != tc.want {
			t.Errorf("colour of %g is %v, want %v", tc.v, got, tc.want)
		}
	}
}

func TestReduce(t *testing.T) {
	const n = 2*MaxColumns + 1 // three to a column, the last column whole
	m := &Matrix{Rows: []Row{{Label: "a"}}}
	for i := range n {
		m.Columns = append(m.Columns, Column{Panel: "p", Number: i, Marked: i == 4})
		m.Values = append(m.Values, 1)
	}
	nan := float32(math.NaN())
	copy(m.Values, []float32{0, 4, nan, nan, nan, nan})
	p := splitPanels(m, meanOf)[0]
	if p.merged != 3 || len(p.number) != (n+2)/3 || p.number[1] != 3 {
		t.Fatalf("%d to a column, %d columns, the second is %d", p.merged, len(p.number), p.number[1])
	}
	if got := p.cells[0][0]; got != 0.5 {
		t.Errorf("mean of 0, 4 (counted as 1) and NaN is %g, want 0.5", got)
	}
	if got := p.cells[0][1]; !isNaN(got) {
		t.Errorf("mean of nothing is %g, want NaN", got)
	}
	if got := splitPanels(m, greatestOf)[0].cells[0]; got[0] != 4 || !isNaN(got[1]) || got[2] != 1 {
		t.Errorf("the greatest are %v, want 4, NaN, 1", got[:3])
	}
	f := layOut(m, Text{Greatest: true})
	if name := f.panelName(f.panels[0]); name != "p (each column is the greatest of 3)" {
		t.Errorf("panel name %q, want that of the greatest of 3", name)
	}
	if p.marked[0] || !p.marked[1] || p.marked[2] {
		t.Errorf("marks %v, want the second alone", p.marked[:3])
	}
}

func TestRefuses(t *testing.T) {
	row, column := Row{Label: "a"}, Column{Panel: "p"}
	for _, tc := range []struct {
		name string
		m    Matrix
		want string
	}{
		{"no rows", Matrix{Columns: []Column{column}}, "nothing to draw"},
		{"no columns", Matrix{Rows: []Row{row}}, "nothing to draw"},
		{
			"too few values", Matrix{Rows: []Row{row, row}, Columns: []Column{column}, Values: []float32{1}},
			"1 values for 2 rows and 1 columns",
		},
		{
			"too many rows",
			Matrix{Rows: make([]Row, MaxRows+1), Columns: []Column{column}, Values: make([]float32, MaxRows+1)},
			"at most",
		},
	} {
		if err := Write(io.Discard, &tc.m, Text{}, "png"); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.want)
		}
	}
}

// A label of any length is cut to what fits, without trying all lengths.
func TestFitLongLabel(t *testing.T) {
	f := layOut(&Matrix{Rows: []Row{{Label: "x"}}, Columns: []Column{{}}, Values: []float32{0}}, Text{})
	for _, label := range []string{
		strings.Repeat("weight", 2000), strings.Repeat("\x1b\xff", 2000), strings.Repeat("W", 100),
	} {
		got := f.shorten(label, smallStyle, maxLabel)
		if w := f.textWidth(got, smallStyle); w > maxLabel || w < maxLabel/2 || !strings.Contains(got, "…") {
			t.Errorf("%.40q is cut to %q, %d pixels of %d", label, got, w, maxLabel)
		}
	}
}

// In SVG the cells are images with the very pixels of the PNG, at the same positions, and the words are
// letters. PDF compresses all this, so only that it is drawn is known.
func TestVector(t *testing.T) {
	testenv.SkipWithRace(t)
	m, text := weighted()
	pixels := decode(t, render(t, m, text))
	f := layOut(m, text)
	var svg, pdf bytes.Buffer
	if err := Write(&svg, m, text, "svg"); err != nil {
		t.Fatal(err)
	}
	if err := Write(&pdf, m, text, "pdf"); err != nil || !bytes.HasPrefix(pdf.Bytes(), []byte("%PDF-")) {
		t.Errorf("PDF of %d bytes, error %v, want a document", pdf.Len(), err)
	}
	images := regexp.MustCompile(
		`(?s)<image x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"[^>]*"data:image/png;base64,([^"]*)"`).FindAllStringSubmatch(svg.String(), -1)
	if want := len(f.panels) + 2; len(images) != want { // two are in the legend: nothing, not observed
		t.Fatalf("%d images, want %d", len(images), want)
	}
	found := 0
	for _, at := range images {
		data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(at[5]), ""))
		if err != nil {
			t.Fatal(err)
		}
		img := decode(t, data)
		i := found // panels come in order, and the legend before or after them
		if i == len(f.panels) || img.Bounds().Dy() != f.bottom-f.top {
			continue
		}
		if want := len(f.panels[i].number) * f.cellWidth[i]; img.Bounds().Dx() != want {
			t.Errorf("panel %d is %d wide, want %d", i, img.Bounds().Dx(), want)
		}
		found++
		for y := range img.Bounds().Dy() {
			for x := range img.Bounds().Dx() {
				if got, want := img.At(x, y), pixels.At(f.panelLeft[i]+x, f.top+y); !equal(got, want) {
					_, _, _, alpha := got.RGBA()
					if alpha == 0 && equal(want, white) { // a gap, behind which the canvas is white
						continue
					}
					t.Fatalf("panel %d at %d, %d: %v, in the PNG %v", i, x, y, got, want)
				}
			}
		}
	}
	if found != len(f.panels) {
		t.Errorf("found %d panels, want %d", found, len(f.panels))
	}
	for _, s := range []string{
		text.Title, text.Caption, "blk.1", "12 MiB", "not observed", "font-family:'Liberation Sans',Arimo,",
		f.panelName(f.panels[0]),
	} {
		if !strings.Contains(svg.String(), s) {
			t.Errorf("%q is not in the SVG", s)
		}
	}
	if err := Write(io.Discard, m, text, "bmp"); err == nil || !strings.Contains(err.Error(), "svg") {
		t.Errorf("BMP: error %v, want one that names the formats", err)
	}
}

func equal(a, b color.Color) bool {
	r, g, b1, al := a.RGBA()
	R, G, B, A := b.RGBA()
	return r == R && g == G && b1 == B && al == A
}

func TestPlaceLabel(t *testing.T) {
	for _, tt := range []struct {
		x, width    int
		share       float64
		taken, want int
	}{
		{20, 30, 0, 0, 20},                 // begins at the beginning of the scale
		{100, 30, 0.1, 50, 85},             // in the middle
		{200, 60, 1, 115, 141},             // ends at its end
		{200, 100, 1, 115, 115 + labelGap}, // but for that there is no room
		{100, 80, 0.1, 90, 90 + labelGap},
	} {
		if got := placeLabel(tt.x, tt.width, tt.share, tt.taken); got != tt.want {
			t.Errorf("%+v: begins at %d", tt, got)
		}
	}
}
