package trace

// This file describes the machine that a capture is made on.

import (
	"os"
	"runtime"
	"tensorcast/trace/tables"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// thisHost leaves out what the system does not tell.
func thisHost() tables.Host {
	h := tables.Host{Kernel: "unknown", Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), PageSize: os.Getpagesize()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return h
	}
	if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 {
		h.CPU = cpus[0].ModelName
	}
	if mem, err := proc.Meminfo(); err == nil && mem.MemTotalBytes != nil {
		h.MemoryBytes = int64(*mem.MemTotalBytes)
	}
	return h
}
