// Package cli is the frame that all commands share: errors and exit codes, signals, --version,
// flags with enumerated values and sizes, and JSON output. Its subpackage progress shows how far a
// command is. Its subpackage status shows what a capture is doing.
//
// A command builds its cobra.Command and passes it to [Main]:
//
//	func main() { cli.Main(command()) }
//
// RunE writes to cmd.OutOrStdout and cmd.ErrOrStderr, waits on cmd.Context, and returns an error.
// On a terminal, text that others chose is shown but cannot control the terminal (see [Safe]).
// [Usage] and [Usagef] mark errors of the command line. Errors that cobra finds before RunE (flags,
// arguments, subcommands) are marked automatically. This package prints the errors, not the
// command:
//
//	name: message (see name --help)    wrong usage: exit code 2
//	name: message                      any other failure: exit code 1
//
// Here, name is the command with its subcommands ("lab overhead"). [Exit] sets another exit code.
//
// The context ends at the first SIGINT, SIGTERM or SIGHUP: see [Signals]. A command then removes
// incomplete outputs, ends the processes that it has started and returns the context's error, which
// is printed as "name: interrupted by SIGINT". A command that handles signals itself, because it
// passes them on to a command that it runs, uses [Run] instead of Main:
//
//	func main() { os.Exit(cli.Run(context.Background(), command(), os.Args[1:], os.Stdout, os.Stderr)) }
//
// Where signals should end it, it uses [FirstSignal]. Tests call Run, too.
package cli

// This file runs a command and turns its error into a message and an exit code.

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
)

// Exit codes.
const (
	OK       = 0
	Failure  = 1
	BadUsage = 2
)

// UsageError is an error of the command line, which the user can correct after reading --help.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usage marks err as an error of the command line; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{err}
}

// helpColumns is how many columns a line of help has at most. Texts of commands are written so.
const helpColumns = 120

// Usagef is [fmt.Errorf] for errors of the command line.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// Exit is an error that ends the command with a certain exit code. tracer uses it to return the
// code of the command that it traced. Nothing is printed if Err is nil.
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

// Main runs the command of this process, with a context that ends at a signal (see [Signals]), and
// ends the process.
func Main(root *cobra.Command) {
	ctx, stop := Signals(context.Background())
	code := Run(ctx, root, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Run runs a command once and returns its exit code. It adds --version to root, and errors for
// unknown subcommands. Output to a terminal passes through [Safe]. Once ctx has ended, a reader
// that does not read can block the command only briefly (see [Unblocked]).
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	stdout, stderr = Safe(stdout), Safe(stderr)
	for _, w := range []io.Writer{stdout, stderr} {
		if s, ok := w.(*screen); ok {
			defer s.flush()
		}
	}
	stdout = Unblocked(ctx, stdout)
	accepted := false // as long as it is false, an error comes from cobra and is one of the command line
	prepare(root, &accepted)
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Version = Version()
	if bpf := root.Annotations[bpfObjects]; bpf != "" {
		root.Version += ", BPF " + bpf
	}
	root.Flags().Bool("version", false, "print the version")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	// pflag breaks descriptions of flags where they would be too wide.
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ",
		fmt.Sprintf(".FlagUsagesWrapped %d ", helpColumns)))
	root.SetArgs(append([]string{}, args...)) // cobra takes nil for os.Args
	root.SetOut(stdout)
	root.SetErr(stderr)
	if len(args) == 1 && args[0] == manualCommand {
		root.RunE = func(cmd *cobra.Command, _ []string) error { return writeManual(cmd.OutOrStdout(), cmd) }
		root.Args, accepted = cobra.NoArgs, true
		root.SetArgs([]string{})
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return OK
	}

	name := cmd.CommandPath()
	var usage *UsageError
	if !accepted || errors.As(err, &usage) {
		fmt.Fprintf(stderr, "%s: %s (see %s --help)\n", name, strings.ReplaceAll(Message(err), "\n", "; "), name)
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
		err = errors.Join(append([]error{context.Cause(ctx)}, withoutCanceled(err)...)...)
	}
	fmt.Fprintf(stderr, "%s: %s\n", name, Message(err))
	return code
}

// withoutCanceled lists the errors joined in err, except those that say that the context was
// canceled. The rest are failures while the command cleaned up.
func withoutCanceled(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, withoutCanceled(e)...)
		}
		return all
	}
	if !errors.Is(err, context.Canceled) {
		return []error{err}
	}
	if inner := errors.Unwrap(err); inner != nil {
		return withoutCanceled(inner)
	}
	return nil
}

// prepare makes each command record that its command line was accepted, and commands with
// subcommands reject unknown ones.
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
			if sub.IsAvailableCommand() && sub.Name() != "completion" { // cobra adds completion itself
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
	// Without RunE, cobra would show the help instead of calling Args.
	cmd.RunE = func(*cobra.Command, []string) error { return nil }
}

// flagError brings errors about a flag's value into the form --name "value": why.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	return fmt.Errorf("--%s %q: %s", invalid.GetFlag().Name, invalid.GetValue(), WhyInvalid(invalid))
}

// WhyInvalid says why a flag does not take a value, in the words of all commands.
func WhyInvalid(invalid *pflag.InvalidValueError) string {
	switch invalid.GetFlag().Value.Type() {
	case "int", "int64", "uint", "uint32", "uint64", "intSlice":
		return "want a whole number"
	case "float64":
		return "want a number"
	case "duration":
		return "want a time such as 500ms or 1m30s"
	case "bool":
		return "want true or false"
	}
	return invalid.Unwrap().Error()
}

// OneOf joins words, as in "a, b or c".
func OneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// WriteJSON writes v in the form that all commands use: indented, with a newline at the end.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(v)
}
