package handover

// This file decides which weights are held, and how many bytes of memory that takes.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"tensorcast/fabric/decompose"
	"tensorcast/fabric/device"
	"tensorcast/fabric/plan"
	"tensorcast/fabric/trit"
)

// ParseForm makes a form of the name of a profile (see plan.Profiles), or, if it is not empty, of an error as "20dB". While memory is short, a profile may have the error of the one with the largest;
// who gives an error means it.
func ParseForm(profile, decibels string) (device.Form, error) {
	f := device.Form{Layout: trit.PT5Striped}
	if decibels != "" {
		n, ok := strings.CutSuffix(decibels, "dB")
		v, err := strconv.ParseFloat(strings.TrimSpace(n), 64)
		if !ok || err != nil || !(v >= 1 && v <= 100) {
			return f, fmt.Errorf("an error of %q: want the least ratio of products to their error, 1dB to 100dB, for instance 20dB", decibels)
		}
		f.Bound = v
		return f, nil
	}
	least, found := math.Inf(1), false
	for _, p := range plan.Profiles() {
		least = min(least, p.Bound)
		if found = found || p.Name == profile; p.Name == profile && !math.IsInf(p.Bound, 1) {
			f.Bound = p.Bound
		}
	}
	if found {
		if f.Bound > least {
			f.Short = least
		}
		return f, nil
	}
	return f, fmt.Errorf("no profile is called %q", profile)
}

// Target is what a plan is for.
type Target struct {
	Model    int64   // bytes of the model
	Room     int64   // bytes of memory for it
	LeftOver int64   // of Room: what the device does not take, if there is one
	Disk     float64 // bytes per second; 0: not known
	CPUs     int
}

// Plan is what a device is to hold.
type Plan struct {
	Units []int // which, in this order: what comes last goes first. Without Finer it may be more than finds room
	Bytes int64 // of memory, for planes
	Least int64 // of Bytes: without what the form's bound does not need, or needs only while memory is not short
	Rest  int64 // of the model: what it does not hold then
	Finer bool  // there is room for more planes than the form's bound needs, at least for some weights, or for more than its bound while memory is short

	fits         bool    // what is not held stays in memory
	Token, Alone float64 // seconds that a token is expected to take, and without a device
}

const (
	// window is what of a room keeps nothing, as prefetchd streams through it.
	window = 44 << 20
	// worth is what a token's time is to be at most, as a part of that without a device: its start takes seconds, and what is expected is not exact (docs/performance.md).
	worth = 0.9
	// evenExperts is how many experts a layer may have that are held, as their use is not known. Of 16, trained, use is nearly even. Of 128 few carry most uses: prefetchd keeps these, and if others are held
	// instead, 1.5 and 3.5 times as much is read (docs/performance.md, replayed). So nothing is handed over then, unless all fits.
	evenExperts = 32
	// adapting: prefetchd keeps experts by what was chosen lately. With so much in memory as makes 0.44 of all experts, it reads 0.77 of what is read if as many are kept that are used alike
	// (moe/replay, TestHeldExperts, the trained mixture: 0.43 instead of 0.56).
	adapting = 0.5
	// lossBytes is what an error as large as the product counts for, in bytes read for each byte of the file.
	lossBytes = 1e-4
	// usualDisk stands for a disk that could not be measured.
	usualDisk = 2e9
)

// What processors take, in seconds of one of them. Measured with a model of 0.8 GB of Q8_0 in memory, two Zen 4 (docs/performance.md, "Other types").
const (
	cpuByte    = 1 / 14.2e9   // a byte of the file, multiplied by ggml
	streamByte = 0.2e-3 / 1e6 // streamed
	// a weight on the device, and for each of its planes: fitted ones, and exact ones, which are multiplied in ggml's order
	deviceWeight, devicePlane = 40e-12, 13e-12
	exactWeight, exactPlane   = 50e-12, 22.5e-12
	// sameTime is by how much the device may be slower without that this counts: less differs between runs.
	sameTime = 1.1
)

// seconds of one processor that e takes on the device.
func seconds(e *device.Extent, planes int, form *device.Form) float64 {
	weights := float64(e.Rows) * float64(e.Cols)
	if form.Bound == 0 {
		return weights * (exactWeight + exactPlane*float64(planes))
	}
	return weights * (deviceWeight + devicePlane*float64(planes))
}

// size is what of a unit lies in the file.
func (u *Unit) size() (bytes int64) {
	for i := range u.Matrices {
		e := &u.Matrices[i]
		row, err := e.Type.RowBytes(int64(e.Cols))
		if err != nil {
			continue // no such unit is made
		}
		bytes += row * int64(e.Rows)
	}
	return bytes
}

// choices are those of bytes of the file that a share of tokens use: streamed, or kept.
func (t *Target) choices(bytes int64, use float64, expert bool) []choice {
	disk := t.Disk
	if disk <= 0 {
		disk = usualDisk
	}
	cpus := float64(max(t.CPUs, 1))
	each := use * float64(bytes)
	streamed := choice{compute: each * (cpuByte + streamByte) / cpus}
	if expert {
		streamed.wait = each / disk
	} else {
		streamed.read = each / disk
	}
	return []choice{streamed, {memory: bytes, compute: each * cpuByte / cpus}}
}

// held adds the choices of u on a device: as few planes as the form's bound allows, and one more.
func (t *Target) held(all []choice, u *Unit, form *device.Form) []choice {
	kept := all[1]
	of := func(more int) choice {
		c := choice{}
		for i := range u.Matrices {
			e := &u.Matrices[i]
			n := planesOf(e, form)
			if form.MayBeFiner(n) {
				n += more
			}
			c.planes = max(c.planes, n)
			c.memory += int64(form.Bytes(e, n))
			c.compute += u.Use * seconds(e, n, form) / float64(max(t.CPUs, 1)) / sameTime
			if form.Bound > 0 && n != decompose.ExactPlanes(e.Type) {
				c.loss += math.Pow(10, -signal(n)/10) / float64(len(u.Matrices))
			}
		}
		// That planes are faster than ggml's loops is no reason to have an error where memory is not short.
		c.compute = max(c.compute, kept.compute)
		c.loss *= lossBytes * all[0].seconds()
		return c
	}
	all = append(all, of(0))
	if finer := of(1); finer.memory != all[2].memory {
		all = append(all, finer)
	}
	return all
}

// seconds of the disk.
func (c *choice) seconds() float64 { return c.read + c.wait }

// otherPieces is in how many pieces what no device can hold is streamed or kept.
const otherPieces = 16

// Make plans for a target. The model's units are those of Units. Where it does not fit, time comes before precision; where it does with a device, this takes as little as makes the rest fit, and weights get
// more planes than they need as far as that allows: more of them are held, then, with less error. Bytes are 0 if nothing is to be gained: the model fits as it is, planes would take more than its bytes do, or a token would hardly take less time.
func Make(units []Unit, form device.Form, t Target) Plan {
	if t.Model <= t.Room || t.Room <= t.LeftOver {
		return Plan{}
	}
	most := 0
	for i := range units {
		most = max(most, units[i].Expert+1)
	}
	alone := t.with(units, false, form, t.Room-window)
	all := t.with(units, true, form, t.Room-t.LeftOver)
	if all.Bytes == 0 || all.Token > worth*alone.Token {
		return Plan{}
	}
	all.Alone = alone.Token
	if most > evenExperts && !all.fits {
		return Plan{}
	}
	all.Units = wholeLayers(units, all.Units)
	return all
}

// wholeLayers leaves out experts of layers of which some are not held: a product of which the device has a part takes longer than what it saves there (docs/performance.md).
func wholeLayers(units []Unit, held []int) []int {
	missing := map[int]int{} // experts, by layer
	for i := range units {
		if units[i].Expert >= 0 {
			missing[units[i].Layer]++
		}
	}
	for _, i := range held {
		if units[i].Expert >= 0 {
			missing[units[i].Layer]--
		}
	}
	return slices.DeleteFunc(held, func(i int) bool { return units[i].Expert >= 0 && missing[units[i].Layer] > 0 })
}

// with plans with so many bytes of memory, with a device or without.
func (t *Target) with(units []Unit, onDevice bool, form device.Form, memory int64) Plan {
	memory = max(memory, 0)
	order := make([]int, len(units)) // what is used more comes first, also of what saves about as much
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return before(&units[a], &units[b]) })
	items := make([][]choice, 0, len(units)+otherPieces)
	sizes := make([]int64, len(units), len(units)+otherPieces) // of items
	other, experts := t.Model, int64(0)
	for n, i := range order {
		u := &units[i]
		sizes[n] = u.size()
		other -= sizes[n]
		if u.Expert >= 0 {
			experts += sizes[n]
		}
		c := t.choices(sizes[n], u.Use, u.Expert >= 0)
		if onDevice {
			c = t.held(c, u, &form)
		}
		items = append(items, c)
	}
	for range otherPieces {
		piece := max(other, 0) / otherPieces
		items, sizes = append(items, t.choices(piece, 1, false)), append(sizes, piece)
	}
	chosen, of := share(items, memory)
	p := Plan{Rest: t.Model}
	var keptExperts, missing int64
	for i := range chosen {
		switch c := &items[i][chosen[i]]; {
		case c.planes > 0:
			p.Units = append(p.Units, order[i])
			p.Bytes += c.memory
			p.Least += units[order[i]].least(form)
			p.Rest -= sizes[i]
		case chosen[i] == 0:
			missing += sizes[i]
		case i < len(units) && units[order[i]].Expert >= 0:
			keptExperts += sizes[i]
		}
	}
	left := memory - of.memory
	if part := float64(min(left, missing)) / float64(max(missing, 1)); part > 0 { // prefetchd keeps parts of tensors
		of.read, of.wait = of.read*(1-part), of.wait*(1-part)
	}
	if experts > 0 {
		of.wait *= 1 - adapting*float64(keptExperts)/float64(experts)
	}
	p.Token = of.time()
	if p.Bytes == 0 {
		return p
	}
	if p.fits = missing <= left; p.fits {
		p.Finer = p.Least < p.Bytes
	} else {
		// What needs less memory than is expected leaves room for more.
		p.Bytes += left
		p.Least = p.Bytes
		larger, _ := share(items, memory+memory/4)
		for i, n := range larger {
			if items[i][n].planes > 0 && items[i][chosen[i]].planes == 0 {
				p.Units = append(p.Units, order[i])
			}
		}
	}
	return p
}

// before has what is used more come first.
func before(a, b *Unit) int {
	return cmp.Or(cmp.Compare(min(a.Expert, 0), min(b.Expert, 0)), cmp.Compare(b.Use, a.Use))
}

// least is what u takes with as few planes as it may have while memory is short.
func (u *Unit) least(form device.Form) (bytes int64) {
	for i := range u.Matrices {
		e := &u.Matrices[i]
		n := planesOf(e, &form)
		if form.MayBeCoarser(n) {
			n--
		}
		bytes += int64(form.Bytes(e, n))
	}
	return bytes
}

// signal estimates the ratio of products to their error with so many planes, in decibels: 6.5 for the first, and 9.5 (a factor of 3) for each other, as weights in blocks of 32 have it.
func signal(planes int) float64 { return 6.5 + 9.5*float64(planes-1) }

// planesOf estimates how many planes e gets.
func planesOf(e *device.Extent, form *device.Form) int {
	n := decompose.ExactPlanes(e.Type)
	if form.Bound > 0 {
		if k := 1 + int(math.Ceil((form.Bound-signal(1))/(signal(2)-signal(1)))); n == 0 || k < n {
			n = max(k, 1)
		}
	}
	return n
}
