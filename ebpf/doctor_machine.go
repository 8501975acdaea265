package ebpf

// This file examines the machine: the kernel's features and settings, and this process's privileges.

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// examineMachine reports on the kernel and on this process's privileges. It needs root to find out
// everything.
func (r *Report) examineMachine() error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("ask for the kernel's release: %w", err)
	}
	r.Kernel = unix.ByteSliceToString(uts.Release[:]) + " " + unix.ByteSliceToString(uts.Machine[:])
	if err := r.examinePrivileges(); err != nil {
		return err
	}
	return r.reportFeatures()
}

// examinePrivileges reports on what this process may do, as far as that is known without a try.
func (r *Report) examinePrivileges() (err error) {
	if r.confined, err = proc.InUserNamespace(); err != nil {
		return err
	}
	have, err := proc.OwnCapabilities()
	if err != nil {
		return err
	}
	r.reportCapabilities(have)
	r.reportSettings(have)
	switch {
	case r.confined:
		r.refused, r.remedy = "refused in a user namespace", event.ErrUserNamespace.Error()
	case len(missingCapabilities(have)) == 0 && hasSeccompFilter():
		r.refused, r.remedy = "refused by a seccomp filter", "the seccomp filter of this process (of its "+
			"container) must allow bpf and perf_event_open"
	}
	return nil
}

// reportCapabilities reports on the capabilities that matter. have is the set that this process has.
func (r *Report) reportCapabilities(have proc.Capabilities) {
	for _, c := range []struct {
		name   string
		number int
		use    string
	}{
		{"CAP_BPF", unix.CAP_BPF, "load programs"},
		{"CAP_PERFMON", unix.CAP_PERFMON, "attach them to another process, read its memory"},
		{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, "attach where the kernel has no uprobe_multi; includes the two above"},
		{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, "read which files another user's process maps"},
	} {
		f := Finding{Name: c.name, State: No, Use: c.use}
		admin := c.number == unix.CAP_BPF || c.number == unix.CAP_PERFMON
		switch {
		case !have.Has(c.number) && !(admin && have.Has(unix.CAP_SYS_ADMIN)):
		case r.confined:
			f.Detail = "held in this user namespace only"
		default:
			f.State = Yes
		}
		r.Capabilities = append(r.Capabilities, f)
	}
}

// reportSettings reports on the kernel settings that matter.
func (r *Report) reportSettings(have proc.Capabilities) {
	read := func(path string) (string, bool) {
		data, err := os.ReadFile(path)
		return strings.TrimSpace(string(data)), err == nil
	}
	if v, ok := read("/proc/sys/kernel/unprivileged_bpf_disabled"); ok {
		r.Settings = append(r.Settings, Setting{
			"kernel.unprivileged_bpf_disabled", v, false, "tracer needs CAP_BPF whatever this is",
		})
	}
	if v, ok := read("/proc/sys/kernel/perf_event_paranoid"); ok {
		level, err := strconv.Atoi(v)
		lacks := !have.Has(unix.CAP_PERFMON) && !have.Has(unix.CAP_SYS_ADMIN)
		r.Settings = append(r.Settings, Setting{
			"kernel.perf_event_paranoid", v, err == nil && level > -1 && lacks,
			"above -1, perf events on other processes need CAP_PERFMON",
		})
	}
	if v, ok := read("/sys/kernel/security/lockdown"); ok {
		confidential := strings.Contains(v, "[confidentiality]")
		r.Settings = append(r.Settings, Setting{
			"lockdown", v, confidential, "confidentiality forbids programs to read kernel memory",
		})
		if confidential {
			r.advise("the kernel is locked down (confidentiality): %s", doLockdown)
		}
	}
}

// reportFeatures tries the features of the kernel and reports on each. The order is that of the report.
func (r *Report) reportFeatures() error {
	r.reportHelpers()
	r.reportProbes()
	return r.reportPrograms()
}

// addFeature adds the finding about a feature: err is what trying it has returned.
func (r *Report) addFeature(name, use string, err error) State {
	f := Finding{Name: name, State: Yes, Use: use}
	switch {
	case err == nil:
	case isRefusal(err), errors.Is(err, fs.ErrPermission),
		errors.Is(err, event.ErrPermission), errors.Is(err, event.ErrUserNamespace):
		f.State, f.Detail = Unknown, cmp.Or(r.refused, "needs root to find out")
	default:
		f.State, f.Detail = No, firstLine(err)
	}
	r.Features = append(r.Features, f)
	return f.State
}

// reportHelpers tries what the programs need of the kernel.
func (r *Report) reportHelpers() {
	_, err := btf.LoadKernelSpec()
	if r.addFeature("BTF", "find which file an address belongs to", err) == No {
		r.advise("the kernel shows no type information: %s", doBTF)
	}
	old := false
	for _, f := range []struct {
		name, use string
		err       error
	}{
		{"ring buffer", "events", features.HaveMapType(ebpf.RingBuf)},
		{
			"bpf_find_vma", "find which file an address belongs to",
			features.HaveProgramHelper(ebpf.Kprobe, asm.FnFindVma),
		},
		{"bpf_loop", "walk a graph", features.HaveProgramHelper(ebpf.Kprobe, asm.FnLoop)},
	} {
		old = r.addFeature(f.name, f.use, f.err) == No || old
	}
	if old {
		r.advise("the kernel is too old: %s", doOld)
	}
}

// reportProbes tries the ways of attaching to functions and to the kernel's tracepoints.
func (r *Report) reportProbes() {
	multi := r.addFeature("uprobe_multi", "attach and detach fast (Linux 6.6)", features.HaveBPFLinkUprobeMulti())
	if multi == Yes {
		byProcess := r.addFeature("uprobe_multi by process",
			"all threads of one process, and no other process (Linux 6.10)", tryUprobe(true))
		if byProcess == No {
			r.advise("this kernel's uprobe_multi sees only the first thread of a process: probes are set for " +
				"every process that runs these files, and others pay for theirs; Linux 6.10 does better, or " +
				"--perf-events")
		}
	}
	perf := r.addFeature("perf uprobes", "attach where there is no uprobe_multi", tryUprobe(false))
	if perf == No && multi == No {
		r.advise("the kernel attaches no uprobes: %s", doUprobes)
	}
	r.addFeature("filemap:mm_filemap_add_to_page_cache", "op+io: pages that come from disk",
		tryTracepoint("filemap", "mm_filemap_add_to_page_cache"))
	r.addFeature("exceptions:page_fault_user", "op+io: which of them a fault asked for",
		tryTracepoint("exceptions", "page_fault_user"))
}

// reportPrograms tries to load the programs of each way of tracing.
func (r *Report) reportPrograms() error {
	r.addFeature("programs of graph", "--detail graph", tryPrograms(DetailGraph))
	io := tryPrograms(DetailIO)
	op := io
	if io != nil { // op+io includes everything that op needs
		op = tryPrograms(DetailOp)
	}
	r.addFeature("programs of op", "--detail op", op)
	r.addFeature("programs of op+io", "--detail op+io", io)
	ino, err := proc.PIDNamespace()
	if err != nil {
		return err
	}
	if ino != 0 && (op == nil || errors.Is(op, event.ErrPIDNamespace)) { // else the programs did not come that far
		r.addFeature("PID namespace", "tell processes by the ids that they have in this container", op)
	}
	return nil
}

// feature returns the finding with this name.
func (r *Report) feature(name string) Finding {
	for _, f := range r.Features {
		if f.Name == name {
			return f
		}
	}
	return Finding{Name: name, State: Unknown}
}
