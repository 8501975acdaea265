package replay

// This file draws a study.

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/chart"
)

// curveShares are the sizes of caches that figures have besides those that are asked for, as shares of
// all experts.
var curveShares = []float64{0.05, 0.15, 0.25, 0.3, 0.5, 0.7, 0.8, 0.9}

// Figure is a figure of a study.
type Figure struct {
	Name string // of a file, without extension
	*chart.Figure
}

// Recall says how good a predictor is in each layer, with as many guesses as experts are chosen.
type Recall struct {
	Name    string
	ByLayer []float64 // NaN where it was not judged
}

// Figures are all figures of a study. Where there is nothing to show, a Figure's picture is nil. They are
// smooth if Options.Curve was set. They can have the recall of more predictors than the study's.
func (st *Study) Figures(more ...Recall) []Figure {
	return []Figure{{"hits", st.hitsFigure()}, {"recall", st.recallFigure(more)}, {"reads", st.readsFigure()}}
}

// hitsFigure draws the hit rate of each policy against the cache's size. Belady's bounds the others from above, and
// what would be found if routers chose at random from below.
func (st *Study) hitsFigure() *chart.Figure {
	rooms := slices.SortedFunc(slices.Values(slices.Concat(st.Rooms, st.Curve)),
		func(a, b RoomResult) int { return cmp.Compare(a.Bytes, b.Bytes) })
	if len(rooms) == 0 {
		return nil
	}
	f := &chart.Figure{
		XLabel: "share of all experts that fits in memory (%)", YLabel: "chosen experts that were in memory (%)",
		To: 100, High: 100, Beside: true,
	}
	p := chart.Panel{Title: fmt.Sprintf("%s: hits, %d tokens", st.Model, st.Decode)}
	for i, policy := range rooms[0].Policies {
		if policy.Ahead {
			continue // its times tell more, as what comes late is no hit
		}
		c := chart.Curve{Name: policy.Name, Bound: policy.Name == nameBelady}
		for _, r := range rooms {
			c.Points = append(c.Points, chart.Point{X: 100 * r.Share, Y: 100 * r.Policies[i].HitRate})
			f.To = max(f.To, 100*r.Share)
		}
		p.Curves = append(p.Curves, c)
	}
	// What is above this line is what the routers' choices give away.
	random := chart.Curve{Name: "random routing", Bound: true}
	for x := 0.0; x <= 100; x += 10 {
		random.Points = append(random.Points, chart.Point{X: x, Y: x})
	}
	p.Curves = append(p.Curves, random)
	f.Panels = []chart.Panel{p}
	return f
}

// recallFigure draws how many of each layer's experts each predictor named. Those of the study are asked
// one layer ahead.
func (st *Study) recallFigure(more []Recall) *chart.Figure {
	var all []Recall
	for _, p := range st.Predictors {
		if p.Evaluation != nil && len(p.Leads) > 0 && p.Scored > 0 {
			all = append(all, Recall{p.Name, p.Leads[0].ByLayer})
		}
	}
	if all = append(all, more...); len(all) == 0 {
		return nil
	}
	f := &chart.Figure{
		XLabel: "layer that has experts", YLabel: fmt.Sprintf("recall with %d guesses (%%)", st.K), From: -0.5,
		To: float64(st.Layers) - 0.5, High: 100, Beside: true,
	}
	p := chart.Panel{Title: st.Model + ": recall, by predictor"}
	for _, predictor := range all {
		c := chart.Curve{Name: predictor.Name}
		for layer, recall := range predictor.ByLayer {
			if recall >= 0 {
				c.Points = append(c.Points, chart.Point{X: float64(layer), Y: 100 * recall})
			}
		}
		p.Curves = append(p.Curves, c)
	}
	f.Panels = []chart.Panel{p}
	return f
}

// tokenPoints is the greatest number of points of a curve over tokens. Beyond it, a point is the mean of
// several tokens.
const tokenPoints = 32

// readsFigure draws what each policy reads because a chosen expert is missing, over the tokens, in a
// panel for each size of the cache.
func (st *Study) readsFigure() *chart.Figure {
	if len(st.Rooms) == 0 {
		return nil
	}
	each := (st.Decode + tokenPoints - 1) / tokenPoints
	f := &chart.Figure{
		XLabel: "generated token", YLabel: "missing experts read (MiB a token)", To: float64(st.Decode), Columns: 2,
		Beside: true,
	}
	if each > 1 {
		f.YLabel = fmt.Sprintf("missing experts read (MiB a token, means of %d)", each)
	}
	for i := range st.Rooms {
		r := &st.Rooms[i]
		p := chart.Panel{
			Title: fmt.Sprintf("%s, %s of experts in memory (%s)", st.Model, percentText(r.Share),
				humanize.IBytes(uint64(r.Bytes))),
		}
		for _, policy := range r.Policies {
			c := chart.Curve{Name: policy.Name, Bound: policy.Name == nameBelady}
			for at := 0; at < len(policy.TokenBytes); at += each {
				end := min(at+each, len(policy.TokenBytes))
				sum := int64(0)
				for _, n := range policy.TokenBytes[at:end] {
					sum += n
				}
				mean := float64(sum) / float64(end-at) / (1 << 20)
				c.Points = append(c.Points, chart.Point{X: float64(at+end) / 2, Y: mean})
				f.High = max(f.High, mean*1.08)
			}
			p.Curves = append(p.Curves, c)
		}
		f.Panels = append(f.Panels, p)
	}
	if f.High == 0 { // everything fits
		f.High = 1
	}
	return f
}
