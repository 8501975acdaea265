package event

// This file defines the errors that capturers and consumers of events share. Callers compare them
// with errors.Is.

import (
	"errors"
	"fmt"

	"tensorcast/loadflags"
)

var (
	// ErrOutside: weights are read from memory that is not a mapping of the model file. There, the
	// page cache can be neither observed nor helped.
	ErrOutside = errors.New("weights are read outside the model file's mapping")
	// ErrNoDecode: the target or the capture ended before a decode was seen.
	ErrNoDecode = errors.New("no decode was seen")
	// ErrLost: events were lost. Counters.Lost has their number, and Counters says why.
	ErrLost = errors.New("events were lost")
	// ErrLayout: tensors read from the target contradict the model file: the assumed layout of
	// ggml_tensor is wrong.
	ErrLayout = errors.New("the target's ggml_tensor has a layout that this version does not know")
	// ErrPermission: the kernel refused to load or attach the probes.
	ErrPermission = errors.New("not permitted to load eBPF probes: run as root (sudo), or with CAP_BPF and CAP_PERFMON")
	// ErrUserNamespace: the kernel refused to load or attach the probes because this process is in
	// a user namespace.
	ErrUserNamespace = errors.New("the kernel refuses eBPF in a user namespace (a container without root): " +
		"run this on the host, or in a container that has the host's user namespace and all privileges")
	// ErrPIDNamespace: the probes cannot translate process ids to those of the PID namespace that
	// this process is in.
	ErrPIDNamespace = errors.New("the probes cannot tell the process ids of this PID namespace (a container): " +
		"run this on the host")
	// ErrNoGGML: the target holds no ggml code that probes could be attached to.
	ErrNoGGML = errors.New("found no ggml in the target: is it a llama.cpp program, and not stripped?")
	// ErrOldGGML: the target's ggml lacks the function that the probes need.
	ErrOldGGML = errors.New("this ggml has no ggml_cpu_extra_compute_forward " +
		"(it is older than December 2024, a fork, or inlined)")
	// ErrNoBTF: the kernel has no BTF (a description of its types), which the probes need.
	ErrNoBTF = errors.New("this kernel does not describe its types (no /sys/kernel/btf/vmlinux): " +
		"mount sysfs, or use a kernel built with CONFIG_DEBUG_INFO_BTF=y")
)

// OutsideError wraps ErrOutside with how many tensors and bytes are concerned, and with what to do about it. advice
// says how the target is to be started so that its weights are seen. If it is "", nobody needs to see them: then the
// error says for any llama.cpp what to do if memory is too small for copies.
func OutsideError(tensors int, bytes int64, advice string) error {
	if advice == "" {
		advice = "if they do not fit in memory, " + loadflags.Program{}.Advise(loadflags.KeepLayout, loadflags.MapFile)
	}
	return fmt.Errorf("%w: %d of them (%d MiB) were copied when the model was loaded: %s",
		ErrOutside, tensors, bytes>>20, advice)
}
