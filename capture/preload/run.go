package preload

// This file reads the records that processes write and turns them into events.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/internal/proc"
)

// process is a process that has a slot.
type process struct {
	pid, slot   int
	handle      *proc.Process // nil if it could not be opened
	followed    bool
	begun       bool
	gone        bool
	abandoned   bool   // some of its records were left unread
	received    uint64 // number of ops
	clipped     uint64 // of these, how many lack the rows that they gather
	ops         map[uint32]string
	paths       map[event.FileID]string
	filesSent   map[event.FileID]bool // files for which FileSeen was sent
	templates   map[uint32]*template
	openDecodes map[int32]uint32 // decodes that have not ended, by thread
	seesDecodes bool             // llama_decode is observed, so no steps are derived
	derived     event.DerivedSteps
}

func (p *process) close() {
	if p.handle != nil {
		_ = p.handle.Close() // it was only polled
		p.handle = nil
	}
}

// isAlive reports whether the process still runs. With a handle, a reused pid is not mistaken for it.
func (p *process) isAlive() bool {
	if p.handle == nil {
		return !errors.Is(unix.Kill(p.pid, 0), unix.ESRCH)
	}
	ended, err := p.handle.Ended()
	return err != nil || !ended
}

const (
	// maxReadTime is roughly how long one pass over the slots may take. Programs may write as fast
	// as their events are handled.
	maxReadTime = 100 * time.Millisecond
	// maxFinishTime is how long the remaining records are handled at the end. Records that are left
	// then count as lost.
	maxFinishTime = 500 * time.Millisecond

	// These bound memory, whatever programs write. None of them is near what a llama.cpp program needs.
	maxFiles   = 1 << 12 // that a process reads weights from
	maxPath    = 4 << 12 // bytes of a path: PATH_MAX, each byte escaped
	maxCommand = 1 << 12 // bytes; the shim sends fewer
	maxOpen    = 1 << 12 // decodes that have not ended
	maxWeights = 1 << 18 // sources of ops in all templates
	maxStrays  = 1 << 6
	maxImages  = 1 << 6
)

// Run passes events to handle until ctx is done: those of process pid, and with Follow those of all
// processes that compute. Then it passes on what the programs have written by then, and returns
// nil. If handle or Tick fails, Run returns the error at once. The Sources of an [event.Op] are
// shared between events and must not be modified. Call Run once. After it, programs report nothing
// more.
func (s *Session) Run(ctx context.Context, pid int, handle func(event.Event) error) error {
	defer s.mem.markClosed()
	s.target = pid
	tick := time.NewTicker(s.opts.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := s.readSlots(time.Now().Add(maxReadTime), handle); err != nil {
			return err
		}
		if err := s.opts.Tick(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	s.mem.markClosed()
	return s.finishProcesses(handle)
}

// readSlots reads what all processes have written, until the deadline.
func (s *Session) readSlots(deadline time.Time, handle func(event.Event) error) error {
	for i := range slots {
		pid, err := s.mem.ownerPID(i)
		if err != nil {
			return err
		}
		p := s.procs[i]
		switch {
		case p == nil && pid == 0:
			continue
		case p == nil:
			p = s.addProcess(pid, i)
		}
		gone := !p.isAlive() // checked before reading, so that nothing of an ended process remains unread
		if err := s.drainProcess(p, deadline, handle); err != nil {
			return err
		}
		if gone && s.mem.unreadBytes(i) == 0 {
			if err := s.removeProcess(p, handle); err != nil {
				return err
			}
		}
	}
	return nil
}

// addProcess adds a process that has taken a slot.
func (s *Session) addProcess(pid, slot int) *process {
	p := &process{
		pid: pid, slot: slot, followed: pid == s.target || s.opts.Follow,
		ops: map[uint32]string{}, paths: map[event.FileID]string{}, filesSent: map[event.FileID]bool{},
		templates: map[uint32]*template{}, openDecodes: map[int32]uint32{},
		derived: event.DerivedSteps{PID: int32(pid)},
	}
	if handle, err := proc.Open(pid); err == nil {
		p.handle = handle
	}
	s.procs[slot] = p
	return p
}

// sendBegin sends ProcessBegin before a followed process's first event.
func (s *Session) sendBegin(p *process, r *processRecord, handle func(event.Event) error) error {
	switch {
	case p.begun: // a second one comes after an execve
		return nil
	case !p.followed:
		p.begun = true
		command := strings.Join(r.command, " ")
		if len(s.strays) < maxStrays {
			s.strays[p.pid] = command
		}
		s.opts.Log.Debug("a process that is not followed computes", "pid", p.pid, "command", command)
		return nil
	}
	p.begun = true
	e := event.ProcessBegin{PID: int32(p.pid), Parent: r.parent, Command: r.command}
	if p.pid == s.target {
		e.Parent = 0
	}
	return handle(e)
}

// removeProcess removes a process that has ended and whose records have all been read.
func (s *Session) removeProcess(p *process, handle func(event.Event) error) error {
	p.gone = true
	p.close()
	if p.followed {
		addCounters(&s.ended, s.mem.counters(p))
		s.unread += s.mem.unreadGraphs(p.slot)
	}
	s.mem.freeSlot(p.slot)
	delete(s.procs, p.slot)
	for _, t := range p.templates {
		s.weights -= t.weights
	}
	if !p.followed {
		return nil
	}
	return s.sendEnd(p, handle)
}

// sendEnd sends a process's last events.
func (s *Session) sendEnd(p *process, handle func(event.Event) error) error {
	if !p.begun {
		return nil
	}
	if err := p.derived.End(handle); err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the monotonic clock: %w", err)
	}
	return handle(event.ProcessEnd{Time: now.Nano(), PID: int32(p.pid)})
}

// finishProcesses ends all processes at the end of the session.
func (s *Session) finishProcesses(handle func(event.Event) error) error {
	deadline := time.Now().Add(maxFinishTime)
	for again := true; again; {
		if err := s.readSlots(deadline, handle); err != nil {
			return err
		}
		again = time.Now().Before(deadline) && slices.ContainsFunc(slices.Collect(maps.Keys(s.procs)),
			func(i int) bool { return s.mem.unreadBytes(i) > 0 })
	}
	for _, p := range s.procs {
		if !p.followed {
			continue
		}
		p.gone = !p.isAlive()
		p.abandoned = s.mem.unreadBytes(p.slot) > 0
		if err := s.sendEnd(p, handle); err != nil {
			return err
		}
		s.unread += s.mem.unreadGraphs(p.slot)
	}
	if atomic.LoadUint32(&s.mem.header().No_slot) > 0 {
		s.opts.Log.Warn("some processes were left out: too many computed at once", "at once", slots)
	}
	if s.unread > 0 {
		s.opts.Log.Warn("some graphs were left out: the layout of their tensors or the memory map was not known "+
			"when they ran, or they have bad addresses", "graphs", s.unread)
	}
	return nil
}

// drainProcess reads what a process has written, until the deadline.
func (s *Session) drainProcess(p *process, deadline time.Time, handle func(event.Event) error) error {
	_, err := s.mem.readRecords(p.slot, deadline,
		func(kind uint32, body []byte) error { return s.handleRecord(p, kind, body, handle) })
	if err != nil {
		return fmt.Errorf("process %d: %w", p.pid, err)
	}
	return nil
}

func (s *Session) handleRecord(p *process, kind uint32, body []byte, handle func(event.Event) error) error {
	if kind == kindProcess {
		r, err := readProcess(body)
		if err != nil {
			return err
		}
		return s.sendBegin(p, &r, handle)
	}
	if !p.followed {
		return nil
	}
	if err := s.sendBegin(p, &processRecord{}, handle); err != nil {
		return err
	}
	switch kind {
	case kindImage:
		im, err := readImage(body)
		if err != nil {
			return err
		}
		return s.handleImage(p, &im)
	case kindOpName:
		op, name, err := readOpName(body)
		p.ops[op] = name
		return err
	case kindFile:
		id, path, err := readFile(body)
		if err != nil {
			return err
		}
		if _, known := p.paths[id]; !known && len(p.paths) >= maxFiles {
			return fmt.Errorf("%w: more than %d files", errCorrupt, maxFiles)
		}
		p.paths[id] = path
		return nil
	case kindTemplate:
		id, t, err := readTemplate(body)
		if err != nil {
			return err
		}
		return s.storeTemplate(p, id, t)
	case kindGraph:
		g, err := readGraph(body)
		if err != nil {
			return err
		}
		return s.handleGraph(p, &g, handle)
	case kindGraphEnd:
		e, err := readGraphEnd(body)
		if e.decode == 0 {
			p.derived.Extend(int32(e.tid), e.time)
		}
		return err
	case kindDecodeBegin:
		d, err := readDecode(body)
		if err != nil {
			return err
		}
		return p.beginDecode(&d, handle)
	case kindDecodeEnd:
		d, err := readDecode(body)
		if err != nil {
			return err
		}
		delete(p.openDecodes, int32(d.tid))
		return handle(event.DecodeEnd{Time: d.time, PID: int32(p.pid), TID: int32(d.tid), Decode: d.decode})
	}
	return fmt.Errorf("%w: a record of kind %d", errCorrupt, kind)
}

// beginDecode sends DecodeBegin. A derived step of the thread ends before it.
func (p *process) beginDecode(d *decodeRecord, handle func(event.Event) error) error {
	p.seesDecodes = true
	if err := p.derived.EndThread(int32(d.tid), handle); err != nil {
		return err
	}
	if err := p.endStale(d.time, handle); err != nil {
		return err
	}
	p.openDecodes[int32(d.tid)] = d.decode
	return handle(event.DecodeBegin{
		Time: d.time, PID: int32(p.pid), TID: int32(d.tid), Context: d.context, Decode: d.decode,
		Tokens: d.tokens, Warmup: d.warmup, Sequences: d.sequences,
	})
}

// storeTemplate keeps a template. It replaces the one that had its id.
func (s *Session) storeTemplate(p *process, id uint32, t *template) error {
	if old := p.templates[id]; old != nil {
		s.weights -= old.weights
	}
	p.templates[id] = t
	if s.weights += t.weights; s.weights > maxWeights {
		return fmt.Errorf("%w: graphs with more than %d different weights", errCorrupt, maxWeights)
	}
	return nil
}

// endStale ends all open decodes if there are too many. Their threads are gone, and the records of
// their ends were lost.
func (p *process) endStale(time int64, handle func(event.Event) error) error {
	if len(p.openDecodes) < maxOpen {
		return nil
	}
	for tid, decode := range p.openDecodes {
		if err := handle(event.DecodeEnd{Time: time, PID: int32(p.pid), TID: tid, Decode: decode}); err != nil {
			return err
		}
	}
	clear(p.openDecodes)
	return nil
}

// handleImage handles the report of a library that computes. If none of the offered layouts fits,
// another one may be found in the library's files. The shim tries that with the next graph.
func (s *Session) handleImage(p *process, im *imageRecord) error {
	if im.layout == noLayout {
		for _, path := range nearbyLibraries(proc.Locate(p.pid, im.path, 0).Path) {
			scanned, err := ggml.Scan(path)
			if err == nil && scanned.Layout != nil && s.offerLayout(*scanned.Layout) {
				s.opts.Log.Debug("another layout", "file", path, "layout", scanned.Layout.String())
				return nil
			}
		}
		return s.layoutError(im)
	}
	if int(im.layout) >= len(s.layouts) {
		return fmt.Errorf("%w: layout %d", errCorrupt, im.layout)
	}
	l := s.layouts[im.layout]
	for _, raw := range im.samples {
		if err := l.Check(raw, 0); err != nil {
			return fmt.Errorf("%w: %q: %w", event.ErrLayout, im.path, err)
		}
	}
	if len(s.images) < maxImages {
		s.images = append(s.images, imageInfo{p.pid, im.path, im.version, im.commit, l})
	}
	s.opts.Log.Debug("graphs are seen", "pid", p.pid, "library", im.path, "layout", l.String())
	return nil
}

// layoutError returns event.ErrLayout with the evidence.
func (s *Session) layoutError(im *imageRecord) error {
	for _, raw := range im.samples {
		if err := s.layouts[0].Check(raw, 0); err != nil {
			return fmt.Errorf("%w: %q: %w", event.ErrLayout, im.path, err)
		}
	}
	return fmt.Errorf("%w: %q (its graphs and ggml's own functions disagree on it)", event.ErrLayout, im.path)
}

// nearbyLibraries lists a library of ggml and its neighbours, which may have debug information. The list
// is bounded, because a target could put any number of files there.
func nearbyLibraries(path string) []string {
	paths := []string{path}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return paths
	}
	for _, e := range entries {
		if len(paths) >= maxImages {
			break
		}
		if name := e.Name(); strings.HasPrefix(name, "libggml") && strings.Contains(name, ".so") &&
			name != filepath.Base(path) {
			paths = append(paths, filepath.Join(filepath.Dir(path), name))
		}
	}
	return paths
}

func (s *Session) handleGraph(p *process, g *graphRecord, handle func(event.Event) error) error {
	t := p.templates[g.template]
	if t == nil || t.hash != g.hash || len(t.ops) != int(g.ops) {
		return fmt.Errorf("%w: a graph of ops that it never told", errCorrupt)
	}
	decode := g.decode
	if decode == 0 {
		if err := p.deriveStep(t, g, handle); err != nil {
			return err
		}
		decode = p.derived.Decode(int32(g.tid))
	}
	for i := range t.ops {
		o := &t.ops[i]
		name := p.ops[o.op]
		if name == "" {
			return fmt.Errorf("%w: its ggml_op_name does not name op %d", event.ErrLayout, o.op)
		}
		for k := range o.sources {
			if err := s.sendFileSeen(p, &o.sources[k], handle); err != nil {
				return err
			}
		}
		op := event.Op{
			Time: g.time, Duration: -1, Stall: -1, PID: int32(p.pid), TID: int32(g.tid), Decode: decode,
			Graph: g.graph, Seq: g.seq + uint64(o.node) + 1, Name: name, Sources: o.sources, Memo: &o.memo,
		}
		op.GatherDim, op.ByExpert = o.gather.Dim, o.gather.Experts
		if op.ByExpert {
			op.Selects = int(o.selects)
		}
		if l, ok := g.ids[i]; ok {
			op.IDs, op.IDRows = l.ids, l.rows
		} else if op.GatherDim > 0 && !op.ByExpert { // computed by the graph itself, or too many
			op.Clipped = true
			p.clipped++
		}
		p.received++
		if err := handle(&op); err != nil {
			return err
		}
	}
	return nil
}

// deriveStep begins a step at a lookup of token embeddings if llama_decode was never observed, as in a
// program that gets this function from dlsym.
func (p *process) deriveStep(t *template, g *graphRecord, handle func(event.Event) error) error {
	if p.seesDecodes {
		return nil
	}
	for i := range t.ops {
		o := &t.ops[i]
		ids, ok := g.ids[i]
		if !ok || o.sources[0].Name != event.TokenEmbeddings {
			continue
		}
		if p.derived.Open() >= maxOpen { // the threads of most of them are gone
			if err := p.derived.End(handle); err != nil {
				return err
			}
		}
		return p.derived.Begin(int32(g.tid), g.time, len(ids.ids), handle)
	}
	return nil
}

// sendFileSeen sends FileSeen before the first op that reads from a file.
func (s *Session) sendFileSeen(p *process, src *event.Source, handle func(event.Event) error) error {
	if !src.InFile || p.filesSent[src.File] {
		return nil
	}
	path, ok := p.paths[src.File]
	if !ok {
		return fmt.Errorf("%w: a file that it never named", errCorrupt)
	}
	p.filesSent[src.File] = true
	// In /proc/PID/maps a newline is written as \012, and a removed file has the suffix " (deleted)".
	path = strings.TrimSuffix(strings.ReplaceAll(path, `\012`, "\n"), " (deleted)")
	at := proc.Locate(p.pid, path, src.File.Ino)
	return handle(event.FileSeen{PID: int32(p.pid), File: src.File, Path: at.Path, ID: at.ID})
}
