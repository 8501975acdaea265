package harm

// This file sums up the runs, and says whether there was harm.

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"tensorcast/internal/host"
	"tensorcast/internal/proc"
	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
)

// mib is the unit of amounts in tables, in bytes.
const mib = 1 << 20

// Report is the result of a series.
type Report struct {
	Started    time.Time     `json:"started"`
	Host       host.Info     `json:"host"`
	Model      string        `json:"model"`
	ModelBytes int64         `json:"model_bytes"`
	TokenBytes int64         `json:"token_bytes"` // what a token reads of the model
	Own        int64         `json:"own_bytes"`   // the target's memory without pages of the model
	Helper     string        `json:"helper"`
	Seed       uint64        `json:"seed"`
	Settle     int           `json:"settle_tokens"`
	Hold       time.Duration `json:"hold_ns"`
	Parallel   int           `json:"parallel"` // pairs at the same time
	Text       string        `json:"text"`     // of the reference run, which had no limit
	TokenIDs   []int32       `json:"token_ids"`
	// Interrupted says that some pairs are missing.
	Interrupted bool `json:"interrupted,omitempty"`

	Runs []Run `json:"runs"` // of whole pairs, in the order in which these were complete
	Rows []Row `json:"rows"` // by x, then by scene, as configured; those without a pair are left out
}

// Row sums up one scene at one x.
type Row struct {
	Scene string  `json:"scene"`
	X     float64 `json:"x"`
	Limit int64   `json:"limit_bytes"`
	Pairs int     `json:"pairs"`
	With  Side    `json:"with"`
	// Without is nil if there are no runs without the helper: the scene needs a helper, or
	// Config.HelpedOnly is set.
	Without *Side `json:"without,omitempty"`
	// Ratio is tok/s with the helper divided by tok/s without it, by pair. It is nil if there is no
	// pair in which both finished, or if several runs went on at the same time.
	Ratio *stats.Interval `json:"ratio,omitempty"`
}

// Side counts the runs of a row with the helper, or those without.
type Side struct {
	Runs      int `json:"runs"`
	OOMKilled int `json:"oom_killed"` // the target
	// Lost counts the deaths of the target in whatever way, except by the scene. It includes
	// OOMKilled.
	Lost          int `json:"lost"`
	Hung          int `json:"hung"`           // the target
	Different     int `json:"different_text"` // of the target
	HelperKilled  int `json:"helper_killed"`
	HelperEarly   int `json:"helper_early"` // it ended before the target, killed or not
	HelperHung    int `json:"helper_hung"`
	HogsKilled    int `json:"hogs_killed"` // processes
	Refused       int `json:"refused"`     // limits
	Missed        int `json:"missed"`      // the target ended before the scene
	PagesLeft     int `json:"pages_left"`  // runs after which pages were left
	ProcessesLeft int `json:"processes_left"`
}

func (s *Side) add(r *Run) {
	s.Runs++
	s.HogsKilled += r.HogsKilled
	for _, c := range []struct {
		count *int
		is    bool
	}{
		{&s.OOMKilled, r.Outcome == Killed},
		{&s.Lost, r.Outcome.IsLost()},
		{&s.Hung, r.Outcome == Hung},
		{&s.Different, !r.TextSame},
		{&s.Refused, r.Refused},
		{&s.Missed, !r.Acted && r.Outcome == Finished},
		{&s.HelperKilled, r.Helper != nil && r.Helper.Killed},
		{&s.HelperEarly, r.Helper != nil && r.Helper.Early},
		{&s.HelperHung, r.Helper != nil && r.Helper.Hung},
		{&s.PagesLeft, r.PagesLeft > 0},
		{&s.ProcessesLeft, len(r.ProcessesLeft) > 0},
	} {
		if c.is {
			*c.count++
		}
	}
}

func (r *Report) summarise(cfg Config) {
	for _, x := range cfg.X {
		for _, scene := range cfg.Scenes {
			row := Row{Scene: scene.String(), X: x}
			if cfg.isCompared(scene) {
				row.Without = &Side{}
			}
			speed := map[int][2]float64{} // with and without the helper, by pair
			for i := range r.Runs {
				run := &r.Runs[i]
				if run.Scene != row.Scene || run.X != x {
					continue
				}
				row.Limit = run.Limit
				both := speed[run.Pair]
				if run.Helped {
					row.With.add(run)
					both[0] = run.TokS
				} else {
					row.Without.add(run)
					both[1] = run.TokS
				}
				speed[run.Pair] = both
			}
			if row.Pairs = row.With.Runs; row.Pairs == 0 {
				continue
			}
			var logs []float64
			for _, both := range speed {
				if both[0] > 0 && both[1] > 0 {
					logs = append(logs, math.Log(both[0]/both[1]))
				}
			}
			if len(logs) > 0 {
				ratio := stats.HodgesLehmann(logs).Map(math.Exp)
				row.Ratio = &ratio
			}
			r.Rows = append(r.Rows, row)
		}
	}
}

// Harm says what harm the helper did; empty if it did none. It is harm if the target, over all
// scenes, was lost or hung in more runs with the helper than without it, if a text differs, or if
// pages of the model that cannot be dropped, or processes, were left.
func (r *Report) Harm() string {
	var with, without, hung, unhelpedHung, different, unhelped, pages, processes int
	for _, row := range r.Rows {
		with += row.With.Lost
		hung += row.With.Hung
		different += row.With.Different
		pages += row.With.PagesLeft
		processes += row.With.ProcessesLeft
		if row.Without != nil {
			without += row.Without.Lost
			unhelpedHung += row.Without.Hung
			unhelped += row.Without.Different
		}
	}
	var all []string
	if with > without {
		all = append(all, fmt.Sprintf("the target was lost in %d runs with the helper and in %d without it", with,
			without))
	}
	if hung > unhelpedHung {
		all = append(all, fmt.Sprintf("the target hung in %d runs with the helper and in %d without it", hung,
			unhelpedHung))
	}
	if different+unhelped > 0 {
		all = append(all, fmt.Sprintf("the text differs in %d runs with the helper and in %d without it", different,
			unhelped))
	}
	if pages > 0 {
		all = append(all, fmt.Sprintf("pages of the model were left after %d runs", pages))
	}
	if processes > 0 {
		all = append(all, fmt.Sprintf("processes were left after %d runs", processes))
	}
	return strings.Join(all, "; ")
}

// columns are the columns of the table.
var columns = slices.Concat(tabular.Left("scene"), tabular.Right("x", "limit MiB", "pairs", "lost with", "without",
	"helper killed", "hogs killed with", "without", "text differs with", "without", "pages left", "tok/s with/without"))

func (r *Report) cells(row Row) []string {
	without := func(count func(*Side) int) string {
		if row.Without == nil {
			return "-"
		}
		return strconv.Itoa(count(row.Without))
	}
	ratio := "-"
	if row.Ratio != nil {
		ratio = fmt.Sprintf("%.2f (%.2f..%.2f)", row.Ratio.Estimate, row.Ratio.Low, row.Ratio.High)
	}
	return []string{
		row.Scene, strconv.FormatFloat(row.X, 'g', -1, 64), strconv.FormatInt(row.Limit/mib, 10),
		strconv.Itoa(row.Pairs),
		strconv.Itoa(row.With.Lost), without(func(s *Side) int { return s.Lost }),
		strconv.Itoa(row.With.HelperKilled),
		strconv.Itoa(row.With.HogsKilled), without(func(s *Side) int { return s.HogsKilled }),
		strconv.Itoa(row.With.Different), without(func(s *Side) int { return s.Different }),
		strconv.Itoa(row.With.PagesLeft), ratio,
	}
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error { return r.Sections().Document().WriteText(w) }

// WriteMarkdown writes the report for a document.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.Sections().Document().WriteMarkdown(w) }

// Sections are the conditions, the table with a row for each scene, and the remarks, of which the first says whether
// harm was seen.
func (r *Report) Sections() tabular.Sections {
	table := &tabular.Table{Columns: columns}
	for _, row := range r.Rows {
		table.Rows = append(table.Rows, r.cells(row))
	}
	return tabular.Sections{
		{Name: "conditions", Document: tabular.Document{r.conditions()}},
		{Name: "scenes", Document: tabular.Document{table}},
		{Name: "remarks", Document: tabular.Document{r.remarks()}},
	}
}

// conditions are what was the same in all runs.
func (r *Report) conditions() tabular.Lines {
	return tabular.Lines{
		fmt.Sprintf("model: %s, %d MiB; a token reads %d MiB; the target's own memory is %d MiB",
			filepath.Base(r.Model), r.ModelBytes/mib, r.TokenBytes/mib, r.Own/mib),
		fmt.Sprintf("machine: %d x %s, %d GiB, Linux %s, cgroup v%d", r.Host.CPUs, r.Host.CPUName(),
			r.Host.Memory>>30, r.Host.Kernel, r.Host.CgroupVersion),
		fmt.Sprintf("helper: %s", r.Helper),
		fmt.Sprintf("seed %d; %d tokens, a scene not before token %d, held for %v; %d at the same time", r.Seed,
			len(r.TokenIDs), r.Settle, r.Hold, r.Parallel),
	}
}

// remarks are the notes that belong to the table.
func (r *Report) remarks() tabular.Lines {
	var lines tabular.Lines
	if r.Interrupted {
		lines = append(lines, fmt.Sprintf("INTERRUPTED after %d runs: those that were to follow are missing.",
			len(r.Runs)))
	}
	if harm := r.Harm(); harm != "" {
		lines = append(lines, "HARM: "+harm+".")
	} else {
		lines = append(lines, "No harm was seen.")
	}
	return slices.Concat(lines, r.rowRemarks(), r.runRemarks())
}

// rowRemarks are the notes on rows.
func (r *Report) rowRemarks() (lines tabular.Lines) {
	for _, row := range r.Rows {
		at := fmt.Sprintf("%s at %g: ", row.Scene, row.X)
		add := func(count int, format string, args ...any) {
			if count > 0 {
				lines = append(lines, at+fmt.Sprintf(format, args...))
			}
		}
		plain := cmp.Or(row.Without, &Side{})
		if row.Without != nil {
			add(row.With.Lost-plain.Lost, "lost more often with the helper (%d of %d) than without (%d of %d)",
				row.With.Lost, row.With.Runs, plain.Lost, plain.Runs)
		}
		add(row.With.Refused+plain.Refused,
			"the kernel refused the limit %d times with the helper and %d times without", row.With.Refused,
			plain.Refused)
		add(row.With.Missed+plain.Missed,
			"the target ended before the scene in %d runs with the helper and in %d without", row.With.Missed,
			plain.Missed)
	}
	return lines
}

// runRemarks are the notes on runs. Each is told once, with the number of runs that it belongs to.
func (r *Report) runRemarks() (lines tabular.Lines) {
	seen := map[string]int{}
	var order []string
	note := func(run *Run, text string) {
		who := "without"
		if run.Helped {
			who = "with"
		}
		line := fmt.Sprintf("%s at %g, %s: %s", run.Scene, run.X, who, text)
		if seen[line]++; seen[line] == 1 {
			order = append(order, line)
		}
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Outcome == Failed || run.Outcome == Hung {
			note(run, fmt.Sprintf("%s: %s", run.Outcome, run.Error))
		}
		if h := run.Helper; h != nil {
			switch {
			case h.Hung:
				note(run, "the helper did not end when it was told to")
			case h.Early && !h.Killed:
				note(run, fmt.Sprintf("the helper ended before the target (%s): %s", h.Status,
					cmp.Or(proc.LastLine(h.Output), "it said nothing")))
			}
		}
		if run.PagesLeft > 0 {
			note(run, fmt.Sprintf("%d MiB of the model were left", run.PagesLeft/mib))
		}
		for _, p := range run.ProcessesLeft {
			note(run, "a process was left: "+p)
		}
	}
	for _, line := range order {
		if n := seen[line]; n > 1 {
			line += fmt.Sprintf(" (%d times)", n)
		}
		lines = append(lines, line)
	}
	return lines
}
