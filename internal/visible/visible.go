// Package visible shows text that others chose, such as names in a model or of files, without letting it act: characters that would steer a
// terminal or reorder the text around them are written as Go writes them in quotes (\x1b, \u202e).
//
//   - [Line] is for a name in the midst of a line: it has no line breaks afterwards.
//   - [Append] keeps line breaks and tabs. Package cli applies it to everything that commands print on a terminal.
package visible

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns s with all that is not shown as one line of text made visible: control characters (also line breaks and tabs), controls of
// the direction of text, and bytes that are not UTF-8.
func Line(s string) string {
	plain := func(r rune) bool { return !acts(r) && r != '\n' && r != '\t' && r != utf8.RuneError }
	if i := strings.IndexFunc(s, func(r rune) bool { return !plain(r) }); i >= 0 {
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
		case acts(r), line && (r == '\n' || r == '\t'):
			quoted := strconv.QuoteRuneToASCII(r)
			b = append(b, quoted[1:len(quoted)-1]...)
		default:
			b = append(b, s[:n]...)
		}
		s = s[n:]
	}
	return b
}

// acts says that a character does something else than appear; line feeds and tabs aside.
func acts(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}
