package cli

// This file writes a command's manual page from its tree of commands, in roff. Texts of commands
// are plain text. Indented lines in them are tables or examples, and keep their line breaks.
// (cobra's own writer reads the texts as Markdown, which joins such lines.)

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// manualCommand, as the only argument, makes a command print its manual page. It is for packaging,
// so no help text mentions it.
const manualCommand = "__man"

// writeManual writes the page of root and its subcommands (section 1). Date and revision are those
// of the build.
func writeManual(out io.Writer, root *cobra.Command) error {
	var date, source string
	if info, ok := buildInfo(); ok {
		date, source = pageOrigin(info)
	}
	w := bufio.NewWriter(out) // keeps the first error
	fmt.Fprintf(w, ".TH \"%s\" 1 \"%s\" \"%s\"\n", roff(strings.ToUpper(root.Name())), roff(date), roff(source))
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", roff(root.Name()), roff(root.Short))
	fmt.Fprintf(w, ".SH SYNOPSIS\n%s\n", roff(root.UseLine()))
	fmt.Fprint(w, ".SH DESCRIPTION\n")
	writeText(w, root.Long)
	fmt.Fprint(w, ".SH OPTIONS\n")
	writeFlags(w, root)
	if subs := visibleCommands(root); len(subs) > 0 {
		fmt.Fprint(w, ".SH COMMANDS\n")
		for _, c := range subs {
			fmt.Fprintf(w, ".SS %s\n", roff(c.UseLine()))
			text := c.Long
			if text == "" {
				text = c.Short + "."
			}
			writeText(w, text)
			writeFlags(w, c)
			if c.Example != "" {
				fmt.Fprint(w, ".PP\nExamples:\n")
				writeText(w, c.Example)
			}
		}
	}
	if root.Example != "" {
		fmt.Fprint(w, ".SH EXAMPLES\n")
		writeText(w, root.Example)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the manual page: %w", err)
	}
	return nil
}

// pageOrigin returns the date of the commit, and the name of the project with its revision.
func pageOrigin(info *debug.BuildInfo) (date, source string) {
	source = "tensorcast"
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.time":
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				date = t.UTC().Format(time.DateOnly)
			}
		case "vcs.revision":
			source += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return date, source
}

// visibleCommands lists the commands below cmd that the help shows, each before its own
// subcommands. It leaves out those that cobra adds.
func visibleCommands(cmd *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion" {
			all = append(append(all, c), visibleCommands(c)...)
		}
	}
	return all
}

// writeText writes a text. Paragraphs are filled, indented lines are not.
func writeText(w io.Writer, text string) {
	fmt.Fprint(w, ".PP\n")
	table := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		indented := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
		switch {
		case line == "" && table:
			fmt.Fprint(w, "\n")
			continue
		case line == "":
			fmt.Fprint(w, ".PP\n")
			continue
		case indented && !table:
			fmt.Fprint(w, ".nf\n")
		case !indented && table:
			fmt.Fprint(w, ".fi\n")
		}
		table = indented
		fmt.Fprintln(w, roff(line))
	}
	if table {
		fmt.Fprint(w, ".fi\n")
	}
}

// flagLine matches a line of pflag's usages: names, two or more spaces, and the description.
var flagLine = regexp.MustCompile(`^ *((?:-\S, )?--.+?) {2,}(.*)$`)

// writeFlags writes an entry per flag that the help shows.
func writeFlags(w io.Writer, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	for line := range strings.Lines(cmd.NonInheritedFlags().FlagUsages()) {
		line = strings.TrimSuffix(line, "\n")
		if m := flagLine.FindStringSubmatch(line); m != nil {
			fmt.Fprintf(w, ".TP\n\\fB%s\\fP\n%s\n", roff(m[1]), roff(m[2]))
		} else {
			fmt.Fprintln(w, roff(strings.TrimSpace(line)))
		}
	}
}

// special replaces characters that mean something to roff, or that it would print as typographic ones.
var special = strings.NewReplacer(
	`\`, `\(rs`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`)

// roff quotes one line of text.
func roff(line string) string {
	line = special.Replace(line)
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	return line
}
