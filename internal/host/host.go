// Package host describes the machine that this program runs on, so that measurements say where they were made.
package host

// This file asks the system.

import (
	"cmp"
	"os"
	"runtime"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
)

// Info describes a machine. What the system does not tell is zero.
type Info struct {
	Kernel   string `json:"kernel"` // release, as uname -r has it
	Arch     string `json:"arch"`   // GOARCH
	CPU      string `json:"cpu"`    // model name of the first one; arm64 has none
	CPUs     int    `json:"cpus"`   // logical ones that this process may run on
	Memory   int64  `json:"memory_bytes"`
	PageSize int    `json:"page_size"` // bytes
	// CgroupVersion is that of the hierarchy with the memory controller, 1 or 2; 0 if there is none that can be seen.
	CgroupVersion int `json:"cgroup_version"`
	// Load is how many processes wanted a CPU, on average over the last minute before Read.
	Load float64 `json:"load_before"`
}

// Read describes this machine as it is now.
func Read() Info {
	h := Info{Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), PageSize: os.Getpagesize()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if group, err := cgroup.Find(0); err == nil {
		h.CgroupVersion = group.Version()
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return h
	}
	if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 {
		h.CPU = cpus[0].ModelName
	}
	if memory, err := proc.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		h.Memory = int64(*memory.MemTotalBytes)
	}
	if load, err := proc.LoadAvg(); err == nil {
		h.Load = load.Load1
	}
	return h
}

// CPUName is the name of the CPU for people.
func (h Info) CPUName() string { return cmp.Or(h.CPU, "unknown CPU") }
