// Package captures makes the data set of captures that is for others: what a real llama.cpp reads of models that may
// be shared, page by page, with the experts that routers choose and the hidden states that they see. "lab dataset" runs
// it.
//
// Each model is run under a memory limit that it does not fit in, from a cold page cache, under tracer. The captures
// become the runs of a data set (package trace/dataset), which is archived with a data card and a loader. Nothing in it
// tells on which machine it was made, but for its kind.
package captures

// This file records a capture of a model, and puts all of them into an archive.

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
	"tensorcast/trace"
	"tensorcast/trace/dataset"
)

// Subject is a model, and how it is run.
type Subject struct {
	Name   string // of the model in the data set
	Path   string // of its file
	Made   string // how the model was made, a sentence
	Prompt string
	Tokens int     // that are generated
	Share  float64 // of the model's file that fits in memory beside [own]
}

// Options say how captures are made.
type Options struct {
	Tracer string                           // the program
	Target func(o llama.Options) []string   // the command line that runs a model
	Note   func(format string, args ...any) // is told what is being done
}

// own is about what llamarun needs of memory besides the model, in bytes.
const own = 12 << 20

//go:embed load.py
var loader []byte

// root is the directory in the archive.
const root = "tensorcast-captures"

// Write records all subjects and writes the archive. The captures and the data set are in a directory for temporary
// files meanwhile. Its errors name the subject.
func Write(ctx context.Context, w io.Writer, subjects []Subject, o Options) (err error) {
	dir, err := os.MkdirTemp("", "tensorcast-captures-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	set := filepath.Join(dir, "set")
	card := newCard()
	for _, s := range subjects {
		o.Note("%s: recording", s.Name)
		c, command, err := record(ctx, filepath.Join(dir, s.Name), s, o)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		options := dataset.Options{Model: s.Name, Run: fmt.Sprintf("memory-%g", s.Share), Hidden: true, ForOthers: true}
		tables, err := dataset.Describe(ctx, c, options)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		p, err := dataset.Append(ctx, set, c, options)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		card.Tables = dataset.MergeTables(card.Tables, tables)
		card.Runs = append(card.Runs, dataset.CardRun{Model: p.Model, Run: p.Run, Made: s.Made, Command: command})
	}
	var text strings.Builder
	if err := card.WriteMarkdown(&text); err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(filepath.Join(set, "README.md"), []byte(text.String()), 0o600),
		os.WriteFile(filepath.Join(set, "load.py"), loader, 0o600)); err != nil {
		return err
	}
	return dataset.WriteArchive(w, set, root, time.Unix(0, 0))
}

// record runs a subject under tracer, and opens the capture. command is what was run, without paths.
func record(ctx context.Context, dir string, s Subject, o Options) (c *trace.Capture, command string, err error) {
	model, err := confine.Open(s.Path)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	if err := model.Drop(ctx); err != nil {
		return nil, "", err
	}
	top, err := cgroup.Root()
	if err != nil {
		return nil, "", err
	}
	group, err := cgroup.Create(top, fmt.Sprintf("tensorcast-captures-%d", os.Getpid()))
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, group.Remove()) }()
	if err := group.SetLimit(int64(s.Share*float64(model.Size)) + own); err != nil {
		return nil, "", err
	}
	target := o.Target(llama.Options{Model: s.Path, Prompt: s.Prompt, Tokens: s.Tokens, Threads: 2, NoRepack: true})
	args := append([]string{"--detail", "op+io", "--hidden", "--as-root", "-o", dir, "--"},
		confine.In(group, target, "")...)
	cmd := exec.CommandContext(ctx, o.Tracer, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // tracer ends its target
	var said proc.Tail
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, "", context.Cause(ctx)
		}
		return nil, "", fmt.Errorf("tracer: %w: %s", err, said.LastLine())
	}
	if c, err = trace.Open(dir); err != nil {
		return nil, "", err
	}
	if lost := c.Meta.Counters.Lost(); lost > 0 || !c.Meta.Complete {
		return nil, "", fmt.Errorf("the capture is not complete: %d events were lost", lost)
	}
	words := []string{filepath.Base(target[0])}
	for _, word := range target[1:] {
		if filepath.IsAbs(word) {
			word = filepath.Base(word)
		}
		if strings.ContainsAny(word, " '\"") {
			word = proc.Quote(word)
		}
		words = append(words, word)
	}
	return c, strings.Join(words, " "), nil
}

// newCard is the data card without runs and tables.
func newCard() *dataset.Card {
	return &dataset.Card{
		Title: "What llama.cpp reads of its model: captures",
		Intro: `Each run of this data set is what an unmodified llama.cpp read of a model that does not fit in memory: which op
read which weight and when, which pages came from disk and why, how often they had come before, which experts the
routers of a mixture chose, and the hidden states that routers and attention read. The captures were made with
tensorcast's tracer, which observes a program from outside. All events were kept: none was lost.

A run is a directory, model=MODEL/run=RUN, with a Parquet file for each table. DuckDB, pandas, polars and Spark read all
runs with one query, and take the columns model and run from the directories' names. The run memory-0.5 had memory for
half of the model's file, and 12 MiB for the program itself. It began with nothing of the model in memory. load.py
shows how to read the data:

    python3 load.py
    duckdb -c "SELECT model, sum(bytes), sum(bytes) FILTER (rereads > 0) AS again FROM read_parquet('*/*/pagein.parquet', hive_partitioning = true) GROUP BY model"

hidden.parquet has rows of another width with each model, so read it model by model.

Tokens, routes and the order of reads are the same with the same llama.cpp on the same kind of processor. Times,
process numbers, addresses and what the kernel read ahead are not. The models with random weights say nothing with a
meaning, and their routers choose nearly at random.`,
		Licence: "The data set is under the Apache License 2.0, as tensorcast is. The models were made for it, and the " +
			"prompts are in the commands above.",
	}
}
