package main

// This file is `prefetchd doctor`. It reports in advance whether prefetchd would help a process.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/ebpf"
	"tensorcast/gguf/remote"
	"tensorcast/holding"
	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
	"tensorcast/internal/uring"
	"tensorcast/internal/visible"
	"tensorcast/prefetch/monitor"
	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/room"
	"tensorcast/processes"
)

func newDoctorCommand() *cobra.Command {
	var pid int
	var costs bool
	var o forecastOptions
	cmd := &cobra.Command{
		Use:   "doctor [--pid N [--costs] | --model FILE|URL [--ram SIZE] | --model FILE --costs]",
		Short: "Say whether prefetchd would help a process, and what a model would reach here",
		Long: `Say whether prefetchd would help a running llama.cpp. With --pid the report says how the process holds
its model: mapped, copied, or on a GPU. It also says on which file system and disk the model is, which
other processes use it, how much memory there is for it, and whether you may do here what prefetchd
does. Nothing is changed, and the process is not slowed down. A process may compute nothing itself and
only start others that do, like a llama-server with --models-dir. Then the report is on those. If a
prefetchd helps the process already, doctor asks it what it does, and if it does nothing, why.

Without --pid and --model doctor says whether prefetchd can help any process on this machine.

In a mixture of experts, a router chooses a few of many experts for each token. The report also says
how many of a token's experts may be found in memory. The file does not tell how often routers choose
the same experts again. So the report gives two ends: routers that choose at random, and recorded
sessions of real models (thesis-notes/rq4-experts.md). analyze moe finds out what a model does.

With --model doctor says what a model would reach on this machine, before it is started or even
downloaded. It gives tokens per second alone, with prefetchd and at most, and the time to the first
token. It says what more memory or a faster disk would change, and with which flags to start llama.cpp.
It takes about three seconds, in which it measures memory, the processors and the disk.

FILE may be a URL (http or https), of which only the metadata are fetched. Then the disk is that of the
current directory, where a file without a name is written for that time (256 MiB). The memory is what a
process would have that is started as this one was. --ram gives another amount, for llama.cpp, its
weights and prefetchd together. If the model is a mixture of which prefetchd has helped a run here, doctor
knows from that run how its routers choose.

With --costs doctor measures how much processor time a MiB takes on the model's own file system: to
read it, to touch it as the process does, and to page it out. It measures this with single pages, and
with large folios (pages that the kernel handles together) where there are any. It does so for a process
that has touched that part of the model before, and for one that has not. It reads a few hundred MiB
that are not in memory, but never more at once than there is free memory, and drops them again. The disk
is busy for some seconds.

Exit status: 0 if prefetchd would help, helps or can help, or with --model if there is an answer; 1 if
not; 2 for wrong usage.`,
		Example: `  sudo prefetchd doctor                                  # this machine
  sudo prefetchd doctor --pid $(pidof llama-server)
  sudo prefetchd doctor --pid $(pidof llama-server) --costs
  sudo prefetchd doctor --model model.gguf
  sudo prefetchd doctor --model https://example.org/model.gguf --ram 16GB
  sudo prefetchd doctor --model model.gguf --costs --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (pid <= 0 || !areNumbers(args)) { // numbers, as pidof prints them
				return cli.Usagef("unexpected argument %q: say which process to look at with --pid", args[0])
			}
			if o.model != "" && cmd.Flags().Changed("pid") {
				return cli.Usagef("--model is about a model without a process: leave out --pid, " +
					"or say --pid N --costs to measure on what the process maps")
			}
			if o.model == "" && pid <= 0 && (costs || cmd.Flags().Changed("pid")) {
				return cli.Usagef("say which process to look at: prefetchd doctor --pid N; or which model: --model FILE")
			}
			for _, name := range []string{"ram", "context"} {
				if cmd.Flags().Changed(name) && (o.model == "" || costs) {
					return cli.Usagef("--%s is for --model without --costs", name)
				}
			}
			if o.context < 1 {
				return cli.Usagef("--context %d: want at least one token", o.context)
			}
			if costs && remote.IsURL(o.model) {
				return cli.Usagef("--costs measures on a file: download the model, and name it with --model")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.model != "" {
				if costs {
					return printCosts(cmd, o.model, o.asJSON)
				}
				return o.run(cmd)
			}
			if pid == 0 {
				return reportMachine(cmd, o.asJSON)
			}
			pid, err := onePID(pid, args)
			if err != nil {
				return err
			}
			return examine(cmd, pid, o.runDir, costs, o.asJSON)
		},
	}
	f := cmd.Flags()
	f.IntVarP(&pid, "pid", "p", 0, "examine the running process with the id `N`")
	f.BoolVar(&costs, "costs", false, "measure the processor time that reading the model costs. Some hundred MiB "+
		"are read from the disk")
	f.StringVar(&o.model, "model", "", "say what the model in `FILE`, or at a URL, would reach here. With --costs: "+
		"measure the costs on this file")
	cli.SizeVar(f, &o.ram, "ram", "with --model: assume this `SIZE` of memory for llama.cpp, its weights and prefetchd (default: what there is)")
	f.IntVar(&o.context, "context", usualContext, "with --model: leave memory for a context of `N` tokens")
	f.StringVar(&o.runDir, "run-dir", monitor.Dir, "`DIR` of the sockets of running prefetchds, and of "+
		"what they remember of a model's experts")
	f.BoolVar(&o.asJSON, "json", false, "print the report as JSON")
	return cmd
}

// printCosts measures the costs of reading a file, and prints them.
func printCosts(cmd *cobra.Command, model string, asJSON bool) error {
	c, err := measureFile(cmd.Context(), model)
	if asJSON && err == nil {
		return cli.WriteJSON(cmd.OutOrStdout(), c)
	}
	// What is known of the model is said, even if nothing can be measured.
	err = errors.Join(c.printModel(cmd.ErrOrStderr()), c.printExperts(cmd.OutOrStdout()), err)
	if err != nil {
		return err
	}
	return c.print(cmd.OutOrStdout())
}

// examine reports on a process. If that only starts others, it reports on those that compute. dir has the sockets of
// running prefetchds.
func examine(cmd *cobra.Command, pid int, dir string, costs, asJSON bool) error {
	if err := proc.CheckMount(); err != nil {
		return err
	}
	found, err := processes.Computing(pid)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		found = []processes.Candidate{{PID: pid}} // the report says what is missing
	}
	ok := true
	for i, c := range found {
		d, err := diagnose(cmd.Context(), c.PID, dir)
		if err != nil {
			return err
		}
		if costs {
			if d.Costs, err = measureDevices(cmd.Context(), d.Holding.Files); err != nil {
				return err
			}
		}
		if c.PID != pid {
			d.Parent = pid
		}
		if i > 0 && !asJSON {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		if asJSON {
			err = cli.WriteJSON(cmd.OutOrStdout(), d)
		} else {
			err = d.print(cmd.OutOrStdout())
		}
		if err != nil {
			return err
		}
		ok = ok && d.OK
	}
	if !ok {
		return &cli.Exit{Code: cli.Failure} // the report says why
	}
	return nil
}

// diagnosis is the report of `prefetchd doctor`.
type diagnosis struct {
	Line    string           `json:"line"` // the verdict
	OK      bool             `json:"ok"`   // prefetchd would help, and can
	Command []string         `json:"command"`
	Parent  int              `json:"parent_pid,omitempty"` // it was asked for, and only started this one
	Verdict holding.Verdict  `json:"verdict"`
	Holding *holding.Holding `json:"holding"`
	Room    *room.Room       `json:"room,omitempty"` // for pages of the model, those that are resident included
	NoRoom  string           `json:"no_room,omitempty"`
	Claimed bool             `json:"claimed"`          // a prefetchd helps the process already
	Helper  *helperReport    `json:"helper,omitempty"` // that one
	Means   []requirement    `json:"means"`
	Experts *expertsReport   `json:"experts,omitempty"` // of a mixture: what memory for experts buys
	Costs   []fileCosts      `json:"costs,omitempty"`   // if asked for
}

// requirement is a feature of the system that prefetchd uses.
type requirement struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"`           // prefetchd cannot work without it
	Detail string `json:"detail,omitempty"` // why it is missing, and what is used instead
}

// diagnose examines a process, and asks the prefetchd that helps it, if its socket is in dir. The error is that the
// process does not exist or cannot be examined.
func diagnose(ctx context.Context, pid int, dir string) (d *diagnosis, err error) {
	if err := proc.CheckMount(); err != nil {
		return nil, err
	}
	target, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	d = &diagnosis{Command: proc.CommandLine(pid)}
	d.Holding, err = holding.New(pid).Examine(ctx, holding.Options{Others: true})
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: run this as root (sudo)", err)
	} else if err != nil {
		return nil, err
	}
	if d.Claimed, err = room.IsClaimed(target); err != nil {
		return nil, err
	}
	if d.Claimed {
		d.Helper = askHelper(ctx, dir, pid)
	}
	inTheWay := d.Claimed && !d.Helper.answers()
	switch free, err := roomOf(pid, d.Holding); {
	case err != nil:
		d.NoRoom = err.Error()
		d.Verdict = d.Holding.Judge(-1, inTheWay)
	case free.OwnGroup != 0 && free.Level != room.LevelHost:
		d.Room = &free
		d.Verdict = d.Holding.JudgeInGroup(plan.Keepable(free), inTheWay)
	default:
		d.Room = &free
		d.Verdict = d.Holding.Judge(plan.Keepable(free), inTheWay)
	}
	d.Line, d.OK = d.Verdict.Line(), d.Verdict.Helps
	d.Experts = d.expertsOf()
	if d.Means, err = tryRequirements(target); err != nil {
		return nil, err
	}
	for _, m := range d.Means {
		if d.OK && m.Needed && !m.OK {
			d.OK, d.Line = false, fmt.Sprintf("cannot help: %s: %s", m.Name, m.Detail)
		}
	}
	if d.Helper.answers() { // what it does counts more than what could be done
		d.OK, d.Line = d.Helper.helps(), d.Helper.line(time.Now())
	}
	return d, nil
}

// roomOf returns how much of the model may be in the memory that the process has. The error says
// why that is not known.
func roomOf(pid int, h *holding.Holding) (free room.Room, err error) {
	memory, err := room.NewProcessMemory(pid, room.MemoryOptions{})
	if err != nil {
		return free, err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	var resident int64
	for _, f := range h.Files {
		resident += max(f.Resident, 0)
	}
	return memory.Room(room.InMemory{Bytes: resident})
}

// tryRequirements tries the features that prefetchd uses, without effect on the process.
func tryRequirements(target *proc.Process) ([]requirement, error) {
	report, err := ebpf.Examine(ebpf.ExamineOptions{PID: target.PID()})
	if err != nil {
		return nil, err
	}
	events := requirement{Name: "eBPF probes", Needed: true, OK: report.OK}
	if !report.OK {
		advice := "`tracer doctor --pid " + strconv.Itoa(target.PID()) + "` says more"
		events.Detail = report.Modes[0].Reason + "; " + advice
	}
	pageOut := requirement{Name: "paging out of the process", Needed: true, OK: true}
	if err := target.PageOut(0, 0); err != nil { // the kernel checks the permission before the empty range
		pageOut.OK, pageOut.Detail = false, err.Error()
	}
	ring, err := tryRing()
	if err != nil {
		return nil, err
	}
	own, err := capabilityRequirements()
	if err != nil {
		return nil, err
	}
	return append([]requirement{events, pageOut, ring}, own...), nil
}

// tryRing tries whether reads can be asked for by io_uring.
func tryRing() (requirement, error) {
	r, err := uring.New(1)
	if err != nil {
		return requirement{Name: "io_uring", Detail: err.Error() + "; a few threads do its work"}, nil
	}
	return requirement{Name: "io_uring", OK: true}, r.Close()
}

// printRequirements prints what this process may do, and what it lacks.
func printRequirements(w io.Writer, all []requirement) {
	fmt.Fprintf(w, "\nthis process\n")
	for _, m := range all {
		state := "yes"
		if !m.OK {
			state = "no"
		}
		fmt.Fprintf(w, "  %s\t%s", state, m.Name)
		if m.Detail != "" {
			fmt.Fprintf(w, ": %s", visible.Line(m.Detail))
		}
		fmt.Fprintln(w)
	}
}

// print writes the report for people, the verdict first.
func (d *diagnosis) print(to io.Writer) error {
	fmt.Fprintf(to, "%s\n\n", d.Line) // it is not a cell of the table below
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	h := d.Holding
	fmt.Fprintf(w, "process %d %s\n", h.PID, visible.Line(strings.Join(d.Command, " ")))
	if d.Parent != 0 {
		fmt.Fprintf(w, "  computes for\tprocess %d, which computes nothing itself\n", d.Parent)
	}
	if d.Claimed && !d.Helper.answers() {
		fmt.Fprintf(w, "  its prefetcher\tdoes not answer %s\n", visible.Line(d.Helper.NoAnswer))
	}
	for _, f := range h.Files {
		d.printFile(w, f)
	}
	how := "as its own table of tensors says"
	if !h.Exact {
		how = "as far as can be told from outside"
	}
	fmt.Fprintf(w, "  weights\t%s, %s\n", h.Mode, how)
	for _, part := range []struct {
		bytes int64
		where string
	}{
		{h.Weights.Mapped, "in the mapped file"},
		{h.Weights.Copied, "copied to its own memory"},
		{h.Weights.Device, "on a GPU"},
		{h.Weights.Unknown, "of which that is not known"},
		{h.PerToken, "read from the file by each token, at most"},
		{h.Routed, "in routed experts, of which a token reads those that are chosen"},
		{h.Tables, "in tables, of which a token reads the rows that it looks up"},
	} {
		if part.bytes > 0 {
			fmt.Fprintf(w, "  \t%s %s\n", size(part.bytes), part.where)
		}
	}
	if d.Experts != nil {
		fmt.Fprintf(w, "  experts\t%s\n", d.Experts.Sentence)
	}
	fmt.Fprintf(w, "  own memory\t%s, %s locked\n", size(h.Own), size(h.Locked))
	if len(h.Devices)+len(h.Backends) > 0 {
		fmt.Fprintf(w, "  GPU\t%s\n", visible.Line(strings.Join(slices.Concat(h.Devices, h.Backends), ", ")))
	}
	others := make([]string, 0, len(h.Others))
	for _, o := range h.Others {
		others = append(others, strconv.Itoa(o.PID)+" "+visible.Line(o.Name))
	}
	if h.OthersCut {
		others = append(others, "some may not be looked at")
	}
	if len(others) > 0 {
		fmt.Fprintf(w, "  others on the model\t%s\n", strings.Join(others, ", "))
	}
	switch {
	case d.Room == nil:
		fmt.Fprintf(w, "  room\tnot known: %s\n", visible.Line(cli.Message(errors.New(d.NoRoom))))
	case d.Room.Level == room.LevelHost:
		fmt.Fprintf(w, "  room\t%s, bounded by the host's memory (%s)\n", size(d.Room.Bytes), size(d.Room.Limit))
	default:
		fmt.Fprintf(w, "  room\t%s, bounded by the cgroup %s (%s)\n",
			size(d.Room.Bytes), visible.Line(d.Room.Level), size(d.Room.Limit))
	}
	printRequirements(w, d.Means)
	rest := d.Verdict.Findings
	if !d.Verdict.Helps && !d.Helper.answers() {
		rest = rest[1:] // the first is the verdict
	}
	if len(rest) > 0 {
		fmt.Fprintf(w, "\nbesides\n")
	}
	for _, f := range rest {
		fmt.Fprintf(w, "  - %s\n", visible.Line(f.Text))
	}
	if err := w.Flush(); err != nil { // the first error of all writes
		return err
	}
	for _, c := range d.Costs {
		fmt.Fprintln(to)
		if err := c.print(to); err != nil {
			return err
		}
	}
	return nil
}

// printFile prints the line of a file of the model.
func (d *diagnosis) printFile(w io.Writer, f holding.File) {
	about := []string{size(f.Size)}
	if f.Resident >= 0 {
		about = append(about, size(f.Resident)+" resident")
	} else {
		about = append(about, "not known how much of it is resident")
	}
	if f.System != "" {
		about = append(about, "on "+f.System)
	}
	if f.Device != "" {
		about = append(about, "device "+f.Device)
	}
	if f.ReadAhead >= 0 {
		about = append(about, "readahead "+size(f.ReadAhead))
	}
	switch {
	case f.Denied:
		about = []string{"this process may not read it"}
	case f.Changed:
		about = []string{"not readable as the file that the process maps"}
	}
	fmt.Fprintf(w, "  model\t%s: %s\n", visible.Line(f.Path), visible.Line(strings.Join(about, ", ")))
	for _, types := range f.Foreign {
		fmt.Fprintf(w, "  \tit has %s; that does not matter here\n", types)
	}
}

// size formats a number of bytes. Negative numbers are 0.
func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
