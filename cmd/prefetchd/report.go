package main

// This file says in the end what was gained, and what was done for it.

import (
	"fmt"
	"io"
	"math"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
	"tensorcast/prefetch"
	"tensorcast/prefetch/room"
)

// report prints the summary: as JSON to one writer, as text to the other.
func report(asJSON, asText io.Writer, o options, s prefetch.Summary) error {
	if s.Level == room.LevelBudget {
		s.Level = "--budget"
	}
	if o.json {
		return cli.WriteJSON(asJSON, s)
	}
	if s.PerToken == 0 && o.helper {
		return nil // a process that only starts others is one of many
	}
	for _, line := range describeSummary(&s, o.verbose) {
		if _, err := fmt.Fprintf(asText, "prefetchd: %s\n", visible.Line(line)); err != nil {
			return err
		}
	}
	return nil
}

// describeSummary says what was gained in its first line, and what was done behind it. detailed adds
// where the memory went. There are no lines if there is nothing to say that was not said before.
func describeSummary(s *prefetch.Summary, detailed bool) (lines []string) {
	switch {
	case s.Idle != "" && s.Decodes == 0:
		if s.Tables != nil && s.Tables.Read > 0 {
			return []string{aboutTables(s)}
		}
		return nil // that was reported before
	case s.PerToken == 0:
		return []string{"no decode of the target was seen as a whole: nothing was learned"}
	}
	lines = append(lines, aboutGain(s))
	if s.Idle != "" {
		return append(lines, "in the end nothing is kept: "+s.Idle)
	}
	lines = append(lines, aboutBytes(s))
	if s.Experts != nil {
		lines = append(lines, aboutExperts(s))
		if h := s.Experts.Hot; h != nil && h.Experts > 0 {
			lines = append(lines, h.String())
		}
	}
	if s.Tables != nil && (detailed || s.Tables.Read > 0) {
		lines = append(lines, aboutTables(s))
	}
	if line := aboutReadahead(s.Readahead); line != "" && (detailed || s.Experts != nil && s.Readahead.Why != "") {
		lines = append(lines, line)
	}
	if detailed {
		lines = append(lines, aboutMemory(s)...)
	}
	return lines
}

// aboutGain says how fast the target was with help and without. Where that was not measured it says so. Of the speed of
// the whole run and that of its last decodes the smaller one counts. The machine may have been busier when tokens
// without help were measured than it was in the end, and decodes of several slots have more tokens than those of one.
func aboutGain(s *prefetch.Summary) string {
	if s.Decodes == 0 {
		return "the target computed nothing with help, so nothing was gained"
	}
	unit, mean, count := "tok/s", s.TokensPerSec, plural(s.Tokens, "token")
	if prefetch.ReadsPrompts(s.Tokens, s.Decodes) {
		unit, mean = "prompt tok/s", s.PromptTokensPerSec
		count = fmt.Sprintf("%s, %s per second",
			plural(s.Decodes, "decode"), prefetch.FormatSpeed(s.DecodesPerSec))
	}
	if s.Before <= 0 || s.Lately <= 0 {
		return fmt.Sprintf("%s %s with help (%s); none was measured without, so the gain is not known",
			prefetch.FormatSpeed(mean), unit, count)
	}
	speed, also := mean, ", "+prefetch.FormatSpeed(s.Lately)+" lately"
	if s.Lately < mean {
		speed, also = s.Lately, ", "+prefetch.FormatSpeed(mean)+" on average"
	}
	if math.Abs(s.Lately-mean) < 0.05*mean {
		also = ""
	}
	return fmt.Sprintf("%s %s, %s before: %s (%s%s)", prefetch.FormatSpeed(speed), unit,
		prefetch.FormatSpeed(s.Before), describeGain(speed/s.Before), count, also)
}

// describeGain says how many times as fast something is.
func describeGain(times float64) string {
	switch {
	case times < 0.98:
		return fmt.Sprintf("no gain, %.2f times as fast", times)
	case times < 1.02:
		return "no gain"
	case times < 10:
		return fmt.Sprintf("%.1f times as fast", times)
	}
	return fmt.Sprintf("%.0f times as fast", times)
}

// aboutBytes says what was kept and what was read each time.
func aboutBytes(s *prefetch.Summary) string {
	streamed := s.Streamed
	if s.Experts != nil {
		streamed -= s.Experts.Read // experts have a line of their own
	}
	line := fmt.Sprintf("kept %s of %s in memory", size(s.Pinned), size(s.PerToken))
	if n, what := timesRead(s); n > 0 {
		line += fmt.Sprintf(", streamed %s per %s", size(streamed/int64(n)), what)
	}
	return line
}

// timesRead is how often the target has read its weights with help, and what for. With several slots, a decode
// generates several tokens.
func timesRead(s *prefetch.Summary) (n int, what string) {
	if prefetch.ReadsPrompts(s.Tokens, s.Decodes) || s.Decodes < s.Tokens {
		return s.Decodes, "decode"
	}
	return s.Tokens, "token"
}

// aboutMemory says what bounded the help.
func aboutMemory(s *prefetch.Summary) []string {
	line := fmt.Sprintf("%s streamed in all, %d late; room for %s (%s); %s",
		size(s.Streamed), s.Late, size(s.Room), s.Level, s.Queue)
	if s.Expected > 0 {
		line += fmt.Sprintf("; %s tok/s expected", prefetch.FormatSpeed(s.Expected))
	}
	if s.Streamed == 0 {
		return []string{line}
	}
	b := s.Beyond
	return append([]string{line},
		fmt.Sprintf("memory that keeps nothing: window %s, reserve %s, left free %s, prefetchd itself %s, unused %s",
			size(b.Window), size(b.Reserve), size(b.LeftFree), size(b.Own), size(b.Unused)),
		fmt.Sprintf("read again per token: needed twice %s, taken by the kernel %s, swept %s",
			size(b.Twice), size(b.Taken), size(b.Swept)))
}

// aboutExperts says what was done for a mixture's experts.
func aboutExperts(s *prefetch.Summary) string {
	x := s.Experts
	about := fmt.Sprintf("experts: kept %s of %s", size(x.Kept), size(x.All))
	n, what := timesRead(s)
	if x.Chosen == 0 || n == 0 {
		return about + ", room for " + size(x.Room)
	}
	about += fmt.Sprintf("; %.1f %% hits; %s read per %s",
		100*float64(x.Chosen-x.Missed)/float64(x.Chosen), size(x.Read/int64(n)), what)
	if g := x.Speculation; g != nil {
		about += fmt.Sprintf("; guesses %s: %s read per %s, %s of it used",
			g.State, size(g.Read/int64(n)), what, size(g.Used/int64(n)))
	}
	return about
}

// aboutTables says what was done for tables of which tokens look up rows.
func aboutTables(s *prefetch.Summary) string {
	x := s.Tables
	return fmt.Sprintf("tables of %s: %s looked up, of which %s were missing and read: %s",
		size(x.All), plural(int(x.Rows), "row"), humanize.Comma(x.Missed), size(x.Read))
}

// plural is a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return humanize.Comma(int64(n)) + " " + thing + "s"
}
