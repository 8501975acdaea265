// Command tracer watches which tensors an unmodified llama.cpp reads.
package main

// This file is the command line: flags, help, exit statuses.

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// exitFailure and exitUsage are the statuses of tracer's own failures; else it ends with its command's.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	// Events make garbage that is gone at once; to look for it seldom costs the target less of its cores than some memory.
	debug.SetGCPercent(400)
	status, accepted := 0, false
	root := newCommand(func(cmd *cobra.Command, o options, args []string) error {
		accepted = true
		var err error
		status, err = run(cmd.Context(), o, args)
		return o.advise(err)
	})
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "tracer:", err)
		if accepted {
			os.Exit(exitFailure)
		}
		os.Exit(exitUsage)
	}
	os.Exit(status)
}

func newCommand(run func(*cobra.Command, options, []string) error) *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:   "tracer [flags] -- command [argument...]",
		Short: "Watch which tensors an unmodified llama.cpp reads",
		Long: `Watch which tensors an unmodified llama.cpp reads, token by token, through eBPF uprobes.
Writes a capture directory: access.arrows (what each op reads), steps.arrows (decodes), route.arrows (experts chosen),
structure.arrows (the model), pagein.arrows (--detail op+io: what came from disk), buffers.arrows (--buffers), capture.json.

Needs root, or CAP_BPF and CAP_PERFMON; or --preload. The model must be read through a file mapping: start llama.cpp
with --no-repack, and without --no-mmap.

The command runs as the user who typed sudo, with that user's groups, HOME, PATH and environment, and what is written
belongs to that user; --as-root runs the command as root. It keeps its standard streams, terminal and process
group. SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to it, unless the terminal
has sent them to both.

On a terminal, a line tells what the target is doing, tokens and events per second, and losses: with --pid, and for a
command whose standard output goes elsewhere (else the line would be written across the text).

Exit status: the command's own (128+n if signal n ended it), or 1 if tracing failed, 2 for wrong usage;
with --pid 0. With --strict 1 also if any event was lost or could not be read whole.`,
		Example: `  sudo tracer -- llama-cli -m model.gguf --no-repack -p "hi" -n 32
  sudo tracer --pid $(pidof llama-server) -o /tmp/capture     # ends with Ctrl-C, or with the server
  sudo tracer --detail op+io --rotate 1GiB --keep 4 --pid $(pidof llama-server)
  sudo tracer --csv -o reads.csv -- llama-cli -m model.gguf --no-repack -p "hi"
  tracer --preload -- llama-cli -m model.gguf --no-repack -p "hi"`,
		Args:         func(cmd *cobra.Command, args []string) error { return o.check(cmd.Flags(), args) },
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd, o, args) },
	}
	f := root.Flags()
	f.SortFlags = false
	f.VarP(&o.pid, "pid", "p", "trace the running process `N`")
	f.StringVarP(&o.out, "output", "o", "capture", "capture `directory`, an earlier capture in it is replaced; with --csv a file (capture.csv), or - for\nstandard output (--pid only, and the default there)")
	f.Var(&o.detail, "detail", "how closely to look: graph (the sequence of ops, without times and chosen experts), op, or op+io (also each read\nfrom disk, and how long ops waited for the disk)")
	f.BoolVar(&o.buffers, "buffers", false, "record KV cache and activations, too")
	f.BoolVar(&o.follow, "follow", false, "trace processes that the target starts, too: one capture for each that decodes, in directory/PID")
	f.Var(&o.rotate, "rotate", "begin new table files every `SIZE` (1GiB) or DURATION (10m)")
	f.IntVar(&o.keep, "keep", 0, "with --rotate, keep the newest `N` of them (0: all)")
	f.BoolVar(&o.csv, "csv", false, "write CSV (timestamp,token,tensor_name,data_ptr,bytes_accessed) and no capture directory")
	f.BoolVar(&o.asRoot, "as-root", false, "run the command as root, not as the user who typed sudo")
	f.BoolVar(&o.preload, "preload", false, "without root and probes, by a C library in the target's LD_PRELOAD (needs cc): graphs, no times and no chosen experts")
	f.Uint32Var(&o.ringKiB, "buffer", 8192, "size of the event buffer in `KiB`, a power of two")
	f.BoolVar(&o.strict, "strict", false, "fail if any event was lost or could not be read whole")
	f.BoolVar(&o.json, "json", false, "print the summary as JSON on standard error (with --follow one line for each process)")
	f.BoolVar(&o.perf, "perf-events", false, "attach through perf events, as on kernels before 6.6 (slower to attach and detach)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say which probes are set")
	f.SetInterspersed(false)
	// Fails only for flags that are not there, which the tests would notice.
	_ = root.RegisterFlagCompletionFunc("detail", cobra.FixedCompletions(detailNames(), cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(newDoctorCommand())
	return root
}
