// Package handover has a device hold weights for a target without enough memory for its model. It plans which weights
// the device holds, and how much memory that takes. It runs the device's process, and has it give memory back when
// others need it.
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

// ParseForm makes a form of the name of a profile (see plan.Profiles), or, if decibels is not empty, of an
// error such as "20dB". While memory is short, a profile may have the error of the profile with the largest
// error; an error that is given is kept.
func ParseForm(profile, decibels string) (device.Form, error) {
	f := device.Form{Layout: trit.PT5Striped}
	if decibels != "" {
		n, ok := strings.CutSuffix(decibels, "dB")
		v, err := strconv.ParseFloat(strings.TrimSpace(n), 64)
		if !ok || err != nil || !(v >= 1 && v <= 100) {
			return f, fmt.Errorf("an error of %q: want the least ratio of products to their error, 1dB to 100dB, "+
				"for instance 20dB", decibels)
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

// Target is the program that a plan is for, and its machine.
type Target struct {
	Model    int64   // bytes of the model
	Room     int64   // bytes of memory for it
	LeftOver int64   // bytes of Room that a device does not take
	Disk     float64 // bytes per second; 0: not known
	CPUs     int
}

// Plan is what a device is to hold.
type Plan struct {
	// Units are the units to hold, by their index; the last one gives way first. Without Finer, they may be more than
	// find room.
	Units []int
	Bytes int64 // of memory, for planes
	Least int64 // Bytes, without planes that the form's bound does not need, or does not need while memory is short
	Rest  int64 // bytes of the model that are not held
	Finer bool  // there is room for planes beyond Least, at least for some weights

	Token, Alone float64 // seconds that a token is expected to take, with the device and without

	restFits bool // what is not held stays in memory
}

const (
	// streamWindow is the part of the room through which prefetchd streams, so that it keeps nothing.
	streamWindow = 44 << 20
	// maxTokenShare is the longest time of a token that is worth a device, as a part of its time without:
	// starting one takes seconds, and expected times are not exact (docs/measurements/analyze.md).
	maxTokenShare = 0.9
	// maxEvenExperts is how many experts a layer may have if only a part of the model fits. Which of them
	// are used most is not known. Of 16 experts in a trained model, all are used nearly alike. Of 128, few
	// carry most uses: prefetchd keeps these. If a device held others instead, 1.5 and 3.5 times as much
	// would be read (replayed: thesis-notes/rq6-fabric.md).
	maxEvenExperts = 32
	// adaptiveShare is by how much less is read of experts, for each part of them that prefetchd keeps,
	// because it keeps those that were chosen lately. With memory for 0.44 of all experts, it reads 0.77 of
	// what is read if experts are kept without regard to that (moe/replay, TestHeldExperts, the trained
	// mixture: 0.43 instead of 0.56).
	adaptiveShare = 0.5
	// lossBytes is what an error as large as the product counts for, in bytes read for each byte of the file.
	lossBytes = 1e-4
	// usualDisk stands for a disk that could not be measured.
	usualDisk = 2e9
)

// What things take, in seconds of one processor. Measured with a model of 0.8 GB of Q8_0 in memory, on two
// Zen 4 processors (docs/measurements/fabric.md).
const (
	cpuByte    = 1 / 14.2e9   // to multiply a byte of the file, by ggml
	streamByte = 0.2e-3 / 1e6 // to stream a byte
	// To multiply a weight on the device, and each of its planes in addition: fitted planes, and exact
	// ones, which are multiplied in ggml's order.
	deviceWeight, devicePlane = 40e-12, 13e-12
	exactWeight, exactPlane   = 50e-12, 22.5e-12
	// sameTime is the ratio of times up to which the device does not count as slower: runs differ by as much.
	sameTime = 1.1
)

// deviceSeconds is how many seconds of one processor a product with e takes on the device.
func deviceSeconds(e *device.Extent, planes int, form *device.Form) float64 {
	weights := float64(e.Rows) * float64(e.Cols)
	if form.Bound == 0 {
		return weights * (exactWeight + exactPlane*float64(planes))
	}
	return weights * (deviceWeight + devicePlane*float64(planes))
}

// fileBytes is the unit's size in the file.
func (u *Unit) fileBytes() (bytes int64) {
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

// cpuChoices are the choices for bytes of the file that the CPU computes with, and that a share of tokens
// uses: streamed, or kept in memory.
func (t *Target) cpuChoices(bytes int64, use float64, expert bool) []choice {
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

// withDevice adds the choices of a device that holds u: in as few planes as the form's bound allows, and in
// one more. all has the choices without a device.
func (t *Target) withDevice(all []choice, u *Unit, form *device.Form) []choice {
	kept := all[1]
	of := func(more int) choice {
		c := choice{}
		for i := range u.Matrices {
			e := &u.Matrices[i]
			n := estimatePlanes(e, form)
			if form.MayBeFiner(n) {
				n += more
			}
			c.planes = max(c.planes, n)
			c.memory += int64(form.Bytes(e, n))
			c.compute += u.Use * deviceSeconds(e, n, form) / float64(max(t.CPUs, 1)) / sameTime
			if form.Bound > 0 && n != decompose.ExactPlanes(e.Type) {
				c.loss += math.Pow(10, -estimateSNR(n)/10) / float64(len(u.Matrices))
			}
		}
		// Planes that are faster than ggml's loops are no reason for an error where memory is not short, so
		// they count as just as fast.
		c.compute = max(c.compute, kept.compute)
		c.loss *= lossBytes * all[0].diskSeconds()
		return c
	}
	all = append(all, of(0))
	if finer := of(1); finer.memory != all[2].memory {
		all = append(all, finer)
	}
	return all
}

// diskSeconds is the time of the disk.
func (c *choice) diskSeconds() float64 { return c.read + c.wait }

// otherPieces is the number of pieces in which the part of the model that no device can hold is streamed or kept.
const otherPieces = 16

// NewPlan plans for a target. units are those of Units.
//
// If the model does not fit even with a device, time comes before precision. If it does, the device takes
// as little as makes the rest fit, and as far as that leaves room, more weights are held, in more planes
// than they need, so with less error. Plan.Bytes is 0 if nothing is to be gained: the model fits as it is,
// planes would take more than its bytes do, or a token would hardly take less time.
func NewPlan(units []Unit, form device.Form, t Target) Plan {
	if t.Model <= t.Room || t.Room <= t.LeftOver {
		return Plan{}
	}
	most := 0
	for i := range units {
		most = max(most, units[i].Expert+1)
	}
	alone := t.planWith(units, false, form, t.Room-streamWindow)
	all := t.planWith(units, true, form, t.Room-t.LeftOver)
	if all.Bytes == 0 || all.Token > maxTokenShare*alone.Token {
		return Plan{}
	}
	all.Alone = alone.Token
	if most > maxEvenExperts && !all.restFits {
		return Plan{}
	}
	all.Units = wholeLayers(units, all.Units)
	return all
}

// wholeLayers leaves out experts of layers of which some experts are not held: a product of which the
// device has only a part takes longer than what it saves (docs/measurements/rejected.md).
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

// planWith plans with so many bytes of memory, with a device or without.
func (t *Target) planWith(units []Unit, onDevice bool, form device.Form, memory int64) Plan {
	memory = max(memory, 0)
	// Units that are used more come first: of choices that save about as much, shareMemory takes the first ones.
	order := make([]int, len(units))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return compareUse(&units[a], &units[b]) })
	items := make([][]choice, 0, len(units)+otherPieces)
	sizes := make([]int64, len(units), len(units)+otherPieces) // of items
	other, experts := t.Model, int64(0)
	for n, i := range order {
		u := &units[i]
		sizes[n] = u.fileBytes()
		other -= sizes[n]
		if u.Expert >= 0 {
			experts += sizes[n]
		}
		c := t.cpuChoices(sizes[n], u.Use, u.Expert >= 0)
		if onDevice {
			c = t.withDevice(c, u, &form)
		}
		items = append(items, c)
	}
	for range otherPieces {
		piece := max(other, 0) / otherPieces
		items, sizes = append(items, t.cpuChoices(piece, 1, false)), append(sizes, piece)
	}
	chosen, of := shareMemory(items, memory)
	p := Plan{Rest: t.Model}
	var keptExperts, missing int64
	for i := range chosen {
		switch c := &items[i][chosen[i]]; {
		case c.planes > 0:
			p.Units = append(p.Units, order[i])
			p.Bytes += c.memory
			p.Least += units[order[i]].leastBytes(form)
			p.Rest -= sizes[i]
		case chosen[i] == 0:
			missing += sizes[i]
		case i < len(units) && units[order[i]].Expert >= 0:
			keptExperts += sizes[i]
		}
	}
	left := memory - of.memory
	// Prefetchd keeps parts of tensors, too.
	if part := float64(min(left, missing)) / float64(max(missing, 1)); part > 0 {
		of.read, of.wait = of.read*(1-part), of.wait*(1-part)
	}
	if experts > 0 {
		of.wait *= 1 - adaptiveShare*float64(keptExperts)/float64(experts)
	}
	p.Token = of.time()
	if p.Bytes == 0 {
		return p
	}
	if p.restFits = missing <= left; p.restFits {
		p.Finer = p.Least < p.Bytes
	} else {
		// Some weights will need less memory than is expected: so more units are listed than have room.
		p.Bytes += left
		p.Least = p.Bytes
		larger, _ := shareMemory(items, memory+memory/4)
		for i, n := range larger {
			if items[i][n].planes > 0 && items[i][chosen[i]].planes == 0 {
				p.Units = append(p.Units, order[i])
			}
		}
	}
	return p
}

// compareUse sorts units that every token uses before experts, and then by how many tokens use them.
func compareUse(a, b *Unit) int {
	return cmp.Or(cmp.Compare(min(a.Expert, 0), min(b.Expert, 0)), cmp.Compare(b.Use, a.Use))
}

// leastBytes is what u takes with as few planes as it may have while memory is short.
func (u *Unit) leastBytes(form device.Form) (bytes int64) {
	for i := range u.Matrices {
		e := &u.Matrices[i]
		n := estimatePlanes(e, &form)
		if form.MayBeCoarser(n) {
			n--
		}
		bytes += int64(form.Bytes(e, n))
	}
	return bytes
}

// estimateSNR estimates the ratio of products to their error with so many planes, in decibels: 6.5 for the
// first plane, and 9.5 (a factor of 3) for each further one, as it is for weights in blocks of 32.
func estimateSNR(planes int) float64 { return 6.5 + 9.5*float64(planes-1) }

// estimatePlanes estimates how many planes e gets.
func estimatePlanes(e *device.Extent, form *device.Form) int {
	n := decompose.ExactPlanes(e.Type)
	if form.Bound > 0 {
		if k := 1 + int(math.Ceil((form.Bound-estimateSNR(1))/(estimateSNR(2)-estimateSNR(1)))); n == 0 || k < n {
			n = max(k, 1)
		}
	}
	return n
}
