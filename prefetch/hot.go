package prefetch

// This file begins with what is known of a mixture's experts from before, and keeps what is learned of them.

import (
	"slices"
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
)

// keepInterval is how often it is kept how often experts were chosen, while tokens are computed. What is learned within
// it is lost if this process is killed.
const keepInterval = 10 * time.Second

// hot is what a followed mixture has to do with its last run, and with its next one.
type hot struct {
	model models.Model // the files that have its experts
	known *mixture.Known
	kept  time.Time // when it was kept last how often experts were chosen,
	after int       // and how many decodes had help by then
	// useless says that help for the model does not win, so that nothing is to be kept.
	useless bool
}

// findHot finds out what is known of a cycle's experts.
func (s *session) findHot(cycle *pattern.Cycle) (h hot) {
	x := &s.opts.Experts
	isExpert := func(r pattern.CycleRead) bool { return r.Experts }
	if x.Known == nil && x.Keep == nil || !slices.ContainsFunc(cycle.Reads, isExpert) {
		return h
	}
	h.kept, h.after = s.now(), s.work.decodes
	m, err := s.models()
	if err != nil {
		s.log.Debug("cannot tell which model the target maps", "error", err)
		return h
	}
	for i := range m.Mapped {
		has := func(r pattern.CycleRead) bool { return r.Experts && s.files[r.File].id == m.Mapped[i].ID }
		if slices.ContainsFunc(cycle.Reads, has) {
			h.model.Files = append(h.model.Files, m.Files[i])
			h.model.Mapped = append(h.model.Mapped, m.Mapped[i])
			h.model.Parts = append(h.model.Parts, m.Parts[i])
		}
	}
	if x.Known != nil {
		h.known = x.Known(h.model)
	}
	return h
}

// knowsExperts says whether something is known of the experts of a model that the target maps.
func (s *session) knowsExperts(m models.Model) bool {
	return s.opts.Experts.Known != nil && s.opts.Experts.Known(m) != nil
}

// beginsKnown says whether something is known of the experts that are helped: of a run with help, or because the user
// says so. Then help begins at once.
func (f *followed) beginsKnown() bool { return f.mixture != nil && f.hot.known != nil }

// findHotParts are the parts of a file that hot experts have, in whole pages, in order, those that touch as one.
func (f *followed) findHotParts(file int) (parts []pages.Range) {
	if !f.beginsKnown() {
		return nil
	}
	f.shareRoom()
	// The window is for what the target goes through meanwhile.
	for _, r := range f.mixture.HotSlices(f.window.bytes) {
		if r.File != file {
			continue
		}
		first, end := r.Offset&^(pages.PageSize-1), (r.End()+pages.PageSize-1)&^(pages.PageSize-1)
		if last := len(parts) - 1; last >= 0 && first <= parts[last].End() {
			parts[last].Length = max(parts[last].End(), end) - parts[last].Offset
			continue
		}
		parts = append(parts, pages.Range{File: file, Offset: first, Length: end - first})
	}
	return parts
}

// readHot reads the experts first that were chosen most before, once all that every token reads is held.
func (f *followed) readHot() error {
	if !f.hasHot() {
		return nil
	}
	read, err := f.mixture.ReadHot(f.Decode == 0 && f.now().Sub(f.rested) >= restTime)
	if err != nil || read == 0 {
		return err
	}
	f.meter.add(read)
	return f.levers.Poll()
}

// hasHot says whether there may be experts to be read first now.
func (f *followed) hasHot() bool {
	return f.mixture != nil && f.mixture.HasHot() && f.heldBytes >= f.schedule.Bytes
}

// keepScores keeps how often the experts were chosen, for the next run of the model: now, or if that was not done
// lately.
func (f *followed) keepScores(mustBeNow bool) {
	keep, now := f.opts.Experts.Keep, f.now()
	isDue := now.Sub(f.hot.kept) >= keepInterval && f.work.decodes > f.hot.after
	if f.mixture == nil || keep == nil || f.hot.useless || !mustBeNow && !isDue {
		return
	}
	f.hot.kept, f.hot.after = now, f.work.decodes
	if scores := f.mixture.Scores(); scores != nil {
		keep(f.hot.model, scores)
	}
}

// forgetScores sees to it that nothing of this mixture is read first the next time: help for it does not win.
func (f *followed) forgetScores() {
	f.hot.useless = true
	if keep := f.opts.Experts.Keep; f.mixture != nil && keep != nil {
		keep(f.hot.model, nil)
	}
}
