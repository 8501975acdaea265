// Package whatif estimates how fast a model would compute its tokens with other amounts of memory
// and another disk. It replays the reads of a capture through memories of other sizes.
package whatif

// This file makes the estimates.

import (
	"cmp"
	"fmt"
	"time"

	"tensorcast/sim/reuse"
)

// Config describes the machine and the run to estimate.
type Config struct {
	Sequence *reuse.Sequence // each step is what TokensPerStep tokens read together
	From     int             // the steps from here on count, and those before fill the memory
	// Compute is how long a step computes if it waits for nothing.
	Compute   time.Duration
	Bandwidth float64 // of the disk, bytes per second
	// Touched is how many bytes per second come from disk if they are read when they are touched.
	// That includes faults and the kernel's work to map each page. 0 means Bandwidth.
	Touched float64
	// Readahead is how many bytes the kernel reads around a miss: read_ahead_kb (see
	// [reuse.Sequence.LRUWithReadahead]).
	Readahead     int64
	TokensPerStep int // at least 1
	// PerPass means that a step is a pass of a prompt through the model. Texts are then of passes, as
	// a token's share is little.
	PerPass bool
	// Pinned returns what prefetchd keeps with its strategy "pin", if the model and prefetchd have
	// so many bytes of memory. If it is nil, that strategy is left out.
	Pinned func(memory int64) Pinned
	// Helped returns how many bytes a step reads with prefetchd and so much memory, and how long it
	// takes. It is nil if that is not known.
	Helped func(memory int64) (missed float64, step time.Duration)
	// Chosen means that experts are read once a router has chosen them, as prefetchd does. A step
	// waits for these bytes. What Pinned returns is kept in this case, too.
	Chosen bool
	// ChosenRate is how many bytes per second come then; 0 means Touched. What a target by itself
	// has read as it touched it tells little of that.
	ChosenRate float64
	// ChosenMissed returns how many bytes a step misses then. If it is nil, experts are LRU beside
	// what is kept.
	ChosenMissed func(memory int64) float64
}

// Pinned is what is in memory all the time, and how much memory there is for the rest.
type Pinned struct {
	Kept []reuse.Extent
	Rest int64
}

// Strategy is a way to use memory.
type Strategy struct {
	Name  string `json:"name"`
	About string `json:"about"`
	// Ahead means that reading overlaps with computing, because the pattern is known. Otherwise a
	// token waits for each byte.
	Ahead bool `json:"ahead"`
	Bound bool `json:"bound"` // it knows the future, so nothing is faster
}

// allStrategies are the strategies that may be compared, the bound last.
var allStrategies = []Strategy{
	{Name: "LRU", About: "what was used longest ago is dropped, and read when it is touched; no byte more than " +
		"asked for is read"},
	{Name: Plain, About: "LRU, and the kernel reads around what is missed, as far as readahead says"},
	{Name: "random", About: "what is dropped is chosen at random"},
	{Name: "pin", About: "a set that never changes is kept; the rest is read when it is touched"},
	{Name: "pin + stream", About: "a set that never changes is kept; the rest is read ahead, and dropped behind: " +
		"what prefetchd reaches at most", Ahead: true},
	{Name: Pin,
		About: "what `prefetchd --strategy pin` keeps, beside what it leaves free and takes for itself; " +
			"the rest is read when it is touched, and the kernel reads around it"},
	{Name: Auto, About: "what prefetchd keeps, beside its window and what it leaves free and takes for itself; " +
		"the rest is read ahead, as far as the window has room, op by op", Ahead: true},
	{Name: "Belady", About: "what is used last again is dropped, and all is read ahead: the bound", Ahead: true,
		Bound: true},
}

// aboutChosen is what is said of Auto where experts are read once they were chosen.
const aboutChosen = "what every token reads is kept by prefetchd, and experts by how often they were chosen of late; " +
	"one that is missing is read as soon as its router has chosen it, and counts by its bytes, not in blocks"

// Names of strategies. Pin and Auto are estimated only if Config says how prefetchd behaves.
const (
	Plain = "plain"
	Pin   = "prefetchd pin"
	Auto  = "prefetchd"
)

// knownStrategies returns the strategies that can be estimated.
func (c *Config) knownStrategies() (of []Strategy) {
	for _, s := range allStrategies {
		if s.Name == Pin && c.Pinned == nil || s.Name == Auto && c.Helped == nil && !c.Chosen {
			continue
		}
		if s.Name == Auto && c.Helped == nil {
			s.Ahead, s.About = false, aboutChosen
			if c.ChosenRate > 0 {
				s.About += "; at the disk's rate, which it reaches at most"
			}
		}
		of = append(of, s)
	}
	return of
}

// Row is what is expected with one amount of memory.
type Row struct {
	Memory  int64    `json:"memory_bytes"` // for the model's pages
	Share   float64  `json:"share"`        // of the working set
	Results []Result `json:"results"`
}

// Result is what is expected of one strategy.
type Result struct {
	Missed float64 `json:"missed_bytes_per_token"`
	TokS   float64 `json:"tokens_per_second"`
}

// estimateRow estimates for one amount of memory.
func (c *Config) estimateRow(memory int64, lru *reuse.Curve) Row {
	s := c.Sequence
	r := Row{Memory: memory}
	if all := s.WorkingSet(); all > 0 {
		r.Share = float64(memory) / float64(all)
	}
	fixed := s.Fixed(memory, c.From)
	for _, of := range c.knownStrategies() {
		var missed float64
		var took time.Duration // 0: follows from the bytes
		switch of.Name {
		case "LRU":
			missed = lru.Missed(memory)
		case Plain, Pin:
			missed = c.Misses(of.Name, memory)
		case Auto:
			if c.Helped != nil {
				missed, took = c.Helped(memory)
			} else {
				missed = c.Misses(Auto, memory)
				if c.ChosenRate > 0 {
					took = c.Compute + time.Duration(missed/c.ChosenRate*1e9)
				}
			}
		case "random":
			missed = s.Random(memory, c.From)
		case "Belady":
			missed = s.Belady(memory, c.From)
		default:
			missed = fixed
		}
		r.Results = append(r.Results, c.buildResult(of, missed, took))
	}
	return r
}

// Misses returns how many bytes a step waits for with so much memory. strategy is Plain, Pin, or
// Auto for a model with experts. The last two are the same as Plain if Pinned is nil. With Auto
// nothing is read around the chosen experts.
func (c *Config) Misses(strategy string, memory int64) float64 {
	if strategy == Auto && c.ChosenMissed != nil {
		return c.ChosenMissed(memory)
	}
	if strategy == Plain || c.Pinned == nil {
		return c.Sequence.LRUWithReadahead(memory, c.From, c.Readahead)
	}
	around := c.Readahead
	if strategy == Auto {
		around = 0
	}
	p := c.Pinned(memory)
	return c.Sequence.PinnedWithReadahead(p.Kept, p.Rest, c.From, around)
}

// buildResult returns the result of a step that misses so many bytes. took is how long it takes, if
// that is known.
func (c *Config) buildResult(s Strategy, missed float64, took time.Duration) Result {
	seconds := took.Seconds()
	switch {
	case took > 0:
	case s.Ahead:
		seconds = max(c.Compute.Seconds(), missed/c.Bandwidth)
	default:
		seconds = c.Compute.Seconds() + missed/cmp.Or(c.Touched, c.Bandwidth)
	}
	tokens := float64(max(c.TokensPerStep, 1))
	return Result{missed / tokens, tokens / seconds}
}

// Answer has the estimates, and what they are based on.
type Answer struct {
	Steps         int        `json:"steps"` // that count
	WorkingSet    int64      `json:"working_set_bytes"`
	PerToken      float64    `json:"bytes_per_token"`
	Bandwidth     float64    `json:"disk_bytes_per_second"`
	Touched       float64    `json:"touched_bytes_per_second"` // for reads at the time of touching
	TouchedFrom   string     `json:"touched_from"`
	Compute       float64    `json:"compute_s"` // of a step
	ComputeFrom   string     `json:"compute_from"`
	Readahead     int64      `json:"readahead_bytes"`
	TokensPerStep int        `json:"tokens_per_step"`
	Blocks        string     `json:"blocks"`
	Strategies    []Strategy `json:"strategies"`
	Rows          []Row      `json:"rows"`
	curve         []Row
	lru           *reuse.Curve
	perPass       bool
}

// curvePoints is for how many amounts of memory a figure has points.
const curvePoints = 24

// Estimate estimates for each amount of memory (bytes), and for the points of a figure. cancelled is
// called before each, and its error ends the work.
func (c *Config) Estimate(memory []int64, cancelled func() error) (*Answer, error) {
	s := c.Sequence
	if s.Steps() <= c.From {
		return nil, fmt.Errorf("only %d steps: want more than %d, which fill the memory", s.Steps(), c.From)
	}
	if c.Compute <= 0 || c.Bandwidth <= 0 {
		return nil, fmt.Errorf("a step that computes for %v, a disk of %g bytes per second: want more than none",
			c.Compute, c.Bandwidth)
	}
	tokens := max(c.TokensPerStep, 1)
	a := &Answer{
		perPass: c.PerPass,
		Steps:   s.Steps() - c.From, WorkingSet: s.WorkingSet(), PerToken: s.PerStep(c.From) / float64(tokens),
		Bandwidth: c.Bandwidth, Touched: cmp.Or(c.Touched, c.Bandwidth), Compute: c.Compute.Seconds(),
		Readahead: c.Readahead, TokensPerStep: tokens,
		Strategies: c.knownStrategies(), lru: s.LRU(c.From),
	}
	for _, m := range memory {
		if err := cancelled(); err != nil {
			return nil, err
		}
		a.Rows = append(a.Rows, c.estimateRow(m, a.lru))
	}
	for i := range curvePoints + 1 {
		if err := cancelled(); err != nil {
			return nil, err
		}
		a.curve = append(a.curve, c.estimateRow(a.WorkingSet*int64(i+1)/curvePoints, a.lru))
	}
	return a, nil
}
