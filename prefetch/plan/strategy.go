package plan

// This file defines what a strategy is, and lists all of them.

import (
	"fmt"
	"strings"
)

// Input is what a strategy decides from.
type Input struct {
	Schedule *Schedule
	Held     []bool // by block: it is held now
	Room     int64  // bytes of the model that may be in memory; a reserve was taken off
	Window   int64  // of that, bytes that may be read ahead, or wait to be paged out, while the rest is streamed
}

// Plan is what a strategy decides.
type Plan struct {
	Budget  int64 // bytes that may be held
	Hold    []int // blocks to hold besides those that are held, in the order of use
	Release []int // held blocks to give back
}

// Strategy is a way to share the room between what is held and what is streamed. Each strategy is one file.
type Strategy interface {
	// Name is what users call it.
	Name() string
	// Plan is a pure function.
	Plan(in Input) Plan
	// Traits say what else follows from the strategy.
	Traits() Traits
}

// Traits are what the control loop does, or leaves alone, with a strategy.
type Traits struct {
	// Streams says that what is not held is read ahead of its use. Otherwise the target reads it by itself.
	// Either way it is paged out behind the target.
	Streams bool
	// ReadsExperts says that the experts of a mixture are read when their router has chosen them.
	ReadsExperts bool
	// KeepsExperts says that experts stay in memory as long as there is room for them.
	KeepsExperts bool
	// OnlyStored says that a stored pattern is followed, and nothing else is ever learned.
	OnlyStored bool
}

// Strategies lists all strategies, the default first.
func Strategies() []Strategy { return []Strategy{Auto{}, Pin{}, Stream{}, Pattern{}} }

// formerAuto is what Auto was called before there were plans.
const formerAuto = "both"

// StrategyNames are the names that ParseStrategy knows, the default's first.
func StrategyNames() []string {
	var names []string
	for _, s := range Strategies() {
		names = append(names, s.Name())
	}
	return append(names, formerAuto)
}

// ParseStrategy finds a strategy by its name.
func ParseStrategy(name string) (Strategy, error) {
	if name == formerAuto {
		return Auto{}, nil
	}
	for _, s := range Strategies() {
		if s.Name() == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("strategy %q is not one of %s", name, strings.Join(StrategyNames(), ", "))
}
