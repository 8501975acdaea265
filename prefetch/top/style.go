package top

// This file has the colours. They are those of the terminal's own palette, so that they fit its background. Nothing is
// told by a colour alone.

import (
	"charm.land/bubbles/v2/help"
	"charm.land/lipgloss/v2"
	"github.com/guptarohit/asciigraph"
)

var (
	plain  = lipgloss.NewStyle()
	bold   = plain.Bold(true)
	title  = plain.Reverse(true)
	label  = plain.Foreground(lipgloss.BrightBlue)
	faint  = plain.Foreground(lipgloss.BrightBlack)
	kept   = plain.Foreground(lipgloss.Green)
	ahead  = plain.Foreground(lipgloss.Cyan)
	marker = plain.Foreground(lipgloss.Yellow).Bold(true)
	alarm  = plain.Foreground(lipgloss.Red).Bold(true)
	absent = plain.Foreground(lipgloss.Red)
	notice = plain.Foreground(lipgloss.Yellow)
)

// The chart's colours, of the same palette.
var (
	nowColor      = asciigraph.Lime // bright green
	beforeColor   = asciigraph.Red
	possibleColor = asciigraph.Aqua
)

func helpStyles() help.Styles {
	return help.Styles{
		Ellipsis: faint, ShortKey: bold, ShortDesc: faint, ShortSeparator: faint,
		FullKey: bold, FullDesc: faint, FullSeparator: faint,
	}
}
