package main

// This file writes which parts of the model are kept, or would be: --plan and --dry-run.

import (
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/outfile"
	"tensorcast/prefetch"
)

// toStdout is the file name that stands for standard output.
const toStdout = "-"

// addPlanFlags adds --plan and --dry-run.
func addPlanFlags(f *pflag.FlagSet, o *options) {
	f.StringVar(&o.plan, "plan", "",
		"at the end, write as CSV to `FILE` which parts are kept and which are streamed. - is standard output")
	f.BoolVar(&o.dry, "dry-run", false, "learn what a token reads, print what would be kept and the expected tokens "+
		"per second, and end. Nothing is kept")
}

// planFile is the file of --plan. It appears completely at the end, or not at all.
type planFile struct {
	to    io.Writer
	file  *outfile.File // nil for standard output
	parts []prefetch.Part
}

// openPlan begins the file; nil without --plan.
func openPlan(o *options, stdout io.Writer) (*planFile, error) {
	switch {
	case o.plan == "":
		return nil, nil
	case o.plan == toStdout && o.json:
		return nil, cli.Usagef("--plan - and --json both write to standard output: name a file after --plan")
	case o.plan == toStdout:
		return &planFile{to: stdout}, nil
	}
	if _, err := gguf.OpenPart(o.plan); err == nil {
		return nil, fmt.Errorf("write the plan: %s is a model; name another file", o.plan)
	}
	f, err := outfile.Create(o.plan)
	if err != nil {
		return nil, fmt.Errorf("write the plan: %w", err)
	}
	return &planFile{to: f, file: f}, nil
}

// setParts sets the content of the file.
func (p *planFile) setParts(parts []prefetch.Part) {
	p.parts = parts
}

// finish writes the plan, unless there was an error.
func (p *planFile) finish(err error) error {
	if p == nil {
		return err
	}
	defer p.file.Discard() // has no effect once it was committed
	if err == nil {
		err = prefetch.WriteParts(p.to, p.parts)
	}
	if err != nil || p.file == nil {
		return err
	}
	if err := p.file.Commit(); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

// reportDry prints the results of a dry run, on standard output unless the plan goes there.
func reportDry(cmd *cobra.Command, o *options, s prefetch.Summary) error {
	stdout := cmd.OutOrStdout()
	if o.plan == toStdout {
		stdout = cmd.ErrOrStderr()
	}
	if s.Idle != "" {
		_, err := fmt.Fprintf(stdout, "nothing would be kept: %s\n", s.Idle)
		return err
	}
	size := func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	expected := "the disk could not be measured: no expectation"
	experts := ""
	if s.Experts != nil {
		experts = fmt.Sprintf("; of %s of experts %s would be kept",
			size(s.Experts.All), size(min(s.Experts.Room, s.Experts.All)))
	}
	switch {
	case s.Experts != nil && s.Disk > 0:
		expected = "no expectation: it depends on which experts routers choose"
	case s.Expected > 0 && s.Stored:
		expected = fmt.Sprintf("%.2f tok/s expected", s.Expected)
	case s.Expected > 0:
		expected = fmt.Sprintf("%.2f tok/s expected by the disk alone "+
			"(how long computing takes is in a pattern: --pattern FILE)", s.Expected)
	}
	_, err := fmt.Fprintf(stdout, "of %s that each token reads %s would be kept and %s streamed%s, "+
		"in room for %s (%s) with a window of %s; the disk delivers %s/s; %s\n",
		size(s.PerToken), size(s.Pinned), size(s.PerToken-s.Pinned), experts,
		size(s.Room), s.Level, size(s.Window), size(int64(s.Disk)), expected)
	return err
}
