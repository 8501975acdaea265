package ebpf

// This file says what of the machine stands in the way of probes, before there is a target.

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Obstacle is something without which no target can be observed by --detail op, and what to do about it.
type Obstacle struct{ What, Do string }

// What to do about what the machine lacks.
const (
	doBTF = "mount sysfs if /sys/kernel/btf is missing here, else use a kernel built with CONFIG_DEBUG_INFO_BTF=y " +
		"(all large distributions have it)"
	doOld      = "use Linux 5.17 or newer"
	doUprobes  = "use one built with CONFIG_UPROBE_EVENTS=y"
	doLockdown = "boot with lockdown=integrity, or without Secure Boot"
)

// DoCapability is what to do about a capability that this process lacks.
const DoCapability = "run this as root (sudo), or allow it in the service or container that limits capabilities"

// FindObstacles lists what the machine and this process lack, the cause before what follows from it. It changes
// nothing, and takes some tenths of a second. The error is why that cannot be found out, as with Examine.
func FindObstacles() ([]Obstacle, error) {
	r, err := Examine(ExamineOptions{})
	if err != nil {
		return nil, err
	}
	return r.obstacles(), nil
}

// FindQuickObstacles is FindObstacles for what is known at once: nothing is loaded into the kernel.
func FindQuickObstacles() ([]Obstacle, error) {
	r := &Report{}
	if err := r.examinePrivileges(); err != nil {
		return nil, err
	}
	return r.obstacles(), nil
}

// obstacles lists what stands in the way by what was found out.
func (r *Report) obstacles() (all []Obstacle) {
	add := func(what, do string) { all = append(all, Obstacle{what, do}) }
	if r.confined {
		add("this process is in a user namespace (a container without root), where the kernel permits no eBPF",
			"run this on the host, or in a container that has the host's user namespace and all privileges")
		return all // all else follows from it
	}
	var lacks []string
	for _, c := range r.Capabilities {
		if c.State == No && (c.Name == "CAP_BPF" || c.Name == "CAP_PERFMON") {
			lacks = append(lacks, c.Name)
		}
	}
	if len(lacks) > 0 {
		add("this process lacks "+strings.Join(lacks, " and "), DoCapability)
	}
	for _, s := range r.Settings {
		if s.Name == "lockdown" && s.Matters {
			add("the kernel is locked down (confidentiality)", doLockdown)
		}
	}
	if r.feature("BTF").State == No {
		add("the kernel shows no type information", doBTF)
	}
	for _, name := range []string{"ring buffer", "bpf_find_vma", "bpf_loop"} {
		if r.feature(name).State == No {
			add("the kernel has no "+name, doOld)
			break
		}
	}
	if r.feature("uprobe_multi").State != Yes && r.feature("perf uprobes").State == No {
		do := doUprobes
		if !hasTraceFS() {
			do += ", and mount tracefs (mount -t tracefs tracefs /sys/kernel/tracing)"
		}
		add("the kernel attaches no uprobes ("+r.feature("perf uprobes").Detail+")", do)
	}
	if namespace := r.feature("PID namespace"); namespace.State == No {
		what, do, _ := strings.Cut(namespace.Detail, ": ")
		add(what, do)
	}
	i := slices.IndexFunc(r.Features, func(f Finding) bool { return f.Name == "programs of op" })
	switch {
	case len(all) > 0 || i < 0 || r.Features[i].State == Yes: // what follows from the above need not be said
	case r.Features[i].State == No:
		add("the kernel does not take the probes: "+r.Features[i].Detail, "`tracer doctor` says more")
	case r.refused != "":
		add("probes are "+r.refused, r.remedy)
	default:
		add("the kernel refuses probes though this process has the capabilities", "`tracer doctor` says more")
	}
	return all
}

// hasTraceFS says whether the kernel's file system for tracing is mounted, through which older kernels set uprobes.
func hasTraceFS() bool {
	return slices.ContainsFunc(traceFS, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "events"))
		return err == nil
	})
}

// traceFS are the places where that file system is mounted.
var traceFS = []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"}
