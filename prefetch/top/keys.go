package top

// This file has the keys.

import (
	"charm.land/bubbles/v2/help"
	"charm.land/bubbles/v2/key"
)

// keyMap has what each key does.
type keyMap struct {
	next, before, more, less, pause, explain, suspend, quit key.Binding
}

func newKeyMap() keyMap {
	bind := func(name, what string, keys ...string) key.Binding {
		return key.NewBinding(key.WithKeys(keys...), key.WithHelp(name, what))
	}
	return keyMap{
		next:    bind("tab", "next", "tab", "down", "right", "j"),
		before:  bind("shift+tab", "before", "shift+tab", "up", "left", "k"),
		more:    bind("+", "keep more", "+", "="),
		less:    bind("-", "keep less", "-", "_"),
		pause:   bind("p", "pause", "p", "space"),
		explain: bind("?", "what is what", "?", "h"),
		suspend: bind("ctrl+z", "suspend", "ctrl+z"),
		quit:    bind("q", "quit", "q", "esc", "ctrl+c"),
	}
}

// ShortHelp implements help.KeyMap.
func (k keyMap) ShortHelp() []key.Binding {
	return []key.Binding{k.next, k.more, k.less, k.pause, k.explain, k.quit}
}

// FullHelp implements help.KeyMap.
func (k keyMap) FullHelp() [][]key.Binding {
	return [][]key.Binding{{k.next, k.before, k.more, k.less}, {k.pause, k.explain, k.suspend, k.quit}}
}

var _ help.KeyMap = keyMap{}
