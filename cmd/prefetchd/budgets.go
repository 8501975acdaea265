package main

// This file has the flags that bound what is kept of some models, and for how long.

import (
	"errors"
	"strconv"
	"time"

	"tensorcast/prefetch/models"
	"tensorcast/prefetch/room"
	"tensorcast/processes"
)

// capsFlag is the value of --budget-of. It is a pflag.SliceValue.
type capsFlag room.Caps

func (c *capsFlag) Type() string { return "NAME=SIZE" }

func (c *capsFlag) String() string {
	if len(*c) == 0 {
		return ""
	}
	return (*c)[len(*c)-1].String()
}

// Set adds a bound.
func (c *capsFlag) Set(text string) error { return c.Append(text) }

func (c *capsFlag) Append(text string) error {
	one, err := room.ParseCap(text)
	if err == nil {
		*c = append(*c, one)
	}
	return err
}

func (c *capsFlag) Replace(texts []string) error {
	*c = nil
	for _, text := range texts {
		if err := c.Append(text); err != nil {
			return err
		}
	}
	return nil
}

func (c *capsFlag) GetSlice() []string {
	texts := make([]string, len(*c))
	for i, one := range *c {
		texts[i] = one.String()
	}
	return texts
}

// warmFlag is the value of --keep-warm: whether, or for how long.
type warmFlag struct {
	on    *bool
	after *time.Duration
}

func (w *warmFlag) Type() string { return "TIME" }

func (w *warmFlag) String() string {
	switch {
	case w.on == nil || !*w.on:
		return "false"
	case *w.after == 0:
		return "true"
	}
	return w.after.String()
}

func (w *warmFlag) Set(text string) error {
	if on, err := strconv.ParseBool(text); err == nil {
		*w.on, *w.after = on, 0
		return nil
	}
	after, err := time.ParseDuration(text)
	if err != nil || after < time.Second {
		return errors.New("want true, false or a time such as 30m, of a second or more")
	}
	*w.on, *w.after = true, after
	return nil
}

// capOf says how much is kept at most for a target that maps models with these paths; nil: there are no bounds.
func (o *options) capOf() func(target int, models []string) int64 {
	if len(o.caps) == 0 {
		return nil
	}
	caps, total := o.caps, o.hostMemory
	return func(target int, models []string) int64 {
		return caps.Of(total, func(name string) bool { return processes.IsNamed(target, name) }, models)
	}
}

// modelsLife is for how long it is believed which models a process maps.
const modelsLife = 5 * time.Second

// candidateCap is capOf for the processes that --auto finds. One that was asked for stands for those that it has
// started. The function is for one goroutine.
func (o *options) candidateCap() func(processes.Candidate) int64 {
	if len(o.caps) == 0 {
		return nil
	}
	type answer struct {
		cap   int64
		model bool // it mapped a model
		at    time.Time
	}
	caps, total, known := o.caps, o.hostMemory, map[int]answer{}
	return func(c processes.Candidate) int64 {
		now := time.Now()
		if a, is := known[c.PID]; is && a.model == c.Model && now.Sub(a.at) < modelsLife {
			return a.cap
		}
		for pid, a := range known {
			if now.Sub(a.at) > modelsLife {
				delete(known, pid)
			}
		}
		var paths []string
		if c.Model {
			if found, err := models.MappedBy(c.PID)(); err == nil { // otherwise it is ending, or its names count
				for _, m := range found.Mapped {
					paths = append(paths, m.Path)
				}
			}
		}
		isNamed := func(name string) bool {
			return processes.IsNamed(c.PID, name) || c.Root != c.PID && processes.IsNamed(c.Root, name)
		}
		a := answer{caps.Of(total, isNamed, paths), c.Model, now}
		known[c.PID] = a
		return a.cap
	}
}
