package main

// This file implements "lab synth", which writes a GGUF model with random weights that a real llama.cpp loads and runs. See package synth.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/experiments/synth"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
)

// dimensions are the flags that --size replaces.
var dimensions = []string{"layers", "embd", "ff", "heads", "kv-heads"}

func synthCommand() *cobra.Command {
	var cfg synth.Config
	var out string
	var size int64
	typeName := "Q8_0"
	cmd := &cobra.Command{
		Use:   "synth -o MODEL [--size SIZE | --layers N --embd N --ff N --heads N]",
		Short: "Write a GGUF model with random weights that llama.cpp loads and runs",
		Long: `Synth writes a model of the llama architecture, dense or mixture of experts, with random weights and a
byte-level vocabulary. llama.cpp runs it like any other; its text is varied nonsense. The same flags give the same bytes.

Either --size chooses the dimensions, or --layers, --embd, --ff, --heads (and --kv-heads) give them.
The model appears under its name only when it is whole. A progress bar is drawn if stderr is a terminal.

Exit codes: 0 written, 1 failure (also when interrupted), 2 wrong usage or an impossible model.`,
		Example: `  lab synth -o model.gguf --size 1GB --type Q8_0 --seed 1
  lab synth -o moe.gguf --size 1.4GB --type Q8_0 --experts 32 --used 4
  lab synth -o small.gguf --layers 4 --embd 256 --ff 768 --heads 4 --type Q4_K
  lab synth -o - --size 20MB --type F16 | sha256sum`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q (the model's name goes after -o)", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return cli.Usagef("no output: say -o model.gguf, or -o - for stdout")
			}
			var err error
			if cfg.Type, err = synth.ParseType(typeName); err != nil {
				return cli.Usage(err)
			}
			if cfg, err = sized(cmd, cfg, size); err != nil {
				return cli.Usage(err)
			}
			plan, err := synth.NewPlan(cfg)
			if err != nil {
				return impossible(err)
			}
			return writeSynth(cmd.Context(), plan, out, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&out, "output", "o", "", "file to write; - for stdout")
	cli.SizeVar(f, &size, "size", "size of the file (1.2GB, 700MiB): chooses the dimensions")
	cli.EnumVar(cmd, &typeName, "type", "", []string{"F32", "F16", "Q8_0", "Q4_0", "Q4_K"}, "weight type")
	f.Uint64Var(&cfg.Seed, "seed", 1, "seed of all values")
	f.IntVar(&cfg.Experts, "experts", 0, "experts per layer; 0 makes a dense model")
	f.IntVar(&cfg.Used, "used", 0, "experts used per token")
	f.BoolVar(&cfg.Tied, "tied", false, "no output.weight: the token embeddings are used for the logits, too")
	f.IntVar(&cfg.Layers, "layers", 0, "layers")
	f.IntVar(&cfg.Embd, "embd", 0, "width of the model, a multiple of the type's block (Q4_K: 256, Q8_0 and Q4_0: 32)")
	f.IntVar(&cfg.FF, "ff", 0, "width of the feed-forward network (of each expert), a multiple of the type's block")
	f.IntVar(&cfg.Heads, "heads", 0, "attention heads")
	f.IntVar(&cfg.KVHeads, "kv-heads", 0, "key/value heads (default: as many as --heads)")
	f.IntVar(&cfg.Vocab, "vocab", synth.ByteVocab, "tokens")
	f.IntVar(&cfg.Ctx, "ctx", 4096, "context length to declare")
	return cmd
}

// sized sets cfg's dimensions from size, if size is given; the dimensions' flags must then not be given.
func sized(cmd *cobra.Command, cfg synth.Config, size int64) (synth.Config, error) {
	given := ""
	for _, name := range dimensions {
		if cmd.Flags().Changed(name) {
			given = name
		}
	}
	switch {
	case size == 0 && given == "":
		return cfg, errors.New("no dimensions: say --size, or --layers, --embd, --ff and --heads")
	case size == 0:
		if !cmd.Flags().Changed("kv-heads") {
			cfg.KVHeads = cfg.Heads
		}
		return cfg, nil
	case given != "":
		return cfg, fmt.Errorf("--size chooses the dimensions: leave out --%s, or --size", given)
	}
	return synth.Sized(size, cfg)
}

// impossible marks a *synth.ConfigError as an error of the command line.
func impossible(err error) error {
	var config *synth.ConfigError
	if errors.As(err, &config) {
		return cli.Usage(err)
	}
	return err
}

// writeSynth writes the model to the file out, or to stdout if out is "-". On a terminal it also describes the model.
func writeSynth(ctx context.Context, plan *synth.Plan, out string, stdout, stderr io.Writer) error {
	if out == "-" && cli.IsTerminal(stdout) {
		return cli.Usagef("stdout is a terminal: pipe the model somewhere, or name a file with -o")
	}
	bar := progress.New(stderr, progress.Options{What: filepath.Base(out), Bytes: true, Predict: true})
	defer bar.Close()
	moved := func(written int64) { bar.Update(written, plan.Size, "") }
	var err error
	if out == "-" {
		err = plan.Write(ctx, stdout, moved)
	} else {
		err = plan.WriteFile(ctx, out, moved)
	}
	bar.Close()
	if err != nil || !cli.IsTerminal(stderr) {
		return err
	}
	c := plan.Config
	kind := "dense"
	if c.Experts > 0 {
		kind = fmt.Sprintf("%d experts, %d used", c.Experts, c.Used)
	}
	_, err = fmt.Fprintf(stderr, "%s: %s, %v, %s: %d layers, width %d, feed-forward %d, %d heads (%d key/value)\n",
		out, humanize.Bytes(uint64(plan.Size)), c.Type, kind, c.Layers, c.Embd, c.FF, c.Heads, c.KVHeads)
	return err
}
