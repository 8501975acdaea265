package forecast

// This file describes a machine, as far as a model's speed goes by it.

import (
	"time"

	"tensorcast/prefetch/costs"
	"tensorcast/prefetch/pace"
)

// Machine is what was measured of a machine. Rates are bytes per second.
type Machine struct {
	pace.Pace
	Processors int `json:"processors"` // that the target and its helper may use
	// Disk is the disk's best rate, and DiskBeside the one beside threads that read memory as fast as they can.
	Disk       float64 `json:"disk_bytes_per_second"`
	DiskBeside float64 `json:"disk_beside_bytes_per_second"`
	// Slowdown is how many times as long these threads take beside such a disk; at least 1.
	Slowdown float64 `json:"slowdown"`
	// Touched is the rate at which the target's own faults read; 0 if it could not be measured.
	Touched   float64 `json:"touched_bytes_per_second"`
	Readahead int64   `json:"readahead_bytes"` // of the disk; -1 if it is not known
	// Cost is what reading ahead costs the processors, by the best way there is; nil if it could not be measured.
	Cost *costs.Cost `json:"cost,omitempty"`
	// One and All are how long the slices of one expert take, and of all that a layer chooses; nil of a dense model.
	One *Gather `json:"one_expert,omitempty"`
	All *Gather `json:"all_experts,omitempty"`
}

// Gather is how long it takes to read some slices at once.
type Gather struct {
	Slices int           `json:"slices"`
	Time   time.Duration `json:"time_ns"`
}

// Memory is the memory that there is for a target, its model and its helper. Amounts are bytes.
type Memory struct {
	Bytes int64  `json:"bytes"`
	Limit int64  `json:"limit_bytes"` // of what bounds it
	Bound string `json:"bound"`       // what bounds it
	// Context is for how many tokens of context the target has memory.
	Context int `json:"context_tokens"`
}

const mib = 1 << 20

// Where something could not be measured, it is taken to be as on the machines of docs/measurements.
const (
	// usualTouched is the rate of a target's own faults ("What analyze whatif expects": 0.74 to 0.87 GB/s), or a
	// usualTouchedShare of the disk's if that is less.
	usualTouched      = 0.8e9
	usualTouchedShare = 0.5
	// usualRead and usualTouch are microseconds of processors' time for a MiB ("Against what the disk delivers").
	usualRead  = 120
	usualTouch = 30
)

// touched is the rate of a target's own faults.
func (m *Machine) touched() float64 {
	if m.Touched > 0 {
		return m.Touched
	}
	return min(usualTouched, usualTouchedShare*m.Disk)
}

// helperTime and touchTime are how many seconds of processors' time it costs to read and page out a byte, and to touch
// it.
func (m *Machine) helperTime() float64 {
	us := float64(usualRead)
	if m.Cost != nil {
		us = m.Cost.Read + m.Cost.PageOut
	}
	return us / 1e6 / mib
}

func (m *Machine) touchTime() float64 {
	us := float64(usualTouch)
	if m.Cost != nil {
		us = m.Cost.Touch
	}
	return us / 1e6 / mib
}

// streamed is the rate at which the disk delivers to the page cache beside a target that computes.
func (m *Machine) streamed() float64 {
	rate := m.DiskBeside
	if rate <= 0 {
		rate = m.Disk
	}
	if m.Cost != nil && m.Cost.Bandwidth > 0 {
		rate = min(rate, m.Cost.Bandwidth)
	}
	return rate
}

// withDisk is the machine with a disk that is so many times as fast. What the processors do for a byte stays.
func (m Machine) withDisk(factor float64) Machine {
	if m.Disk <= 0 {
		return m
	}
	faster := func(g *Gather) *Gather {
		if g == nil {
			return nil
		}
		return &Gather{g.Slices, time.Duration(float64(g.Time) / factor)}
	}
	// Of a fault's time a part is the kernel's.
	perByte := 1/m.touched() - m.touchTime() - 1/m.Disk
	m.Touched = 1 / (max(perByte, 0) + m.touchTime() + 1/m.Disk/factor)
	m.Disk, m.DiskBeside = factor*m.Disk, factor*m.DiskBeside
	m.One, m.All = faster(m.One), faster(m.All)
	if m.Cost != nil {
		c := *m.Cost
		c.Bandwidth *= factor
		m.Cost = &c
	}
	return m
}
