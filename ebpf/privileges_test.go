package ebpf

// These tests tell missing rights from what the verifier refuses.

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"tensorcast/internal/testenv"
)

// If the verifier of some kernel does not accept a program, no rights are missing. The user is not
// advised to use sudo then.
func TestVerifierIsNoRefusal(t *testing.T) {
	said := &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"R8 unbounded memory access"}}
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{unix.EPERM, true}, {fmt.Errorf("load: %w", unix.EACCES), true},
		{fmt.Errorf("load: %w", &ebpf.VerifierError{Cause: unix.EPERM}), true},
		{fmt.Errorf("load: %w", said), false}, {unix.EINVAL, false}, {nil, false},
	} {
		if got := isRefusal(tc.err); got != tc.want {
			t.Errorf("isRefusal(%v) = %v, want %v", tc.err, got, tc.want)
		}
	}
}

// An error of the kernel's own verifier has the form that isRefusal expects.
func TestVerifierSpeaks(t *testing.T) {
	testenv.NeedRoot(t)
	_, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.RawTracepoint, License: "GPL", Instructions: asm.Instructions{asm.Return()},
	})
	if !errors.Is(err, unix.EACCES) {
		t.Fatalf("a program that returns an unset register: %v, want EACCES", err)
	}
	if isRefusal(err) {
		t.Errorf("taken for a lack of rights: %v", err)
	}
}
