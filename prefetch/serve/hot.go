package serve

// This file keeps how often a mixture's experts were chosen from one target to the next, and begins with that.

import (
	"errors"
	"io/fs"
	"log/slog"

	"tensorcast/prefetch/hot"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
)

// hotExperts knows which experts of a model are likely to be chosen: of its last run, or else by an importance matrix.
// It is for the server's thread.
type hotExperts struct {
	store  *hot.Store // nil: nothing is kept
	counts hot.Counts // of an importance matrix; nil: there is none
	log    *slog.Logger
	failed bool // it was told that scores cannot be kept
}

func newHotExperts(o *Options) *hotExperts {
	h := &hotExperts{counts: o.Imatrix, log: o.Log}
	if o.SocketDir != "" && !o.ForgetExperts {
		h.store = hot.NewStore(o.SocketDir)
	}
	return h
}

// known is prefetch.Experts.Known. What is wrong with what was kept is no failure: everything is learned anyway.
func (h *hotExperts) known(m models.Model) *mixture.Known {
	if len(m.Files) == 0 {
		return nil
	}
	if h.store != nil {
		scores, err := h.store.Load(m)
		if err == nil {
			return &mixture.Known{Scores: scores, From: mixture.LastRun}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			h.log.Info("it is not known which experts the last run used most", "why", err)
		}
	}
	if h.counts == nil {
		return nil
	}
	scores, err := h.counts.Scores(m)
	if err != nil {
		h.log.Warn("the importance matrix is not of this model, and is not used", "why", err)
		return nil
	}
	return &mixture.Known{Scores: scores, From: mixture.Imatrix}
}

// keep is prefetch.Experts.Keep.
func (h *hotExperts) keep(m models.Model, scores mixture.Scores) {
	if h.store == nil || len(m.Files) == 0 {
		return
	}
	var err error
	if scores == nil {
		err = h.store.Forget(m)
	} else {
		err = h.store.Save(m, scores)
	}
	if err != nil && !h.failed {
		h.failed = true
		h.log.Info("the next run will not know which experts this one used most", "why", err)
	}
}
