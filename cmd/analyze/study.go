package main

// This file reads a capture's tables once for all analyses, and makes the titles of their figures.

import (
	"context"
	"slices"
	"time"

	"tensorcast/internal/chart"
	"tensorcast/internal/visible"
	"tensorcast/moe"
	"tensorcast/pattern"
	"tensorcast/prefetch/plan"
	"tensorcast/report/gather"
	"tensorcast/trace/tables"
)

// study is a capture whose tables were read, with the flags of the analyses.
type study struct {
	in      *loaded
	pattern *pattern.Pattern
	sums    *gather.Collector
	format  string // of figures
	grid    string // of the heatmap, one of gather.GridNames; else the one that shows what differs between tokens
	order   string // of the heatmap's rows
	fold    string // what merged columns of the heatmap show
}

// collect reads the tables. A capture of one context and one model is read once. In others it is known only at the end
// of the access table which context is meant, so they are read twice.
func (s *study) collect(ctx context.Context) error {
	steps, err := s.in.steps()
	if err != nil {
		return s.in.reading(err)
	}
	collector := func(context, model int32) *gather.Collector {
		c := gather.New(s.in.capture.Structure, context, model, steps)
		c.CPUs = s.in.capture.Meta.Host.CPUs
		if s.in.build.HasPhase {
			c.ChoosePhase(s.in.build.Phase)
		}
		return c
	}
	if context, model, one := s.in.single(steps); one {
		s.sums = collector(context, model)
		if s.pattern, err = s.in.pattern(ctx, s.sums.Access); err != nil {
			return err
		}
	} else {
		if s.pattern, err = s.in.pattern(ctx); err != nil {
			return err
		}
		s.sums = collector(s.pattern.Context, s.pattern.Model)
		if err := s.in.readAccesses(ctx, s.sums.Access); err != nil {
			return err
		}
	}
	s.sums.Passes = s.pattern.Passes()
	if cycle := s.in.cycle(s.pattern); cycle != nil {
		s.sums.Helped = func(memory int64, compute time.Duration, disk float64) time.Duration {
			return plan.ForeseeReached(cycle, memory, compute, disk).Token
		}
	}
	if !s.in.capture.HasPageIns() {
		return nil
	}
	s.sums.ObservePageIns()
	for r, err := range checked(ctx, s.in, s.in.capture.PageIns()) {
		if err != nil {
			return err
		}
		s.sums.PageIn(r)
	}
	return nil
}

// compute is how long a step computes that waits for nothing.
func (s *study) compute() gather.Compute {
	return s.sums.Compute(s.in.capture.Meta.Host.MemoryBytesPerSecond)
}

// cycle is what every token, or every pass of a prompt, reads, for prefetchd's plans. It is nil if the capture does not
// tell.
func (in *loaded) cycle(p *pattern.Pattern) *pattern.Cycle {
	isPlanned := func(r pattern.CycleRead) bool { return !r.Gathers() && r.Length > 0 && r.File >= 0 }
	cycle, err := p.Cycle(in.capture.Meta)
	if err != nil || !slices.ContainsFunc(cycle.Reads, isPlanned) {
		return nil
	}
	return cycle
}

// single is the one context of all steps and the one model of all tensors. It is false if there are several, or if the
// user named another context.
func (in *loaded) single(steps []tables.StepRow) (context, model int32, ok bool) {
	if len(steps) == 0 || len(in.capture.Structure) == 0 {
		return 0, 0, false
	}
	context, model = steps[0].Context, in.capture.Structure[0].Model
	if in.options.context >= 0 && int32(in.options.context) != context {
		return 0, 0, false
	}
	for i := range steps {
		if steps[i].Context != context {
			return 0, 0, false
		}
	}
	for i := range in.capture.Structure {
		if in.capture.Structure[i].Model != model {
			return 0, 0, false
		}
	}
	return context, model, true
}

// modelName is the name of the analysed model, as the capture has it.
func (s *study) modelName() string { return pattern.ModelName(s.in.capture.Meta, s.pattern.Model) }

// title makes a figure's title of what it shows.
func (s *study) title(what string) string { return visible.Line(s.modelName()) + ": " + what }

// caption says where, with how much memory, how and when the capture was made.
func (s *study) caption() string { return gather.Caption(s.in.capture.Meta) }

// captioned puts the study's caption below a figure.
func (s *study) captioned(f *chart.Figure) *chart.Figure {
	f.Caption = s.caption()
	return f
}

// modelField is the metadata that says of which model a table is.
func (s *study) modelField() tables.Field { return modelField(s.in.capture.Meta, s.pattern.Model) }

// experts is an empty trace of the model's experts. It is nil if the model has none.
func (s *study) experts() *moe.Trace {
	return moe.EmptyTrace(s.modelName(), s.in.capture.Structure, s.pattern.Model)
}
