package main

// This file is `prefetchd doctor --model`: what a model would reach on this machine. It finds the model and its memory,
// and prints the verdict. probe.go measures the machine.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"tensorcast/gguf"
	"tensorcast/gguf/remote"
	"tensorcast/holding"
	"tensorcast/internal/cli"
	"tensorcast/internal/host"
	"tensorcast/internal/proc"
	"tensorcast/loadflags"
	"tensorcast/pattern"
	"tensorcast/prefetch/forecast"
	"tensorcast/prefetch/hot"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/room"
)

// forecastOptions are the flags that say for which model and which memory.
type forecastOptions struct {
	model   string // a path or a URL
	ram     int64  // bytes; 0: this machine's
	context int    // tokens
	runDir  string
	asJSON  bool
}

// usualContext is for how many tokens of context memory is taken off: enough for a conversation.
const usualContext = 4096

// run says what is expected.
func (o *forecastOptions) run(cmd *cobra.Command) error {
	v, err := o.judge(cmd.Context())
	if err != nil {
		return err
	}
	if o.asJSON {
		return cli.WriteJSON(cmd.OutOrStdout(), v)
	}
	return v.Document().WriteText(cmd.OutOrStdout())
}

func (o *forecastOptions) judge(ctx context.Context) (v *forecast.Verdict, err error) {
	m, at, done, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	pass, err := forecast.PassOf(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.model, err)
	}
	memory, err := o.memory()
	if err != nil {
		return nil, err
	}
	var routing *forecast.Routing
	var notKnown string
	if pass.Experts != nil {
		if routing, notKnown = o.lastRun(m); routing == nil {
			routing = forecast.RoutingOf(pass.Experts)
		}
	}
	p := probe{at: at, pass: pass}
	if err := p.measure(ctx); err != nil {
		return nil, err
	}
	v = forecast.Judge(o.model, pass, p.machine, memory, routing)
	if !v.Rows[0].Fits && p.noDisk != nil {
		return nil, fmt.Errorf("measure the disk, by which tokens per second go: %w", p.noDisk)
	}
	for _, types := range m.ForeignTypes() {
		v.Notes = append(v.Notes, "it has "+types+"; how fast these are computed is guessed")
	}
	v.Notes = append(v.Notes, p.notes...)
	if notKnown != "" {
		v.Notes = append(v.Notes, notKnown)
	}
	v.Start = v.StartWith(loadflags.ForeseeUsual(m), host.Cores())
	return v, nil
}

// open opens the model, and the file on which the disk is measured: the model's largest, or a sample if the model is
// not here. done is to be called at the end.
func (o *forecastOptions) open(ctx context.Context) (m *gguf.Model, at proc.Place, done func() error, err error) {
	if remote.IsURL(o.model) {
		if m, _, err = remote.OpenModel(ctx, nil, o.model); err != nil {
			return nil, at, nil, err
		}
		o.model = m.Files[0].Path // the URL may hold a password
		at, done, err = makeSample(ctx)
		return m, at, done, err
	}
	if m, err = gguf.OpenModel(o.model); err != nil {
		return nil, at, nil, gguf.ExplainOpen(err)
	}
	largest := slices.MaxFunc(m.Files, func(a, b *gguf.File) int { return cmp.Compare(a.Size, b.Size) })
	id, err := proc.FileOf(largest.Path)
	if err != nil {
		return nil, at, nil, err
	}
	at = proc.Place{Path: largest.Path, ID: id}
	return m, at, func() error { return nil }, checkStore(at)
}

// memory is how much memory there is for a llama.cpp that is started as this process was, or as much as the user says.
func (o *forecastOptions) memory() (forecast.Memory, error) {
	if o.ram > 0 {
		return forecast.Memory{Bytes: o.ram, Limit: o.ram, Bound: "--ram", Context: o.context}, nil
	}
	free, err := roomOf(os.Getpid(), &holding.Holding{})
	if err != nil {
		return forecast.Memory{}, fmt.Errorf("%w: say how much there is with --ram", err)
	}
	bound := "the cgroup " + free.Level
	if free.Level == room.LevelHost {
		bound = "this machine's memory and what others use of it"
	}
	return forecast.Memory{Bytes: free.Bytes, Limit: free.Limit, Bound: bound, Context: o.context}, nil
}

// lastRun is how the last run of a mixture has chosen, if prefetchd has helped one; else nil. why says what is wrong
// with what it has left.
func (o *forecastOptions) lastRun(m *gguf.Model) (r *forecast.Routing, why string) {
	if o.runDir == "" || m.Files[0].Info() == nil {
		return nil, ""
	}
	var of models.Model
	for _, f := range m.Files {
		fingerprint, err := f.Fingerprint()
		if err != nil {
			return nil, cli.Message(err)
		}
		of.Files = append(of.Files, pattern.CycleFile{Size: f.Size, Fingerprint: fingerprint})
		of.Parts = append(of.Parts, f)
	}
	scores, err := hot.NewStore(o.runDir).Load(of)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ""
	case err != nil:
		return nil, "it is not known which experts the last run used most: " + cli.Message(err)
	}
	return forecast.RoutingBy(scores), ""
}
