package cli

// This file tests how lines of help are broken.

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestBrokenFlags(t *testing.T) {
	const short = "  -h, --help              help for demo\n"
	const long = "  -d, --detail op|op+io   how much is recorded, in words that go on and on for some time until that is broken by " +
		"--detail op+io, and once more behind --detail op, which comes later than the other one, and µ is a column\n"
	example := "  demo --detail op+io " + strings.Repeat("very ", 30) + "long.gguf\n"
	got := brokenFlags("Examples:\n" + example + "\nFlags:\n" + short + long)
	if want := "Examples:\n" + example + "\nFlags:\n" + short; !strings.HasPrefix(got, want) {
		t.Fatalf("%q, want that it begins with %q", got, want)
	}
	broken := got[strings.Index(got, short)+len(short):]
	lines := strings.Split(strings.TrimSuffix(broken, "\n"), "\n")
	if len(lines) < 2 || !strings.Contains(lines[1], " by --detail op+io,") || !strings.HasSuffix(broken, "column\n") {
		t.Fatalf("%d lines, want two at least, and --detail behind the word before it:\n%s", len(lines), broken)
	}
	for i, line := range lines {
		text := strings.TrimLeft(line, " ")
		if utf8.RuneCountInString(line) > helpColumns ||
			i > 0 && (len(line)-len(text) != strings.Index(long, "how") || strings.HasPrefix(text, "-")) {
			t.Errorf("line %d is %q, want at most %d columns, below the description, and no flag at its beginning",
				i+1, line, helpColumns)
		}
	}
	if !slices.Equal(strings.Fields(broken), strings.Fields(long)) {
		t.Errorf("the words are %q, want those of %q", broken, long)
	}
}

// The help of a command and of its subcommands is broken, and goes where it went before.
func TestHelpIsBroken(t *testing.T) {
	root := command()
	root.Flags().Bool("wordy", false, strings.Repeat("many words ", 20))
	for _, args := range [][]string{{"--help"}, {"fail", "--help"}} {
		var stdout, stderr strings.Builder
		if code := Run(t.Context(), root, args, &stdout, &stderr); code != OK || stderr.Len() > 0 {
			t.Fatalf("%q: exit %d, %s", args, code, stderr.String())
		}
		if !strings.Contains(stdout.String(), "\nFlags:\n") {
			t.Errorf("%q: the help lacks its flags:\n%s", args, stdout.String())
		}
		for line := range strings.Lines(stdout.String()) {
			if columns := utf8.RuneCountInString(line) - 1; columns > helpColumns {
				t.Errorf("%q: a line has %d columns: %s", args, columns, line)
			}
		}
		root = command()
	}
}
