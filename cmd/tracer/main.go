// Command tracer watches which tensors an unmodified llama.cpp reads.
package main

// This file is the command line: flags, help, exit statuses.

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"tensorcast/ebpf"
	"tensorcast/internal/cli"
	"tensorcast/internal/disk"
	"tensorcast/trace/tables"
)

func main() {
	// Events are short-lived garbage. Collecting it seldom takes some memory, but less time on the
	// target's cores.
	debug.SetGCPercent(400)
	// Above this limit it is collected often, because a target may send any amount of events, and
	// needs its memory.
	debug.SetMemoryLimit(256 << 20)
	os.Exit(cli.Run(context.Background(), newCommand(run), os.Args[1:], os.Stdout, os.Stderr))
}

// newCommand returns the command line. run is called with the options; it returns the exit status
// of the traced command.
func newCommand(run func(ctx context.Context, o options, args []string) (status int, err error)) *cobra.Command {
	o := options{detail: tables.DetailOp}
	root := &cobra.Command{
		Use:   "tracer [flags] -- command [argument...]",
		Short: "Watch which tensors an unmodified llama.cpp reads",
		Long: `Watch which tensors an unmodified llama.cpp reads, token by token, through eBPF uprobes. The llama.cpp that is
watched is called the target. tracer writes a capture, which is a directory of tables that analyze reads:

  access.arrows       each op that reads a weight
  steps.arrows        each decode, and what it was for
  route.arrows        the experts that routers chose
  structure.arrows    the model
  pagein.arrows       with --detail op+io: each read of the model from disk, with its cause
  buffers.arrows      with --buffers: what ops touch besides weights
  hidden.arrows       with --hidden: what routers and attention read
  capture.json        what was traced, on which machine, and what was lost

It needs root, or CAP_BPF and CAP_PERFMON, or --preload. The target must read its model through a file mapping, as
llama.cpp does by default (--load-mode mmap). Weights of some types are copied when they are loaded all the same, and
copies are not seen. With --no-repack they are not copied. tracer doctor says what a command or a process would need.

A capture has the ids of the tokens, which are the prompt and the answer, so only its owner can read it. --no-token-ids
leaves them out. Nobody else may be able to write to the directory, and one tracer at a time writes to it. A CSV file
appears only when the trace is complete.

The command runs as the user who typed sudo, with that user's groups, HOME, PATH and environment. Output files belong to
that user. --as-root runs the command as root. The command keeps its standard streams, terminal and process group.
SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to it, unless the terminal has sent them to both.

A server may compute nothing itself, and start others that do, as a llama-server with --models-dir or an Ollama. With
--pid tracer then follows those that it has started, and those to come, as with --follow. A command is followed only
with --follow, for two reasons: captures then lie in other directories, one for each process, and every process on the
machine that runs the same program meets the probes. Without --follow tracer says when a process that the command has
started loads a model.

On a terminal, a status line shows what the target is doing, tokens and events per second, and losses. It appears with
--pid, and for a command whose standard output goes elsewhere, because otherwise the line would be mixed with the text.

Exit status: that of the command (128+n if signal n ended it), 1 if tracing failed, 2 for wrong usage; with --pid 0.
With --strict also 1 if any event was lost or could not be read completely.`,
		Example: `  sudo tracer -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  sudo tracer --pid $(pidof llama-server) -o /tmp/capture     # ends with Ctrl-C, or with the server
  sudo tracer --detail op+io --rotate 1GiB --keep 4 --pid $(pidof llama-server)
  sudo tracer --csv -o reads.csv -- llama-cli -m model.gguf --no-repack -st -p "hi"
  tracer --preload -- llama-cli -m model.gguf --no-repack -st -p "hi"`,
		Args: func(cmd *cobra.Command, args []string) error { return o.check(cmd.Flags(), args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			status, err := run(cmd.Context(), o, args)
			if err == nil && status != cli.OK {
				return &cli.Exit{Code: status}
			}
			return o.advise(err)
		},
	}
	f := root.Flags()
	f.SortFlags = false
	f.VarP(targetFlag{&o.pid, f}, "pid", "p", "trace the running process `N`, or what it has started to compute for it")
	f.StringVarP(&o.out, "output", "o", tables.DefaultDir, "`directory` of the capture; an earlier capture in it is replaced. "+
		"With --csv it is a file (capture.csv), or - for\nstandard output (--pid only, and the default there)")
	cli.EnumVar(root, &o.detail, "detail", "", detailNames, "how much to record: graph (the sequence of ops), "+
		"op (also their times and the chosen experts), or op+io\n(also each read from disk, "+
		"and how long ops waited for the disk)")
	f.BoolVar(&o.buffers, "buffers", false, "record reads of the KV cache and activations, too")
	f.IntVar(&o.hidden, "hidden", 0, "record the inputs of attention, and of the routers of a mixture of experts, "+
		"of every `N`th token (--hidden alone: of every token;\nof a prompt at most 64). "+
		"Whoever has the model can reconstruct the text from them")
	f.Lookup("hidden").NoOptDefVal = "1"
	f.BoolVar(&o.noTokenIDs, "no-token-ids", false, "leave out everything that reveals the tokens: "+
		"their ids, which rows of their embeddings were read, the command's arguments")
	f.BoolVar(&o.follow, "follow", false,
		"trace processes that the target starts, too: one capture for each that decodes, in directory/PID")
	f.Var(&o.rotate, "rotate", "begin new table files every `SIZE` (1GiB) or DURATION (10m)")
	f.IntVar(&o.keep, "keep", 0, "with --rotate, keep the newest `N` of them (0: all)")
	f.BoolVar(&o.parquet, "parquet", false,
		"write each table as Parquet, too, when the trace is over (analyze --export does so later)")
	f.BoolVar(&o.csv, "csv", false,
		"write CSV (timestamp,token,tensor_name,data_ptr,bytes_accessed) and no capture directory")
	f.BoolVar(&o.asRoot, "as-root", false, "run the command as root, not as the user who typed sudo")
	f.BoolVar(&o.preload, "preload", false, "trace without root and probes, by a C library in the target's LD_PRELOAD "+
		"(needs cc): the sequence of ops, without times and chosen experts")
	f.Uint32Var(&o.ringKiB, "buffer", 8192, "size of the event buffer in `KiB`, a power of two")
	f.BoolVar(&o.noProbe, "no-probe", false,
		"do not measure the model's disk and memory after the command's end (about 1 s, once in ten minutes, and 0.2 s)")
	f.BoolVar(&o.probeAgain, "probe-again", false,
		"measure the disk, even if that was done in the last ten minutes (kept in ~/.cache/"+disk.FileName+")")
	f.BoolVar(&o.strict, "strict", false, "fail if any event was lost or could not be read completely")
	f.BoolVar(&o.json, "json", false, "print the summary as JSON, with --follow one line for each process: on standard "+
		"output, or on standard error\nwhere standard output is the command's or has the CSV")
	f.BoolVar(&o.perf, "perf-events", false,
		"attach through perf events, as on kernels before 6.6 (slower to attach and detach)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log which probes are set")
	f.SetInterspersed(false)
	root.MarkFlagsMutuallyExclusive("no-probe", "probe-again")
	root.AddCommand(newDoctorCommand())
	cli.AddBPFVersions(root, ebpf.Objects())
	return root
}
