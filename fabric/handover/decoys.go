package handover

// This file keeps a target alive while the kernel takes a device's memory: processes that the kernel ends
// before the target.

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

// A device has memory that cannot be reclaimed. So its group may run out of memory, and the kernel ends the
// device first. The kernel forgets that it has chosen a process as soon as that process's last thread
// begins to exit, while its memory is still being freed. For hundreds of MiB on busy processors this takes
// tens of milliseconds. If another process of the group needs memory meanwhile, the kernel chooses again:
// the target, if there is nothing else. So there are decoys, which cost little and are chosen before it.
// Each gains the time that choosing and dying takes.
const (
	decoyCount = 12
	// decoyScore is also the device's; of the two, the kernel takes the larger one first. Whoever starts
	// both must have a lower score (prefetch.Settle), as they end with it.
	decoyScore = 1000
)

// decoys are processes that do nothing until they are closed, or this process ends.
type decoys struct {
	cmds  []*exec.Cmd
	input io.Closer // of all of them: closing it ends them
}

// startDecoys starts n processes in this process's group. The caller must call close.
func startDecoys(n int) (_ *decoys, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start processes for the kernel to end: %w", err)
	}
	defer r.Close()
	d := &decoys{input: w}
	for range n {
		cmd := exec.Command("cat")
		cmd.Stdin = r
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return nil, errors.Join(fmt.Errorf("start processes for the kernel to end: %w", err), d.close())
		}
		d.cmds = append(d.cmds, cmd)
		file := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/oom_score_adj"
		if err := os.WriteFile(file, []byte(strconv.Itoa(decoyScore)), 0); err != nil {
			return nil, errors.Join(fmt.Errorf("have the kernel end processes first: %w", err), d.close())
		}
		// With this policy, it takes its time to die when others want the processor.
		_ = unix.SchedSetAttr(cmd.Process.Pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
	}
	return d, nil
}

func (d *decoys) close() error {
	err := d.input.Close()
	for _, cmd := range d.cmds {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // that it was killed is no error
	}
	d.cmds = nil
	return err
}
