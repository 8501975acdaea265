package main

// This file is the part of `prefetchd doctor` that looks at the machine, before there is a process to help.

import (
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tensorcast/ebpf"
	"tensorcast/internal/cli"
	"tensorcast/internal/proc"
)

// machineReport says whether prefetchd can help anybody on this machine.
type machineReport struct {
	Line  string        `json:"line"` // the verdict
	OK    bool          `json:"ok"`
	Means []requirement `json:"means"`
}

// examineMachine finds out whether prefetchd can help anybody here. It takes some tenths of a second, and changes
// nothing.
func examineMachine() (*machineReport, error) {
	if err := proc.CheckMount(); err != nil {
		return nil, err
	}
	obstacles, err := ebpf.FindObstacles()
	if err != nil {
		return nil, err
	}
	r := &machineReport{OK: true, Line: "prefetchd can help here: start it with --auto, --wait NAME, --pid N or --exec"}
	for _, o := range obstacles {
		r.Means = append(r.Means, requirement{Name: "eBPF probes", Needed: true, Detail: o.What + ": " + o.Do})
	}
	if len(obstacles) == 0 {
		r.Means = append(r.Means, requirement{Name: "eBPF probes", Needed: true, OK: true})
	}
	ring, err := tryRing()
	if err != nil {
		return nil, err
	}
	own, err := capabilityRequirements()
	if err != nil {
		return nil, err
	}
	r.Means = append(append(r.Means, ring), own...)
	for _, m := range r.Means {
		if m.Needed && !m.OK {
			r.OK, r.Line = false, "nobody can be helped here: "+m.Name+": "+m.Detail
			break
		}
	}
	return r, nil
}

// reportMachine prints what examineMachine finds.
func reportMachine(cmd *cobra.Command, asJSON bool) error {
	r, err := examineMachine()
	if err != nil {
		return err
	}
	if asJSON {
		err = cli.WriteJSON(cmd.OutOrStdout(), r)
	} else {
		err = r.print(cmd.OutOrStdout())
	}
	if err == nil && !r.OK {
		return &cli.Exit{Code: cli.Failure} // the report says why
	}
	return err
}

// print writes the report for people, the verdict first.
func (r *machineReport) print(to io.Writer) error {
	if _, err := io.WriteString(to, r.Line+"\n"); err != nil {
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	printRequirements(w, r.Means)
	return w.Flush() // the first error of all writes
}
