package prefetch

// This file says what a Controller did.

import (
	"tensorcast/prefetch/lookup"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/readahead"
)

// Summary says what a Controller did. Sizes are bytes.
type Summary struct {
	Strategy           string  `json:"strategy"`
	Tokens             int     `json:"tokens"`         // generated while helping, in all slots
	TokensPerSec       float64 `json:"tokens_per_sec"` // over the decodes that generated these
	Decodes            int     `json:"decodes"`        // while helping: of a token, of several, or of a prompt
	DecodesPerSec      float64 `json:"decodes_per_sec"`
	PromptTokens       int     `json:"prompt_tokens"` // of prompts, while helping
	PromptTokensPerSec float64 `json:"prompt_tokens_per_sec"`
	// Before is how many tokens per second there were without help, in the decodes that are usual, when that was
	// measured last. It is 0 if it was not. Lately is the same with help.
	Before float64 `json:"before_tokens_per_sec"`
	Lately float64 `json:"lately_tokens_per_sec"`
	// Expected is what could be reached with what was held in the end, by the disk's bandwidth as measured
	// here and the time that ops compute beside what is read; 0 if that is not known.
	Expected float64 `json:"expected_tokens_per_sec"`
	Disk     float64 `json:"disk_bytes_per_sec"` // that the disk was seen to deliver, over a tenth of a second or more
	Pinned   int64   `json:"pinned_bytes"`       // held at the end
	Streamed int64   `json:"streamed_bytes"`     // read ahead
	Window   int64   `json:"window_bytes"`
	PerToken int64   `json:"weight_bytes_per_token"` // that each token reads and this process can help with
	Room     int64   `json:"room_bytes"`
	Level    string  `json:"bounded_by"`
	Late     int     `json:"late"`         // visits that the target reached first
	Shrunk   int     `json:"shrunk"`       // times that memory was given back
	Taken    int64   `json:"taken_bytes"`  // that were kept, and that the kernel took for others
	Warmed   int64   `json:"warmed_bytes"` // that fit, were taken by others, and were read back (Options.KeepWarm)
	Copied   int64   `json:"copied_bytes"` // of weights that the target has copied, paged out of their file
	Beyond   Beyond  `json:"beyond"`       // why more was streamed than has no room

	Experts *mixture.Summary `json:"experts,omitempty"` // nil unless the model has some that are helped
	Tables  *lookup.Summary  `json:"tables,omitempty"`  // nil unless it has large ones of which rows are looked up

	Learned int  `json:"learned"`         // cycles that were followed, one after the other
	Stored  bool `json:"stored_pattern"`  // the first of them was Options.Stored
	Guessed bool `json:"guessed_pattern"` // the first of them was a guess
	// Idle is why there was nothing to win in the end; empty if there was. If the target unmapped its models then, as
	// many do before they end, it is why there was nothing to win until then.
	Idle      string  `json:"idle"`
	Queue     string  `json:"queue"`
	StageSec  float64 `json:"stage_seconds"`  // spent on asking for reads
	EvictSec  float64 `json:"evict_seconds"`  // spent on paging out
	FollowSec float64 `json:"follow_seconds"` // since the first blocks were held

	// Readahead is what was done about what the target's own faults read around themselves; nil if nothing
	// was to be. Who feeds the controller fills it in.
	Readahead *readahead.Outcome `json:"readahead,omitempty"`
}

// summary describes the work so far, in the present phase.
func (s *session) summary(in phase) Summary {
	w := &s.work
	sum := Summary{
		Strategy: s.opts.Strategy.Name(), Queue: s.levers.Name(),
		Tokens: w.tokens, Decodes: w.decodes, PromptTokens: w.promptTokens, Streamed: w.streamed,
		PerToken: w.perToken, Late: w.late, Shrunk: w.shrunk, Taken: w.taken,
		Warmed: w.warmed, Copied: w.copied, Experts: w.experts, Tables: w.tables, Learned: w.learned,
		Stored: w.stored, Guessed: w.guessed, StageSec: w.staging.Seconds(), EvictSec: w.evicting.Seconds(),
	}
	free := s.memory.room
	if f := s.f; f != nil {
		at := s.token
		if at == (usage{}) { // there was no token yet
			at = f.usage()
		}
		free = at.room
		sum.Pinned, sum.Window, sum.PerToken, sum.Disk = f.heldBytes, at.window, f.schedule.Bytes, s.meter.best
		sum.Streamed += f.streamed
		sum.Late += f.late
		sum.Beyond = at.beyond
		if s.opts.Host.Memory != nil {
			sum.Beyond.Own = s.opts.Host.Memory()
		}
		if f.mixture == nil { // otherwise it depends on what routers choose
			sum.Expected = f.expectedSpeed(at.window)
		} else {
			sum.Experts = f.mixture.Summary(w.experts)
		}
		if f.tables != nil {
			sum.Tables = f.tables.Summary(w.tables)
		}
	}
	sum.Room, sum.Level = free.Bytes, free.Level
	switch p := in.(type) {
	case *standBackPhase:
		sum.Idle = p.stood.Error()
	case *learnPhase:
		if p.before != nil {
			sum.Idle = p.before.Error()
		}
	}
	if !w.firstHeld.IsZero() {
		sum.FollowSec = s.now().Sub(w.firstHeld).Seconds()
	}
	sum.TokensPerSec = perSecond(float64(w.tokens), w.decoding)
	sum.PromptTokensPerSec = perSecond(float64(w.promptTokens), w.promptDecoding)
	sum.DecodesPerSec = perSecond(float64(w.decodes), w.decoding+w.promptDecoding)
	sum.Before, sum.Lately = s.compared.speeds()
	return sum
}
