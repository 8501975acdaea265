package harm

// This file makes a table of the runs, for other programs.

import (
	"math"

	"tensorcast/trace/tables"
)

// Columns is a table with a row for each run, in the order of [Report.Runs]. The names are those that package pressure
// has for the same amounts, and tell the units. The speed of a run that did not finish is NaN.
func (r *Report) Columns() []tables.Column {
	yesNo := func(b bool) string {
		if b {
			return "yes"
		}
		return "no"
	}
	var scene, variant, outcome, same, acted, killed []string
	var x, speed []float64
	var round, limit, tokens, kills, hogs, hogsKilled, left []int64
	for i := range r.Runs {
		run := &r.Runs[i]
		name := "plain"
		if run.Helped {
			name = "helped"
		}
		tokS := run.TokS
		if tokS == 0 {
			tokS = math.NaN()
		}
		scene, variant = append(scene, run.Scene), append(variant, name)
		outcome, same = append(outcome, string(run.Outcome)), append(same, yesNo(run.TextSame))
		acted = append(acted, yesNo(run.Acted))
		killed = append(killed, yesNo(run.Helper != nil && run.Helper.Killed))
		x, speed = append(x, run.X), append(speed, tokS)
		round, limit = append(round, int64(run.Pair)), append(limit, run.Limit)
		tokens, kills = append(tokens, int64(run.Tokens)), append(kills, run.OOMKills)
		hogs, hogsKilled = append(hogs, int64(run.Hogs)), append(hogsKilled, int64(run.HogsKilled))
		left = append(left, run.PagesLeft)
	}
	return []tables.Column{
		{Name: "scene", Values: scene}, {Name: "variant", Values: variant}, {Name: "round", Values: round},
		{Name: "x", Values: x}, {Name: "limit_bytes", Values: limit}, {Name: "outcome", Values: outcome},
		{Name: "text_same", Values: same}, {Name: "tokens", Values: tokens}, {Name: "tok_s", Values: speed},
		{Name: "oom_kills", Values: kills}, {Name: "scene_happened", Values: acted},
		{Name: "helper_killed", Values: killed}, {Name: "hogs", Values: hogs},
		{Name: "hogs_killed", Values: hogsKilled}, {Name: "pages_left_bytes", Values: left},
	}
}
