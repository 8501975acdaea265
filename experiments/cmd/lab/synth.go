package main

// This file implements "lab synth", which writes a GGUF model with random weights that a real
// llama.cpp loads and runs, or a copy of a model with heavier experts. See package synth.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
	"tensorcast/moe"
)

// dimensions are the flags that --size replaces.
var dimensions = []string{"layers", "embd", "ff", "heads", "kv-heads"}

// synthOptions are the flags that describe a model.
type synthOptions struct {
	cfg      synth.Config
	routes   string
	size     int64
	factor   int
	typeName string
}

func newSynthOptions() *synthOptions {
	return &synthOptions{cfg: synth.Config{Arch: synth.Archs()[0]}, typeName: "Q8_0"}
}

// synthModel is a model that can be written.
type synthModel struct {
	Size int64
	// Active is about the share of its bytes that a token reads.
	Active float64
	write  func(ctx context.Context, w io.Writer, moved func(written int64)) error
	// describe says on stderr what was written to out.
	describe func(out string, stderr io.Writer) error
	close    func() error
}

func synthCommand() *cobra.Command {
	o := newSynthOptions()
	var out string
	cmd := &cobra.Command{
		Use:   "synth -o MODEL {--size SIZE | --layers N --embd N --ff N --heads N | --inflate N SOURCE}",
		Short: "Write a GGUF model with random weights that llama.cpp runs, or make a model heavier",
		Long: `Synth writes a model with random weights and a byte-level vocabulary. It is a llama, dense or with a mixture of
experts. With --arch it is another mixture of experts, whose router is of another kind. llama.cpp runs it like
any other model. Its text is varied nonsense. The same flags give the same bytes.

Either --size chooses the dimensions, or --layers, --embd, --ff, --heads and perhaps --kv-heads give them.

With --table the model has a table of about that size, of which a token reads one row. It is
per_layer_token_embd.weight, as in models of the Gemma 3n kind. The model has as many tokens as the table has
rows. A prompt of words of a few letters, such as " ab xyz", takes its tokens from all over the table. With
--experts the model is also a mixture.

With --routes the routers choose, token by token, what a recorded trace of a real model's routing says. The model
says the trace's tokens one after the other (" t0", " t1" and so on), whatever the prompt is. After the last it
begins again. Width, type and size are free, but the experts are the trace's. If the model has more layers than
the trace, the others choose as the trace's layers from the first on. A prompt that is text chooses as the tokens
of the trace's prompt do. A prompt that names the trace's tokens, such as " t0 t1 t2", chooses as these tokens.
The trace is CSV as the project BigMoeOnEdge publishes it ("route_trace v1"), plain or compressed by gzip.
--recall sets how well a layer's choice can be foretold from what the router before has read. Measure no more
tokens than the trace has. When it begins again, whoever watches may know it by heart.

With --inflate synth copies a trained model instead, and makes its feed-forward networks N times as wide. In a
mixture of experts these are the experts. The added blocks have a scale of 0 and random digits. So they add
nothing to the result, text and routing stay the same, and the file cannot be compressed. A small model gets the
bytes of a large one in this way. Blocks without a scale (F16, F32) are filled with zeros, which can be compressed.

The model appears under its name only when it is whole. A progress bar is drawn if standard error is a terminal.

Exit codes: 0 written; 1 failed, or interrupted; 2 wrong usage or an impossible model.`,
		Example: `  lab synth -o model.gguf --size 1GB --type Q8_0 --seed 1
  lab synth -o moe.gguf --size 1.4GB --type Q8_0 --experts 32 --used 4
  lab synth -o small.gguf --layers 4 --embd 256 --ff 768 --heads 4 --type Q4_K
  lab synth -o sigmoid.gguf --arch deepseek2 --sigmoid --groups 4 --groups-used 2 \
      --experts 16 --used 4 --layers 4 --embd 256 --ff 128 --heads 4
  lab synth -o gptoss.gguf --arch gpt-oss --experts 32 --used 4 --layers 4 --embd 256 --ff 256 --heads 4 --kv-heads 2
  lab synth -o hashed.gguf --arch deepseek4 --hashed 2 --experts 16 --used 4 --layers 4 --embd 256 --ff 128 --heads 4
  lab synth -o table.gguf --table 4GB --per-layer 2048 --layers 8 --embd 512 --ff 1536 --heads 8
  lab synth -o routed.gguf --routes qwen.route.csv.gz --arch qwen3moe --layers 24 --embd 1024 --ff 384 --heads 16
  lab synth -o - --size 20MB --type F16 | sha256sum
  lab synth -o big.gguf --inflate 32 tiny-moe-q8_0.gguf`,
		Args: checkSource,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if out == "" {
				return cli.Usagef("no output: say -o model.gguf, or -o - for stdout")
			}
			m, err := o.model(cmd, args)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, m.close()) }()
			stderr := cmd.ErrOrStderr()
			err = writeModel(out, m.Size, func(w io.Writer, moved func(int64)) error {
				return m.write(cmd.Context(), w, moved)
			}, cmd.OutOrStdout(), stderr)
			if err != nil {
				return fmt.Errorf("write model: %w", err)
			}
			return m.describe(out, stderr)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVarP(&out, "output", "o", "", "write to this `file`, or with - to standard output")
	o.add(cmd)
	return cmd
}

// checkSource checks that there is a model to inflate where one is needed, and nowhere else.
func checkSource(cmd *cobra.Command, args []string) error {
	switch inflate := cmd.Flags().Changed("inflate"); {
	case !inflate && len(args) > 0:
		return fmt.Errorf("unexpected argument %q (the model's name goes after -o; --inflate N makes a "+
			"copy of one)", args[0])
	case inflate && len(args) != 1:
		return fmt.Errorf("%d models to inflate: name one", len(args))
	}
	return nil
}

// model finds out what the flags and arguments of a command describe. The caller closes the model.
func (o *synthOptions) model(cmd *cobra.Command, args []string) (*synthModel, error) {
	if len(args) > 0 {
		if err := checkInflation(cmd); err != nil {
			return nil, cli.Usage(err)
		}
		return inflated(args[0], o.factor, o.cfg.Seed)
	}
	cfg := o.cfg
	var err error
	if cfg.Type, err = synth.ParseType(o.typeName); err != nil {
		return nil, cli.Usage(err)
	}
	if cfg.Routes, err = readRoutes(cmd, o.routes); err != nil {
		return nil, err
	}
	if cfg.Routes != nil && !cmd.Flags().Changed("vocab") {
		cfg.Vocab = 0
	}
	if cfg.Table != 0 && cmd.Flags().Changed("vocab") {
		return nil, cli.Usagef("--table says how many tokens there are: leave out --vocab, or --table")
	}
	if cfg.Table != 0 && !cmd.Flags().Changed("arch") {
		cfg.Arch = "" // the one that has a table
	}
	if cfg, err = applySize(cmd, cfg, o.size); err != nil {
		return nil, cli.Usage(err)
	}
	plan, err := synth.NewPlanContext(cmd.Context(), cfg)
	if err != nil {
		return nil, asUsage(err)
	}
	return planned(plan), nil
}

// add adds the flags.
func (o *synthOptions) add(cmd *cobra.Command) {
	f, cfg := cmd.Flags(), &o.cfg
	cli.SizeVar(f, &o.size, "size", "`size` of the file, such as 1.2GB or 700MiB. It chooses the dimensions")
	cli.EnumVar(cmd, &o.typeName, "type", "", []string{"F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q2_0", "Q1_0", "TQ1_0",
		"TQ2_0"}, "type of the weights")
	f.IntVar(&o.factor, "inflate", 0,
		"copy the model SOURCE, with feed-forward networks (experts) `N` times as wide. Text and routing stay the same")
	f.Uint64Var(&cfg.Seed, "seed", 1, "seed of all random values")
	f.IntVar(&cfg.Experts, "experts", 0, "number of experts in each layer. 0 makes a dense model (default 0, or with --routes the trace's)")
	f.IntVar(&cfg.Used, "used", 0, "number of experts that a token uses in each layer (with --routes by default the trace's)")
	f.StringVar(&o.routes, "routes", "", "`FILE` with the trace that says what routers choose, token by token")
	f.Float64Var(&cfg.Recall, "recall", synth.UsualRecall, "with --routes: the share of a layer's choice that the "+
		"router before foretells. The default was measured on trained models")
	cli.EnumVar(cmd, &cfg.Arch, "arch", "", synth.Archs(), "architecture, which decides the kind of router")
	f.IntVar(&cfg.Groups, "groups", 0, "number of groups of experts. The best groups are chosen first")
	f.IntVar(&cfg.GroupsUsed, "groups-used", 0, "number of groups that a token uses")
	f.IntVar(&cfg.Shared, "shared", 0,
		"number of shared experts, which every token uses. For qwen2moe, deepseek2 and deepseek4 (default 1)")
	f.BoolVar(&cfg.Sigmoid, "sigmoid", false, "the router has a sigmoid, and a bias for the choice. For deepseek2")
	f.BoolVar(&cfg.Fused, "fused", false, "gate and up of the experts are in one tensor. For deepseek2")
	f.IntVar(&cfg.Hashed, "hashed", 0, "in the first `N` layers, the token's id chooses the experts. For deepseek4 (default 0)")
	cli.SizeVar(f, &cfg.Table, "table", "`size` of a table of which a token reads one row. For gemma4")
	f.IntVar(&cfg.PerLayer, "per-layer", 0, "with --table: number of elements of a row that each layer reads (default: as many as --embd)")
	f.BoolVar(&cfg.Tied, "tied", false, "there is no output.weight. The token embeddings are used for the logits, too")
	f.IntVar(&cfg.Layers, "layers", 0, "number of layers (with --routes by default the trace's)")
	f.IntVar(&cfg.Embd, "embd", 0,
		"width of the model, a multiple of the type's block, which is 256 for Q4_K, TQ1_0 and TQ2_0, 128 for Q1_0, "+
			"64 for Q2_0, and 32 for Q8_0 and Q4_0")
	f.IntVar(&cfg.FF, "ff", 0, "width of the feed-forward network, or of each expert, a multiple of the type's block")
	f.IntVar(&cfg.Heads, "heads", 0, "number of attention heads")
	f.IntVar(&cfg.KVHeads, "kv-heads", 0, "number of heads of keys and values (default: as many as --heads)")
	f.IntVar(&cfg.Vocab, "vocab", synth.ByteVocab, "number of tokens in the vocabulary. With --routes the trace's come on top by default")
	f.IntVar(&cfg.Ctx, "ctx", 4096, "the context length that the model declares, in tokens")
}

// checkInflation returns an error if a flag is set that describes a model. With --inflate the model
// is taken as it is.
func checkInflation(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "inflate" && f.Name != "output" && f.Name != "seed" {
			err = fmt.Errorf("--inflate keeps the model's dimensions and type: leave out --%s", f.Name)
		}
	})
	return err
}

// readRoutes reads the trace that is to be planted; nil if name is empty.
func readRoutes(cmd *cobra.Command, name string) (*moe.Trace, error) {
	recall := cmd.Flags().Lookup("recall")
	if name == "" {
		if recall.Changed {
			return nil, cli.Usagef("--recall is for a model with --routes: name a trace")
		}
		return nil, nil
	}
	if r, err := cmd.Flags().GetFloat64("recall"); err != nil || !(r > 0 && r <= 1) {
		return nil, cli.Usagef("--recall=%s: give a number above 0, and 1 at most", recall.Value)
	}
	f, err := regular.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := moe.ReadCSV(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

// applySize sets cfg's dimensions from size, if size is given. Then the dimensions' own flags must
// not be given.
func applySize(cmd *cobra.Command, cfg synth.Config, size int64) (synth.Config, error) {
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

// asUsage marks a *synth.ConfigError as an error of the command line.
func asUsage(err error) error {
	var config *synth.ConfigError
	if errors.As(err, &config) {
		return cli.Usage(err)
	}
	return err
}

// writeModel writes a model of size bytes to the file out, or to stdout if out is "-".
func writeModel(out string, size int64, write func(w io.Writer, moved func(written int64)) error, stdout,
	stderr io.Writer) error {
	if out == "-" && cli.IsTerminal(stdout) {
		return cli.Usagef("stdout is a terminal: pipe the model somewhere, or name a file with -o")
	}
	bar := progress.New(stderr, progress.Options{What: filepath.Base(out), Bytes: true, Predict: true})
	defer bar.Close()
	moved := func(written int64) { bar.Update(written, size, "") }
	if out == "-" {
		return write(stdout, moved)
	}
	return outfile.Write(out, func(w io.Writer) error { return write(w, moved) })
}

// planned is a model with random weights. On a terminal it is also described.
func planned(plan *synth.Plan) *synthModel {
	c := plan.Config
	m := &synthModel{Size: plan.Size, Active: 1, write: plan.Write, close: func() error { return nil }}
	if c.Experts > 0 {
		m.Active = float64(c.Used) / float64(c.Experts)
	}
	m.describe = func(out string, stderr io.Writer) error {
		if r := plan.Routing; r != nil {
			if err := describeRouting(r, c, stderr); err != nil {
				return err
			}
		}
		if !cli.IsTerminal(stderr) {
			return nil
		}
		kind := "dense"
		if c.Experts > 0 {
			kind = fmt.Sprintf("%d experts, %d used", c.Experts, c.Used)
		}
		_, err := fmt.Fprintf(stderr,
			"%s: %s, %v, %s: %d layers, width %d, feed-forward %d, %d heads (%d key/value)\n",
			out, humanize.IBytes(uint64(plan.Size)), c.Type, kind, c.Layers, c.Embd, c.FF, c.Heads, c.KVHeads)
		return err
	}
	return m
}

// describeRouting says what was planted of a trace.
func describeRouting(r *synth.Routing, c synth.Config, w io.Writer) error {
	said := fmt.Sprintf("The trace's tokens are %q to %q, and generated text begins with %q.\n", synth.TokenText(0),
		synth.TokenText(r.Tokens-1), synth.TokenText(r.Prompt))
	wanted := ""
	if math.Abs(r.Recall-c.Recall) > 0.03 {
		wanted = fmt.Sprintf(", where %.2f was wanted", c.Recall)
	}
	said += fmt.Sprintf("The router before foretells a layer's choice with a recall of %.2f%s.\n", r.Recall, wanted)
	if c.Layers != r.Layers {
		said += fmt.Sprintf("The model has %d layers and the trace %d: the trace's are taken from the first on, again "+
			"and again if need be.\n", c.Layers, r.Layers)
	}
	if r.Missing > 0 {
		said += fmt.Sprintf("Choices that are not in the trace, of a token in a layer, are random: %d.\n", r.Missing)
	}
	_, err := io.WriteString(w, said)
	return err
}

// inflated is the model at path with feed-forward networks that are factor times as wide. On a terminal it is also said
// how large it and its experts are.
func inflated(path string, factor int, seed uint64) (_ *synthModel, err error) {
	in, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.Close())
		}
	}()
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	f, err := gguf.Parse(in, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	inf, err := synth.NewInflation(f, factor, seed)
	if err != nil {
		return nil, asUsage(fmt.Errorf("%s: %w", path, err))
	}
	m := &synthModel{Size: inf.Size, Active: 1, close: in.Close}
	m.write = func(ctx context.Context, w io.Writer, moved func(int64)) error { return inf.Write(ctx, w, in, moved) }
	m.describe = func(out string, stderr io.Writer) error {
		if inf.Zeros > inf.Size/100 {
			if _, err := fmt.Fprintf(stderr,
				"%s of the model are zeros, because its type has no scales: they compress, and a file system may "+
					"store them as holes when the file is copied\n", humanize.IBytes(uint64(inf.Zeros))); err != nil {
				return err
			}
		}
		if !cli.IsTerminal(stderr) {
			return nil
		}
		size := humanize.IBytes(uint64(inf.Size))
		if inf.ExpertBytes > 0 {
			size += fmt.Sprintf(", an expert has %s in a layer", humanize.IBytes(uint64(inf.ExpertBytes)))
		}
		_, err := fmt.Fprintf(stderr, "%s: %s\n", out, size)
		return err
	}
	return m, nil
}
