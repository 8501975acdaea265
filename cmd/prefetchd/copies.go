package main

// This file warns before a command is started that cannot have its model in memory, because it would copy weights.

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"

	"tensorcast/gguf"
	"tensorcast/loadflags"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
)

// warnOfCopies warns if a command is about to copy more of its model than there is memory. What cannot be found out is
// left to the command.
func warnOfCopies(command *exec.Cmd, to io.Writer, log *slog.Logger) {
	path := pages.FindNamedModel(command.Args)
	if path == "" {
		return
	}
	model, err := gguf.OpenModel(path)
	if err != nil {
		log.Debug("it is not foreseen what the command copies of its model", "error", err)
		return
	}
	program := loadflags.OfCommand(command.Args, command.Environ())
	copies := program.Foresee(model)
	free, err := room.ForOwnMemory(os.Getpid()) // the command begins in this process's cgroup
	if err != nil {
		log.Debug("it is not known how much memory the command can have", "error", err)
		return
	}
	if copies.Bytes <= max(free.Bytes, 0) {
		return
	}
	fmt.Fprintf(to, "prefetchd: %s\n", describeCopies(program, copies, free))
}

// describeCopies says what will happen to a command that copies more of its model than there is memory, and what to do.
func describeCopies(program loadflags.Program, copies loadflags.Copies, free room.Room) string {
	return fmt.Sprintf("the command is about to copy %s, and %s leaves it %s: the kernel will end it while it loads, unless "+
		"it can swap; %s", copies.Text(), nameLevel(free), size(free.Bytes),
		program.AdviseAgainst(copies))
}

// nameLevel names what bounds memory.
func nameLevel(r room.Room) string {
	if r.Level == "host" {
		return "this machine"
	}
	return fmt.Sprintf("its control group (%s, %s)", r.Level, size(r.Limit))
}
