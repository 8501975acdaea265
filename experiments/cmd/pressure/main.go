// Command pressure measures llama.cpp under a memory limit, with and without a helper.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/pressure"
	"tensorcast/internal/outfile"
)

type options struct {
	pressure.Config
	limit, weights string
	variants       []string
	noise          bool
	driver         llama.Options
	json           string
	markdown       bool
	quiet          bool
}

// traceTokens is enough to see that tokens read the same.
const traceTokens = 3

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	usage := true // until the flags are accepted, errors are the user's
	cmd := &cobra.Command{
		Use:   "pressure -m model.gguf (--x SHARE | --limit SIZE) [flags] [-- target...]",
		Short: "Measure llama.cpp under a memory limit, with and without a helper",
		Long: `Pressure runs a llama.cpp in a fresh memory control group with a limit, its model dropped from the page cache,
and reports its speed, what it read per token, and how that compares to the best that any strategy could reach.
Variants (with a helper, with other flags) take turns, A B B A. The limit counts the helper's memory too.

--x is the share of the weights that has room: limit = x * M + the target's own memory, where M (the weights that a token reads)
and the target's own memory are measured first, without a limit. So are the time to compute a token and the text.

--variant NAME[=HELPER][ :: FLAGS]: HELPER is a shell command that starts with the target and gets SIGTERM when that ends;
{pid} in it is the target's process id. FLAGS are more arguments for the target.

The target is llamarun (which is installed if it is not), or the command after --: it must print llamarun's JSON,
and write a byte to descriptor 3 when the prompt is decoded and after each token (llamarun --mark 3).

Needs root: it makes control groups, drops the page cache and traces. It needs a quiet machine.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  sudo pressure -m model.gguf --x 0.85 --variant plain --variant 'both=bin/prefetchd --pid {pid}'
  sudo pressure -m model.gguf --limit 1GB --noise --repeat 6          # plain against plain
  sudo pressure -m model.gguf --x 0.5 --readahead 128 --json runs.json --markdown`,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Target = args
			if err := o.complete(); err != nil {
				return err
			}
			usage = false
			return o.measure(cmd.Context(), stdout, stderr)
		},
	}
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	f := cmd.Flags()
	f.StringVarP(&o.Model, "model", "m", "", "the model, a GGUF `file` on a disk")
	f.Float64Var(&o.X, "x", 0, "the limit as a `share` of the weights that a token reads, beside the target's own memory")
	f.StringVar(&o.limit, "limit", "", "the limit as a `size`: 1GB, 800MiB")
	f.StringArrayVar(&o.variants, "variant", nil, "a variant `NAME[=HELPER][ :: FLAGS]`; give it several times (default plain)")
	f.BoolVar(&o.noise, "noise", false, "run the first variant twice, under two names: what differs is noise")
	f.IntVar(&o.Repeat, "repeat", 4, "runs of each variant")
	f.IntVar(&o.Readahead, "readahead", 0, "the disk's readahead in `KiB` for the series; restored afterwards (default: as it is)")
	f.StringVar(&o.weights, "weights", "", "the weights that a token reads, as a `size`, instead of tracing")
	f.IntVarP(&o.driver.Tokens, "tokens", "n", 32, "tokens to generate")
	f.IntVarP(&o.driver.Threads, "threads", "t", 2, "threads of the target")
	f.StringVarP(&o.driver.Prompt, "prompt", "p", "The page cache", "the prompt")
	f.StringVar(&o.json, "json", "", "write all runs to this `file` as JSON; - is standard output, instead of the table")
	f.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")

	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "pressure:", err)
		if usage {
			return 2
		}
		return 1
	}
	return 0
}

// complete checks and translates what the flags say.
func (o *options) complete() error {
	if o.Model == "" {
		return errors.New("no model: give -m model.gguf")
	}
	if (o.X != 0) == (o.limit != "") {
		return errors.New("give the limit: --x SHARE or --limit SIZE")
	}
	if o.X < 0 || math.IsNaN(o.X) || math.IsInf(o.X, 0) {
		return fmt.Errorf("--x %v: want a positive number", o.X)
	}
	for _, n := range []struct {
		flag       string
		value, min int
	}{{"repeat", o.Repeat, 1}, {"tokens", o.driver.Tokens, 1}, {"threads", o.driver.Threads, 1}, {"readahead", o.Readahead, 0}} {
		if n.value < n.min {
			return fmt.Errorf("--%s %d: want %d or more", n.flag, n.value, n.min)
		}
	}
	for _, size := range []struct {
		flag, text string
		to         *int64
	}{{"limit", o.limit, &o.Limit}, {"weights", o.weights, &o.Weights}} {
		if size.text == "" {
			continue
		}
		n, err := humanize.ParseBytes(size.text)
		if err != nil || n == 0 || n > math.MaxInt64 {
			return fmt.Errorf("--%s %s: want a size like 1GB or 800MiB", size.flag, size.text)
		}
		*size.to = int64(n)
	}
	if len(o.variants) == 0 {
		o.variants = []string{"plain"}
	}
	seen := map[string]bool{}
	for _, text := range o.variants {
		v := parseVariant(text)
		if v.Name == "" || seen[v.Name] {
			return fmt.Errorf("--variant %q: want a name of its own, as in plain or 'both=prefetchd --pid {pid}'", text)
		}
		seen[v.Name] = true
		o.Variants = append(o.Variants, v)
	}
	if o.noise {
		again := o.Variants[0]
		if again.Name += " again"; seen[again.Name] {
			return fmt.Errorf("--variant %q: --noise takes that name", again.Name)
		}
		o.Variants = append(o.Variants, again)
	}
	return nil
}

// parseVariant reads NAME[=HELPER][ :: FLAGS].
func parseVariant(text string) pressure.Variant {
	text, flags, _ := strings.Cut(text, " :: ")
	name, helper, _ := strings.Cut(text, "=")
	return pressure.Variant{Name: strings.TrimSpace(name), Helper: strings.TrimSpace(helper), Flags: strings.TrimSpace(flags)}
}

func (o *options) measure(ctx context.Context, stdout, stderr io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root, to make control groups, drop the page cache and trace: use sudo")
	}
	if len(o.Target) == 0 {
		in, err := llama.Install(ctx)
		if err != nil {
			return err
		}
		d := o.driver
		d.Model, d.NoRepack, d.Mark = o.Model, true, 3
		o.Target = in.Command(ctx, d).Args
		d.Tokens = traceTokens
		o.Trace = in.Command(ctx, d).Args
	}
	o.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if file, ok := stderr.(*os.File); ok && !o.quiet && term.IsTerminal(int(file.Fd())) {
		bar := progressbar.NewOptions(1, progressbar.OptionSetWriter(stderr), progressbar.OptionSetWidth(20), progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(true))
		defer func() { _ = bar.Finish() }() // a terminal that is gone is not the measurement's failure
		o.Progress = func(done, total int, what string) {
			bar.ChangeMax(total)
			bar.Describe(fmt.Sprintf("%-40.40s", what))
			_ = bar.Set(done)
		}
	}
	report, err := pressure.Measure(ctx, o.Config)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
		return err
	}
	return o.print(report, stdout)
}

func (o *options) print(r *pressure.Report, stdout io.Writer) error {
	if o.json == "-" {
		return writeJSON(stdout, r)
	}
	if o.json != "" {
		if err := outfile.Write(o.json, func(w io.Writer) error { return writeJSON(w, r) }); err != nil {
			return err
		}
	}
	if o.markdown {
		return r.WriteMarkdown(stdout)
	}
	return r.WriteText(stdout)
}

func writeJSON(w io.Writer, r *pressure.Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}
