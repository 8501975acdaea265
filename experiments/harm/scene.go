package harm

// This file names the scenes: what happens to a target, or to its helper, while it generates.

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

type kind string

const (
	none       kind = "none"
	instant    kind = "instant"
	slow       kind = "slow"
	swarm      kind = "swarm"
	limit      kind = "limit"
	moved      kind = "moved"
	cached     kind = "cached"
	shared     kind = "shared"
	killHelper kind = "kill-helper"
	termHelper kind = "term-helper"
	stopHelper kind = "stop-helper"
	stopTarget kind = "stop-target"
	killTarget kind = "kill-target"
)

// Scene is one thing that happens in a run, at a random moment. It is made by [ParseScenes].
type Scene struct {
	text   string // as ParseScenes takes it, with all its amounts
	kind   kind
	hogs   int     // processes that take memory in the target's group
	size   int64   // of each, in bytes
	rate   int64   // of each, in bytes per second; 0: as fast as the kernel gives it
	factor float64 // of the limit, or of the model's file
}

// String is the scene as ParseScenes takes it.
func (s Scene) String() string { return s.text }

// concernsHelper reports whether the scene happens to the helper. Then there is nothing to see
// without one.
func (s Scene) concernsHelper() bool {
	return s.kind == killHelper || s.kind == termHelper || s.kind == stopHelper
}

// usesOutside reports whether the scene needs a second group, without a limit.
func (s Scene) usesOutside() bool { return s.kind == moved || s.kind == cached || s.kind == shared }

// sets are names for several scenes.
var sets = map[string][]string{
	"hogs": {"instant:50MB", "instant:150MB", "instant:400MB", "slow:400MB@100MB", "swarm:40x10MB", "limit:0.5",
		"moved", "none"},
	"sharing": {"cached:1", "cached:0.6", "shared", "moved"},
	"faults":  {"kill-helper", "term-helper", "stop-helper", "stop-target", "kill-target", "limit:0.5", "limit:1.5"},
}

// Forms are the scenes that ParseScenes takes, for a help text, each with what happens in it.
var Forms = [][2]string{
	{"none", "nothing"},
	{"instant:150MB", "a process in the target's group takes this much memory as fast as the kernel gives it"},
	{"slow:400MB@100MB", "the same, at this many bytes per second"},
	{"swarm:40x10MB", "the same, by this many processes at once, each this much"},
	{"limit:0.5", "the group's limit is multiplied by this; afterwards it is what it was"},
	{"moved", "the target starts in a group without a limit, and is moved to its own when the helper has looked; " +
		"its pages are dropped then"},
	{"cached:0.6", "another group has read this share of the model before the target starts, and pays for it"},
	{"shared", "another target in a group without a limit computes with the same model all the time"},
	{"kill-helper", "SIGKILL to the helper"},
	{"term-helper", "SIGTERM to the helper"},
	{"stop-helper", "SIGSTOP to the helper, afterwards SIGCONT"},
	{"stop-target", "SIGSTOP to the target, afterwards SIGCONT"},
	{"kill-target", "SIGKILL to the target"},
}

// ParseScenes parses scenes: the forms of [Forms], and the names of sets ("hogs", "sharing", "faults", "all").
// A scene that is named twice counts once.
func ParseScenes(names []string) ([]Scene, error) {
	var all []Scene
	for _, name := range names {
		of, ok := sets[name]
		switch {
		case name == "all":
			of = slices.Concat(sets["hogs"], sets["sharing"], sets["faults"])
		case !ok:
			of = []string{name}
		}
		for _, text := range of {
			s, err := parseScene(text)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// Bounds of what a scene takes. Larger numbers are slips of the pen.
const (
	maxHogs  = 1000
	maxBytes = 1 << 40
)

func parseScene(text string) (Scene, error) {
	name, amount, given := strings.Cut(text, ":")
	s := Scene{text: text, kind: kind(name)}
	var ok bool
	switch s.kind {
	case none, moved, shared, killHelper, termHelper, stopHelper, stopTarget, killTarget:
		ok = !given
	case instant:
		s.hogs = 1
		s.size, ok = parseAmount(amount)
	case slow:
		size, rate, _ := strings.Cut(amount, "@")
		s.hogs = 1
		var rated bool
		s.size, ok = parseAmount(size)
		s.rate, rated = parseAmount(rate)
		ok = ok && rated
	case swarm:
		n, size, _ := strings.Cut(amount, "x")
		var err error
		s.hogs, err = strconv.Atoi(n)
		s.size, ok = parseAmount(size)
		ok = ok && err == nil && s.hogs > 0 && s.hogs <= maxHogs
	case limit:
		var err error
		s.factor, err = strconv.ParseFloat(amount, 64)
		ok = err == nil && s.factor > 0 && s.factor <= 100 && !math.IsNaN(s.factor)
	case cached:
		var err error
		s.factor, err = strconv.ParseFloat(amount, 64)
		ok = err == nil && s.factor > 0 && s.factor <= 1
	default:
		ok = false
	}
	if !ok {
		var forms []string
		for _, f := range Forms {
			forms = append(forms, f[0])
		}
		return Scene{}, fmt.Errorf("scene %q: want one of hogs, sharing, faults, all, or such as %s", text,
			strings.Join(forms, ", "))
	}
	return s, nil
}

func parseAmount(text string) (int64, bool) {
	n, err := humanize.ParseBytes(text)
	return int64(min(n, maxBytes)), err == nil && n > 0 && n <= maxBytes
}
