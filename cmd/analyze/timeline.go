package main

// This file writes a capture as a timeline for Perfetto.

import (
	"context"
	"io"

	"tensorcast/report/gather"
)

// timelineFile is what --perfetto writes.
const timelineFile = "timeline.perfetto-trace"

// timeline writes the analysed context, and what came from disk for its model. Of a long capture it has the beginning.
func (s *study) timeline(ctx context.Context, to io.Writer) error {
	t := &gather.Timeline{
		Name:     s.modelName(),
		PID:      int32(s.in.capture.Meta.PID),
		Accesses: checked(ctx, s.in, s.in.capture.Accesses()),
		Cut:      func(text string) { s.in.warn("%s %s", timelineFile, text) },
	}
	if s.in.capture.HasPageIns() {
		t.PageIns = checked(ctx, s.in, s.in.capture.PageIns())
	}
	return s.sums.WriteTimeline(to, t)
}
