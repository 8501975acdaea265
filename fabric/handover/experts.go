package handover

// This file knows how often a mixture's experts are used, and which of them a device holds: it has the device exchange them.

import (
	"cmp"
	"slices"
	"sync"

	"tensorcast/fabric/device"
)

const (
	// learned is how many tokens have to have been seen until experts are held by their use, and again how many come between two looks.
	learned, lookAgain = 32, 64
	// forgets: of use it counts what so many tokens had, about, as prefetchd does.
	forgets = 256
	// horizon is how many tokens an exchange has to pay in: a text goes on for some hundred.
	horizon = 256
	// loadByte is what a byte of the file takes until it is held, in seconds of one processor (docs/performance.md: 1.1 GB in 5 to 7 s of two).
	loadByte = 11e-9
)

// Experts are those of a model. Its methods may be called concurrently.
type Experts struct {
	mu     sync.Mutex
	units  []Unit
	at     map[place]int // units of experts
	layers map[int]*layerUse
	tokens int // that the layer that has most of them has seen
	looked int // of them, when it was looked at last
	held   []byte
}

type place struct{ layer, expert int }

// layerUse counts what a layer has chosen.
type layerUse struct {
	of        map[int]float64
	sum, step float64 // of a token; it grows, so that tokens of long ago count less
	tokens    int
}

// NewExperts counts the use of units that are experts.
func NewExperts(units []Unit) *Experts {
	e := &Experts{units: units, at: map[place]int{}, layers: map[int]*layerUse{}}
	for i := range units {
		if units[i].Expert >= 0 {
			e.at[place{units[i].Layer, units[i].Expert}] = i
		}
	}
	return e
}

// Chose notes which experts a layer has chosen for a token.
func (e *Experts) Chose(layer int32, experts []int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.layers[int(layer)]
	if l == nil {
		l = &layerUse{of: map[int]float64{}, step: 1}
		e.layers[int(layer)] = l
	}
	l.step *= 1 + 1.0/forgets
	if l.step > 1e200 {
		for x := range l.of {
			l.of[x] /= l.step
		}
		l.sum, l.step = l.sum/l.step, 1
	}
	l.sum += l.step
	for _, x := range experts {
		l.of[int(x)] += l.step
	}
	l.tokens++
	e.tokens = max(e.tokens, l.tokens)
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

// use is the share of tokens that use an expert.
func (e *Experts) use(layer, expert int) float64 {
	l := e.layers[layer]
	if l == nil || l.sum == 0 {
		return 0
	}
	return l.of[expert] / l.sum
}

// Look says whether the device is to hold something else by now. before is the plan that it has.
func (e *Experts) Look(before Plan, form device.Form, t Target) (Plan, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.at) == 0 || e.tokens < learned || e.looked > 0 && e.tokens < e.looked+lookAgain {
		return before, false
	}
	e.looked = e.tokens
	t.Use = e.use
	if before.Later {
		p := Make(e.units, form, t)
		if p.Bytes == 0 || p.Token > worth*t.with(e.units, func(u *Unit) bool { return u.Expert < 0 }, form, t.Room-t.LeftOver).Token {
			return before, false
		}
		return p, true
	}
	if e.held == nil {
		return before, false
	}
	// Of experts, the one that is used most and not held takes the place of the one that is used least, as long as that pays.
	var in, out []int
	now := slices.Clone(before.Units)
	for _, i := range e.at {
		if !e.holds(i) {
			in = append(in, i)
		} else if slices.Contains(now, i) {
			out = append(out, i)
		}
	}
	by := func(a, b int) int {
		return cmp.Or(cmp.Compare(t.use(&e.units[b]), t.use(&e.units[a])), cmp.Compare(a, b))
	}
	slices.SortFunc(in, by)
	slices.SortFunc(out, by)
	disk := t.Disk
	if disk <= 0 {
		disk = usualDisk
	}
	cpus := float64(max(t.CPUs, 1))
	changed := false
	for len(in) > 0 && len(out) > 0 {
		i, o := in[0], out[len(out)-1]
		in, out = in[1:], out[:len(out)-1]
		if (t.use(&e.units[i])-t.use(&e.units[o]))*(1/disk+streamByte/cpus)*horizon <= loadByte/cpus {
			break
		}
		now = slices.DeleteFunc(now, func(k int) bool { return k == o || k == i })
		now = append(now, i)
		changed = true
	}
	if !changed {
		return before, false
	}
	slices.SortStableFunc(now, func(a, b int) int { return t.before(&e.units[a], &e.units[b]) })
	before.Units = now
	return before, true
}
