package main

// This file implements "lab fabricplan", which decides in how many ternary planes, or trytes of how
// many trits, a model's weights are kept. See package plan.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"tensorcast/fabric/decompose"
	"tensorcast/fabric/lab/tryteplan"
	"tensorcast/fabric/plan"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/cli/progress"
	"tensorcast/internal/outfile"
)

type fabricplanOptions struct {
	model    string
	profile  string
	bound    float64
	budget   float64
	form     decompose.Fit
	trytes   float64
	rows     int
	json     bool
	markdown bool
	figure   string
	write    string
	quiet    bool

	choice string // name of the flag that selected the kind of plan
}

func fabricplanCommand() *cobra.Command {
	var o fabricplanOptions
	cmd := &cobra.Command{
		Use:   "fabricplan -m model.gguf [--profile NAME | --bound DB | --budget N | --planes N | --trytes DB] [flags]",
		Short: "Plan in how many ternary planes, or trits, the weights of a model are kept",
		Long: `Fabricplan plans in how many ternary planes the weights of a model are kept. A plane has one ternary digit (a
trit: -1, 0 or 1) of each weight of a matrix. For each weight matrix, fabricplan measures what planes cost in
bytes and lose in accuracy. It does so for exact planes, and for 1 to 6 fitted ones. It prints a plan, the named
profiles, and the Pareto front of bytes per weight against error.

The plan follows one of four things: a profile (accurate, which loses nothing, balanced or fast), a bound on the
error of each matrix, a number of bytes per weight for the whole model, or one form for all matrices. A matrix
stays as it is if the file's own type takes fewer bytes, or if no form meets the bound.

--trytes calibrates packed trytes instead. They are for values that are to be edited, or used in exact
arithmetic. It finds the number of trits that each layer needs, so that every tensor's values are DB decibels
above their error. It also finds the scale of each tensor.

--write writes a model with the weights that the plan's planes, or the trytes, represent. Fitted planes and
trytes are written as F32, and exact planes in the file's own type. Any llama.cpp can run that model. lab
divergence measures how far its predictions are from the original's.

Exit codes: 0 planned; 1 not planned or not written; 2 wrong usage.`,
		Example: `  lab fabricplan -m model.gguf --profile balanced --figure front.png
  lab fabricplan -m model.gguf --budget 0.5 --json > plan.json
  lab fabricplan -m model.gguf --planes 3 --block 32 --write three.gguf
  lab fabricplan -m model.gguf --trytes 40 --write trytes.gguf`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q (the model goes after -m)", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"profile", "bound", "budget", "planes", "trytes"} {
				if cmd.Flags().Changed(name) {
					if o.choice != "" {
						return cli.Usagef("--%s and --%s: only one of them can choose the plan", o.choice, name)
					}
					o.choice = name
				}
			}
			if err := o.check(); err != nil {
				return cli.Usage(err)
			}
			if o.write != "" && !cmd.Flags().Changed("rows") {
				// The writer refuses a matrix that keeps its bound in some of its rows only.
				o.rows = 0
			}
			return o.plan(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.model, "model", "m", "", "the model, a GGUF `file`")
	o.profile = "balanced"
	var profiles []string
	for _, p := range plan.Profiles() {
		profiles = append(profiles, p.Name)
	}
	cli.EnumVar(cmd, &o.profile, "profile", "", profiles, "plan for a profile")
	f.Float64Var(&o.bound, "bound", 0,
		"plan for a bound: the products of each matrix are at least `DB` decibels above their error")
	f.Float64Var(&o.budget, "budget", 0, "plan for at most `N` bytes per weight of the whole model")
	f.IntVar(&o.form.Planes, "planes", 0, "plan the same number `N` of planes for all matrices")
	f.IntVar(&o.form.Block, "block", 32, "with --planes: so many columns share a factor: 16, 32, 64, 128 or 256")
	f.BoolVar(&o.form.Shared, "shared", false, "with --planes: use one factor for all planes of a block, not one for each plane")
	f.Float64Var(&o.trytes, "trytes", 0,
		"calibrate trytes: the values of each tensor are at least `DB` decibels above their error")
	f.IntVar(&o.rows, "rows", 256, "measure `N` rows of each matrix, evenly spread, or with 0 all rows. With --write all are measured")
	f.BoolVar(&o.markdown, "markdown", false, "print the tables as Markdown")
	f.BoolVar(&o.json, "json", false, "print the plan as JSON")
	f.StringVar(&o.figure, "figure", "", "draw the Pareto front to a PNG `file`")
	f.StringVar(&o.write, "write", "", "write a model with the plan's weights to a GGUF `file`")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")

	return cmd
}

func (o *fabricplanOptions) check() error {
	switch {
	case o.model == "":
		return errors.New("no model: give -m model.gguf")
	case o.json && o.markdown:
		return errors.New("--json and --markdown: only one of them can be printed")
	case o.rows < 0:
		return fmt.Errorf("--rows %d: want 0 or more", o.rows)
	case o.choice == "bound" && !(o.bound > 0 && o.bound <= 200):
		return fmt.Errorf("--bound %g: want decibels above 0, up to 200", o.bound)
	case o.choice == "trytes" && !(o.trytes > 0 && o.trytes <= 200):
		return fmt.Errorf("--trytes %g: want decibels above 0, up to 200", o.trytes)
	case o.choice == "trytes" && o.figure != "":
		return errors.New("--figure draws the front of a plan: there is none for --trytes")
	case o.choice == "budget" && !(o.budget > 0 && o.budget <= 16):
		return fmt.Errorf("--budget %g: want bytes per weight", o.budget)
	}
	if o.choice == "planes" {
		return o.form.Check()
	}
	return nil
}

func (o *fabricplanOptions) plan(ctx context.Context, stdout, stderr io.Writer) (err error) {
	model, err := gguf.OpenModel(o.model)
	if err != nil {
		return err
	}
	if o.write != "" && len(model.Files) > 1 {
		return fmt.Errorf("--write: %s is split into %d files: merge them first", o.model, len(model.Files))
	}
	w, err := gguf.OpenWeights(model, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	cfg := plan.Config{Rows: o.rows}
	if o.choice == "planes" {
		cfg.Forms = append(plan.Forms(), o.form)
	}
	bar := progress.New(stderr, progress.Options{Quiet: o.quiet, What: "matrices"})
	defer bar.Close()
	cfg.Progress = func(done, total int) { bar.Update(int64(done), int64(total), "") }
	if o.choice == "trytes" {
		t, err := tryteplan.Calibrate(ctx, w, o.trytes, tryteplan.Config{Rows: cfg.Rows, Progress: cfg.Progress})
		bar.Close()
		if err != nil {
			return err
		}
		if o.write != "" {
			if err := t.WriteModel(ctx, w, o.model, o.write); err != nil {
				return err
			}
		}
		return o.print(stdout, t, t.WriteText, t.WriteMarkdown)
	}
	survey, err := plan.Measure(ctx, w, cfg)
	bar.Close()
	if err != nil {
		return err
	}
	p, err := o.choose(survey)
	if err != nil {
		return err
	}
	if o.figure != "" {
		if err := outfile.Write(o.figure,
			func(w io.Writer) error { return survey.WriteFigure(w, filepath.Base(o.model)) }); err != nil {
			return err
		}
	}
	if o.write != "" {
		if err := p.WriteModel(ctx, w, o.model, o.write); err != nil {
			return err
		}
	}
	return o.print(stdout, p, func(w io.Writer) error { return survey.WriteText(w, p) },
		func(w io.Writer) error { return survey.WriteMarkdown(w, p) })
}

// print prints a result in the form that the flags select.
func (o *fabricplanOptions) print(stdout io.Writer, result any, text, markdown func(io.Writer) error) error {
	switch {
	case o.json:
		return cli.WriteJSON(stdout, result)
	case o.markdown:
		return markdown(stdout)
	}
	return text(stdout)
}

func (o *fabricplanOptions) choose(s *plan.Survey) (*plan.Plan, error) {
	switch o.choice {
	case "bound":
		return s.Plan(plan.Profile{Name: fmt.Sprintf("%g dB", o.bound), Bound: o.bound}), nil
	case "budget":
		return s.Within(int64(math.Floor(o.budget * float64(s.Weights))))
	case "planes":
		return s.Uniform(o.form)
	}
	profiles := plan.Profiles()
	i := slices.IndexFunc(profiles, func(p plan.Profile) bool { return p.Name == o.profile })
	return s.Plan(profiles[i]), nil // the flag accepts no other name
}
