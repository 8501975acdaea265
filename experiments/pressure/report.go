package pressure

// This file summarises the runs: medians and spreads by variant, the bound, the noise. It formats the table.

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
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
	Started time.Time `json:"started"`
	Host    host.Info `json:"host"`
	Disk    DiskInfo  `json:"disk"`
	Model   ModelInfo `json:"model"`
	Target  []string  `json:"target"`
	// Interrupted says that some runs, and the measurements after them, are missing.
	Interrupted bool `json:"interrupted,omitempty"`

	X       float64 `json:"x,omitempty"` // as requested; 0 if the limit was given
	Limit   int64   `json:"limit_bytes"`
	Own     int64   `json:"own_bytes"`     // the largest amount of the target's memory, without page cache of the model
	Compute float64 `json:"t_compute_s"`   // seconds per token with everything in memory; the lesser of before and after
	BW      float64 `json:"bw_disk_bytes"` // bytes per second; the better of two sweeps
	// Bound is the largest number of tokens per second that any strategy can reach. It is 0 if unknown: with experts, the least number of
	// bytes depends on the router's choices.
	Bound float64 `json:"bound_tok_s"`

	Text       string     `json:"text"`      // text of the first run without a limit
	Unlimited  []Run      `json:"unlimited"` // the cold run, and those with everything in memory before and after the series
	Runs       []Run      `json:"runs"`      // in chronological order
	Variants   []Variant  `json:"variants"`
	Summaries  []Summary  `json:"summaries"` // by variant
	Noise      []Noise    `json:"noise"`
	DiskBefore DiskResult `json:"disk_before"`
	DiskAfter  DiskResult `json:"disk_after"`
}

// DiskInfo describes the disk that the model is on.
type DiskInfo struct {
	Name               string `json:"name"`
	ReadaheadKiB       int    `json:"readahead_kib"` // during the series
	ReadaheadKiBBefore int    `json:"readahead_kib_before"`
}

// ModelInfo describes the model.
type ModelInfo struct {
	Path       string `json:"path"`
	Bytes      int64  `json:"bytes"`
	TokenBytes int64  `json:"token_bytes"` // M
	Routed     bool   `json:"routed"`      // tokens are routed to experts
}

// Summary summarises the runs of one variant. The spreads are over finished runs only.
type Summary struct {
	Variant  string `json:"variant"`
	Runs     int    `json:"runs"`
	Finished int    `json:"finished"`
	Killed   int    `json:"oom_killed"`
	OOMKills int64  `json:"oom_kills"` // processes killed for lack of memory, including helpers
	TextSame int    `json:"text_same"`
	Disagree int    `json:"disagree"`

	TokS    stats.Spread `json:"tok_s"`
	P5      stats.Spread `json:"p5_tok_s"`
	Bytes   stats.Spread `json:"bytes_per_token"`
	OnDisk  stats.Spread `json:"disk_bytes_per_token"`
	Faults  stats.Spread `json:"major_faults_per_token"`
	Some    stats.Spread `json:"pressure_some_s"`
	Full    stats.Spread `json:"pressure_full_s"`
	Speedup stats.Spread `json:"speedup"`  // compared with the first variant in the same round
	OfBound float64      `json:"of_bound"` // median tok/s divided by the bound; 0 if that is unknown
}

// Noise compares two variants that are identical except for their names: the difference is the instrument's noise.
type Noise struct {
	A          string  `json:"a"`
	B          string  `json:"b"`
	Difference float64 `json:"difference"` // difference of the medians of tok/s, relative to their mean
	Spread     float64 `json:"spread"`     // max - min of the variant that spreads more, relative to the same mean
}

// Within reports whether the difference is less than the spread.
func (n Noise) Within() bool { return n.Difference <= n.Spread }

func (r *Report) summarise() {
	for i, u := range r.Unlimited {
		if i > 0 && u.TokS > 0 && (r.Compute == 0 || 1/u.TokS < r.Compute) {
			r.Compute = 1 / u.TokS
		}
	}
	r.BW = max(r.DiskBefore.Best.BytesPerSecond, r.DiskAfter.Best.BytesPerSecond)
	r.Bound = bound(r)

	base := map[int]float64{} // tok/s of the first variant by round
	for _, v := range r.Variants {
		s := Summary{Variant: v.Name}
		var tokS, p5, bytes, onDisk, faults, some, full, speedup []float64
		for _, run := range r.Runs {
			if run.Variant != v.Name {
				continue
			}
			s.Runs++
			s.OOMKills += run.OOMKills
			if run.Outcome == Killed {
				s.Killed++
			}
			if run.Outcome != Finished {
				continue
			}
			s.Finished++
			if run.TextSame {
				s.TextSame++
			}
			if run.Disagree {
				s.Disagree++
			}
			tokS, p5 = append(tokS, run.TokS), append(p5, run.P5)
			bytes, onDisk = append(bytes, run.BytesPerToken), append(onDisk, run.DiskBytesPerToken)
			faults = append(faults, run.FaultsPerToken)
			some, full = append(some, run.Some.Seconds()), append(full, run.Full.Seconds())
			if v.Name == r.Variants[0].Name {
				base[run.Round] = run.TokS
			}
			if b := base[run.Round]; b > 0 {
				speedup = append(speedup, run.TokS/b)
			}
		}
		s.TokS, s.P5, s.Bytes, s.OnDisk, s.Faults = stats.Describe(tokS), stats.Describe(p5), stats.Describe(bytes), stats.Describe(onDisk), stats.Describe(faults)
		s.Some, s.Full, s.Speedup = stats.Describe(some), stats.Describe(full), stats.Describe(speedup)
		if r.Bound > 0 {
			s.OfBound = s.TokS.Median / r.Bound
		}
		r.Summaries = append(r.Summaries, s)
	}
	for i, a := range r.Variants {
		for j, b := range r.Variants[:i] {
			if a.Helper != b.Helper || a.Flags != b.Flags {
				continue
			}
			sa, sb := r.Summaries[i].TokS, r.Summaries[j].TokS
			if mean := (sa.Median + sb.Median) / 2; mean > 0 && sa.N > 0 && sb.N > 0 {
				r.Noise = append(r.Noise, Noise{b.Name, a.Name, math.Abs(sa.Median-sb.Median) / mean, max(sa.Range(), sb.Range()) / mean})
			}
		}
	}
}

// bound is min(1/T_compute, BW/(M-R)).
func bound(r *Report) float64 {
	if r.Model.Routed || r.Compute <= 0 {
		return 0
	}
	most := 1 / r.Compute
	if missing := r.Model.TokenBytes - (r.Limit - r.Own); missing > 0 {
		most = min(most, r.BW/float64(missing))
	}
	return most
}

// columns are the columns of the table.
var columns = tabular.Left("variant", "tok/s", "min..max", "p5", "MiB/token", "faults/token", "stalled some/full s", "speedup", "min..max", "of bound", "same text", "OOM-killed")

func (r *Report) rows() [][]string {
	rows := [][]string{}
	if len(r.Unlimited) > 1 {
		u := r.Unlimited[1]
		rows = append(rows, []string{"(no limit)", number(1 / r.Compute), "", number(u.P5), number(u.BytesPerToken / mib), number(u.FaultsPerToken), "", "", "", "", "", ""})
	}
	for _, s := range r.Summaries {
		row := []string{s.Variant}
		if s.Finished == 0 {
			row = append(row, "-", "", "-", "-", "-", "-", "-", "", "-")
		} else {
			share := "-"
			if s.OfBound > 0 {
				share = fmt.Sprintf("%.0f %%", 100*s.OfBound)
			}
			row = append(row, number(s.TokS.Median), number(s.TokS.Min)+".."+number(s.TokS.Max), number(s.P5.Median), number(s.Bytes.Median/mib), number(s.Faults.Median),
				number(s.Some.Median)+" / "+number(s.Full.Median))
			if s.Speedup.N > 0 {
				row = append(row, number(s.Speedup.Median)+"x", number(s.Speedup.Min)+".."+number(s.Speedup.Max), share)
			} else {
				row = append(row, "-", "", share)
			}
		}
		row = append(row, fmt.Sprintf("%d of %d", s.TextSame, s.Runs), fmt.Sprintf("%d of %d", s.Killed, s.Runs))
		rows = append(rows, row)
	}
	return rows
}

// number formats v with three significant digits, without exponent.
func number(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "0"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error { return r.document().WriteText(w) }

// WriteMarkdown writes the report for a document.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.document().WriteMarkdown(w) }

func (r *Report) document() tabular.Document {
	return tabular.Document{r.conditions(), &tabular.Table{Columns: columns, Rows: r.rows()}, r.remarks()}
}

// conditions describes the conditions under which the numbers were measured.
func (r *Report) conditions() tabular.Lines {
	limit := fmt.Sprintf("limit %s MiB, of which the target's own memory takes %s: %s are left for the model, x = %.2f", number(float64(r.Limit)/mib),
		number(float64(r.Own)/mib), number(float64(r.Limit-r.Own)/mib), float64(r.Limit-r.Own)/float64(r.Model.TokenBytes))
	lines := tabular.Lines{
		fmt.Sprintf("model: %s, %s MiB; a token reads %s MiB", filepath.Base(r.Model.Path), number(float64(r.Model.Bytes)/mib), number(float64(r.Model.TokenBytes)/mib)),
		limit,
		fmt.Sprintf("machine: %d x %s, %s GiB, Linux %s, cgroup v%d", r.Host.CPUs, r.Host.CPUName(), number(float64(r.Host.Memory)/(1<<30)), r.Host.Kernel, r.Host.CgroupVersion),
		fmt.Sprintf("disk: %s, readahead %d KiB, %s MiB/s before and %s after (O_DIRECT, queue depth %d)", r.Disk.Name, r.Disk.ReadaheadKiB,
			number(r.DiskBefore.Best.BytesPerSecond/mib), number(r.DiskAfter.Best.BytesPerSecond/mib), r.bestDepth()),
	}
	if r.Bound > 0 {
		lines = append(lines, fmt.Sprintf("bound: %s tok/s = min(1/T_compute = %s, disk bandwidth / missing bytes = %s)", number(r.Bound), number(1/r.Compute), r.diskBound()))
	} else {
		lines = append(lines, fmt.Sprintf("bound: not known: how many bytes must be read depends on the experts that the router takes; 1/T_compute = %s tok/s", number(1/r.Compute)))
	}
	return lines
}

func (r *Report) bestDepth() int {
	if r.DiskAfter.Best.BytesPerSecond > r.DiskBefore.Best.BytesPerSecond {
		return r.DiskAfter.Best.Depth
	}
	return r.DiskBefore.Best.Depth
}

func (r *Report) diskBound() string {
	if missing := r.Model.TokenBytes - (r.Limit - r.Own); missing > 0 {
		return number(r.BW / float64(missing))
	}
	return "none: all fits"
}

// remarks are the notes that belong to the table.
func (r *Report) remarks() tabular.Lines {
	var lines tabular.Lines
	if r.Interrupted {
		lines = append(lines, fmt.Sprintf("INTERRUPTED after %d runs: those that were to follow are missing, and the disk's bandwidth and the speed in memory afterwards.", len(r.Runs)))
	}
	lines = append(lines, fmt.Sprintf("Medians over %d interleaved runs. MiB/token: read from disk on the control group's account while tokens were generated.", r.Summaries[0].Runs))
	if len(r.Summaries) > 1 {
		lines = append(lines, fmt.Sprintf("Speedup: over %s in the same round.", r.Variants[0].Name))
	}
	for _, n := range r.Noise {
		verdict := "within"
		if !n.Within() {
			verdict = "NOT within: take more repeats, or a quieter machine"
		}
		lines = append(lines, fmt.Sprintf("Noise: %s and %s are the same; their medians differ by %.1f %%, one run from another by up to %.1f %%: %s.", n.A, n.B, 100*n.Difference, 100*n.Spread, verdict))
	}
	for i, s := range r.Summaries {
		if s.Disagree > 0 {
			lines = append(lines, fmt.Sprintf("%s: in %d of %d runs the disk's own counter differs by more than %.0f %%: %s MiB/token, not %s.", s.Variant, s.Disagree, s.Finished, 100*tolerance,
				number(s.OnDisk.Median/mib), number(s.Bytes.Median/mib)))
		}
		if s.TextSame < s.Finished {
			lines = append(lines, fmt.Sprintf("%s: THE TEXT DIFFERS from that of the run without a limit in %d of %d runs.", s.Variant, s.Finished-s.TextSame, s.Finished))
		}
		if s.Killed < int(s.OOMKills) {
			lines = append(lines, fmt.Sprintf("%s: %d processes other than the target were killed for lack of memory.", s.Variant, int(s.OOMKills)-s.Killed))
		}
		for _, run := range r.Runs {
			if run.Variant != r.Variants[i].Name {
				continue
			}
			if run.Outcome != Finished {
				lines = append(lines, fmt.Sprintf("%s, round %d: %s: %s", run.Variant, run.Round+1, run.Outcome, run.Error))
			}
			if h := run.Helper; h != nil && h.Early && run.Outcome == Finished {
				lines = append(lines, fmt.Sprintf("%s, round %d: the helper ended before the target (%s): %s", run.Variant, run.Round+1, h.Status, proc.LastLine(h.Output)))
			}
		}
	}
	for _, u := range r.Unlimited {
		if !u.TextSame {
			lines = append(lines, "The target's text differs between runs without a limit: its equality means nothing here.")
			break
		}
	}
	return lines
}
