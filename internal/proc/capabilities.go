package proc

// This file tells which capabilities this process has.

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Capabilities is a set of capabilities: bit n is the one with the number n (unix.CAP_BPF).
type Capabilities uint64

// OwnCapabilities returns the effective capabilities of this process.
func OwnCapabilities() (Capabilities, error) {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return 0, fmt.Errorf("read this process's capabilities: %w", err)
	}
	return Capabilities(data[1].Effective)<<32 | Capabilities(data[0].Effective), nil
}

// Has says whether a capability is in the set.
func (c Capabilities) Has(number int) bool { return c>>number&1 == 1 }
