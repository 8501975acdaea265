package serverload

// This file summarises what the clients saw.

import (
	"fmt"
	"io"
	"strconv"

	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// Report is the result of a measurement.
type Report struct {
	Server     []string `json:"server"`
	Observer   string   `json:"observer"`
	Clients    int      `json:"clients"`
	Plain      Phase    `json:"plain"`
	Observed   Phase    `json:"observed"`
	Attached   int      `json:"attached"`    // how often the observer was attached
	ExitStatus int      `json:"exit_status"` // exit status of the server after SIGTERM
	// Interrupted says that some answers are missing. The server was then killed.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Phase sums up all phases of one kind (plain or observed). Times are milliseconds.
type Phase struct {
	Answers int       `json:"answers"`
	Same    int       `json:"same"`  // answers with the same tokens as in the first plain phase
	Short   int       `json:"short"` // answers with another number of tokens than requested
	Took    []float64 `json:"took_ms"`
	Gaps    []float64 `json:"-"` // time from one token to the next
}

func (p *Phase) add(a *answer, same bool, tokens int) {
	p.Answers++
	if same {
		p.Same++
	}
	if len(a.tokens) != tokens {
		p.Short++
	}
	p.Took = append(p.Took, a.took)
	p.Gaps = append(p.Gaps, a.gaps...)
}

// Disturbed says how the observer disturbed the clients; empty if it did not.
func (r *Report) Disturbed() string {
	switch {
	case r.Plain.Short+r.Observed.Short > 0:
		return fmt.Sprintf("tokens are missing in %d plain and %d observed answers", r.Plain.Short, r.Observed.Short)
	case r.ExitStatus != 0:
		return fmt.Sprintf("the server ended with %d", r.ExitStatus)
	case r.Observed.Same < r.Observed.Answers && r.Plain.Same == r.Plain.Answers:
		return fmt.Sprintf("%d of %d observed answers differ, and no plain one does",
			r.Observed.Answers-r.Observed.Same, r.Observed.Answers)
	}
	return ""
}

// columns are the columns of the table.
var columns = tabular.Left("phases", "answers", "same tokens", "answer p50 ms", "p95", "max", "token p50 ms", "p99",
	"max")

// WriteText writes the report for a terminal, with quantiles of the times.
func (r *Report) WriteText(w io.Writer) error {
	end := fmt.Sprintf("%d clients at a time; the observer attached and detached %d times; the server ended "+
		"with %d.", r.Clients, r.Attached, r.ExitStatus)
	if r.Interrupted {
		end = fmt.Sprintf("INTERRUPTED: answers that were to follow are missing. %d clients at a time; the "+
			"observer attached and detached %d times.", r.Clients, r.Attached)
	}
	table := &tabular.Table{Columns: columns, Rows: [][]string{r.Plain.row("plain"), r.Observed.row("observed")}}
	return tabular.Document{table, tabular.Lines{end}}.WriteText(w)
}

func (p *Phase) row(name string) []string {
	row := []string{name, strconv.Itoa(p.Answers), strconv.Itoa(p.Same)}
	for _, of := range []struct {
		values []float64
		q      float64
		format string
	}{{p.Took, 0.5, "%.0f"}, {p.Took, 0.95, "%.0f"}, {p.Took, 1, "%.0f"}, {p.Gaps, 0.5, "%.2f"},
		{p.Gaps, 0.99, "%.2f"}, {p.Gaps, 1, "%.1f"}} {
		row = append(row, fmt.Sprintf(of.format, stats.Quantile(of.values, of.q)))
	}
	return row
}
