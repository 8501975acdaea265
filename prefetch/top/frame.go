package top

// This file puts a frame together: which parts it has, in which order, and how many rows each gets.

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"tensorcast/internal/visible"
	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

const (
	// margin is the columns of a part's name.
	margin = 9
	// leastWidth is the narrowest terminal that a frame is made for. A narrower one cuts it.
	leastWidth = 40
	// The rows that a chart, a picture of experts and the events get where there is room.
	chartRows, mostChartRows = 4, 8
	heatRows, mostHeatRows   = 6, 24
	eventRows                = 3
	// mostListed prefetchds are listed at a time.
	mostListed = 5
)

// Frame is the whole picture as lines of text, with colours, that have as many columns as the terminal at most.
func (m *Model) Frame() string {
	width := max(m.width, leastWidth)
	head := m.head(width)
	foot := m.foot(width)
	var body []string
	switch {
	case m.explains:
		body = explanation()
	case m.selected != nil:
		rows := 0
		if m.height > 0 {
			rows = max(m.height-len(head)-len(foot), 1)
		}
		body = m.pane(m.selected, width, rows)
	case m.asked && m.trouble == nil:
		body = []string{"", " No prefetchd helps a process here. Start one in another terminal:", "",
			"     sudo prefetchd --auto", "", " It is looked every second whether there is one."}
	case !m.asked:
		body = []string{"", " asking prefetchds ..."}
	}
	if m.height > 0 {
		rows := max(m.height-len(head)-len(foot), 0)
		body = body[:min(len(body), rows)]
		for len(body) < rows {
			body = append(body, "")
		}
	}
	lines := append(append(head, body...), foot...)
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], m.width, "…")
	}
	if m.height > 0 {
		lines = lines[:min(len(lines), m.height)]
	}
	return strings.Join(lines, "\n")
}

// Once is a frame for a pipe: all prefetchds below each other, without keys.
func (m *Model) Once() string {
	width := max(m.width, leastWidth)
	if len(m.all) == 0 {
		return "no prefetchd helps a process here\n"
	}
	var lines []string
	for i, w := range m.all {
		if i > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, bold.Render(nameOf(w)))
		lines = append(lines, m.pane(w, width, 0)...)
	}
	for i := range lines {
		lines[i] = strings.TrimRight(ansi.Truncate(lines[i], width, "…"), " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// head is the title, and the list of prefetchds if there are several.
func (m *Model) head(width int) []string {
	left, right := " prefetchd top", m.now.Local().Format(time.TimeOnly)+" "
	if m.now.IsZero() {
		right = ""
	}
	if m.selected != nil {
		left += "   " + nameOf(m.selected)
	}
	left = ansi.Truncate(left, width-len(right)-1, "...")
	gap := strings.Repeat(" ", max(width-ansi.StringWidth(left)-len(right), 0))
	lines := []string{title.Render(left + gap + right)}
	if len(m.all) < 2 {
		return lines
	}
	first := 0
	for i, w := range m.all {
		if w == m.selected {
			first = max(min(i-mostListed/2, len(m.all)-mostListed), 0)
		}
	}
	for i, w := range m.all[first:min(first+mostListed, len(m.all))] {
		mark := "  "
		if w == m.selected {
			mark = marker.Render(" ▸")
		}
		line := mark + " " + m.summarize(w)
		if i == 0 && first > 0 {
			line += faint.Render(fmt.Sprintf("  (%d more above)", first))
		}
		if rest := len(m.all) - first - mostListed; i == mostListed-1 && rest > 0 {
			line += faint.Render(fmt.Sprintf("  (%d more below)", rest))
		}
		lines = append(lines, line)
	}
	return lines
}

// summarize says in a line what a prefetchd of several does.
func (m *Model) summarize(w *watched) string {
	name := fmt.Sprintf("%-24s ", nameOf(w))
	if !w.gone.IsZero() {
		return name + alarm.Render(fate(w))
	}
	disk := -1.0
	if w.help.known {
		disk = w.help.perSecond
	}
	return name + w.report.Brief(m.now, disk)
}

// nameOf says whom a prefetchd helps.
func nameOf(w *watched) string {
	if w.report.Target != 0 {
		return fmt.Sprintf("%d %s", w.report.Target, w.report.Command)
	}
	way := "--wait"
	if w.report.Search != nil && w.report.Search.All {
		way = "--auto"
	}
	return fmt.Sprintf("prefetchd %s (%d)", way, w.report.PID)
}

// foot is what went wrong, what came of a key, and the keys.
func (m *Model) foot(width int) (lines []string) {
	if m.trouble != nil {
		lines = append(lines, alarm.Render(" "+visible.Line(m.trouble.Error())))
	}
	if m.notice != "" && m.now.Sub(m.noticeAt) < noticeTime {
		lines = append(lines, notice.Render(" "+m.notice))
	}
	keys := m.help
	keys.SetWidth(width - 1)
	return append(lines, " "+keys.ShortHelpView(m.keys.ShortHelp()))
}

// pane is what is shown of a prefetchd in so many columns and rows; 0 rows are not bounded.
func (m *Model) pane(w *watched, width, rows int) []string {
	r := &w.report
	doing := named("doing", wrap(m.doing(w), width)...)
	if r.Search != nil {
		return append(doing, searching(r)...)
	}
	groups := [][]string{
		append(named("model", aboutModels(r, width)), doing...),
		aboutSpeed(r, width), aboutMemory(r, width), aboutDisk(w, width), aboutFile(r, width),
		nil, // experts
		nil, // events
	}
	const speed, experts, events = 1, 5, 6
	room := newRoom(rows, groups)
	d := r.Detail
	if d == nil {
		return join(groups, room.takeAll(len(groups)-1))
	}
	// Each part with rows to choose gets what it needs, as long as there is room. What is left is shared out then.
	forChart := room.take(chartRows, len(d.Speeds) > 0)
	forExperts := room.take(1+heatRows, d.Experts != nil)
	forEvents := room.take(1, len(d.Happenings) > 0)
	room.extend(&forEvents, min(eventRows, len(d.Happenings)))
	hasGaps := room.takeAll(len(groups) - 1)
	if d.Experts != nil {
		room.extend(&forExperts, 1+min(mostHeatRows, d.Experts.Rows))
	}
	room.extend(&forChart, mostChartRows)
	room.extend(&forEvents, len(d.Happenings))
	if forChart > 0 {
		groups[speed] = append(groups[speed], drawSpeeds(r, width, forChart)...)
	}
	if forExperts > 0 {
		groups[experts] = drawExperts(d.Experts, width, forExperts)
	}
	groups[events] = listEvents(d.Happenings, m.now, forEvents)
	return join(groups, hasGaps)
}

// room is how many rows are left for parts that can have more or less.
type room int

// unbounded is the room of what is as long as it likes.
const unbounded = 1 << 20

// newRoom is what groups leave of so many rows; 0 rows are not bounded.
func newRoom(rows int, groups [][]string) room {
	if rows == 0 {
		rows = unbounded
	}
	for _, lines := range groups {
		rows -= len(lines)
	}
	return room(rows)
}

// take takes so many rows if they are wanted and are there, and returns how many it took.
func (r *room) take(rows int, wanted bool) int {
	if !wanted || int(*r) < rows {
		return 0
	}
	*r -= room(rows)
	return rows
}

// takeAll takes so many rows, and says whether they were there.
func (r *room) takeAll(rows int) bool { return r.take(rows, true) == rows }

// extend gives a part that has rows more of them, up to most in all.
func (r *room) extend(has *int, most int) {
	if *has == 0 {
		return
	}
	n := max(min(int(*r), most-*has), 0)
	*has += n
	*r -= room(n)
}

// join puts groups of lines below each other, with an empty line between two if there is room for that.
func join(groups [][]string, hasGaps bool) (lines []string) {
	for _, group := range groups {
		if hasGaps && len(lines) > 0 && len(group) > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, group...)
	}
	return lines
}

// mostWrapped bounds the lines of a long text.
const mostWrapped = 3

// wrap breaks a text into lines that have room behind a part's name.
func wrap(text string, width int) []string {
	lines := strings.Split(ansi.Wrap(text, width-margin-1, ""), "\n")
	return lines[:min(len(lines), mostWrapped)]
}

// fill puts parts of a sentence beside each other, with commas between them, in as few lines as have room behind a
// part's name. No part is broken.
func fill(width int, parts ...string) (lines []string) {
	line := ""
	for i, part := range parts {
		if i < len(parts)-1 {
			part += ","
		}
		if line != "" && ansi.StringWidth(line)+1+ansi.StringWidth(part) > width-margin-1 {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += part
	}
	return append(lines, line)
}

// named puts a part's name before its first line, and room for it before the others.
func named(name string, lines ...string) []string {
	named := make([]string, len(lines))
	for i, line := range lines {
		named[i] = strings.Repeat(" ", margin) + line
	}
	if len(lines) > 0 {
		named[0] = label.Render(fmt.Sprintf(" %-*s", margin-1, name)) + lines[0]
	}
	return named
}

// doing says what a prefetchd does, and since when; or what has become of it.
func (m *Model) doing(w *watched) string {
	r := &w.report
	s := &r.Status
	switch {
	case !w.gone.IsZero():
		return alarm.Render(fate(w))
	case w.silent:
		return alarm.Render(fmt.Sprintf("prefetchd (process %d) does not answer: what is shown is of %s",
			r.PID, monitor.Since(m.now, w.at)))
	case r.Search != nil:
		return r.Line(m.now)
	}
	since := "since " + monitor.Since(m.now, s.Since)
	switch {
	case r.Paused && s.Activity != prefetch.Idle:
		return marker.Render("pausing") + ": the target is left alone in a moment"
	case r.Paused:
		return marker.Render("paused") + " " + since + ": the target is left alone; p helps it again"
	case s.Activity == prefetch.Waiting:
		return ahead.Render("waiting") + " " + since + reason(s.Why)
	case s.Activity == prefetch.Idle:
		return faint.Render("idle") + " " + since + reason(s.Why)
	case s.Activity == prefetch.Comparing:
		return ahead.Render("comparing") + " " + since + ": tokens without help are measured"
	case !r.IdleSince.IsZero():
		return fmt.Sprintf("%s (%s); the target computes nothing since %s",
			kept.Render(string(s.Activity)), s.LoopPhase, monitor.Since(m.now, r.IdleSince))
	case s.Activity == prefetch.Giving:
		return fmt.Sprintf("%s (%s) %s%s", notice.Render("giving back"), s.LoopPhase, since,
			reason("memory is short: "+s.Why))
	}
	return fmt.Sprintf("%s (%s) %s%s", kept.Render(string(s.Activity)), s.LoopPhase, since, reason(s.Why))
}

func reason(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// fate says what has become of a prefetchd that is not there any more.
func fate(w *watched) string {
	who, at := fmt.Sprintf("prefetchd (process %d)", w.report.PID), w.gone.Local().Format(time.TimeOnly)
	switch {
	case w.killed:
		return fmt.Sprintf("%s was killed, as was seen at %s: nobody helps the target now", who, at)
	case w.report.Target == 0:
		return fmt.Sprintf("%s has ended, as was seen at %s", who, at)
	}
	return fmt.Sprintf("%s has ended, as was seen at %s, with its target or before it", who, at)
}

// explanation says what is what. It is shown instead of a pane.
func explanation() []string {
	return []string{
		"",
		" speed    tokens per second of the last tokens, with help",
		"          " + absent.Render("╌") + " before help, as it was measured last",
		"          " + ahead.Render("┄") + " at most: nobody could pass that with this memory and this disk",
		"          The chart is of the last minutes, with help and without.",
		" memory   " + kept.Render("█") + " kept   " + ahead.Render("▓") + " window: read ahead of its use   " +
			"░ free room   " + faint.Render("·") + " has no room",
		"          Behind the room stands who bounds it: a control group, host, budget.",
		" disk     read for help, and by the target's own faults; guesses are experts",
		"          that were read before they were chosen; best is the most ever seen",
		" file     " + kept.Render("▁▄█") + " how much of a place in the file is kept   " +
			faint.Render(".") + " nothing of it",
		"          " + ahead.Render("▸") + " read ahead   " + marker.Render("▲") + " where the target is",
		" experts  a row for each layer, a column for each expert, the denser the more",
		"          often it was chosen: " + kept.Render("░▒▓█") + " in memory, " + absent.Render(".+*#") +
			" not in memory",
		"",
		" + and -  change the budget of what is kept.",
		" p        leaves the target alone, as if nobody helped it, until p is pressed",
		"          again. Quitting changes nothing of that.",
	}
}
