package main

// This file says in the end what was gained, and what was done for it.

import (
	"fmt"
	"io"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/cli"
	"tensorcast/internal/visible"
	"tensorcast/prefetch"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/room"
	"tensorcast/prefetch/serve"
)

// report prints the summary: as JSON to one writer, as text to the other.
func report(asJSON, asText io.Writer, o options, s serve.Summary) error {
	if s.Level == room.LevelBudget {
		s.Level = "--budget"
	}
	if o.json {
		return cli.WriteJSON(asJSON, s)
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
func describeSummary(s *serve.Summary, detailed bool) (lines []string) {
	switch {
	case s.Idle != "" && s.Tokens == 0:
		return nil // that was reported before
	case s.PerToken == 0:
		return []string{"the target generated no token: nothing was learned"}
	}
	lines = append(lines, aboutGain(s))
	if s.Idle != "" {
		lines = append(lines, "in the end it was idle: "+s.Idle)
	}
	lines = append(lines, aboutBytes(s))
	if s.Experts != nil {
		lines = append(lines, aboutExperts(s.Experts, s.Tokens))
	}
	if line := aboutReadahead(s.Readahead); line != "" && (detailed || s.Experts != nil && s.Readahead.Why != "") {
		lines = append(lines, line)
	}
	if detailed {
		lines = append(lines, aboutMemory(s)...)
	}
	return lines
}

// aboutGain says how fast the target was with help and without. Where that was not measured it says so.
func aboutGain(s *serve.Summary) string {
	if s.Tokens == 0 {
		return "no token was generated with help, so nothing was gained"
	}
	speed := prefetch.FormatSpeed(s.TokensPerSec) + " tok/s"
	count := plural(s.Tokens, "token")
	if s.Before <= 0 {
		return fmt.Sprintf("%s with help (%s); no token was measured without help, so the gain is not known",
			speed, count)
	}
	line := fmt.Sprintf("%s, %s before: ", speed, prefetch.FormatSpeed(s.Before))
	switch gain := s.TokensPerSec / s.Before; {
	case gain < 0.98:
		line += fmt.Sprintf("no gain, %.2f times as fast", gain)
	case gain < 1.02:
		line += "no gain"
	case gain < 10:
		line += fmt.Sprintf("%.1f times as fast", gain)
	default:
		line += fmt.Sprintf("%.0f times as fast", gain)
	}
	return line + " (" + count + ")"
}

// aboutBytes says what was kept and what was read for each token.
func aboutBytes(s *serve.Summary) string {
	streamed := s.Streamed
	if s.Experts != nil {
		streamed -= s.Experts.Read // experts have a line of their own
	}
	line := fmt.Sprintf("kept %s of %s in memory", size(s.Pinned), size(s.PerToken))
	if s.Tokens > 0 {
		line += fmt.Sprintf(", streamed %s per token", size(streamed/int64(s.Tokens)))
	}
	return line
}

// aboutMemory says what bounded the help.
func aboutMemory(s *serve.Summary) []string {
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

// aboutExperts describes what was done for a mixture's experts while a number of tokens was
// generated.
func aboutExperts(x *mixture.Summary, tokens int) string {
	about := fmt.Sprintf("experts: kept %s of %s", size(x.Kept), size(x.All))
	if x.Chosen == 0 || tokens == 0 {
		return about + ", room for " + size(x.Room)
	}
	about += fmt.Sprintf("; %.1f %% hits; %s read per token",
		100*float64(x.Chosen-x.Missed)/float64(x.Chosen), size(x.Read/int64(tokens)))
	if s := x.Speculation; s != nil {
		about += fmt.Sprintf("; guesses %s: %s read per token, %s of it used",
			s.State, size(s.Read/int64(tokens)), size(s.Used/int64(tokens)))
	}
	return about
}

// plural is a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return humanize.Comma(int64(n)) + " " + thing + "s"
}
