package handover

// This file knows which of a mixture's experts a device holds.

import (
	"sync"

	"tensorcast/fabric/device"
)

// Experts are those of a model. Its methods may be called concurrently.
type Experts struct {
	mu    sync.Mutex
	units []Unit
	at    map[place]int // units of experts
	held  []byte
}

type place struct{ layer, expert int }

// NewExperts knows nothing to be held yet.
func NewExperts(units []Unit) *Experts {
	e := &Experts{units: units, at: map[place]int{}}
	for i := range units {
		if units[i].Expert >= 0 {
			e.at[place{units[i].Layer, units[i].Expert}] = i
		}
	}
	return e
}

// Elsewhere says whether the device holds an expert.
func (e *Experts) Elsewhere(layer, expert int32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	i, known := e.at[place{int(layer), int(expert)}]
	return known && e.holds(i)
}

func (e *Experts) holds(i int) bool { return i/8 < len(e.held) && e.held[i/8]>>(i%8)&1 != 0 }

// Held says what the device holds. It returns how many units that every token uses are among that.
func (e *Experts) Held(h *device.Holding) (trunk int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held = h.Which
	for i := range e.units {
		if e.units[i].Expert < 0 && e.holds(i) {
			trunk++
		}
	}
	return trunk
}
