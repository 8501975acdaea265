package pressure

// This file makes a table of the runs, for other programs.

import (
	"math"
	"slices"

	"tensorcast/trace/tables"
)

// Columns is a table with a row for each run: those under a limit first, in chronological order, then those without (phase "unlimited").
// The names tell the units. What a run does not have, for instance because it did not finish, is NaN.
func (r *Report) Columns() []tables.Column {
	runs := slices.Concat(r.Runs, r.Unlimited)
	var columns []tables.Column
	texts := func(name string, of func(*Run) string) {
		columns = append(columns, tables.Column{Name: name, Values: column(runs, of)})
	}
	counts := func(name string, of func(*Run) int64) {
		columns = append(columns, tables.Column{Name: name, Values: column(runs, of)})
	}
	amounts := func(name string, of func(*Run) float64) {
		columns = append(columns, tables.Column{Name: name, Values: column(runs, of)})
	}
	finished := func(name string, of func(*Run) float64) {
		amounts(name, func(run *Run) float64 {
			if run.Outcome != Finished {
				return math.NaN()
			}
			return of(run)
		})
	}
	steady := func(name string, of func(*Steady) float64) {
		finished(name, func(run *Run) float64 {
			if run.Steady == nil {
				return math.NaN()
			}
			return of(run.Steady)
		})
	}
	// limited is of the setting of a run under a limit, otherwise of others.
	limited := func(others float64, of func(*Result) float64) func(*Run) float64 {
		return func(run *Run) float64 {
			if run.Limit == 0 {
				return others
			}
			return of(&r.Results[run.Setting])
		}
	}
	variant := func(of func(Variant) string) func(*Run) string {
		return func(run *Run) string {
			i := slices.IndexFunc(r.Variants, func(v Variant) bool { return v.Name == run.Variant })
			if i < 0 || run.Limit == 0 {
				return ""
			}
			return of(r.Variants[i])
		}
	}

	texts("phase", func(run *Run) string {
		if run.Limit == 0 {
			return "unlimited"
		}
		return "limited"
	})
	texts("variant", func(run *Run) string { return run.Variant })
	texts("helper", variant(func(v Variant) string { return v.Helper }))
	texts("flags", variant(func(v Variant) string { return v.Flags }))
	counts("round", func(run *Run) int64 { return int64(run.Round) })
	amounts("x", limited(math.NaN(), func(at *Result) float64 { return at.X }))
	counts("limit_bytes", func(run *Run) int64 { return run.Limit })
	amounts("readahead_kib", limited(float64(r.Disk.ReadaheadKiBBefore), func(at *Result) float64 { return float64(at.ReadaheadKiB) }))
	known := func(v float64) float64 {
		if v == 0 {
			return math.NaN()
		}
		return v
	}
	amounts("bound_tok_s", limited(math.NaN(), func(at *Result) float64 { return known(at.Bound) }))
	amounts("steady_bound_tok_s", limited(math.NaN(), func(at *Result) float64 { return known(at.SteadyBound) }))
	// What a mixture of experts needs: NaN for other models.
	experts := func(name string, of func(*Experts) float64) {
		amounts(name, limited(math.NaN(), func(at *Result) float64 {
			if at.Experts == nil {
				return math.NaN()
			}
			return of(at.Experts)
		}))
	}
	experts("experts_share", func(e *Experts) float64 { return e.Share })
	experts("least_bytes_per_token", func(e *Experts) float64 { return e.Whole.Least })
	experts("causal_bytes_per_token", func(e *Experts) float64 { return e.Whole.Causal })
	experts("causal_bound_tok_s", func(e *Experts) float64 { return known(e.Whole.CausalTokS) })
	experts("steady_least_bytes_per_token", func(e *Experts) float64 { return e.Steady.Least })
	experts("steady_causal_bytes_per_token", func(e *Experts) float64 { return e.Steady.Causal })
	experts("steady_causal_bound_tok_s", func(e *Experts) float64 { return known(e.Steady.CausalTokS) })
	texts("outcome", func(run *Run) string { return string(run.Outcome) })
	texts("text_same", func(run *Run) string {
		if run.TextSame {
			return "yes"
		}
		return "no"
	})
	counts("tokens", func(run *Run) int64 { return int64(len(run.TokenMs)) })
	finished("tok_s", func(run *Run) float64 { return run.TokS })
	finished("p5_tok_s", func(run *Run) float64 { return run.P5 })
	counts("startup_tokens", func(*Run) int64 { return int64(r.Skip) })
	steady("startup_share", func(s *Steady) float64 { return s.StartShare })
	steady("steady_tok_s", func(s *Steady) float64 { return s.TokS })
	steady("steady_bytes_per_token", func(s *Steady) float64 { return s.BytesPerToken })
	steady("steady_major_faults_per_token", func(s *Steady) float64 { return s.FaultsPerToken })
	finished("bytes_per_token", func(run *Run) float64 { return run.BytesPerToken })
	finished("disk_bytes_per_token", func(run *Run) float64 { return run.DiskBytesPerToken })
	finished("target_bytes_per_token", func(run *Run) float64 { return run.TargetPerToken })
	finished("helper_bytes_per_token", func(run *Run) float64 { return run.HelperPerToken })
	finished("helper_system_ms_per_token", func(run *Run) float64 { return run.HelperSystemMs })
	finished("major_faults_per_token", func(run *Run) float64 { return run.FaultsPerToken })
	finished("stall_ms_per_token", func(run *Run) float64 {
		if r.Compute <= 0 {
			return math.NaN()
		}
		return r.stall(run, false)
	})
	finished("steady_stall_ms_per_token", func(run *Run) float64 {
		if r.Compute <= 0 || run.Steady == nil {
			return math.NaN()
		}
		return r.stall(run, true)
	})
	finished("demand_bytes_per_token", func(run *Run) float64 { demand, _ := r.demand(run, false); return demand })
	finished("speculative_bytes_per_token", func(run *Run) float64 { _, ahead := r.demand(run, false); return ahead })
	finished("prompt_ms", func(run *Run) float64 { return run.PromptMs })
	finished("load_ms", func(run *Run) float64 { return run.LoadMs })
	// What a helper tells: NaN if it tells nothing.
	told := func(name string, of func(*Told) float64) {
		amounts("helper_"+name, func(run *Run) float64 {
			if run.Helper == nil || run.Helper.Told == nil {
				return math.NaN()
			}
			return of(run.Helper.Told)
		})
	}
	told("tokens", func(t *Told) float64 { return float64(t.Tokens) })
	told("tok_s", func(t *Told) float64 { return t.TokS })
	told("expected_tok_s", func(t *Told) float64 { return known(t.Expected) })
	told("streamed_bytes", func(t *Told) float64 { return float64(t.Streamed) })
	told("late", func(t *Told) float64 { return float64(t.Late) })
	told("window_bytes", func(t *Told) float64 { return float64(t.Beyond.Window) })
	told("reserve_bytes", func(t *Told) float64 { return float64(t.Beyond.Reserve) })
	told("left_free_bytes", func(t *Told) float64 { return float64(t.Beyond.LeftFree) })
	told("own_bytes", func(t *Told) float64 { return float64(t.Beyond.Own) })
	told("unused_bytes", func(t *Told) float64 { return float64(t.Beyond.Unused) })
	told("twice_bytes_per_token", func(t *Told) float64 { return float64(t.Beyond.Twice) })
	told("taken_bytes_per_token", func(t *Told) float64 { return float64(t.Beyond.Taken) })
	told("swept_bytes_per_token", func(t *Told) float64 { return float64(t.Beyond.Swept) })
	toldExperts := func(name string, of func(*ToldExperts) int64) {
		told("experts_"+name, func(t *Told) float64 {
			if t.Experts == nil {
				return math.NaN()
			}
			return float64(of(t.Experts))
		})
	}
	toldExperts("chosen", func(x *ToldExperts) int64 { return x.Chosen })
	toldExperts("missed", func(x *ToldExperts) int64 { return x.Missed })
	toldExperts("read_bytes", func(x *ToldExperts) int64 { return x.Read })
	toldExperts("speculative_bytes", func(x *ToldExperts) int64 { return x.Speculative.Read })
	toldExperts("speculative_used_bytes", func(x *ToldExperts) int64 { return x.Speculative.Used })
	toldExperts("stray_bytes", func(x *ToldExperts) int64 { return x.Strays })
	amounts("pressure_some_s", func(run *Run) float64 { return run.Some.Seconds() })
	amounts("pressure_full_s", func(run *Run) float64 { return run.Full.Seconds() })
	counts("oom_kills", func(run *Run) int64 { return run.OOMKills })
	counts("peak_bytes", func(run *Run) int64 { return run.Peak })
	return columns
}

func column[T any](runs []Run, of func(*Run) T) []T {
	values := make([]T, len(runs))
	for i := range runs {
		values[i] = of(&runs[i])
	}
	return values
}
