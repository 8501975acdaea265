package cli

// This file breaks the lines of the help that are too long to be read.

import (
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// helpColumns is how many columns a line of help has at most. Texts of commands are written so. Descriptions of flags
// are broken here, because the names of the other flags decide in which column they begin.
const helpColumns = 120

// breakFlags makes the help of root and its subcommands break the descriptions of flags.
func breakFlags(root *cobra.Command) {
	usage := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		var text strings.Builder
		cmd.SetOut(&text)
		err := usage(cmd)
		cmd.SetOut(out)
		if err != nil {
			return err
		}
		_, err = io.WriteString(out, brokenFlags(text.String()))
		return err
	})
}

// brokenFlags breaks the lines of flags in a usage text.
func brokenFlags(usage string) string {
	var b strings.Builder
	for line := range strings.Lines(usage) {
		text, isWhole := strings.CutSuffix(line, "\n")
		b.WriteString(brokenFlag(text))
		if isWhole {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// flagInText matches a space before the name of a flag.
var flagInText = regexp.MustCompile(` (--?[a-z])`)

// brokenFlag breaks one line, if it is of a flag and too long. None of the new lines begins with a flag's name, which
// would look like the description of that flag.
func brokenFlag(line string) string {
	at := flagLine.FindStringSubmatchIndex(line)
	if at == nil || utf8.RuneCountInString(line) <= helpColumns {
		return line
	}
	const description, glue = 2, "\x00" // a group of flagLine; stands for a space at which no line ends
	begin := at[2*description]
	indent := utf8.RuneCountInString(line[:begin])
	column := indent
	var b strings.Builder
	b.WriteString(line[:begin])
	for i, word := range strings.Fields(flagInText.ReplaceAllString(line[begin:], glue+"$1")) {
		width := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+width > helpColumns:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(strings.ReplaceAll(word, glue, " "))
		column += width
	}
	return b.String()
}
