package main

// This file writes a capture as a timeline for Perfetto.

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"

	"tensorcast/event"
	"tensorcast/pattern"
	"tensorcast/report/perfetto"
	"tensorcast/trace/tables"
)

const (
	perfettoFile = "timeline.perfetto-trace"
	// maxTimeline bounds a timeline: an op takes some 150 bytes, and browsers open some hundred megabytes.
	maxTimeline = 500_000
)

// timeline writes the steps, layers, ops and waiting of the analysed context, and what came from disk for its model. Of a long capture it has the beginning: so many rows of each table.
func (s *study) timeline(ctx context.Context, to io.Writer) (err error) {
	buffered := bufio.NewWriterSize(to, 1<<20)
	w := perfetto.NewWriter(buffered)
	meta := s.in.capture.Meta
	process := w.Process(int32(meta.PID), pattern.ModelName(meta, s.pattern.Model))
	last, err := s.timelineOps(ctx, w, process)
	if err != nil {
		return err
	}
	if s.in.capture.HasPageIns() {
		if err := s.timelinePageIns(ctx, w, process, last); err != nil {
			return err
		}
	}
	if err := w.Err(); err != nil {
		return err
	}
	return buffered.Flush()
}

// open is a slice that has begun, and when it ends at the latest.
type open struct {
	begun bool
	end   int64
}

// begin ends the slice of a track that is open, and begins another.
func (o *open) begin(w *perfetto.Writer, t perfetto.Track, at, end int64, name string, args ...perfetto.Arg) {
	o.close(w, t, at)
	w.Begin(t, at, name, args...)
	*o = open{true, end}
}

// close ends the slice that is open: when it ended, or when the next begins, if that is earlier.
func (o *open) close(w *perfetto.Writer, t perfetto.Track, next int64) {
	if o.begun {
		w.End(t, min(o.end, next))
	}
	o.begun = false
}

// timelineOps returns when the last op that is written began.
func (s *study) timelineOps(ctx context.Context, w *perfetto.Writer, process perfetto.Track) (last int64, err error) {
	steps, layers, ops, waits := w.Thread(process, "steps"), w.Thread(process, "layers"), w.Thread(process, "ops"), w.Thread(process, "waiting for the disk")
	numbers := map[int32]*tables.StepRow{}
	all := s.sums.Steps()
	for i := range all {
		numbers[all[i].Step] = &all[i]
	}
	var step, layer, op, wait open
	current, inLayer, rows := int32(-1), int32(-2), 0
	previous := tables.Access{Timestamp: -1}
	for a, err := range s.in.capture.Accesses() {
		if err == nil && rows%4096 == 0 {
			err = ctx.Err()
		}
		if err != nil {
			return 0, s.in.reading(err)
		}
		if a.Context != s.pattern.Context {
			continue
		}
		if rows++; rows > maxTimeline {
			s.in.warn("%s ends after %d reads, at token %d: more would be too much for a browser", perfettoFile, maxTimeline, a.Token)
			break
		}
		at := max(a.Timestamp, last) // an op of another thread may have been told late
		end := at + max(a.Duration, 0)
		if a.Step != current {
			current, inLayer = a.Step, -2
			layer.close(w, layers, at)
			if row := numbers[a.Step]; row != nil {
				name := row.Phase.String()
				if row.Token >= 0 {
					name = fmt.Sprint("token ", row.Token)
				}
				begins := max(min(row.Begin, at), step.end)
				step.begin(w, steps, begins, max(row.End, at, begins), name, perfetto.Arg{Name: "step", Int: int64(row.Step)}, perfetto.Arg{Name: "tokens", Int: int64(row.Tokens)})
			}
		}
		if a.Timestamp == previous.Timestamp && a.Thread == previous.Thread && a.Step == previous.Step { // the op reads another weight
			continue
		}
		previous.Timestamp, previous.Thread, previous.Step = a.Timestamp, a.Thread, a.Step
		last = at
		of := s.in.capture.Structure[a.Tensor]
		if of.Layer != inLayer {
			name := "outside of layers"
			if of.Layer >= 0 {
				name = fmt.Sprint("layer ", of.Layer)
			}
			layer.begin(w, layers, at, end, name)
			inLayer = of.Layer
		}
		layer.end = max(layer.end, end)
		args := []perfetto.Arg{{Name: "tensor", Text: of.Name}, {Name: "bytes", Int: a.Bytes}}
		op.begin(w, ops, at, end, a.Op, args...)
		if a.Stall > 0 {
			wait.begin(w, waits, at, min(end, at+a.Stall), of.Name, perfetto.Arg{Name: "stall_ns", Int: a.Stall})
		}
	}
	const never = 1<<63 - 1
	step.close(w, steps, never)
	layer.close(w, layers, never)
	op.close(w, ops, never)
	wait.close(w, waits, never)
	return last, nil
}

// timelinePageIns has a track for each cause, and the sum of the bytes. They end with the ops.
func (s *study) timelinePageIns(ctx context.Context, w *perfetto.Writer, process perfetto.Track, last int64) error {
	var tracks []perfetto.Track
	for _, cause := range event.CauseNames() {
		tracks = append(tracks, w.Thread(process, "from disk: "+cause))
	}
	sum := w.Bytes(process, "from disk")
	total, rows := int64(0), 0
	for r, err := range s.in.capture.PageIns() {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return s.in.reading(err)
		}
		if r.Model != s.pattern.Model || r.Timestamp > last {
			continue
		}
		if rows++; rows > maxTimeline {
			s.in.warn("%s has the first %d reads from disk", perfettoFile, maxTimeline)
			break
		}
		name := filepath.Base(r.File)
		if r.Tensor >= 0 {
			name = s.in.capture.Structure[r.Tensor].Name
		}
		w.Instant(tracks[min(int(r.Cause), len(tracks)-1)], r.Timestamp, name, perfetto.Arg{Name: "bytes", Int: r.Bytes}, perfetto.Arg{Name: "offset_bytes", Int: r.Offset}, perfetto.Arg{Name: "rereads", Int: int64(r.Rereads)})
		total += r.Bytes
		w.Count(sum, r.Timestamp, total)
	}
	return nil
}
