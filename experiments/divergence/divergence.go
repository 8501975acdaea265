// Package divergence measures how far the predictions of models are from those of a reference
// model. An unmodified llama.cpp computes the next-token distributions of both at the same
// positions of the same texts, and these are compared in pairs. The perplexities are reported, too,
// but they need far more text to distinguish two good approximations. "lab divergence" runs it.
//
// Texts are scored as llama-perplexity does (see llama.Options.Logits), so that the figures are
// comparable.
package divergence

// This file runs the models over the texts, and compares their outputs.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"tensorcast/experiments/llama"
	"tensorcast/gguf"
)

// Candidate is a model to compare with the reference. It must have the same vocabulary.
type Candidate struct {
	Name string // name in the report
	Path string // path of the GGUF file (of a split model: its first part)
	// BytesPerWeight is the size of its weights where they are used; 0 means their size in the
	// file. It must be set for a reconstruction that is stored as F32.
	BytesPerWeight float64
}

// Config says what to compare, and how.
type Config struct {
	Reference  string // path of the GGUF file
	Candidates []Candidate
	Texts      []string // paths of text files
	Context    int      // tokens per chunk, of which the second half is scored; 0: 256
	Chunks     int      // largest number of chunks per text; 0: all
	Threads    int      // threads of each llama.cpp; 0: 1
	Parallel   int      // llama.cpps that run at the same time; 0: as many as there are CPUs for, with Threads each
	// Progress, if not nil, is called when a run of a model over a text begins or ends: done of
	// total runs have ended. Calls do not overlap.
	Progress func(done, total int)
}

// ErrTokens says that a candidate splits a text into other tokens than the reference, so that
// predictions cannot be paired.
var ErrTokens = errors.New("it tokenises the text differently from the reference")

// Compare runs the reference once over each text, then each candidate, and returns a row for each
// text and candidate, in this order. If ctx ends or a run fails, it returns the report of the
// complete rows (nil if there are none) with the error.
//
// A model diverges from itself by exactly 0, because its logits are the same bit for bit. Any
// change of type, even one that keeps the values, changes how llama.cpp rounds activations and
// sums.
//
// While it runs, the reference's logits are stored in a temporary directory (TMPDIR). For each text
// they take about 2 bytes times the tokens of the text times the size of the vocabulary. It needs
// memory for the models, for one distribution of each, and 24 bytes per prediction.
func Compare(ctx context.Context, in *llama.Installation, cfg Config) (*Report, error) {
	if len(cfg.Candidates) == 0 || len(cfg.Texts) == 0 {
		return nil, errors.New("compare models: no candidate or no text")
	}
	cfg.Threads = max(1, cfg.Threads)
	if cfg.Context == 0 {
		cfg.Context = 256
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = max(1, runtime.GOMAXPROCS(0)/cfg.Threads)
	}
	cfg.Candidates = slices.Clone(cfg.Candidates)
	for i := range cfg.Candidates {
		if c := &cfg.Candidates[i]; c.BytesPerWeight == 0 {
			var err error
			if c.BytesPerWeight, err = bytesPerWeight(c.Path); err != nil {
				return nil, fmt.Errorf("candidate %s: %w", c.Name, err)
			}
		}
	}
	dir, err := os.MkdirTemp("", "divergence-")
	if err != nil {
		return nil, fmt.Errorf("keep the reference's logits: %w", err)
	}
	defer os.RemoveAll(dir)

	c := comparison{Config: cfg, in: in, dir: dir,
		progress: progress{report: cfg.Progress, total: len(cfg.Texts) * (1 + len(cfg.Candidates))}}
	c.progress.add(0)
	r := &Report{Reference: cfg.Reference, Context: cfg.Context, Rows: make([]Row, len(cfg.Texts)*len(cfg.Candidates))}
	if r.ReferenceBytesPerWeight, err = bytesPerWeight(cfg.Reference); err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	results := make([]*llama.Result, len(cfg.Texts))
	err = c.forEach(ctx, len(cfg.Texts), func(ctx context.Context, i int) (err error) {
		o := c.options(cfg.Reference, i)
		o.Logits = c.logitsPath(i)
		if results[i], err = in.Run(ctx, o); err != nil {
			return fmt.Errorf("reference, %s: %w", cfg.Texts[i], err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.Llama, r.Threads = results[0].Llama, results[0].Threads
	err = c.forEach(ctx, len(r.Rows), func(ctx context.Context, i int) error {
		text, candidate := i/len(cfg.Candidates), cfg.Candidates[i%len(cfg.Candidates)]
		row, err := c.row(ctx, candidate, text)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", candidate.Name, cfg.Texts[text], err)
		}
		r.Rows[i] = row
		return nil
	})
	if err != nil {
		r.Interrupted = true
		r.Rows = slices.DeleteFunc(r.Rows, func(row Row) bool { return row.Candidate == "" })
		if len(r.Rows) == 0 {
			return nil, err
		}
	}
	return r, err
}

// comparison is the state of one call of Compare.
type comparison struct {
	Config
	in       *llama.Installation
	dir      string // where the reference's logits are stored
	progress progress
}

type progress struct {
	mu          sync.Mutex
	done, total int
	report      func(done, total int)
}

func (p *progress) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	if p.report != nil {
		p.report(p.done, p.total)
	}
}

// forEach calls do for 0 to n-1, Parallel at a time, until one call fails.
func (c *comparison) forEach(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	g, running := errgroup.WithContext(ctx)
	g.SetLimit(c.Parallel)
	for i := range n {
		g.Go(func() error {
			if running.Err() != nil {
				return context.Cause(running)
			}
			if err := do(running, i); err != nil {
				return err
			}
			c.progress.add(1)
			return nil
		})
	}
	return g.Wait()
}

func (c *comparison) options(model string, text int) llama.Options {
	return llama.Options{Model: model, TextFile: c.Texts[text], Context: c.Context, Chunks: c.Chunks,
		Threads: c.Threads, Warmup: "none"}
}

// logitsPath is the path of the reference's logits for a text.
func (c *comparison) logitsPath(text int) string { return filepath.Join(c.dir, strconv.Itoa(text)) }

func (c *comparison) row(ctx context.Context, candidate Candidate, text int) (Row, error) {
	f, err := os.Open(c.logitsPath(text))
	if err != nil {
		return Row{}, err
	}
	defer f.Close()
	reference, err := llama.NewLogits(f)
	if err != nil {
		return Row{}, err
	}
	s := newSums(reference.LogitsHeader)
	_, err = c.in.Score(ctx, c.options(candidate.Path, text), func(l *llama.Logits) error {
		if l.LogitsHeader != reference.LogitsHeader {
			return fmt.Errorf("%w: %+v, the reference %+v", ErrTokens, l.LogitsHeader, reference.LogitsHeader)
		}
		return s.addAll(reference, l)
	})
	if err != nil {
		return Row{}, err
	}
	row := s.row()
	row.Candidate, row.BytesPerWeight, row.Text = candidate.Name, candidate.BytesPerWeight, filepath.Base(c.Texts[text])
	return row, nil
}

// addAll adds all pairs of predictions.
func (s *sums) addAll(reference, candidate *llama.Logits) error {
	for n := 1; ; n++ {
		target, p, err := reference.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		same, q, err := candidate.Next()
		if err != nil {
			return err
		}
		if same != target {
			return fmt.Errorf("%w: prediction %d is of token %d, the reference's of %d", ErrTokens, n, same, target)
		}
		if err := s.add(p, q, int(target)); err != nil {
			return fmt.Errorf("prediction %d: %w", n, err)
		}
	}
}

// bytesPerWeight is the mean size of a weight over all tensors of a model.
func bytesPerWeight(path string) (float64, error) {
	m, err := gguf.OpenModel(path)
	if err != nil {
		return 0, err
	}
	var bytes, weights float64
	for _, f := range m.Files {
		for _, t := range f.Tensors {
			elems := 1.0
			for _, n := range t.Shape {
				elems *= float64(n)
			}
			bytes, weights = bytes+float64(t.Size), weights+elems
		}
	}
	if weights == 0 {
		return 0, fmt.Errorf("%s has no tensors", path)
	}
	return bytes / weights, nil
}
