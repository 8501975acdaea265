package overhead

// This file computes each observer's overhead with its interval from the segments, and formats the table.

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"time"

	"tensorcast/experiments/llama"
	"tensorcast/internal/host"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// Report is the result of a series.
type Report struct {
	Started time.Time    `json:"started"`
	Host    host.Info    `json:"host"`
	Target  []string     `json:"target"`
	Run     llama.Result `json:"run"` // what the target reports about itself; with Whole, the first target
	Whole   bool         `json:"whole_runs"`
	// Interrupted says that some pairs are missing. An observer with fewer than LeastPairs pairs has no interval.
	Interrupted bool  `json:"interrupted,omitempty"`
	Rows        []Row `json:"observers"`
}

// Segment is one generation.
type Segment struct {
	TokS     float64 `json:"tok_s"`     // number of tokens divided by the sum of their times
	MedianMs float64 `json:"median_ms"` // median time of a token
}

// Pair is a plain and an observed segment that follow one another, in either order.
type Pair struct {
	Plain    Segment `json:"plain"`
	Observed Segment `json:"observed"`
}

// Row is the result for one observer. An overhead is the share of the plain speed (tokens per
// second) that is lost: 0.01 is 1 %.
type Row struct {
	Observer
	Error    string `json:"error,omitempty"` // why it did not observe; the row then has no summary
	Pairs    []Pair `json:"pairs"`
	SameText bool   `json:"same_text"` // all segments generated the same tokens
	Probes   int    `json:"probes"`    // number of places where the target's code was changed

	Plain    float64 `json:"plain_tok_s"`    // median
	Observed float64 `json:"observed_tok_s"` // median
	// Overhead is estimated from the logarithms of the pairs' speed ratios.
	Overhead stats.Interval `json:"overhead"`
	Median   float64        `json:"median_of_pairs"`
	MAD      float64        `json:"mad_of_pairs"` // median absolute deviation of the pairs' overheads
	// Token is the same for the median token of each segment. It does not show effects on a few
	// tokens, such as other activity on the machine.
	Token stats.Interval `json:"median_token"`
}

func (r *Report) summarise() {
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Error != "" {
			continue
		}
		var plain, observed, ratios, tokens, overheads []float64
		for _, p := range row.Pairs {
			plain, observed = append(plain, p.Plain.TokS), append(observed, p.Observed.TokS)
			ratios = append(ratios, math.Log(p.Observed.TokS/p.Plain.TokS))
			tokens = append(tokens, math.Log(p.Plain.MedianMs/p.Observed.MedianMs))
			overheads = append(overheads, 1-p.Observed.TokS/p.Plain.TokS)
		}
		row.Plain, row.Observed = stats.Median(plain), stats.Median(observed)
		row.Overhead, row.Token = stats.HodgesLehmann(ratios).Map(lostShare), stats.HodgesLehmann(tokens).Map(lostShare)
		row.Median, row.MAD = stats.Median(overheads), stats.MAD(overheads)
	}
}

// pairs is the total number of pairs.
func (r *Report) pairs() int {
	n := 0
	for _, row := range r.Rows {
		n += len(row.Pairs)
	}
	return n
}

// lostShare converts the logarithm of a ratio of speeds to the share that is lost.
func lostShare(log float64) float64 { return -math.Expm1(log) }

// columns are the columns of the table.
var columns = tabular.Left("observer", "probes", "tok/s plain", "observed", "overhead %", "95 % interval",
	"median of pairs", "their MAD", "median token %", "95 % interval", "pairs", "same text")

func (r *Report) rows() [][]string {
	var rows [][]string
	for _, row := range r.Rows {
		if row.Error != "" || len(row.Pairs) == 0 {
			rows = append(rows, []string{row.Name, "-", "-", "-", "-", "-", "-", "-", "-", "-",
				fmt.Sprint(len(row.Pairs)), "-"})
			continue
		}
		same := "yes"
		if !row.SameText {
			same = "NO"
		}
		rows = append(rows, []string{
			row.Name, fmt.Sprint(row.Probes), fmt.Sprintf("%.4g", row.Plain), fmt.Sprintf("%.4g", row.Observed),
			percent(row.Overhead.Estimate), formatInterval(row.Overhead), percent(row.Median), percent(row.MAD),
			percent(row.Token.Estimate), formatInterval(row.Token), fmt.Sprint(len(row.Pairs)), same,
		})
	}
	return rows
}

func percent(share float64) string { return fmt.Sprintf("%.2f", 100*share) }

// formatInterval formats an interval. It is a dash if there are too few pairs.
func formatInterval(i stats.Interval) string {
	if !i.Holds() {
		return "-"
	}
	return percent(i.Low) + " to " + percent(i.High)
}

// conditions describes the conditions under which the numbers were measured.
func (r *Report) conditions() tabular.Lines {
	segments := "segments of one running process"
	if r.Whole {
		segments = "a process for each segment"
	}
	return tabular.Lines{
		fmt.Sprintf("machine: %d x %s (%s), %.0f GiB, Linux %s, load %.2f before", r.Host.CPUs, r.Host.CPUName(),
			r.Host.Arch, float64(r.Host.Memory)/(1<<30), r.Host.Kernel, r.Host.Load),
		fmt.Sprintf("target: %s, %d threads, %s; %s", filepath.Base(r.Target[0]), r.Run.Threads, r.Run.Llama, segments),
	}
}

// remarks are the notes that belong to the table.
func (r *Report) remarks() tabular.Lines {
	var lines tabular.Lines
	if r.Interrupted {
		lines = append(lines, fmt.Sprintf("INTERRUPTED after %d pairs: those that were to follow are missing.",
			r.pairs()))
	}
	lines = append(lines, "Overhead: tokens per second that are lost, Hodges-Lehmann estimate of the pairs' "+
		"ratios and its interval; each end is a bound of 97.5 %.")
	for _, row := range r.Rows {
		switch {
		case row.Error != "":
			lines = append(lines, row.Name+": not measured: "+row.Error)
		case !row.Overhead.Holds():
			lines = append(lines, fmt.Sprintf("%s: %d pairs are too few for an interval, which takes %d.", row.Name,
				len(row.Pairs), LeastPairs))
		case row.Command == "":
			lines = append(lines, fmt.Sprintf("%s: nobody observes. What it shows, up to %s %%, is what this "+
				"machine did by itself.", row.Name, percent(max(row.Overhead.High, -row.Overhead.Low))))
		}
		if !row.SameText {
			lines = append(lines, row.Name+": THE TEXT DIFFERS between segments.")
		}
	}
	return lines
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error { return r.document().WriteText(w) }

// WriteMarkdown writes the report for a document.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.document().WriteMarkdown(w) }

func (r *Report) document() tabular.Document {
	return tabular.Document{r.conditions(), &tabular.Table{Columns: columns, Rows: r.rows()}, r.remarks()}
}
