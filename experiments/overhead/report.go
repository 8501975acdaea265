package overhead

// This file makes of the segments what a reader wants: an overhead with its interval, by observer, as a table.

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
)

// Report is a whole series.
type Report struct {
	Started time.Time    `json:"started"`
	Host    Host         `json:"host"`
	Target  []string     `json:"target"`
	Run     llama.Result `json:"run"` // what the target says of itself; of whole runs the first
	Whole   bool         `json:"whole_runs"`
	// Interrupted says that pairs that were to follow are missing. An observer with fewer than LeastPairs pairs then has medians only.
	Interrupted bool  `json:"interrupted,omitempty"`
	Rows        []Row `json:"observers"`
}

// Host is the machine.
type Host struct {
	Kernel string  `json:"kernel"`
	Arch   string  `json:"arch"`
	CPU    string  `json:"cpu"`
	CPUs   int     `json:"cpus"`
	Memory int64   `json:"memory_bytes"`
	Load   float64 `json:"load_before"` // processes that wanted a CPU in the last minute before the series
}

// Segment is one generation.
type Segment struct {
	TokS     float64 `json:"tok_s"`     // tokens over the sum of their times
	MedianMs float64 `json:"median_ms"` // of a token
}

// Pair is two segments that follow one another, in either order.
type Pair struct {
	Plain    Segment `json:"plain"`
	Observed Segment `json:"observed"`
}

// Row is one observer. Overheads are shares of the plain speed in tokens per second that are lost, so 0.01 is 1 %.
type Row struct {
	Observer
	Error    string `json:"error,omitempty"` // why it did not observe; there is no summary then
	Pairs    []Pair `json:"pairs"`
	SameText bool   `json:"same_text"` // in all segments the same tokens were generated
	Probes   int    `json:"probes"`    // places at which the target's code was changed

	Plain    float64 `json:"plain_tok_s"`    // median
	Observed float64 `json:"observed_tok_s"` // median
	// Overhead is estimated from the logarithms of the pairs' ratios.
	Overhead Interval `json:"overhead"`
	Median   float64  `json:"median_of_pairs"`
	MAD      float64  `json:"mad_of_pairs"` // of the pairs' overheads
	// Token is the same of the median token of each segment: what happens to few tokens, here or elsewhere on the machine, does not show in it.
	Token Interval `json:"median_token"`
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
		row.Plain, row.Observed = median(plain), median(observed)
		row.Median, row.MAD = median(overheads), mad(overheads)
		if row.measured() {
			row.Overhead, row.Token = lost(hodgesLehmann(ratios)), lost(hodgesLehmann(tokens))
		}
	}
}

// measured says whether there are enough pairs for intervals.
func (r *Row) measured() bool { return r.Error == "" && len(r.Pairs) >= LeastPairs }

// pairs is the number of all pairs.
func (r *Report) pairs() int {
	n := 0
	for _, row := range r.Rows {
		n += len(row.Pairs)
	}
	return n
}

// lost makes of a logarithm of a ratio of speeds the share that is lost.
func lost(log Interval) Interval {
	return Interval{Estimate: -math.Expm1(log.Estimate), Low: -math.Expm1(log.High), High: -math.Expm1(log.Low)}
}

// header is the table's first row.
var header = []string{"observer", "probes", "tok/s plain", "observed", "overhead %", "95 % interval", "median of pairs", "their MAD", "median token %", "95 % interval", "pairs", "same text"}

func (r *Report) rows() [][]string {
	var rows [][]string
	for _, row := range r.Rows {
		if row.Error != "" || len(row.Pairs) == 0 {
			rows = append(rows, []string{row.Name, "-", "-", "-", "-", "-", "-", "-", "-", "-", fmt.Sprint(len(row.Pairs)), "-"})
			continue
		}
		same := "yes"
		if !row.SameText {
			same = "NO"
		}
		cells := []string{
			row.Name, fmt.Sprint(row.Probes), fmt.Sprintf("%.4g", row.Plain), fmt.Sprintf("%.4g", row.Observed),
			percent(row.Overhead.Estimate), between(row.Overhead), percent(row.Median), percent(row.MAD),
			percent(row.Token.Estimate), between(row.Token), fmt.Sprint(len(row.Pairs)), same,
		}
		if !row.measured() {
			cells[4], cells[5], cells[8], cells[9] = "-", "-", "-", "-"
		}
		rows = append(rows, cells)
	}
	return rows
}

func percent(share float64) string { return fmt.Sprintf("%.2f", 100*share) }

func between(i Interval) string { return percent(i.Low) + " to " + percent(i.High) }

// conditions says under what conditions the numbers hold.
func (r *Report) conditions() []string {
	segments := "segments of one running process"
	if r.Whole {
		segments = "a process for each segment"
	}
	return []string{
		fmt.Sprintf("machine: %d x %s (%s), %.0f GiB, Linux %s, load %.2f before", r.Host.CPUs, r.Host.CPU, r.Host.Arch, float64(r.Host.Memory)/(1<<30), r.Host.Kernel, r.Host.Load),
		fmt.Sprintf("target: %s, %d threads, %s; %s", filepath.Base(r.Target[0]), r.Run.Threads, r.Run.Llama, segments),
	}
}

// remarks says what a reader must know beside the table.
func (r *Report) remarks() []string {
	var lines []string
	if r.Interrupted {
		lines = append(lines, fmt.Sprintf("INTERRUPTED after %d pairs: those that were to follow are missing.", r.pairs()))
	}
	lines = append(lines, "Overhead: tokens per second that are lost, Hodges-Lehmann estimate of the pairs' ratios and its interval; each end is a bound of 97.5 %.")
	for _, row := range r.Rows {
		if row.Command == "" && row.measured() {
			lines = append(lines, fmt.Sprintf("%s: nobody observes. What it shows, up to %s %%, is what this machine did by itself.", row.Name, percent(max(row.Overhead.High, -row.Overhead.Low))))
		}
		if row.Error != "" {
			lines = append(lines, row.Name+": not measured: "+row.Error)
		} else if !row.measured() {
			lines = append(lines, fmt.Sprintf("%s: %d pairs are too few for an interval: it takes %d.", row.Name, len(row.Pairs), LeastPairs))
		}
		if !row.SameText {
			lines = append(lines, row.Name+": THE TEXT DIFFERS between segments.")
		}
	}
	return lines
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, line := range r.conditions() {
		fmt.Fprintln(&b, line)
	}
	fmt.Fprintln(&b)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, r.rows()...) {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(&b)
	for _, line := range r.remarks() {
		fmt.Fprintln(&b, line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteMarkdown writes the report for a document.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	for _, line := range r.conditions() {
		fmt.Fprintf(&b, "* %s\n", line)
	}
	fmt.Fprintf(&b, "\n| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat("---|", len(header)))
	for _, row := range r.rows() {
		for i := range row {
			row[i] = strings.ReplaceAll(row[i], "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	fmt.Fprintln(&b)
	for _, line := range r.remarks() {
		fmt.Fprintf(&b, "* %s\n", line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func thisHost() (Host, error) {
	h := Host{Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), CPU: "unknown CPU"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return h, fmt.Errorf("uname: %w", err)
	}
	h.Kernel = unix.ByteSliceToString(u.Release[:])
	fs, err := procfs.NewFS(procfs.DefaultMountPoint)
	if err != nil {
		return h, err
	}
	if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 && cpus[0].ModelName != "" { // arm64 has no name
		h.CPU = cpus[0].ModelName
	}
	load, err := fs.LoadAvg()
	if err != nil {
		return h, fmt.Errorf("load average: %w", err)
	}
	h.Load = load.Load1
	memory, err := fs.Meminfo()
	if err != nil {
		return h, fmt.Errorf("meminfo: %w", err)
	}
	if memory.MemTotalBytes != nil {
		h.Memory = int64(*memory.MemTotalBytes)
	}
	return h, nil
}
