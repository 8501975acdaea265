package main

// This file checks, before prefetchd waits for somebody to help, whether it could help anybody here.

import (
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"tensorcast/ebpf"
	"tensorcast/internal/proc"
)

// ownCapabilities are the capabilities that prefetchd uses besides those of the probes.
var ownCapabilities = []struct {
	name   string
	number int
	needed bool   // without it nobody can be helped
	use    string // what it takes the capability for
}{
	{"CAP_SYS_NICE", unix.CAP_SYS_NICE, true, "page out what a target has read"},
	{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, false, "look at other users' processes, and have their faults read little"},
	{"CAP_DAC_READ_SEARCH", unix.CAP_DAC_READ_SEARCH, false, "open models of other users"},
	{"CAP_FOWNER", unix.CAP_FOWNER, false, "page out models of other users"},
}

// capabilityRequirements says which of ownCapabilities this process has.
func capabilityRequirements() ([]requirement, error) {
	have, err := proc.OwnCapabilities()
	if err != nil {
		return nil, err
	}
	all := make([]requirement, 0, len(ownCapabilities))
	for _, c := range ownCapabilities {
		r := requirement{Name: c.name, OK: have.Has(c.number), Needed: c.needed}
		if !r.OK {
			r.Detail = "it takes this to " + c.use + ": " + ebpf.DoCapability
		}
		all = append(all, r)
	}
	return all, nil
}

// checkMachine says whether anybody can be helped here, before that is waited for. The error has a line for each
// thing without which nobody can. What is missing for some only is logged. quick leaves out what takes some tenths of a
// second, because a target may be loading its model already.
func checkMachine(quick bool, log *slog.Logger) error {
	if err := proc.CheckMount(); err != nil {
		return err
	}
	find := ebpf.FindObstacles
	if quick {
		find = ebpf.FindQuickObstacles
	}
	obstacles, err := find()
	if err != nil {
		return err
	}
	var missing []error
	for _, o := range obstacles {
		missing = append(missing, fmt.Errorf("%s: %s", o.What, o.Do))
	}
	own, err := capabilityRequirements()
	if err != nil {
		return err
	}
	for _, r := range own {
		switch {
		case r.OK:
		case r.Needed:
			missing = append(missing, fmt.Errorf("this process lacks %s: %s", r.Name, ebpf.DoCapability))
		case len(missing) == 0:
			log.Warn("this process lacks "+r.Name, "why", r.Detail)
		}
	}
	switch len(missing) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("nobody can be helped here: %w", missing[0])
	}
	return errors.Join(append([]error{errors.New("nobody can be helped here, because")}, missing...)...)
}
