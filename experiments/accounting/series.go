package accounting

// This file makes the series of runs, and prints the result.

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/dustin/go-humanize"

	"tensorcast/experiments/llama"
	"tensorcast/internal/tabular"
)

// Config says what to run.
type Config struct {
	Ops    int64  // per run
	Rate   int64  // ops per second of the steady run
	Tracer string // path of the command

	// Progress, if not nil, is called when a run begins: done of total runs are complete, and what
	// names the run. It is called from one goroutine.
	Progress func(done, total int, what string)
}

// Report is the result of a series.
type Report struct {
	Interrupted bool  `json:"interrupted,omitempty"` // some runs are missing
	Runs        []Run `json:"runs"`
}

// Run is one run, with what is wrong with it.
type Run struct {
	Name string `json:"run"`
	*Account
	Wrong string `json:"wrong,omitempty"`
}

// Measure makes four runs: one at cfg.Rate, one at full speed, one on two threads with a tenth of
// the ops, and one with a ring buffer of 4 KiB, which must lose ops. If a run fails or ctx ends, it
// returns the report of the runs before (nil if there are none) with the error.
func Measure(ctx context.Context, in *llama.Installation, cfg Config) (report *Report, err error) {
	dir, err := os.MkdirTemp("", "accounting")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a directory left behind does no harm
	source, err := NewSource(ctx, dir, in)
	if err != nil {
		return nil, err
	}
	runs := []struct {
		name  string
		load  Load
		flags []string
		also  func(*Account) string // finds further faults of this run
	}{
		{fmt.Sprintf("%s ops/s, default buffer", humanize.Comma(cfg.Rate)), Load{Ops: cfg.Ops, Rate: cfg.Rate}, nil,
			cfg.checkNothingLost},
		{"full speed, default buffer", Load{Ops: cfg.Ops}, nil, nil},
		{"full speed, two threads", Load{Ops: max(1, cfg.Ops/10), Threads: 2}, nil, nil},
		{"full speed, 4 KiB", Load{Ops: cfg.Ops}, []string{"--buffer", "4"}, checkSomethingLost},
	}
	var r Report
	for i, run := range runs {
		if cfg.Progress != nil {
			cfg.Progress(i, len(runs), run.name)
		}
		out := filepath.Join(dir, "capture")
		account, err := source.Run(ctx, cfg.Tracer, out, run.load, run.flags...)
		if err == nil {
			err = os.RemoveAll(out)
		}
		if err != nil {
			if r.Interrupted = true; len(r.Runs) > 0 {
				report = &r
			}
			return report, fmt.Errorf("%s: %w", run.name, err)
		}
		res := Run{Name: run.name, Account: account}
		if err := account.Check(); err != nil {
			res.Wrong = err.Error()
		}
		if run.also != nil && res.Wrong == "" {
			res.Wrong = run.also(account)
		}
		r.Runs = append(r.Runs, res)
	}
	return &r, nil
}

// checkNothingLost checks the run at a steady rate.
func (c *Config) checkNothingLost(a *Account) string {
	if lost := a.Counters.Lost(); lost > 0 {
		return fmt.Sprintf("%d events were lost", lost)
	}
	if a.Count.Rate < 0.9*float64(c.Rate) {
		return fmt.Sprintf("only %.0f of %d ops/s were reached: the machine is too busy, or too slow", a.Count.Rate,
			c.Rate)
	}
	return ""
}

func checkSomethingLost(a *Account) string {
	if a.Counters.OpsLost == 0 {
		return "nothing was lost: the loss was not put to the test"
	}
	return ""
}

// Err returns an error with the first faulty run; nil if there is none.
func (r *Report) Err() error {
	wrong := 0
	var first *Run
	for i := range r.Runs {
		if r.Runs[i].Wrong != "" {
			if wrong++; first == nil {
				first = &r.Runs[i]
			}
		}
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("%d of %d runs do not hold; %s: %s", wrong, len(r.Runs), first.Name, first.Wrong)
}

var columns = []string{"run", "ops/s", "ops ran x threads", "hits", "misses", "received", "lost", "filtered",
	"unfinished", "all equal"}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	t := tabular.Table{Columns: tabular.Right(columns...)}
	for _, run := range r.Runs {
		c, equal := run.Counters, "yes"
		if run.Wrong != "" {
			equal = "NO"
		}
		row := []string{run.Name, humanize.Comma(int64(run.Count.Rate))}
		for _, n := range []uint64{uint64(run.Count.Ops * run.Count.Threads), c.Hits, c.Misses, c.Received,
			c.OpsLost, c.Filtered(), c.Unfinished} {
			row = append(row, humanize.Comma(int64(n)))
		}
		t.Rows = append(t.Rows, append(row, equal))
	}
	d := tabular.Document{&t}
	if r.Interrupted {
		d = append(d, tabular.Lines{"INTERRUPTED: the runs that were to follow are missing."})
	}
	return d.WriteText(w)
}
