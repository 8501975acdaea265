package monitor

// This file tests what a live view asks for, and what it may change.

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tensorcast/prefetch"
)

// A detail is made only while somebody looks at it, and is told only to those who ask.
func TestDetail(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s := listen(t, dir, os.Getpid())
	defer s.Close()
	now := time.Now()
	if s.WantsDetail(now, time.Second) {
		t.Error("a detail is wanted though nobody has asked")
	}
	first, err := TakeSurvey(t.Context(), dir)
	if err != nil || len(first.Reports) != 1 || first.Reports[0].Detail != nil {
		t.Fatalf("%+v, %v; want one report without a detail", first, err)
	}
	if now = time.Now(); !s.WantsDetail(now, time.Second) {
		t.Error("no detail is wanted though somebody has asked")
	}
	s.SetDetail(now, &prefetch.Detail{Bound: "host", Strip: &prefetch.Strip{Kept: []byte{1, 255}}})
	if s.WantsDetail(now.Add(time.Second/2), time.Second) || !s.WantsDetail(now.Add(time.Second), time.Second) {
		t.Error("want the next detail when the last one is a second old")
	}
	if s.WantsDetail(now.Add(detailTime+time.Second), time.Second) {
		t.Error("a detail is wanted though nobody has asked for a while")
	}
	second, err := TakeSurvey(t.Context(), dir)
	if err != nil || len(second.Reports) != 1 {
		t.Fatalf("%+v, %v; want one report", second, err)
	}
	d := second.Reports[0].Detail
	if d == nil || d.Bound != "host" || d.Strip == nil || !slices.Equal(d.Strip.Kept, []byte{1, 255}) {
		t.Errorf("detail %+v, want what was set", d)
	}
	r, err := Ask(t.Context(), dir, os.Getpid())
	if err != nil || r.Detail != nil || r.OwnRead < 0 || r.TargetRead < 0 {
		t.Errorf("Ask = %+v, %v; want no detail, and what was read from disk", r, err)
	}
	if old := s.currentDetail(time.Now().Add(2 * detailTime)); old != nil {
		t.Errorf("detail %+v of long ago, want none", old)
	}
}

// A survey tells those that were killed from those that hang and those that have ended, and waits for none.
func TestTakeSurvey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if s, err := TakeSurvey(t.Context(), dir); err != nil || len(s.Reports) != 0 {
		t.Errorf("without a directory: %+v, %v; want none", s, err)
	}
	alive, ended := listen(t, dir, 5), listen(t, dir, 6)
	defer alive.Close()
	if err := ended.Close(); err != nil {
		t.Fatal(err)
	}
	search, err := ListenSearch(dir, Search{All: true}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer search.Close()
	for _, name := range []string{"7.sock", "search-7.sock", "x.sock"} {
		leaveSocket(t, filepath.Join(dir, name))
	}
	s, err := TakeSurvey(t.Context(), dir)
	if err != nil || len(s.Reports) != 2 || s.Reports[0].Target != 5 || s.Reports[1].Search == nil ||
		!slices.Equal(s.Left, []int{7}) || len(s.Silent) != 0 {
		t.Errorf("%+v, %v; want those of 5 and of the search, and that the one of 7 was killed", s, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "9.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err = TakeSurvey(t.Context(), dir)
	if len(s.Reports) != 2 || err == nil && !slices.Equal(s.Left, []int{7, 9}) {
		t.Errorf("%+v, %v; want 2 reports beside what is no socket", s, err)
	}
}

// Those who may enter the directory can have a target left alone, and can end a budget. Nonsense is refused.
func TestSetPaused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	told := make(chan string, 1)
	s, err := Listen(dir, 5, Controls{
		Budget: func(bytes int64) { told <- strconv.FormatInt(bytes, 10) },
		Pause:  func(paused bool) { told <- strconv.FormatBool(paused) },
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, want := range []bool{true, false} {
		if err := SetPaused(t.Context(), dir, 5, want); err != nil || <-told != strconv.FormatBool(want) {
			t.Errorf("SetPaused(%v): %v, or something else was told", want, err)
		}
		if r, err := Ask(t.Context(), dir, 5); err != nil || r.Paused != want {
			t.Errorf("the report says paused: %v, %v, want %v", r.Paused, err, want)
		}
	}
	if err := SetBudget(t.Context(), dir, 5, 0); err != nil || <-told != "0" {
		t.Errorf("SetBudget(0): %v, or another budget was set", err)
	}
	if err := SetPaused(t.Context(), dir, 6, true); err == nil || !strings.Contains(err.Error(), "process 6") {
		t.Errorf("of a target without a prefetchd: %v, want an error that names process 6", err)
	}
	socket := filepath.Join(dir, "5.sock")
	for _, text := range []string{"", "perhaps", strings.Repeat("true", 100)} {
		if err := request(t.Context(), socket, http.MethodPut, "/paused", strings.NewReader(text), nil); err == nil {
			t.Errorf("%q was taken, want an error", text)
		}
	}
}

// The line of a terminal says what matters most in 80 columns while a target is helped.
func TestBrief(t *testing.T) {
	now := time.Date(2026, 11, 26, 14, 5, 20, 0, time.Local)
	helping := prefetch.Status{
		Activity: prefetch.Helping, LoopPhase: prefetch.Stream, Since: now,
		Held: 600 << 20, PerToken: 764 << 20, Needs: 764 << 20, Streamed: 164 << 20, Now: 11.449, Before: 1.25,
	}
	mixture := helping
	mixture.Experts, mixture.Needs = 400<<20, 5<<30
	giving := helping
	giving.Activity, giving.Why = prefetch.Giving, "/box memory.max"
	waiting := prefetch.Status{Activity: prefetch.Waiting, Why: "the target maps no model", Since: now}
	loading := helping
	loading.LoopPhase = prefetch.Load
	for name, tc := range map[string]struct {
		s    prefetch.Status
		disk float64
		want string
	}{
		"helping":      {helping, 1.9e9, "11.4 tok/s, 1.25 before; kept 600 MiB of 764 MiB; disk 1.8 GiB/s"},
		"no rate yet":  {helping, -1, "11.4 tok/s, 1.25 before; kept 600 MiB of 764 MiB"},
		"a mixture":    {mixture, 0, "11.4 tok/s, 1.25 before; kept 1000 MiB of 5.0 GiB; disk 0 B/s"},
		"short memory": {giving, -1, "11.4 tok/s, 1.25 before; kept 600 MiB of 764 MiB; memory is short: /box memory.max"},
		"waiting":      {waiting, 1e9, "waiting: the target maps no model, for 0s"},
		"loading": {loading, 1e9, "reading the model ahead of the target, which loads it; " +
			"keeping 600 MiB of 764 MiB, streaming 164 MiB/token"},
	} {
		r := Report{Status: tc.s}
		if got := r.Brief(now, tc.disk); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// A rate is measured over a second or more, for one prefetchd after the other.
func TestDisk(t *testing.T) {
	now := time.Date(2026, 11, 26, 14, 5, 20, 0, time.Local)
	var d Disk
	for _, tc := range []struct {
		pid     int
		seconds float64
		read    int64
		want    float64
	}{
		{1 << 30, 0, 100, -1}, {1 << 30, 0.5, 500, -1}, {1 << 30, 2, 1100, 500}, {1 << 30, 2.5, 9000, 500},
		{1 << 30, 3, 1200, 100}, {1 << 29, 4, 1e9, -1}, {1 << 29, 5, 1e9 + 7, 7}, {1 << 29, 6, -1, -1},
		{1 << 29, 7, 1e9, -1},
	} {
		at := now.Add(time.Duration(tc.seconds * float64(time.Second)))
		if got := d.Read(&Report{PID: tc.pid, OwnRead: tc.read}, at); got != tc.want {
			t.Errorf("process %d after %v s: %v, want %v", tc.pid, tc.seconds, got, tc.want)
		}
	}
	if d.Read(&Report{PID: os.Getpid()}, now); d.read < 0 {
		t.Errorf("%d bytes read by this process, want them to be known", d.read)
	}
}
