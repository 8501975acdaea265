package handover

// This file keeps a target alive while the kernel takes a device's memory.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A device has memory that cannot be reclaimed, so its group may run out of memory, and the kernel ends the device first. That a process was chosen to die is forgotten as soon as its last thread
// begins to exit, while its memory is still being freed. This takes tens of milliseconds for hundreds of MiB on busy processors, in which another process that needs memory in the group has the kernel
// choose again: the target, if nothing else is there. So there are processes that cost little and are chosen before it. Each gains the time that choosing and dying takes.
const (
	decoyCount = 12
	// decoyScore is that of the device; the kernel takes the larger one of the two first. Whoever starts both has to come behind them (prefetch.Settle), as they end with it.
	decoyScore = 1000
)

// decoys are processes that do nothing until they are closed, or this process ends.
type decoys struct {
	cmds []*exec.Cmd
	hold io.Closer // end of file for all of them
}

// startDecoys starts n processes in this process's group. The caller must call close.
func startDecoys(n int) (_ *decoys, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start processes for the kernel to end: %w", err)
	}
	defer r.Close()
	d := &decoys{hold: w}
	for range n {
		cmd := exec.Command("cat")
		cmd.Stdin = r
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return nil, errors.Join(fmt.Errorf("start processes for the kernel to end: %w", err), d.close())
		}
		d.cmds = append(d.cmds, cmd)
		if err := os.WriteFile("/proc/"+strconv.Itoa(cmd.Process.Pid)+"/oom_score_adj", []byte(strconv.Itoa(decoyScore)), 0); err != nil {
			return nil, errors.Join(fmt.Errorf("have the kernel end processes first: %w", err), d.close())
		}
		// It takes its time to die where others want the processor.
		_ = unix.SchedSetAttr(cmd.Process.Pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
	}
	return d, nil
}

func (d *decoys) close() error {
	err := d.hold.Close()
	for _, cmd := range d.cmds {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // that it was killed is no error
	}
	d.cmds = nil
	return err
}
