package main

// This file has the subcommand whatif: what other amounts of memory, or another disk, would be worth.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/stats"
	"tensorcast/pattern"
	"tensorcast/prefetch/plan"
	"tensorcast/report/gather"
	"tensorcast/sim/reuse"
	"tensorcast/sim/whatif"
	"tensorcast/trace/tables"
)

// missFile is LRU's byte miss-ratio curve.
const missFile = "miss_ratio"

// Choices of --ran.
const (
	ranPlain = "plain"
	ranPin   = "pin"
	ranAuto  = "auto"
)

// Choices of --blocks.
const (
	blocksFolios  = "folios"
	blocksExtents = "extents"
)

// folio is the size of the largest folios on x86-64, and of arm64 with pages of 4 KiB; leastBlock is that of the smallest blocks.
const (
	folio      = 2 << 20
	leastBlock = 64 << 10
)

type whatifOptions struct {
	*options
	memory  []string
	disk    string
	touched string
	ahead   int // KiB
	compute time.Duration
	group   int
	blocks  string
	ran     string // the strategy of the capture
	format  string
	// of memory, disk and readahead:
	sizes     []amount
	bandwidth float64
	asTouched float64
	told      bool // readahead was
}

// amount is bytes, or a share of the working set.
type amount struct {
	bytes int64
	share float64
}

func whatifCommand(root *options) *cobra.Command {
	o := whatifOptions{options: root, group: 1, blocks: blocksFolios, ran: ranPlain, format: chart.Formats[0], memory: []string{"0.3", "0.5", "0.7", "0.85", "1"}}
	cmd := &cobra.Command{
		Use:   "whatif [flags]",
		Short: "Say what more memory, or another disk, would be worth",
		Long: `analyze whatif replays what generated tokens have read, in memories of other sizes, and says how many bytes a token
would read again from disk, and how many tokens per second that is: with LRU, with LRU and the kernel's readahead (plain),
with random replacement, with a part that is pinned, with a part pinned and the rest streamed ahead, with what prefetchd would
keep and stream (by its own plan; of a mixture of experts with --ran auto), alone or with --strategy pin, and by Belady's rule,
which knows the future and bounds the others.

It writes

  whatif.parquet, whatif.csv    a row for each amount of memory and strategy
  miss_ratio.parquet, .csv      LRU's byte miss-ratio curve: from each size on, which share of the bytes is missed
  whatif.png, miss_ratio.png    tokens per second, and that share, against memory (--format for others)

Memory is what the model's pages have, beside all else, and prefetchd, if there is one. What a fault costs beside its bytes is
in these figures if the capture is of a run whose memory was short: its tokens tell how fast bytes come that are read as they
are touched. To record reads from disk slows these down: --detail op is enough, with --compute. What the target reads beside
prefetchd --strategy pin comes faster, as the kernel need not free memory for it: a capture of such a run tells (--ran pin).

Exit status: 0 done; 1 failed; 2 the command line is wrong.`,
		Example: `  sudo tracer --detail op+io -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  analyze whatif --ram 8GB,12GB,0.85                           # sizes, or shares of the working set
  analyze whatif --disk 7GB/s --tokens-per-step 4              # with speculative decoding
  analyze whatif --disk 500MB/s --json | jq '.rows[] | [.share, .results[4].tokens_per_second]'`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return askWhatIf(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&o.memory, "ram", o.memory, "memory for the model, `sizes` such as 8GB, or shares of the working set such as 0.85")
	f.StringVar(&o.disk, "disk", "", "what the disk reads, `bytes` per second, such as 1.4GB/s (default: as tracer has measured it)")
	f.StringVar(&o.touched, "touched", "", "what comes from disk if it is read as it is touched, `bytes` per second (default: as the capture's tokens had it, if they read\nfrom disk, else as --disk)")
	f.IntVar(&o.ahead, "readahead", 0, "the disk's read_ahead_kb, `KiB` (default: as it was when tracer looked, else 128)")
	f.DurationVar(&o.compute, "compute", 0, "`time` that a token computes (default: as the capture has it)")
	f.IntVar(&o.group, "tokens-per-step", 1, "`n` tokens (or steps, if the capture's have several tokens) are computed together, and read what they share once: speculative\ndecoding, or a batch")
	cli.EnumVar(cmd, &o.blocks, "blocks", "", []string{blocksFolios, blocksExtents}, "memory is counted in folios of 2 MiB (less for small experts), or in extents: tensors, rows and experts as they lie")
	cli.EnumVar(cmd, &o.ran, "ran", "", []string{ranPlain, ranPin, ranAuto}, "what the capture is of: a target by itself, or with prefetchd --strategy pin, or (of a mixture of experts) with prefetchd as it\nis. It tells which bytes its tokens waited for, and so how fast these come")
	cli.EnumVar(cmd, &o.format, "format", "", chart.Formats, "of the figure")
	return cmd
}

// check says what is wrong with the flags.
func (o *whatifOptions) check(cmd *cobra.Command) error {
	if err := o.options.check(cmd); err != nil {
		return err
	}
	const mostTokens = 1024
	if o.group < 1 || o.group > mostTokens {
		return cli.Usagef("--tokens-per-step is %d, want 1 to %d", o.group, mostTokens)
	}
	if o.ahead < 0 || o.ahead > 1<<20 {
		return cli.Usagef("--readahead is %d, want 0 to %d KiB", o.ahead, 1<<20)
	}
	if o.compute < 0 || o.compute == 0 && cmd.Flags().Changed("compute") || o.compute > time.Hour {
		return cli.Usagef("--compute is %v, want more than 0, and at most an hour", o.compute)
	}
	for _, f := range []struct {
		name, text string
		to         *float64
	}{{"disk", o.disk, &o.bandwidth}, {"touched", o.touched, &o.asTouched}} {
		if f.text == "" && !cmd.Flags().Changed(f.name) {
			continue
		}
		n, err := humanize.ParseBytes(strings.TrimSuffix(f.text, "/s"))
		if err != nil || n == 0 || n > 1<<50 {
			return cli.Usagef("--%s %q: want bytes per second, such as 1.4GB/s", f.name, f.text)
		}
		*f.to = float64(n)
	}
	o.told = cmd.Flags().Changed("readahead")
	o.sizes = nil
	for _, text := range o.memory {
		if share, err := strconv.ParseFloat(text, 64); err == nil && share > 0 && share <= 16 {
			o.sizes = append(o.sizes, amount{share: share})
			continue
		}
		n, err := humanize.ParseBytes(text)
		if err != nil || n <= 16 || n > 1<<50 {
			return cli.Usagef("--ram %q: want sizes such as 8GB, or shares of the working set such as 0.85", text)
		}
		o.sizes = append(o.sizes, amount{bytes: int64(n)})
	}
	if len(o.sizes) == 0 {
		return cli.Usagef("--ram names no size")
	}
	return nil
}

func askWhatIf(ctx context.Context, o *whatifOptions, stdout, stderr io.Writer) error {
	in, err := load(ctx, o.options, stderr)
	if err != nil {
		return err
	}
	if d := in.capture.Meta.Disk; o.bandwidth == 0 && (d == nil || d.BytesPerSecond <= 0) {
		return fmt.Errorf("%s does not tell what the disk reads: say it, such as --disk 1.4GB/s; tracer (without --no-probe) measures it, and so does `lab pressure`", o.capture)
	}
	st := &study{in: in}
	if err := st.collect(ctx); err != nil { // chooses the context, and says so
		return err
	}
	outlook := st.sums.Outlook(in.capture.Meta, 0)
	if o.ran == ranAuto && !outlook.Routed() {
		return cli.Usagef("--ran auto is for mixtures of experts: a dense model's tokens touch nothing that was not read for them")
	}
	if o.bandwidth == 0 {
		o.bandwidth = outlook.Bandwidth
	}
	batch := max(int(outlook.TokensPerStep), 1) // tokens that each step of the capture generates
	r, err := in.replayed(ctx, st.pattern, o, int32(batch))
	if err != nil {
		return err
	}
	c := whatif.Config{Sequence: r.sequence, From: r.from, Compute: o.compute * time.Duration(batch), Bandwidth: o.bandwidth, Touched: o.asTouched, TokensPerStep: o.group * batch}
	from := "as --compute says"
	if least := st.sums.Compute(); c.Compute == 0 && outlook.Short() && least > 0 {
		c.Compute, from = least, "the sum over the ops, each at its fastest, or at its kind's"
	}
	if c.Compute == 0 {
		if c.Compute, from, err = r.compute(); err != nil {
			return fmt.Errorf("%s: %w: say how long a token computes with --compute", o.capture, err)
		}
	}
	c.Readahead = int64(o.ahead) << 10
	if d := in.capture.Meta.Disk; !o.told {
		const usual = 128 // Linux's default
		c.Readahead = usual << 10
		if d != nil && d.ReadaheadKiB > 0 {
			c.Readahead = int64(d.ReadaheadKiB) << 10
		}
	}
	if cycle := in.cycle(st.pattern); cycle != nil {
		c.Pinned = func(memory int64) whatif.Pinned {
			f := plan.Foresee(cycle, plan.Pin{}, memory, c.Compute, c.Bandwidth)
			p := whatif.Pinned{Rest: f.Room}
			for _, r := range f.Held {
				p.Rest -= r.Length
				p.Kept = append(p.Kept, reuse.Extent{File: int32(r.File), Offset: r.Offset, Bytes: r.Length})
			}
			return p
		}
		if c.Chosen = outlook.Routed() && o.ran == ranAuto; !outlook.Routed() {
			c.Helped = func(memory int64) (float64, time.Duration) {
				f := plan.Foresee(cycle, plan.Auto{}, memory, c.Compute, c.Bandwidth)
				return float64(f.Missed), f.Token
			}
		}
	}
	touchedFrom := "as --touched says"
	if c.Touched == 0 {
		c.Touched, touchedFrom = c.Bandwidth, "as the disk reads: this capture's tokens did not wait for it"
		if rate, from := o.calibrate(&c, r, in.capture.Meta.Memory, outlook); rate > 0 && rate < c.Bandwidth {
			c.Touched, touchedFrom = rate, from
		}
	}
	c.Compute *= time.Duration(o.group)
	var memory []int64
	for _, a := range o.sizes {
		if a.share > 0 {
			a.bytes = int64(math.Round(a.share * float64(r.sequence.WorkingSet())))
		}
		memory = append(memory, a.bytes)
	}
	answer, err := c.Ask(memory, ctx.Err)
	if err != nil {
		return in.reading(err)
	}
	answer.ComputeFrom, answer.TouchedFrom, answer.Blocks = from, touchedFrom, o.blocks
	files := slices.Concat(tableFiles("whatif", answer.Columns()), figureFiles("whatif", st.captioned(answer.Figure()), o.format), tableFiles(missFile, answer.CurveColumns()), figureFiles(missFile, st.captioned(answer.MissFigure()), o.format))
	written, err := writeAll(ctx, o.output, files)
	if err != nil {
		return err
	}
	if o.json {
		return cli.WriteJSON(stdout, struct {
			*whatif.Answer
			Warnings []string `json:"warnings"`
			Files    []string `json:"files"`
		}{answer, in.warnings, written})
	}
	return append(answer.Document(), wrote(written)).WriteText(stdout)
}

// calibrate is how many bytes per second came from disk as the capture's tokens touched them, and by what that is known: the bytes that would be missed in the memory that they had, by the same rules as in others, in the
// time that they did not compute. So what these rules count too few or too many of is in the rate, and most of that cancels out. Where the limit is not known the bytes are those that were observed. 0: it is not known.
func (o *whatifOptions) calibrate(c *whatif.Config, r *replayed, m *tables.Memory, outlook *gather.Outlook) (perSecond float64, from string) {
	waited := stats.Median(r.whole) - c.Compute.Seconds()
	if m == nil || m.LimitBytes <= 0 || len(r.whole) == 0 || waited <= 0 || o.group > 1 {
		return outlook.Touched(c.Compute), "as this capture's tokens had it"
	}
	strategy := map[string]string{ranPlain: whatif.Plain, ranPin: whatif.Pin, ranAuto: whatif.Auto}[o.ran]
	missed := c.Misses(strategy, m.LimitBytes-m.OtherBytes)
	const little = 0.01 // of what a token reads: then it waited for something else
	if missed < little*c.Sequence.PerStep(c.From) {
		return 0, ""
	}
	return missed / waited, fmt.Sprintf("as this capture's tokens had it: with %.0f MiB for the model %.0f are missed (%s)", float64(m.LimitBytes-m.OtherBytes)/(1<<20), missed/(1<<20), strategy)
}

// replayed is what generated tokens read.
type replayed struct {
	sequence *reuse.Sequence
	from     int
	times    []float64 // seconds of each generated step, without waiting for the disk as far as that was observed
	whole    []float64 // the same, with waiting, but for the first
	stalls   bool      // it was
}

// compute is how long a token computes, and where that is from.
func (r *replayed) compute() (time.Duration, string, error) {
	if len(r.times) == 0 {
		return 0, "", errors.New("no step's end was observed")
	}
	from := "the median of the capture's steps, without their waiting for the disk"
	if !r.stalls {
		from = "the median of the capture's steps, with their waiting for the disk, which tracer --detail op+io tells apart"
	}
	return time.Duration(stats.Median(r.times) * 1e9), from, nil
}

// replayed reads what the analysed context's steps have read. One at a time, prompt and warm-up fill the memory, and so does the first generated token; of groups, the first group does. Times are those of the steps of so many tokens.
func (in *loaded) replayed(ctx context.Context, p *pattern.Pattern, o *whatifOptions, batch int32) (*replayed, error) {
	model := in.capture.Meta.Models
	numbers := map[string]int32{}
	var sizes []int64
	if int(p.Model) < len(model) {
		for _, f := range model[p.Model].Files {
			numbers[f.Name] = int32(len(sizes))
			sizes = append(sizes, f.Bytes)
		}
	}
	number := func(name string) int32 {
		n, ok := numbers[name]
		if !ok {
			n = int32(len(sizes))
			numbers[name] = n
			sizes = append(sizes, math.MaxInt64)
		}
		return n
	}
	granule := granule(in.capture.Structure, p.Model)
	if o.blocks == blocksExtents {
		granule = 0
	}
	for _, s := range in.capture.Structure {
		if s.Model == p.Model {
			number(s.File)
		}
	}
	r := &replayed{sequence: reuse.New(granule, sizes, o.group)}
	begun, stall := int32(-1), map[int32]int64{}
	rows, done := in.accesses(ctx)
	defer done()
	for a, err := range rows {
		if err != nil {
			return nil, in.reading(err)
		}
		generation := a.Phase == tables.PhaseGeneration
		if a.Context != p.Context || o.group > 1 && !generation {
			continue
		}
		if a.Step != begun {
			if begun = a.Step; !generation {
				r.from++
			}
			r.sequence.Step()
		}
		if a.Stall > 0 {
			stall[a.Step] += a.Stall
		}
		r.stalls = r.stalls || a.Stall != tables.NotObserved
		if err := eachExtent(a, in.capture.Structure, func(file string, offset, bytes int64) error { return r.sequence.Read(number(file), offset, bytes) }); err != nil {
			return nil, in.reading(err)
		}
	}
	r.from++
	for s, err := range in.capture.Steps() {
		if err != nil {
			return nil, in.reading(err)
		}
		if s.Context == p.Context && s.Phase == tables.PhaseGeneration && s.End != tables.NotObserved && s.End > s.Begin && max(s.Tokens, 1) == batch {
			if len(r.times) > 0 {
				r.whole = append(r.whole, float64(s.End-s.Begin)/1e9)
			}
			r.times = append(r.times, max(float64(s.End-s.Begin-stall[s.Step]), 0)/1e9)
		}
	}
	return r, nil
}

// granule is the size of a block: a folio, but at most a quarter of an expert, which would be counted with its neighbours else.
func granule(structure []tables.StructureRow, model int32) int64 {
	size := int64(folio)
	for _, s := range structure {
		for s.Model == model && s.ExpertStride > 0 && size > s.ExpertStride/4 && size > leastBlock {
			size /= 2
		}
	}
	return size
}

// eachExtent tells what an access read: the chosen experts' slices, or so many bytes from where it begins. Of several rows that were gathered only the tensor is known: their bytes are taken from its beginning.
func eachExtent(a *tables.Access, structure []tables.StructureRow, read func(file string, offset, bytes int64) error) error {
	if a.Tensor < 0 || int(a.Tensor) >= len(structure) {
		return nil
	}
	s := &structure[a.Tensor]
	if len(a.Experts) == 0 || s.ExpertStride <= 0 {
		return read(s.File, a.Offset, a.Bytes)
	}
	each := min(a.Bytes/int64(len(a.Experts)), s.ExpertStride)
	for _, e := range a.Experts {
		if e < 0 || e >= s.Experts {
			return fmt.Errorf("expert %d of %s, which has %d", e, s.Name, s.Experts)
		}
		if err := read(s.File, s.Offset+int64(e)*s.ExpertStride, each); err != nil {
			return err
		}
	}
	return nil
}
