//go:build !amd64

package proc

import "fmt"

// Inject is not for this architecture: the error is ErrForeign.
func (p *Process) Inject([]SystemCall) error {
	return fmt.Errorf("have process %d make a system call: %w", p.pid, ErrForeign)
}
