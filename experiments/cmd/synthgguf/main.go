// Command synthgguf writes a GGUF model with random weights that a real llama.cpp loads and runs. See package synth.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tensorcast/experiments/synth"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "synthgguf: %v\n", err)
	var usage *usageError
	var config *synth.ConfigError
	if errors.As(err, &usage) || errors.As(err, &config) {
		os.Exit(2)
	}
	os.Exit(1)
}

// usageError is a command line that cannot be obeyed.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// dimensions are the flags that --size stands for.
var dimensions = []string{"layers", "embd", "ff", "heads", "kv-heads"}

func command() *cobra.Command {
	var cfg synth.Config
	var out, typeName, size string
	cmd := &cobra.Command{
		Use:   "synthgguf -o MODEL [--size SIZE | --layers N --embd N --ff N --heads N]",
		Short: "Write a GGUF model with random weights that llama.cpp loads and runs",
		Long: `synthgguf writes a model of the llama architecture, dense or mixture of experts, with random weights and a
byte-level vocabulary. llama.cpp runs it like any other; its text is varied nonsense. The same flags give the same bytes.

Either --size chooses the dimensions, or --layers, --embd, --ff, --heads (and --kv-heads) give them.
The model appears under its name only when it is whole. A progress bar is drawn if stderr is a terminal.

Exit status: 0 written, 1 failure (also when interrupted), 2 wrong usage or an impossible model.`,
		Example: `  synthgguf -o model.gguf --size 1GB --type Q8_0 --seed 1
  synthgguf -o moe.gguf --size 1.4GB --type Q8_0 --experts 32 --used 4
  synthgguf -o small.gguf --layers 4 --embd 256 --ff 768 --heads 4 --type Q4_K
  synthgguf -o - --size 20MB --type F16 | sha256sum`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unexpected argument %q (the model's name goes after -o)", args[0])
			}
			return nil
		},
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return usagef("no output: say -o model.gguf, or -o - for stdout")
			}
			var err error
			if cfg.Type, err = synth.ParseType(typeName); err != nil {
				return err
			}
			if cfg, err = sized(cmd, cfg, size); err != nil {
				return err
			}
			plan, err := synth.NewPlan(cfg)
			if err != nil {
				return err
			}
			return write(cmd.Context(), plan, out)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%w (see --help)", err) })

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&out, "output", "o", "", "file to write; - for stdout")
	f.StringVar(&size, "size", "", "size of the file (1.2GB, 700MiB): chooses the dimensions")
	f.StringVar(&typeName, "type", "Q8_0", "weight type: F32, F16, Q8_0, Q4_0 or Q4_K")
	f.Uint64Var(&cfg.Seed, "seed", 1, "seed of all values")
	f.IntVar(&cfg.Experts, "experts", 0, "experts per layer; 0 makes a dense model")
	f.IntVar(&cfg.Used, "used", 0, "experts used per token")
	f.BoolVar(&cfg.Tied, "tied", false, "leave out output.weight: the embedding makes the logits too")
	f.IntVar(&cfg.Layers, "layers", 0, "layers")
	f.IntVar(&cfg.Embd, "embd", 0, "width of the model, a multiple of the type's block (Q4_K: 256, Q8_0 and Q4_0: 32)")
	f.IntVar(&cfg.FF, "ff", 0, "width of the feed-forward network (of each expert), a multiple of the type's block")
	f.IntVar(&cfg.Heads, "heads", 0, "attention heads")
	f.IntVar(&cfg.KVHeads, "kv-heads", 0, "key/value heads (default: as many as --heads)")
	f.IntVar(&cfg.Vocab, "vocab", synth.ByteVocab, "tokens")
	f.IntVar(&cfg.Ctx, "ctx", 4096, "context length to declare")
	return cmd
}

// sized completes cfg's dimensions: from size if it is given, which excludes giving them by flags.
func sized(cmd *cobra.Command, cfg synth.Config, size string) (synth.Config, error) {
	given := ""
	for _, name := range dimensions {
		if cmd.Flags().Changed(name) {
			given = name
		}
	}
	switch {
	case size == "" && given == "":
		return cfg, usagef("no dimensions: say --size, or --layers, --embd, --ff and --heads")
	case size == "":
		if !cmd.Flags().Changed("kv-heads") {
			cfg.KVHeads = cfg.Heads
		}
		return cfg, nil
	case given != "":
		return cfg, usagef("--size chooses the dimensions: leave out --%s, or --size", given)
	}
	bytes, err := humanize.ParseBytes(size)
	if err != nil || bytes == 0 || bytes > math.MaxInt64 {
		return cfg, usagef("--size %q is not a size such as 700MB or 1.2GiB", size)
	}
	return synth.Sized(int64(bytes), cfg)
}

// write writes the model to the file out, or to stdout if out is "-".
func write(ctx context.Context, plan *synth.Plan, out string) error {
	progress, done := func(int64) {}, func() {}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		progress, done = bar(plan, out)
	}
	if out != "-" {
		if err := plan.WriteFile(ctx, out, progress); err != nil {
			return err
		}
		done()
		return nil
	}
	if term.IsTerminal(int(os.Stdout.Fd())) {
		return usagef("stdout is a terminal: pipe the model somewhere, or name a file with -o")
	}
	if err := plan.Write(ctx, os.Stdout, progress); err != nil {
		return err
	}
	done()
	return nil
}

// bar draws a progress bar on stderr, and returns how to move it and how to end it.
func bar(plan *synth.Plan, out string) (progress func(written int64), done func()) {
	b := progressbar.NewOptions64(plan.Size,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetDescription(filepath.Base(out)),
		progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish())
	progress = func(written int64) {
		// The bar is an ornament: its failure to draw is no reason to fail.
		_ = b.Set64(written)
	}
	done = func() {
		_ = b.Finish()
		c := plan.Config
		kind := "dense"
		if c.Experts > 0 {
			kind = fmt.Sprintf("%d experts, %d used", c.Experts, c.Used)
		}
		fmt.Fprintf(os.Stderr, "%s: %s, %v, %s: %d layers, width %d, feed-forward %d, %d heads (%d key/value)\n",
			out, humanize.Bytes(uint64(plan.Size)), c.Type, kind, c.Layers, c.Embd, c.FF, c.Heads, c.KVHeads)
	}
	return progress, done
}
