package soak

// This file has the report and how it is printed.

import (
	"fmt"
	"io"
	"time"

	"tensorcast/internal/host"
)

// Kind says what a finding is about.
type Kind string

const (
	Processes Kind = "process"
	Groups    Kind = "group"
	Pages     Kind = "pages"
	Files     Kind = "file"
	BPF       Kind = "bpf"
	Text      Kind = "text"   // a target's text differs
	Target    Kind = "target" // the target ended otherwise than it should
	Tool      Kind = "tool"   // it panicked, was killed by a signal that was not sent, or did not end
	Growth    Kind = "growth"
)

// Finding is something that should not be.
type Finding struct {
	Kind    Kind    `json:"kind"`
	What    string  `json:"what"`
	Life    string  `json:"life"`    // in which it was found
	Seconds float64 `json:"seconds"` // since the start
	Seed    uint64  `json:"seed"`
}

// Report is the result of a soak.
type Report struct {
	Started     time.Time      `json:"started"`
	Host        host.Info      `json:"host"`
	Model       string         `json:"model"`
	Seed        uint64         `json:"seed"`
	Seconds     float64        `json:"seconds"` // that it took
	Targets     int            `json:"targets"`
	Tools       map[string]int `json:"tools"`   // started, by name
	Signals     map[string]int `json:"signals"` // sent, by receiver and name
	Comparisons int            `json:"comparisons"`
	Tokens      int            `json:"tokens"` // tokens that were compared
	Checks      int            `json:"checks"` // rounds after which everything was checked
	Samples     []Sample       `json:"samples"`
	Findings    []Finding      `json:"findings"`
	Interrupted bool           `json:"interrupted"`
}

// rows are the counts, in the order in which they are printed.
func (r *Report) rows() [][2]string {
	rows := [][2]string{
		{"seed", fmt.Sprint(r.Seed)},
		{"seconds", fmt.Sprintf("%.0f", r.Seconds)},
		{"targets", fmt.Sprint(r.Targets)},
	}
	for _, m := range []struct {
		what   string
		counts map[string]int
	}{{"started: ", r.Tools}, {"signals: ", r.Signals}} {
		for _, name := range names(m.counts) {
			rows = append(rows, [2]string{m.what + name, fmt.Sprint(m.counts[name])})
		}
	}
	rows = append(rows, [2]string{"texts compared", fmt.Sprint(r.Comparisons)},
		[2]string{"tokens compared", fmt.Sprint(r.Tokens)}, [2]string{"rounds checked", fmt.Sprint(r.Checks)})
	if n := len(r.Samples); n > 0 {
		var most int64
		for _, s := range r.Samples {
			most = max(most, s.RssAnon)
		}
		rows = append(rows, [2]string{"anonymous memory of prefetchd --auto, most",
			fmt.Sprintf("%.1f MiB", float64(most)/(1<<20))},
			[2]string{"its descriptors, first and last",
				fmt.Sprintf("%d, %d", r.Samples[0].Descriptors, r.Samples[n-1].Descriptors)})
	}
	rows = append(rows, [2]string{"findings", fmt.Sprint(len(r.Findings))})
	if r.Interrupted {
		rows = append(rows, [2]string{"interrupted", "yes"})
	}
	return rows
}

// WriteText prints the counts and then a line for each finding.
func (r *Report) WriteText(w io.Writer) error { return r.write(w, "%-44s %s\n", "") }

// WriteMarkdown prints the same as a table and a list.
func (r *Report) WriteMarkdown(w io.Writer) error {
	if _, err := io.WriteString(w, "| what | count |\n|---|---|\n"); err != nil {
		return err
	}
	return r.write(w, "| %s | %s |\n", "* ")
}

func (r *Report) write(w io.Writer, row, item string) error {
	for _, line := range r.rows() {
		if _, err := fmt.Fprintf(w, row, line[0], line[1]); err != nil {
			return err
		}
	}
	for i, f := range r.Findings {
		if i == 0 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(w, "%s%s: %s (%s, after %.1f s, seed %d)\n", item, f.Kind, f.What, f.Life,
			f.Seconds, f.Seed); err != nil {
			return err
		}
	}
	return nil
}
