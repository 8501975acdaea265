package monitor

// This file tests what is said in words.

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tensorcast/prefetch"
)

// A line tells the speed first. A target that computes nothing has
// no speed now.
func TestLine(t *testing.T) {
	now := time.Date(2026, 11, 26, 14, 5, 20, 0, time.Local)
	began := now.Add(-90 * time.Second)
	helping := prefetch.Status{
		Activity: prefetch.Helping, LoopPhase: prefetch.Stream, Since: began,
		Held: 600 << 20, PerToken: 764 << 20, Streamed: 164 << 20, Now: 11.449, Before: 1.25,
	}
	change := func(f func(s *prefetch.Status)) Report {
		s := helping
		f(&s)
		return Report{Target: 12, Status: s}
	}
	for name, tc := range map[string]struct {
		r    Report
		want string
	}{
		"helping": {Report{Status: helping},
			"11.4 tok/s, 1.25 before; keeping 600 MiB of 764 MiB, streaming 164 MiB/token"},
		"not measured before": {change(func(s *prefetch.Status) { s.Before = 0 }),
			"11.4 tok/s; keeping 600 MiB of 764 MiB, streaming 164 MiB/token"},
		"no speed yet": {change(func(s *prefetch.Status) { s.Now = 0 }), "keeping 600 MiB of 764 MiB"},
		"target idle": {Report{Status: helping, IdleSince: now.Add(-13 * time.Second)},
			"target idle since 14:05:07 (13s); last 11.4 tok/s, 1.25 before; keeping 600 MiB of 764 MiB"},
		"target idle, no speed": {func() Report {
			r := change(func(s *prefetch.Status) { s.Now = 0 })
			r.IdleSince = now.Add(-13 * time.Second)
			return r
		}(), "target idle since 14:05:07 (13s); keeping 600 MiB of 764 MiB"},
		"giving back": {change(func(s *prefetch.Status) { s.Activity, s.Why = prefetch.Giving, "/box memory.max" }),
			"11.4 tok/s, 1.25 before; giving back, because memory is short (/box memory.max); " +
				"keeping 600 MiB of 764 MiB, streaming 164 MiB/token"},
		"waiting": {change(func(s *prefetch.Status) {
			*s = prefetch.Status{Activity: prefetch.Waiting, Why: "the target maps no model", Since: began}
		}), "waiting: the target maps no model, for 1m30s"},
		"loading": {change(func(s *prefetch.Status) { s.LoopPhase, s.Now = prefetch.Load, 0 }),
			"reading the model ahead of the target, which loads it; keeping 600 MiB of 764 MiB"},
		"nothing to win": {change(func(s *prefetch.Status) { s.Activity, s.Why = prefetch.Idle, "everything fits" }),
			"idle: everything fits"},
		"--wait": {Report{Began: began, Search: &Search{Names: []string{"llama-server"}}},
			"waiting for llama-server, for 1m30s"},
		"--auto": {Report{Began: began, Search: &Search{All: true}},
			"waiting for processes that compute with ggml, for 1m30s"},
		"--auto with targets": {Report{Began: began, Search: &Search{
			All: true, Names: []string{"llama-server", "llama-cli"},
			Helped: []Process{{12, "llama-server"}, {13, "llama-cli"}}, Waiting: []Process{{14, "llama-cli"}},
		}}, "helping 12 llama-server, 13 llama-cli; waiting for their turn: 14 llama-cli; " +
			"looking for llama-server or llama-cli"},
	} {
		got := tc.r.Line(now)
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		if speed := strings.Index(got, " before"); speed > 60 {
			t.Errorf("%s: the speed is beyond what a narrow terminal shows: %s", name, got)
		}
	}
}

// A description names the target, its model, and the phase; or what is looked for.
func TestDescribe(t *testing.T) {
	now := time.Date(2026, 11, 26, 14, 5, 20, 0, time.Local)
	r := Report{
		PID: 7, Target: 12, Command: "llama-server", Began: now.Add(-time.Minute),
		Models: []string{"/a-1.gguf", "/a-2.gguf"},
		Status: prefetch.Status{
			Activity: prefetch.Comparing, LoopPhase: prefetch.Compare, Since: now.Add(-25 * time.Hour),
		},
	}
	want := []string{
		"12 llama-server, for 1m0s: comparing: tokens without help are measured",
		"    model /a-1.gguf and 1 more; phase compare since 2026-11-25 13:05:20 (25h0m0s)",
	}
	if got := r.Describe(now); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	r.Models, r.Status.LoopPhase = nil, ""
	if got := r.Describe(now); got[1] != "    no model is mapped" {
		t.Errorf("without a model: %q", got)
	}
	for all, want := range map[bool]string{
		true:  "prefetchd --auto (process 7): waiting for processes that compute with ggml, for 1m0s",
		false: "prefetchd --wait (process 7): waiting for a process that computes with ggml, for 1m0s",
	} {
		r.Search = &Search{All: all}
		if got := r.Describe(now); !slices.Equal(got, []string{want}) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
