package handover

// This file knows which of a mixture's experts a device holds.

import (
	"sync"

	"tensorcast/fabric/device"
)

// Experts knows which experts of a model a device holds. Its methods may be called concurrently.
type Experts struct {
	mu    sync.Mutex
	units []Unit
	index map[expertKey]int // of units
	held  []byte            // a bit for each unit, see device.Holding
}

type expertKey struct{ layer, expert int }

// NewExperts returns the experts among units, none of which is held yet.
func NewExperts(units []Unit) *Experts {
	e := &Experts{units: units, index: map[expertKey]int{}}
	for i := range units {
		if units[i].Expert >= 0 {
			e.index[expertKey{units[i].Layer, units[i].Expert}] = i
		}
	}
	return e
}

// Elsewhere reports whether the device holds an expert.
func (e *Experts) Elsewhere(layer, expert int32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	i, known := e.index[expertKey{int(layer), int(expert)}]
	return known && e.isHeld(i)
}

func (e *Experts) isHeld(i int) bool { return i/8 < len(e.held) && e.held[i/8]>>(i%8)&1 != 0 }

// SetHeld notes what the device holds. It returns how many of the held units every token uses.
func (e *Experts) SetHeld(h *device.Holding) (trunk int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = h.Which
	for i := range e.units {
		if e.units[i].Expert < 0 && e.isHeld(i) {
			trunk++
		}
	}
	return trunk
}
