// Package visible shows text that others chose, such as names in a model or of files, without
// letting it control the output. Characters that would control a terminal or reorder the text
// around them are written as Go writes them in quotes (\x1b, \u202e).
//
//   - [Line] is for a name within a line. Its result has no line breaks.
//   - [Append] keeps line breaks and tabs. Package cli applies it to everything that commands print
//     on a terminal.
package visible

// This file replaces characters that control the output.

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns s as one line of text. It makes visible: control characters (also line breaks and
// tabs), characters that control the direction of text, and bytes that are not UTF-8.
func Line(s string) string {
	isPlain := func(r rune) bool { return !isControl(r) && r != '\n' && r != '\t' && r != utf8.RuneError }
	if i := strings.IndexFunc(s, func(r rune) bool { return !isPlain(r) }); i >= 0 {
		return string(appendText([]byte(s[:i]), []byte(s[i:]), true))
	}
	return s
}

// Append appends s to b as Line does, but keeps line breaks and tabs.
func Append(b, s []byte) []byte { return appendText(b, s, false) }

func appendText(b, s []byte, line bool) []byte {
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		switch {
		case r == utf8.RuneError && n == 1:
			b = fmt.Appendf(b, `\x%02x`, s[0])
		case isControl(r), line && (r == '\n' || r == '\t'):
			quoted := strconv.QuoteRuneToASCII(r)
			b = append(b, quoted[1:len(quoted)-1]...)
		default:
			b = append(b, s[:n]...)
		}
		s = s[n:]
	}
	return b
}

// isControl reports whether a character controls the output instead of being shown. Line feeds and
// tabs do not count.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}
