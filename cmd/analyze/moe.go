package main

// This file has the subcommand moe: how a mixture of experts uses its experts, and what prediction and
// caches would gain.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/gguf"
	"tensorcast/internal/chart"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/regular"
	"tensorcast/internal/sizes"
	"tensorcast/internal/tabular"
	"tensorcast/moe"
	"tensorcast/moe/hidden"
	"tensorcast/moe/replay"
	"tensorcast/report/gather"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// moeOptions are the flags.
type moeOptions struct {
	// The machine that is simulated.
	rooms     []string // sizes of the memory for experts
	bandwidth int64    // of the disk, bytes per second
	latency   time.Duration
	compute   time.Duration // of a token

	hasBandwidth, hasCompute bool // these flags were given

	// The input.
	context int32
	model   string // a GGUF file; "": the file that the capture names

	// The output.
	json   bool
	output string // a directory for figures; "": none are drawn
	format string // of figures
}

func moeCommand(root *options) *cobra.Command {
	o := moeOptions{bandwidth: 1.5e9, format: chart.Formats[0]}
	cmd := &cobra.Command{
		Use:   "moe [flags] TRACE|CAPTURE",
		Short: "Say what memory for experts, and predicting them, would gain",
		Long: `In a mixture of experts, a router chooses a few of many experts for each token, in each layer. analyze moe says what
memory for experts would gain, and what predicting the choices would gain. Its first line says how many of the choices
are found in memory, and whether that is more than the share of experts that are there. If routers chose at random, a
tenth of the experts in memory would have a tenth of the choices, whatever is kept. If prefetchd finds no more than that
in memory, there is "no exploitable locality". Then memory buys only its share, and each further GiB saves the same.
"More" means that it finds at least 5 percentage points more, beyond the error that blocks of the trace have.

It reads the choices from a capture, which is a directory that tracer wrote, or from a routing trace in CSV (route_trace
v1, plain or gzip). Behind the first line is a table for several amounts of memory. It says how many choices are found
there, what a token reads besides, and how many tokens per second that gives. It says so for what prefetchd keeps, for
LRU, for Belady's rule, and for routers that choose at random. LRU drops what was used longest ago. Belady's rule knows
the future, so no other can be better. The next line names the memory from which on reading takes no longer than
computing. Then come

  hits, bytes and times     of caches of several sizes that keep what was chosen last, what was chosen most often, and
                            so on; that also read ahead what is probable; and that follow Belady's rule
  recall                    which share of the choices is foretold by predictors that know only the experts chosen
                            before, and the tokens' ids
  recall with hidden states the same for predictors that also know what routers and attention have read. The capture
                            must be made with tracer --hidden. These predictors apply the next router to this
                            router's input, also corrected by what was learned, and mixed with the other predictors
  load, reuse, neighbours   how evenly experts are used, after how many tokens they are used again, and whether already
                            by the next token

With --output it also draws

  hits      the hit rate of each rule against the memory for experts, with Belady's rule above all
  recall    the recall of each predictor in each layer, for as many guesses as experts are chosen
  reads     what is read because a chosen expert is missing, over the generated tokens, for each size

Caches are simulated. An expert is read whole, and the disk does one thing at a time. Chosen experts come before guessed
ones, and nothing else needs memory. At the beginning, caches are full of the file's first experts, as loading leaves
them. The prompt is only learned from, and generated tokens are counted. A capture of a server with several slots is
taken as one sequence. For hidden states, the routers of the model's file are needed. The capture names that file, or
--model does.

Exit status: 0 done; 1 failed; 2 the command line is wrong.`,
		Example: `  sudo tracer -o run -- llama-cli -m moe.gguf --no-repack -st -p "hi" -n 200
  analyze moe run
  analyze moe --room 4GB --room 8GB --bandwidth 3GB --compute 40ms run
  analyze moe -o figures --format svg run                      # figures/hits.svg, recall.svg, reads.svg
  sudo tracer --hidden -o seen -- llama-cli -m moe.gguf --no-repack -st -p "hi" -n 200
  analyze moe seen
  analyze moe --json qwen.route.csv.gz | jq .verdict`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 && (len(args) > 0 || !cmd.Flags().Changed("capture")) {
				return cli.Usagef("%d arguments: want one, a capture's directory or a routing trace", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			study, err := o.check(cmd)
			if err != nil {
				return err
			}
			name := root.capture
			if len(args) > 0 {
				if name = args[0]; cmd.Flags().Changed("capture") {
					return cli.Usagef("%q and --capture %q: want one of them", name, root.capture)
				}
			}
			return analyzeMoE(cmd.Context(), name, &o, study, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringSliceVar(&o.rooms, "room", nil, "memory for experts, a `size` such as 4GB. Give several with commas, or the flag "+
		"again (default: 10, 20, 40 and 60 % of all experts)")
	cli.SizeVar(f, &o.bandwidth, "bandwidth", "bytes that the disk reads in a second, a size such as 3GB. Without the "+
		"flag a capture's own rate counts, if the capture has one")
	f.DurationVar(&o.latency, "latency", 100*time.Microsecond, "`time` that a read takes besides the transfer of its bytes")
	f.DurationVar(&o.compute, "compute", 50*time.Millisecond, "`time` that a token takes if nothing is missing. Half of it "+
		"is before a layer's router, and half after it. Without the flag a capture's own time counts, if the capture has one")
	f.Int32Var(&o.context, "context", -1, "of a capture, analyse context `n`, counted from 0 (default: the one that chose experts "+
		"most often)")
	f.Lookup("context").DefValue = "0" // so that the help does not tell the number that stands for it
	f.StringVar(&o.model, "model", "", "the capture's model, a GGUF `file`, if that has moved since (default: where the capture says)")
	f.BoolVar(&o.json, "json", false, "print everything as JSON")
	f.StringVarP(&o.output, "output", "o", "", "draw figures in this `directory`, which is made if it is not there (default: no figures)")
	cli.EnumVar(cmd, &o.format, "format", "", chart.Formats, "format of the figures")
	return cmd
}

// check says what is wrong with the flags, and makes the options of a study from them.
func (o *moeOptions) check(cmd *cobra.Command) (*replay.Options, error) {
	study := &replay.Options{
		Disk:    replay.Disk{Latency: o.latency},
		Workers: runtime.GOMAXPROCS(0),
		Curve:   o.output != "",
	}
	if o.bandwidth < replay.MinBandwidth {
		return nil, cli.Usagef("--bandwidth is %s per second, want %s or more",
			humanize.IBytes(uint64(o.bandwidth)), humanize.IBytes(replay.MinBandwidth))
	}
	const longest = time.Minute
	if o.latency < 0 || o.latency > longest || o.compute < 0 || o.compute > longest {
		return nil, cli.Usagef("--latency is %v, --compute %v: want 0 to %v", o.latency, o.compute, longest)
	}
	if o.context < 0 && cmd.Flags().Changed("context") {
		return nil, cli.Usagef("--context is %d, want 0 or more", o.context)
	}
	for _, text := range o.rooms {
		n, err := sizes.Parse(text)
		if err == nil && n > 1<<50 {
			err = errors.New("want at most 1 PiB")
		}
		if err != nil {
			return nil, cli.Usagef("--room %q: %w", text, err)
		}
		study.Rooms = append(study.Rooms, n)
	}
	o.hasBandwidth, o.hasCompute = cmd.Flags().Changed("bandwidth"), cmd.Flags().Changed("compute")
	if o.output == "" && cmd.Flags().Changed("format") {
		return nil, cli.Usagef("--format is of figures: say where with --output")
	}
	if cmd.Flags().Changed("top") {
		return nil, cli.Usagef("--top: nothing that moe prints is a list of tensors")
	}
	if cmd.Flags().Changed("phase") {
		return nil, cli.Usagef("--phase: moe replays all tokens, and tells prompts and generated ones apart")
	}
	return study, nil
}

// moeResult is what is printed as JSON.
type moeResult struct {
	*replay.Study
	Machine *machine      `json:"machine"`
	Hidden  *hidden.Study `json:"hidden"`                   // null if there is none
	Why     string        `json:"hidden_missing,omitempty"` // why there is none
}

func analyzeMoE(
	ctx context.Context, name string, o *moeOptions, study *replay.Options, stdout, stderr io.Writer,
) error {
	in, err := readRoutes(ctx, name, o.context)
	if errors.Is(err, moe.ErrNoRoutes) {
		return fmt.Errorf("read %s: %w: trace a mixture-of-experts model, such as `tracer -- llama-cli -m "+
			"moe.gguf --no-repack -p \"hi\" -n 200`, not with --preload and with --detail op at least", name, err)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if in.capture != nil {
		for _, w := range doubts(in.capture) {
			warn(stderr, "%s", w)
		}
	}
	var found moeResult
	found.Hidden, found.Why, err = in.evaluate(ctx, o.model)
	if err != nil {
		return fmt.Errorf("evaluate the hidden states in %s: %w", name, err)
	}
	if found.Machine, err = o.machine(ctx, in); err != nil {
		return err
	}
	study.Disk.Bandwidth = found.Machine.Bandwidth
	layer := found.Machine.Compute / time.Duration(len(in.routes.Layers))
	study.Compute = replay.Compute{Before: layer / 2, After: layer - layer/2}
	bar := progress.New(stderr, progress.Options{What: "replaying", Predict: true})
	study.Done = func(done, total int) { bar.Update(int64(done), int64(total), "") }
	found.Study, err = replay.NewStudy(ctx, in.routes, *study)
	bar.Close()
	if err != nil {
		return err
	}
	// What was found is printed, even if it cannot be drawn.
	written, drawErr := drawMoE(ctx, &found, o, in.caption())
	if o.json {
		return errors.Join(cli.WriteJSON(stdout, found), drawErr)
	}
	d := slices.Insert(found.Document(), 1, tabular.Part(found.Machine.lines()))
	if found.Hidden != nil {
		d = append(d, found.Hidden.Document()...)
	} else {
		d = append(d, tabular.Lines{"no recall with hidden states: " + found.Why})
	}
	if len(written) > 0 {
		d = append(d, written)
	}
	return errors.Join(d.WriteText(stdout), drawErr)
}

// drawMoE draws a study's figures, and returns a line for each file.
func drawMoE(ctx context.Context, found *moeResult, o *moeOptions, caption string) (lines tabular.Lines, err error) {
	if o.output == "" {
		return nil, nil
	}
	var files []file
	for _, f := range found.Figures(found.hiddenRecalls()...) {
		draw := file{name: f.Name + "." + o.format}
		if f.Figure != nil {
			f.Figure.Caption = caption
			draw.write = func(w io.Writer) error { return f.Figure.Write(w, o.format) }
		}
		files = append(files, draw)
	}
	written, err := writeAll(ctx, o.output, files)
	for _, path := range written {
		lines = append(lines, "wrote "+path)
	}
	return lines, err
}

// hiddenRecalls are the recalls by layer of the predictors that know hidden states, one layer ahead at most.
func (r *moeResult) hiddenRecalls() (all []replay.Recall) {
	if r.Hidden == nil {
		return nil
	}
	for i := range r.Hidden.Results {
		result := &r.Hidden.Results[i]
		if result.Lead > 1 {
			continue
		}
		recall := replay.Recall{Name: result.When + ": " + result.Name}
		for _, share := range result.ByLayer {
			if share == 0 { // the first layers have nothing before them
				share = math.NaN()
			}
			recall.ByLayer = append(recall.ByLayer, share)
		}
		all = append(all, recall)
	}
	return all
}

// routedInput is what is analysed.
type routedInput struct {
	routes  *moe.Trace
	capture *trace.Capture // nil for a CSV file
	name    string         // of the capture's directory
	context int32          // of the capture
	model   int32          // of the capture
}

// caption is the line below figures. Of a routing trace nothing is known.
func (in *routedInput) caption() string {
	if in.capture == nil {
		return ""
	}
	return gather.Caption(in.capture.Meta)
}

// evaluate judges predictors that know hidden states. If the capture does not allow that, it returns why.
// It is an error if the model that the user named does not fit.
func (in *routedInput) evaluate(ctx context.Context, model string) (*hidden.Study, string, error) {
	switch {
	case in.capture == nil && model != "":
		return nil, "", errors.New("--model is of use for a capture only, and this is a routing trace")
	case in.capture == nil:
		return nil, "a routing trace has none; a capture has them if it was made with tracer --hidden", nil
	case in.capture.Meta.Hidden == nil || in.capture.Meta.Hidden.Rows == 0:
		return nil, "the capture has none; tracer --hidden records them", nil
	}
	path := model
	if path == "" && int(in.model) < len(in.capture.Meta.Models) {
		path = in.capture.Meta.Models[in.model].Path
	}
	routers, err := in.routers(path)
	if err != nil {
		if model != "" {
			return nil, "", err
		}
		return nil, fmt.Sprintf("%v; --model names the model's file", err), nil
	}
	st, err := hidden.Evaluate(ctx, in.routes, routers, in.capture.Hidden(), in.routes.Split())
	if errors.Is(err, hidden.ErrNoInputs) || errors.Is(err, hidden.ErrNoRouters) {
		return nil, err.Error(), nil
	}
	return st, "", err
}

// routers reads the routers of the model at path. It has to be the model that was captured.
func (in *routedInput) routers(path string) (*hidden.Routers, error) {
	m, err := gguf.OpenModel(path)
	if err != nil {
		return nil, err
	}
	fingerprint, err := m.Files[0].Fingerprint()
	if err != nil {
		return nil, err
	}
	if models := in.capture.Meta.Models; int(in.model) >= len(models) || models[in.model].Fingerprint != fingerprint {
		return nil, fmt.Errorf("%s is another model than the capture's", path)
	}
	return hidden.ReadRouters(m)
}

// readRoutes reads the directory of a capture, or a CSV file.
func readRoutes(ctx context.Context, name string, context int32) (*routedInput, error) {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return readCaptureRoutes(ctx, name, context)
	}
	f, err := regular.Open(name)
	var path *fs.PathError
	if errors.As(err, &path) {
		return nil, path.Err
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := moe.ReadCSV(f)
	if errors.Is(err, moe.ErrNotCSV) {
		return nil, fmt.Errorf("no capture's directory, and %w", err)
	}
	return &routedInput{routes: t}, err
}

// readCaptureRoutes reads the routes of one context of a capture. If context is -1, it is the one that
// chose experts most often.
func readCaptureRoutes(ctx context.Context, dir string, context int32) (*routedInput, error) {
	c, err := trace.Open(dir)
	if err != nil {
		return nil, err
	}
	accesses := func(yield func(*tables.Access, error) bool) {
		n := 0
		for a, err := range c.Accesses() {
			if n++; err == nil && n%4096 == 0 {
				err = ctx.Err()
			}
			if !yield(a, err) {
				return
			}
		}
	}
	context, number, err := moe.ChoosingContext(accesses, c.Structure, context)
	if err != nil {
		return nil, err
	}
	steps, err := moe.Steps(c.Steps(), context)
	if err != nil {
		return nil, err
	}
	model := fmt.Sprint("model ", number)
	if int(number) < len(c.Meta.Models) {
		model = filepath.Base(strings.TrimSpace(c.Meta.Models[number].Path))
	}
	empty := moe.EmptyTrace(model, c.Structure, number)
	if empty == nil {
		return nil, moe.ErrNoRoutes
	}
	t, err := moe.FromRoutes(empty, c.Routes(), steps)
	return &routedInput{routes: t, capture: c, name: dir, context: context, model: number}, err
}
