package ebpf

// This file decides which modes of tracing would work, and advises on what is missing.

import (
	"cmp"
	"debug/elf"
	"os"
	"slices"

	"tensorcast/ggml"
	"tensorcast/internal/regular"
	"tensorcast/loadflags"
)

// judgeModes decides which modes would work.
func (r *Report) judgeModes(t *examinedTarget) {
	lacks := map[string]string{} // what the target lacks, by mode
	if r.Target != nil {
		lacks = r.findLacks(t)
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
		r.advise(
			"%s",
			cmp.Or(r.remedy, "run tracer as root (sudo): --detail op, graph and op+io need it, --preload does not"),
		)
	}
	if r.Target != nil {
		r.Modes = append(r.Modes, Mode{Name: "preload", OK: lacks["preload"] == "", Reason: lacks["preload"]})
	}
	r.OK = r.Modes[0].OK
}

// findLacks returns what the target lacks, by mode.
func (r *Report) findLacks(t *examinedTarget) map[string]string {
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
	op, graph := t.hasRole(ggml.RoleOp), t.hasRole(ggml.RoleGraph)
	switch {
	case t.hidden:
		lack("the process belongs to another user", "op", "graph", "op+io", "preload")
		return lacks
	case !op && !graph && !t.hasRole(ggml.RoleDecode) && r.Target.Ops == 0:
		lack("found no ggml in the target", "op", "graph", "op+io", "preload")
		r.adviseNoGGML(t)
		return lacks
	case r.Target.Ops == 0:
		lack("found no table of op names", "op", "graph", "op+io")
		r.advise(
			"found ggml, but not its ggml_op_name: build llama.cpp without stripping, or, if a library is " +
				"missing here, ask with --pid while it runs",
		)
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
		r.advise(
			"single ops cannot be seen in this ggml (older than December 2024, a fork, or inlined): use --detail " +
				"graph, or build a newer llama.cpp",
		)
	case !op:
		r.advise(
			"found no CPU backend (libggml-cpu-*.so): if it is loaded from elsewhere, ask with --pid while the " +
				"target runs",
		)
	}
	if !t.hasRole(ggml.RoleDecode) {
		r.advise("found no llama_decode: a step begins where tokens are looked up, and has no context")
	}
	if t.pid != 0 && len(r.Target.Models) == 0 {
		r.advise(
			"the process maps no GGUF file: %s; if it is still loading, ask again",
			loadflags.OfProcess(t.pid).Advise(loadflags.MapFile, loadflags.KeepLayout),
		)
	}
	if lacks["preload"] == "" {
		lack(notPreloaded(t), "preload")
	}
	return lacks
}

// adviseNoGGML tells why no ggml was found.
func (r *Report) adviseNoGGML(t *examinedTarget) {
	i := slices.IndexFunc(
		t.images,
		func(im *ggml.Image) bool { return im.Machine != elf.EM_NONE && im.Stripped && !im.Dynamic },
	)
	switch {
	case i >= 0:
		r.advise(
			"%s is linked statically and stripped: build llama.cpp without strip (-s), or keep its debug file "+
				"beside it (objcopy --add-gnu-debuglink)",
			t.images[i].Path,
		)
	case t.pid == 0:
		r.advise(
			"if the command loads llama.cpp from elsewhere (python, node, a wrapper), start it and ask again " +
				"with --pid, or set LD_LIBRARY_PATH",
		)
	default:
		r.advise(
			"process %d is no llama.cpp, has not loaded it yet, or leaves the work to a process of its own (ask "+
				"about that one)",
			t.pid,
		)
	}
}

// notPreloaded says why the preloaded library could not intercept ggml_graph_compute; "" if it could.
func notPreloaded(t *examinedTarget) string {
	if !slices.ContainsFunc(
		t.images,
		func(im *ggml.Image) bool { return im.Has(ggml.RoleGraph) && isLibrary(im.Path) },
	) {
		return "ggml_graph_compute is linked into the program: nothing can stand before it"
	}
	if st, err := os.Stat(t.exe); err == nil && st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return "the program is setuid or setgid, where LD_PRELOAD is ignored"
	}
	// An error means a script, whose interpreter inherits LD_PRELOAD.
	if _, interpreted, err := elfKind(t.exe); err == nil && !interpreted {
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
