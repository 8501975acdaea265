package top

// This file takes messages: surveys, keys, and the terminal's size.

import (
	"fmt"
	"slices"
	"time"

	"charm.land/bubbles/v2/help"
	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"
	"github.com/dustin/go-humanize"

	"tensorcast/internal/visible"
	"tensorcast/prefetch/monitor"
)

const (
	// Interval is how often prefetchds are asked.
	Interval = time.Second
	// noticeTime is how long it is told what came of a key.
	noticeTime = 5 * time.Second
	// A budget changes by a budgetShare of the model, or by leastBudgetStep bytes where that is more. It is never less
	// than one step.
	budgetShare     = 16
	leastBudgetStep = 32 << 20
)

// Model is the live view. It is a tea.Model. The zero value is not usable: see New.
type Model struct {
	source        Source
	width, height int // of the terminal, in cells; a height of 0 is not bounded

	all      fleet
	selected *watched // nil if there is none
	now      time.Time
	asked    bool  // a survey was taken
	trouble  error // what was wrong with the last one

	notice   string // what came of a key,
	noticeAt time.Time
	explains bool // it is shown what is what

	keys keyMap
	help help.Model

	frame string // as it was made last; empty if something has changed since
}

// New makes a Model of so many columns and rows, until the terminal says otherwise.
func New(source Source, width, height int) *Model {
	m := &Model{source: source, width: width, height: height, keys: newKeyMap(), help: help.New()}
	m.help.Styles = helpStyles()
	return m
}

// surveyed is a survey that was taken, as a message.
type surveyed struct {
	monitor.Survey
	at  time.Time
	err error
}

// due says that it is time for the next survey, as a message.
type due struct{}

// answered is what came of a key, as a message.
type answered struct{ text string }

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return m.Survey }

// Survey asks all prefetchds. The message that it returns is for Update.
func (m *Model) Survey() tea.Msg {
	s, err := m.source.TakeSurvey()
	return surveyed{s, time.Now(), err}
}

// IsEmpty says whether no prefetchd was seen.
func (m *Model) IsEmpty() bool { return len(m.all) == 0 }

// Err is what was wrong with the last survey.
func (m *Model) Err() error { return m.trouble }

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	if _, isDue := msg.(due); !isDue {
		m.frame = ""
	}
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case surveyed:
		m.take(msg)
		return m, tea.Tick(Interval, func(time.Time) tea.Msg { return due{} })
	case due:
		return m, m.Survey
	case answered:
		m.notice, m.noticeAt = visible.Line(msg.text), m.now
	case tea.KeyPressMsg:
		return m, m.press(msg)
	}
	return m, nil
}

// take takes in a survey.
func (m *Model) take(s surveyed) {
	m.now, m.asked, m.trouble = s.at, true, s.err
	m.all = m.all.update(s.Survey, s.at, m.selected)
	if i := slices.Index(m.all, m.selected); i >= 0 {
		return
	}
	was := m.selected
	if m.selected = nil; len(m.all) == 0 {
		return
	}
	m.selected = m.all[0]
	if was != nil { // another prefetchd may help the same target now
		if i := slices.IndexFunc(m.all, func(w *watched) bool { return w.report.Target == was.report.Target }); i >= 0 {
			m.selected = m.all[i]
		}
	}
}

// press does what a key is for.
func (m *Model) press(k tea.KeyPressMsg) tea.Cmd {
	switch {
	case key.Matches(k, m.keys.quit):
		return tea.Quit
	case key.Matches(k, m.keys.suspend):
		return tea.Suspend
	case key.Matches(k, m.keys.explain):
		m.explains = !m.explains
	case key.Matches(k, m.keys.next):
		m.selectNeighbour(1)
	case key.Matches(k, m.keys.before):
		m.selectNeighbour(-1)
	case key.Matches(k, m.keys.more):
		return m.changeBudget(1)
	case key.Matches(k, m.keys.less):
		return m.changeBudget(-1)
	case key.Matches(k, m.keys.pause):
		return m.pauseOrResume()
	}
	return nil
}

// selectNeighbour looks at the prefetchd so many places further on.
func (m *Model) selectNeighbour(places int) {
	if n := len(m.all); n > 0 {
		m.selected = m.all[(slices.Index(m.all, m.selected)+places+n)%n]
	}
}

// say has a text shown for some seconds.
func say(format string, args ...any) tea.Cmd {
	return func() tea.Msg { return answered{fmt.Sprintf(format, args...)} }
}

// helped is the prefetchd that is looked at, if it can be told something; otherwise nil, and why says why not.
func (m *Model) helped() (w *watched, why tea.Cmd) {
	switch w := m.selected; {
	case w == nil:
		return nil, say("there is no prefetchd to be told that")
	case !w.gone.IsZero():
		return nil, say("that prefetchd has ended")
	case w.report.Target == 0:
		return nil, say("this one looks for processes: choose the prefetchd of one of them with tab")
	}
	return m.selected, nil
}

// changeBudget lets the prefetchd keep more of the model, or less, by so many steps.
func (m *Model) changeBudget(steps int64) tea.Cmd {
	w, why := m.helped()
	if w == nil {
		return why
	}
	d := w.report.Detail
	if d == nil || d.Usable <= 0 && d.Budget == 0 {
		return say("what is kept now is not known yet")
	}
	step := max(w.report.Status.Needs/budgetShare, leastBudgetStep) >> 20 << 20
	now := d.Budget
	if now == 0 || now > d.Usable { // something else bounds what is kept
		if steps > 0 {
			return say("there is no budget that could grow: %s bounds what is kept", d.Bound)
		}
		now = d.Usable
	}
	target, room := w.report.Target, w.report.Status.Room
	budget := max(now+steps*step, step)
	if steps > 0 && room > 0 && budget >= room {
		budget = 0
	}
	return func() tea.Msg {
		if err := m.source.SetBudget(target, budget); err != nil {
			return answered{err.Error()}
		}
		if budget == 0 {
			return answered{"no budget any more: as much is kept as there is room for"}
		}
		return answered{"a budget of " + humanize.IBytes(uint64(budget))}
	}
}

// pauseOrResume has the target left alone, or helped again.
func (m *Model) pauseOrResume() tea.Cmd {
	w, why := m.helped()
	if w == nil {
		return why
	}
	target, paused := w.report.Target, !w.report.Paused
	return func() tea.Msg {
		if err := m.source.SetPaused(target, paused); err != nil {
			return answered{err.Error()}
		}
		if paused {
			return answered{"paused: the target is left alone from now on"}
		}
		return answered{"resumed: the target is helped again"}
	}
}

// View implements tea.Model.
func (m *Model) View() tea.View {
	if m.frame == "" { // bubbletea asks after each message
		m.frame = m.Frame()
	}
	v := tea.NewView(m.frame)
	v.AltScreen = true
	return v
}
