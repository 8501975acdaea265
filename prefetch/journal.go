package prefetch

// This file remembers the last things that the control loop did, for people who look at it later.

import (
	"strings"
	"time"
)

// Happening is something that the control loop did.
type Happening struct {
	At time.Time `json:"at"`
	// What is a line of text. Names of files and control groups in it are as others chose them.
	What string `json:"what"`
}

const (
	// journalLength is how many happenings are remembered.
	journalLength = 8
	// longestHappening bounds one, in bytes.
	longestHappening = 200
	// sameTime is how long a happening takes the place of the one before it, if both are of the same kind.
	sameTime = 10 * time.Second
)

// journal has the last happenings, in order.
type journal struct {
	all  []Happening
	kind string // of the last one
}

// note remembers something. What happens many times in a row is there once, as it was the last time.
func (j *journal) note(at time.Time, kind, what string) {
	if len(what) > longestHappening {
		what = strings.ToValidUTF8(what[:longestHappening], "") + "..."
	}
	last := len(j.all) - 1
	if last >= 0 && kind == j.kind && at.Sub(j.all[last].At) < sameTime {
		j.all[last] = Happening{at, what}
		return
	}
	if j.kind = kind; len(j.all) == journalLength {
		j.all = j.all[1:]
	}
	j.all = append(j.all, Happening{at, what})
}
