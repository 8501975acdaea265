package tables

// This file describes what was read from disk more than once: which tensors, why, and by which process.

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/event"
	"tensorcast/internal/tabular"
)

// Rereads sums up the bytes of model files that were read from disk during a capture. Bytes count as
// re-read from their second read on. Bytes that were in memory when the capture began count as not read
// before.
type Rereads struct {
	FirstBytes  int64            `json:"first_bytes"`
	RereadBytes int64            `json:"reread_bytes"` // bytes that had been read before
	ByCause     map[string]int64 `json:"by_cause"`     // RereadBytes by the pagein table's cause
	ByProcess   []ProcessBytes   `json:"by_process"`   // RereadBytes, most first
	// StallNS is how many ns the target's threads together waited for the disk in ops that read weights.
	StallNS int64 `json:"stall_ns"`
	// Tensors are in descending order of re-read bytes, then of stall. capture.json has at most 20.
	Tensors []TensorRereads `json:"tensors"`
}

// ProcessBytes is the share of one process. PID 0 stands for all remaining ones, if there were many.
type ProcessBytes struct {
	PID   int32 `json:"pid"`
	Bytes int64 `json:"bytes"`
}

// TensorRereads is the share of one tensor.
type TensorRereads struct {
	Name        string           `json:"tensor_name"` // empty for metadata and padding
	Model       int32            `json:"model"`       // index of Meta.Models
	FirstBytes  int64            `json:"first_bytes"`
	RereadBytes int64            `json:"reread_bytes"`
	ByCause     map[string]int64 `json:"by_cause"` // RereadBytes by cause
	StallNS     int64            `json:"stall_ns"` // of the ops that read the tensor, see Access.Stall
}

// WriteText describes in words and a table, with at most top tensors, which bytes were read from
// disk again, and why.
func (r *Rereads) WriteText(w io.Writer, top int) error {
	return tabular.Document{tabular.Lines{r.sentence()}, r.tensorTable(top)}.WriteText(w)
}

func (r *Rereads) sentence() string {
	if r.FirstBytes == 0 && r.RereadBytes == 0 {
		return "read from disk: nothing, the weights were in memory"
	}
	text := fmt.Sprintf("read from disk: %s for the first time, %s again", formatBytes(r.FirstBytes),
		formatBytes(r.RereadBytes))
	if r.RereadBytes > 0 {
		text += " (" + formatCauses(r.ByCause) + ")"
	}
	if len(r.ByProcess) > 1 {
		var parts []string
		for _, p := range r.ByProcess[:min(4, len(r.ByProcess))] {
			parts = append(parts, fmt.Sprintf("%s by process %d", formatBytes(p.Bytes), p.PID))
		}
		text += "; of that " + strings.Join(parts, ", ")
	}
	if r.StallNS > 0 {
		text += fmt.Sprintf("; ops stalled for %s, summed over threads", formatDuration(r.StallNS))
	}
	return text
}

// tensorTable is empty if nothing was re-read.
func (r *Rereads) tensorTable(top int) *tabular.Table {
	var rows [][]string
	for _, t := range r.Tensors[:min(max(top, 0), len(r.Tensors))] {
		if t.RereadBytes == 0 {
			break
		}
		rows = append(rows, []string{
			formatBytes(t.RereadBytes), formatBytes(t.FirstBytes), formatDuration(t.StallNS),
			formatCauses(t.ByCause), cmp.Or(t.Name, "(metadata and padding)"),
		})
	}
	if rows == nil {
		return &tabular.Table{}
	}
	return &tabular.Table{
		Title:   "top tensors by bytes that were read from disk again",
		Columns: slices.Concat(tabular.Right("again", "first", "stall"), tabular.Left("cause", "tensor")), Rows: rows,
	}
}

// formatDuration formats ns with about three digits.
func formatDuration(ns int64) string {
	d := time.Duration(ns)
	for unit := time.Second; unit > time.Microsecond; unit /= 10 {
		if d >= 100*unit {
			return d.Round(unit).String()
		}
	}
	return d.Round(time.Microsecond).String()
}

func formatBytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// formatCauses formats shares, for example as "fault 90 %, readahead 10 %".
func formatCauses(bytes map[string]int64) string {
	var total int64
	for _, n := range bytes {
		total += n
	}
	var parts []string
	for _, name := range event.CauseNames() {
		switch n := bytes[name]; {
		case n == 0:
		case n == total:
			return name
		default:
			parts = append(parts, fmt.Sprintf("%s %.0f %%", name, 100*float64(n)/float64(total)))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}
