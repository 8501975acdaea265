package matrix

// This file makes a plan of what a file says: the series with their combinations, and how long they may take.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/pressure"
	"tensorcast/internal/proc"
	"tensorcast/internal/tabular"
)

// Plan is what is to be measured.
type Plan struct {
	File   *File
	Series []*Series
}

// Series is what is to be measured of one model.
type Series struct {
	Model Model
	Shape Shape
	// Missing says why the model cannot be had, and so is not measured; nil: it can.
	Missing error

	settings []pressure.Setting
	leftOut  []pressure.LeftOut
	runs     int
}

// Shape is what is known of a model before it is there.
type Shape struct {
	Bytes  int64   // size of the file; 0: not known
	Active float64 // about the share of its bytes that a token reads
}

// Materials makes models, or gets them.
type Materials interface {
	// Describe says how large a model is, without making it. It fails with [ErrMissing], [fs.ErrNotExist] or
	// [llama.ErrUnavailable] if the model cannot be had here, and with another error if what the file says of it is
	// wrong.
	Describe(ctx context.Context, m *Model) (Shape, error)
	// Make returns the path of a model, which it makes or gets if it is not there.
	Make(ctx context.Context, m *Model) (path string, err error)
}

// ErrMissing says that a model cannot be had on this machine.
var ErrMissing = errors.New("the model cannot be had")

// NewPlan makes the plan of a file. It fails if what the file says of a model is wrong; a model that cannot be had is
// in the plan as missing.
func NewPlan(ctx context.Context, f *File, materials Materials) (*Plan, error) {
	p := &Plan{File: f}
	for i := range f.Models {
		s := &Series{Model: f.Models[i]}
		var err error
		s.Shape, err = materials.Describe(ctx, &s.Model)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, ErrMissing), errors.Is(err, fs.ErrNotExist), errors.Is(err, llama.ErrUnavailable):
			s.Missing = err
		case err != nil:
			return nil, fmt.Errorf("model %q: %w", s.Model.Name, err)
		}
		for at, memory := range f.Memory {
			set := pressure.Setting{X: memory.Share, Readahead: f.Readahead}
			if s.Model.Mixture {
				set = pressure.Setting{Experts: memory.Share, Readahead: f.Readahead}
			}
			s.settings = append(s.settings, set)
			for _, strategy := range f.Strategies {
				if because := f.whyLeftOut(s.Model.Name, memory.Name, strategy.Name); because != "" {
					s.leftOut = append(s.leftOut, pressure.LeftOut{
						Variant: strategy.Name, Setting: at, Because: because})
				} else {
					s.runs += f.Repeat
				}
			}
		}
		s.dropEmpty(f)
		p.Series = append(p.Series, s)
	}
	return p, nil
}

// whyLeftOut is the reason of the first entry that leaves a combination out; empty if it is measured.
func (f *File) whyLeftOut(model, memory, strategy string) string {
	has := func(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	for _, l := range f.LeftOut {
		if has(l.Models, model) && has(l.Memory, memory) && has(l.Strategies, strategy) {
			return strings.TrimSpace(l.Because)
		}
	}
	return ""
}

// dropEmpty removes settings at which nothing is run: the series would prepare them for nothing. The plan still names
// what is left out there.
func (s *Series) dropEmpty(f *File) {
	kept, left := s.settings[:0:0], s.leftOut[:0:0]
	for at, set := range s.settings {
		var here []pressure.LeftOut
		for _, l := range s.leftOut {
			if l.Setting == at {
				l.Setting = len(kept)
				here = append(here, l)
			}
		}
		if len(here) < len(f.Strategies) {
			kept, left = append(kept, set), append(left, here...)
		}
	}
	s.settings, s.leftOut = kept, left
}

// placeholder is what may be replaced in a strategy's helper.
var placeholder = regexp.MustCompile(`\{([^{}]*)\}`)

// Commands lists the names in braces in the helpers of all strategies that are commands: those that package pressure
// and this one do not replace by something else.
func (p *Plan) Commands() (names []string) {
	for _, s := range p.File.Strategies {
		for _, found := range placeholder.FindAllStringSubmatch(s.Helper, -1) {
			if name := found[1]; !slices.Contains(others, name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

const patternName = "pattern"

// others are the names in braces that are no commands.
var others = []string{"pid", "model", "limit", "room", "target", patternName}

// variants are the strategies as package pressure takes them. commands are paths by name, pattern is that of the
// model's pattern.
func (f *File) variants(commands map[string]string, pattern string) (all []pressure.Variant) {
	for _, s := range f.Strategies {
		helper := placeholder.ReplaceAllStringFunc(s.Helper, func(found string) string {
			name := found[1 : len(found)-1]
			if path, ok := commands[name]; ok {
				return proc.Quote(path)
			}
			if name == patternName {
				return proc.Quote(pattern)
			}
			return found // package pressure replaces it
		})
		v := pressure.Variant{Name: s.Name, Helper: strings.TrimSpace(helper), Flags: s.Flags}
		if launcher, ok := strings.CutSuffix(v.Helper, "{target}"); ok {
			v.Helper, v.Launcher = "", strings.TrimSpace(launcher)
		}
		all = append(all, v)
	}
	return all
}

// needsPattern says whether a strategy follows the model's pattern.
func (f *File) needsPattern() bool {
	return slices.ContainsFunc(f.Strategies, func(s Strategy) bool {
		return strings.Contains(s.Helper, "{"+patternName+"}")
	})
}

// ---- how long it may take

// What a machine with two processors and a disk of medium speed gives, for estimates: bytes per second of the page
// cache, of reading ahead, and of page faults. Measurements of this project are of the same order.
const (
	assumedMemory = 8 << 30
	assumedDisk   = 1.2 * (1 << 30)
	assumedFaults = 0.8 * (1 << 30)
	// Seconds that a run takes besides loading and tokens, and a series besides its runs.
	runOverhead, seriesOverhead = 3.5, 12
	// onceOverhead is that of a run without a limit, of which a series has onceRuns, tracing included.
	onceOverhead, onceRuns = 1.5, 9
	// unknownBytes is assumed of a model whose size is not known.
	unknownBytes = 300 << 20
)

// Estimate is about how long the series takes on a machine of medium speed.
func (s *Series) Estimate(f *File) time.Duration {
	if s.Missing != nil {
		return 0
	}
	size, active := float64(s.Shape.Bytes), s.Shape.Active
	if size == 0 {
		size, active = unknownBytes, 1
	}
	tokens := float64(s.Model.tokens(f) + 2) // the prompt, and warming up
	token, load := size*active/assumedMemory, size/assumedDisk
	seconds := seriesOverhead + onceRuns*(onceOverhead+load+tokens*token)
	for at, set := range s.settings {
		missing := size * active * max(1-set.X-set.Experts, 0)
		for _, strategy := range f.Strategies {
			if s.isLeftOut(at, strategy.Name) {
				continue
			}
			reads := missing / assumedDisk
			if strategy.Helper == "" && missing > 0 { // all that a token reads is read again
				reads = size * active / assumedFaults
			}
			seconds += float64(f.Repeat) * (runOverhead + load + tokens*(token+reads))
		}
		seconds += 2 // readings of the disk
	}
	return time.Duration(seconds * float64(time.Second))
}

func (s *Series) isLeftOut(setting int, strategy string) bool {
	return slices.ContainsFunc(s.leftOut, func(l pressure.LeftOut) bool {
		return l.Setting == setting && l.Variant == strategy
	})
}

// Estimate is about how long all series take.
func (p *Plan) Estimate() (all time.Duration) {
	for _, s := range p.Series {
		all += s.Estimate(p.File)
	}
	return all
}

// WriteText writes the plan for people: a row for each model, what is left out and why, and how long it may take.
func (p *Plan) WriteText(w io.Writer) error {
	t := &tabular.Table{Columns: slices.Concat(tabular.Left("model"), tabular.Right("size", "combinations", "left out",
		"runs", "about"))}
	all := len(p.File.Memory) * len(p.File.Strategies)
	notes := tabular.Lines{}
	runs := 0
	for _, s := range p.Series {
		size := "-"
		if s.Shape.Bytes > 0 {
			size = humanize.IBytes(uint64(s.Shape.Bytes))
		}
		measured := s.runs / p.File.Repeat
		row := []string{s.Model.Name, size, fmt.Sprint(measured), fmt.Sprint(all - measured), fmt.Sprint(s.runs),
			roundTime(s.Estimate(p.File))}
		if s.Missing != nil {
			row = []string{s.Model.Name, "-", "0", "-", "0", "-"}
			notes = append(notes, fmt.Sprintf("%s cannot be measured: %v", s.Model.Name, s.Missing))
		} else {
			runs += s.runs
		}
		t.Rows = append(t.Rows, row)
	}
	for _, l := range p.File.LeftOut {
		if n := p.countLeftOut(l); n > 0 {
			notes = append(notes, fmt.Sprintf("Left out, %d combinations: %s", n, strings.TrimSpace(l.Because)))
		}
	}
	notes = append(notes, fmt.Sprintf("All together are %d runs, which take about %s on a machine with two processors "+
		"and a disk of 1.2 GiB/s.", runs, roundTime(p.Estimate())))
	return tabular.Document{t, notes}.WriteText(w)
}

// countLeftOut counts the combinations that are left out for the reason of an entry.
func (p *Plan) countLeftOut(entry LeftOut) (n int) {
	for _, s := range p.Series {
		for _, m := range p.File.Memory {
			for _, strategy := range p.File.Strategies {
				if p.File.whyLeftOut(s.Model.Name, m.Name, strategy.Name) == strings.TrimSpace(entry.Because) {
					n++
				}
			}
		}
	}
	return n
}

// roundTime writes a time for people: "1 h 35 min", "4 min".
func roundTime(d time.Duration) string {
	minutes := int(d.Round(time.Minute) / time.Minute)
	switch {
	case d == 0:
		return "-"
	case minutes == 0:
		return "1 min"
	case minutes < 60:
		return fmt.Sprintf("%d min", minutes)
	}
	return fmt.Sprintf("%d h %d min", minutes/60, minutes%60)
}
