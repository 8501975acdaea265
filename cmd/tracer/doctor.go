package main

// This file is `tracer doctor`. It prints what ebpf.Examine finds out, and whether a process reads
// its weights from a file at all.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tensorcast/ebpf"
	"tensorcast/gguf"
	"tensorcast/holding"
	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
	"tensorcast/loadflags"
	"tensorcast/prefetch/pages"
	"tensorcast/processes"
)

func newDoctorCommand() *cobra.Command {
	var pid processID
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [--pid N | -- command [argument...]]",
		Short: "Say whether tracing would work, and what to do where it would not",
		Long: `Say whether tracing would work. The report says what the kernel offers, which is found out by trying, and what you may
do here. It has the files of the target, and says where probes would be set and what they would cost. Nothing is traced,
and the command is not started.

It works without root, and says what root would add.

With --pid it also says whether the process reads its weights from the model's file. Two kinds of weights cannot be
traced: those that llama.cpp copied when it loaded them, because of another layout or of the load mode, and those on a
GPU. If a command names its model, the report says which weights will be copied. The advice names only flags that this
llama.cpp has.

Exit status: 0 if tracer would work as it is, with --detail op; 1 if not; 2 for wrong usage.`,
		Example: `  tracer doctor                                   # this machine
  sudo tracer doctor --pid $(pidof llama-server)
  tracer doctor -- llama-cli -m model.gguf`,
		Args: func(_ *cobra.Command, args []string) error {
			if pid != 0 && areNumbers(args) {
				return nil // as pidof prints them
			}
			if pid != 0 && len(args) > 0 {
				return errors.New("give a command or --pid, not both")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if pid != 0 {
				target, err := findTarget(pid, args)
				if err != nil {
					return err
				}
				pid, args = target, nil
			}
			opts := ebpf.ExamineOptions{PID: int(pid), Command: args, Env: os.Environ()}
			return diagnose(cmd.Context(), cmd.OutOrStdout(), opts, asJSON)
		},
	}
	f := cmd.Flags()
	f.VarP(targetFlag{&pid, f}, "pid", "p", "examine the running process with the id `N`, or the one that it has started to compute for it")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON")
	f.SetInterspersed(false)
	return cmd
}

// findTarget returns the process to report on: of one that only starts others, the one that computes.
func findTarget(pid processID, others []string) (processID, error) {
	o := options{pid: pid}
	if len(others) > 0 {
		if err := o.chooseTopmost(others); err != nil {
			return 0, cli.Usage(err)
		}
	}
	found, err := processes.Computing(int(o.pid))
	if err != nil || len(found) == 0 {
		return o.pid, err
	}
	if len(found) > 1 {
		return 0, cli.Usagef("process %d computes nothing itself, and more than one process below it does: "+
			"give one of them, such as %d", o.pid, found[0].PID)
	}
	return processID(found[0].PID), nil
}

// report is the report of `tracer doctor`.
type report struct {
	*ebpf.Report
	Holding *holding.Holding  `json:"holding,omitempty"` // how a running process holds its model
	Weights []holding.Finding `json:"weights,omitempty"` // weights that cannot be traced
	Copies  *loadflags.Copies `json:"copies,omitempty"`  // weights that a command will copy, at most: these neither
}

// diagnose prints a report, and returns an error if tracer would not work.
func diagnose(ctx context.Context, stdout io.Writer, opts ebpf.ExamineOptions, asJSON bool) error {
	found, err := ebpf.Examine(opts)
	if err != nil {
		return err
	}
	r := &report{Report: found}
	if err := r.addWeights(ctx, opts.PID); err != nil {
		return err
	}
	r.addCopies(opts.Command, opts.Env)
	if asJSON {
		err = cli.WriteJSON(stdout, r)
	} else {
		err = printReport(stdout, r)
	}
	if err == nil && !r.OK {
		err = &cli.Exit{Code: cli.Failure} // the report says why
	}
	return err
}

// addWeights adds which weights of a process are copies or on a GPU. Their addresses do not tell
// which weight is read. If a process reads no other weights, nothing is traced.
func (r *report) addWeights(ctx context.Context, pid int) error {
	if pid == 0 {
		return nil
	}
	h, err := holding.New(pid).Examine(ctx, holding.Options{})
	if errors.Is(err, fs.ErrPermission) { // the report says so
		return nil
	}
	if err != nil {
		return err
	}
	r.Holding = h
	for _, f := range h.WhereWeights() {
		if f.Reason != holding.Copied && f.Reason != holding.OnDevice {
			continue // other reasons do not prevent tracing
		}
		if f.Reason == holding.Copied && len(h.Files) > 0 { // otherwise the report has advice on the mapping already
			f.Text += "; to trace them: " + h.AdviseMapped() + "; only for that, because " + loadflags.LayoutGain
		}
		r.Weights = append(r.Weights, f)
		r.Advice = append(r.Advice, f.Text)
		r.OK = r.OK && !f.Blocks
	}
	return nil
}

// addCopies adds which weights of the model that a command names the command will copy. Where it cannot be foreseen,
// nothing is added.
func (r *report) addCopies(command, env []string) {
	path := pages.FindNamedModel(command)
	if path == "" {
		return
	}
	model, err := gguf.OpenModel(path)
	if err != nil {
		return // the command itself will say so
	}
	program := loadflags.OfCommand(command, env)
	copies := program.Foresee(model)
	if copies.Bytes == 0 {
		return
	}
	r.Copies = &copies
	if copies.Layout { // otherwise the report has advice on the mapping already
		r.Advice = append(r.Advice, "the command will copy "+copies.Text()+"; to trace them: "+
			program.AdviseAgainst(copies)+"; only for that, because "+loadflags.LayoutGain)
	}
}

// printReport writes a report for people.
func printReport(to io.Writer, r *report) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "kernel %s\n", r.Kernel)
	printFindings(w, r.Features)
	fmt.Fprintf(w, "\nthis process\n")
	printFindings(w, r.Capabilities)
	for _, s := range r.Settings {
		if s.Matters {
			fmt.Fprintf(w, "  %s\t%s\t%s\n", s.Value, s.Name, s.Meaning)
		}
	}
	if r.Target != nil {
		printTarget(w, r.Target)
	}
	if r.Holding != nil && r.Holding.Mode != holding.ModeNone {
		fmt.Fprintf(w, "  weights: %s\n", r.Holding.Mode)
	}
	fmt.Fprintf(w, "\nways to trace\n")
	for _, m := range r.Modes {
		name, state := "--detail "+m.Name, "yes"
		if m.Name == "preload" {
			name = "--preload"
		}
		if !m.OK {
			state = "no"
		}
		if m.Reason != "" {
			name += "\t" + m.Reason
		}
		fmt.Fprintf(w, "  %s\t%s\n", state, name)
	}
	if len(r.Advice) > 0 {
		fmt.Fprintf(w, "\nwhat to do\n")
		for _, line := range r.Advice {
			fmt.Fprintf(w, "  - %s\n", visible.Line(line))
		}
	}
	return w.Flush() // returns the first error of all writes
}

func printFindings(w io.Writer, list []ebpf.Finding) {
	for _, f := range list {
		note := f.Use
		if f.Detail != "" {
			note += ": " + f.Detail
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", f.State, f.Name, visible.Line(note))
	}
}

func printTarget(w io.Writer, t *ebpf.Target) {
	fmt.Fprintf(w, "\ntarget")
	if t.PID != 0 {
		fmt.Fprintf(w, " %d", t.PID)
	}
	fmt.Fprintf(w, " %s\n", visible.Line(strings.Join(t.Command, " ")))
	for _, m := range t.Models {
		fmt.Fprintf(w, "  maps the model %s\n", visible.Line(m))
	}
	for _, f := range t.Files {
		var about []string
		if f.GGMLVersion != "" {
			about = append(about, strings.TrimSpace("ggml "+f.GGMLVersion+" "+f.GGMLCommit))
		}
		if f.LlamaBuild != "" {
			about = append(about, "llama.cpp "+f.LlamaBuild)
		}
		if f.Ops > 0 {
			about = append(about, fmt.Sprintf("%d ops", f.Ops))
		}
		if f.Stripped {
			about = append(about, "stripped")
		}
		if f.Problem != "" {
			about = append(about, f.Problem)
		}
		fmt.Fprintf(w, "  %s", visible.Line(f.Path))
		if len(about) > 0 {
			fmt.Fprintf(w, ": %s", visible.Line(strings.Join(about, ", ")))
		}
		fmt.Fprintln(w)
		for _, p := range f.Probes {
			fmt.Fprintf(w, "    %s\t%s+%d\tat %#x, %s per hit\n",
				p.Role, visible.Line(p.Symbol), p.Skip, p.Offset+p.Skip, p.Cost)
		}
	}
	if t.Layout != nil {
		fmt.Fprintf(w, "  layout: %s\n", t.Layout)
	}
}
