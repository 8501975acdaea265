// Command lab holds the project's instruments as subcommands: those that measure tracer and
// prefetchd on a real llama.cpp, those that measure the emulated device, and those that make models
// and fetch the llama.cpp for the others.
package main

// This file defines the root command. Each subcommand is in a file of its own; what they measure is
// implemented in the packages below experiments and fabric.

import (
	"github.com/spf13/cobra"

	"tensorcast/internal/cli"
)

func main() { cli.Main(command()) }

func command() *cobra.Command {
	const target, device, material, data = "target", "device", "material", "data"
	root := &cobra.Command{
		Use:   "lab COMMAND",
		Short: "Measure tracer, prefetchd and the emulated device",
		Long: `Lab holds the project's instruments. Each is a command of its own, with --help. In their helps, the
llama.cpp that is measured is called the target. A helper is a program that is to make the target
faster, such as prefetchd.

With --save an instrument writes a document. That is one JSON file with the machine, the commit, the
command and the raw figures of every run. "lab results" lists, shows and compares documents.

SIGINT, SIGTERM and SIGHUP interrupt an instrument. It then ends the processes that it started, and
prints and writes the report of what it has measured so far. The report says that it was interrupted.
In JSON it has "interrupted": true. A second signal ends the instrument at once.

Exit codes: 0 done; 1 failed, not measured, or interrupted; 2 wrong usage.`,
		Example: `  lab getllama --link .llama
  lab synth -o model.gguf --size 800MB --type Q8_0
  sudo lab pressure -m model.gguf --x 0.85 --variant plain --variant 'both=bin/prefetchd --wait --pid {pid}'`,
		DisableFlagsInUseLine: true,
	}
	root.AddGroup(
		&cobra.Group{ID: target, Title: "Measure what happens to a real llama.cpp:"},
		&cobra.Group{ID: device, Title: "Measure the emulated device:"},
		&cobra.Group{ID: material, Title: "Make what is measured:"},
		&cobra.Group{ID: data, Title: "Read what was measured:"},
	)
	for _, c := range []struct {
		group string
		*cobra.Command
	}{
		{target, pressureCommand()}, {target, matrixCommand()},
		{target, firstTokenCommand()}, {target, overheadCommand()},
		{target, accountingCommand()}, {target, harmCommand()}, {target, soakCommand()}, {target, latencyCommand()},
		{target, serverloadCommand()}, {target, divergenceCommand()},
		{device, attentionCommand()}, {device, hyperCommand()}, {device, rooflineCommand()},
		{device, fabricplanCommand()}, {device, fabricCommand()},
		{material, synthCommand()}, {material, getllamaCommand()}, {material, getmodelCommand()},
		{data, resultsCommand()},
		{data, datasetCommand()},
	} {
		c.GroupID = c.group
		root.AddCommand(c.Command)
	}
	root.AddCommand(loadCommand(), pinCommand(), askCommand()) // hidden: other commands of lab run them
	return root
}
