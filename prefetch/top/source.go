package top

// This file asks prefetchds, and tells them what somebody wants by a key.

import (
	"context"

	"tensorcast/prefetch/monitor"
)

// Source is where a Model learns of prefetchds. Its methods are called concurrently. Each has to return within seconds.
type Source interface {
	// TakeSurvey is as monitor.TakeSurvey.
	TakeSurvey() (monitor.Survey, error)
	// SetBudget caps what the prefetchd of a target keeps, in bytes. 0 ends the cap.
	SetBudget(target int, bytes int64) error
	// SetPaused has the prefetchd of a target leave it alone, or help it again.
	SetPaused(target int, paused bool) error
}

// Sockets returns the Source that asks at the sockets of a directory, until ctx ends. Of several prefetchds those are
// asked for which isWanted says so; nil wants all.
func Sockets(ctx context.Context, dir string, isWanted func(*monitor.Report) bool) Source {
	return &sockets{ctx, dir, isWanted}
}

type sockets struct {
	ctx      context.Context
	dir      string
	isWanted func(*monitor.Report) bool
}

func (s *sockets) TakeSurvey() (monitor.Survey, error) {
	survey, err := monitor.TakeSurvey(s.ctx, s.dir)
	if s.isWanted == nil {
		return survey, err
	}
	all := survey.Reports
	survey.Reports = nil
	for i := range all {
		if s.isWanted(&all[i]) {
			survey.Reports = append(survey.Reports, all[i])
		}
	}
	return survey, err
}

func (s *sockets) SetBudget(target int, bytes int64) error {
	return monitor.SetBudget(s.ctx, s.dir, target, bytes)
}

func (s *sockets) SetPaused(target int, paused bool) error {
	return monitor.SetPaused(s.ctx, s.dir, target, paused)
}
