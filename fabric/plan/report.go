package plan

// This file formats a survey and a plan for people: as tables and as a figure.

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"tensorcast/internal/tabular"
)

// frontRows is about how many points of a front the table shows.
const frontRows = 16

// WriteText writes the plan, and the survey's front and profiles, for a terminal.
func (s *Survey) WriteText(w io.Writer, p *Plan) error { return s.document(p).WriteText(w) }

// WriteMarkdown writes the same for a document.
func (s *Survey) WriteMarkdown(w io.Writer, p *Plan) error { return s.document(p).WriteMarkdown(w) }

func (s *Survey) document(p *Plan) tabular.Document {
	return tabular.Document{s.forms(p), s.profiles(), s.front()}
}

// forms lists the matrices of a plan. Matrices with the same name and form in different layers share a row.
func (s *Survey) forms(p *Plan) *tabular.Table {
	forms := &tabular.Table{
		Title:   fmt.Sprintf("Plan %q: %.4f bytes/weight, mean noise %s", p.Profile, p.BytesPerWeight(), dB(decibels(p.Noise))),
		Columns: slices.Concat(tabular.Left("tensors", "type", "form"), tabular.Right("matrices", "bytes/weight", "least SNR")),
	}
	if p.Bound > 0 {
		forms.Title += fmt.Sprintf(", no matrix below %g dB", p.Bound)
	}
	type group struct{ name, typ, form string }
	at := map[group]int{}
	var count, weights, bytes []int64
	var noise []float64
	var order []group
	for i := range p.Tensors {
		t := &p.Tensors[i]
		name := t.Name
		if rest, ok := strings.CutPrefix(name, "blk."); ok {
			_, name, _ = strings.Cut(rest, ".")
		}
		g := group{name, t.Type, t.String()}
		if _, ok := at[g]; !ok {
			at[g] = len(order)
			order = append(order, g)
			count, weights, bytes, noise = append(count, 0), append(weights, 0), append(bytes, 0), append(noise, 0)
		}
		n := at[g]
		count[n]++
		weights[n] += int64(t.Rows) * int64(t.Cols)
		bytes[n] += t.Bytes
		noise[n] = max(noise[n], t.Noise)
	}
	// Rows with the same name are adjacent.
	place := map[string]int{}
	for n, g := range order {
		if _, ok := place[g.name]; !ok {
			place[g.name] = n
		}
	}
	slices.SortStableFunc(order, func(a, b group) int { return place[a.name] - place[b.name] })
	for _, g := range order {
		n := at[g]
		forms.Rows = append(forms.Rows, []string{g.name, g.typ, g.form, fmt.Sprint(count[n]),
			fmt.Sprintf("%.4f", float64(bytes[n])/float64(weights[n])), dB(decibels(noise[n]))})
	}
	return forms
}

// front lists some points of the front, including the first and the last.
func (s *Survey) front() *tabular.Table {
	front := &tabular.Table{Title: "Pareto front: the least mean noise for the bytes of the whole model", Columns: tabular.Right("bytes", "bytes/weight", "SNR")}
	points := s.Front()
	step := max(1, (len(points)+frontRows-2)/frontRows)
	for i := 0; i < len(points); i += step {
		front.Rows = append(front.Rows, []string{fmt.Sprint(points[i].Bytes), fmt.Sprintf("%.4f", points[i].BytesPerWeight), dB(points[i].SNR())})
		if i < len(points)-1 && i+step >= len(points) {
			i = len(points) - 1 - step
		}
	}
	return front
}

func (s *Survey) profiles() *tabular.Table {
	profiles := &tabular.Table{
		Title:   "Profiles",
		Columns: slices.Concat(tabular.Left("profile"), tabular.Right("bound", "bytes", "bytes/weight", "SNR", "matrices native")),
	}
	for _, profile := range Profiles() {
		q := s.Plan(profile)
		native := 0
		for i := range q.Tensors {
			if q.Tensors[i].Native {
				native++
			}
		}
		profiles.Rows = append(profiles.Rows, []string{profile.Name, dB(profile.Bound), fmt.Sprint(q.Bytes), fmt.Sprintf("%.4f", q.BytesPerWeight()),
			dB(decibels(q.Noise)), fmt.Sprintf("%d of %d", native, len(q.Tensors))})
	}
	return profiles
}

func dB(v float64) string {
	if math.IsInf(v, 1) {
		return "lossless"
	}
	return fmt.Sprintf("%.1f dB", v)
}

// Colours that the colour-blind can distinguish (Okabe and Ito 2008).
var (
	ink   = color.RGBA{0x20, 0x20, 0x20, 0xff}
	grid  = color.RGBA{0xe4, 0xe4, 0xe8, 0xff}
	line  = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	mark  = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	plain = color.RGBA{0x80, 0x80, 0x80, 0xff}
)

// WriteFigure draws a PNG with the front, the profiles, and the forms applied uniformly: bytes per weight of the whole model against mean
// noise in decibels. Lossless plans are not in the figure; the title shows the least size for these.
func (s *Survey) WriteFigure(w io.Writer, model string) error {
	f := plot.New()
	f.Title.Text = model + ": bytes per weight against error"
	f.X.Label.Text = "bytes per weight, whole model"
	f.Y.Label.Text = "signal to noise of the products, dB"
	f.Title.TextStyle.Font.Size, f.Title.Padding = vg.Points(13), vg.Points(8)
	f.X.Tick.Marker, f.Y.Tick.Marker = ticks(0.1, 2), ticks(5, 2)
	for _, style := range []*text.Style{&f.Title.TextStyle, &f.X.Label.TextStyle, &f.Y.Label.TextStyle, &f.X.Tick.Label, &f.Y.Tick.Label,
		&f.Legend.TextStyle} {
		style.Font.Variant, style.Color = "Sans", ink
	}
	f.Legend.Top, f.Legend.Left = true, true
	f.Legend.Padding = vg.Points(3)
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = grid, grid
	f.Add(lines)

	var front plotter.XYs
	for _, p := range s.Front() {
		if p.Noise > 0 {
			front = append(front, plotter.XY{X: p.BytesPerWeight, Y: p.SNR()})
		}
	}
	var same plotter.XYs
	seen := map[string]bool{}
	for i := range s.Tensors {
		for _, c := range s.Tensors[i].Choices {
			if name := c.String(); !c.Native && !c.Exact && !seen[name] {
				seen[name] = true
				p, err := s.Uniform(c.fit())
				if err != nil {
					return fmt.Errorf("draw front: %w", err)
				}
				if p.Noise > 0 {
					same = append(same, plotter.XY{X: p.BytesPerWeight(), Y: decibels(p.Noise)})
				}
			}
		}
	}
	var named plotter.XYs
	var names []string
	for _, profile := range Profiles() {
		if p := s.Plan(profile); p.Noise > 0 {
			named = append(named, plotter.XY{X: p.BytesPerWeight(), Y: decibels(p.Noise)})
			names = append(names, profile.Name)
		} else {
			f.Title.Text += fmt.Sprintf("\n%s: %.3f bytes per weight, lossless", profile.Name, p.BytesPerWeight())
		}
	}
	points := func(name string, at plotter.XYs, c color.Color, shape draw.GlyphDrawer, size vg.Length) error {
		if len(at) == 0 {
			return nil
		}
		p, err := plotter.NewScatter(at)
		if err != nil {
			return err
		}
		p.Color, p.Shape, p.Radius = c, shape, size
		f.Add(p)
		f.Legend.Add(name, p)
		return nil
	}
	if len(front) > 0 {
		l, err := plotter.NewLine(front)
		if err != nil {
			return fmt.Errorf("draw front: %w", err)
		}
		l.Color, l.Width = line, vg.Points(1.5)
		f.Add(l)
		f.Legend.Add("best mix of forms", l)
	}
	if err := points("one form for all matrices", same, plain, draw.CircleGlyph{}, vg.Points(2.5)); err != nil {
		return fmt.Errorf("draw front: %w", err)
	}
	if err := points("profiles", named, mark, draw.TriangleGlyph{}, vg.Points(5)); err != nil {
		return fmt.Errorf("draw front: %w", err)
	}
	if len(named) > 0 {
		l, err := plotter.NewLabels(plotter.XYLabels{XYs: named, Labels: names})
		if err != nil {
			return fmt.Errorf("draw front: %w", err)
		}
		for i := range l.TextStyle {
			l.TextStyle[i].Font.Variant, l.TextStyle[i].Color = "Sans", ink
		}
		l.Offset = vg.Point{X: vg.Points(7), Y: vg.Points(-10)}
		f.Add(l)
	}
	c := vgimg.NewWith(vgimg.UseWH(7.5*vg.Inch, 5*vg.Inch), vgimg.UseDPI(144))
	f.Draw(draw.Crop(draw.New(c), vg.Points(10), -vg.Points(14), vg.Points(8), -vg.Points(10)))
	if _, err := (vgimg.PngCanvas{Canvas: c}).WriteTo(w); err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	return nil
}

// ticks places ticks at the multiples of step; each n-th has a number.
func ticks(step float64, n int) plot.TickerFunc {
	return func(low, high float64) []plot.Tick {
		var t []plot.Tick
		for i := int(math.Ceil(low / step)); float64(i)*step <= high; i++ {
			tick := plot.Tick{Value: float64(i) * step}
			if i%n == 0 {
				tick.Label = strconv.FormatFloat(tick.Value, 'g', 3, 64)
			}
			t = append(t, tick)
		}
		return t
	}
}
