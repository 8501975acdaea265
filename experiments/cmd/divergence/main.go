// Command divergence measures how far models are from a reference model in what they predict. See package divergence.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tensorcast/experiments/divergence"
	"tensorcast/experiments/llama"
	"tensorcast/internal/outfile"
)

type options struct {
	divergence.Config
	candidates []string
	bytes      []string
	json       string
	markdown   bool
	quiet      bool
}

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
		Use:   "divergence -m reference.gguf --candidate NAME=model.gguf --text FILE [flags]",
		Short: "Measure how far models are from a reference in what they predict",
		Long: `Divergence runs a reference model and other ones over the same texts in a real llama.cpp (which is installed if it is not) and compares
their distributions of the next token, pair by pair: the mean of KL(reference || model) with its standard error, its 99 % quantile and maximum,
how often the likeliest token is the same, and both perplexities.

Texts are cut and scored as llama-perplexity does: chunks of -c tokens, of which the second half is scored.

By default each llama.cpp has one thread and as many run at once as there are CPUs. While it runs, the reference's logits are kept in
a directory for temporary files (TMPDIR): for each text about 2 bytes per token of it and token of the vocabulary. --limit bounds that.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  divergence -m f16.gguf --candidate q8=q8_0.gguf --candidate q4=q4_k_m.gguf --text prose.txt --text tech.txt
  divergence -m 7b-q8_0.gguf --candidate fast=7b-fast-f32.gguf --bytes fast=0.41 --text wiki.txt -c 512 --limit 20 -t 8 -j 1
  divergence -m f16.gguf --candidate q4=q4_k_m.gguf --text prose.txt --json -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q (a model goes after --candidate NAME=, a text after --text)", args[0])
			}
			return nil
		},
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
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
	f.SortFlags = false
	f.StringVarP(&o.Reference, "model", "m", "", "the reference, a GGUF `file`")
	f.StringArrayVar(&o.candidates, "candidate", nil, "a model to compare, `NAME=FILE`; give it several times")
	f.StringArrayVar(&o.bytes, "bytes", nil, "`NAME=N`: the candidate takes N bytes per weight where it is used (default: what it takes in its file)")
	f.StringArrayVar(&o.Texts, "text", nil, "a text `file`; give it several times")
	f.IntVarP(&o.Context, "ctx", "c", 256, "tokens of a chunk")
	f.IntVar(&o.Chunks, "limit", 0, "no more chunks of each text than this; 0 for all")
	f.IntVarP(&o.Threads, "threads", "t", 1, "threads of each llama.cpp")
	f.IntVarP(&o.Parallel, "parallel", "j", 0, "llama.cpps that run at once; 0 for as many as the CPUs have threads for")
	f.StringVar(&o.json, "json", "", "write the rows to this `file` as JSON; - is standard output, instead of the table")
	f.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")

	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "divergence:", err)
		if usage {
			return 2
		}
		return 1
	}
	return 0
}

// complete checks and translates what the flags say.
func (o *options) complete() error {
	switch {
	case o.Reference == "":
		return errors.New("no reference: give -m reference.gguf")
	case len(o.candidates) == 0:
		return errors.New("nothing to compare: give --candidate NAME=model.gguf")
	case len(o.Texts) == 0:
		return errors.New("no text: give --text FILE")
	}
	for _, n := range []struct {
		flag       string
		value, min int
	}{{"ctx", o.Context, 4}, {"limit", o.Chunks, 0}, {"threads", o.Threads, 1}, {"parallel", o.Parallel, 0}} {
		if n.value < n.min {
			return fmt.Errorf("--%s %d: want %d or more", n.flag, n.value, n.min)
		}
	}
	at := map[string]int{}
	for _, text := range o.candidates {
		name, path, ok := strings.Cut(text, "=")
		if _, known := at[name]; !ok || name == "" || path == "" || known {
			return fmt.Errorf("--candidate %q: want a name of its own and a file, as in q4=q4_k_m.gguf", text)
		}
		at[name] = len(o.Candidates)
		o.Candidates = append(o.Candidates, divergence.Candidate{Name: name, Path: path})
	}
	for _, text := range o.bytes {
		name, number, _ := strings.Cut(text, "=")
		i, known := at[name]
		if !known {
			return fmt.Errorf("--bytes %q: no candidate has the name %q", text, name)
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || !(n > 0 && n <= 16) {
			return fmt.Errorf("--bytes %q: want bytes per weight, as in fast=0.41", text)
		}
		o.Candidates[i].BytesPerWeight = n
	}
	return nil
}

func (o *options) measure(ctx context.Context, stdout, stderr io.Writer) error {
	in, err := llama.Install(ctx)
	if err != nil {
		return err
	}
	if file, ok := stderr.(*os.File); ok && !o.quiet && term.IsTerminal(int(file.Fd())) {
		bar := progressbar.NewOptions(1, progressbar.OptionSetWriter(stderr), progressbar.OptionSetWidth(20), progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetDescription("runs"), progressbar.OptionSetElapsedTime(true))
		defer func() { _ = bar.Finish() }() // a terminal that is gone is not the measurement's failure
		o.Progress = func(done, total int) {
			bar.ChangeMax(total)
			_ = bar.Set(done)
		}
	}
	report, err := divergence.Compare(ctx, in, o.Config)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
		return err
	}
	return o.print(report, stdout)
}

func (o *options) print(r *divergence.Report, stdout io.Writer) error {
	if o.json != "" {
		data, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			return err
		}
		data = append(data, '\n')
		if o.json == "-" {
			_, err := stdout.Write(data)
			return err
		}
		if err := outfile.Write(o.json, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
			return err
		}
	}
	if o.markdown {
		return r.WriteMarkdown(stdout)
	}
	return r.WriteText(stdout)
}
