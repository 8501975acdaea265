package ebpf

// This file finds out whether tracing would work here, and what to do if not. It tries the kernel's features, reads the target's files as
// the Tracer does, and changes nothing.

import (
	"bufio"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
)

// Report says whether a target could be traced, and if not, why.
type Report struct {
	Kernel       string    `json:"kernel"` // release and machine
	Features     []Finding `json:"features"`
	Capabilities []Finding `json:"capabilities"`
	Settings     []Setting `json:"settings"`
	Target       *Target   `json:"target,omitempty"` // nil if no target was given
	Modes        []Mode    `json:"modes"`
	Advice       []string  `json:"advice"` // what to do about problems, one line each
	OK           bool      `json:"ok"`     // tracer would work with its default, --detail op

	refused, remedy string // why the kernel refuses what root may do, and what to do; empty: it does not, as far as is known
}

// State is the result of a test.
type State string

const (
	Yes     State = "yes"
	No      State = "no"
	Unknown State = "unknown" // cannot be found out without more privileges
)

// Finding is a feature of the kernel, or a capability of this process.
type Finding struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Use    string `json:"use"`              // what it is for
	Detail string `json:"detail,omitempty"` // why not
}

// Setting is a kernel setting that affects tracing.
type Setting struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Matters bool   `json:"matters"` // whether it affects this process
	Meaning string `json:"meaning"`
}

// Target is what was found about the process or the command.
type Target struct {
	PID     int          `json:"pid,omitempty"`
	Command []string     `json:"command"`
	Files   []File       `json:"files"`  // those that hold ggml or llama.cpp
	Models  []string     `json:"models"` // GGUF files that the process maps
	Ops     int          `json:"ops"`    // number of ops that its ggml has
	Layout  *ggml.Layout `json:"layout,omitempty"`
}

// File is an ELF file of the target.
type File struct {
	Path        string  `json:"path"`
	Probes      []Probe `json:"probes"`
	Ops         int     `json:"ops,omitempty"`
	GGMLVersion string  `json:"ggml_version,omitempty"`
	GGMLCommit  string  `json:"ggml_commit,omitempty"`
	LlamaBuild  string  `json:"llama_build,omitempty"`
	Layout      string  `json:"layout,omitempty"` // where the layout was taken from
	Stripped    bool    `json:"stripped"`
	Problem     string  `json:"problem,omitempty"`
}

// Probe is a function that would be probed.
type Probe struct {
	Symbol string    `json:"symbol"`
	Role   ggml.Role `json:"role"`
	Offset uint64    `json:"offset"` // file offset of the function
	Skip   uint64    `json:"skip"`   // bytes from there to the probe
	Cost   ggml.Cost `json:"cost"`   // per hit
}

// Mode is a way of tracing.
type Mode struct {
	Name   string `json:"name"` // op, graph, op+io, preload
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // why not
}

// ExamineOptions select a process or a command; if neither is set, only the machine is examined.
type ExamineOptions struct {
	PID     int
	Command []string
	Env     []string // the command's environment, as in os.Environ
}

// Examine examines the kernel, this process's privileges and the target. It returns an error if the target does not exist (ErrNoProcess,
// exec.ErrNotFound, fs.ErrNotExist) or cannot be looked at (proc.ErrForeignProc); all other obstacles are in the report.
func Examine(opts ExamineOptions) (*Report, error) {
	if err := proc.CheckMount(); err != nil {
		return nil, err // all that could be read of the target would be another process's
	}
	r := &Report{}
	t, err := r.target(opts)
	if err != nil {
		return nil, err
	}
	if err := r.machine(); err != nil {
		return nil, err
	}
	r.judge(t)
	return r, nil
}

// machine reports on the kernel and on this process's privileges.
func (r *Report) machine() error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("ask for the kernel's release: %w", err)
	}
	r.Kernel = unix.ByteSliceToString(uts.Release[:]) + " " + unix.ByteSliceToString(uts.Machine[:])
	have, err := capabilities()
	if err != nil {
		return err
	}
	if err := r.privileges(have); err != nil {
		return err
	}
	r.settings(have)
	return r.features(have)
}

// target reports on the target's files.
func (r *Report) target(opts ExamineOptions) (*examined, error) {
	t := &examined{pid: opts.PID}
	switch {
	case opts.PID != 0:
		return t, r.process(t)
	case len(opts.Command) > 0:
		return t, r.command(t, opts.Command, opts.Env)
	}
	return t, nil
}

// examined is what was read about the target.
type examined struct {
	pid    int    // 0 for a command
	exe    string // executable of a command
	hidden bool   // the process's memory map cannot be read
	images []*ggml.Image
}

func (t *examined) has(role ggml.Role) bool {
	return slices.ContainsFunc(t.images, func(im *ggml.Image) bool { return im.Has(role) })
}

func (r *Report) advise(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(r.Advice, line) {
		r.Advice = append(r.Advice, line)
	}
}

// capabilities returns the effective capability set of this process, as a bit set.
func capabilities() (uint64, error) {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return 0, fmt.Errorf("read this process's capabilities: %w", err)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

func holds(set uint64, capability int) bool { return set>>capability&1 == 1 }

func (r *Report) privileges(have uint64) error {
	confined, err := proc.InUserNamespace()
	if err != nil {
		return err
	}
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
		case !holds(have, c.number) && !(admin && holds(have, unix.CAP_SYS_ADMIN)):
		case confined:
			f.Detail = "held in this user namespace only"
		default:
			f.State = Yes
		}
		r.Capabilities = append(r.Capabilities, f)
	}
	return nil
}

func (r *Report) settings(have uint64) {
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
		lacks := !holds(have, unix.CAP_PERFMON) && !holds(have, unix.CAP_SYS_ADMIN)
		r.Settings = append(r.Settings, Setting{
			"kernel.perf_event_paranoid", v, err == nil && level > -1 && lacks, "above -1, perf events on other processes need CAP_PERFMON",
		})
	}
	if v, ok := read("/sys/kernel/security/lockdown"); ok {
		confidential := strings.Contains(v, "[confidentiality]")
		r.Settings = append(r.Settings, Setting{"lockdown", v, confidential, "confidentiality forbids programs to read kernel memory"})
		if confidential {
			r.advise("the kernel is locked down (confidentiality): boot with lockdown=integrity, or without Secure Boot")
		}
	}
}

// features tries the features of the kernel.
func (r *Report) features(have uint64) error {
	confined, err := proc.InUserNamespace()
	if err != nil {
		return err
	}
	switch {
	case confined:
		r.refused, r.remedy = "refused in a user namespace", event.ErrUserNamespace.Error()
	case len(lacking(have)) == 0 && filtered():
		r.refused, r.remedy = "refused by a seccomp filter", "the seccomp filter of this process (of its container) must allow bpf and perf_event_open"
	}
	add := func(name, use string, err error) State {
		f := Finding{Name: name, State: Yes, Use: use}
		switch {
		case err == nil:
		case isRefusal(err), errors.Is(err, fs.ErrPermission), errors.Is(err, event.ErrPermission), errors.Is(err, event.ErrUserNamespace):
			f.State, f.Detail = Unknown, cmp.Or(r.refused, "needs root to find out")
		default:
			f.State, f.Detail = No, firstLine(err)
		}
		r.Features = append(r.Features, f)
		return f.State
	}
	_, err = btf.LoadKernelSpec()
	if add("BTF", "find which file an address belongs to", err) == No {
		r.advise("the kernel shows no type information: mount sysfs if /sys/kernel/btf is missing here, else use a kernel built with CONFIG_DEBUG_INFO_BTF=y (all large distributions have it)")
	}
	old := false
	for _, f := range []struct {
		name, use string
		err       error
	}{
		{"ring buffer", "events", features.HaveMapType(ebpf.RingBuf)},
		{"bpf_find_vma", "find which file an address belongs to", features.HaveProgramHelper(ebpf.Kprobe, asm.FnFindVma)},
		{"bpf_loop", "walk a graph", features.HaveProgramHelper(ebpf.Kprobe, asm.FnLoop)},
	} {
		old = add(f.name, f.use, f.err) == No || old
	}
	if old {
		r.advise("the kernel is too old: use Linux 5.17 or newer")
	}
	multi := add("uprobe_multi", "attach and detach fast (Linux 6.6)", features.HaveBPFLinkUprobeMulti())
	if multi == Yes && add("uprobe_multi by process", "all threads of one process, and no other process (Linux 6.10)", tryUprobe(true)) == No {
		r.advise("this kernel's uprobe_multi sees only the first thread of a process: probes are set for every process that runs these files, and others pay for theirs; Linux 6.10 does better, or --perf-events")
	}
	if perf := add("perf uprobes", "attach where there is no uprobe_multi", tryUprobe(false)); perf == No && multi == No {
		r.advise("the kernel attaches no uprobes: use one built with CONFIG_UPROBE_EVENTS=y")
	}
	add("filemap:mm_filemap_add_to_page_cache", "op+io: pages that come from disk", tryTracepoint("filemap", "mm_filemap_add_to_page_cache"))
	add("exceptions:page_fault_user", "op+io: which of them a fault asked for", tryTracepoint("exceptions", "page_fault_user"))
	add("programs of graph", "--detail graph", tryPrograms(DetailGraph))
	io := tryPrograms(DetailIO)
	op := io
	if io != nil { // op+io includes everything that op needs
		op = tryPrograms(DetailOp)
	}
	add("programs of op", "--detail op", op)
	add("programs of op+io", "--detail op+io", io)
	ino, err := proc.PIDNamespace()
	if err != nil {
		return err
	}
	if ino != 0 && (op == nil || errors.Is(op, event.ErrPIDNamespace)) { // else the programs did not come that far
		add("PID namespace", "tell processes by the ids that they have in this container", op)
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

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// tryPrograms loads the programs, and attaches those that do not belong to a target.
func tryPrograms(d Detail) error {
	t, err := New(Options{PID: os.Getpid(), Detail: d})
	if err != nil {
		return err
	}
	return t.Close()
}

func tryTracepoint(group, name string) error {
	p, err := counting(ebpf.TracePoint, ebpf.AttachNone, nil)
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := attachTracepoint(group, name)(p)
	if err != nil {
		return err
	}
	return l.Close()
}

// counting returns a program that increments the first value of a map; without a map it does nothing.
func counting(kind ebpf.ProgramType, attach ebpf.AttachType, to *ebpf.Map) (*ebpf.Program, error) {
	code := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	if to != nil {
		code = asm.Instructions{
			asm.StoreImm(asm.R10, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, to.FD()),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
			asm.Return(),
		}
	}
	return ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, AttachType: attach, Instructions: code, License: "GPL"})
}

// tryUprobe sets a probe on a function of this program and calls the function from a thread other than the first: kernels before 6.10 apply
// a multi-uprobe's process filter to the thread only.
func tryUprobe(multi bool) error {
	remove, err := hitUprobe(multi)
	return errors.Join(err, remove())
}

// hitUprobe does that, and leaves the probe in place: to remove it waits for the kernel, some 50 ms. remove is never nil.
func hitUprobe(multi bool) (remove func() error, err error) {
	var made []io.Closer
	remove = func() error {
		var errs []error
		for _, c := range slices.Backward(made) {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
	hits, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return remove, err
	}
	made = append(made, hits)
	attach := ebpf.AttachNone
	if multi {
		attach = ebpf.AttachTraceUprobeMulti
	}
	p, err := counting(ebpf.Kprobe, attach, hits)
	if err != nil {
		return remove, err
	}
	made = append(made, p)
	offset, err := offsetOf(reflect.ValueOf(probed).Pointer())
	if err != nil {
		return remove, err
	}
	ex, err := link.OpenExecutable("/proc/self/exe")
	if err != nil {
		return remove, err
	}
	var l link.Link
	if multi {
		l, err = ex.UprobeMulti(nil, p, &link.UprobeMultiOptions{Addresses: []uint64{offset}, PID: uint32(os.Getpid())})
	} else {
		l, err = ex.Uprobe("probed", p, &link.UprobeOptions{Address: offset, PID: os.Getpid()})
	}
	if err != nil {
		return remove, err
	}
	made = append(made, l)
	onOtherThread(func() { runtime.KeepAlive(probed(1)) })
	var seen uint64
	if err := hits.Lookup(uint32(0), &seen); err != nil {
		return remove, err
	}
	if seen == 0 {
		return remove, errors.New("a hit in another thread than the first is not seen")
	}
	return remove, nil
}

// probed is the function that tryUprobe probes.
//
//go:noinline
func probed(n int) int { return n + 1 }

// offsetOf turns a code address of this program into an offset in its file.
func offsetOf(address uintptr) (uint64, error) {
	files, err := proc.Mappings(os.Getpid())
	if err != nil {
		return 0, err
	}
	for _, m := range files {
		if m.Executable && uint64(address) >= m.Start && uint64(address) < m.End {
			return uint64(address) - m.Start + m.Offset, nil
		}
	}
	return 0, fmt.Errorf("this program's code at %#x is in no file", address)
}

// onOtherThread runs f on a thread that is not this process's first.
func onOtherThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if unix.Gettid() == os.Getpid() {
			onOtherThread(f) // while this call occupies the first thread
			return
		}
		f()
	}()
	<-done
}

// process examines what a process maps.
func (r *Report) process(t *examined) error {
	r.Target = &Target{PID: t.pid}
	entry, err := procfs.NewProc(t.pid)
	if err != nil {
		return fmt.Errorf("process %d: %w", t.pid, proc.ErrNoProcess)
	}
	if r.Target.Command, err = entry.CmdLine(); err != nil {
		r.Target.Command = nil // it is ending or its command line is hidden; the memory map will tell
	}
	files, err := proc.Mappings(t.pid)
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.hidden = true
		return nil
	case err != nil:
		return err
	}
	var paths []string
	for _, m := range files {
		path := m.Locate(t.pid).Path
		switch {
		case m.Executable:
			paths = append(paths, path)
		case !slices.Contains(r.Target.Models, m.Path) && isGGUF(path):
			r.Target.Models = append(r.Target.Models, m.Path)
		}
	}
	t.images = r.scan(paths)
	return nil
}

func isGGUF(path string) bool {
	f, err := regular.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var magic [4]byte
	n, err := f.Read(magic[:])
	return err == nil && n == len(magic) && string(magic[:]) == "GGUF"
}

// command examines the files that a command would load.
func (r *Report) command(t *examined, command, env []string) error {
	r.Target = &Target{Command: command}
	exe, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("find %s: %w", command[0], err)
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real // as the dynamic loader resolves $ORIGIN
	}
	if line, ok := firstLineOf(exe); ok && strings.HasPrefix(line, "#!") {
		r.advise("%s is a script (%s): ask about the program that it runs, or, while it runs, tracer doctor --pid N", exe, line)
	}
	for _, flag := range []string{"--no-mmap", "--direct-io"} {
		if slices.Contains(command, flag) {
			r.advise("without a mapping of the model file no tensor can be told: leave out %s", flag)
		}
	}
	t.exe = exe
	t.images = r.scan(append([]string{exe}, likelyLibraries(exe, env)...))
	return nil
}

func firstLineOf(path string) (string, bool) {
	f, err := regular.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(line)), true
}

// scan reads each file once, and reports on those with ggml or llama.cpp.
func (r *Report) scan(paths []string) []*ggml.Image {
	var images []*ggml.Image
	seen := map[proc.FileID]bool{}
	for _, path := range paths {
		key, err := proc.FileOf(path)
		if err != nil || seen[key] {
			continue // deleted, or in another mount namespace
		}
		seen[key] = true
		im, err := ggml.Scan(path)
		if err != nil {
			if strings.Contains(filepath.Base(path), "ggml") || strings.Contains(filepath.Base(path), "llama") {
				r.Target.Files = append(r.Target.Files, File{Path: path, Problem: firstLine(err)})
				r.advise("%s cannot be read: %s", path, firstLine(err))
			}
			continue
		}
		images = append(images, im)
		f := File{
			Path: path, Ops: len(im.Ops), GGMLVersion: im.GGMLVersion, GGMLCommit: im.GGMLCommit, LlamaBuild: im.LlamaBuild, Stripped: im.Stripped,
			Problem: problemOf(im),
		}
		if im.Layout != nil {
			f.Layout = im.Layout.Origin
		}
		for _, s := range im.Sites {
			f.Probes = append(f.Probes, Probe{Symbol: s.Symbol, Role: s.Role, Offset: s.Entry, Skip: s.Probe - s.Entry, Cost: s.Cost})
		}
		if len(f.Probes) > 0 || f.Ops > 0 || f.LlamaBuild != "" || f.Problem != "" {
			r.Target.Files = append(r.Target.Files, f)
		}
	}
	return images
}

func problemOf(im *ggml.Image) string {
	if err := cmp.Or(im.OpsErr, im.LayoutErr); err != nil {
		return firstLine(err)
	}
	return ""
}

// judge decides which modes would work.
func (r *Report) judge(t *examined) {
	lacks := map[string]string{} // what the target lacks, by mode
	if r.Target != nil {
		lacks = r.judgeTarget(t)
	}
	denied := t.hidden
	for _, name := range []string{"op", "graph", "op+io"} {
		m := Mode{Name: name}
		switch programs := r.feature("programs of " + name); {
		case programs.State == Unknown:
			m.Reason, denied = cmp.Or(r.refused, "needs root (sudo), or CAP_BPF and CAP_PERFMON"), true
		case programs.State == No:
			m.Reason = programs.Detail
		case r.feature("uprobe_multi").State != Yes && r.feature("perf uprobes").State != Yes:
			m.Reason = "the kernel lets this process attach no uprobes"
			denied = denied || r.feature("perf uprobes").State == Unknown
		default:
			m.Reason = lacks[name]
		}
		m.OK = m.Reason == ""
		r.Modes = append(r.Modes, m)
	}
	if denied {
		r.advise("%s", cmp.Or(r.remedy, "run tracer as root (sudo): --detail op, graph and op+io need it, --preload does not"))
	}
	if r.Target != nil {
		r.Modes = append(r.Modes, Mode{Name: "preload", OK: lacks["preload"] == "", Reason: lacks["preload"]})
	}
	r.OK = r.Modes[0].OK
}

// judgeTarget returns what the target lacks, by mode.
func (r *Report) judgeTarget(t *examined) map[string]string {
	lacks := map[string]string{}
	lack := func(reason string, modes ...string) {
		for _, mode := range modes {
			lacks[mode] = cmp.Or(lacks[mode], reason)
		}
	}
	if t.pid != 0 {
		lack("LD_PRELOAD must be set when a program starts: give the command", "preload")
	}
	for _, im := range t.images {
		r.Target.Ops = max(r.Target.Ops, len(im.Ops))
	}
	op, graph := t.has(ggml.RoleOp), t.has(ggml.RoleGraph)
	switch {
	case t.hidden:
		lack("the process belongs to another user", "op", "graph", "op+io", "preload")
		return lacks
	case !op && !graph && !t.has(ggml.RoleDecode) && r.Target.Ops == 0:
		lack("found no ggml in the target", "op", "graph", "op+io", "preload")
		r.adviseNoGGML(t)
		return lacks
	case r.Target.Ops == 0:
		lack("found no table of op names", "op", "graph", "op+io")
		r.advise("found ggml, but not its ggml_op_name: build llama.cpp without stripping, or, if a library is missing here, ask with --pid while it runs")
	}
	if layout, err := ggml.Infer(t.images); err != nil {
		lack(firstLine(err), "op", "graph", "op+io")
		r.advise("%s", firstLine(err))
	} else {
		r.Target.Layout = layout
	}
	if !op {
		lack("this ggml has no ggml_cpu_extra_compute_forward", "op", "op+io")
	}
	if !graph {
		lack("found no ggml_graph_compute", "graph", "preload")
	}
	switch {
	case !op && graph:
		r.advise("single ops cannot be seen in this ggml (older than December 2024, a fork, or inlined): use --detail graph, or build a newer llama.cpp")
	case !op:
		r.advise("found no CPU backend (libggml-cpu-*.so): if it is loaded from elsewhere, ask with --pid while the target runs")
	}
	if !t.has(ggml.RoleDecode) {
		r.advise("found no llama_decode: a step begins where tokens are looked up, and has no context")
	}
	if t.pid != 0 && len(r.Target.Models) == 0 {
		r.advise("the process maps no GGUF file: start it without --no-mmap (--load-mode none, dio); if it is still loading, ask again")
	}
	if lacks["preload"] == "" {
		lack(notPreloaded(t), "preload")
	}
	return lacks
}

// adviseNoGGML tells why no ggml was found.
func (r *Report) adviseNoGGML(t *examined) {
	i := slices.IndexFunc(t.images, func(im *ggml.Image) bool { return im.Machine != elf.EM_NONE && im.Stripped && !im.Dynamic })
	switch {
	case i >= 0:
		r.advise("%s is linked statically and stripped: build llama.cpp without strip (-s), or keep its debug file beside it (objcopy --add-gnu-debuglink)", t.images[i].Path)
	case t.pid == 0:
		r.advise("if the command loads llama.cpp from elsewhere (python, node, a wrapper), start it and ask again with --pid, or set LD_LIBRARY_PATH")
	default:
		r.advise("process %d is no llama.cpp, has not loaded it yet, or leaves the work to a process of its own (ask about that one)", t.pid)
	}
}

// notPreloaded says why the preloaded library could not intercept ggml_graph_compute; "" if it could.
func notPreloaded(t *examined) string {
	if !slices.ContainsFunc(t.images, func(im *ggml.Image) bool { return im.Has(ggml.RoleGraph) && isLibrary(im.Path) }) {
		return "ggml_graph_compute is linked into the program: nothing can stand before it"
	}
	if st, err := os.Stat(t.exe); err == nil && st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return "the program is setuid or setgid, where LD_PRELOAD is ignored"
	}
	if _, interpreted, err := elfKind(t.exe); err == nil && !interpreted { // an error: a script, whose interpreter inherits LD_PRELOAD
		return "the program is linked statically: there is no LD_PRELOAD"
	}
	return ""
}

// isLibrary reports whether a file is a shared library rather than a program.
func isLibrary(path string) bool {
	typ, interpreted, err := elfKind(path)
	return err == nil && typ == elf.ET_DYN && !interpreted
}

// elfKind is the type of an ELF file, and whether a dynamic loader starts it.
func elfKind(path string) (typ elf.Type, interpreted bool, err error) {
	file, err := regular.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer file.Close()
	f, err := elf.NewFile(file)
	if err != nil {
		return 0, false, err
	}
	return f.Type, slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
}
