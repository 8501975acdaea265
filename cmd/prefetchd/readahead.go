package main

// This file is about fault-around reads: the pages that the target's own faults read around
// themselves. It has the flag, the guardian that undoes the changes, and the line of the summary.

import (
	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
	"tensorcast/prefetch/readahead"
)

// addReadaheadFlags adds --readahead.
func addReadaheadFlags(cmd *cobra.Command, o *options) {
	cli.EnumVar(cmd, &o.around, "readahead", "", readahead.Choices(),
		"how the target's own page faults are made to read little around themselves: leave changes nothing, fd does it "+
			"through the open file, inject by a thread of the target, and auto is fd if they read more than 512 KiB. "+
			"With inject the target crashes if prefetchd's guardian is killed at that moment")
}

// guardianName is the subcommand that starts the guardian.
const guardianName = "guardian"

// guardianArgs is the command that starts the guardian. It is this program, even if another file
// has its name by now.
func guardianArgs() []string { return []string{"/proc/self/exe", guardianName} }

// newGuardianCommand returns the guardian's command, which is hidden because only prefetchd starts it.
func newGuardianCommand() *cobra.Command {
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

// aboutReadahead describes in one line what was done. It is empty if there was nothing to do.
func aboutReadahead(t *readahead.Outcome) string {
	switch {
	case t == nil, t.Way == "" && !t.Closed:
		return ""
	case t.Closed:
		return t.String() + ": start it with --exec, or attach with --wait before it loads; or see --readahead inject"
	}
	return t.String()
}
