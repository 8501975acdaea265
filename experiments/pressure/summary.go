package pressure

// This file computes what follows from the runs and readings: the summaries by setting and variant, and the noise.

import (
	"math"

	"tensorcast/internal/stats"
)

// summarise computes all that follows from the runs and readings. It may be called again.
func (r *Report) summarise() {
	for _, runs := range [][]Run{r.Unlimited, r.Runs} {
		for i := range runs {
			runs[i].Steady = runs[i].steadyAfter(r.Skip)
		}
	}
	r.summariseMachine()
	steady := r.hasSteady()
	for i := range r.Results {
		r.summariseSetting(i, steady)
	}
	r.findLeast()
}

// summariseSetting computes the result of a setting. steady is [Report.hasSteady].
func (r *Report) summariseSetting(setting int, steady bool) {
	at := &r.Results[setting]
	at.X = float64(at.Limit-r.Own) / float64(r.Model.TokenBytes)
	at.Bound = r.bound(at.X)
	at.SteadyBound = at.Bound
	if at.Experts != nil {
		r.boundExperts(at.Experts)
		at.Bound, at.SteadyBound = at.Experts.Whole.Bound, at.Experts.Steady.Bound
	}
	at.Summaries = nil
	for _, v := range r.Variants {
		s := Summary{Variant: v.Name}
		var finished []*runView
		for i := range r.Runs {
			run := &r.Runs[i]
			if run.Setting != setting || run.Variant != v.Name {
				continue
			}
			s.count(run)
			if run.Outcome == Finished {
				finished = append(finished, r.viewRun(run, steady))
			}
		}
		// The shares are of spreads, which must be there first.
		view := &summaryView{&s, at, steady}
		for i := range metrics {
			metrics[i].addSpread(&s, finished)
		}
		for i := range metrics {
			metrics[i].addShare(view)
		}
		at.Summaries = append(at.Summaries, s)
	}
	at.findNoise(r.Variants)
}

// count counts a run of the variant.
func (s *Summary) count(run *Run) {
	s.Runs++
	s.OOMKills += run.OOMKills
	switch run.Outcome {
	case Killed:
		s.Killed++
	case Finished:
		s.Finished++
		if run.TextSame {
			s.TextSame++
		}
		if run.Disagree {
			s.Disagree++
		}
	}
}

// findNoise compares the variants that differ only in their names.
func (at *Result) findNoise(variants []Variant) {
	at.Noise = nil
	for i, a := range variants {
		for j, b := range variants[:i] {
			if same := (Variant{b.Name, a.Helper, a.Launcher, a.Flags}); same != b {
				continue
			}
			sa, sb := at.Summaries[i].TokS, at.Summaries[j].TokS
			if mean := (sa.Median + sb.Median) / 2; mean > 0 && sa.N > 0 && sb.N > 0 {
				at.Noise = append(at.Noise, Noise{
					A: b.Name, B: a.Name,
					Difference: math.Abs(sa.Median-sb.Median) / mean,
					Spread:     max(sa.Range(), sb.Range()) / mean,
				})
			}
		}
	}
}

// findLeast finds, for each variant but the first, the settings with the least speedup.
func (r *Report) findLeast() {
	r.Least = nil
	for v := 1; v < len(r.Variants); v++ {
		least := LeastSpeedup{Variant: r.Variants[v].Name}
		for i := range r.Results {
			s := &r.Results[i].Summaries[v]
			if m := s.Speedup.Median; m > 0 && (least.Speedup == 0 || m < least.Speedup) {
				least.Speedup, least.Setting = m, i
			}
			if m := s.SteadySpeedup.Median; m > 0 && (least.Steady == 0 || m < least.Steady) {
				least.Steady, least.SteadySetting = m, i
			}
		}
		if least.Speedup > 0 {
			r.Least = append(r.Least, least)
		}
	}
}

// summariseMachine computes how fast the machine computes and reads.
func (r *Report) summariseMachine() {
	r.ComputePages, r.ComputeFolios = r.computeTime(Pages), r.computeTime(Folios)
	if r.Compute = r.ComputePages; r.ComputeFolios > 0 && (r.Compute == 0 || r.ComputeFolios < r.Compute) {
		r.Compute = r.ComputeFolios
	}
	r.DiskBW = medianOf(r.Readings)
	if r.BW = r.DiskBW; r.Throttle > 0 {
		r.BW = min(r.BW, float64(r.Throttle))
	}
	r.summariseBeside()
}

// summariseBeside computes what follows from readings beside the target.
func (r *Report) summariseBeside() {
	var disk []DiskReading
	var costs []float64
	for _, b := range r.Beside {
		disk = append(disk, b.DiskReading)
		var bytes int64
		for _, p := range b.Result.Points {
			bytes += p.Bytes
		}
		if r.Compute > 0 && bytes > 0 {
			costs = append(costs, max(b.Seconds-b.Tokens*r.Compute, 0)/float64(bytes))
		}
	}
	r.BesideBW, r.DiskCost = medianOf(disk), 0
	if len(costs) > 0 {
		r.DiskCost = stats.Median(costs)
	}
}

// medianOf is the median of readings in bytes per second, 0 if there are none.
func medianOf(readings []DiskReading) float64 {
	var all []float64
	for i := range readings {
		all = append(all, readings[i].Result.Best.BytesPerSecond)
	}
	if len(all) == 0 {
		return 0
	}
	return stats.Median(all)
}

// computeTime is the least time per token, in seconds, of the runs with the model in memory in that
// unit; 0 if there are none.
func (r *Report) computeTime(in Unit) float64 {
	var least float64
	for i := range r.Unlimited {
		u := &r.Unlimited[i]
		speed := u.TokS
		if u.Steady != nil {
			speed = u.Steady.TokS
		}
		if u.In == in && speed > 0 && (least == 0 || 1/speed < least) {
			least = 1 / speed
		}
	}
	return least
}
