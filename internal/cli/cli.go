// Package cli is the frame that all commands share: what an error looks like and which exit code it has, signals, --version, flags with
// enumerated values and sizes, JSON. Package progress shows how far a command is, package status what a capture is doing.
//
// A command builds its cobra.Command and hands it to [Main]:
//
//	func main() { cli.Main(command()) }
//
// RunE writes to cmd.OutOrStdout and cmd.ErrOrStderr, waits on cmd.Context, and returns an error. [Usage] and [Usagef] mark errors of the
// command line; what cobra refuses before RunE (flags, arguments, subcommands) needs no mark. Errors are printed here, not by the command:
//
//	name: message (see name --help)    wrong usage: exit code 2
//	name: message                      anything else that failed: exit code 1
//
// where name is the command with its subcommands ("lab overhead"). [Exit] chooses another code.
//
// The context ends at the first SIGINT, SIGTERM or SIGHUP: see [Signals]. A command then removes what is not whole, ends what it
// started and returns the context's error, which is printed as "name: interrupted by SIGINT". A command that must handle signals
// itself, because it passes them on to a command that it runs, uses [Run] instead of Main:
//
//	func main() { os.Exit(cli.Run(context.Background(), command(), os.Args[1:], os.Stdout, os.Stderr)) }
//
// It takes [FirstSignal] where signals are to end it. Run is also what tests call.
package cli

// This file runs a command, and makes of its error a line and an exit code.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Exit codes.
const (
	OK       = 0
	Failure  = 1
	BadUsage = 2
)

// UsageError is an error of the command line: whoever wrote it can mend it by reading --help.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usage marks err as an error of the command line. Of nil it makes nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{err}
}

// Usagef is [fmt.Errorf] for errors of the command line.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// Exit is an error that ends the command with a code of its own: tracer ends as the command that it traced. Nothing is printed if Err is nil.
type Exit struct {
	Code int
	Err  error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Exit) Unwrap() error { return e.Err }

// Main runs the command that the process is, with a context that [Signals] end, and ends the process.
func Main(root *cobra.Command) {
	ctx, stop := Signals(context.Background())
	code := Run(ctx, root, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Run runs a command once and returns its exit code. It completes root: with --version, and with errors for what no subcommand is.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	accepted := false // what cobra refuses before RunE is the command line's fault
	prepare(root, &accepted)
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Version = Version()
	root.Flags().Bool("version", false, "print the version")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for the process's own
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return OK
	}

	name := cmd.CommandPath()
	var usage *UsageError
	if !accepted || errors.As(err, &usage) {
		fmt.Fprintf(stderr, "%s: %s (see %s --help)\n", name, strings.ReplaceAll(err.Error(), "\n", "; "), name)
		return BadUsage
	}
	code := Failure
	var exit *Exit
	if errors.As(err, &exit) {
		if code = exit.Code; exit.Err == nil {
			return code
		}
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.Join(append([]error{context.Cause(ctx)}, others(err)...)...)
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	return code
}

// others lists what is joined in err beside the end of the context: what failed while the command cleaned up.
func others(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, others(e)...)
		}
		return all
	}
	if !errors.Is(err, context.Canceled) {
		return []error{err}
	}
	if inner := errors.Unwrap(err); inner != nil {
		return others(inner)
	}
	return nil
}

// prepare makes each command say that it was accepted, and those that only hold subcommands refuse anything else.
func prepare(cmd *cobra.Command, accepted *bool) {
	for _, sub := range cmd.Commands() {
		prepare(sub, accepted)
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*accepted = true
			return run(cmd, args)
		}
		return
	}
	if cmd.Run != nil || !cmd.HasSubCommands() {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		var names []string
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() && sub.Name() != "completion" { // cobra's own, beside ours
				names = append(names, sub.Name())
			}
		}
		if len(args) == 0 {
			return Usagef("a command is needed: %s", OneOf(names))
		}
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return Usagef("no command %q: did you mean %s?", args[0], OneOf(near))
		}
		return Usagef("no command %q: want %s", args[0], OneOf(names))
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(*cobra.Command, []string) error { return nil } // else cobra shows the help instead of asking Args
}

// flagError says in one form what is wrong with a flag's value: --name "value": why.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	flag, why := invalid.GetFlag(), invalid.Unwrap().Error()
	switch flag.Value.Type() {
	case "int", "int64", "uint", "uint32", "uint64", "intSlice":
		why = "want a whole number"
	case "float64":
		why = "want a number"
	case "duration":
		why = "want a time such as 500ms or 1m30s"
	case "bool":
		why = "want true or false"
	}
	return fmt.Errorf("--%s %q: %s", flag.Name, invalid.GetValue(), why)
}

// OneOf lists words as in "a, b or c".
func OneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// WriteJSON writes v as every command does: indented, a line at the end.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(v)
}

// IsTerminal says whether w, or a command's standard stream, is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
