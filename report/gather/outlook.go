package gather

// This file says in a sentence or two what holds tokens up, and what would help. Where nothing was generated,
// it says that of decodes.

import (
	"fmt"
	"math"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/trace/tables"
)

// Range is from a least value to a most. Most is 0 where nothing bounds it.
type Range struct {
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
}

// isWide reports whether a number with this range is better told as the range.
func (r Range) isWide() bool {
	const wide = 1.25 // half of what verdicts may be wrong, to either side
	return r.Most <= 0 && r.Least > 0 || r.Most > wide*r.Least
}

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
	// Probed is how many bytes per second the disk can read, as tracer has measured it. Age is how long before the
	// capture's end that was.
	Probed float64 `json:"disk_probed"`
	Age    float64 `json:"disk_probed_s_before,omitempty"`
	// Bandwidth is the greater of DiskRate and Probed, if the disk was measured. BandwidthRange is how much it varied
	// when it was measured; of an old measurement it is wider.
	Bandwidth      float64 `json:"disk_bandwidth"`
	BandwidthRange Range   `json:"disk_bandwidth_range"`
	Limit          int64   `json:"memory_limit_bytes"` // of the process's control group
	LimitOf        string  `json:"memory_limit_of"`    // which limit that is
	// Compute is how long a step computes that waits for nothing, and ComputeRange the bounds of that.
	Compute      float64 `json:"compute_s"`
	ComputeRange Range   `json:"compute_range_s"`
	// ComputeTold is the share of what a step reads of which the capture tells how long it computes.
	ComputeTold float64 `json:"compute_told_share"`
	Missing     int64   `json:"missing_bytes"` // bytes of memory that are missing to hold what a step reads
	// Fits is what is expected if nothing was missing.
	Fits      float64 `json:"tokens_per_second_fits"`
	FitsRange Range   `json:"tokens_per_second_fits_range"`
	// Ahead is the most that this memory and disk allow, if everything is read ahead.
	Ahead float64 `json:"tokens_per_second_ahead"`
	// Helped is what is expected with prefetchd.
	Helped      float64 `json:"tokens_per_second_prefetchd"`
	HelpedRange Range   `json:"tokens_per_second_prefetchd_range"`

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
func (c *Collector) Outlook(meta *tables.Meta, compute Compute) *Outlook {
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
	o.Compute, o.ComputeTold = compute.Expected.Seconds(), compute.Told
	o.ComputeRange = Range{compute.Least.Seconds(), compute.Most.Seconds()}
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
	o.setBandwidth(meta)
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
	if o.FitsRange.Least = o.computed / compute.Most.Seconds(); compute.Least > 0 {
		o.FitsRange.Most = o.computed / compute.Least.Seconds()
	}
	if o.Bandwidth > 0 {
		fastest := passes * float64(o.Missing) / o.BandwidthRange.Most // seconds of reading
		o.Ahead = o.computed / math.Max(compute.Least.Seconds(), fastest)
		if c.Helped != nil {
			helped := func(step time.Duration, disk float64) float64 {
				took := c.Helped(int64(room), step/time.Duration(passes), disk)
				if took <= 0 {
					return 0
				}
				return o.computed / (passes * took.Seconds())
			}
			o.Helped = helped(compute.Expected, o.Bandwidth)
			o.HelpedRange = Range{
				helped(compute.Most, o.BandwidthRange.Least),
				helped(max(compute.Least, 1), o.BandwidthRange.Most), // what takes no time is not known
			}
		}
	}
	return o
}

// drift is by which factor a disk may be faster or slower than it was some time ago. The virtual one of this project
// read 1.2 and 2.0 GB/s within days.
const drift = 1.5

// oldAfter is from which age on a disk may have become faster or slower than it was measured.
const oldAfter = time.Hour

// setBandwidth says what the disk can read, and how certain that is.
func (o *Outlook) setBandwidth(meta *tables.Meta) {
	d := meta.Disk
	if d == nil || d.BytesPerSecond <= 0 {
		return
	}
	o.Probed = d.BytesPerSecond
	r := Range{d.Least, d.Most}
	if !(r.Least > 0 && r.Least <= o.Probed && r.Most >= o.Probed) {
		r = Range{o.Probed, o.Probed}
	}
	if ended := meta.Started.Add(time.Duration(meta.Seconds * 1e9)); !d.Measured.IsZero() && ended.After(d.Measured) {
		o.Age = ended.Sub(d.Measured).Seconds()
	}
	if d.Measured.IsZero() || o.Age > oldAfter.Seconds() {
		r.Least, r.Most = r.Least/drift, r.Most*drift
	}
	o.Bandwidth = max(o.Probed, o.DiskRate)
	o.BandwidthRange = Range{max(r.Least, o.DiskRate), max(r.Most, o.DiskRate)}
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
	read, disk := tabular.Size(o.scale*o.Read), tabular.Size(o.scale*o.Disk)
	if !o.Short() {
		all = append(all, fmt.Sprintf("Memory suffices: of the %s that a %s reads, %s come from disk.", read, o.per, disk))
	} else {
		all = append(all, fmt.Sprintf("Memory is short: for the %s that a %s reads, %s come from disk, %s of them not "+
			"for the first time%s.", read, o.per, disk, tabular.Size(o.scale*o.Again), o.diskText()))
	}
	const more = 1.05 // a smaller gain is nothing to promise
	if o.Fits > more*o.TokensPerSecond && o.TokensPerSecond > 0 {
		text := fmt.Sprintf("With %s more than the limit of %s (%s) it would be %s", tabular.Size(float64(o.Missing)),
			tabular.Size(float64(o.Limit)), o.LimitOf, o.fitsText())
		if o.Helped > more*o.TokensPerSecond {
			between := ""
			if r := o.HelpedRange; r.isWide() {
				between = fmt.Sprintf("%s to %s, ", tabular.Number(r.Least), tabular.Number(r.Most))
			}
			text += fmt.Sprintf("; as it is, prefetchd is expected to reach %s tok/s (%s%s at most)", tabular.Number(o.Helped),
				between, tabular.Number(o.Ahead))
		}
		all = append(all, text+".")
		if o.FitsRange.isWide() {
			all = append(all, o.doubtText())
		}
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

// diskText says how fast bytes came from disk, beside what the disk can read; "" if one of these is not known.
func (o *Outlook) diskText() string {
	perSecond := func(rate float64) string { return humanize.IBytes(uint64(rate)) + "/s" }
	if o.Probed <= 0 || o.DiskRate <= 0 {
		return ""
	}
	when := ""
	if o.Age > oldAfter.Seconds() {
		when = fmt.Sprintf(", measured %s before", ageText(o.Age))
	}
	if o.DiskRate > o.Probed {
		return fmt.Sprintf(", at %s, which is all that this disk can read as far as is known (tracer had measured %s%s)",
			perSecond(o.DiskRate), perSecond(o.Probed), when)
	}
	return fmt.Sprintf(", at %.0f %% of what this disk can read (%s%s)", 100*o.DiskRate/o.Probed,
		perSecond(o.Probed), when)
}

// ageText is a time of more than an hour in words.
func ageText(seconds float64) string {
	const hour, day = 3600, 24 * 3600
	n, unit := math.Round(seconds/hour), "hour"
	if seconds >= 2*day {
		n, unit = math.Round(seconds/day), "day"
	}
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%.0f %s", n, unit)
}

// fitsText says how fast tokens would be if nothing was missing.
func (o *Outlook) fitsText() string {
	between := ""
	if r := o.FitsRange; r.isWide() {
		between = ", " + tabular.Number(r.Least)
		if r.Most > 0 {
			between += " to " + tabular.Number(r.Most) + ","
		} else {
			between += " at least,"
		}
	}
	return fmt.Sprintf("about %.1f times as fast (%s tok/s%s instead of %s)", o.Fits/o.TokensPerSecond,
		tabular.Number(o.Fits), between, tabular.Number(o.TokensPerSecond))
}

// doubtText says why it is not known well how long a step computes.
func (o *Outlook) doubtText() string {
	took := func(seconds float64) string { return millisText(o.scale * seconds / o.computed) }
	if o.ComputeTold > mostTold {
		return fmt.Sprintf("How long a %s computes is not known well, as ops of a shape took different times: the sum of the "+
			"fastest tenths is %s, that of the medians %s. Other work on this machine does that.", o.per,
			took(o.ComputeRange.Least), took(o.ComputeRange.Most))
	}
	weights := fmt.Sprintf("weights of %.0f %% of the bytes", 100*(1-o.ComputeTold))
	if o.ComputeTold < 0.005 {
		weights = "all weights"
	}
	why := weights + " came from disk in every step"
	if !o.stalls {
		why = "the capture does not tell which ops waited"
	}
	text := fmt.Sprintf("How long a %s computes is not known well, as %s: at most %s, what they took less what they waited",
		o.per, why, took(o.ComputeRange.Most))
	if o.ComputeRange.Least > 0 {
		text += fmt.Sprintf("; at least %s, in which memory delivers the bytes",
			took(o.ComputeRange.Least))
	}
	return text + "."
}

func millisText(seconds float64) string { return tabular.Number(1000*seconds) + " ms" }

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
	if !c.hasDisk || !c.Outlook(meta, Compute{}).Short() {
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
