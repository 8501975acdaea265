package serve

// This file foresees that a target copies more of its model than there is memory, and says why the kernel has ended
// one.

import (
	"cmp"
	"fmt"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/prometheus/procfs"

	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/loadflags"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
)

// foreseeForCommand warns if a command that is about to be started will copy too much.
func (s *server) foreseeForCommand(args, env []string) {
	path := pages.FindNamedModel(args)
	if path == "" {
		return
	}
	free, err := room.ForOwnMemory(os.Getpid()) // the command begins in this process's cgroup
	if err != nil {
		s.opts.Log.Debug("it is not known how much memory the command can have", "error", err)
		return
	}
	s.warnOfCopies(path, free, func() loadflags.Program { return loadflags.OfCommand(args, env) })
}

// foreseeForProcess warns if a process that begins to load its model will copy too much, and reports whether it will.
func (s *server) foreseeForProcess() bool {
	pid := s.opts.PID
	path := pages.FindNamedModel(proc.CommandLine(pid))
	if path == "" {
		return false
	}
	free, err := room.ForOwnMemory(pid)
	if err != nil {
		s.opts.Log.Debug("it is not known how much memory the target can have", "error", err)
		return false
	}
	if p, err := procfs.NewProc(pid); err == nil {
		if status, err := p.NewStatus(); err == nil {
			free.Bytes += int64(min(status.RssAnon, 1<<56)) // it may have begun to copy
		}
	}
	s.warnOfCopies(path, free, func() loadflags.Program { return loadflags.OfProcess(pid) })
	return s.foreseen != ""
}

// warnOfCopies warns if a program will copy more of a model than there is memory. What cannot be found out is left to
// the target.
func (s *server) warnOfCopies(path string, free room.Room, program func() loadflags.Program) {
	model, err := gguf.OpenModel(path)
	if err != nil {
		s.opts.Log.Debug("it is not foreseen what the target copies of its model", "error", err)
		return
	}
	if model.Size() <= free.Bytes { // that is quickly decided
		return
	}
	p := program()
	copies := p.Foresee(model)
	if copies.Bytes <= max(free.Bytes, 0) {
		return
	}
	where := "this machine"
	if free.Level != room.LevelHost {
		where = fmt.Sprintf("its control group (%s, %s)", free.Level, formatBytes(free.Limit))
	}
	s.foreseen = p.AdviseAgainst(copies)
	what := "will end it while it loads"
	if free.Delays {
		what = "will delay each of its requests for memory, so that it hardly goes on loading"
	}
	s.opts.Log.Warn(fmt.Sprintf("the target is about to copy %s, and %s leaves it %s: the kernel %s, unless it can "+
		"swap; %s", copies.Text(), where, formatBytes(free.Bytes), what, s.foreseen))
}

// explainKill warns if the target has ended and the kernel has killed a process of its group for lack of memory.
func (s *server) explainKill() {
	if ended, err := s.process.Ended(); err != nil || !ended {
		return
	}
	killed := s.kills.Err()
	if killed == nil {
		return
	}
	s.opts.Log.Warn("the target has ended: " + killed.Error() + "; give it more memory, or " + s.adviseLess())
}

// adviseLess says how the target is to be started so that it needs less memory that cannot be paged out.
func (s *server) adviseLess() string {
	if p := loadflags.OfWords(s.words, s.libraries...); len(p.Request().Locked) > 0 {
		return "so that it does not lock its model in memory, " + p.Advise(loadflags.Unlock)
	}
	return "so that weights are not copied when they are loaded, " + cmp.Or(s.foreseen, s.adviseMapped())
}

// noteCommandLine notes the target's command line. A shell may become another program, and of a program that has ended
// it cannot be read.
func (s *server) noteCommandLine() {
	if words := proc.CommandLine(s.opts.PID); len(words) > 0 {
		s.words = words
	}
}

// adviseMapped says how the target is to be started so that its weights are read from a mapping of the file. What it
// was told already is left out.
func (s *server) adviseMapped() string {
	if s.judged != nil && s.judged.Weights.Copied > 0 {
		return s.judged.AdviseMapped()
	}
	return loadflags.OfWords(s.words, s.libraries...).Advise(loadflags.KeepLayout, loadflags.MapFile)
}

// formatBytes writes a number of bytes for people.
func formatBytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
