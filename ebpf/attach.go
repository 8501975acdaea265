package ebpf

// This file sets probes on the libraries of targets: on what a program is likely to load before it
// runs, and on what a process has mapped. It also tells the programs how the target's ggml numbers
// its ops and lays out its structs.

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/internal/proc"
)

// AttachLikely sets probes on the libraries that a program is likely to load, before it runs.
func (t *Tracer) AttachLikely(exe string, env []string) error {
	return t.attachLikely(t.main, exe, env)
}

func (t *Tracer) attachLikely(p *target, exe string, env []string) (err error) {
	paths, damaged := []string{exe}, 0
	for _, path := range ggml.LikelyLibraries(exe, env) {
		if _, err := t.scan(path); err == nil {
			paths = append(paths, path)
		} else if damaged++; damaged == 1 { // it may never be mapped
			t.opts.Log.Warn("a library that the program may load cannot be read", "error", err)
		}
	}
	p.likely, err = t.attachFiles(p, paths)
	return errors.Join(err, t.closeScanned())
}

// AttachMapped sets probes on the libraries that the target has mapped by now.
func (t *Tracer) AttachMapped() error { return t.attachMapped(t.main) }

func (t *Tracer) attachMapped(p *target) error {
	files, err := proc.Mappings(p.pid)
	if err != nil {
		return err
	}
	var paths []string
	for _, m := range files {
		if m.Executable {
			paths = append(paths, m.Locate(p.pid).Path)
		}
	}
	p.mapped, err = t.attachFiles(p, paths)
	return err
}

// attachFiles sets probes on files and returns their images. The programs are configured before any
// probe is set. The rarely hit probe is set last: while the target loads a model, setting a probe
// waits for the lock of its memory map.
func (t *Tracer) attachFiles(p *target, paths []string) ([]*ggml.Image, error) {
	var images []*ggml.Image
	for _, path := range paths {
		im, err := t.scan(path)
		if err != nil {
			return nil, err
		}
		if im != nil && !slices.Contains(images, im) {
			images = append(images, im)
		}
	}
	if err := t.configure(p, images); err != nil {
		return nil, err
	}
	for _, rare := range []bool{false, true} {
		for _, im := range images {
			if err := t.attachGroup(probeGroup{im, rare}); err != nil {
				return nil, err
			}
		}
	}
	return images, nil
}

// configure tells the programs to watch a process, and how its ggml numbers the ops and lays out
// its structs.
func (t *Tracer) configure(p *target, found []*ggml.Image) error {
	changed, err := p.learnImages(found)
	if err != nil || !changed {
		return err
	}
	config := traceTargetConfig{Layout: p.config, Follow: asFlag(t.opts.Follow)}
	if err := t.objs.Targets.Put(uint32(p.pid), config); err != nil {
		return fmt.Errorf("configure the probes: %w", err)
	}
	t.configurations++ // threads copy the configuration again when this changes
	if err := t.objs.Configurations.Set(t.configurations); err != nil {
		return fmt.Errorf("configure the probes: %w", err)
	}
	t.opts.Log.Debug("watching", "pid", p.pid, "ops", len(p.ops), "layout", p.layout)
	return nil
}

// probeGroup is a group of a file's probes that are set together: the rarely hit ones, or all others.
type probeGroup struct {
	im   *ggml.Image
	rare bool
}

// sites returns the functions that the group's probes go to.
func (g probeGroup) sites() []ggml.Site {
	return slices.DeleteFunc(slices.Clone(g.im.Sites), func(s ggml.Site) bool {
		// Without the plain ops, fused ops alone would make an incomplete sequence.
		return (s.Role == ggml.RoleBufferFree) != g.rare || s.Role == ggml.RoleFused && !g.im.Has(ggml.RoleOp)
	})
}

// attachGroup sets a group of probes, unless that was done before.
func (t *Tracer) attachGroup(g probeGroup) error {
	sites := g.sites()
	if len(sites) == 0 || t.probeGroups[g] {
		return nil
	}
	t.probeGroups[g] = true
	file := t.files[g.im]
	if file == nil {
		return fmt.Errorf("the target has more than %d libraries with ggml's functions: no probe on %s", maxImages,
			g.im.Path)
	}
	ex, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return fmt.Errorf("open %s: %w", g.im.Path, err)
	}
	for _, s := range sites {
		for _, p := range t.probesOf(s) {
			if err := t.attachProbe(ex, p); err != nil {
				return fmt.Errorf("attach to %s in %s: %w", s.Symbol, g.im.Path, err)
			}
		}
		t.opts.Log.Debug("attached", "symbol", s.Symbol, "file", g.im.Path, "offset", s.Probe-s.Entry)
	}
	if err := t.noteProbed(sites); err != nil {
		return err
	}
	if !slices.Contains(t.attachedPaths, g.im.Path) {
		t.attachedPaths = append(t.attachedPaths, g.im.Path)
	}
	return nil
}

// noteProbed notes that probes were set on sites. If these see ops, they may have missed some of the decodes that have
// begun: the library that computes may be mapped long after the one with llama_decode.
func (t *Tracer) noteProbed(sites []ggml.Site) error {
	if !slices.ContainsFunc(sites, func(s ggml.Site) bool {
		return s.Role == ggml.RoleOp || s.Role == ggml.RoleFused || s.Role == ggml.RoleGraph
	}) {
		return nil
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the monotonic clock: %w", err)
	}
	t.probedAt = now.Nano()
	for _, p := range t.targets {
		p.partialDecode = p.lastDecode
	}
	return nil
}

// uprobe is a probe that is to be set.
type uprobe struct {
	prog    *ebpf.Program
	symbol  string
	offset  uint64 // in the file, in bytes
	returns bool   // it fires when the function returns
	cookie  uint64 // what the program gets by bpf_get_attach_cookie
}

// probesOf lists the probes that a function gets, by its role and by how closely the target is
// observed.
func (t *Tracer) probesOf(s ggml.Site) []uprobe {
	entry := func(prog *ebpf.Program) uprobe { return uprobe{prog: prog, symbol: s.Symbol, offset: s.Probe} }
	exit := func(prog *ebpf.Program) uprobe {
		return uprobe{prog: prog, symbol: s.Symbol, offset: s.Entry, returns: true}
	}
	switch s.Role {
	case ggml.RoleOp:
		if t.opts.Detail != DetailGraph {
			return []uprobe{entry(t.objs.Op)}
		}
	case ggml.RoleFused:
		if t.opts.Detail != DetailGraph {
			return []uprobe{entry(t.objs.FusedOp)}
		}
	case ggml.RoleGraph:
		return []uprobe{entry(t.objs.GraphBegin), exit(t.objs.GraphEnd)}
	case ggml.RoleDecode, ggml.RoleEncode:
		begin := entry(t.objs.DecodeBegin)
		begin.cookie = s.Pushed // the program finds the batch on the stack
		return []uprobe{begin, exit(t.objs.DecodeEnd)}
	case ggml.RoleWarmup:
		return []uprobe{entry(t.objs.SetWarmup)}
	case ggml.RoleBufferFree:
		return []uprobe{entry(t.objs.BufferFree)}
	}
	return nil
}

// attachProbe sets one probe.
func (t *Tracer) attachProbe(ex *link.Executable, p uprobe) error {
	// With a pid of 0 the probe fires in all processes that run the file. The programs ignore those
	// that are no targets, but these pay for each hit.
	pid := t.opts.PID
	if t.wide {
		pid = 0
	}
	var l link.Link
	var err error
	if t.multi {
		opts := &link.UprobeMultiOptions{Addresses: []uint64{p.offset}, Cookies: []uint64{p.cookie}, PID: uint32(pid)}
		if p.returns {
			l, err = ex.UretprobeMulti(nil, p.prog, opts)
		} else {
			l, err = ex.UprobeMulti(nil, p.prog, opts)
		}
	} else {
		opts := &link.UprobeOptions{Address: p.offset, Cookie: p.cookie, PID: pid}
		if p.returns {
			l, err = ex.Uretprobe(p.symbol, p.prog, opts)
		} else {
			l, err = ex.Uprobe(p.symbol, p.prog, opts)
		}
	}
	switch {
	case isRefusal(err):
		return explainRefusal(err)
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH):
		return fmt.Errorf("process %d: %w", t.opts.PID, proc.ErrNoProcess)
	case err != nil:
		return err
	}
	t.links = append(t.links, l)
	return nil
}

// WantInputs says whether the inputs that Options.Inputs asks for are wanted, from the next decode
// on. At first they are. While they are not, decodes of one token are counted nevertheless.
func (t *Tracer) WantInputs(wanted bool) error {
	if err := t.objs.InputsOff.Set(asFlag(!wanted)); err != nil {
		return fmt.Errorf("configure the probes: %w", err)
	}
	return nil
}

// Ready reports whether ops of the target would be seen now: it returns nil, ErrNoGGML or ErrOldGGML.
func (t *Tracer) Ready() error { return t.checkReady(t.main) }

func (t *Tracer) checkReady(p *target) error {
	switch {
	case p.configured && p.hasRole(ggml.RoleOp),
		p.configured && p.hasRole(ggml.RoleGraph) && t.opts.Detail == DetailGraph:
		return nil
	case p.hasRole(ggml.RoleGraph) && !p.hasRole(ggml.RoleOp):
		return event.ErrOldGGML
	}
	return event.ErrNoGGML
}

// Attached lists the files that carry probes.
func (t *Tracer) Attached() []string { return t.attachedPaths }

// Describe returns what is known about the ggml of a traced process.
func (t *Tracer) Describe(pid int) event.TargetInfo {
	info := event.TargetInfo{}
	p := t.targets[uint32(pid)]
	if p == nil {
		return info
	}
	for _, im := range p.images() {
		info.GGMLVersion = cmp.Or(info.GGMLVersion, im.GGMLVersion)
		info.GGMLCommit = cmp.Or(info.GGMLCommit, im.GGMLCommit)
	}
	if p.layout != nil {
		info.LayoutOrigin = p.layout.Origin
	}
	return info
}
