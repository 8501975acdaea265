//go:build !amd64

package proc

// This file stands in for inject_amd64.go on other architectures.

import "fmt"

// Inject is implemented for x86-64 only. Here it always returns ErrForeign.
func (p *Process) Inject([]SystemCall) error {
	return fmt.Errorf("have process %d make a system call: %w", p.pid, ErrForeign)
}
