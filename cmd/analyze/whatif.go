package main

// This file has the subcommand whatif: what other amounts of memory, or another disk, would be worth.

import (
	"context"
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
	"tensorcast/internal/sizes"
	"tensorcast/internal/tabular"
	"tensorcast/moe/replay"
	"tensorcast/prefetch/plan"
	"tensorcast/report/gather"
	"tensorcast/sim/reuse"
	"tensorcast/sim/whatif"
	"tensorcast/trace/tables"
)

// maxBatches is how many numbers --batch takes: each is a panel of the figure, and reads the capture again.
const maxBatches = 8

// missFile is the file of LRU's byte miss-ratio curve, without its format.
const missFile = "miss_ratio"

// Values of --ran.
const (
	ranPlain = "plain"
	ranPin   = "pin"
	ranAuto  = "auto"
)

// Values of --blocks.
const (
	blocksFolios  = "folios"
	blocksExtents = "extents"
)

// whatifOptions are the flags.
type whatifOptions struct {
	*options

	// As they were typed.
	memory  []string
	disk    string
	touched string
	ahead   int // KiB
	compute time.Duration
	batches []int // numbers of tokens that are computed together
	blocks  string
	ran     string // what the capture is of
	format  string

	// What check makes of them; 0 where the flag was not given.
	sizes        []amount
	bandwidth    float64 // bytes per second that the disk reads
	touchedRate  float64 // bytes per second that come from disk when they are read as they are touched
	hasReadahead bool    // --readahead was given
}

// amount is bytes, or a share of the working set.
type amount struct {
	bytes int64
	share float64
}

func whatifCommand(root *options) *cobra.Command {
	o := whatifOptions{
		options: root, batches: []int{1}, blocks: blocksFolios, ran: ranPlain, format: chart.Formats[0],
		memory: []string{"0.3", "0.5", "0.7", "0.85", "1"},
	}
	cmd := &cobra.Command{
		Use:   "whatif [flags]",
		Short: "Say what more memory, or another disk, would be worth",
		Long: `analyze whatif says how fast a token would be with other amounts of memory, or with another disk. It replays what
generated tokens have read. It says how many bytes a token would read from disk, and how many tokens per second that
would give. It does so for each of these rules:

  LRU             what was used longest ago is dropped
  plain           as LRU, but each miss also reads what the kernel reads around it. That is llama.cpp alone
  random          what is dropped is chosen at random
  pin             a part is kept, and the rest is read when it is touched
  pin + stream    a part is kept, and the rest is read ahead of its use
  prefetchd       what prefetchd would keep and stream by its own plan, and what with --strategy pin
  Belady          the rule knows the future, so no other can be better

For a mixture of experts it first says what memory for experts would gain, as analyze moe does. What prefetchd would
have to read for missing experts follows from the tokens' choices, which are replayed by its own rule. These bytes come
at the disk's rate. With --ran auto they come at the rate at which the capture's tokens had them.

It writes

  whatif.parquet, whatif.csv    a row for each amount of memory and each rule
  miss_ratio.parquet, .csv      LRU's miss-ratio curve: with each amount of memory, which share of the bytes is missed
  whatif.png, miss_ratio.png    tokens per second, and that share, against memory (--format takes other formats)

With --batch it computes this for several tokens in a pass through the model. They are tokens of several slots of a
server, or guesses of a draft model that were all accepted. Such tokens read what they share only once. So where the
disk is what is slow, a pass with several tokens takes as long as a pass with one. Each of them is taken to compute as
long as a single token, so a pass cannot take longer than what is computed here.

Memory is what is left for the model's pages and for prefetchd when all else has its part. Some rules read bytes only
when the bytes are touched. How fast these bytes come is taken from the capture's tokens, if memory was short in that
run. But recording reads from disk makes them slower. So a capture with --detail op is better there, together with
--compute. Beside prefetchd --strategy pin the target's reads are faster, because the kernel need not free memory for
them. A capture of such a run tells how fast they are (--ran pin).

Exit status: 0 done; 1 failed; 2 the command line is wrong.`,
		Example: `  sudo tracer --detail op+io -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  analyze whatif --ram 8GB,12GB,0.85                           # sizes, or shares of all that tokens read
  analyze whatif --disk 7GB/s --batch 1,2,4,8                  # parallel slots, or guesses that were accepted
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
	f.StringSliceVar(&o.memory, "ram", o.memory,
		"amounts of memory for the model, with commas: `sizes` such as 8GB, or shares of the working set such as 0.85. "+
			"The working set is all that the capture's tokens read")
	f.StringVar(&o.disk, "disk", "",
		"`bytes` per second that the disk reads, such as 1.4GB/s (default: what tracer has measured)")
	f.StringVar(&o.touched, "touched", "",
		"`bytes` per second that come from disk where they are read only when they are touched (default: what the "+
			"capture's tokens had, if they read from disk, else as --disk)")
	f.IntVar(&o.ahead, "readahead", 0,
		"the disk's readahead (read_ahead_kb) in `KiB` (default: what it was when tracer looked, else 128)")
	f.DurationVar(&o.compute, "compute", 0, "`time` that a token computes, such as 40ms (default: what the capture has)")
	f.IntSliceVar(&o.batches, "batch", o.batches,
		"`numbers` of tokens in a pass, such as 1,2,4,8. They are parallel slots, or guesses that were accepted. If the "+
			"capture's steps have several tokens, these are numbers of steps")
	cli.EnumVar(cmd, &o.blocks, "blocks", "", []string{blocksFolios, blocksExtents},
		"in which units memory is counted: folios are 2 MiB, or less for small experts, and extents are tensors, rows "+
			"and experts as they lie in the file")
	cli.EnumVar(cmd, &o.ran, "ran", "", []string{ranPlain, ranPin, ranAuto},
		"how the target of the capture ran: plain is by itself, pin is with prefetchd --strategy pin, and auto is a "+
			"mixture of experts with prefetchd as it is. That decides which bytes its tokens waited for, and so how "+
			"fast these come")
	cli.EnumVar(cmd, &o.format, "format", "", chart.Formats, "format of the figure")
	return cmd
}

// check says what is wrong with the flags, and reads the sizes and rates in them.
func (o *whatifOptions) check(cmd *cobra.Command) error {
	if err := o.options.check(cmd); err != nil {
		return err
	}
	const mostTokens = 1024
	for i, n := range o.batches {
		if n < 1 || n > mostTokens {
			return cli.Usagef("--batch names %d, want 1 to %d", n, mostTokens)
		}
		if slices.Contains(o.batches[:i], n) {
			return cli.Usagef("--batch names %d twice", n)
		}
	}
	if len(o.batches) == 0 || len(o.batches) > maxBatches {
		return cli.Usagef("--batch names %d numbers, want 1 to %d", len(o.batches), maxBatches)
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
	}{{"disk", o.disk, &o.bandwidth}, {"touched", o.touched, &o.touchedRate}} {
		if f.text == "" && !cmd.Flags().Changed(f.name) {
			continue
		}
		n, err := humanize.ParseBytes(strings.TrimSuffix(f.text, "/s"))
		if err != nil || n == 0 || n > 1<<50 {
			return cli.Usagef("--%s %q: want bytes per second, such as 1.4GB/s", f.name, f.text)
		}
		*f.to = float64(n)
	}
	o.hasReadahead = cmd.Flags().Changed("readahead")
	o.sizes = nil
	for _, text := range o.memory {
		if share, err := strconv.ParseFloat(text, 64); err == nil && share > 0 && share <= 16 {
			o.sizes = append(o.sizes, amount{share: share})
			continue
		}
		n, err := sizes.Parse(text)
		if err != nil || n > 1<<50 {
			return cli.Usagef("--ram %q: want sizes such as 8GB, or shares of the working set such as 0.85", text)
		}
		o.sizes = append(o.sizes, amount{bytes: n})
	}
	if len(o.sizes) == 0 {
		return cli.Usagef("--ram names no size")
	}
	return nil
}

// askWhatIf is the subcommand.
func askWhatIf(ctx context.Context, o *whatifOptions, stdout, stderr io.Writer) error {
	in, err := load(ctx, o.options, stderr)
	if err != nil {
		return err
	}
	if d := in.capture.Meta.Disk; o.bandwidth == 0 && (d == nil || d.BytesPerSecond <= 0) {
		return fmt.Errorf("%s does not tell what the disk reads: say it, such as --disk 1.4GB/s; "+
			"tracer (without --no-probe) measures it, and so does `lab pressure`", o.capture)
	}
	st := &study{in: in}
	if err := st.collect(ctx); err != nil { // chooses the context, and says so
		return err
	}
	outlook := st.sums.Outlook(in.capture.Meta, gather.Compute{})
	if o.ran == ranAuto && !outlook.Routed() {
		return cli.Usagef("--ran auto is for mixtures of experts: a dense model's tokens touch nothing that was " +
			"not read for them")
	}
	if o.bandwidth == 0 {
		o.bandwidth = outlook.Bandwidth
	}
	answers, locality, err := o.estimateAll(ctx, st, outlook)
	if err != nil {
		return err
	}
	files := slices.Concat(
		tableFiles("whatif", answers.Columns()),
		figureFiles("whatif", st.captioned(answers.Figure()), o.format),
		tableFiles(missFile, answers.CurveColumns()),
		figureFiles(missFile, st.captioned(answers.MissFigure()), o.format),
	)
	written, err := writeAll(ctx, o.output, files)
	if err != nil {
		return err
	}
	if o.json {
		return cli.WriteJSON(stdout, struct {
			*whatif.Answer                  // of the first batch
			Batches        whatif.Answers   `json:"batches"`
			Locality       *replay.Locality `json:"locality"` // of a mixture of experts, else null
			Warnings       []string         `json:"warnings"`
			Files          []string         `json:"files"`
		}{answers[0], answers, locality, in.warnings, written})
	}
	return slices.Concat(localityLines(locality), answers.Document(), tabular.Document{writtenLines(written)}).
		WriteText(stdout)
}

// estimateAll estimates for each batch. How fast bytes come as they are touched follows from the capture's own steps,
// and is the same for all batches.
func (o *whatifOptions) estimateAll(
	ctx context.Context, st *study, outlook *gather.Outlook,
) (answers whatif.Answers, locality *replay.Locality, err error) {
	var touched float64
	var touchedFrom string
	if o.batches[0] != 1 {
		_, one, from, err := o.configure(ctx, st, outlook, 1)
		if err != nil {
			return nil, nil, err
		}
		touched, touchedFrom = one.Touched, from.touched
	}
	for _, group := range o.batches {
		r, config, sources, err := o.configure(ctx, st, outlook, group)
		if err != nil {
			return nil, nil, err
		}
		if touched == 0 {
			touched, touchedFrom = config.Touched, sources.touched
		}
		config.Touched, sources.touched = touched, touchedFrom
		if sources.experts != nil && locality == nil {
			if locality, err = sources.experts.locality(config); err != nil {
				return nil, nil, err
			}
		}
		var memory []int64
		for _, a := range o.sizes {
			if a.share > 0 {
				a.bytes = int64(math.Round(a.share * float64(r.Sequence.WorkingSet())))
			}
			memory = append(memory, a.bytes)
		}
		answer, err := config.Estimate(memory, ctx.Err)
		if err != nil {
			if len(o.batches) > 1 {
				err = fmt.Errorf("--batch %d: %w", group, err)
			}
			return nil, nil, st.in.reading(err)
		}
		answer.ComputeFrom, answer.TouchedFrom, answer.Blocks = sources.compute, sources.touched, o.blocks
		answers = append(answers, answer)
	}
	return answers, locality, nil
}

// sources say how the figures of a configuration are known.
type sources struct {
	compute, touched string
	experts          *chosenExperts // nil of a dense model, and where a capture does not have its tokens' choices
}

// configure makes the configuration of a replay from the flags, and from the capture where flags were not given. group
// is how many of the capture's steps are computed together.
func (o *whatifOptions) configure(
	ctx context.Context, st *study, outlook *gather.Outlook, group int,
) (r *gather.Replay, c *whatif.Config, from sources, err error) {
	in := st.in
	// A step of the replay is one of the capture, or, where nothing was generated, a pass through the model.
	passes := st.pattern.Passes()
	batch := max(int(math.Round(outlook.TokensPerStep/float64(passes))), 1) // tokens of each step
	rows, done := in.accesses(ctx)
	r, err = gather.NewReplay(in.capture.Meta, in.capture.Structure, rows, in.capture.Steps(), gather.ReplayOptions{
		Context: st.pattern.Context, Model: st.pattern.Model,
		Phase: st.pattern.Phase, Passes: !st.pattern.Generates(),
		Group: group, Batch: int32(batch), Extents: o.blocks == blocksExtents,
	})
	done()
	if err != nil {
		return nil, nil, from, in.reading(err)
	}
	c = &whatif.Config{
		Sequence: r.Sequence, From: r.Fill, Compute: o.compute * time.Duration(batch),
		Bandwidth: o.bandwidth, Touched: o.touchedRate, TokensPerStep: group * batch,
		PerPass: !st.pattern.Generates(),
	}
	from.compute = "as --compute says"
	if told := st.compute(); c.Compute == 0 && outlook.Short() && told.Expected > 0 {
		c.Compute, from.compute = told.Expected/time.Duration(passes), told.Source()
	}
	if c.Compute == 0 {
		if c.Compute, from.compute, err = r.Compute(); err != nil {
			return nil, nil, from, fmt.Errorf("%s: %w: say how long a token computes with --compute", o.capture, err)
		}
	}
	c.Readahead = o.readahead(in.capture.Meta.Disk)
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
		if outlook.Routed() {
			if from.experts, err = newChosenExperts(ctx, st, cycle, group*batch); err != nil {
				return nil, nil, from, err
			}
			if c.Chosen = o.ran == ranAuto || from.experts != nil; from.experts != nil {
				c.ChosenMissed = from.experts.missed
			}
			if o.ran != ranAuto {
				c.ChosenRate = c.Bandwidth
			}
		} else {
			c.Helped = func(memory int64) (float64, time.Duration) {
				f := plan.ForeseeReached(cycle, memory, c.Compute, c.Bandwidth)
				return float64(f.Missed), f.Token
			}
		}
	}
	from.touched = "as --touched says"
	if c.Touched == 0 {
		c.Touched, from.touched = c.Bandwidth, "as the disk reads: this capture's tokens did not wait for it"
		if rate, source := o.calibrate(c, r, in.capture.Meta.Memory, outlook, passes); rate > 0 && rate < c.Bandwidth {
			c.Touched, from.touched = rate, source
		}
	}
	c.Compute *= time.Duration(group)
	return r, c, from, nil
}

// readahead is how many bytes the disk's readahead has: as the flag says, else as tracer saw it, else Linux's default.
func (o *whatifOptions) readahead(d *tables.Disk) int64 {
	const usualKiB = 128
	switch {
	case o.hasReadahead:
		return int64(o.ahead) << 10
	case d != nil && d.ReadaheadKiB > 0:
		return int64(d.ReadaheadKiB) << 10
	}
	return usualKiB << 10
}

// calibrate is how many bytes per second came from disk as the capture's tokens touched them, and how that is known.
// The bytes are those that would be missed in the memory that the tokens had, by the same rules as in other memory. The
// time is that in which they did not compute. So what these rules count too few or too many of is in the rate, and most
// of that cancels out. Where the limit of memory is not known, the bytes are those that were observed. The rate is 0 if
// it is not known.
func (o *whatifOptions) calibrate(
	c *whatif.Config, r *gather.Replay, m *tables.Memory, outlook *gather.Outlook, passes int,
) (perSecond float64, source string) {
	waited, known := r.Waited(c.Compute)
	if m == nil || m.LimitBytes <= 0 || !known || c.Sequence.Group() > 1 {
		return outlook.TouchedRate(c.Compute * time.Duration(passes)), "as this capture's tokens had it"
	}
	strategy := map[string]string{ranPlain: whatif.Plain, ranPin: whatif.Pin, ranAuto: whatif.Auto}[o.ran]
	memory := m.LimitBytes - m.OtherBytes
	missed := c.Misses(strategy, memory)
	const little = 0.01 // share of what a token reads; if less is missed, the token waited for something else
	if missed < little*c.Sequence.PerStep(c.From) {
		return 0, ""
	}
	const mib = 1 << 20
	return missed / waited,
		fmt.Sprintf("as this capture's tokens had it: with %.0f MiB for the model %.0f are missed (%s)",
			float64(memory)/mib, missed/mib, strategy)
}
