package main

// This file implements "lab fabric", which runs llama.cpp with and without the emulated device. See package offload.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/offload"
	"tensorcast/experiments/results"
	"tensorcast/fabric/device"
	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/outfile"
)

type fabricOptions struct {
	offload.Config
	output
	device device.Options
	figure string
}

func fabricCommand() *cobra.Command {
	var o fabricOptions
	pool := int64(4 << 30)
	cmd := &cobra.Command{
		Use:   "fabric -m model.gguf [flags]",
		Short: "Compare llama.cpp with and without the emulated device",
		Long: `Fabric compares llama.cpp with and without the emulated device, which multiplies with ternary weights. A real
llama.cpp generates the same text both ways, in turns. The report has tokens per second, ratios within turns
with a confidence range of 95 %, and how many tokens are the same.

There are three variants: the CPU with llama.cpp's default number of threads, the device with one thread of
llama.cpp, and the device with the default number. The speed of a variant is that of all its sequences
together. "device idle" is the share of its time in which the device computed no product.

A batch is a number of sequences that are decoded together. With several batches, the variants are the CPU and
the device for each batch, both with the default number of threads. It is the same with --guess. There, tokens
are guessed from what followed the last two tokens before. They are decoded together with the next token, and
kept as far as the model chooses them. With --streams several contexts are decoded at the same time, each with
a batch of its own. Then the device computes products of one context while the host does its part of another
context's layer.

The device runs in this process. It computes weights of the types that it is faster with (Q2_0, TQ1_0). With
--profile it computes all types that it can.

Exit codes: 0 measured, whatever came out; 1 not measured, or interrupted; 2 wrong usage.`,
		Example: `  lab synth -o model.gguf --size 1GB --type Q2_0
  lab fabric -m model.gguf --turns 7 --figure fabric.png
  lab fabric -m model.gguf --prompt 256 --tokens 2 --markdown --save prompt.json
  lab fabric -m q8_0.gguf --profile fast
  lab fabric -m model.gguf --batch 1,2,4,8 --turns 3
  lab fabric -m model.gguf --batch 1,2,4 --streams 1,2 --turns 3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch err := o.Check(); {
			case o.Model == "":
				return cli.Usagef("-m: want a model")
			case err != nil:
				return cli.Usage(err)
			case o.figure != "" && !slices.Contains(chart.Formats, chart.FormatOf(o.figure)):
				return cli.Usagef("--figure %s: want the extension %s", o.figure, cli.OneOf(chart.Formats))
			case pool < 1<<20 || pool > 1<<45:
				return cli.Usagef("--pool: between 1 MiB and 32 TiB")
			}
			o.device.PoolBytes = int(pool)
			return o.measure(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.Model, "model", "m", "", "the model, a GGUF `file`")
	f.IntVar(&o.Turns, "turns", 7, "number of turns, each with a run of every variant")
	f.IntVarP(&o.Tokens, "tokens", "n", 24, "tokens to generate")
	f.IntSliceVar(&o.Batches, "batch", []int{1},
		"`NUMBERS` of sequences that are decoded together, such as 1,2,4,8. Each batch is compared with the CPU's "+
			"and with the first")
	f.IntSliceVar(&o.Streams, "streams", []int{1},
		"`NUMBERS` of contexts that are decoded at the same time, each with such a batch, such as 1,2,4. They are compared "+
			"in the same way")
	f.IntVar(&o.Guess, "guess", 0,
		"also decode one sequence with up to `K` guessed tokens at a time, and say how many were right (default: 0)")
	f.IntVar(&o.Prompt, "prompt", 8, "the approximate length of the prompt in tokens")
	f.StringVar(&o.Backend, "backend", "", "the `file` libggml-tfmbs.so (default: the one beside this program)")
	f.StringVar(&o.Profile, "profile", "",
		"let the device compute all types by this `profile`: accurate has exact planes, balanced and fast fitted ones with an "+
			"error (default: only the types that it is faster with)")
	cli.SizeVar(f, &pool, "pool", "`SIZE` of the device's memory for weights")
	f.IntVar(&o.device.Workers, "workers", 0, "multiply in `N` threads of the device (default: one for each processor)")
	f.StringVar(&o.figure, "figure", "", "draw each turn to a PNG, SVG or PDF `file`")
	o.add(f, results.Fabric, "all figures", "tables")
	return cmd
}

func (o *fabricOptions) measure(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if o.Backend == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the backend: %w", err)
		}
		o.Backend = filepath.Join(filepath.Dir(self), "libggml-tfmbs.so")
	}
	for _, path := range []string{o.Model, o.Backend} {
		if _, err := os.Stat(path); err != nil {
			return err
		}
	}
	in, err := llama.Install(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lab-fabric-") // only this user can enter it
	if err != nil {
		return fmt.Errorf("make a place for the device's socket: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.Socket = filepath.Join(dir, "s")
	d, err := device.Listen(o.Socket, o.device)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- d.Serve(serving) }() // ended by stop
	defer func() {
		stop()
		err = errors.Join(err, <-served, d.Close())
	}()
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, What: "runs"})
	defer bar.Close()
	r, err := offload.Compare(ctx, in, o.Config, func(done, total int) { bar.Update(int64(done), int64(total), "") })
	bar.Close()
	if len(r.Runs) == 0 {
		return err
	}
	if o.figure != "" {
		err = errors.Join(err, outfile.Write(o.figure,
			func(w io.Writer) error { return r.WriteFigure(w, chart.FormatOf(o.figure)) }))
	}
	return errors.Join(err, o.print(stdout, r))
}
