package top

// This file has the parts of a pane that are numbers: model, speed, memory, disk, events.

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/dustin/go-humanize"
	"github.com/guptarohit/asciigraph"

	"tensorcast/prefetch"
	"tensorcast/prefetch/monitor"
)

// size formats bytes. Negative numbers are 0.
func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// perSecond formats a rate in bytes per second.
func perSecond(r rate) string {
	if !r.known {
		return "not known"
	}
	return size(int64(r.perSecond)) + "/s"
}

// aboutModels names the model file. Of a long path the end counts.
func aboutModels(r *monitor.Report, width int) string {
	if len(r.Models) == 0 {
		return faint.Render("none is mapped yet")
	}
	more := ""
	if n := len(r.Models) - 1; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	path, room := r.Models[0], width-margin-len(more)-1
	if over := ansi.StringWidth(path) - room; over > 0 {
		path = ansi.TruncateLeft(path, over+3, "...")
	}
	return path + more
}

// aboutSpeed says how fast the target is, was, and could be.
func aboutSpeed(r *monitor.Report, width int) []string {
	s := &r.Status
	unit := "tok/s"
	if prefetch.ReadsPrompts(s.Tokens, s.Decodes) {
		unit = "prompt tok/s"
	}
	now := faint.Render("not known yet")
	if s.Activity == prefetch.Idle {
		now = faint.Render("not observed while there is no help")
	}
	if s.Now > 0 {
		now = bold.Render(prefetch.FormatSpeed(s.Now)) + " " + unit
	}
	if !r.IdleSince.IsZero() && s.Now > 0 {
		now = "last " + now
	}
	if s.Before > 0 {
		now += fmt.Sprintf("   %s %s", absent.Render("╌"), prefetch.FormatSpeed(s.Before)+" before help")
	}
	if s.Bound > 0 {
		now += fmt.Sprintf("   %s %s", ahead.Render("┄"), prefetch.FormatSpeed(s.Bound)+" at most here")
		if s.Now > 0 {
			now += fmt.Sprintf(" (%.0f %%)", 100*min(s.Now/s.Bound, 1))
		}
	}
	if d := r.Detail; d != nil && len(d.Speeds) > 0 {
		time := fmt.Sprintf("last %d min", int(chartTime(d.Speeds).Minutes()))
		if gap := width - margin - 1 - ansi.StringWidth(now) - len(time); gap >= 3 {
			now += strings.Repeat(" ", gap) + faint.Render(time)
		}
	}
	return named("speed", now)
}

// chartTime is the time that a chart of speeds shows: one minute, two or five, whichever has room for all that are
// known.
func chartTime(speeds []float32) time.Duration {
	known := time.Duration(len(speeds)) * prefetch.HistoryBin
	for _, short := range []time.Duration{time.Minute, 2 * time.Minute} {
		if known <= short {
			return short
		}
	}
	return 5 * time.Minute
}

// drawSpeeds draws the speeds of the last minutes, with lines for the speed before and for what is possible.
func drawSpeeds(r *monitor.Report, width, rows int) []string {
	const axis = 2 // columns
	columns := width - margin - axis - 1
	if columns < 2 || rows < 2 {
		return nil
	}
	all := r.Detail.Speeds
	speeds := resample(all, int(chartTime(all)/prefetch.HistoryBin), columns)
	top := 0.0
	for _, v := range speeds {
		if !math.IsNaN(v) {
			top = max(top, v)
		}
	}
	s := &r.Status
	var series [][]float64
	var colors []asciigraph.AnsiColor
	var chars []asciigraph.CharSet
	line := func(value float64, color asciigraph.AnsiColor, char string) {
		level := make([]float64, columns)
		for i := range level {
			level[i] = value
		}
		series, colors = append(series, level), append(colors, color)
		chars = append(chars, asciigraph.CreateCharSet(char))
	}
	if s.Bound > 0 && s.Bound < 4*max(top, s.Before) { // otherwise the rest would lie at the bottom
		top = max(top, s.Bound)
		line(s.Bound, possibleColor, "┄")
	}
	if s.Before > 0 {
		top = max(top, s.Before)
		line(s.Before, beforeColor, "╌")
	}
	if top <= 0 {
		return named("", faint.Render("no token in this time"))
	}
	steps := rows - 1 // between the axis's numbers
	top = float64(steps) * roundUp(top/float64(steps))
	series, colors = append(series, speeds), append(colors, nowColor)
	chars = append(chars, asciigraph.DefaultCharSet)
	drawn := asciigraph.PlotMany(series, asciigraph.Height(steps), asciigraph.LowerBound(0),
		asciigraph.UpperBound(top), asciigraph.SeriesColors(colors...), asciigraph.SeriesChars(chars...),
		asciigraph.YAxisValueFormatter(func(v float64) string {
			return fmt.Sprintf("%*s", margin-1, strconv.FormatFloat(max(v, 0), 'g', 3, 64))
		}))
	return strings.Split(drawn, "\n")
}

// roundUp is the least number that is no less than v and has one digit, or two that end in 5.
func roundUp(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 1.5, 2, 2.5, 3, 4, 5, 6, 8} {
		if n*unit >= v {
			return n * unit
		}
	}
	return 10 * unit
}

// resample makes as many columns of speeds as are wanted. Each is the mean over the time that it stands for. whole is
// how many speeds the chart shows; those that are missing before the first one, or were not observed, are NaN.
func resample(speeds []float32, whole, columns int) []float64 {
	speeds = speeds[max(len(speeds)-whole, 0):]
	missing := whole - len(speeds)
	out := make([]float64, columns)
	for c := range out {
		from, to := float64(c*whole)/float64(columns), float64((c+1)*whole)/float64(columns)
		var sum, weight float64
		for i := int(from); i < whole && float64(i) < to; i++ {
			part := min(to, float64(i+1)) - max(from, float64(i))
			if i < missing || part <= 0 || speeds[i-missing] == prefetch.NotSeen {
				continue
			}
			sum += part * finite(float64(speeds[i-missing]))
			weight += part
		}
		if out[c] = math.NaN(); weight > 0 {
			out[c] = sum / weight
		}
	}
	return out
}

// finite is a speed as it should be.
func finite(v float64) float64 {
	if v > 0 && v < 1e9 {
		return v
	}
	return 0
}

// aboutMemory draws what is kept, the window, and the room, and says who bounds it.
func aboutMemory(r *monitor.Report, width int) []string {
	s, d := &r.Status, r.Detail
	held := s.Held + s.Experts
	if s.Activity == prefetch.Idle || s.Activity == prefetch.Waiting || d == nil {
		text := "not known yet"
		switch {
		case s.Needs > 0:
			text = fmt.Sprintf("the model needs %s, there is room for %s (%s)", size(s.Needs), size(s.Room), s.Level)
		case s.Room > 0:
			text = fmt.Sprintf("there is room for %s (%s)", size(s.Room), s.Level)
		}
		return named("memory", wrap(text, width)...)
	}
	needs := max(s.Needs, s.PerToken)
	columns := width - margin - 1
	whole := max(needs, d.Usable, held+d.Window, 1)
	bar := &segments{whole: whole, columns: columns}
	bar.add(held, "█", kept)
	bar.add(d.Window, "▓", ahead)
	bar.add(d.Usable-held-d.Window, "░", plain)
	bar.add(needs-max(d.Usable, held+d.Window), "·", faint)
	keeps := fmt.Sprintf("%s kept of %s", bold.Render(size(held)), size(needs))
	if s.Experts > 0 {
		keeps += fmt.Sprintf(" (%s of experts)", size(s.Experts))
	}
	about := fill(width, keeps, "window "+size(d.Window), fmt.Sprintf("room %s (%s)", size(d.Usable), d.Bound))
	return named("memory", append([]string{bar.String()}, about...)...)
}

// segments is a bar of parts, of which each begins where the one before ends. Its ends are rounded to columns, not its
// parts, so that they add up.
type segments struct {
	whole   int64
	columns int
	at      int64 // what was added so far
	drawn   int   // columns of that
	text    strings.Builder
}

// add adds a part, if it is positive.
func (s *segments) add(n int64, char string, style lipgloss.Style) {
	if n <= 0 {
		return
	}
	s.at += n
	end := min(int(math.Round(float64(s.columns)*float64(s.at)/float64(s.whole))), s.columns)
	if end > s.drawn {
		s.text.WriteString(style.Render(strings.Repeat(char, end-s.drawn)))
		s.drawn = end
	}
}

func (s *segments) String() string { return s.text.String() }

// aboutDisk says what is read from disk, for whom.
func aboutDisk(w *watched, width int) []string {
	s := &w.report.Status
	all := []string{"for help " + perSecond(w.help), "faults " + perSecond(w.faults)}
	if s.Experts > 0 {
		guessed := int64(0)
		if w.report.IdleSince.IsZero() {
			guessed = int64(float64(s.Early) * s.Now)
		}
		all = append(all, fmt.Sprintf("guesses %s/s", size(guessed)))
	}
	if s.Disk > 0 {
		all = append(all, fmt.Sprintf("best %s/s", size(int64(s.Disk))))
	}
	return named("disk", fill(width, all...)...)
}

// listEvents lists the last things that were done, the latest first.
func listEvents(all []prefetch.Happening, now time.Time, rows int) []string {
	var lines []string
	for i := len(all) - 1; i >= 0 && len(lines) < rows; i-- {
		at := all[i].At.Local()
		format := time.TimeOnly
		if now.Sub(at) >= 24*time.Hour {
			format = time.DateTime
		}
		lines = append(lines, faint.Render(at.Format(format))+" "+all[i].What)
	}
	return named("events", lines...)
}

// searching lists the processes that a prefetchd without a target knows.
func searching(r *monitor.Report) []string {
	list := func(name string, all []monitor.Process) []string {
		var lines []string
		for _, p := range all {
			lines = append(lines, fmt.Sprintf("%d %s", p.PID, p.Name))
		}
		return named(name, lines...)
	}
	return append(list("helped", r.Search.Helped), list("waiting", r.Search.Waiting)...)
}
