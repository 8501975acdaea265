package room

// This file bounds what is kept of certain models, and for certain processes.

import (
	"errors"
	"path"
	"regexp"
	"strings"

	"tensorcast/internal/sizes"
)

// Cap says how much is kept at most of a model, or for a process, with a name.
type Cap struct {
	// Name is that of a process (of its program or its systemd unit), or a pattern for the name of a model's file as
	// path.Match has it. A pattern with a slash is for the whole path.
	Name   string
	Amount sizes.Amount
}

// Caps are bounds, of which the least that applies counts.
type Caps []Cap

// ParseCap reads NAME=SIZE, where SIZE is bytes or a share of the machine's memory ([sizes.ParseAmount]).
func ParseCap(text string) (Cap, error) {
	i := strings.LastIndexByte(text, '=') // a path may have one, too
	if i <= 0 {
		return Cap{}, errors.New("want NAME=SIZE, where NAME is a program, a systemd unit or a model's file")
	}
	name := text[:i]
	if _, err := path.Match(name, ""); err != nil {
		return Cap{}, errors.New("the name is no pattern: [ begins a set of characters, and \\ is before one of them")
	}
	amount, err := sizes.ParseAmount(text[i+1:])
	return Cap{name, amount}, err
}

// String writes it so that ParseCap reads the same.
func (c Cap) String() string { return c.Name + "=" + c.Amount.String() }

// Of returns how many bytes are kept at most for a process; 0 sets no bound. total is the machine's memory in bytes, of
// which shares are. isNamed says whether the process has a name. models are the paths of the models that it maps.
func (all Caps) Of(total int64, isNamed func(name string) bool, models []string) (least int64) {
	for _, c := range all {
		if !c.isOf(models) && !isNamed(c.Name) {
			continue
		}
		if bytes := c.Amount.Of(total); least == 0 || bytes < least {
			least = bytes
		}
	}
	return least
}

// inside begins the path of a file in another root directory, as a container has one.
var inside = regexp.MustCompile(`^/proc/[0-9]+/root/`)

// isOf says whether a bound is for one of these models.
func (c *Cap) isOf(models []string) bool {
	for _, m := range models {
		if m = inside.ReplaceAllString(m, "/"); !strings.Contains(c.Name, "/") {
			m = path.Base(m)
		}
		if ok, err := path.Match(c.Name, m); ok && err == nil {
			return true
		}
	}
	return false
}
