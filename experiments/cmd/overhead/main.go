// Command overhead measures what observing a llama.cpp costs it. See package overhead.
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
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/overhead"
	"tensorcast/internal/outfile"
)

type options struct {
	overhead.Config
	driver    llama.Options
	observers []string
	json      string
	markdown  bool
	quiet     bool
}

// endless generations: the target is ended when the last pair is made.
const endless = 1 << 29

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
		Use:   "overhead -m model.gguf [flags] [-- target...]",
		Short: "Measure what observing a llama.cpp costs it",
		Long: `Overhead runs a llama.cpp that generates the same text over and over, attaches observers to it in turn and detaches them, and
compares each observed generation with its plain neighbour: plain, observed, observed, plain. It reports tokens per second, the share
that is lost (Hodges-Lehmann estimate of the pairs' ratios, with its 95 % interval), and that of an observer that does nothing.

--observer NAME=COMMAND: a shell command that observes until SIGINT. In it, {pid} is the target's process id, {ggml} the file with
ggml's CPU code, {out} a fresh directory. With --whole every generation has a process of its own, and {target} may stand for
the command that the observer starts. These names need no command:

  none           nobody: the control
  op             tracer --detail op
  graph          tracer --detail graph
  op+io          tracer --detail op+io
  trap           a program that returns at once, where tracer observes ops: what the kernel asks for the hits alone
  bpftrace       bpftrace, counting the hits of the function that tracer probes
  bpftrace-ops   bpftrace, counting the hits of each op's function (ggml_compute_forward_*)

The target is llamarun (which is installed if it is not), or the command after --: it must print what llamarun --stream does, without end.

Needs root. For figures it needs a quiet machine, of which the target leaves no core to others.

Exit codes: 0 measured, whatever came out; 1 not measured; 2 wrong usage.`,
		Example: `  synthgguf -o 1b.gguf --layers 22 --embd 2048 --ff 5632 --heads 16 --kv-heads 4 --type Q8_0
  sudo overhead -m 1b.gguf --pairs 20
  sudo overhead -m tiny.gguf --tokens 512 --pairs 100 --observer none --observer op
  sudo overhead -m 1b.gguf --whole --observer 'op=tracer -o {out} -- {target}' --json runs.json`,
		Args:         cobra.ArbitraryArgs, // the target's command
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Target = args
			if err := o.complete(); err != nil {
				return err
			}
			usage = false
			return o.measure(cmd.Context(), stdout, stderr)
		},
	}
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	f := cmd.Flags()
	f.StringVarP(&o.driver.Model, "model", "m", "", "the model, a GGUF `file`")
	f.StringArrayVar(&o.observers, "observer", nil, "an observer, `NAME=COMMAND` or a name from above; give it several times (default all of those)")
	f.IntVar(&o.Pairs, "pairs", 20, "pairs of each observer; an even number")
	f.IntVarP(&o.driver.Tokens, "tokens", "n", 32, "tokens of a generation; a segment should take a second")
	f.IntVarP(&o.driver.Threads, "threads", "t", 2, "threads of the target")
	f.StringVarP(&o.driver.Prompt, "prompt", "p", "The page cache", "the prompt")
	f.DurationVar(&o.Settle, "settle", 500*time.Millisecond, "how long an observer's probes must be unchanged to count as attached")
	f.BoolVar(&o.Whole, "whole", false, "a process of its own for each generation")
	f.StringVar(&o.json, "json", "", "write all pairs to this `file` as JSON; - is standard output, instead of the table")
	f.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	cmd.AddCommand(trap(&usage))

	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "overhead:", err)
		if usage {
			return 2
		}
		return 1
	}
	return 0
}

// trap is the observer of that name.
func trap(usage *bool) *cobra.Command {
	var pid int
	cmd := &cobra.Command{
		Use:   "trap --pid N FILE",
		Short: "Set a program that returns at once where tracer observes ops, until SIGINT",
		Long: `Trap sets a program that returns at once on the function that tracer observes for ops, in FILE, which holds ggml's CPU code, for one
process, until SIGINT. What the process loses is what the kernel asks for the hits: no tracer that probes each op costs less.`,
		Example: `  sudo overhead trap --pid $(pidof llama-cli) libggml-cpu-haswell.so`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if pid <= 0 {
				return errors.New("trap: which process? give --pid N")
			}
			*usage = false
			return overhead.Trap(cmd.Context(), pid, args[0])
		},
	}
	cmd.Flags().IntVarP(&pid, "pid", "p", 0, "the process `N`")
	return cmd
}

// names that need no command, in the order of the help
var names = []string{"none", "op", "graph", "op+io", "trap", "bpftrace", "bpftrace-ops"}

// commandOf is the command of a name that needs none given. tracer is the one beside this program, else the one in PATH.
func commandOf(name string) (string, bool) {
	tracer, this := "tracer", "overhead"
	if self, err := os.Executable(); err == nil {
		this = self
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), "tracer")); err == nil {
			tracer = path
		}
	}
	switch name {
	case "none":
		return "", true
	case "op", "graph", "op+io":
		return tracer + " --pid {pid} --detail " + name + " -o {out}/capture", true
	case "trap":
		return this + " trap --pid {pid} {ggml}", true
	case "bpftrace":
		return "bpftrace -p {pid} -e 'uprobe:{ggml}:ggml_cpu_extra_compute_forward { @c = count(); }'", true
	case "bpftrace-ops":
		return "bpftrace -p {pid} -e 'uprobe:{ggml}:ggml_compute_forward_* { @c = count(); }'", true
	}
	return "", false
}

// complete checks and translates what the flags say.
func (o *options) complete() error {
	if o.driver.Model == "" && len(o.Target) == 0 {
		return errors.New("no model: give -m model.gguf")
	}
	for _, n := range []struct {
		flag       string
		value, min int
	}{{"pairs", o.Pairs, overhead.LeastPairs}, {"tokens", o.driver.Tokens, 1}, {"threads", o.driver.Threads, 1}} {
		if n.value < n.min {
			return fmt.Errorf("--%s %d: want %d or more", n.flag, n.value, n.min)
		}
	}
	if o.Pairs%2 == 1 {
		return fmt.Errorf("--pairs %d: want an even number, as pairs are made two at a time", o.Pairs)
	}
	if o.Settle < 0 {
		return fmt.Errorf("--settle %v: want no less than 0", o.Settle)
	}
	if len(o.observers) == 0 {
		o.observers = names
	}
	seen := map[string]bool{}
	for _, text := range o.observers {
		name, command, given := strings.Cut(text, "=")
		spec := overhead.Observer{Name: strings.TrimSpace(name), Command: strings.TrimSpace(command)}
		if spec.Name == "" || seen[spec.Name] {
			return fmt.Errorf("--observer %q: want a name of its own, as in op or 'op=tracer --pid {pid}'", text)
		}
		seen[spec.Name] = true
		if !given {
			var known bool
			if spec.Command, known = commandOf(spec.Name); !known {
				return fmt.Errorf("--observer %s: give its command, as in '%s=tracer --pid {pid}', or one of %s", text, text, strings.Join(names, ", "))
			}
		}
		if strings.Contains(spec.Command, "{target}") && !o.Whole {
			return fmt.Errorf("--observer %q: {target} takes --whole", text)
		}
		o.Observers = append(o.Observers, spec)
	}
	return nil
}

func (o *options) measure(ctx context.Context, stdout, stderr io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root, to observe and to look into the target: use sudo")
	}
	if len(o.Target) == 0 {
		in, err := llama.Install(ctx)
		if err != nil {
			return err
		}
		d := o.driver
		d.NoRepack, d.Stream, d.Repeat = true, true, endless
		o.Target = in.Command(ctx, d).Args
	}
	if file, ok := stderr.(*os.File); ok && !o.quiet && term.IsTerminal(int(file.Fd())) {
		bar := progressbar.NewOptions(1, progressbar.OptionSetWriter(stderr), progressbar.OptionSetWidth(20), progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(true))
		defer func() { _ = bar.Finish() }() // a terminal that is gone is not the measurement's failure
		o.Progress = func(done, total int, what string) {
			bar.ChangeMax(total)
			bar.Describe(fmt.Sprintf("%-24.24s", what))
			_ = bar.Set(done)
		}
	}
	report, err := overhead.Measure(ctx, o.Config)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped: %w", context.Cause(ctx))
		}
		return err
	}
	return o.print(report, stdout)
}

func (o *options) print(r *overhead.Report, stdout io.Writer) error {
	if o.json != "" {
		data, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			return err
		}
		data = append(data, '\n')
		if o.json == "-" {
			_, err := stdout.Write(data)
			return err
		}
		if err := outfile.Write(o.json, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
			return err
		}
	}
	if o.markdown {
		return r.WriteMarkdown(stdout)
	}
	return r.WriteText(stdout)
}
