package ebpf

// This file makes the programs work in a PID namespace (a container), and explains why the kernel
// refuses them: missing capabilities, a user namespace or a seccomp filter.

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// setNamespace tells programs, before they are loaded, in which PID namespace this process is. All
// ids that they take and send are those of that namespace.
func setNamespace(spec *ebpf.CollectionSpec) error {
	ino, err := proc.PIDNamespace()
	if err != nil {
		return err
	}
	if err := spec.Variables["pid_namespace"].Set(ino); err != nil {
		return fmt.Errorf("configure the embedded programs: %w", err)
	}
	return nil
}

// checkNamespace runs a program in this process, to see whether the programs tell the ids of this
// PID namespace. If they did not, no event would ever come. whoami is that program, loaded.
func checkNamespace(whoami *ebpf.Program) error {
	ino, err := proc.PIDNamespace()
	if ino == 0 || err != nil {
		return err
	}
	pid, err := whoami.Run(&ebpf.RunOptions{})
	if err != nil {
		return fmt.Errorf("%w: try it: %w", event.ErrPIDNamespace, err)
	}
	if int(pid) != os.Getpid() {
		return fmt.Errorf("%w: it calls process %d %d", event.ErrPIDNamespace, os.Getpid(), pid)
	}
	return nil
}

// isRefusal reports whether the kernel denies something to this process. What the verifier finds
// wrong with a program is EACCES, too. But that comes with the verifier's log, and more rights
// would not help: it is the program's fault.
func isRefusal(err error) bool {
	if verifier, ok := errors.AsType[*ebpf.VerifierError](err); ok && len(verifier.Log) > 0 {
		return false
	}
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// explainRefusal explains a refusal: the error wraps event.ErrPermission or event.ErrUserNamespace.
// The kernel's error does not say the reason. So it is left out where the reason is known.
func explainRefusal(err error) error {
	if in, nsErr := proc.InUserNamespace(); nsErr == nil && in {
		return event.ErrUserNamespace
	}
	have, capErr := proc.OwnCapabilities()
	if capErr != nil {
		return fmt.Errorf("%w (%v)", event.ErrPermission, err)
	}
	if names := missingCapabilities(have); len(names) > 0 {
		return fmt.Errorf("%w (this process lacks %s)", event.ErrPermission, strings.Join(names, " and "))
	}
	if hasSeccompFilter() {
		return fmt.Errorf("%w; this process has them, but a seccomp filter, as containers have, which must allow "+
			"bpf and"+
			" perf_event_open (%v)", event.ErrPermission, err)
	}
	return fmt.Errorf("%w (%v)", event.ErrPermission, err)
}

// missingCapabilities names the capabilities that are needed and not in a set.
func missingCapabilities(set proc.Capabilities) (names []string) {
	for _, c := range []struct {
		name   string
		number int
	}{{"CAP_BPF", unix.CAP_BPF}, {"CAP_PERFMON", unix.CAP_PERFMON}} {
		if !set.Has(c.number) && !set.Has(unix.CAP_SYS_ADMIN) {
			names = append(names, c.name)
		}
	}
	return names
}

// hasSeccompFilter reports whether a seccomp filter judges this process's system calls, as
// containers have by default.
func hasSeccompFilter() bool {
	status, err := os.ReadFile("/proc/self/status")
	return err == nil && strings.Contains(string(status), "\nSeccomp:\t2\n")
}
