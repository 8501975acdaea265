package trace

// This file describes the machine that a capture is made on.

import (
	"tensorcast/internal/host"
	"tensorcast/trace/tables"
)

// thisHost describes this machine. Fields that the system does not report stay empty.
func thisHost() tables.Host {
	h := host.Read()
	return tables.Host{
		Kernel: h.Kernel, Arch: h.Arch, CPU: h.CPU, CPUs: h.CPUs, MemoryBytes: h.Memory,
		PageSize: h.PageSize,
	}
}
