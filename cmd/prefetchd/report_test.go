package main

// This file tests what is said in the end, and the results of a dry run as text.

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"tensorcast/prefetch"
	"tensorcast/prefetch/lookup"
	"tensorcast/prefetch/mixture"
)

// TestGainTold checks the end of a run: its first line says what was gained, or that this is not known. All lines
// are short unless details are asked for.
func TestGainTold(t *testing.T) {
	base := prefetch.Summary{
		Tokens: 120, TokensPerSec: 5.3, Decodes: 121, DecodesPerSec: 4.5, Lately: 5.2, Before: 0.7,
		PerToken: 764 << 20, Pinned: 602 << 20, Streamed: 120 * 165 << 20,
		Room: 628 << 20, Level: "/box memory.max", Queue: "io_uring", Late: 1,
	}
	change := func(f func(s *prefetch.Summary)) prefetch.Summary {
		s := base
		f(&s)
		return s
	}
	embeddings := change(func(s *prefetch.Summary) {
		s.Tokens, s.TokensPerSec, s.Decodes, s.DecodesPerSec = 0, 0, 12, 0.49
		s.PromptTokens, s.PromptTokensPerSec, s.Streamed = 260, 80.5, 12*164<<20
		s.Lately, s.Before = 85, 31.2
	})
	for name, tc := range map[string]struct {
		s    prefetch.Summary
		want string
	}{
		"gain": {base, "prefetchd: 5.20 tok/s, 0.70 before: 7.4 times as fast (120 tokens)\n" +
			"prefetchd: kept 602 MiB of 764 MiB in memory, streamed 165 MiB per token\n"},
		"much": {change(func(s *prefetch.Summary) {
			s.TokensPerSec, s.Lately = 16.04, 16.5
		}), "16.0 tok/s, 0.70 before: 23 times as fast (120 tokens)\n"},
		"faster in the end, when the machine was less busy": {change(func(s *prefetch.Summary) {
			s.TokensPerSec, s.Lately, s.Before = 3.02, 14.3, 0.37
		}), "3.02 tok/s, 0.37 before: 8.2 times as fast (120 tokens, 14.3 lately)\n"},
		"of one slot in the end, and several before": {change(func(s *prefetch.Summary) {
			s.TokensPerSec, s.Lately = 12, 3
		}), "3.00 tok/s, 0.70 before: 4.3 times as fast (120 tokens, 12.0 on average)\n"},
		"slower": {change(func(s *prefetch.Summary) {
			s.Before = 10.4
		}), "10.4 before: no gain, 0.50 times as fast ("},
		"as fast": {change(func(s *prefetch.Summary) {
			s.Before = 5.22
		}), "5.20 tok/s, 5.22 before: no gain ("},
		"not measured": {change(func(s *prefetch.Summary) { s.Before, s.Tokens, s.Decodes = 0, 1, 2 }),
			"prefetchd: 5.30 tok/s with help (1 token); none was measured without, so the gain is not known\n"},
		"slots": {change(func(s *prefetch.Summary) { s.Decodes = 60 }), "streamed 330 MiB per decode\n"},
		"embeddings": {embeddings,
			"prefetchd: 80.5 prompt tok/s, 31.2 before: 2.6 times as fast " +
				"(12 decodes, 0.49 per second, 85.0 lately)\n" +
				"prefetchd: kept 602 MiB of 764 MiB in memory, streamed 164 MiB per decode\n"},
		"no decode": {change(func(s *prefetch.Summary) { s.Tokens, s.Decodes = 0, 0 }),
			"prefetchd: the target computed nothing with help, so nothing was gained\n"},
		"idle in the end": {change(func(s *prefetch.Summary) { s.Idle = "everything fits" }),
			"(120 tokens)\nprefetchd: in the end nothing is kept: everything fits\n"},
		"idle all the time": {change(func(s *prefetch.Summary) {
			s.Tokens, s.Decodes, s.Idle = 0, 0, "everything fits"
		}), ""},
		"nothing learned": {change(func(s *prefetch.Summary) { s.PerToken = 0 }),
			"prefetchd: no decode of the target was seen as a whole: nothing was learned\n"},
	} {
		var out bytes.Buffer
		err := report(&out, &out, options{}, tc.s)
		text := out.String()
		if err != nil || !strings.Contains(text, tc.want) || tc.want == "" && text != "" {
			t.Errorf("%s: %v; got\n%swant\n%s", name, err, text, tc.want)
		}
		for line := range strings.Lines(text) {
			if len(line) > 110 {
				t.Errorf("%s: a line of %d columns: %s", name, len(line), line)
			}
		}
		if strings.Contains(text, "room for") {
			t.Errorf("%s: details, for which nobody asked: %s", name, text)
		}
		out.Reset()
		const details = "1 late; room for 628 MiB (/box memory.max); io_uring\n"
		err = report(&out, &out, options{verbose: true}, tc.s)
		if err != nil || name == "gain" && !strings.Contains(out.String(), details) {
			t.Errorf("%s: with --verbose: %v, %s", name, err, out.String())
		}
	}
}

// TestExpertsTold checks what the summary and a dry run report about experts as text.
func TestExpertsTold(t *testing.T) {
	s := prefetch.Summary{
		Tokens: 10, Decodes: 10, TokensPerSec: 5, PerToken: 64 << 20, Pinned: 64 << 20, Streamed: 110 << 20,
		Room: 600 << 20, Level: "/box memory.max", Disk: 1 << 30, Window: 8 << 20,
		Experts: &mixture.Summary{All: 1000 << 20, Kept: 400 << 20, Room: 410 << 20, Chosen: 800,
			Missed: 200, Read: 100 << 20, Strays: 3 << 20},
	}
	table := s
	table.Tables = &lookup.Summary{All: 4 << 30, Rows: 1200, Missed: 1100, Read: 12 << 20}
	none, idle := s, s
	none.Experts = nil
	idle.Tokens, idle.Decodes, idle.Experts = 0, 0, &mixture.Summary{All: 1000 << 20, Room: 1 << 20}
	guessed, notYet := s, s
	more := *s.Experts
	more.Speculation = &mixture.Speculation{State: "won", Read: 30 << 20, Used: 24 << 20}
	guessed.Experts = &more
	blind := s
	blind.Disk = 0
	for name, tc := range map[string]struct {
		s        prefetch.Summary
		dry      bool
		want     []string // parts of the text
		unwanted string
	}{
		"end": {s, false, []string{
			"prefetchd: kept 64 MiB of 64 MiB in memory, streamed 1.0 MiB per token\n",
			"prefetchd: experts: kept 400 MiB of 1000 MiB; 75.0 % hits; 10 MiB read per token\n",
		}, "expected"},
		"table": {table, false, []string{
			"prefetchd: tables of 4.0 GiB: 1,200 rows looked up, of which 1,100 were missing and read: 12 MiB\n",
		}, "expected"},
		"nothing chosen": {idle, false,
			[]string{"prefetchd: experts: kept 0 B of 1000 MiB, room for 1.0 MiB\n"}, "hits"},
		"guessed": {guessed, false, []string{
			"10 MiB read per token; guesses won: 3.0 MiB read per token, 2.4 MiB of it used\n",
		}, "expected"},
		"not guessed": {notYet, false, []string{"10 MiB read per token\n"}, "guesses"},
		"no experts":  {none, false, []string{"streamed 11 MiB per token\n"}, "experts"},
		"dry": {s, true, []string{
			"of 64 MiB that each token reads 64 MiB would be kept and 0 B streamed; " +
				"of 1000 MiB of experts 410 MiB would be kept, in room for 600 MiB",
			"no expectation: it depends on which experts routers choose\n",
		}, "be measured"},
		"no disk":    {blind, true, []string{"the disk could not be measured"}, "depends"},
		"dry, dense": {none, true, []string{"0 B streamed, in room for 600 MiB"}, "experts"},
	} {
		var out bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		err := report(&out, &out, options{}, tc.s)
		if tc.dry {
			out.Reset()
			err = reportDry(cmd, &options{dry: true}, tc.s)
		}
		text := out.String()
		for _, part := range tc.want {
			if err != nil || !strings.Contains(text, part) || strings.Contains(text, tc.unwanted) {
				t.Errorf("%s: %v; got\n%s\nwant %q without %q", name, err, text, part, tc.unwanted)
			}
		}
	}
}
