// Package pressure measures a llama.cpp that has less memory than its model, with and without a helper. "lab pressure"
// runs it.
//
// A run is one target process in a new memory control group with a limit. A helper, if the variant has one, is in the
// same group, so that its memory counts, too. Before a run, the model is dropped from the page cache, and this is
// verified. A series has one or more settings (how much memory, how much readahead), one after the other. At each
// setting the variants take turns (A B B A), so that a drift of the machine affects them alike.
//
// Measured once, without a limit, are M, the bytes of weights that a generated token reads (traced), the target's own
// memory (its memory without page cache), the time to compute a token, and the text. The disk's bandwidth is measured
// before, between and after the runs. Together they give the bound that no strategy can exceed:
//
//	tok/s <= min(1/T_compute, BW_disk/(M-R)), R = limit - own memory
//
// With experts, M-R is replaced by the mean number of bytes that a token must read even if all choices of the routers
// are known in advance (Belady's rule). The choices are those of a traced run without a limit. The report also says
// what the best policy needs that does not know the future.
//
// T_compute is measured with the model in single pages and in large folios; the lesser counts. BW_disk is the median of
// the readings, or the rate at which the runs may read, if that is less. The disk's best request size and depth are
// looked for on a grid, once. A reading is the best of the three settings that were the fastest there. Before and after
// the series the disk is also read while the target computes with everything in memory. It may deliver less then than
// by itself, so the report also says what is left of the bound then.
//
// Numbers per token cover generation only: the target writes a byte to descriptor 3 when the prompt has been decoded
// and after each token (llamarun --mark 3), and the counters are read at each byte. The first tokens are the start-up,
// in which a helper takes hold. What comes after them is the steady state, which has numbers of its own.
//
// Amounts are bytes. Everything needs root, to make control groups and to trace.
package pressure

// This file says what a series measures.

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
)

// Variant is one way to run the target under the limit.
type Variant struct {
	Name string `json:"name"`
	// Helper is a simple shell command; empty: none. These are replaced in it: {pid} by the
	// target's process id, {model} by the model's path, {limit} by the run's limit in bytes, and
	// {room} by what that leaves for the model, in bytes (limit - own memory).
	Helper string `json:"helper,omitempty"`
	// Launcher is the beginning of a shell command that ends with the target: a helper that starts its target. The same
	// is replaced in it as in Helper, except for the process id. Page faults are then those of all processes in the
	// group. Empty: the target is started by itself.
	Launcher string `json:"launcher,omitempty"`
	Flags    string `json:"flags,omitempty"` // additional arguments for the target, in the shell's syntax
}

// Setting is what all variants are run under, in turn. Exactly one of X, Limit and Experts is given.
type Setting struct {
	X     float64 `json:"x,omitempty"`           // limit = X * M + own memory
	Limit int64   `json:"limit_bytes,omitempty"` // the limit itself
	// Experts is for a mixture of experts: limit = Experts * bytes of all experts + what every
	// token reads besides them + own memory.
	Experts float64 `json:"experts,omitempty"`
	// Readahead is that of the disk in KiB. It is set for the runs, and restored; 0: as it is.
	Readahead int `json:"readahead_kib,omitempty"`
}

// Config says what to measure.
type Config struct {
	Model string
	// Target is the command line. It must print llamarun's JSON, and write its marks to descriptor 3.
	Target []string
	// Trace is a shorter run of the same, used to count the weights that a token reads. If these are experts, Target is
	// traced, too. nil means Target. It is not used if Weights is given.
	Trace []string

	Settings []Setting
	// Weights is M, if it is not to be traced. The disk is then measured over the whole file, and
	// the model is assumed to be dense.
	Weights  int64
	Repeat   int // runs of each variant at each setting
	Skip     int // tokens that are the start-up
	Variants []Variant
	// LeftOut are the variants that are not run at a setting.
	LeftOut []LeftOut
	// Earlier is the report of the same series, which was interrupted; nil: there is none. What it has is not measured
	// again, but for what a token reads and one reading of the disk. It fails with [ErrOtherSeries] if the report is of
	// another one.
	Earlier *Report
	// Keep, if not nil, is called with the report after each run under a limit, so that nothing is lost if this process
	// is killed. The report then says that it was interrupted, and is only valid during the call. An error ends the
	// series.
	Keep func(*Report) error
	// Throttle is how many bytes per second target and helper together may read from the disk under
	// the limit; 0: as many as it gives.
	Throttle int64
	Disk     DiskOptions

	// Load is a command that loads the model into the page cache. It is called with a [Unit] and the model's path, and
	// prints as JSON what [Load] returns. It is run in the group of the run, which is charged. nil: this process loads,
	// and its own group is charged.
	Load []string

	// Progress, if not nil, is called with what is being done: done of total runs are complete. It is called from one
	// goroutine at a time.
	Progress func(done, total int, what string)
	Log      *slog.Logger // receives warnings; nil: none
}

func (c *Config) check() error {
	switch {
	case c.Model == "":
		return errors.New("no model")
	case len(c.Target) == 0:
		return errors.New("no target command")
	case len(c.Settings) == 0:
		return errors.New("give a limit in bytes or a share of the model")
	case c.Weights < 0 || c.Throttle < 0 || c.Skip < 0:
		return errors.New("a size, rate or number of tokens is not a positive number")
	case c.Repeat < 1:
		return errors.New("a series has at least one repeat")
	case len(c.Variants) == 0:
		return errors.New("no variant")
	}
	for i, set := range c.Settings {
		given := 0
		for _, is := range []bool{set.X != 0, set.Limit != 0, set.Experts != 0} {
			if is {
				given++
			}
		}
		if given != 1 {
			return errors.New("give a limit in bytes or a share of the model or of its experts, one of them")
		}
		if set.X < 0 || set.Limit < 0 || set.Experts < 0 || set.Readahead < 0 || !(set.X+set.Experts < math.Inf(1)) {
			return errors.New("a limit, share or readahead is not a positive number")
		}
		if set.Experts > 0 && c.Weights > 0 {
			return errors.New("a share of the experts takes tracing: the weights that a token reads cannot be " +
				"given then")
		}
		if slices.Contains(c.Settings[:i], set) {
			return fmt.Errorf("two settings are the same: %s", set)
		}
	}
	for i, v := range c.Variants {
		if v.Name == "" {
			return errors.New("a variant has no name")
		}
		if slices.ContainsFunc(c.Variants[:i], func(o Variant) bool { return o.Name == v.Name }) {
			return fmt.Errorf("two variants are named %s", v.Name)
		}
	}
	return c.checkLeftOut()
}

// String describes the setting: "x = 0.85, readahead 128 KiB".
func (s Setting) String() string {
	text := fmt.Sprintf("x = %g", s.X)
	switch {
	case s.Limit > 0:
		text = fmt.Sprintf("limit %s MiB", number(float64(s.Limit)/mib))
	case s.Experts > 0:
		text = fmt.Sprintf("%g of the experts", s.Experts)
	}
	if s.Readahead > 0 {
		text += fmt.Sprintf(", readahead %d KiB", s.Readahead)
	}
	return text
}

// ErrNotRoot says that the caller is not root, as a measurement requires.
var ErrNotRoot = errors.New("not root: a measurement makes control groups, drops the page cache and traces")
