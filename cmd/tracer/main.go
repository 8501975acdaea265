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
		Long: `Watch which tensors an unmodified llama.cpp reads, token by token. The llama.cpp that is watched is called the target.
tracer observes its functions from outside, by eBPF uprobes, which are called probes here. It writes a capture, which is
a directory of tables that analyze reads:

  access.arrows       each op that reads a weight. An op is one operation, such as a product
  steps.arrows        each step, which is a call of llama_decode (a decode), and what it was for
  route.arrows        the experts that the routers of a mixture of experts chose
  structure.arrows    the model
  pagein.arrows       with --detail op+io: each read of the model from disk, with its cause
  buffers.arrows      with --buffers: what ops touch besides weights
  hidden.arrows       with --hidden: what routers and attention read
  capture.json        what was traced, on which machine, and what was lost

tracer needs root, or CAP_BPF and CAP_PERFMON, or --preload. The target must read its model through a file mapping, as
llama.cpp does by default (--load-mode mmap). Even then llama.cpp copies weights of some types while it loads them.
tracer does not see reads of the copies. With --no-repack nothing is copied. tracer doctor says what a command or a
process would need.

A capture has the ids of the tokens. They are the prompt and the answer, so only its owner can read it. --no-token-ids
leaves them out. Nobody else may be able to write to the directory, and only one tracer at a time writes to it. A CSV
file appears only when the trace is complete.

The command runs as the user who typed sudo, with that user's groups, HOME, PATH and environment. Output files belong to
that user. With --as-root the command runs as root. It keeps its standard streams, terminal and process group. tracer
passes SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 on to it, unless the terminal has sent the signal to both.

A server may compute nothing itself, and start other processes that do, like a llama-server with --models-dir or an
Ollama. With --pid tracer then follows the processes that it has started and those that it starts later, as with
--follow. What a command starts is followed only with --follow. There are two reasons for that. With --follow each
process has a capture in a directory of its own. And the probes also meet every other process on the machine that runs
the same program. Without --follow tracer says when a process that the command has started loads a model.

On a terminal, a status line shows what the target is doing, how many tokens and events there are per second, and
whether any were lost. It appears with --pid, and for a command whose standard output goes elsewhere. Otherwise the line
would be mixed with the command's text.

Exit status: that of the command, or 128+n if signal n ended it. It is 0 with --pid, 1 if tracing failed, and 2 for
wrong usage. With --strict it is also 1 if any event was lost or could not be read completely.`,
		Example: `  sudo tracer -- llama-cli -m model.gguf --no-repack -st -p "hi" -n 32
  sudo tracer --pid $(pidof llama-server) -o /tmp/capture     # ends with Ctrl-C, or with the server
  sudo tracer --detail op+io --rotate 1GiB --keep 4 --pid $(pidof llama-server)     # the same
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
	f.VarP(targetFlag{&o.pid, f}, "pid", "p", "trace the running process with the id `N`, or those that it has started to compute for it")
	f.StringVarP(&o.out, "output", "o", tables.DefaultDir, "`directory` of the capture. An earlier capture in it is replaced. "+
		"With --csv it is a file, by default capture.csv. With --csv and --pid it may be -, which is standard output and the "+
		"default there")
	cli.EnumVar(root, &o.detail, "detail", "", detailNames, "how much to record: graph is the sequence of ops, "+
		"op also their times and the chosen experts, and op+io also each read from disk and how long ops waited for it")
	f.BoolVar(&o.buffers, "buffers", false, "record reads of the KV cache and of activations, too")
	f.IntVar(&o.hidden, "hidden", 0, "record what attention and the routers of a mixture of experts read, for every "+
		"`N`th token: --hidden=4 is every fourth, and --hidden alone every token. Of a prompt at most 64 tokens are recorded. "+
		"Whoever has the model can reconstruct the text from that (default: nothing)")
	f.Lookup("hidden").NoOptDefVal = "1"
	f.BoolVar(&o.noTokenIDs, "no-token-ids", false, "leave out everything that reveals the tokens: "+
		"their ids, which rows of the embeddings were read, and the command's arguments")
	f.BoolVar(&o.follow, "follow", false,
		"trace processes that the target starts, too. Each that decodes has a capture of its own, in directory/PID")
	f.Var(&o.rotate, "rotate", "begin new files of the tables after each `SIZE`, such as 1GiB, or time, such as 10m (default: never)")
	f.IntVar(&o.keep, "keep", 0, "with --rotate: keep only the newest `N` files (default: all)")
	f.BoolVar(&o.parquet, "parquet", false,
		"when the trace is over, write each table as Parquet, too. analyze --export can do that later")
	f.BoolVar(&o.csv, "csv", false,
		"write a CSV file instead of a capture, with timestamp,token,tensor_name,data_ptr,bytes_accessed")
	f.BoolVar(&o.asRoot, "as-root", false, "run the command as root, not as the user who typed sudo")
	f.BoolVar(&o.preload, "preload", false, "trace without root and probes, by a C library in the target's LD_PRELOAD. "+
		"It needs cc, and records the sequence of ops, but no times and no chosen experts")
	f.Uint32Var(&o.ringKiB, "buffer", 8192, "size of the buffer for events in `KiB`, a power of two")
	f.BoolVar(&o.noProbe, "no-probe", false,
		"do not measure the model's disk and the memory when the command has ended. The disk takes about 1 s, once in "+
			"ten minutes, and the memory 0.2 s")
	f.BoolVar(&o.probeAgain, "probe-again", false,
		"measure the disk, even if that was done in the last ten minutes. The result is kept in ~/.cache/"+disk.FileName)
	f.BoolVar(&o.strict, "strict", false, "fail if any event was lost or could not be read completely")
	f.BoolVar(&o.json, "json", false, "print the summary as JSON, with --follow in one line for each process. It goes to "+
		"standard output, or to standard error where standard output is the command's or has the CSV")
	f.BoolVar(&o.perf, "perf-events", false,
		"set the probes through perf events, as on kernels before 6.6. That takes longer at the beginning and the end")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log which probes are set")
	f.SetInterspersed(false)
	root.MarkFlagsMutuallyExclusive("no-probe", "probe-again")
	root.AddCommand(newDoctorCommand())
	cli.AddBPFVersions(root, ebpf.Objects())
	return root
}
