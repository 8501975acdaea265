package gather

// This file writes a capture as a timeline for Perfetto.

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"math"
	"path/filepath"

	"tensorcast/event"
	"tensorcast/report/perfetto"
	"tensorcast/trace/tables"
)

// maxTimeline bounds the rows of each table in a timeline: an op takes some 150 bytes, and browsers open some hundred
// megabytes.
const maxTimeline = 500_000

// Timeline is what a timeline is made from.
type Timeline struct {
	Name     string // of the model
	PID      int32  // of the target
	Accesses iter.Seq2[*tables.Access, error]
	PageIns  iter.Seq2[*tables.PageInRow, error] // nil: they were not observed
	// Cut is called if a long capture does not fit, and the timeline has its beginning only. The text
	// says where it ends, as a sentence without its subject.
	Cut func(text string)
}

// WriteTimeline writes the steps, layers, ops and waiting of the collector's context, and what came from disk for its
// model, to a trace file. It reads the tables again: of the sums it uses the steps only. Errors are those of the rows,
// or of writing.
func (c *Collector) WriteTimeline(to io.Writer, t *Timeline) error {
	buffered := bufio.NewWriterSize(to, 1<<20)
	w := perfetto.NewWriter(buffered)
	process := w.NewProcess(t.PID, t.Name)
	last, err := c.writeOps(w, process, t)
	if err != nil {
		return err
	}
	if t.PageIns != nil {
		if err := c.writePageIns(w, process, t, last); err != nil {
			return err
		}
	}
	if err := w.Err(); err != nil {
		return err
	}
	return buffered.Flush()
}

// sliceTrack is a track of slices. At most one slice is open.
type sliceTrack struct {
	writer *perfetto.Writer
	track  perfetto.Track
	isOpen bool
	end    int64 // of the slice that is open, at the latest
}

// begin ends the open slice, and begins another that ends at the time end, or when the next begins.
func (s *sliceTrack) begin(at, end int64, name string, args ...perfetto.Arg) {
	s.close(at)
	s.writer.Begin(s.track, at, name, args...)
	s.isOpen, s.end = true, end
}

// close ends the open slice: at its end, or when the next begins, if that is earlier.
func (s *sliceTrack) close(next int64) {
	if s.isOpen {
		s.writer.End(s.track, min(s.end, next))
	}
	s.isOpen = false
}

// writeOps writes tracks of steps, layers, ops and waiting. It returns when the last op that is written began.
func (c *Collector) writeOps(w *perfetto.Writer, process perfetto.Track, t *Timeline) (last int64, err error) {
	track := func(name string) sliceTrack { return sliceTrack{writer: w, track: w.NewThread(process, name)} }
	step, layer, op, wait := track("steps"), track("layers"), track("ops"), track("waiting for the disk")
	const noStep, noLayer = -1, -2 // -1 is the layer of tensors outside of layers
	currentStep, currentLayer, rows := int32(noStep), int32(noLayer), 0
	previous := tables.Access{Timestamp: -1}
	for a, err := range t.Accesses {
		if err != nil {
			return 0, err
		}
		if a.Context != c.context {
			continue
		}
		if rows++; rows > maxTimeline {
			where := fmt.Sprint("token ", a.Token)
			if a.Token < 0 {
				where = fmt.Sprint("step ", a.Step)
			}
			t.Cut(fmt.Sprintf("ends after %d reads, at %s: more would be too much for a browser", maxTimeline, where))
			break
		}
		at := max(a.Timestamp, last) // an op of another thread may come late in the table
		end := at + max(a.Duration, 0)
		if a.Step != currentStep {
			currentStep, currentLayer = a.Step, noLayer
			layer.close(at)
			if i, ok := c.stepIndex[a.Step]; ok {
				row := &c.steps[i].row
				name := row.Phase.String()
				if row.Token >= 0 {
					name = fmt.Sprint("token ", row.Token)
				}
				begins := max(min(row.Begin, at), step.end)
				step.begin(begins, max(row.End, at, begins), name,
					perfetto.Arg{Name: "step", Int: int64(row.Step)},
					perfetto.Arg{Name: "tokens", Int: int64(row.Tokens)})
			}
		}
		if a.Timestamp == previous.Timestamp && a.Thread == previous.Thread && a.Step == previous.Step {
			continue // the op reads another weight
		}
		previous.Timestamp, previous.Thread, previous.Step = a.Timestamp, a.Thread, a.Step
		last = at
		tensor := &c.structure[a.Tensor]
		if tensor.Layer != currentLayer {
			name := "outside of layers"
			if tensor.Layer >= 0 {
				name = fmt.Sprint("layer ", tensor.Layer)
			}
			layer.begin(at, end, name)
			currentLayer = tensor.Layer
		}
		layer.end = max(layer.end, end)
		op.begin(at, end, a.Op, perfetto.Arg{Name: "tensor", Text: tensor.Name},
			perfetto.Arg{Name: "bytes", Int: a.Bytes})
		if a.Stall > 0 {
			wait.begin(at, min(end, at+a.Stall), tensor.Name, perfetto.Arg{Name: "stall_ns", Int: a.Stall})
		}
	}
	for _, s := range []*sliceTrack{&step, &layer, &op, &wait} {
		s.close(math.MaxInt64)
	}
	return last, nil
}

// writePageIns writes a track for each cause of page-ins, and one with the sum of their bytes. They end with the ops.
func (c *Collector) writePageIns(w *perfetto.Writer, process perfetto.Track, t *Timeline, last int64) error {
	var tracks []perfetto.Track
	for _, cause := range event.CauseNames() {
		tracks = append(tracks, w.NewThread(process, "from disk: "+cause))
	}
	sum := w.NewByteCounter(process, "from disk")
	total, rows := int64(0), 0
	for r, err := range t.PageIns {
		if err != nil {
			return err
		}
		if r.Model != c.model || r.Timestamp > last {
			continue
		}
		if rows++; rows > maxTimeline {
			t.Cut(fmt.Sprintf("has the first %d reads from disk", maxTimeline))
			break
		}
		name := filepath.Base(r.File)
		if r.Tensor >= 0 {
			name = c.structure[r.Tensor].Name
		}
		w.Instant(tracks[min(int(r.Cause), len(tracks)-1)], r.Timestamp, name,
			perfetto.Arg{Name: "bytes", Int: r.Bytes},
			perfetto.Arg{Name: "offset_bytes", Int: r.Offset}, perfetto.Arg{Name: "rereads", Int: int64(r.Rereads)})
		total += r.Bytes
		w.Count(sum, r.Timestamp, total)
	}
	return nil
}
