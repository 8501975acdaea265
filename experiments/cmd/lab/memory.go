package main

// This file implements the commands that "lab pressure" starts in the control groups of its runs:
// "lab load" and "lab pin".

import (
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/experiments/pressure"
	"tensorcast/internal/cli"
)

func loadCommand() *cobra.Command {
	units := []string{string(pressure.Pages), string(pressure.Folios)}
	return &cobra.Command{
		Use:   "load pages|folios FILE",
		Short: "Load a file into the page cache, in single pages or large folios",
		Long: `Load reads a file into the page cache, which is charged to Load's own memory control group. It prints as
JSON of which pages the file consists there now.

Exit codes: 0 loaded, or the kernel makes no large folios; 1 failed; 2 wrong usage.`,
		Example: "  lab load folios model.gguf",
		Hidden:  true,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != units[0] && args[0] != units[1] {
				return cli.Usagef("%q: want %s", args[0], cli.OneOf(units))
			}
			l, err := pressure.Load(cmd.Context(), args[1], pressure.Unit(args[0]))
			if err != nil {
				return err
			}
			return cli.WriteJSON(cmd.OutOrStdout(), l)
		},
	}
}

// defaultLeave is what a static pin leaves of the room, in bytes. It holds what streams past and
// this process (some 10 MiB). A miss reads up to 16 MiB around itself: the readahead is up to 8
// MiB, and llama.cpp's advice doubles it. The help of lab pressure names this value.
const defaultLeave = 48 << 20 // named in the help of lab pressure

func pinCommand() *cobra.Command {
	var pid int
	room, leave := int64(0), int64(defaultLeave)
	cmd := &cobra.Command{
		Use:   "pin --pid PID --room SIZE [--leave SIZE] FILE",
		Short: "Lock the first bytes of a file while a process runs: the static baseline",
		Long: `Pin locks the first bytes of a file in memory until a process ends. They are as many as --room, less
--leave. Pin does nothing else.

Exit codes: 0 the process has ended, or Pin was interrupted; 1 failed; 2 wrong usage.`,
		Example: `  sudo lab pressure -m model.gguf --x 0.7 --variant plain \
      --variant 'static=lab pin --pid {pid} --room {room} --leave 100MB {model}'`,
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case pid <= 0:
				return cli.Usage(errors.New("no process: give --pid PID"))
			case room == 0:
				return cli.Usage(errors.New("no room: give --room SIZE"))
			}
			// The process is told to end by the end of the context.
			return pressure.Pin(cmd.Context(), args[0], room-leave, pid, func(n int64) {
				fmt.Fprintf(cmd.OutOrStdout(), "locked the first %s of %s\n", humanize.IBytes(uint64(n)), args[0])
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&pid, "pid", 0, "the id of the `process` whose end it waits for")
	cli.SizeVar(f, &room, "room", "the `size` of the memory that there is for the file")
	cli.SizeVar(f, &leave, "leave", "the `size` of the part of that memory that is not locked")
	return cmd
}
