package ebpf

// This file owns the programs on the kernel's tracepoints: pages that come from disk, waiting threads, processes that fork and exec.

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

// system is those programs, attached. The nil one does nothing.
type system struct {
	coll  *ebpf.Collection
	links []link.Link
	io    bool
}

// openSystem attaches what the options ask for. That a target execs another program is noticed where the kernel tells it, for free;
// the other programs are indispensable.
func openSystem(objs *traceObjects, opts Options) (*system, error) {
	spec, err := loadSystem()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	wanted := map[string]func(*ebpf.Program) (link.Link, error){"execed": attachBTF}
	if opts.Follow {
		wanted["forked"] = attachBTF
	}
	io := opts.Detail == DetailIO
	order := false
	if io {
		wanted["page_added"] = attachTracepoint("filemap", "mm_filemap_add_to_page_cache")
		wanted["page_fault"] = attachTracepoint("exceptions", "page_fault_user")
		wanted["switched"] = attachBTF
		if order, err = checkPageAdded(); err != nil {
			return nil, err
		}
	}
	for name := range spec.Programs {
		if wanted[name] == nil {
			delete(spec.Programs, name)
		}
	}
	if err := errors.Join(spec.Variables["page_shift"].Set(pageShift()), spec.Variables["has_order"].Set(flag(order)),
		spec.Variables["wake_at"].Set(wakeAt(objs.Events.MaxEntries()))); err != nil {
		return nil, fmt.Errorf("configure the embedded programs: %w", err)
	}
	for name, m := range map[string]*ebpf.Map{"events": objs.Events, "targets": objs.Targets, "counters": objs.Counters} {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	if !io { // then no program uses them
		delete(spec.Maps, systemMapIoThreads)
		delete(spec.Maps, systemMapModelFiles)
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{"events": objs.Events, "targets": objs.Targets, "counters": objs.Counters},
	})
	if err != nil {
		if !io && !opts.Follow {
			opts.Log.Debug("cannot notice that the target execs", "error", err)
			return nil, nil
		}
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("%w (%v)", event.ErrPermission, err)
		}
		return nil, fmt.Errorf("load the programs for the kernel's tracepoints: %w", err)
	}
	s := &system{coll: coll, io: io}
	for name, attach := range wanted {
		l, err := attach(coll.Programs[name])
		if err != nil {
			if name == "execed" {
				opts.Log.Debug("cannot notice that the target execs", "error", err)
				continue
			}
			if name == "page_fault" && errors.Is(err, os.ErrNotExist) { // arm64
				opts.Log.Warn("this kernel does not tell page faults: every page that the target brings in counts as a read")
				continue
			}
			return nil, errors.Join(fmt.Errorf("attach %s: %w", name, err), s.detach(), s.close())
		}
		s.links = append(s.links, l)
	}
	if !io {
		return s, nil
	}
	for _, hint := range opts.Hints {
		if info, err := os.Stat(hint); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if key, err := proc.FileOf(hint); err == nil {
			if err := s.watch(event.FileID(key)); err != nil {
				return nil, errors.Join(err, s.detach(), s.close())
			}
		}
	}
	return s, nil
}

func attachBTF(p *ebpf.Program) (link.Link, error) {
	return link.AttachTracing(link.TracingOptions{Program: p})
}

func attachTracepoint(group, name string) func(*ebpf.Program) (link.Link, error) {
	return func(p *ebpf.Program) (link.Link, error) { return link.Tracepoint(group, name, p, nil) }
}

// checkPageAdded compares the tracepoint's fields with those that the program reads, and reports whether it tells the folio's order.
func checkPageAdded() (order bool, err error) {
	const name = "events/filemap/mm_filemap_add_to_page_cache/format"
	var format []byte
	for _, dir := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		if format, err = os.ReadFile(filepath.Join(dir, name)); err == nil {
			break
		}
	}
	if err != nil {
		return false, fmt.Errorf("the kernel does not tell which pages come from disk (mount -t tracefs tracefs /sys/kernel/tracing): %w", err)
	}
	for _, want := range []string{"i_ino;\toffset:16;\tsize:8;", "index;\toffset:24;\tsize:8;", "s_dev;\toffset:32;\tsize:4;"} {
		if !strings.Contains(string(format), want) {
			return false, fmt.Errorf("this kernel's mm_filemap_add_to_page_cache lacks %q: its pages cannot be told", want)
		}
	}
	return strings.Contains(string(format), "order;\toffset:36;\tsize:1;"), nil
}

// watch notes a file of which it matters what other processes read.
func (s *system) watch(file event.FileID) error {
	if s == nil || !s.io {
		return nil
	}
	key := systemFileKey{Ino: file.Ino, Dev: uint32(file.Dev)}
	if err := s.coll.Maps[systemMapModelFiles].Put(key, uint8(1)); err != nil && !errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("watch the pages of a model: %w", err)
	}
	return nil
}

// drain hands over the runs of pages that were not at their end when their thread was seen last.
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

// maps are those that only these programs use.
func (s *system) maps() (own []*ebpf.Map) {
	if s == nil {
		return nil
	}
	for name, m := range s.coll.Maps {
		if name != systemMapEvents && name != systemMapTargets && name != systemMapCounters {
			own = append(own, m)
		}
	}
	return own
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

func (s *system) close() error {
	if s != nil {
		s.coll.Close()
	}
	return nil
}
