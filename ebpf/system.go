package ebpf

// This file loads the programs on the kernel's own tracepoints (system.bpf.c) and handles their
// events: pages read from disk, threads that wait, processes that fork and exec.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// system holds these programs, attached. Methods of a nil *system do nothing.
type system struct {
	coll  *ebpf.Collection
	links []link.Link
	io    bool // pages and waits are observed
}

// attachFunc attaches a loaded program to its tracepoint.
type attachFunc func(*ebpf.Program) (link.Link, error)

// openSystem attaches the programs that the options need. Watching exec is optional, and left out
// if the kernel does not support it; the other programs are required.
func openSystem(objs *traceObjects, opts Options) (*system, error) {
	io := opts.Detail == DetailIO
	wanted := wantedPrograms(opts)
	shared := map[string]*ebpf.Map{"events": objs.Events, "targets": objs.Targets, "counters": objs.Counters}
	spec, err := systemSpec(wanted, io, shared)
	if err != nil {
		return nil, err
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		if !io && !opts.Follow {
			opts.Log.Debug("cannot notice that the target execs", "error", err)
			return nil, nil
		}
		if isRefusal(err) {
			return nil, explainRefusal(err)
		}
		return nil, fmt.Errorf("load the programs for the kernel's tracepoints: %w", err)
	}
	s := &system{coll: coll, io: io}
	if err := s.attach(wanted, opts); err != nil {
		err = errors.Join(err, s.detach())
		s.close()
		return nil, err
	}
	if err := s.watchHints(opts.Hints); err != nil {
		err = errors.Join(err, s.detach())
		s.close()
		return nil, err
	}
	return s, nil
}

// wantedPrograms are the programs that the options need, by name, and how each is attached.
func wantedPrograms(opts Options) map[string]attachFunc {
	wanted := map[string]attachFunc{"execed": attachBTF}
	if opts.Follow {
		wanted["forked"] = attachBTF
	}
	if opts.Detail == DetailIO {
		wanted["page_added"] = attachTracepoint("filemap", "mm_filemap_add_to_page_cache")
		wanted["page_fault"] = attachTracepoint("exceptions", "page_fault_user")
		wanted["switched"] = attachBTF
	}
	return wanted
}

// systemSpec returns the embedded programs without those that are not wanted, configured. shared
// are the maps of the other object that they use.
func systemSpec(wanted map[string]attachFunc, io bool, shared map[string]*ebpf.Map) (*ebpf.CollectionSpec, error) {
	spec, err := loadSystem()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	order := false
	if io {
		if order, err = checkPageAdded(); err != nil {
			return nil, err
		}
	}
	for name := range spec.Programs {
		if wanted[name] == nil {
			delete(spec.Programs, name)
		}
	}
	err = errors.Join(spec.Variables["page_shift"].Set(pageShift()), spec.Variables["has_order"].Set(asFlag(order)),
		spec.Variables["wake_at"].Set(wakeAt(shared["events"].MaxEntries())))
	if err != nil {
		return nil, fmt.Errorf("configure the embedded programs: %w", err)
	}
	if err := setNamespace(spec); err != nil {
		return nil, err
	}
	for name, m := range shared {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	spec.Maps[systemMapModelFiles].MaxEntries = maxFiles
	if !io { // then no program uses these maps
		delete(spec.Maps, systemMapIoThreads)
		delete(spec.Maps, systemMapModelFiles)
	}
	return spec, nil
}

// attach attaches the programs. Two may fail: that on exec, and that on page faults where the
// kernel has no such tracepoint.
func (s *system) attach(wanted map[string]attachFunc, opts Options) error {
	for name, attach := range wanted {
		l, err := attach(s.coll.Programs[name])
		if err == nil {
			s.links = append(s.links, l)
			continue
		}
		switch {
		case name == "execed":
			opts.Log.Debug("cannot notice that the target execs", "error", err)
		case name == "page_fault" && errors.Is(err, os.ErrNotExist): // arm64
			opts.Log.Warn("this kernel does not tell page faults: every page that the target brings in counts as " +
				"a read")
		default:
			return fmt.Errorf("attach %s: %w", name, err)
		}
	}
	return nil
}

// watchHints watches those of the files that are regular files.
func (s *system) watchHints(hints []string) error {
	if !s.io {
		return nil
	}
	for _, hint := range hints {
		if info, err := os.Stat(hint); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if key, err := proc.FileOf(hint); err == nil {
			if err := s.watch(event.FileID(key)); err != nil {
				return err
			}
		}
	}
	return nil
}

func attachBTF(p *ebpf.Program) (link.Link, error) {
	return link.AttachTracing(link.TracingOptions{Program: p})
}

func attachTracepoint(group, name string) attachFunc {
	return func(p *ebpf.Program) (link.Link, error) { return link.Tracepoint(group, name, p, nil) }
}

// checkPageAdded checks the tracepoint's fields against what the program reads, and reports whether
// it has the folio's order.
func checkPageAdded() (order bool, err error) {
	const name = "events/filemap/mm_filemap_add_to_page_cache/format"
	var format []byte
	for _, dir := range traceFS {
		if format, err = os.ReadFile(filepath.Join(dir, name)); err == nil {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("the kernel does not tell which pages come from disk"+
			" (mount -t tracefs tracefs /sys/kernel/tracing): %w", err)
	}
	for _, want := range []string{
		"i_ino;\toffset:16;\tsize:8;", "index;\toffset:24;\tsize:8;", "s_dev;\toffset:32;\tsize:4;",
	} {
		if !strings.Contains(string(format), want) {
			return false, fmt.Errorf("this kernel's mm_filemap_add_to_page_cache lacks %q: its pages cannot be told",
				want)
		}
	}
	return strings.Contains(string(format), "order;\toffset:36;\tsize:1;"), nil
}

// watch adds a file for which page-ins caused by other processes are reported, too.
func (s *system) watch(file event.FileID) error {
	if s == nil || !s.io {
		return nil
	}
	key := systemFileKey{Ino: file.Ino, Dev: uint32(file.Dev)}
	err := s.coll.Maps[systemMapModelFiles].Put(key, uint8(1))
	if err != nil && !errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("watch the pages of a model: %w", err)
	}
	return nil
}

// drain passes on the runs of pages that the programs have not sent yet, because the thread might
// have extended them.
func (s *system) drain(handle func(*systemPagesEvent) error) error {
	if s == nil || !s.io {
		return nil
	}
	var tid uint32
	var io systemIo
	threads := s.coll.Maps[systemMapIoThreads]
	for it := threads.Iterate(); it.Next(&tid, &io); {
		if io.Run.Count == 0 {
			continue
		}
		run := io.Run
		if err := handle(&run); err != nil {
			return err
		}
	}
	return nil
}

func (s *system) detach() error {
	if s == nil {
		return nil
	}
	var errs []error
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	s.links = nil
	return errors.Join(errs...)
}

func (s *system) close() {
	if s != nil {
		s.coll.Close()
	}
}

// dispatchSystem handles an event of these programs.
func (t *Tracer) dispatchSystem(kind systemEventKind, tgid uint32, raw []byte, handle func(event.Event) error) error {
	switch kind {
	case systemEventKindKIND_PAGES:
		return t.handlePages(viewAs[systemPagesEvent](raw), handle)
	case systemEventKindKIND_FORK:
		return t.handleFork(viewAs[systemProcessEvent](raw))
	case systemEventKindKIND_EXEC:
		if p := t.targets[tgid]; p != nil { // else it has ended since the event was sent
			return t.handleExec(p)
		}
		return nil
	}
	return fmt.Errorf("an event of kind %d, which no program sends", kind)
}

// handlePages sends a run of pages that were read from disk.
func (t *Tracer) handlePages(e *systemPagesEvent, handle func(event.Event) error) error {
	if p := t.targets[e.Tgid]; p != nil {
		if err := t.announce(p, handle); err != nil {
			return err
		}
	}
	cause, err := causeOf(systemCause(e.Cause))
	if err != nil {
		return err
	}
	page := int64(os.Getpagesize())
	return handle(event.PageIn{
		Time: int64(e.Time), PID: int32(e.Tgid), TID: int32(e.Tid), Decode: e.Decode, Seq: e.Seq,
		File:   event.FileID{Dev: uint64(e.Dev), Ino: e.Ino},
		Offset: int64(e.Index) * page, Bytes: int64(e.Count) * page, Cause: cause,
	})
}

// causeOf converts a cause from the programs' numbers.
func causeOf(c systemCause) (event.Cause, error) {
	switch c {
	case systemCauseCAUSE_FAULT:
		return event.CauseFault, nil
	case systemCauseCAUSE_READAHEAD:
		return event.CauseReadahead, nil
	case systemCauseCAUSE_READ:
		return event.CauseRead, nil
	case systemCauseCAUSE_OTHER:
		return event.CauseOther, nil
	}
	return 0, fmt.Errorf("the ring buffer holds pages that came for an unknown cause %d", c)
}
