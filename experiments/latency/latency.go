// Package latency measures how long a helper takes from a router's choice to its first read for it.
// "lab latency" runs it.
//
// A llama.cpp generates in a memory control group with a limit. It has as many threads as there are
// processors, and they spin at each barrier. A helper runs beside it. The instrument's own BPF
// programs take the times: when the target's first op reads a router's choice, when the helper's
// next read of the model's disk is handed to the block layer, and when the request that holds its
// first sector is given to the driver. So the helper may be any command, and what it says of itself
// does not matter. A helper that also reads for other reasons at that moment, as one that streams
// what every token reads, seems faster than it is.
//
// Everything needs root.
package latency

//go:generate go tool bpf2go -target amd64,arm64 latency bpf/latency.bpf.c -- -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Werror -I../../ebpf/bpf -I/usr/include/x86_64-linux-gnu

// This file sets the probes, and reads what they have seen.

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"tensorcast/ggml"
	"tensorcast/internal/proc"
)

// Times say how long after a choice its first read came.
type Times struct {
	Queued time.Duration // handed to the block layer
	Issued time.Duration // given to the driver; 0: that was not seen, as with a disk on top of others
}

// Seen is what the probes have seen.
type Seen struct {
	Choices int // of routers
	// TargetFirst counts the choices after which the target itself read before the helper did.
	TargetFirst int
	Times       []Times
}

// Meter holds the probes in a target.
type Meter struct {
	objects latencyObjects
	links   []link.Link
}

// maxTimes is how many times are kept.
const maxTimes = 1 << 16

// errNoChoice says what it means that no choice was seen.
var errNoChoice = errors.New("no router's choice was seen: the model is no mixture of experts, or this build of " +
	"ggml names it in another way")

// Attach sets probes in a target for which a helper reads ahead. dev is the number of the model's
// disk, as [proc.FileID] has it. The caller must call Close. It needs uprobe_multi (Linux 6.6).
func Attach(target, helper int, images []*ggml.Image, dev uint64) (_ *Meter, err error) {
	if ns, err := proc.PIDNamespace(); err != nil || ns != 0 {
		return nil, errors.Join(err,
			errors.New("this instrument works in the first PID namespace only: run it on the host"))
	}
	layout, err := ggml.Infer(images)
	if err != nil {
		return nil, err
	}
	spec, err := loadLatency()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	for name, value := range map[string]uint32{"target": uint32(target), "helper": uint32(helper),
		"device": uint32(dev), "src_at": layout.Src, "name_at": layout.Name} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("configure the embedded programs: %w", err)
		}
	}
	if err := rlimit.RemoveMemlock(); err != nil { // before Linux 5.11
		return nil, err
	}
	m := &Meter{}
	if err := spec.LoadAndAssign(&m.objects, nil); err != nil {
		return nil, fmt.Errorf("load the programs: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	for name, program := range map[string]*ebpf.Program{"block_bio_queue": m.objects.BioQueued,
		"block_rq_issue": m.objects.RequestIssued} {
		l, err := link.Tracepoint("block", name, program, nil)
		if err != nil {
			return nil, fmt.Errorf("attach to block:%s: %w", name, err)
		}
		m.links = append(m.links, l)
	}
	for _, im := range images {
		if err := m.attachToOps(im, target); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// attachToOps sets the probe on the function that every op calls.
func (m *Meter) attachToOps(im *ggml.Image, target int) error {
	var at []uint64
	for _, s := range im.Sites {
		if s.Role == ggml.RoleOp {
			at = append(at, s.Probe)
		}
	}
	if len(at) == 0 {
		return nil
	}
	ex, err := link.OpenExecutable(im.Path)
	if err != nil {
		return fmt.Errorf("open %s: %w", im.Path, err)
	}
	l, err := ex.UprobeMulti(nil, m.objects.Op, &link.UprobeMultiOptions{Addresses: at, PID: uint32(target)})
	if err != nil {
		return fmt.Errorf("attach to %s for process %d: %w", im.Path, target, err)
	}
	m.links = append(m.links, l)
	return nil
}

// Read returns what was seen up to now.
func (m *Meter) Read() (Seen, error) {
	var c latencyCounts
	if err := m.objects.Seen.Get(&c); err != nil {
		return Seen{}, fmt.Errorf("read what was counted: %w", err)
	}
	s := Seen{Choices: int(c.Choices), TargetFirst: int(c.TargetFirst)}
	for i := range uint32(min(c.Samples, maxTimes)) {
		var one latencySample
		if err := m.objects.Samples.Lookup(i, &one); err != nil {
			return s, fmt.Errorf("read the times: %w", err)
		}
		s.Times = append(s.Times, Times{time.Duration(one.Queued), time.Duration(one.Issued)})
	}
	return s, nil
}

// Close removes the probes.
func (m *Meter) Close() error {
	var errs []error
	for _, l := range m.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, m.objects.Close())...)
}

// Images describes the files with code that a process maps.
func Images(pid int) ([]*ggml.Image, error) {
	mappings, err := proc.Mappings(pid)
	if err != nil {
		return nil, err
	}
	scanned := map[proc.FileID]bool{}
	var images []*ggml.Image
	for i := range mappings {
		m := &mappings[i]
		if !m.Executable || scanned[m.File] {
			continue
		}
		scanned[m.File] = true
		im, err := ggml.Scan(m.Locate(pid).Path)
		if err != nil {
			return nil, err
		}
		images = append(images, im)
	}
	if !slices.ContainsFunc(images, func(im *ggml.Image) bool { return im.Has(ggml.RoleOp) }) {
		return nil, fmt.Errorf("process %d: %w", pid, errNoOps)
	}
	return images, nil
}

// errNoOps says that there is nothing to probe.
var errNoOps = errors.New("it has loaded no ggml that computes on the CPU")
