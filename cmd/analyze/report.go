package main

// This file has the subcommand report: one page with everything, for the browser.

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
	"tensorcast/pattern"
	"tensorcast/report"
	"tensorcast/report/gather"
)

// pageFile is what report writes.
const pageFile = "index.html"

func reportCommand(root *options) *cobra.Command {
	return &cobra.Command{
		Use:   "report [flags]",
		Short: "Make one page of a capture, for the browser",
		Long: `analyze report writes index.html: one file, which needs no network. It opens with what was found, then has the steps over
time (speed, what came from disk, waiting), a heatmap of tensors and steps, where in the file was read, and tables of phases,
components, layers, gaps and tensors. Charts zoom and move, tables sort and filter, and it prints.

The page stays below 15 MB for any capture: what has more steps, tensors or reads than a page can show is put together, and
the page says so.

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

// page fills the page. Of a mixture it shows which experts are chosen in the place of the bytes that are read, which are nearly the same for all tokens.
func (s *study) page() (*report.Report, error) {
	meta, p := s.in.capture.Meta, s.pattern
	made := s.sums.Report(pattern.ModelName(meta, p.Model), meta, s.sums.Compute())
	add := func(name, value string) {
		if value != "" {
			made.Context = append(made.Context, report.Fact{Name: name, Value: visible.Line(value)})
		}
	}
	if int(p.Model) < len(meta.Models) {
		add("model", humanize.IBytes(uint64(max(meta.Models[p.Model].Bytes, 0))))
	}
	if h := meta.Host; h.CPUs > 0 {
		add("machine", strings.TrimSpace(fmt.Sprintf("%d CPUs %s", h.CPUs, h.CPU))+memoryText(h.MemoryBytes)+linuxText(h.Kernel))
	}
	if m := meta.Memory; m != nil && m.LimitBytes > 0 {
		add("limit of memory", humanize.IBytes(uint64(m.LimitBytes))+" ("+m.Of+")")
	}
	if d := meta.Disk; d != nil && d.BytesPerSecond > 0 {
		add("disk", fmt.Sprintf("%s/s, reads %d KiB ahead", humanize.Bytes(uint64(d.BytesPerSecond)), d.ReadaheadKiB))
	}
	if !meta.Started.IsZero() {
		add("traced", meta.Started.UTC().Format("2006-01-02 15:04 UTC"))
	}
	add("detail", meta.Detail)
	add("command", strings.Join(meta.Command, " "))
	made.Notes = append(made.Notes, s.in.warnings...)
	experts, err := s.expertsHeat()
	if err != nil {
		return nil, s.in.reading(err)
	}
	if experts != nil {
		made.Heat = append(slices.DeleteFunc(made.Heat, func(h report.Heatmap) bool { return h.Name == gather.TitleReads }), *experts)
	}
	return made, nil
}

func memoryText(bytes int64) string {
	if bytes <= 0 {
		return ""
	}
	return ", " + humanize.IBytes(uint64(bytes))
}

func linuxText(kernel string) string {
	if kernel == "" {
		return ""
	}
	return ", Linux " + kernel
}
