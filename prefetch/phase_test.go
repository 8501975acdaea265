package prefetch

// This file compares the table of transitions with the diagram in docs/design/prefetch.md.

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The diagram in docs/design/prefetch.md has the phases and transitions of the code's table, with the same words.
func TestTransitionsAreDrawn(t *testing.T) {
	text, err := os.ReadFile("../docs/design/prefetch.md")
	if err != nil {
		t.Fatal(err)
	}
	var drawn []string
	for _, line := range regexp.MustCompile(`(?m)^    (\w+) --> (\w+: .*)$`).FindAllStringSubmatch(string(text), -1) {
		drawn = append(drawn, line[1]+" --> "+line[2])
	}
	var want []string
	for _, tr := range Transitions() {
		want = append(want, fmt.Sprintf("%s --> %s: %s", nameInDiagram(tr.From), nameInDiagram(tr.To), tr.When))
	}
	for _, line := range want {
		if !slices.Contains(drawn, line) {
			t.Errorf("docs/design/prefetch.md does not have this line, with four spaces before it: %s", line)
		}
	}
	for _, line := range drawn {
		if !slices.Contains(want, line) {
			t.Errorf("docs/design/prefetch.md has a transition that is not in the code: %s", line)
		}
	}
}

func nameInDiagram(p Phase) string { return strings.ReplaceAll(string(p), " ", "_") }

// No transition is in the table twice, and each phase is reached and left.
func TestTransitions(t *testing.T) {
	seen := map[string]bool{}
	from, to := map[Phase]bool{}, map[Phase]bool{}
	for _, tr := range Transitions() {
		key := string(tr.From) + " -> " + string(tr.To)
		if seen[key] {
			t.Errorf("%s is in the table twice", key)
		}
		seen[key], from[tr.From], to[tr.To] = true, true, true
	}
	for _, p := range []Phase{Learn, Load, Compare, Stream, Mixture, StandingOff} {
		if !from[p] || !to[p] {
			t.Errorf("phase %s: left %v, reached %v, want both", p, from[p], to[p])
		}
	}
}
