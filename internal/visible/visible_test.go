package visible

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
			t.Errorf("%q: %q, want %q", s, got, want)
		}
		withBreaks := strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(want)
		if got := string(Append([]byte("x"), []byte(s))); got != "x"+withBreaks {
			t.Errorf("%q: %q, want %q", s, got, "x"+withBreaks)
		}
	}
}

// Whatever comes in, nothing that acts comes out, and what needs no change has none.
func FuzzLine(f *testing.F) {
	for _, s := range []string{"plain", "\x1b]0;title\a", "\u202e\xff\u0085", "a\nb\tc", "\xe2\x82"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		line, text := Line(string(b)), string(Append(nil, b))
		for _, s := range []string{line, text} {
			for _, r := range s {
				if !utf8.ValidString(s) || unicode.IsControl(r) && (s == line || r != '\n' && r != '\t') || unicode.Is(unicode.Bidi_Control, r) {
					t.Fatalf("%q becomes %q", b, s)
				}
			}
		}
		if Line(line) != line || string(Append(nil, []byte(text))) != text {
			t.Fatalf("%q: what is visible is changed again", b)
		}
	})
}
