package replay

// This file tests the figures of a study: by pictures that were looked at, and by what is drawn.

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gonum.org/v1/plot/cmpimg"

	"tensorcast/internal/chart"
	"tensorcast/internal/testenv"
	"tensorcast/moe"
)

var update = flag.Bool("update", false, "rewrite the golden images in testdata")

func drawn(t *testing.T) *Study {
	t.Helper()
	o := someTime
	o.Curve = true
	st, _ := study(t, random(t, rand.New(rand.NewPCG(9, 9)), 6, 16, 2, 150), o)
	st.Model = "planted.gguf"
	return st
}

func TestFigures(t *testing.T) {
	testenv.SkipWithRace(t)
	st := drawn(t)
	if len(st.Rooms) != 4 || len(st.Curve) != len(curveShares) {
		t.Fatalf("%d rooms, %d more for figures, want some of both", len(st.Rooms), len(st.Curve))
	}
	figures := map[string]*chart.Figure{}
	for _, f := range st.Figures() {
		figures[f.Name] = f.Figure
		var got bytes.Buffer
		if err := f.Write(&got, "png"); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", f.Name+".png")
		if *update {
			if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, got.Bytes(), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v (run the test with -update to make it)", err)
		}
		if same, err := cmpimg.EqualApprox("png", got.Bytes(), want, 0.05); !same || err != nil {
			t.Errorf("the figure is not %s (%v); see -update", path, err)
		}
	}

	hits := figures["hits"].Panels[0].Curves
	at := slices.IndexFunc(hits, func(c chart.Curve) bool { return c.Name == nameBelady })
	belady := hits[at]
	if !belady.Bound || len(belady.Points) != 12 || belady.Points[0].X != 5 || belady.Points[11].X != 90 {
		t.Fatalf("the last curve is %+v, want Belady's as a bound", belady)
	}
	if random := hits[len(hits)-1]; !random.Bound || random.Points[3].X != random.Points[3].Y {
		t.Errorf("the last curve is %+v, want that of random routing", random)
	}
	for _, c := range hits[:at+1] {
		for i, p := range c.Points {
			if p.Y > belady.Points[i].Y+1e-9 || p.X != belady.Points[i].X {
				t.Errorf("%s hits %v at %v, want at most Belady's %v", c.Name, p.Y, p.X, belady.Points[i])
			}
		}
	}
	if p := hits[0].Points[2]; hits[0].Name != nameLRU || p.X != 15 ||
		p.Y != 100*st.Curve[1].policyNamed(nameLRU).HitRate {
		t.Errorf("the point of %s at 15 %% is %+v, want that of the study", hits[0].Name, p)
	}
	recall := figures["recall"].Panels[0].Curves
	if len(recall) != len(st.Predictors) || len(recall[1].Points) != 6 ||
		recall[1].Points[2].Y != 100*st.Predictors[1].Leads[0].ByLayer[2] {
		t.Errorf("the figure of recall is %+v, want that of the study", recall)
	}
	// Means of five tokens each, which add up to the whole.
	reads := figures["reads"]
	if len(reads.Panels) != 4 || len(reads.Panels[0].Curves[0].Points) != 30 {
		t.Fatalf("the figure of reads is %+v, want that of the study", reads)
	}
	sum := 0.0
	for _, p := range reads.Panels[2].Curves[0].Points {
		sum += 5 * p.Y
	}
	if want := float64(st.Rooms[2].Policies[0].DemandBytes) / mib; sum < want-1e-6 || sum > want+1e-6 {
		t.Errorf("%v MiB are drawn, want the %v that were read", sum, want)
	}
}

// One more predictor is one more curve. What has nothing to show is left out.
func TestFiguresOfLess(t *testing.T) {
	st := drawn(t)
	for range 20 {
		st.Predictors = append(st.Predictors, PredictorResult{Name: "another", Evaluation: st.Predictors[0].Evaluation})
	}
	st.Predictors = append(st.Predictors, PredictorResult{Name: "not evaluated"},
		PredictorResult{Name: "no lead", Evaluation: &moe.Evaluation{Scored: 1}})
	recall := st.Figures(Recall{"from elsewhere", []float64{math.NaN(), 0.5}})[1]
	if c := recall.Panels[0].Curves; len(c) != len(st.Predictors)-1 || c[len(c)-1].Name != "from elsewhere" ||
		len(c[len(c)-1].Points) != 1 || c[len(c)-1].Points[0] != (chart.Point{X: 1, Y: 50}) {
		t.Errorf("%d curves, want one more than %d predictors: %+v", len(c), len(st.Predictors), c)
	}
	if err := recall.Write(new(bytes.Buffer), "svg"); err != nil {
		t.Error(err)
	}
	for _, f := range (&Study{Layers: 2}).Figures() {
		if f.Figure != nil {
			t.Errorf("%s of nothing: %+v, want no figure", f.Name, f.Figure)
		}
	}
}
