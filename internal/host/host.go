// Package host describes the machine that this program runs on ([Read]), so that measurements
// record where they were made.
package host

// This file reads the description from the system.

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
)

// Info describes a machine. Fields that the system does not report are zero.
type Info struct {
	Kernel   string `json:"kernel"` // release, as uname -r has it
	Arch     string `json:"arch"`   // GOARCH
	CPU      string `json:"cpu"`    // model name of the first CPU; not available on arm64
	CPUs     int    `json:"cpus"`   // logical CPUs that this process may run on
	Memory   int64  `json:"memory_bytes"`
	PageSize int    `json:"page_size"` // bytes
	// CgroupVersion is the version (1 or 2) of the hierarchy with the memory controller; 0 if none
	// is visible.
	CgroupVersion int `json:"cgroup_version"`
	// Load is the load average over the minute before Read.
	Load float64 `json:"load_before"`
}

// Read describes this machine in its current state.
func Read() Info {
	h := Info{Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), PageSize: os.Getpagesize()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if group, err := cgroup.Find(0); err == nil {
		h.CgroupVersion = group.Version()
	}
	h.readProc(procfs.DefaultMountPoint)
	return h
}

// readProc fills in the fields that come from texts of the proc file system.
func (h *Info) readProc(mount string) {
	proc, err := procfs.NewFS(mount)
	if err != nil {
		return
	}
	if text, err := os.ReadFile(filepath.Join(mount, "cpuinfo")); err == nil {
		h.CPU = modelName(string(text))
	}
	memory, err := proc.Meminfo()
	if err == nil && memory.MemTotalBytes != nil && *memory.MemTotalBytes <= math.MaxInt64 {
		h.Memory = int64(*memory.MemTotalBytes)
	}
	// ParseFloat accepts "NaN" and "Inf", but JSON has neither.
	if load, err := proc.LoadAvg(); err == nil && load.Load1 >= 0 && load.Load1 <= math.MaxFloat64 {
		h.Load = load.Load1
	}
}

// modelName finds the model name of the first CPU in the text of /proc/cpuinfo; "" if it has none.
// (Package procfs panics on texts that it does not expect.)
func modelName(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// topology is where the kernel tells of each CPU which others belong to its core.
const topology = "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list"

// Cores is how many cores the CPUs belong to that this process may run on. It is their number where the system does not
// say which share a core.
func Cores() int { return countCores(topology) }

// countCores is Cores of a system whose files are at these paths, by the number of a CPU.
func countCores(paths string) int {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return runtime.NumCPU()
	}
	cores := map[string]bool{}
	for cpu, left := 0, may.Count(); left > 0; cpu++ {
		if !may.IsSet(cpu) {
			continue
		}
		left--
		core := fmt.Sprint(cpu)
		if text, err := os.ReadFile(fmt.Sprintf(paths, cpu)); err == nil {
			core = string(text)
		}
		cores[core] = true
	}
	return len(cores)
}

// CPUName is the CPU's name, or "unknown CPU".
func (h Info) CPUName() string { return cmp.Or(h.CPU, "unknown CPU") }
