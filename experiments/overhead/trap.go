package overhead

// This file observes nothing where tracer observes ops: what is lost then, the kernel takes for the hits themselves.

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"tensorcast/ggml"
)

// Trap sets a program that returns at once on the instruction of library, a file that holds ggml's CPU code, on which tracer sets its probe
// for ops, and removes it when ctx is done. Only hits of the process count, which takes uprobe_multi (Linux 6.6; its filter: 6.10).
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
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
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
