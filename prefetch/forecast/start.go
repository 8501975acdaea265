package forecast

// This file says with which flags to start llama.cpp for a model, and why.

import (
	"fmt"
	"strings"

	"tensorcast/loadflags"
)

// Advice is a flag of llama-server and llama-cli.
type Advice struct {
	Flag string `json:"flag"`
	Why  string `json:"why"` // and what it costs
}

// contextStep is for how many tokens of context the memory is told.
const contextStep = 1000

// StartWith says with which flags to start llama.cpp. copies are what it would copy of the weights to another layout
// otherwise, and cores how many cores the processors have.
func (v *Verdict) StartWith(copies loadflags.Copies, cores int) []Advice {
	fits := v.Rows[0].Fits
	var all []Advice
	switch free := v.Memory.Bytes - ownBytes - v.Pass.Context*int64(v.Memory.Context); {
	case copies.Bytes == 0:
	case fits && v.Pass.Weights() <= free: // the file's pages are not read again once they were copied
		all = append(all, Advice{"(no --no-repack)", fmt.Sprintf("it copies %s of %s to another layout, which fits: %s",
			size(copies.Bytes), strings.Join(copies.Types, " and "), loadflags.LayoutGain)})
	default:
		all = append(all, Advice{"--no-repack", fmt.Sprintf("otherwise it copies %s of %s into memory of its own, which "+
			"nobody can give back; what that costs: %s", size(copies.Bytes), strings.Join(copies.Types, " and "),
			loadflags.LayoutGain)})
	}
	if !fits {
		all = append(all, Advice{"--load-mode mmap", "the weights stay in the file, of which a part may be in memory; " +
			"that is the default, and in older ones what is done without --no-mmap"})
	}
	if v.Machine.Threads > 0 {
		n := min(v.Machine.Threads, max(cores, 1))
		all = append(all, Advice{fmt.Sprintf("-t %d", n), "a thread for each core: with more of them the threads " +
			"wait for each other after each op"})
	}
	if v.Pass.Context > 0 {
		step := contextStep * v.Pass.Context
		why := fmt.Sprintf("each %d tokens of context take %s of memory", contextStep, size(step))
		if !fits && v.Pass.Experts == nil {
			why += fmt.Sprintf("; as the model has that much less, a token takes %.0f ms longer",
				1000*float64(step)/(streamShare*v.Machine.streamed()))
		}
		all = append(all, Advice{fmt.Sprintf("-c %d", v.Memory.Context),
			why + "; without -c llama-server takes as much as the model was trained with"})
	}
	if gain := v.guessGain(); gain >= guessWorth {
		all = append(all, Advice{"--spec-type ngram-simple, or -md DRAFT.gguf", fmt.Sprintf(
			"a pass that also checks guesses waits for the disk about as long: %.1f times as fast if each yields 2 tokens",
			gain)})
	}
	return all
}

// guessWorth is from which gain on guesses are worth a line.
const guessWorth = 1.3

// guessGain is how many times as fast tokens come with prefetchd if each pass yields two of them.
func (v *Verdict) guessGain() float64 {
	for _, r := range v.Rows {
		if r.Tokens == 2 && r.Memory == 1 && r.Disk == 1 && !r.Fits {
			return r.Helped.Likely / v.Rows[0].Helped.Likely
		}
	}
	return 0
}
