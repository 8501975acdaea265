package main

// This file has the subcommand report: one page with everything, for the browser.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
	"tensorcast/moe"
	"tensorcast/report"
	"tensorcast/report/gather"
)

// pageFile is the file that report writes.
const pageFile = "index.html"

func reportCommand(root *options) *cobra.Command {
	return &cobra.Command{
		Use:   "report [flags]",
		Short: "Make one page of a capture, for the browser",
		Long: `analyze report writes index.html, which shows a capture on one page for the browser. It is one file, and needs no
network. The page begins with what was found, and with tokens per second over time and what held each token up. Then it
shows the phases in time, what came from disk, and how long steps waited. It has a heatmap of tensors and steps. It
shows where in the file reads were, and which experts of each layer are chosen most and least. At its end are tables of
phases, components, layers, gaps and tensors. You can zoom and move charts, and save each as SVG. You can sort and
filter tables, and print the page.

The page stays below 15 MB for any capture. If there are more steps, tensors or reads than a page can show, several are
put together, and the page says so.

Exit status: 0 done; 1 failed; 2 the command line is wrong.`,
		Example: `  sudo tracer --detail op+io -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  analyze report && xdg-open analysis/index.html`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := root.check(cmd); err != nil {
				return err
			}
			if cmd.Flags().Changed("top") {
				return cli.Usagef("--top: a page has all tensors")
			}
			return makePage(cmd.Context(), root, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// makePage is the subcommand.
func makePage(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	in, err := load(ctx, o, stderr)
	if err != nil {
		return err
	}
	s := &study{in: in}
	if err := s.collect(ctx); err != nil {
		return err
	}
	made, err := s.page()
	if err != nil {
		return err
	}
	written, err := writeAll(ctx, o.output, []file{{pageFile, made.Write}})
	if err != nil {
		return err
	}
	if o.json {
		return cli.WriteJSON(stdout, struct {
			Verdict  []string      `json:"verdict"`
			Facts    []report.Fact `json:"facts"`
			Notes    []string      `json:"notes"`
			Warnings []string      `json:"warnings"`
			Files    []string      `json:"files"`
		}{made.Verdict, made.Facts, made.Notes, in.warnings, written})
	}
	for _, line := range slices.Concat(made.Verdict, made.Notes) {
		if _, err := fmt.Fprintln(stdout, visible.Line(line)); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(stdout, "wrote %s\n", visible.Line(written[0]))
	return err
}

// page makes the page. Of a mixture of experts it shows which experts are chosen, in place of the bytes
// that are read, which are nearly the same for all tokens.
func (s *study) page() (*report.Report, error) {
	meta := s.in.capture.Meta
	made := s.sums.Report(s.modelName(), meta, s.compute())
	made.Context = gather.Provenance(meta, s.pattern.Model)
	made.Notes = append(made.Notes, s.in.warnings...)
	if basis := s.pattern.Basis(); basis != "" {
		made.Verdict = append([]string{strings.ToUpper(basis[:1]) + basis[1:] + "."}, made.Verdict...)
	}
	routes, err := s.routes()
	if errors.Is(err, moe.ErrNoRoutes) {
		return made, nil // the model is dense, or its routers were not observed
	}
	if err != nil {
		return nil, s.in.reading(err)
	}
	if chosen := gather.ExpertsHeatmap(routes, s.sums.Steps()); chosen != nil {
		isReads := func(h report.Heatmap) bool { return h.Name == gather.TitleReads }
		made.Heat = append(slices.DeleteFunc(made.Heat, isReads), *chosen)
	}
	experts := gather.NewExperts(routes)
	made.Maps = experts.Maps()
	made.Tables = append(made.Tables, experts.LayersTable())
	return made, nil
}
