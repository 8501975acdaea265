package top

// This file tests what becomes of surveys and of keys.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"tensorcast/prefetch"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/monitor"
)

// recorder is a Source that remembers what it was told.
type recorder struct {
	survey monitor.Survey
	err    error
	told   []string
}

func (r *recorder) TakeSurvey() (monitor.Survey, error) { return r.survey, r.err }

func (r *recorder) SetBudget(target int, bytes int64) error {
	r.told = append(r.told, fmt.Sprintf("%d keeps %d MiB", target, bytes/mib))
	return r.err
}

func (r *recorder) SetPaused(target int, paused bool) error {
	r.told = append(r.told, fmt.Sprintf("%d paused %v", target, paused))
	return r.err
}

// press presses a key, and takes in what came of it.
func press(m *Model, k tea.Key) {
	if _, cmd := m.Update(tea.KeyPressMsg(k)); cmd != nil {
		m.Update(cmd())
	}
}

func letter(c rune) tea.Key { return tea.Key{Code: c, Text: string(c)} }

// A survey is asked for at once, and again a second after each answer.
func TestPolling(t *testing.T) {
	source := &recorder{survey: reports(dense())}
	m := New(source, 80, 24)
	if m.IsEmpty() != true || !strings.Contains(m.Frame(), "asking") {
		t.Errorf("before the first survey:\n%s", m.Frame())
	}
	_, next := m.Update(m.Init()())
	if next == nil || m.IsEmpty() {
		t.Error("no further survey is asked for, or nothing was seen")
	}
	begun := time.Now()
	if _, again := m.Update(next()); again == nil || time.Since(begun) < Interval*9/10 {
		t.Errorf("the next survey comes after %v, want it a second later", time.Since(begun))
	}
	source.err = errors.New("ask prefetchd at \x1b[31m/run: no")
	m.Update(m.Survey())
	if frame := m.Frame(); m.Err() == nil || !strings.Contains(frame, `\x1b[31m/run: no`) {
		t.Errorf("an error is not told, or not made visible:\n%s", frame)
	}
}

// Keys tell the prefetchd that is looked at what to do.
func TestKeys(t *testing.T) {
	budgeted := dense()
	budgeted.Detail.Budget, budgeted.Detail.Usable, budgeted.Detail.Bound = 300*mib, 300*mib, "budget"
	nearly := dense()
	nearly.Detail.Budget, nearly.Detail.Usable, nearly.Detail.Bound = 640*mib, 640*mib, "budget"
	tiny := dense()
	tiny.Detail.Budget, tiny.Detail.Usable = 50*mib, 50*mib
	paused := dense()
	paused.Paused = true
	unknown := dense()
	unknown.Detail = nil
	search := monitor.Report{PID: 812, Search: &monitor.Search{All: true}}
	for name, tc := range map[string]struct {
		survey monitor.Survey
		key    tea.Key
		told   string
		says   string
	}{
		"less":               {reports(dense()), letter('-'), "26772 keeps 623 MiB", "623 MiB"},
		"less again":         {reports(budgeted), letter('-'), "26772 keeps 253 MiB", "253 MiB"},
		"never nothing":      {reports(tiny), letter('-'), "26772 keeps 47 MiB", "47 MiB"},
		"more":               {reports(budgeted), letter('+'), "26772 keeps 347 MiB", "347 MiB"},
		"more than the room": {reports(nearly), letter('='), "26772 keeps 0 MiB", "no budget any more"},
		"more without one":   {reports(dense()), letter('+'), "", "/box memory.max"},
		"not known yet":      {reports(unknown), letter('-'), "", "not known"},
		"pause":              {reports(dense()), letter('p'), "26772 paused true", "left alone"},
		"resume":             {reports(paused), letter('p'), "26772 paused false", "helped again"},
		"nobody":             {reports(), letter('p'), "", "no prefetchd"},
		"a search":           {reports(search), letter('-'), "", "looks for processes"},
	} {
		source := &recorder{}
		m := New(source, 80, 24)
		looks(m, tc.survey)
		press(m, tc.key)
		if got := strings.Join(source.told, ", "); got != tc.told || !strings.Contains(m.Frame(), tc.says) {
			t.Errorf("%s: %q was told, want %q, and %q in\n%s", name, got, tc.told, tc.says, m.Frame())
		}
	}
	source := &recorder{err: errors.New("no\x1b[2J")}
	m := New(source, 80, 24)
	looks(m, reports(dense()))
	press(m, letter('p'))
	if !strings.Contains(m.Frame(), `no\x1b[2J`) {
		t.Errorf("what went wrong is not told:\n%s", m.Frame())
	}
	for _, k := range []tea.Key{letter('q'), {Code: tea.KeyEscape}, {Code: 'c', Mod: tea.ModCtrl}} {
		_, cmd := m.Update(tea.KeyPressMsg(k))
		if cmd == nil {
			t.Errorf("%v does not quit", k)
		} else if _, quits := cmd().(tea.QuitMsg); !quits {
			t.Errorf("%v does not quit", k)
		}
	}
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
	if v := m.View(); !v.AltScreen || strings.Count(v.Content, "\n") != 29 {
		t.Errorf("a view of %d lines, want 30 on a screen of its own", strings.Count(v.Content, "\n")+1)
	}
}

// Of several prefetchds one is looked at, also when others come and go. One that has ended is told as such.
func TestFleet(t *testing.T) {
	first, second := dense(), experts()
	m := New(nil, 80, 24)
	see := func(after time.Duration, s monitor.Survey) { m.Update(surveyed{s, noon.Add(after), nil}) }
	see(0, reports(second))
	see(time.Second, reports(first, second))
	if m.selected.report.Target != second.Target || len(m.all) != 2 || m.all[0].report.Target != first.Target {
		t.Fatalf("looks at %d of %d, want still at %d", m.selected.report.Target, len(m.all), second.Target)
	}
	press(m, tea.Key{Code: tea.KeyTab})
	if m.selected.report.Target != first.Target {
		t.Errorf("tab looks at %d, want %d", m.selected.report.Target, first.Target)
	}
	press(m, tea.Key{Code: tea.KeyTab, Mod: tea.ModShift})

	see(2*time.Second, monitor.Survey{Reports: []monitor.Report{first}, Silent: []int{second.Target}})
	if !strings.Contains(m.Frame(), "does not answer") || len(m.all) != 2 {
		t.Errorf("one that hangs:\n%s", m.Frame())
	}
	see(3*time.Second, monitor.Survey{Reports: []monitor.Report{first}, Left: []int{second.Target}})
	if frame := m.Frame(); !strings.Contains(frame, "was killed, as was seen at 12:00:03") {
		t.Errorf("one that was killed:\n%s", frame)
	}
	source := &recorder{}
	m.source = source
	press(m, letter('p'))
	if len(source.told) > 0 || !strings.Contains(m.Frame(), "has ended") {
		t.Errorf("%q was told to one that was killed", source.told)
	}
	see(time.Hour, reports(first)) // it is looked at, and stays
	if len(m.all) != 2 {
		t.Errorf("%d prefetchds, want the killed one besides", len(m.all))
	}
	again := second
	again.PID, again.Began = 40000, noon.Add(time.Hour)
	see(time.Hour+time.Second, reports(first, again))
	if len(m.all) != 2 || m.selected.report.PID != again.PID || !m.selected.gone.IsZero() {
		t.Errorf("looks at process %d of %d, want at the new helper of the same target", m.selected.report.PID, len(m.all))
	}
	press(m, tea.Key{Code: tea.KeyTab})
	see(time.Hour+2*time.Second, reports(first))
	if len(m.all) != 2 || !strings.Contains(m.Frame(), "has ended") {
		t.Errorf("one that has ended is not told of:\n%s", m.Frame())
	}
	see(2*time.Hour, reports(first))
	if len(m.all) != 1 {
		t.Errorf("%d prefetchds, want the ended one forgotten after a while", len(m.all))
	}
}

// The list of many prefetchds is bounded, and has the one that is looked at.
func TestManyPrefetchds(t *testing.T) {
	var all []monitor.Report
	for i := range 20 {
		r := dense()
		r.Target += i
		all = append(all, r)
	}
	m := New(nil, 80, 24)
	looks(m, reports(all...))
	for range all {
		head := m.head(80)
		if len(head) != 1+mostListed || !strings.Contains(strings.Join(head, "\n"), "▸") {
			t.Fatalf("%d lines, want %d with the one that is looked at:\n%s", len(head), 1+mostListed,
				strings.Join(head, "\n"))
		}
		press(m, tea.Key{Code: tea.KeyTab})
	}
}

// A report that lies controls no terminal, and makes no frame fail.
func TestLies(t *testing.T) {
	const evil = "a\x1b[2Jb\u202ec\nd"
	r := experts()
	r.Command, r.Models = evil, []string{evil}
	r.Status.Why, r.Status.Level, r.Status.Activity, r.Status.LoopPhase = evil, evil, evil, evil
	r.Detail.Bound = evil
	r.Detail.Happenings = []prefetch.Happening{{What: evil}}
	r.Status.Held, r.Status.Needs, r.Detail.Window, r.Detail.Usable = -1<<63, 1<<63-1, -5, 1<<62
	r.Status.Now, r.Status.Bound = 1e300, 1e-300
	search := monitor.Report{PID: 1, Search: &monitor.Search{
		Names: []string{evil}, Helped: []monitor.Process{{PID: 1, Name: evil}},
	}}
	for name, change := range map[string]func(d *prefetch.Detail){
		"as it is":         func(*prefetch.Detail) {},
		"a short strip":    func(d *prefetch.Detail) { d.Strip.Kept = nil },
		"an empty strip":   func(d *prefetch.Detail) { d.Strip = &prefetch.Strip{} },
		"a place outside":  func(d *prefetch.Detail) { d.Strip.At = 1 << 62 },
		"too few experts":  func(d *prefetch.Detail) { d.Experts.Use = nil },
		"no experts":       func(d *prefetch.Detail) { d.Experts = &mixture.Heat{} },
		"many rows":        func(d *prefetch.Detail) { d.Experts.Rows, d.Experts.Columns = 1<<62, 4 },
		"a strip of cells": func(d *prefetch.Detail) { d.Strip.Cell, d.Strip.Bytes = 1, 1<<63-1 },
	} {
		of := r
		d := *r.Detail
		strip, heat := *d.Strip, *d.Experts
		d.Strip, d.Experts = &strip, &heat
		change(&d)
		of.Detail = &d
		m := New(nil, 80, 40)
		looks(m, reports(of, search), reports(of, search))
		for range 2 {
			for _, text := range []string{m.Frame(), m.Once()} {
				if strings.Contains(text, "\x1b[2J") || strings.Contains(text, "\u202e") {
					t.Errorf("%s: a name controls the terminal:\n%q", name, text)
				}
			}
			press(m, tea.Key{Code: tea.KeyTab})
		}
	}
}

// What somebody does not look at costs nothing that grows.
func TestFleetIsBounded(t *testing.T) {
	m := New(nil, 80, 24)
	for i := range 1000 {
		r := dense()
		r.PID, r.Target = 1000+i, 1000+i
		m.Update(surveyed{reports(r), noon.Add(time.Duration(i) * time.Second), nil})
	}
	if n := len(m.all); n > 4+int(goneTime/time.Second) {
		t.Errorf("%d prefetchds are remembered", n)
	}
	if !slices.Contains(m.all, m.selected) {
		t.Error("the one that is looked at is none of them")
	}
}

// BenchmarkFrame makes a frame of a mixture on a large terminal.
func BenchmarkFrame(b *testing.B) {
	m := New(nil, 200, 60)
	scenes()["mixture"](m)
	for b.Loop() {
		m.Frame()
	}
}
