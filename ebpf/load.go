package ebpf

// This file loads the programs on the target's functions (trace.bpf.c) and their maps into the
// kernel, configured for what the options ask.

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/ringbuf"

	"tensorcast/event"
)

// load loads both sets of programs and makes the main process a target. If it fails, nothing stays
// loaded.
func (t *Tracer) load() error {
	spec, err := t.configuredSpec()
	if err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&t.objs, nil); err != nil {
		if isRefusal(err) {
			return explainRefusal(err)
		}
		if _, btfErr := btf.LoadKernelSpec(); btfErr != nil {
			return fmt.Errorf("%w (%v)", event.ErrNoBTF, btfErr)
		}
		return fmt.Errorf("load the probes into the kernel: %w", err)
	}
	if err := checkNamespace(t.objs.Whoami); err != nil {
		return errors.Join(err, t.objs.Close())
	}
	t.cache = newCache(t.objs.Templates.MaxEntries())
	t.main.cache = t.cache
	if t.reader, err = ringbuf.NewReader(t.objs.Events); err != nil {
		return errors.Join(fmt.Errorf("open the ring buffer: %w", err), t.objs.Close())
	}
	if t.system, err = openSystem(&t.objs, t.opts); err != nil {
		return errors.Join(err, t.reader.Close(), t.objs.Close())
	}
	// Make it a target at once: it may fork or read pages before its ggml is found.
	if err := t.objs.Targets.Put(uint32(t.opts.PID), traceTargetConfig{Follow: asFlag(t.opts.Follow)}); err != nil {
		err = errors.Join(fmt.Errorf("configure the probes: %w", err), t.system.detach())
		t.system.close()
		return errors.Join(err, t.reader.Close(), t.objs.Close())
	}
	return nil
}

// configuredSpec returns the embedded programs with the sizes of their maps and their constants set.
func (t *Tracer) configuredSpec() (*ebpf.CollectionSpec, error) {
	spec, err := loadTrace()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	for name, n := range t.opts.mapSizes() {
		spec.Maps[name].MaxEntries = n
	}
	if !t.multi {
		for _, p := range spec.Programs {
			p.AttachType = ebpf.AttachNone
		}
	}
	var errs []error
	for name, v := range t.constants(spec) {
		errs = append(errs, spec.Variables[name].Set(v))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("configure the embedded programs: %w", err)
	}
	if err := setNamespace(spec); err != nil {
		return nil, err
	}
	return spec, nil
}

// constants are the values of the programs' constants ("Set before loading" in trace.bpf.c and
// common.h), by name.
func (t *Tracer) constants(spec *ebpf.CollectionSpec) map[string]any {
	return map[string]any{
		"want_graph":    asFlag(t.opts.Detail == DetailGraph),
		"want_io":       asFlag(t.opts.Detail == DetailIO),
		"want_buffers":  asFlag(t.opts.Buffers),
		"want_selected": asFlag(t.opts.Selected),
		"want_inputs":   uint32(t.opts.Inputs),
		"want_lookups":  uint64(t.opts.Lookups),
		"input_rows":    uint32(cmp.Or(t.opts.InputRows, defaultInputRows)),
		"at_once":       asFlag(t.opts.AtOnce),
		"batch":         t.opts.opsPerEvent(),
		"wide":          asFlag(t.wide),
		"page_shift":    pageShift(),
		"wake_at":       wakeAt(spec.Maps["events"].MaxEntries),
		"template_mask": spec.Maps["templates"].MaxEntries - 1,
	}
}

// asFlag converts a bool to the number that the programs use for it.
func asFlag(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

// pageShift is the binary logarithm of the page size in bytes.
func pageShift() uint32 { return uint32(bits.TrailingZeros(uint(os.Getpagesize()))) }
