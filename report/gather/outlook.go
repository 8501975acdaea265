package gather

// This file says in a sentence or two what holds tokens up, and what would help. Where nothing was generated,
// it says that of decodes.

import (
	"fmt"
	"math"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/stats"
	"tensorcast/trace/tables"
)

// Outlook says what the tokens of a capture waited for, and what could be expected of more memory, and of
// reading ahead. Figures are medians over the generated tokens but the first. If nothing was generated, they
// are medians over the decodes, divided by the tokens of a decode. What is not known is 0.
type Outlook struct {
	TokensPerSecond float64 `json:"tokens_per_second"`
	// TokensPerStep counts the tokens of a step. Several sequences, or the tokens of a prompt, share what it
	// reads.
	TokensPerStep float64 `json:"tokens_per_step"`
	// Passes is how often a step goes through the model, if that may be more than once: where nothing was
	// generated.
	Passes int     `json:"passes_per_step,omitempty"`
	Read   float64 `json:"read_bytes_per_token"`
	Disk   float64 `json:"disk_bytes_per_token"`
	Again  float64 `json:"reread_bytes_per_token"`
	// Stalled is the share of a token's time, summed over the threads: it may be more than 1.
	Stalled  float64 `json:"stalled_share"`
	DiskRate float64 `json:"disk_bytes_per_second"` // while tokens were generated
	// Probed is how many bytes per second the disk can read, as tracer has measured it.
	Probed float64 `json:"disk_probed"`
	// Bandwidth is the greater of the two above, if the disk was measured.
	Bandwidth float64 `json:"disk_bandwidth"`
	Limit     int64   `json:"memory_limit_bytes"`     // of the process's control group
	LimitOf   string  `json:"memory_limit_of"`        // which limit that is
	Compute   float64 `json:"compute_s"`              // of a step that waits for nothing
	Missing   int64   `json:"missing_bytes"`          // bytes of memory that are missing to hold what a step reads
	Fits      float64 `json:"tokens_per_second_fits"` // expected if nothing was missing
	// Ahead is the most that this memory and disk allow, if everything is read ahead.
	Ahead        float64 `json:"tokens_per_second_ahead"`
	Helped       float64 `json:"tokens_per_second_prefetchd"` // expected with prefetchd
	tokens       int
	per          string  // what sentences are about: a token, or a decode
	scale        float64 // tokens in that
	computed     float64 // tokens of the steps of which Compute is
	disk, stalls bool    // observed
	routed       bool    // tokens read different experts
}

// Outlook computes the outlook. Compute is how long a step takes if it waits for nothing; 0 if that is
// not known. Nothing is expected of mixtures of experts, whose tokens read different bytes, nor where the
// limit of memory is not known. What reading ahead would gain is left out if the disk's bandwidth is not
// known.
func (c *Collector) Outlook(meta *tables.Meta, compute time.Duration) *Outlook {
	times, bytes, disk, again, stalled, tokens := c.perUnit()
	o := &Outlook{tokens: tokens, disk: c.hasDisk, stalls: c.hasStall && len(stalled) > 0, per: c.per(), scale: 1}
	if tokens == 0 {
		return o
	}
	o.TokensPerStep = float64(max(c.usualBatch, 1))
	passes := float64(max(c.Passes, 1))
	o.computed = o.TokensPerStep
	if !c.Generates() {
		o.TokensPerStep, o.Passes = c.tokensPerStep(), int(passes)
		o.scale = o.TokensPerStep
	}
	o.Read = stats.Median(bytes) / o.scale
	o.Compute = compute.Seconds()
	if c.hasDisk {
		o.Disk, o.Again = stats.Median(disk)/o.scale, stats.Median(again)/o.scale
	}
	if len(times) > 0 {
		o.TokensPerSecond = o.scale / stats.Median(times)
		o.DiskRate = o.Disk * o.TokensPerSecond
	}
	if o.stalls {
		o.Stalled = stats.Median(stalled)
	}
	if meta.Disk != nil && meta.Disk.BytesPerSecond > 0 {
		o.Probed = meta.Disk.BytesPerSecond
		o.Bandwidth = max(o.Probed, o.DiskRate)
	}
	other := int64(0)
	if m := meta.Memory; m != nil {
		o.Limit, o.LimitOf, other = m.LimitBytes, m.Of, m.OtherBytes
	}
	for _, t := range c.firstReads {
		o.routed = o.routed || c.structure[t].Experts > 0
	}
	if o.Limit <= 0 || o.routed || !o.Short() {
		return o
	}
	room := max(float64(o.Limit-other), 0)
	o.Missing = int64(math.Max(o.Read*o.TokensPerStep/passes-room, 0)) // every pass reads the same
	if o.Missing == 0 || o.Compute <= 0 {
		return o
	}
	o.Fits = o.computed / o.Compute
	if o.Bandwidth > 0 {
		o.Ahead = o.computed / math.Max(o.Compute, passes*float64(o.Missing)/o.Bandwidth)
		if c.Helped != nil {
			if took := c.Helped(int64(room), compute/time.Duration(passes), o.Bandwidth); took > 0 {
				o.Helped = o.computed / (passes * took.Seconds())
			}
		}
	}
	return o
}

// tokensPerStep is the median of the tokens of the counted steps.
func (c *Collector) tokensPerStep() float64 {
	var all []int32
	for _, s := range c.countedSteps() {
		all = append(all, max(s.row.Tokens, 1))
	}
	if len(all) == 0 {
		return 1
	}
	return max(stats.Median(all), 1)
}

// nothingToSay is the verdict where only one step was generated.
const nothingToSay = "No token was generated but the first: nothing can be said of their speed."

// Short says whether tokens need what memory does not hold.
func (o *Outlook) Short() bool { return o.Disk > littleFromDisk*o.Read }

// Routed says whether tokens read different experts.
func (o *Outlook) Routed() bool { return o.routed }

// TouchedRate is how many bytes per second came from disk in the time that a step did not compute. It is
// 0 if that is not known.
func (o *Outlook) TouchedRate(compute time.Duration) float64 {
	if !o.Short() || o.TokensPerSecond <= 0 {
		return 0
	}
	return math.Max(o.Disk/(1/o.TokensPerSecond-compute.Seconds()/o.computed), 0)
}

// Sentences are the outlook in words, the most important first.
func (o *Outlook) Sentences() (all []string) {
	if o.tokens == 0 {
		return []string{nothingToSay}
	}
	if !o.disk {
		return nil
	}
	if !o.Short() {
		all = append(all, fmt.Sprintf("Memory suffices: of the %.3g MiB that a %s reads, %.2g come from disk.",
			o.scale*o.Read/mib, o.per, o.scale*o.Disk/mib))
	} else {
		at := ""
		perSecond := func(rate float64) string { return humanize.IBytes(uint64(rate)) + "/s" }
		switch {
		case o.Probed <= 0 || o.DiskRate <= 0:
		case o.DiskRate > o.Probed:
			at = fmt.Sprintf(
				", at %s, which is all that this disk can read as far as is known (tracer had measured %s)",
				perSecond(o.DiskRate), perSecond(o.Probed))
		default:
			at = fmt.Sprintf(", at %.0f %% of what this disk can read (%s)", 100*o.DiskRate/o.Probed,
				perSecond(o.Probed))
		}
		all = append(all, fmt.Sprintf("Memory is short: for the %.3g MiB that a %s reads, %.3g MiB come from "+
			"disk, %.3g of them not for the first time%s.", o.scale*o.Read/mib, o.per, o.scale*o.Disk/mib,
			o.scale*o.Again/mib, at))
	}
	const more = 1.05 // a smaller gain is nothing to promise
	if o.Fits > more*o.TokensPerSecond && o.TokensPerSecond > 0 {
		text := fmt.Sprintf("With %.3g MiB more than the limit of %.4g MiB (%s) it would be about %.1f times as "+
			"fast (%.3g tok/s instead of %.3g)",
			float64(o.Missing)/mib, float64(o.Limit)/mib, o.LimitOf, o.Fits/o.TokensPerSecond, o.Fits,
			o.TokensPerSecond)
		if o.Helped > more*o.TokensPerSecond {
			text += fmt.Sprintf("; as it is, prefetchd is expected to reach %.3g tok/s (%.3g at most)", o.Helped,
				o.Ahead)
		}
		all = append(all, text+".")
	}
	if o.Short() && o.routed {
		all = append(all, "What more memory would be worth depends on which experts tokens choose: `analyze "+
			"whatif` and `analyze moe` replay their choices.")
	}
	if o.stalls {
		all = append(all, fmt.Sprintf("Waiting for the disk takes %.0f %% of a %s's time, summed over its "+
			"threads; what the kernel does to read and to map pages is not in that.", 100*o.Stalled, o.per))
	}
	return all
}

// MissingData lists what the capture would have to tell for a whole verdict, and how that is recorded.
func (c *Collector) MissingData(meta *tables.Meta) (all []string) {
	if !c.hasDisk {
		all = append(all, "what came from disk, and why: `tracer --detail op+io` records it")
	}
	if !c.hasStall {
		all = append(all, "how long ops waited for the disk: `tracer --detail op+io` records it")
	}
	if !c.hasTime {
		all = append(all, "how long ops took: `tracer --detail op` records it")
	}
	if !c.hasDisk || !c.Outlook(meta, 0).Short() {
		return all
	}
	if meta.Memory == nil || meta.Memory.LimitBytes <= 0 {
		all = append(all, "a limit of the target's memory: none of its control groups had one when tracer looked, "+
			"so that it is not known how much memory is missing")
	}
	if meta.Disk == nil || meta.Disk.BytesPerSecond <= 0 {
		all = append(all, "what the disk can read: tracer measures it when its command has ended, without --no-probe")
	}
	return all
}
