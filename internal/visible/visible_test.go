package visible

// This file tests which characters are replaced.

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	for s, want := range map[string]string{
		"":                   "",
		"blk.0.attn_q":       "blk.0.attn_q",
		"models/ünï 日本.gguf": "models/ünï 日本.gguf",
		"a\x1b[2Jb":          `a\x1b[2Jb`,
		"\a\b\r\x00\x7f":     `\a\b\r\x00\x7f`,
		"c1 \u009b31m":       `c1 \u009b31m`,
		"raw \x9b31m":        `raw \x9b31m`,
		"gpj\u202efugg":      `gpj\u202efugg`,
		"\u2066\u2069":       `\u2066\u2069`,
		"a\nb\tc":            `a\nb\tc`,
		"half \xe2\x82":      `half \xe2\x82`,
		"the mark \ufffd":    "the mark \ufffd",
	} {
		if got := Line(s); got != want {
			t.Errorf("Line(%q) = %q, want %q", s, got, want)
		}
		withBreaks := strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(want)
		if got := string(Append([]byte("x"), []byte(s))); got != "x"+withBreaks {
			t.Errorf("Append(%q) = %q, want %q", s, got, "x"+withBreaks)
		}
	}
}

// The result never contains control characters, and does not change if it is made visible again.
func FuzzLine(f *testing.F) {
	for _, s := range []string{"plain", "\x1b]0;title\a", "\u202e\xff\u0085", "a\nb\tc", "\xe2\x82"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		line, text := Line(string(b)), string(Append(nil, b))
		for _, s := range []string{line, text} {
			for _, r := range s {
				if !utf8.ValidString(s) || unicode.IsControl(r) && (s == line || r != '\n' && r != '\t') ||
					unicode.Is(unicode.Bidi_Control, r) {
					t.Fatalf("%q becomes %q, want no control characters", b, s)
				}
			}
		}
		if Line(line) != line || string(Append(nil, []byte(text))) != text {
			t.Fatalf("%q: the result %q, %q changes if it is made visible again", b, line, text)
		}
	})
}
