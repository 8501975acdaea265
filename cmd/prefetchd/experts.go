package main

// This file is the part of `prefetchd doctor` that says what memory for experts buys, as far as a model's file tells.

import (
	"os"

	"tensorcast/gguf"
	"tensorcast/holding"
	"tensorcast/moe/geometry"
	"tensorcast/prefetch/plan"
)

// expertsReport is what can be said of a mixture of experts without a trace of its routing.
type expertsReport struct {
	geometry.Geometry
	Range    geometry.Range `json:"range"`
	Sentence string         `json:"sentence"`
}

// reportExperts reports on the model at path. room says how much memory there is for experts; it is told how the model
// has them. The report is nil of a dense model, and of what cannot be read as a model: others say so.
func reportExperts(path string, room func(geometry.Geometry) int64) *expertsReport {
	m, err := gguf.OpenModel(path)
	if err != nil {
		return nil
	}
	g, ok := geometry.Of(m)
	if !ok {
		return nil
	}
	r := g.With(room(g))
	return &expertsReport{Geometry: g, Range: r, Sentence: g.Sentence(r)}
}

// usualShare is which share of the experts is taken to fit where it is not known how many do.
const usualShare = 0.4

// roomForExperts is how many bytes of experts a target could keep that is started as this process was.
func roomForExperts(g geometry.Geometry) int64 {
	free, err := roomOf(os.Getpid(), &holding.Holding{})
	if err != nil {
		return int64(usualShare * float64(g.Bytes))
	}
	return plan.Keepable(free) - g.Rest
}

// expertsOf reports on the experts that a process reads from its model's file; nil if there are none.
func (d *diagnosis) expertsOf() *expertsReport {
	for _, f := range d.Holding.Files {
		if f.Routed > 0 && !f.Changed {
			return reportExperts(f.Path, func(g geometry.Geometry) int64 {
				switch {
				case d.Room == nil:
					return int64(usualShare * float64(g.Bytes))
				case d.Verdict.Experts >= d.Verdict.Routed:
					return g.Bytes
				}
				return d.Verdict.Experts
			})
		}
	}
	return nil
}
