package host

// This file compares the description with other sources of the same facts.

import (
	"encoding/json"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Read returns what the kernel also reports in other ways.
func TestRead(t *testing.T) {
	h := Read()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if h.Kernel != strings.TrimSpace(string(release)) || h.Kernel == "" {
		t.Errorf("kernel %q, want %q", h.Kernel, release)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	if want := int64(info.Totalram) * int64(info.Unit); h.Memory != want {
		t.Errorf("memory %d, want %d", h.Memory, want)
	}
	// The kernel's fixed-point number has 16 bits after the point. It is computed anew every 5 seconds.
	if load := float64(info.Loads[0]) / (1 << 16); math.Abs(h.Load-load) > 0.5+0.2*load {
		t.Errorf("load %v, want %v", h.Load, load)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	if h.CPUs != set.Count() || h.Arch != runtime.GOARCH || h.PageSize != unix.Getpagesize() {
		t.Errorf("%+v: want %d CPUs, %s, pages of %d", h, set.Count(), runtime.GOARCH, unix.Getpagesize())
	}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || h.CPU != "" && !strings.Contains(string(cpuinfo), h.CPU) ||
		h.CPU == "" && strings.Contains(string(cpuinfo), "model name") {
		t.Errorf("CPU %q, %v; want the model name in /proc/cpuinfo", h.CPU, err)
	}
	// The second column of /proc/cgroups is not 0 for a controller of version 1. If the hierarchy
	// is not mounted, the version is 0.
	controllers, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		t.Fatal(err)
	}
	want := 2
	for line := range strings.Lines(string(controllers)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "memory" && f[1] != "0" {
			want = 1
		}
	}
	if h.CgroupVersion != want && h.CgroupVersion != 0 {
		t.Errorf("cgroup version %d, want %d", h.CgroupVersion, want)
	}
}

// The JSON keys are the same as in earlier reports.
func TestKeys(t *testing.T) {
	data, err := json.Marshal(Info{"6.1", "amd64", "a CPU", 2, 3, 4096, 1, 0.5})
	want := `{"kernel":"6.1","arch":"amd64","cpu":"a CPU","cpus":2,"memory_bytes":3,"page_size":4096,` +
		`"cgroup_version":1,"load_before":0.5}`
	if err != nil || string(data) != want {
		t.Errorf("%s, %v; want %s", data, err, want)
	}
}

func TestCPUName(t *testing.T) {
	for cpu, want := range map[string]string{"": "unknown CPU", "x": "x"} {
		if got := (Info{CPU: cpu}).CPUName(); got != want {
			t.Errorf("%q: %q, want %q", cpu, got, want)
		}
	}
}
