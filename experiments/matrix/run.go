package matrix

// This file measures the series of a plan one after the other, and keeps what was measured of each in a document.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/pressure"
	"tensorcast/experiments/results"
	"tensorcast/internal/outfile"
)

// Options say how a plan is measured.
type Options struct {
	Dir       string // of the documents: NAME.json for each model; it exists
	Materials Materials
	Commands  map[string]string // paths of programs by the names that strategies use; those of the file come first
	// Target returns the command line that runs a model, as [pressure.Config].Target and Trace.
	Target func(o llama.Options) []string
	Load   []string // as [pressure.Config].Load
	// Command is this program's command line in the shell's syntax.
	Command string
	Disk    pressure.DiskOptions
	// Progress, if not nil, is called with about how much of the time of all series is over.
	Progress func(done, total time.Duration, what string)
	// Note, if not nil, is called with a line for each series that is done.
	Note func(line string)
	Log  *slog.Logger
}

// ErrOtherBuild says that a document was begun with another build.
var ErrOtherBuild = errors.New("it was begun with another build")

// CheckCommands finds the programs that the strategies name, and returns their paths. It fails if one is missing.
func (p *Plan) CheckCommands(given map[string]string) (map[string]string, error) {
	known := map[string]string{}
	for name, path := range given {
		known[name] = path
	}
	for _, c := range p.File.Commands {
		known[c.Name] = c.Path
	}
	found := map[string]string{}
	for _, name := range p.Commands() {
		path, ok := known[name]
		if !ok {
			var names []string
			for name := range known {
				names = append(names, name)
			}
			slices.Sort(names)
			return nil, fmt.Errorf("a strategy has {%s}, and no command has that name: commands are %s, and other "+
				"names are %s", name, strings.Join(names, ", "), strings.Join(others, ", "))
		}
		full, err := exec.LookPath(path)
		if err == nil {
			full, err = filepath.Abs(full)
		}
		if err != nil {
			return nil, fmt.Errorf("the command {%s} of a strategy: %w", name, err)
		}
		found[name] = full
	}
	return found, nil
}

// Run measures all series. A series that fails does not keep the others from being measured; the error joins that of
// each. What was measured is kept in documents, also when ctx ends. Then no other series is begun.
func (p *Plan) Run(ctx context.Context, o Options) error {
	commands, err := p.CheckCommands(o.Commands)
	if err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	r := &runner{Plan: p, Options: o, commands: commands, total: p.Estimate()}
	var failed []error
	for _, s := range p.Series {
		err := s.Missing
		if err == nil {
			err = r.runSeries(ctx, s)
		}
		if ctx.Err() != nil {
			r.Note(s.Model.Name + ": interrupted: the same command goes on where it was")
			return fmt.Errorf("%s: %w", s.Model.Name, context.Cause(ctx))
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.Model.Name, err))
		}
		r.done += s.Estimate(p.File)
	}
	return errors.Join(failed...)
}

type runner struct {
	*Plan
	Options
	commands    map[string]string
	done, total time.Duration
}

// progress tells what is being done, and which part of the series is over.
func (r *runner) progress(s *Series, part float64, what string) {
	if r.Progress != nil {
		over := time.Duration(part * float64(s.Estimate(r.File)))
		r.Progress(r.done+over, r.total, s.Model.Name+": "+what)
	}
}

// runSeries measures what is missing of a series.
func (r *runner) runSeries(ctx context.Context, s *Series) error {
	r.progress(s, 0, "making the model")
	model, err := r.Materials.Make(ctx, &s.Model)
	if err != nil {
		return err
	}
	cfg := r.config(s, model)
	path := filepath.Join(r.Dir, s.Model.Name+".json")
	begun := time.Now()
	if cfg.Earlier, err = r.readEarlier(path, begun); err != nil {
		return err
	}
	if e := cfg.Earlier; e != nil {
		if err := e.IsOf(&cfg); err != nil {
			return fmt.Errorf("%s: %w: move it away, or name another directory", path, err)
		}
		if !e.Interrupted && e.CountMissing(&cfg) == 0 {
			r.Note(fmt.Sprintf("%s: is complete already: %s", s.Model.Name, path))
			return nil
		}
	}
	if err := r.makePattern(ctx, s, &cfg); err != nil {
		return err
	}
	cfg.Keep = func(report *pressure.Report) error { return r.save(path, report, begun) }
	report, err := pressure.Measure(ctx, cfg)
	if report != nil {
		err = errors.Join(err, r.save(path, report, begun))
	}
	if err == nil {
		line := fmt.Sprintf("%s: %d runs in %s: %s", s.Model.Name, len(report.Runs), roundTime(time.Since(begun)), path)
		if n := countFailed(report); n > 0 {
			line += fmt.Sprintf(" (%d runs failed: see lab results table)", n)
		}
		r.Note(line)
	}
	return err
}

// countFailed counts runs that failed for another reason than a lack of memory.
func countFailed(report *pressure.Report) (n int) {
	for i := range report.Runs {
		if report.Runs[i].Outcome == pressure.Failed {
			n++
		}
	}
	return n
}

// config is the configuration of a series.
func (r *runner) config(s *Series, model string) pressure.Config {
	f := r.File
	driver := llama.Options{Model: model, Prompt: s.Model.prompt(f), Tokens: s.Model.tokens(f), Threads: f.Threads,
		NoRepack: !s.Model.Repack, Mark: 3}
	cfg := pressure.Config{
		Model: model, Target: r.Target(driver), Settings: s.settings, Repeat: f.Repeat, Skip: f.Skip,
		Variants: f.variants(r.commands, r.patternPath(s)), LeftOut: s.leftOut, Load: r.Load, Disk: r.Disk, Log: r.Log,
		Progress: func(done, total int, what string) { r.progress(s, float64(done)/float64(max(total, 1)), what) },
	}
	driver.Tokens = traceTokens
	cfg.Trace = r.Target(driver)
	if s.Model.Repack { // its tokens read nothing of the file that a tracer could see
		cfg.Weights = s.Shape.Bytes
	}
	return cfg
}

// traceTokens is how many tokens are traced. They suffice to see whether all tokens read the same.
const traceTokens = 3

func (r *runner) patternPath(s *Series) string {
	return filepath.Join(r.Dir, s.Model.Name+".pattern.json")
}

// makePattern writes the model's pattern, if a strategy that is run follows it.
func (r *runner) makePattern(ctx context.Context, s *Series, cfg *pressure.Config) error {
	if !r.File.needsPattern() {
		return nil
	}
	needs := false
	for _, strategy := range r.File.Strategies {
		for at := range s.settings {
			needs = needs || strings.Contains(strategy.Helper, "{"+patternName+"}") && !s.isLeftOut(at, strategy.Name)
		}
	}
	if !needs {
		return nil
	}
	r.progress(s, 0, "tracing the pattern")
	return outfile.Write(r.patternPath(s), func(w io.Writer) error {
		if err := confine.WritePattern(ctx, w, cfg.Trace, r.Log); err != nil {
			return fmt.Errorf("make the pattern: %w", err)
		}
		return nil
	})
}

// readEarlier reads what was measured before; nil if that is nothing.
func (r *runner) readEarlier(path string, begun time.Time) (*pressure.Report, error) {
	d, err := results.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if d.Kind != results.Pressure {
		return nil, fmt.Errorf("%s: it is of lab %s: move it away, or name another directory", path, d.Kind)
	}
	report, err := pressure.ReadReport(d.Report, -1)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	now, err := results.New(results.Pressure, report, r.Command, begun)
	if err != nil {
		return nil, err
	}
	if now.Build != d.Build {
		return nil, fmt.Errorf("%s: %w, commit %s with %s, and this is %s with %s: move it away, or name another directory",
			path, ErrOtherBuild, d.CommitText(), d.Build.Go, now.CommitText(), now.Build.Go)
	}
	return report, nil
}

// save writes the document of a series.
func (r *runner) save(path string, report *pressure.Report, begun time.Time) error {
	d, err := results.New(results.Pressure, report, r.Command, begun)
	if err != nil {
		return err
	}
	return outfile.Write(path, d.Write)
}
