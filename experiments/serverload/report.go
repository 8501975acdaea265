package serverload

// This file adds up what the clients saw.

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Report is what came out.
type Report struct {
	Server     []string `json:"server"`
	Observer   string   `json:"observer"`
	Clients    int      `json:"clients"`
	Plain      Phase    `json:"plain"`
	Observed   Phase    `json:"observed"`
	Attached   int      `json:"attached"`    // how often the observer was
	ExitStatus int      `json:"exit_status"` // of the server, after SIGTERM
	// Interrupted says that answers that were to follow are missing. The server was then killed.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Phase is all phases of one kind together. Times are milliseconds.
type Phase struct {
	Answers int       `json:"answers"`
	Same    int       `json:"same"`  // answers whose tokens are those of the first plain phase
	Short   int       `json:"short"` // answers with another number of tokens than was asked for
	Took    []float64 `json:"took_ms"`
	Gaps    []float64 `json:"-"` // from a token to the next
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

// Disturbed says what the observer did to the clients; empty if it did nothing.
func (r *Report) Disturbed() string {
	switch {
	case r.Plain.Short+r.Observed.Short > 0:
		return fmt.Sprintf("tokens are missing in %d plain and %d observed answers", r.Plain.Short, r.Observed.Short)
	case r.ExitStatus != 0:
		return fmt.Sprintf("the server ended with %d", r.ExitStatus)
	case r.Observed.Same < r.Observed.Answers && r.Plain.Same == r.Plain.Answers:
		return fmt.Sprintf("%d of %d observed answers differ, and no plain one does", r.Observed.Answers-r.Observed.Same, r.Observed.Answers)
	}
	return ""
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "phases\tanswers\tsame tokens\tanswer p50 ms\tp95\tmax\ttoken p50 ms\tp99\tmax")
	for _, row := range []struct {
		name  string
		phase Phase
	}{{"plain", r.Plain}, {"observed", r.Observed}} {
		p := row.phase
		fmt.Fprintf(t, "%s\t%d\t%d\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.1f\n", row.name, p.Answers, p.Same, quantile(p.Took, 0.5), quantile(p.Took, 0.95), quantile(p.Took, 1),
			quantile(p.Gaps, 0.5), quantile(p.Gaps, 0.99), quantile(p.Gaps, 1))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Interrupted {
		_, err := fmt.Fprintf(w, "\nINTERRUPTED: answers that were to follow are missing. %d clients at a time; the observer attached and detached %d times.\n", r.Clients, r.Attached)
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d clients at a time; the observer attached and detached %d times; the server ended with %d.\n", r.Clients, r.Attached, r.ExitStatus)
	return err
}

// quantile is the least value that a share q of all does not exceed; 0 if there is none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
