package ebpf

// This file tests what loading the programs costs.

import (
	"os"
	"reflect"
	"testing"

	"github.com/cilium/ebpf"

	"tensorcast/internal/testenv"
)

// TestVerification checks that the kernel verifies each program within few steps, because users wait for that. Programs
// on ops took 22,000 steps when a loop over a name had a path for each length.
func TestVerification(t *testing.T) {
	testenv.NeedRoot(t)
	const most = 12_000 // 7,300 with Linux 6.18, and 10,000 with 6.1
	tr, err := New(Options{PID: os.Getpid(), Selected: true, Lookups: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	programs := reflect.ValueOf(tr.objs.tracePrograms)
	for i := range programs.NumField() {
		name := programs.Type().Field(i).Name
		info, err := programs.Field(i).Interface().(*ebpf.Program).Info()
		if err != nil {
			t.Fatal(err)
		}
		steps, ok := info.VerifiedInstructions()
		if !ok {
			t.Skip("this kernel does not tell how many steps verification took: Linux does since 5.16")
		}
		if t.Logf("%s: %d steps", name, steps); steps > most {
			t.Errorf("%s is verified in %d steps, want at most %d", name, steps, most)
		}
	}
}
