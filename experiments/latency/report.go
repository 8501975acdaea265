package latency

// This file sums up what was seen.

import (
	"fmt"
	"io"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/host"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// Report is the result of a run.
type Report struct {
	Started time.Time `json:"started"`
	Host    host.Info `json:"host"`
	Model   string    `json:"model"`
	Target  []string  `json:"target"`
	Helper  string    `json:"helper"`
	Limit   int64     `json:"limit_bytes"`
	Threads int       `json:"threads"` // of the target
	Skip    int       `json:"skip"`    // tokens before the measurement
	Tokens  int       `json:"tokens"`  // tokens during the measurement
	TokS    float64   `json:"tok_s"`   // the speed of these tokens

	Choices int `json:"choices"` // of routers
	// Read counts the choices after which the helper read before the next choice. For the others
	// nothing was missing.
	Read int `json:"read"`
	// TargetFirst counts the choices after which the target itself read before the helper did.
	TargetFirst int `json:"target_first"`
	// from the choice until the helper's first read was handed to the block layer
	Queued Wait `json:"queued_us"`
	Issued Wait `json:"issued_us"` // until the request with it was given to the disk's driver
}

// Wait is a distribution of times, in microseconds.
type Wait struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

func distributionOf(us []float64) Wait {
	return Wait{len(us), stats.Median(us), stats.Quantile(us, 0.9), stats.Quantile(us, 0.99), stats.Quantile(us, 1)}
}

func (r *Report) add(s Seen) {
	r.Choices, r.Read, r.TargetFirst = s.Choices, len(s.Times), s.TargetFirst
	var queued, issued []float64
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	for _, t := range s.Times {
		queued = append(queued, us(t.Queued))
		if t.Issued > 0 {
			issued = append(issued, us(t.Issued))
		}
	}
	r.Queued, r.Issued = distributionOf(queued), distributionOf(issued)
}

func (r *Report) document() tabular.Document {
	row := func(name string, w Wait) []string {
		cells := []string{name, fmt.Sprint(w.N)}
		for _, us := range []float64{w.Median, w.P90, w.P99, w.Max} {
			cells = append(cells, fmt.Sprintf("%.0f", us))
		}
		return cells
	}
	return tabular.Document{
		&tabular.Table{
			Columns: append(tabular.Left("from a router's choice to"),
				tabular.Right("times", "median us", "p90", "p99", "max")...),
			Rows: [][]string{row("the helper's first read in the block layer", r.Queued),
				row("that read at the disk's driver", r.Issued)},
		},
		tabular.Lines{fmt.Sprintf("%d choices in %d tokens at %.2f tok/s, %d threads, limit %s; after %d the "+
			"helper read, in %d the target read first.",
			r.Choices, r.Tokens, r.TokS, r.Threads, humanize.IBytes(uint64(r.Limit)), r.Read, r.TargetFirst)},
	}
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error { return r.document().WriteText(w) }

// WriteMarkdown writes it as Markdown.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.document().WriteMarkdown(w) }
