package pressure

// This file tests the measurement of the first token, on the scripted target.

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// firstOf is a configuration that runs the script; what goes to the script.
func firstOf(t *testing.T, what string) FirstConfig {
	t.Helper()
	c := scripted(t)
	return FirstConfig{Model: c.Model, Target: append(c.Target, what), Repeat: 2, Limit: 200 << 20, Disk: c.Disk,
		Starters: []Starter{{Name: "plain"}}}
}

// A start takes the time of its command and of its target, and reads what is not in memory.
func TestFirst(t *testing.T) {
	cfg := firstOf(t, "")
	cfg.Starters = append(cfg.Starters, Starter{"slow", `sh -c 'cat "$3" "$3" > /dev/null; sleep 0.4; exec "$@"' sh`})
	r, err := MeasureFirst(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, run := range r.Runs {
		names = append(names, run.Starter)
		read := int64(0) // the script reads its model after the first mark
		if run.Starter == "slow" {
			read = scriptModel
		}
		if run.FirstMs <= 0 || run.SecondMs <= run.FirstMs || (run.Starter == "slow") != (run.FirstMs > 400) ||
			run.Read < read || run.Text != "same" || run.Own() != 12 {
			t.Errorf("%+v", run)
		}
	}
	if got := strings.Join(names, " "); got != "plain slow slow plain" || r.BW <= 0 || r.Limit != 200<<20 {
		t.Errorf("%s: %+v; want plain slow slow plain, a bandwidth and the limit", got, r)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || strings.Count(text.String(), "slow") != 1 {
		t.Errorf("%v: %s\nwant one row named slow", err, text.String())
	}
}

// Failures are reported, and processes that still run are ended.
func TestFirstFails(t *testing.T) {
	for what, says := range map[string]string{"fail": "no such weight", "garbage": "first token",
		"unmarked": "first token"} {
		if r, err := MeasureFirst(t.Context(), firstOf(t, what)); err == nil ||
			!strings.Contains(err.Error(), says) || r == nil || !r.Interrupted {
			t.Errorf("%s: %+v, %v; want an interrupted report and an error with %q", what, r, err, says)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	cfg := firstOf(t, "hang")
	cfg.Starters[0].Command = `sh -c 'trap "kill %1; exit 1" TERM; "$@" & wait' sh`
	begun := time.Now()
	if _, err := MeasureFirst(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) ||
		time.Since(begun) > 30*time.Second {
		t.Errorf("%v after %v, want a passed deadline within 30 s", err, time.Since(begun))
	}
}

// Without a limit the file is read once. With one, each pass reads again what has no room.
func TestNeeded(t *testing.T) {
	for name, tc := range map[string]struct {
		r    FirstReport
		want int64
	}{
		"no limit":       {FirstReport{Bytes: 1000, Own: 50}, 1000},
		"limit":          {FirstReport{Bytes: 1000, Own: 50, Limit: 850}, 1400},
		"roomy":          {FirstReport{Bytes: 1000, Own: 50, Limit: 2000}, 1000},
		"own is unknown": {FirstReport{Bytes: 1000, Limit: 850}, 1000},
	} {
		if got := tc.r.Needed(); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
