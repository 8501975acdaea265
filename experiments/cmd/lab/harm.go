package main

// This file implements "lab harm", which looks for harm that a helper does to llama.cpp. See package harm.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/harm"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/results"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
)

type harmOptions struct {
	harm.Config
	output
	scenes []string
	size   int64  // of the model that is made if none is given
	server string // a llama-server that is run instead of llamarun
	driver llama.Options
}

func harmCommand() *cobra.Command {
	o := harmOptions{size: 764 << 20}
	var forms strings.Builder
	for _, f := range harm.Forms {
		fmt.Fprintf(&forms, "  %-18s %s\n", f[0], f[1])
	}
	cmd := &cobra.Command{
		Use:   "harm --helper COMMAND [-m model.gguf] [flags]",
		Short: "Look for harm that a helper does: who is killed when memory gets short?",
		Long: `Harm looks for harm that a helper does. It runs a llama.cpp in a fresh memory control group, which holds
a share of its model. Runs come in pairs, one with the helper and one without. At a random moment of the
generation a scene happens, for instance that another process takes memory. The report says who was
killed, and whether the text is that of a run without a limit. It also says what is left when target and
helper have ended: processes, and pages of the model that cannot be dropped.

The helper is a shell command that starts with the target, outside of its group. It gets SIGTERM when the
target ends. {pid} in it is the target's process id. A helper that ends in {target} starts the target
itself, in the target's group. Give --other-text if the helper is to change the text.

The limit is x * M + the target's own memory. M is what a token reads of the model. Both are measured
first.

Scenes (the amounts may be others):
  none               nothing
  instant:150MB      a process in the target's group takes this much memory as fast as the kernel gives it
  slow:400MB@100MB   the same, at this many bytes per second
  swarm:40x10MB      the same, by this many processes at once, each of which takes this much
  limit:0.5          the group's limit is multiplied by this, and restored afterwards
  moved              the target starts in a group without a limit. When the helper has looked, the target is moved
                     to its own group, and its pages are dropped
  cached:0.6         another group has read this share of the model before the target starts, and pays for it
  shared             another target, in a group without a limit, computes with the same model all the time
  kill-helper        SIGKILL to the helper
  term-helper        SIGTERM to the helper
  stop-helper        SIGSTOP to the helper, and SIGCONT afterwards
  stop-target        SIGSTOP to the target, and SIGCONT afterwards
  kill-target        SIGKILL to the target
There are names for sets of them: hogs has those of memory and limits, sharing those with a second group,
faults those of signals and limits, and all has all.

Memory that a scene takes is held for --hold, and then released. A scene that is only about the helper has
no runs without it. With --helped no scene has. Then every target that is lost counts as harmed.

With --server the target is a llama-server with one slot, which is asked for a few tokens at a time. With
--also it is that server's router with several models. Each model has a child process, and all are asked
at the same time. The helper is given the router's process id.

Needs root, because it makes control groups, drops the page cache and traces. Speeds need a quiet machine,
but kills and texts do not. With --parallel several pairs run at the same time, each on its own copy of
the model.

Exit codes: 0 no harm; 1 the target died or hung in more runs with the helper than without, a text
differs, something is left, or nothing was measured; 2 wrong usage.`,
		Example: `  sudo lab harm --helper 'bin/prefetchd --wait --pid {pid}' --x 0.85 --scenes instant:150MB --pairs 5
  sudo lab harm --helper 'bin/prefetchd --wait --pid {pid}' --x 0.85,0.7,0.5 --scenes hogs \
      --pairs 10 --parallel 2 --save harm.json
  sudo lab harm --helper 'bin/prefetchd --wait --pid {pid}' --scenes faults --pairs 29 --seed 2
  sudo lab harm --helper 'bin/prefetchd --pid {pid}' --x 0.4 --scenes sharing --pairs 10
  sudo lab harm --helper 'bin/prefetchd --auto' --x 0.6 --scenes hogs -m one.gguf --also two.gguf \
      --server llama.cpp/build/bin/llama-server
  sudo lab harm --helper 'bin/prefetchd --exec --as-root --always --fabric=fast -- {target}' \
      --other-text --scenes instant:150MB,kill-helper`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return cli.Usage(err)
			}
			return o.measure(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Helper, "helper", "", "the helper, a shell `command`")
	f.StringVarP(&o.Model, "model", "m", "",
		"the model, a GGUF `file` on a disk (default: one with random weights is made)")
	f.StringVar(&o.server, "server", "", "run this `program` llama-server instead of llamarun")
	f.StringArrayVar(&o.Others, "also", nil, "another model, a GGUF `file`, that the server's router runs beside the first. May be repeated")
	cli.SizeVar(f, &o.size, "size", "`size` of the model that is made, if none is given")
	f.StringVar(&o.Dir, "dir", "/var/tmp", "`directory` for the model that is made and for copies. It must be on a disk")
	cli.SizeVar(f, &o.Weights, "weights", "the `size` of the weights that a token reads (default: it is measured)")
	f.Float64SliceVar(&o.X, "x", []float64{0.85},
		"limits of memory, as `shares` of the weights that a token reads. The target's own memory comes on top")
	f.StringSliceVar(&o.scenes, "scenes", []string{"hogs"}, "`names` of the scenes, or of sets of them, with commas")
	f.IntVar(&o.Pairs, "pairs", 10, "pairs of runs for each scene and share")
	f.IntVar(&o.Parallel, "parallel", 1, "run `N` pairs at the same time. From 2 on, speeds are not compared")
	f.BoolVar(&o.HelpedOnly, "helped", false,
		"make only the runs with the helper. That takes half the time, and is enough if no target is lost")
	f.BoolVar(&o.OtherText, "other-text", false, "do not compare the text of runs with the helper, because the helper may change it")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the random moments")
	f.IntVar(&o.Settle, "settle", 8, "let the helper take hold for `N` tokens before any scene")
	f.DurationVar(&o.Hold, "hold", 1500*time.Millisecond, "how long a scene lasts, such as 1.5s")
	f.DurationVar(&o.Timeout, "timeout", 5*time.Minute,
		"how long a run may take, such as 5m. A target that takes longer counts as hung")
	addDriver(f, &o.driver, "tokens to generate")
	f.Lookup("tokens").DefValue, o.driver.Tokens = "18", 18
	o.add(f, results.Harm, "all runs", "table")
	return cmd
}

// complete checks the flags and derives the configuration from them.
func (o *harmOptions) complete() (err error) {
	if o.Helper == "" {
		return errors.New("no helper: give --helper 'prefetchd --wait --pid {pid}'")
	}
	if err := check(bound{"pairs", o.Pairs, 1}, bound{"parallel", o.Parallel, 1}, bound{"settle", o.Settle, 1},
		bound{"threads", o.driver.Threads, 1}, bound{"tokens", o.driver.Tokens, o.Settle + 1}); err != nil {
		return err
	}
	for _, x := range o.X {
		if !(x > 0) || math.IsInf(x, 0) {
			return fmt.Errorf("--x %v: want positive numbers", x)
		}
	}
	if len(o.X) == 0 {
		return errors.New("--x: want at least one share")
	}
	if len(o.Others) > 0 && (o.server == "" || o.Parallel > 1) {
		return errors.New("--also: several models want --server, whose router runs them, and one pair at a time")
	}
	if _, starts := strings.CutSuffix(o.Helper, "{target}"); starts && o.server != "" {
		return errors.New("--server: a helper that starts the target has llamarun as its target")
	}
	if o.Hold < 0 {
		return fmt.Errorf("--hold %v: want no less than 0", o.Hold)
	}
	if o.Timeout <= 0 {
		return fmt.Errorf("--timeout %v: want some time", o.Timeout)
	}
	if o.Scenes, err = harm.ParseScenes(o.scenes); err != nil {
		return fmt.Errorf("--scenes: %w", err)
	}
	if len(o.Scenes) == 0 {
		return errors.New("--scenes: want at least one scene")
	}
	o.Tokens = o.driver.Tokens
	return nil
}

func (o *harmOptions) measure(ctx context.Context, stdout, stderr io.Writer) (err error) {
	if err := needRoot("to make control groups, drop the page cache and trace"); err != nil {
		return err
	}
	in, err := llama.Install(ctx)
	if err != nil {
		return err
	}
	command := func(tokens int) func(string) []string {
		return func(model string) []string {
			d := o.driver
			d.Model, d.Tokens, d.NoRepack, d.Stream = model, tokens, true, true
			return in.Command(ctx, d).Args
		}
	}
	o.Target, o.Trace = command(o.Tokens), command(traceTokens)
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, Width: 40, Predict: true})
	defer bar.Close()
	o.Log = slog.New(slog.NewTextHandler(bar, &slog.HandlerOptions{Level: slog.LevelWarn}))
	o.Progress = func(done, total int, what string) { bar.Update(int64(done), int64(total), what) }
	if o.Model == "" {
		remove, err := o.makeModel(ctx, func(written, size int64) {
			bar.Update(0, 0, fmt.Sprintf("making a model: %s of %s", humanize.IBytes(uint64(written)),
				humanize.IBytes(uint64(size))))
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, remove()) }()
	}
	if o.server != "" {
		remove, err := o.setServerTarget()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, remove()) }()
	}
	r, err := harm.Measure(ctx, o.Config)
	bar.Close()
	if errors.Is(err, confine.ErrInMemory) {
		err = fmt.Errorf("%w: give --dir, or -m, on a disk", err)
	}
	if r == nil {
		return err
	}
	err = errors.Join(err, o.print(stdout, r))
	if found := r.Harm(); found != "" {
		err = errors.Join(err, errors.New(found))
	}
	return err
}

// setServerTarget sets a server as the target, or its router if there are several models: a router
// runs what lies in a directory, which is made and holds links. The caller must call remove.
func (o *harmOptions) setServerTarget() (remove func() error, err error) {
	program, err := exec.LookPath(o.server)
	if err != nil {
		return nil, fmt.Errorf("find the server: %w", err)
	}
	remove = func() error { return nil }
	if len(o.Others) == 0 {
		ask, err := newAsking(o.driver)
		if err != nil {
			return nil, err
		}
		o.Target = func(model string) []string { return ask.command(program, "-m", model) }
		return remove, nil
	}
	dir, err := os.MkdirTemp(o.Dir, "tensorcast-harm-models-")
	if err != nil {
		return nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	var names []string
	for i, path := range append([]string{o.Model}, o.Others...) {
		names = append(names, fmt.Sprintf("model-%d", i))
		if path, err = filepath.Abs(path); err == nil {
			err = os.Symlink(path, filepath.Join(dir, names[i]+".gguf"))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("link the models of the router: %w", err), remove())
		}
	}
	ask, err := newAsking(o.driver, names...)
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	o.Target = func(string) []string { return ask.command(program, "--models-dir", dir) }
	return remove, nil
}

// makeModel writes a model with random weights. The caller must call remove.
func (o *harmOptions) makeModel(ctx context.Context, progress func(written, size int64)) (remove func() error,
	err error) {
	cfg, err := synth.Sized(o.size, synth.Config{Type: gguf.Q8_0, Seed: 1})
	if err != nil {
		return nil, cli.Usage(err)
	}
	plan, err := synth.NewPlan(cfg)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "tensorcast-harm-model-")
	if err != nil {
		return nil, err
	}
	o.Model = filepath.Join(dir, "model.gguf")
	remove = func() error { return os.RemoveAll(dir) }
	if err := plan.WriteFile(ctx, o.Model, func(written int64) { progress(written, plan.Size) }); err != nil {
		return nil, errors.Join(err, remove())
	}
	return remove, nil
}
