package prefetch_test

// This file tests in virtual time targets that decode several tokens at a time: slots, drafts, prompts, embeddings.

import (
	"errors"
	"testing"
	"time"

	"tensorcast/pattern"
	"tensorcast/prefetch"
	"tensorcast/prefetch/models"
	"tensorcast/sim"
)

// runBatches decodes batches of these sizes one after the other, and returns how long they took.
func runBatches(r *rig, sizes ...int32) (took time.Duration) {
	r.t.Helper()
	for _, n := range sizes {
		r.Batch = n
		took += r.run(1).Time
	}
	return took
}

// repeat is some sizes over and over.
func repeat(times int, sizes ...int32) (all []int32) {
	for range times {
		all = append(all, sizes...)
	}
	return all
}

// Whatever the decodes of a target are, it is helped as one is that generates token after token.
func TestBatches(t *testing.T) {
	for name, sizes := range map[string][]int32{
		"four slots":                  repeat(20, 4),
		"slots that come and go":      repeat(4, 4, 4, 3, 3, 3, 2, 2, 1, 1, 2, 3, 4),
		"a draft":                     repeat(10, 17, 12, 17, 5, 17),
		"embeddings":                  repeat(10, 200, 130, 250, 60, 90),
		"chats with prompts":          repeat(3, 300, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
		"prompts in parts, one token": repeat(12, 512, 512, 40, 1),
	} {
		t.Run(name, func(t *testing.T) {
			alone := newRig(t, 0.6, prefetch.Options{}, nil)
			alone.Attach(nil)
			r := newRig(t, 0.6, prefetch.Options{}, nil)
			runBatches(alone, sizes[:10]...)
			runBatches(r, sizes[:10]...)
			with, without := runBatches(r, sizes[10:]...), runBatches(alone, sizes[10:]...)
			if with > without*2/3 {
				t.Errorf("%v with help, %v without, want two thirds at most", with, without)
			}
			s := r.Summary()
			if s.Learned > 2 || s.Decodes < len(sizes)-8 || s.DecodesPerSec <= 0 {
				t.Errorf("learned %d times, %d decodes at %.2f/s; want at most twice, and at least %d",
					s.Learned, s.Decodes, s.DecodesPerSec, len(sizes)-8)
			}
			if r.Overcommitted() > 0 {
				t.Errorf("%d bytes exceed the limit, want 0", r.Overcommitted())
			}
		})
	}
}

// Tokens that are generated are told apart from those of prompts.
func TestTally(t *testing.T) {
	for name, tc := range map[string]struct {
		sizes             []int32
		generated, prompt int // at least, and at most twice as many
	}{
		"a chat":     {repeat(3, 30, 1, 1, 1, 1, 1, 1, 1, 1, 1), 20, 60},
		"four slots": {repeat(30, 4), 80, 0},
		"embeddings": {repeat(30, 100), 0, 2000},
	} {
		r := newRig(t, 0.6, prefetch.Options{}, nil)
		runBatches(r, tc.sizes...)
		s := r.Summary()
		if s.Tokens < tc.generated || s.Tokens > 2*tc.generated ||
			s.PromptTokens < tc.prompt || s.PromptTokens > 2*tc.prompt+8 {
			t.Errorf("%s: %d tokens generated, %d of prompts; want about %d and %d",
				name, s.Tokens, s.PromptTokens, tc.generated, tc.prompt)
		}
		if status := r.Status(); status.Tokens != s.Tokens || status.Decodes != s.Decodes || status.Now <= 0 {
			t.Errorf("%s: status %+v, summary %+v; want the same counts, and a speed", name, status, s)
		}
	}
}

// Help that does not win is given up for any kind of decodes.
func TestBatchesWithoutGain(t *testing.T) {
	for name, sizes := range map[string][]int32{"four slots": repeat(100, 4), "embeddings": repeat(60, 200, 130)} {
		r := newRig(t, 0.6, prefetch.Options{}, func(c *sim.Config) { c.Tick = 40 * time.Millisecond })
		var err error
		for _, n := range sizes {
			r.Batch = n
			if _, err = r.Run(1, r.cycle, 1); err != nil {
				break
			}
		}
		var stood *prefetch.StandBack
		if s := r.Summary(); name == "embeddings" && s.Decodes > 8 {
			t.Errorf("%s: %d decodes had help that does not win, want at most 8", name, s.Decodes)
		}
		if !errors.As(err, &stood) || stood.Reason != prefetch.NoWin || stood.Tokens < 2 {
			t.Errorf("%s: %v, want a stand back (%v) that tells the tokens of a decode", name, err, prefetch.NoWin)
		}
	}
}

// A prompt whose first part has no outputs does not read all that a token reads. The rest is learned as soon as a token
// reads it.
func TestPromptReadsLess(t *testing.T) {
	r := newRig(t, 0.6, prefetch.Options{}, nil)
	r.Warmup = false
	part := &pattern.Cycle{Reads: r.cycle.Reads[:len(r.cycle.Reads)*9/10]}
	r.Batch = 512
	r.runContext(1, part, 2)
	r.Batch = 1
	r.run(30)
	if s := r.Status(); s.Activity != prefetch.Helping || s.PerToken < r.cycle.Bytes() {
		t.Errorf("%+v; want %s for the %d bytes that a token reads", s, prefetch.Helping, r.cycle.Bytes())
	}
	if s := r.Summary(); s.Learned != 2 {
		t.Errorf("learned %d times, want twice: from the prompt, and from a token", s.Learned)
	}
}

// A draft model that decodes many tokens for each decode of the large one does not keep that from being helped.
func TestDraftModel(t *testing.T) {
	var opts prefetch.Options
	opts.Target.Models = func() (models.Model, error) { return twoModels(model(1, 1).Bytes()), nil }
	r := newRig(t, 0.6, opts, nil)
	for range 30 {
		r.Batch = 1
		r.runContext(2, r.another, 16)
		r.Batch = 17
		r.run(1)
	}
	if s := r.Status(); s.Activity != prefetch.Helping || s.PerToken < r.cycle.Bytes() || s.Now < s.Before*5/4 {
		t.Errorf("%+v; want %s for the %d bytes that the large model reads, a quarter faster than before",
			s, prefetch.Helping, r.cycle.Bytes())
	}
}

// What a small draft model reads stays in memory, beside the large model that is helped.
func TestDraftStays(t *testing.T) {
	var opts prefetch.Options
	opts.Target.Models = func() (models.Model, error) { return twoModels(model(1, 1).Bytes()), nil }
	r := newRig(t, 0.5, opts, nil)
	draft := func() sim.Token {
		r.Batch = 1
		return r.runContext(2, r.another, 4)
	}
	var read int64
	for n := range 40 {
		token := draft()
		if n >= 30 {
			read += 4 * (token.TargetBytes + token.HelperBytes)
		}
		r.Batch = 5
		r.run(1)
	}
	if most := 2 * r.another.Bytes(); read > most {
		t.Errorf("the draft model read %d bytes in 40 tokens, want at most %d", read, most)
	}
}

// A context that guesses tokens by a layer of its own shares a few weights with the one that it guesses for. Its
// decodes are not taken for tokens.
func TestSharedWeights(t *testing.T) {
	r := newRig(t, 0.6, prefetch.Options{}, nil)
	n := len(r.cycle.Reads)
	head := &pattern.Cycle{Reads: r.cycle.Reads[n-2:]}
	for range 40 {
		r.run(1)
		r.runContext(2, head, 1)
	}
	s := r.Summary()
	if s.Tokens > 40 || s.Tokens < 35 {
		t.Errorf("%d tokens, want the 35 to 40 of the first context", s.Tokens)
	}
	if now := r.Status().Now; now > 20 {
		t.Errorf("%.1f tok/s, want no more than the model can have", now)
	}
}
