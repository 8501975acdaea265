// Command accounting runs millions of ops under tracer and checks that each is accounted for. See package opsource.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/opsource"
)

type options struct {
	ops, rate int64
	tracer    string
	json      bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	usage := true // until the flags are accepted, errors are the user's
	cmd := &cobra.Command{
		Use:   "accounting [flags]",
		Short: "Check that tracer accounts for every one of millions of ops",
		Long: `Accounting runs a small program that computes a graph of real ggml ops over and over under tracer: at a steady rate, at full speed, on two
threads (a tenth of the ops), and with a buffer of 4 KiB. The program counts its ops. For each run these must be equal:

  the ops that ran x threads = tracer's hits in the kernel + recursion misses
  tracer's hits              = received + lost + filtered

With the default buffer at the given rate (nine tenths of it must be reached) nothing may be lost; with 4 KiB something must be.

Needs root. Seven of eight ops read a weight, and are events.

Exit codes: 0 all of that holds, 1 it does not, or was not measured; 2 wrong usage.`,
		Example: `  sudo accounting
  sudo accounting --ops 1000000 --rate 100000 --tracer bin/tracer --json`,
		Args:         cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, n := range []struct {
				flag  string
				value int64
			}{{"ops", o.ops}, {"rate", o.rate}} {
				if n.value < 1 {
					return fmt.Errorf("--%s %d: want 1 or more", n.flag, n.value)
				}
			}
			usage = false
			return o.measure(cmd.Context(), stdout, stderr)
		},
	}
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	f := cmd.Flags()
	f.Int64Var(&o.ops, "ops", 11_500_000, "ops of a run; at the default ten million are events")
	f.Int64Var(&o.rate, "rate", 260_000, "ops per second; at nine tenths of the default 200,000 are events")
	f.StringVar(&o.tracer, "tracer", "", "the tracer `command` (default: beside this program, else in PATH)")
	f.BoolVar(&o.json, "json", false, "print the accounts as JSON")

	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "accounting:", err)
		if usage {
			return 2
		}
		return 1
	}
	return 0
}

// result is one run and what is wrong with it.
type result struct {
	Name string `json:"run"`
	*opsource.Account
	Wrong string `json:"wrong,omitempty"`
}

func (o *options) measure(ctx context.Context, stdout, stderr io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root, to trace: use sudo")
	}
	tracer, err := o.findTracer()
	if err != nil {
		return err
	}
	in, err := llama.Install(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "accounting")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it any more
	source, err := opsource.New(ctx, dir, in)
	if err != nil {
		return err
	}
	steady := fmt.Sprintf("%s ops/s, default buffer", humanize.Comma(o.rate))
	var results []result
	for _, r := range []struct {
		name  string
		load  opsource.Load
		flags []string
		also  func(*opsource.Account) string // what else is wrong
	}{
		{steady, opsource.Load{Ops: o.ops, Rate: o.rate}, nil, o.nothingLost},
		{"full speed, default buffer", opsource.Load{Ops: o.ops}, nil, nil},
		{"full speed, two threads", opsource.Load{Ops: o.ops / 10, Threads: 2}, nil, nil},
		{"full speed, 4 KiB", opsource.Load{Ops: o.ops}, []string{"--buffer", "4"}, somethingLost},
	} {
		stop := spin(stderr, r.name)
		out := filepath.Join(dir, "capture")
		account, err := source.Run(ctx, tracer, out, r.load, r.flags...)
		stop()
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if err := os.RemoveAll(out); err != nil {
			return err
		}
		res := result{Name: r.name, Account: account}
		if err := account.Check(); err != nil {
			res.Wrong = err.Error()
		}
		if r.also != nil && res.Wrong == "" {
			res.Wrong = r.also(account)
		}
		results = append(results, res)
	}
	return o.print(results, stdout)
}

func (o *options) nothingLost(a *opsource.Account) string {
	if lost := a.Counters.Lost(); lost > 0 {
		return fmt.Sprintf("%d events were lost", lost)
	}
	if a.Count.Rate < 0.9*float64(o.rate) {
		return fmt.Sprintf("only %.0f ops/s were reached: the machine is too busy, or too slow for this --rate", a.Count.Rate)
	}
	return ""
}

func somethingLost(a *opsource.Account) string {
	if a.Counters.OpsLost == 0 {
		return "nothing was lost: the loss was not put to the test"
	}
	return ""
}

func (o *options) findTracer() (string, error) {
	if o.tracer != "" {
		return exec.LookPath(o.tracer)
	}
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), "tracer")); err == nil {
			return path, nil
		}
	}
	return exec.LookPath("tracer")
}

func (o *options) print(results []result, stdout io.Writer) error {
	wrong := 0
	for _, r := range results {
		if r.Wrong != "" {
			wrong++
		}
	}
	if o.json {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", " ")
		if err := enc.Encode(results); err != nil {
			return err
		}
	} else {
		t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "run\tops/s\tops ran x threads\thits\tmisses\treceived\tlost\tfiltered\tunfinished\t all equal\t")
		for _, r := range results {
			c, equal := r.Counters, "yes"
			if r.Wrong != "" {
				equal = "NO"
			}
			n := func(v uint64) string { return humanize.Comma(int64(v)) }
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Name, humanize.Comma(int64(r.Count.Rate)), n(uint64(r.Count.Ops*r.Count.Threads)),
				n(c.Hits), n(c.Misses), n(c.Received), n(c.OpsLost), n(c.Filtered()), n(c.Unfinished), equal)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, r := range results {
		if r.Wrong != "" {
			return fmt.Errorf("%d of %d runs do not hold; %s: %s", wrong, len(results), r.Name, r.Wrong)
		}
	}
	return nil
}

// spin says on a terminal what is being done, until stop is called.
func spin(stderr io.Writer, what string) (stop func()) {
	file, ok := stderr.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	bar := progressbar.NewOptions(-1, progressbar.OptionSetWriter(stderr), progressbar.OptionSetDescription(what), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetElapsedTime(true), progressbar.OptionSpinnerType(14))
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				_ = bar.Finish() // a terminal that is gone is not the measurement's failure
				return
			case <-tick.C:
				_ = bar.Add(1)
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
