package ebpf

// This file tries features of the kernel: it loads small programs, and sets a probe on a function
// of this program.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tensorcast/internal/proc"
)

// tryPrograms loads the tracer's programs, and attaches those that do not belong to a target.
func tryPrograms(d Detail) error {
	t, err := New(Options{PID: os.Getpid(), Detail: d})
	if err != nil {
		return err
	}
	return t.Close()
}

// tryTracepoint attaches a program to a tracepoint of the kernel.
func tryTracepoint(group, name string) error {
	p, err := counterProgram(ebpf.TracePoint, ebpf.AttachNone, nil)
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

// counterProgram returns a program that increments the first value of a map; without a map it does
// nothing.
func counterProgram(kind ebpf.ProgramType, attach ebpf.AttachType, to *ebpf.Map) (*ebpf.Program, error) {
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

// tryUprobe sets a probe on a function of this program and calls the function from a thread other
// than the first. Kernels before 6.10 apply the process filter of uprobe_multi to the thread only,
// so that the call is not seen.
func tryUprobe(multi bool) error {
	remove, err := hitOwnUprobe(multi)
	return errors.Join(err, remove())
}

// hitOwnUprobe does what tryUprobe does, and leaves the probe in place: removing it waits for the
// kernel, some 50 ms. remove is never nil.
func hitOwnUprobe(multi bool) (remove func() error, err error) {
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
	p, err := counterProgram(ebpf.Kprobe, attach, hits)
	if err != nil {
		return remove, err
	}
	made = append(made, p)
	offset, err := offsetOf(reflect.ValueOf(probedFunction).Pointer())
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
	onOtherThread(func() { runtime.KeepAlive(probedFunction(1)) })
	var seen uint64
	if err := hits.Lookup(uint32(0), &seen); err != nil {
		return remove, err
	}
	if seen == 0 {
		return remove, errors.New("a hit in another thread than the first is not seen")
	}
	return remove, nil
}

// probedFunction is the function that tryUprobe probes.
//
//go:noinline
func probedFunction(n int) int { return n + 1 }

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
