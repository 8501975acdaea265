package main

// This file adds to errors which of tracer's flags help against them.

import (
	"errors"
	"fmt"

	"tensorcast/capture/preload"
	"tensorcast/event"
	"tensorcast/trace"
)

// advise adds advice to an error: which flags of tracer help.
func (o *options) advise(err error) error {
	for _, a := range []struct {
		when   error
		advice string
		hidden bool // the advice does not apply to this command line
	}{
		{when: event.ErrOldGGML, advice: ": trace its graphs with --detail graph"},
		{when: event.ErrUserNamespace, advice: "; or use --preload", hidden: o.pid != 0},
		{when: event.ErrNoBTF, advice: ", or use --preload"},
		{when: errChildComputes, advice: ": add --follow", hidden: o.follow},
		{when: event.ErrNoGGML, advice: " If it starts one, add --follow", hidden: o.follow},
		{when: preload.ErrNoCompiler, advice: ", or trace as root, without --preload"},
		{when: preload.ErrNotLoaded, advice: ": trace it as root, without --preload"},
		{when: preload.ErrNoGraph, advice: "; in that case trace it as root, without --preload"},
		{when: preload.ErrOtherProcess, advice: ": use --follow"},
		{when: trace.ErrOccupied, advice: ": choose another directory with -o"},
		{when: trace.ErrBusy, advice: ": choose another directory with -o"},
	} {
		if errors.Is(err, a.when) && !a.hidden {
			return fmt.Errorf("%w%s", err, a.advice)
		}
	}
	return err
}
