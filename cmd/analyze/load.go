package main

// This file opens a capture for every subcommand. What is wrong with it is said here, once, and in the same words.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/cli/progress"
	"tensorcast/internal/visible"
	"tensorcast/pattern"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

// loaded is a capture that was opened and checked.
type loaded struct {
	options  *options
	capture  *trace.Capture // its tables; Meta describes the session, the host and the models
	build    pattern.Options
	warnings []string // what makes answers doubtful, a line each; the user was warned of it
	stderr   io.Writer
}

// load opens the capture that o names, and warns on stderr of everything that makes its answers doubtful.
// Errors name the capture.
func load(ctx context.Context, o *options, stderr io.Writer) (*loaded, error) {
	capture, err := trace.Open(o.capture)
	if err != nil {
		return nil, err
	}
	in := &loaded{options: o, capture: capture, warnings: doubts(capture), stderr: stderr}
	steps := func(yield func(*tables.StepRow, error) bool) {
		for s, err := range capture.Steps() {
			if err == nil {
				err = ctx.Err()
			}
			if !yield(s, err) {
				return
			}
		}
	}
	if in.build, err = pattern.OptionsOf(capture.Meta, steps); err != nil {
		return nil, in.reading(err)
	}
	in.build.Context = o.context
	if o.phase != "" {
		if in.build.Phase, err = tables.ParsePhase(o.phase); err != nil {
			return nil, err
		}
		in.build.HasPhase = true
	}
	for _, w := range in.warnings {
		in.warn("%s", w)
	}
	return in, nil
}

// doubts are what makes a capture's answers doubtful, a line each.
func doubts(c *trace.Capture) []string { return slices.Concat(pattern.Warnings(c.Meta), c.Doubts) }

// warn prints a warning as one line.
func warn(stderr io.Writer, format string, args ...any) {
	fmt.Fprintf(stderr, "analyze: warning: %s\n", visible.Line(fmt.Sprintf(format, args...)))
}

func (in *loaded) warn(format string, args ...any) { warn(in.stderr, format, args...) }

// reading adds to an error which capture was being read.
func (in *loaded) reading(err error) error { return fmt.Errorf("read %s: %w", in.options.capture, err) }

// checked is a table's rows with errors that name the capture. It fails when ctx is cancelled.
func checked[T any](ctx context.Context, in *loaded, rows iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for row, err := range rows {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				err = in.reading(err)
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

// pattern makes the pattern of the context that the options name, and says which of several it is. Each row of the
// access table is shown to every see before the pattern takes it, so that one pass serves them all.
func (in *loaded) pattern(ctx context.Context, see ...func(*tables.Access) error) (*pattern.Pattern, error) {
	accesses, done := in.accesses(ctx, see...)
	p, err := pattern.Build(in.capture.Structure, accesses, in.build)
	done()
	switch {
	case errors.Is(err, pattern.ErrNoAccesses):
		return nil, fmt.Errorf("%s: %w: trace a run that computes with the model, such as "+
			"`tracer -- llama-cli -m model.gguf --no-repack -st -p \"hi\" -n 32`", in.options.capture, err)
	case errors.Is(err, pattern.ErrNoPhase):
		return nil, fmt.Errorf("%s: %w: leave out --phase, or choose another context with --context",
			in.options.capture, err)
	case errors.Is(err, pattern.ErrNoContext):
		return nil, fmt.Errorf("%s: %w: choose with --context", in.options.capture, err)
	case err != nil:
		return nil, in.reading(err)
	}
	if len(p.Contexts) > 1 {
		fmt.Fprintf(in.stderr, "analyze: %s\n", visible.Line(contextText(p, in.capture.Meta)))
	}
	if text := draftText(p, in.capture.Meta); text != "" {
		fmt.Fprintf(in.stderr, "analyze: %s\n", visible.Line(text))
	}
	if basis := p.Basis(); basis != "" {
		fmt.Fprintf(in.stderr, "analyze: %s\n", basis)
	}
	return p, nil
}

// accesses is the access table with a progress bar, if stderr is a terminal. It fails when ctx is cancelled. The caller
// calls done at the end, which takes the bar away. The row is reused.
func (in *loaded) accesses(
	ctx context.Context, see ...func(*tables.Access) error,
) (rows iter.Seq2[*tables.Access, error], done func()) {
	var total int64 // 0: not known
	if meta := in.capture.Meta; meta.Complete {
		total = meta.Rows - meta.Segments.DeletedRows
	}
	bar := progress.New(in.stderr, progress.Options{})
	const chunk = 4096
	return func(yield func(*tables.Access, error) bool) {
		n := int64(0)
		for a, err := range in.capture.Accesses() {
			if n++; n%chunk == 0 {
				bar.Update(n, total, "reading")
				if err := ctx.Err(); err != nil {
					yield(nil, err)
					return
				}
			}
			for _, s := range see {
				if err == nil {
					err = s(a)
				}
			}
			if !yield(a, err) {
				return
			}
		}
	}, bar.Close
}

// readAccesses shows every row of the access table to see. Errors name the capture.
func (in *loaded) readAccesses(ctx context.Context, see func(*tables.Access) error) error {
	rows, done := in.accesses(ctx, see)
	defer done()
	for _, err := range rows {
		if err != nil {
			return in.reading(err)
		}
	}
	return nil
}

// steps are the steps of all contexts, in the order of their numbers.
func (in *loaded) steps() (steps []tables.StepRow, err error) {
	for s, err := range in.capture.Steps() {
		if err != nil {
			return nil, err
		}
		steps = append(steps, *s)
	}
	slices.SortStableFunc(steps, func(a, b tables.StepRow) int { return int(a.Step) - int(b.Step) })
	return steps, nil
}

// draftText is a hint if the analysed context may be that of a draft model. The draft generates most tokens one by one.
// The model that it drafts for reads more, but checks several of these tokens in a decode, which looks like a prompt.
// It is "" if that does not seem to be so.
func draftText(p *pattern.Pattern, meta *tables.Meta) string {
	isTaken := func(c pattern.ContextReads) bool { return c.Context == p.Context && c.Model == p.Model }
	at := slices.IndexFunc(p.Contexts, isTaken)
	if at < 0 || !p.Generates() {
		return ""
	}
	taken := &p.Contexts[at]
	for i := range p.Contexts {
		c := &p.Contexts[i]
		if c.Model != taken.Model && c.Bytes > taken.Bytes && c.GenerationSteps < taken.GenerationSteps {
			return fmt.Sprintf("%s read more in other decodes than those that generate a token: if %s drafts for it, "+
				"--context %d --phase prompt tells of the decodes that check the draft's tokens",
				pattern.ModelName(meta, c.Model), pattern.ModelName(meta, taken.Model), c.Context)
		}
	}
	return ""
}

// contextText says which of several contexts is analysed, and how to choose another.
func contextText(p *pattern.Pattern, meta *tables.Meta) string {
	var others []string
	taken := ""
	for _, c := range p.Contexts {
		text := fmt.Sprintf("%d (%s, %d generation steps, %s)",
			c.Context, pattern.ModelName(meta, c.Model), c.GenerationSteps, humanize.IBytes(uint64(c.GenerationBytes)))
		if c.GenerationSteps == 0 {
			text = fmt.Sprintf("%d (%s, %d decodes that generate nothing, %s)",
				c.Context, pattern.ModelName(meta, c.Model), c.Steps, humanize.IBytes(uint64(c.Bytes)))
		}
		if c.Context == p.Context && c.Model == p.Model {
			taken = text
		} else {
			others = append(others, text)
		}
	}
	const named = 8
	if n := len(others) - named; n > 0 {
		others = append(others[:named], fmt.Sprintf("%d more", n))
	}
	return fmt.Sprintf("the capture holds several contexts; this is context %s; choose another with --context: %s",
		taken, strings.Join(others, ", "))
}
