package prefetch

// This file says what a decode of the followed cycle counts as. A chat decodes one token at a time, behind a prompt of
// many. A server with several slots decodes a token of each of them at once, and a speculative one some tokens that a
// draft model has guessed. Embeddings have only prompts. All of them read the same weights once, so each is helped, and
// each is compared with its own kind.

import (
	"fmt"
	"math/bits"
	"slices"
	"time"
)

const (
	// exactTokens is up to how many tokens steps are compared only with steps of as many.
	exactTokens = 8
	// generatedTokens is the largest step that may be one of slots or of a draft. A larger one is a prompt.
	generatedTokens = 32
	// recentSteps are looked at to tell them apart. If repeatedSteps of them have several tokens, but not more than
	// generatedTokens, these are no prompts: prompts come one at a time, before many tokens.
	recentSteps, repeatedSteps = 8, 3
	promptWeight               = 4 // see step.weight
)

// step is a decode of the followed cycle that is over.
type step struct {
	tokens int   // that it computed; 0: it is none
	nanos  int64 // that it took, by the target's clock
}

// class groups steps that take about as long if they read the same: by the number of tokens, which beyond exactTokens
// is rounded up to a power of two.
func (s step) class() int {
	if s.tokens <= exactTokens {
		return s.tokens
	}
	return 1 << bits.Len(uint(s.tokens-1))
}

// weight is how many steps a step stands for where it is counted until help is compared. A prompt takes as long as many
// tokens. If each counted as one, help that does not win would last for long.
func (s step) weight() int {
	if s.tokens > generatedTokens {
		return promptWeight
	}
	return 1
}

// describeClass names a step of a class.
func describeClass(class int) string {
	switch {
	case class <= 1:
		return "a token"
	case class <= exactTokens:
		return fmt.Sprintf("a decode of %d tokens", class)
	}
	return fmt.Sprintf("a decode of up to %d tokens", class)
}

// perSecond is how many tokens per second a step of so many tokens has.
func perSecond(tokens float64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return tokens / d.Seconds()
}

// tally counts steps.
type tally struct {
	decodes        int
	tokens         int           // generated
	decoding       time.Duration // that these took
	promptTokens   int
	promptDecoding time.Duration // that these took
	recent         []int         // tokens of the last steps
}

// count counts a step.
func (t *tally) count(s step) {
	t.decodes++
	if t.recent = append(t.recent, s.tokens); len(t.recent) > recentSteps {
		t.recent = slices.Delete(t.recent, 0, 1)
	}
	if t.isGenerated(s) {
		t.tokens += s.tokens
		t.decoding += time.Duration(s.nanos)
		return
	}
	t.promptTokens += s.tokens
	t.promptDecoding += time.Duration(s.nanos)
}

// isGenerated says whether a step that was just counted has generated tokens, and was no prompt.
func (t *tally) isGenerated(s step) bool {
	if s.tokens <= 1 {
		return true
	}
	several := 0
	for _, n := range t.recent {
		if n > 1 && n <= generatedTokens {
			several++
		}
	}
	return s.tokens <= generatedTokens && several >= repeatedSteps
}
