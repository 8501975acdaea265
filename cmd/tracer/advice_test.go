package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"tensorcast/capture/preload"
	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/trace"
)

// Errors that a flag helps against name it once they come to the user, and not before: other programs have other flags.
func TestAdvice(t *testing.T) {
	flag := regexp.MustCompile(`(^|\s)--?[a-z]+`)
	for err, want := range map[error]string{
		event.ErrOldGGML:        "--detail graph",
		event.ErrNoBTF:          "--preload",
		event.ErrUserNamespace:  "--preload",
		event.ErrPIDNamespace:   "",
		event.ErrNoGGML:         "--follow",
		preload.ErrNoCompiler:   "without --preload",
		preload.ErrNotLoaded:    "without --preload",
		preload.ErrNoGraph:      "without --preload",
		preload.ErrOtherProcess: "--follow",
		trace.ErrOccupied:       "-o",
		event.ErrPermission:     "",
		event.ErrNoDecode:       "",
		proc.ErrNoProcess:       "",
		proc.ErrForeignProc:     "",
	} {
		if found := flag.FindString(err.Error()); found != "" {
			t.Errorf("the library's error names a flag: %v", err)
		}
		var o options
		wrapped := fmt.Errorf("process 7: %w", err)
		got := o.advise(wrapped)
		if !errors.Is(got, err) || !strings.HasPrefix(got.Error(), wrapped.Error()) || !strings.Contains(got.Error(), want) {
			t.Errorf("%v: the advice is %q, want %q", err, got, want)
		}
		if want == "" && got != wrapped {
			t.Errorf("%v: advice %q", err, got)
		}
	}
	following := options{follow: true}
	if got := following.advise(event.ErrNoGGML); strings.Contains(got.Error(), "--follow") {
		t.Errorf("advice to do what is done: %v", got)
	}
	if err := following.advise(nil); err != nil {
		t.Errorf("advice without an error: %v", err)
	}
}
