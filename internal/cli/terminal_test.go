package cli

// This file tests output to terminals and pipes, and the texts of errors.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"tensorcast/internal/testenv"
)

// hostile is a name that somebody might give a file. It would clear the screen, set the title and
// begin a new line.
const hostile = "a\x1b[2J\x1b]0;title\a\u202egpj.\nb\x9b1m é"

// printing returns a command that prints hostile text in every way that it can.
func printing() *cobra.Command {
	return &cobra.Command{Use: "demo", RunE: func(cmd *cobra.Command, _ []string) error {
		fmt.Fprintf(cmd.OutOrStdout(), "out %s\n", hostile)
		fmt.Fprintf(cmd.ErrOrStderr(), "err %s\n", hostile)
		parts := []string{"in parts: \xe6", "\x97", "\xa5 and half of one: \xe2", "x\n", "the end \xe2\x82"}
		for _, part := range parts {
			fmt.Fprint(cmd.OutOrStdout(), part)
		}
		return errors.Join(
			&fs.PathError{Op: "open", Path: hostile, Err: fs.ErrNotExist},
			fmt.Errorf("read %s: %w", hostile, errors.Join(errors.New("one"), errors.New("two"))))
	}}
}

// No text controls a terminal, and each error has one line.
func TestTerminal(t *testing.T) {
	term := testenv.NewTerminal(t)
	if !IsTerminal(term.Slave) || !IsTerminal(Safe(term.Slave)) || Raw(Safe(term.Slave)) != term.Slave {
		t.Error("a terminal is not recognized as one")
	}
	if code := Run(context.Background(), printing(), nil, term.Slave, term.Slave); code != Failure {
		t.Errorf("exit %d, want %d", code, Failure)
	}
	const line = `a\x1b[2J\x1b]0;title\a\u202egpj.\nb\x9b1m é`
	text := strings.ReplaceAll(line, `\n`, "\n")
	want := "out " + text + "\nerr " + text + "\nin parts: 日 and half of one: \\xe2x\nthe end " +
		"demo: open " + line + ": file does not exist\nread " + line + ": one\ntwo\n\\xe2\\x82"
	if got := strings.ReplaceAll(term.End(), "\r\n", "\n"); got != want {
		t.Errorf("the screen shows\n%q\nwant\n%q", got, want)
	}
}

// Output to a pipe or a file stays as it is, except error messages, which have a line each.
func TestPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var errs bytes.Buffer
	Run(context.Background(), printing(), nil, w, &errs)
	w.Close()
	var out bytes.Buffer
	want := "out " + hostile + "\nin parts: 日 and half of one: \xe2x\nthe end \xe2\x82"
	if _, err := out.ReadFrom(r); err != nil || out.String() != want {
		t.Errorf("stdout %q, %v; want %q", &out, err, want)
	}
	got := errs.String()
	if !strings.HasPrefix(got, "err "+hostile+"\n") || strings.Count(got, "\n") != 5 || Safe(&errs) != &errs {
		t.Errorf("stderr %q, want the text unchanged and three lines of errors", got)
	}
}

func TestMessage(t *testing.T) {
	one, two := errors.New("one\nof"), errors.New("two")
	for want, err := range map[string]error{
		`one\nof`:              one,
		"one\\nof\ntwo":        errors.Join(one, two),
		"both: one\\nof\ntwo":  fmt.Errorf("both: %w", errors.Join(one, two)),
		`a\nb: two`:            fmt.Errorf("a\nb: %w", two),
		`a\nb: two, one\nof`:   fmt.Errorf("a\nb: %w, %w", two, one),
		`two: a\nb`:            fmt.Errorf("%w: a\nb", two),
		"one\\nof\ntwo: a\\nb": fmt.Errorf("%w: a\nb", errors.Join(one, two)),
		"one\\nof\ntwo, two":   fmt.Errorf("%w, %w", errors.Join(one, two), two),
		"other words":          &Exit{Err: errors.New("other words")},
		"exit code 1":          &Exit{Code: 1},
		"one\\nof\ntwo\ntwo":   errors.Join(errors.Join(one, two), two),
	} {
		if got := Message(err); got != want {
			t.Errorf("%q: %q, want %q", err, got, want)
		}
	}
}
