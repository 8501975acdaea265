package cli

// This file tests errors, exit codes, flags and --version with a command that can fail in every way.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

// asCommand is an environment variable. If it is set, the test binary acts as the command below, so
// that signals and exit codes are those of a real process.
const asCommand = "TENSORCAST_CLI_TEST"

func TestMain(m *testing.M) {
	switch os.Getenv(asCommand) {
	case "":
	case "first":
		ctx, _ := FirstSignal(context.Background()) // never stopped: it lasts as long as the process
		os.Exit(Run(ctx, command(), os.Args[1:], os.Stdout, os.Stderr))
	default:
		Main(command())
	}
	goleak.VerifyTestMain(m)
}

// command returns a command that can fail in every way.
func command() *cobra.Command {
	root := &cobra.Command{Use: "demo", Short: "Fail in every way"}
	var order, format string
	var size int64
	var names []string
	fail := &cobra.Command{Use: "fail [text]", Short: "Fail", Args: cobra.MaximumNArgs(1)}
	fail.RunE = func(cmd *cobra.Command, args []string) error {
		switch strings.Join(args, "") {
		case "":
			values := map[string]any{"order": order, "format": format, "size": size, "names": names}
			return WriteJSON(cmd.OutOrStdout(), values)
		case "usage":
			return Usagef("--order %q: not today", order)
		case "wrapped":
			return fmt.Errorf("outer: %w", Usage(errors.New("inner")))
		case "two":
			return Usage(errors.Join(errors.New("one"), errors.New("two")))
		case "exit":
			return &Exit{Code: 7}
		case "exit and say":
			return fmt.Errorf("told: %w", &Exit{Code: 8, Err: errors.New("so")})
		case "canceled":
			canceled := fmt.Errorf("deep: %w", context.Canceled)
			return fmt.Errorf("reading: %w", errors.Join(canceled, errors.New("clean up")))
		}
		return errors.New(args[0])
	}
	order = "access"
	EnumVar(fail, &order, "order", "o", []string{"access", "file"}, "rows")
	EnumVar(fail, &format, "format", "", []string{"csv", "Q8_0"}, "format")
	SizeVar(fail.Flags(), &size, "size", "how `much`")
	names = []string{"a", "b"}
	EnumsVar(fail, &names, "names", []string{"a", "b", "c"}, "which")
	fail.Flags().Int("count", 1, "how many")
	fail.Flags().Duration("time", 0, "how long")
	root.AddCommand(fail, waiting())
	return root
}

func run(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Run(ctx, command(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"fail", "it broke"}, 1, "demo fail: it broke\n"},
		{[]string{"fail", "usage"}, 2, "demo fail: --order \"access\": not today (see demo fail --help)\n"},
		{[]string{"fail", "wrapped"}, 2, "demo fail: outer: inner (see demo fail --help)\n"},
		{[]string{"fail", "two"}, 2, "demo fail: one; two (see demo fail --help)\n"},
		{[]string{"fail", "exit"}, 7, ""},
		{[]string{"fail", "exit and say"}, 8, "demo fail: told: so\n"},
		{[]string{"fail", "a", "b"}, 2, "demo fail: accepts at most 1 arg(s), received 2 (see demo fail --help)\n"},
		{[]string{"fail", "--nope"}, 2, "demo fail: unknown flag: --nope (see demo fail --help)\n"},
		{[]string{"fail", "--count", "many"}, 2,
			"demo fail: --count \"many\": want a whole number (see demo fail --help)\n"},
		{[]string{"fail", "--time", "3"}, 2,
			"demo fail: --time \"3\": want a time such as 500ms or 1m30s (see demo fail --help)\n"},
		{[]string{"fail", "-o", "random"}, 2,
			"demo fail: --order \"random\": want access or file (see demo fail --help)\n"},
		{[]string{"fail", "--format="}, 0, ""},
		{[]string{"fail", "--names", "a,d"}, 2, "demo fail: --names \"a,d\": want a, b or c (see demo fail --help)\n"},
		{[]string{"fail", "--size", "-3"}, 2,
			"demo fail: --size \"-3\": want a size such as 600MB or 2GiB (see demo fail --help)\n"},
		{[]string{"fail", "--size", "0"}, 2,
			"demo fail: --size \"0\": want a size such as 600MB or 2GiB (see demo fail --help)\n"},
		{[]string{"fail", "--size", "20EB"}, 2,
			"demo fail: --size \"20EB\": want a size such as 600MB or 2GiB (see demo fail --help)\n"},
		{[]string{"fail", "--size", "12"}, 2, "demo fail: --size \"12\": " +
			"that is 12 bytes: write the unit, as in 12MiB or 12GiB (see demo fail --help)\n"},
		{nil, 2, "demo: a command is needed: fail or wait (see demo --help)\n"},
		{[]string{"fial"}, 2, "demo: no command \"fial\": did you mean fail? (see demo --help)\n"},
		{[]string{"something"}, 2, "demo: no command \"something\": want fail or wait (see demo --help)\n"},
	} {
		code, _, stderr := run(t.Context(), tt.args...)
		if code != tt.code || stderr != tt.stderr {
			t.Errorf("%q: exit %d, want %d; stderr %q, want %q", tt.args, code, tt.code, stderr, tt.stderr)
		}
	}
}

func TestValues(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, `{"format":"","names":["a","b"],"order":"access","size":0}`},
		{[]string{"--size", "2GiB", "-o", "FILE", "--format", "q8_0"},
			`{"format":"Q8_0","names":["a","b"],"order":"file","size":2147483648}`},
		{[]string{"--names", "c,A", "--names", "b"}, `{"format":"","names":["c","a","b"],"order":"access","size":0}`},
	} {
		code, stdout, stderr := run(t.Context(), append([]string{"fail"}, tt.args...)...)
		var compact bytes.Buffer
		if err := json.Compact(&compact, []byte(stdout)); code != 0 || err != nil || compact.String() != tt.want {
			t.Errorf("%q: exit %d, %s%s, want %s", tt.args, code, stdout, stderr, tt.want)
		}
	}
}

func TestHelpAndCompletion(t *testing.T) {
	code, stdout, _ := run(t.Context(), "fail", "--help")
	for _, want := range []string{
		"--order access|file", `(default access)`, "--format csv|Q8_0", "--size much", "--names names", "(default a,b)",
	} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, the help has no %q:\n%s", code, want, stdout)
		}
	}
	if strings.Contains(stdout, "how much (default") {
		t.Errorf("the help shows a default for a size, want none:\n%s", stdout)
	}
	for typed, want := range map[string]string{"--order=": "access\nfile\n", "--names=c,": "c,a\nc,b\nc,c\n"} {
		if _, stdout, _ := run(t.Context(), "__complete", "fail", typed); !strings.HasPrefix(stdout, want) {
			t.Errorf("%s completes to %q, want %q", typed, stdout, want)
		}
	}
}

// An error because the context ended is reported as an interruption. Other failures are reported as
// well.
func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&Interrupted{15})
	code, _, stderr := run(ctx, "fail", "canceled")
	if want := "demo fail: interrupted by SIGTERM\nclean up\n"; code != 1 || stderr != want {
		t.Errorf("exit %d, %q, want %q", code, stderr, want)
	}
	if _, _, stderr := run(ctx, "fail", "it broke"); stderr != "demo fail: it broke\n" {
		t.Errorf("another failure after the end of the context: %q, want it unchanged", stderr)
	}
	const want = "deep: context canceled"
	if _, _, stderr := run(t.Context(), "fail", "canceled"); !strings.Contains(stderr, want) {
		t.Errorf("while the context has not ended: %q, want %q", stderr, want)
	}
}

// The hash is that of the file, so that sha256sum can tell which objects a command has.
func TestVersionObjects(t *testing.T) {
	root := command()
	AddBPFVersions(root, map[string][]byte{"b": []byte("abc"), "a": nil})
	var out bytes.Buffer
	code := Run(t.Context(), root, []string{"--version"}, &out, &out)
	if want := ", BPF a e3b0c44298fc, b ba7816bf8f01\n"; code != 0 || !strings.HasSuffix(out.String(), want) {
		t.Errorf("exit %d, %q; want 0, and %q at the end", code, out.String(), want)
	}
}

func TestVersion(t *testing.T) {
	code, stdout, stderr := run(t.Context(), "--version")
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "demo version ") ||
		!strings.Contains(stdout, "go1.") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("exit %d, stdout %q, stderr %q; want one line with the Go version", code, stdout, stderr)
	}
	info := &debug.BuildInfo{GoVersion: "go1.26", Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
		{Key: "vcs.modified", Value: "true"}, {Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: "amd64"},
	}}
	want := "(devel), revision abc of 2026-01-02T03:04:05Z with changes, go1.26 linux/amd64"
	if got := versionOf(info); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	release, revision, revisionTime = "0.1.0", "def", "2026-01-02T03:04:05Z"
	t.Cleanup(func() { release, revision, revisionTime = "", "", "" })
	if commit, _ := Commit(); commit == "" {
		t.Error("the linker's revision is no commit")
	}
	if got := Version(); !strings.HasPrefix(got, "0.1.0, revision ") {
		t.Errorf("%q, want one with the linker's version and revision", got)
	}
	info.Settings, info.Main.Version = info.Settings[3:], "v1.2.3"
	if got, want := versionOf(info), "v1.2.3, go1.26 linux/amd64"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
