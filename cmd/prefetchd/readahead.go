package main

// This file is about what the target's own faults read around themselves: the flag, the guardian that undoes what was done about it, and what is told of it.

import (
	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
	"tensorcast/prefetch/readahead"
)

// readaheadFlags are the flags of this file.
func readaheadFlags(cmd *cobra.Command, o *options) {
	cli.EnumVar(cmd, &o.around, "readahead", "", readahead.Choices(),
		"what the target's own faults read around themselves: auto (fd, if that is more than 512 KiB), leave (as it is), fd (made small through the file with which it loads the model, which takes "+
			"--exec or --wait; the disk's own readahead is small for some ten microseconds), inject (one thread of it is stopped and made to advise MADV_RANDOM: x86-64, no debugger, no seccomp; if "+
			"prefetchd's guardian is killed in that moment, it crashes); undone in the end, also if prefetchd is killed")
}

// guardianName is the subcommand that starts the guardian.
const guardianName = "guardian"

// guardian is the command that starts it: this program, also if another one has its name by now.
func guardian() []string { return []string{"/proc/self/exe", guardianName} }

// guardianCommand is not for people.
func guardianCommand() *cobra.Command {
	return &cobra.Command{
		Use: guardianName, Short: "Undo what was done to a target, when prefetchd has ended", Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("unexpected argument %q: prefetchd starts it itself", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return readahead.Guard(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// aboutReadahead says in a line what was done; nothing if nothing was to be.
func aboutReadahead(t *readahead.Outcome) string {
	switch {
	case t == nil, t.Way == "" && !t.Closed:
		return ""
	case t.Closed:
		return t.String() + ": start it with --exec, or attach with --wait before it loads; or see --readahead inject"
	}
	return t.String()
}
