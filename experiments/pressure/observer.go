package pressure

// This file reads the counters of a run: at each of the target's marks, what the group, the disk and the processes have
// read.

import (
	"io"
	"sync/atomic"

	"github.com/prometheus/procfs"

	"tensorcast/internal/cgroup"
)

// sample holds the counters at one mark.
type sample struct {
	// By the group's account, and from the disk by all processes.
	group, disk int64
	// By these processes.
	target, helper int64
	system         int64 // of the helper in the kernel, in 1/userHZ s
	faults         int64 // major page faults of the target
	usage          int64
}

// observer reads the counters at each of the target's marks.
type observer struct {
	group  *cgroup.Group
	disk   disk
	target int // process id
	// launched says that a launcher starts the target as its child. Then what all processes of the
	// group do is the target's.
	launched   bool
	helper     atomic.Pointer[helper] // nil until the helper is started
	samples    []sample
	helperGone bool // there was no helper at the last mark
	err        error
}

// follow takes a sample at each mark, and calls progress. It returns when the pipe ends or its deadline passes.
func (o *observer) follow(marks io.Reader, progress func(token int)) {
	b := make([]byte, 1)
	for {
		if _, err := marks.Read(b); err != nil {
			return
		}
		s, err := o.sample()
		if err != nil {
			o.err = err
			return
		}
		progress(len(o.samples))
		o.samples = append(o.samples, s)
	}
}

func (o *observer) sample() (sample, error) {
	var s sample
	var err error
	// The target comes first: it continues meanwhile, and may end.
	if s.faults, err = majorFaults(o.target); err != nil {
		return s, err
	}
	s.target = readBytes(o.target)
	if o.launched {
		pids, err := o.group.Procs()
		if err != nil {
			return s, err
		}
		for _, pid := range pids {
			if pid != o.target {
				n, _ := majorFaults(pid) // 0: it has just ended
				s.faults += n
				s.target += readBytes(pid)
			}
		}
	}
	if s.group, err = o.group.ReadBytes(o.disk.major, o.disk.minor); err != nil {
		return s, err
	}
	if s.disk, err = o.disk.readBytes(); err != nil {
		return s, err
	}
	if s.usage, err = o.group.Usage(); err != nil {
		return s, err
	}
	// Only the kernel's account of each process says which of the two has read.
	h := o.helper.Load()
	if o.helperGone = h.hasEnded(); !o.helperGone {
		s.helper, s.system = readBytes(h.PID), systemTime(h.PID)
	}
	return s, nil
}

// statOf returns what /proc/PID/stat says of a process; nothing if it has ended.
func statOf(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// majorFaults returns how many major page faults a process has had.
func majorFaults(pid int) (int64, error) {
	stat, err := statOf(pid)
	return int64(stat.MajFlt), err
}

// userHZ is in what parts of a second /proc counts processor time (USER_HZ in Linux's asm-generic/param.h).
const userHZ = 100

// systemTime returns the processor time of a process in the kernel, in 1/userHZ s; 0 if it has
// ended. It includes children that the process has waited for, as the reads of readBytes do.
// io_uring's workers are threads of the process.
func systemTime(pid int) int64 {
	stat, _ := statOf(pid)
	return int64(stat.STime) + int64(stat.CSTime)
}

// readBytes returns how many bytes a process has read from disks; 0 if it has ended.
func readBytes(pid int) int64 {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	counters, err := p.IO()
	if err != nil {
		return 0
	}
	return int64(counters.ReadBytes)
}
