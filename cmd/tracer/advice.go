package main

// This file adds to errors which flags help against them: tracer's own, and the target's.

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"tensorcast/capture/preload"
	"tensorcast/event"
	"tensorcast/loadflags"
	"tensorcast/trace"
)

// advise adds advice to an error: which flags of tracer help.
func (o *options) advise(err error) error {
	for _, a := range []struct {
		when   error
		advice string
		hidden bool // the advice does not apply to this command line
	}{
		{when: event.ErrLost, advice: ": use a larger --buffer"},
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

// adviseLoading returns a function that says how a process with a command line is to be started so that it reads its
// weights from a mapping of the model's file. started is the command line of the target as it was in the beginning: it
// may be a shell that becomes another program, or start others. libraries returns files of ggml that were seen in it.
func (o *options) adviseLoading(started []string, libraries func() []string) func(command []string) string {
	var program loadflags.Program
	if o.pid != 0 { // it may have ended when advice is needed
		program = loadflags.OfProcess(int(o.pid))
	}
	return func(command []string) string {
		if o.pid == 0 || !slices.Equal(command, started) {
			program = loadflags.OfCommand(command, os.Environ(), libraries()...)
		}
		return program.Advise(loadflags.KeepLayout, loadflags.MapFile)
	}
}
