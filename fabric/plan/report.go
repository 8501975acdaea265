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
func (s *Survey) WriteText(w io.Writer, p *Plan) error { return s.newDocument(p).WriteText(w) }

// WriteMarkdown writes the same for a document.
func (s *Survey) WriteMarkdown(w io.Writer, p *Plan) error { return s.newDocument(p).WriteMarkdown(w) }

func (s *Survey) newDocument(p *Plan) tabular.Document {
	return tabular.Document{s.formsTable(p), s.profilesTable(), s.frontTable()}
}

// formsTable lists the matrices of a plan. Matrices with the same name and form in different layers
// share a row.
func (s *Survey) formsTable(p *Plan) *tabular.Table {
	forms := &tabular.Table{
		Title: fmt.Sprintf("Plan %q: %.4f bytes/weight, mean noise %s",
			p.Profile, p.BytesPerWeight(), formatDecibels(decibels(p.Noise))),
		Columns: slices.Concat(
			tabular.Left("tensors", "type", "form"), tabular.Right("matrices", "bytes/weight", "least SNR")),
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
	// Rows with the same name are put next to each other.
	firstRow := map[string]int{}
	for n, g := range order {
		if _, ok := firstRow[g.name]; !ok {
			firstRow[g.name] = n
		}
	}
	slices.SortStableFunc(order, func(a, b group) int { return firstRow[a.name] - firstRow[b.name] })
	for _, g := range order {
		n := at[g]
		forms.Rows = append(forms.Rows, []string{g.name, g.typ, g.form, fmt.Sprint(count[n]),
			fmt.Sprintf("%.4f", float64(bytes[n])/float64(weights[n])), formatDecibels(decibels(noise[n]))})
	}
	return forms
}

// frontTable lists some points of the front, including the first and the last.
func (s *Survey) frontTable() *tabular.Table {
	front := &tabular.Table{
		Title:   "Pareto front: the least mean noise for the bytes of the whole model",
		Columns: tabular.Right("bytes", "bytes/weight", "SNR"),
	}
	points := s.Front()
	step := max(1, (len(points)+frontRows-2)/frontRows)
	for i := 0; i < len(points); i += step {
		p := points[i]
		front.Rows = append(front.Rows, []string{
			fmt.Sprint(p.Bytes), fmt.Sprintf("%.4f", p.BytesPerWeight), formatDecibels(p.SNR()),
		})
		if i < len(points)-1 && i+step >= len(points) {
			i = len(points) - 1 - step
		}
	}
	return front
}

// profilesTable lists the named profiles with the sizes of their plans.
func (s *Survey) profilesTable() *tabular.Table {
	profiles := &tabular.Table{
		Title: "Profiles",
		Columns: slices.Concat(
			tabular.Left("profile"), tabular.Right("bound", "bytes", "bytes/weight", "SNR", "matrices native")),
	}
	for _, profile := range Profiles() {
		q := s.Plan(profile)
		native := 0
		for i := range q.Tensors {
			if q.Tensors[i].Native {
				native++
			}
		}
		profiles.Rows = append(profiles.Rows, []string{
			profile.Name, formatDecibels(profile.Bound), fmt.Sprint(q.Bytes), fmt.Sprintf("%.4f", q.BytesPerWeight()),
			formatDecibels(decibels(q.Noise)), fmt.Sprintf("%d of %d", native, len(q.Tensors)),
		})
	}
	return profiles
}

// formatDecibels formats a ratio in decibels. If it is +Inf, this is "lossless".
func formatDecibels(v float64) string {
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

// WriteFigure draws a PNG of bytes per weight of the whole model against mean noise in decibels. It
// shows the front, the profiles, and the forms applied uniformly. Lossless plans are not in the
// figure, but the title has the least size for these.
func (s *Survey) WriteFigure(w io.Writer, model string) error {
	f, err := s.drawFigure(model)
	if err != nil {
		return fmt.Errorf("draw front: %w", err)
	}
	c := vgimg.NewWith(vgimg.UseWH(7.5*vg.Inch, 5*vg.Inch), vgimg.UseDPI(144))
	f.Draw(draw.Crop(draw.New(c), vg.Points(10), -vg.Points(14), vg.Points(8), -vg.Points(10)))
	if _, err := (vgimg.PngCanvas{Canvas: c}).WriteTo(w); err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	return nil
}

// drawFigure makes the figure of WriteFigure.
func (s *Survey) drawFigure(model string) (*plot.Plot, error) {
	uniform, err := s.uniformPoints()
	if err != nil {
		return nil, err
	}
	var named plotter.XYs
	var names []string
	title := model + ": bytes per weight against error"
	for _, profile := range Profiles() {
		if p := s.Plan(profile); p.Noise > 0 {
			named = append(named, plotter.XY{X: p.BytesPerWeight(), Y: decibels(p.Noise)})
			names = append(names, profile.Name)
		} else {
			title += fmt.Sprintf("\n%s: %.3f bytes per weight, lossless", profile.Name, p.BytesPerWeight())
		}
	}
	f := newFigure(title)
	if err := addLine(f, "best mix of forms", s.frontPoints()); err != nil {
		return nil, err
	}
	err = addPoints(f, "one form for all matrices", uniform, plain, draw.CircleGlyph{}, vg.Points(2.5))
	if err != nil {
		return nil, err
	}
	if err := addPoints(f, "profiles", named, mark, draw.TriangleGlyph{}, vg.Points(5)); err != nil {
		return nil, err
	}
	if len(named) > 0 {
		if err := addLabels(f, named, names); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// newFigure returns a plot with a title, axes and grid.
func newFigure(title string) *plot.Plot {
	f := plot.New()
	f.Title.Text = title
	f.X.Label.Text = "bytes per weight, whole model"
	f.Y.Label.Text = "signal to noise of the products, dB"
	f.Title.TextStyle.Font.Size, f.Title.Padding = vg.Points(13), vg.Points(8)
	f.X.Tick.Marker, f.Y.Tick.Marker = ticks(0.1, 2), ticks(5, 2)
	for _, style := range []*text.Style{
		&f.Title.TextStyle, &f.X.Label.TextStyle, &f.Y.Label.TextStyle, &f.X.Tick.Label, &f.Y.Tick.Label,
		&f.Legend.TextStyle,
	} {
		style.Font.Variant, style.Color = "Sans", ink
	}
	f.Legend.Top, f.Legend.Left = true, true
	f.Legend.Padding = vg.Points(3)
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = grid, grid
	f.Add(lines)
	return f
}

// frontPoints returns the points of the front that have noise.
func (s *Survey) frontPoints() (points plotter.XYs) {
	for _, p := range s.Front() {
		if p.Noise > 0 {
			points = append(points, plotter.XY{X: p.BytesPerWeight, Y: p.SNR()})
		}
	}
	return points
}

// uniformPoints returns a point for each measured form that has noise, if all matrices get it.
func (s *Survey) uniformPoints() (points plotter.XYs, err error) {
	seen := map[string]bool{}
	for i := range s.Tensors {
		for _, c := range s.Tensors[i].Choices {
			if name := c.String(); !c.Native && !c.Exact && !seen[name] {
				seen[name] = true
				p, err := s.Uniform(c.fit())
				if err != nil {
					return nil, err
				}
				if p.Noise > 0 {
					points = append(points, plotter.XY{X: p.BytesPerWeight(), Y: decibels(p.Noise)})
				}
			}
		}
	}
	return points, nil
}

// addLine adds a line through the points to the figure and its legend, if there are any.
func addLine(f *plot.Plot, name string, points plotter.XYs) error {
	if len(points) == 0 {
		return nil
	}
	l, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	l.Color, l.Width = line, vg.Points(1.5)
	f.Add(l)
	f.Legend.Add(name, l)
	return nil
}

// addPoints adds points to the figure and its legend, if there are any.
func addPoints(f *plot.Plot, name string, points plotter.XYs, c color.Color, shape draw.GlyphDrawer,
	size vg.Length) error {
	if len(points) == 0 {
		return nil
	}
	p, err := plotter.NewScatter(points)
	if err != nil {
		return err
	}
	p.Color, p.Shape, p.Radius = c, shape, size
	f.Add(p)
	f.Legend.Add(name, p)
	return nil
}

// addLabels adds a name beside each point.
func addLabels(f *plot.Plot, points plotter.XYs, names []string) error {
	l, err := plotter.NewLabels(plotter.XYLabels{XYs: points, Labels: names})
	if err != nil {
		return err
	}
	for i := range l.TextStyle {
		l.TextStyle[i].Font.Variant, l.TextStyle[i].Color = "Sans", ink
	}
	l.Offset = vg.Point{X: vg.Points(7), Y: vg.Points(-10)}
	f.Add(l)
	return nil
}

// ticks puts ticks at the multiples of step. Each n-th has a number.
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
