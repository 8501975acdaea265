package pressure

import (
	"strings"
	"testing"
)

// Each text of a variant is a line, whatever its line breaks, and of a long one the beginning is shown.
func TestTexts(t *testing.T) {
	r := &Report{
		Variants:  []Variant{{Name: "plain"}, {Name: "help"}},
		Unlimited: []Run{{Outcome: Finished, Text: "a\n\nb"}, {Outcome: Finished, Text: "a\n\nb"}},
		Runs: []Run{
			{Variant: "help", Outcome: Finished, Text: "c"}, {Variant: "plain", Outcome: Killed},
			{Variant: "help", Outcome: Finished, Text: strings.Repeat("é", 200)},
			{Variant: "help", Outcome: Finished, Text: "c"},
		},
	}
	var b strings.Builder
	if err := r.Texts().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := "variant     runs  said\n(no limit)     2  a b\nhelp           2  c\nhelp           1  " +
		strings.Repeat("é", 160) + "…\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
