package event

// This file tests that derived steps stay bounded.

import "testing"

// Steps of threads that ended within a step do not accumulate.
func TestDerivedStepsAreBounded(t *testing.T) {
	d := DerivedSteps{PID: 1}
	begun, ended := 0, 0
	handle := func(e Event) error {
		switch e.(type) {
		case DecodeBegin:
			begun++
		case DecodeEnd:
			ended++
		}
		return nil
	}
	for tid := range int32(3 * maxDerived) {
		if err := d.Begin(tid, 1, 1, handle); err != nil {
			t.Fatal(err)
		}
		if len(d.open) > maxDerived {
			t.Fatalf("%d steps are open, want at most %d", len(d.open), maxDerived)
		}
	}
	if err := d.End(handle); err != nil || begun != 3*maxDerived || ended != begun {
		t.Errorf("%d steps began and %d ended, want %d of both; error %v", begun, ended, 3*maxDerived, err)
	}
}
