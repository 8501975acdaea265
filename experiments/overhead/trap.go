package overhead

// This file implements the observer "trap": it sets a probe that does nothing where tracer sets its
// probe for ops. Its overhead is the kernel's cost of the hits alone.

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"tensorcast/ggml"
)

// Trap sets a BPF program that returns at once on the instruction on which tracer sets its probe
// for ops. library is a file with ggml's CPU code. The probe is removed when ctx is done. Only hits
// of the process pid count, which requires uprobe_multi (Linux 6.6; its process filter: 6.10).
func Trap(ctx context.Context, pid int, library string) (err error) {
	im, err := ggml.Scan(library)
	if err != nil {
		return err
	}
	var at []uint64
	for _, s := range im.Sites {
		if s.Role == ggml.RoleOp {
			at = append(at, s.Probe)
		}
	}
	if len(at) == 0 {
		return fmt.Errorf("%s: no function that every op calls: give the file with ggml's CPU code", library)
	}
	nothing, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load a program that returns at once: %w", err)
	}
	defer func() { err = errors.Join(err, nothing.Close()) }()
	ex, err := link.OpenExecutable(library)
	if err != nil {
		return fmt.Errorf("open %s: %w", library, err)
	}
	probe, err := ex.UprobeMulti(nil, nothing, &link.UprobeMultiOptions{Addresses: at, PID: uint32(pid)})
	if err != nil {
		return fmt.Errorf("attach to %s for process %d: %w", library, pid, err)
	}
	<-ctx.Done()
	if err := probe.Close(); err != nil {
		return fmt.Errorf("detach from %s: %w", library, err)
	}
	return nil
}
