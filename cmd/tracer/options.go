package main

// This file has the options, and checks them.

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"tensorcast/ebpf"
	"tensorcast/processes"
	"tensorcast/trace/tables"
)

// options are the values of the flags; see newCommand for their meanings.
type options struct {
	// The target and how it is traced.
	pid     processID
	follow  bool
	asRoot  bool
	preload bool
	perf    bool
	ringKiB uint32

	// The events that are recorded.
	detail     string // one of detailNames
	buffers    bool
	hidden     int // record the inputs of every hidden-th token; 0: of none
	noTokenIDs bool

	// The output.
	out     string
	csv     bool
	parquet bool
	rotate  rotation
	keep    int
	noProbe bool
	// probeAgain measures the disk even if a measurement is kept.
	probeAgain bool

	// Messages and the exit status.
	strict  bool
	json    bool
	verbose bool
}

// toStdout is the value of -o that stands for standard output.
const toStdout = "-"

// check returns an error of one line about wrong flags or arguments. It fills in defaults that
// depend on other flags.
func (o *options) check(flags *pflag.FlagSet, args []string) error {
	if o.csv && !flags.Changed("output") {
		if o.out = "capture.csv"; o.pid != 0 {
			o.out = toStdout
		}
	}
	command := o.pid == 0
	if !command && areNumbers(args) { // as pidof prints them: a server, and what it has started
		if err := o.chooseTopmost(args); err != nil {
			return err
		}
		args = nil
	}
	switch {
	case o.hidden != 0 && command && len(args) > 0 && isNumber(args[0]):
		return fmt.Errorf("write --hidden=%s", args[0])
	case command && len(args) == 0:
		return errors.New("say what to trace: `tracer -- command` or `tracer --pid N`")
	case !command && len(args) > 0:
		return errors.New("give a command or --pid, not both")
	case o.ringKiB&(o.ringKiB-1) != 0 || o.ringKiB < 4:
		return fmt.Errorf("--buffer %d: the size must be a power of two, 4 KiB or more", o.ringKiB)
	case o.ringKiB > 1<<21: // the kernel counts the bytes in 32 bits
		return fmt.Errorf("--buffer %d: the size must be 2097152 KiB (2 GiB) or less", o.ringKiB)
	case o.out == "":
		return errors.New("-o needs a name")
	case o.keep < 0:
		return fmt.Errorf("--keep %d: give the number of table files to keep, or 0 for all", o.keep)
	case o.keep > 0 && o.rotate == rotation{}:
		return errors.New("--keep says how many files --rotate leaves: give --rotate, too")
	case o.out == toStdout && !o.csv:
		return errors.New("-o -: only --csv can be written to standard output")
	case o.out == toStdout && command:
		return errors.New("-o -: standard output is the command's: give a file")
	case o.csv && o.rotate != rotation{}:
		return errors.New("--rotate cuts the tables of a capture directory: not with --csv")
	case o.csv && o.parquet:
		return errors.New("--parquet is of the tables of a capture directory: not with --csv")
	case o.csv && o.follow:
		return errors.New("--csv has no column for the process: not with --follow")
	case o.csv && o.buffers:
		return errors.New("--csv has the reads of weights only: not with --buffers")
	case flags.Changed("hidden") && (o.hidden < 1 || o.hidden > math.MaxInt32):
		return fmt.Errorf("--hidden=%d: give 1 for every token, 2 for every second one, and so on", o.hidden)
	case o.csv && o.hidden != 0:
		return errors.New("--csv has the reads of weights only: not with --hidden")
	case o.preload && o.hidden != 0:
		return errors.New("--hidden needs the kernel's probes: not with --preload")
	case o.hidden != 0 && o.detail == tables.DetailGraph:
		return errors.New("--hidden needs the ops: not with --detail graph")
	case o.hidden != 0 && o.noTokenIDs:
		return errors.New("--hidden records what the tokens can be told from: not with --no-token-ids")
	case o.asRoot && !command:
		return errors.New("--as-root is for a command: not with --pid")
	case o.preload && !command:
		return errors.New("--preload loads a library into a command that it starts: not with --pid")
	case o.preload && (flags.Changed("detail") || o.buffers || o.perf):
		return errors.New("--preload sees graphs, by no probes: not with --detail, --buffers or --perf-events")
	}
	return nil
}

// stdoutUsed reports whether standard output is used for something other than the summary.
func (o *options) stdoutUsed() bool { return o.pid == 0 || o.out == toStdout }

// chooseTopmost replaces the process by the one that has started it and the others.
func (o *options) chooseTopmost(others []string) error {
	pids := []int{int(o.pid)}
	for _, text := range others {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%s is no process id", text)
		}
		pids = append(pids, n)
	}
	top, ok, err := processes.Topmost(pids)
	if err != nil || !ok {
		return fmt.Errorf("give one process: %s, or %s", o.pid.String(), strings.Join(others, ", or "))
	}
	o.pid = processID(top)
	return nil
}

// areNumbers says whether there are arguments, and all are numbers.
func areNumbers(args []string) bool {
	return len(args) > 0 && !slices.ContainsFunc(args, func(s string) bool { return !isNumber(s) })
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

// processID is the value of --pid; 0 is none.
type processID int

func (p *processID) String() string {
	if *p == 0 {
		return "" // cobra's help would show 0 as the default
	}
	return strconv.Itoa(int(*p))
}

func (p *processID) Type() string { return "N" }

func (p *processID) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n <= 0 {
		return errors.New("that is not a process id (is the program running?)")
	}
	*p = processID(n)
	return nil
}

// targetFlag is --pid of tracer itself. Behind a process no command follows, so that flags may follow further numbers.
type targetFlag struct {
	*processID
	flags *pflag.FlagSet
}

func (t targetFlag) Set(s string) error {
	err := t.processID.Set(s)
	if err == nil {
		t.flags.SetInterspersed(true)
	}
	return err
}

// detailNames are the values of --detail.
var detailNames = []string{tables.DetailGraph, tables.DetailOp, tables.DetailOpIO}

// probeDetails are the same values for package ebpf.
var probeDetails = map[string]ebpf.Detail{
	tables.DetailGraph: ebpf.DetailGraph,
	tables.DetailOp:    ebpf.DetailOp,
	tables.DetailOpIO:  ebpf.DetailIO,
}

// rotation is the value of --rotate: by size or by time. The zero rotation is none.
type rotation struct {
	bytes int64
	every time.Duration
}

// The least values of --rotate. Each rotation makes a few new files, whose fixed parts would
// otherwise be most of the output.
const (
	minRotateBytes = 1 << 20
	minRotateEvery = time.Second
)

func (r *rotation) String() string {
	switch {
	case r.every != 0:
		return r.every.String()
	case r.bytes != 0:
		return humanize.IBytes(uint64(r.bytes))
	}
	return ""
}

func (r *rotation) Type() string { return "SIZE" }

// Set parses a duration or a size: 10m is ten minutes, 10M is ten megabytes.
func (r *rotation) Set(s string) error {
	every, err := time.ParseDuration(s)
	if err == nil && s != "0" {
		if every < minRotateEvery {
			return fmt.Errorf("rotate every %v or more", minRotateEvery)
		}
		*r = rotation{every: every}
		return nil
	}
	size, err := humanize.ParseBytes(s)
	if err != nil || size > 1<<62 {
		return errors.New("that is neither a size, such as 1GiB, nor a duration, such as 10m")
	}
	if size < minRotateBytes {
		return errors.New("rotate every 1MiB or more")
	}
	*r = rotation{bytes: int64(size)}
	return nil
}
