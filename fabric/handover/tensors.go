// Package handover has the emulated device hold weights of a model for a target that has too little memory for it: planes with a stated error take less memory than the file's bytes,
// so fewer of these are read from disk for each token.
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
	"tensorcast/gguf"
)

// taken are the types that the backend for ggml hands to the device.
var taken = []gguf.Type{gguf.Q2_0, gguf.TQ1_0, gguf.TQ2_0, gguf.Q1_0, gguf.Q4_0, gguf.Q8_0, gguf.Q4_K, gguf.Q6_K}

// Tensors are the matrices of f that products read, the hottest first: those that every token reads, layer by layer, before experts, of which a token reads some. Any number of the first layers
// is spread evenly over the model: what the others need is read from disk while the device computes.
func Tensors(f *gguf.File) []device.Tensor {
	type ranked struct {
		device.Tensor
		share float64 // of it that a token reads
		place float64 // of its layer in the order of layers
	}
	_, untied := f.Lookup("output.weight")
	arch, _ := f.String("general.architecture")
	used, _ := f.Uint(arch + ".expert_used_count")
	var all []ranked
	for i := range f.Tensors {
		t := &f.Tensors[i]
		if !slices.Contains(taken, t.Type) || !strings.HasSuffix(t.Name, ".weight") || t.Name == "token_embd.weight" && untied || len(t.Shape) > 1 && t.Layer() < 0 && t.Name != "output.weight" && t.Name != "token_embd.weight" {
			continue
		}
		r := ranked{device.Tensor{Name: t.Name}, 1, 1} // the output is the last
		if layer := t.Layer(); layer >= 0 {
			_, r.place = math.Modf(float64(layer) / math.Phi) // multiples of the golden ratio leave no large gap (three-distance theorem)
		}
		switch n := t.Experts(); {
		case n > 0 && len(t.Shape) == 3:
			if used > 0 && used < uint64(n) {
				r.share = float64(used) / float64(n)
			}
			for e := range n {
				r.Matrices = append(r.Matrices, device.Extent{Offset: t.Offset + int64(e)*t.ExpertStride(), Type: t.Type, Rows: int(t.Shape[1]), Cols: int(t.Shape[0])})
			}
		case n == 0 && len(t.Shape) == 2:
			r.Matrices = []device.Extent{{Offset: t.Offset, Type: t.Type, Rows: int(t.Shape[1]), Cols: int(t.Shape[0])}}
		default:
			continue
		}
		if t.Shape[0]%32 == 0 {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(a.place, b.place))
	})
	tensors := make([]device.Tensor, len(all))
	for i := range all {
		tensors[i] = all[i].Tensor
	}
	return tensors
}

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

// Plan is what a device is to take.
type Plan struct {
	Bytes   int64 // of memory, for planes
	Least   int64 // of Bytes: without what the form's bound does not need, or needs only while memory is not short
	Weights int64 // of the file: how many bytes it is to hold at most
	Rest    int64 // of the model: what it does not hold then
	Finer   bool  // there is room for more planes than the form's bound needs, at least for some tensors, or for more than its bound while memory is short
}

// Room plans for a target that has room for so many bytes of its model, of which leftOver are to be left. Time comes before precision: if the model does not fit with as few planes as the form's
// bound allows, the device takes as much as there is. If it does, the device takes as little as makes the rest of the model fit, and weights get a third plane as far as that allows: more weights
// are held, then, with less error. Bytes are 0 if nothing is to be gained: the model fits as it is, planes would take more than its bytes do, or what is read for a token would hardly be less.
func Room(tensors []device.Tensor, modelBytes, room, leftOver int64, form device.Form) Plan {
	var file, planes, finer, routed, short int64
	experts := 0
	for i := range tensors {
		experts = max(experts, len(tensors[i].Matrices))
		f, p, n := sizes(&tensors[i], form)
		short += shortSize(&tensors[i], form)
		if file, planes, finer = file+f, planes+p, finer+n; len(tensors[i].Matrices) > 1 {
			routed += f
		}
	}
	if modelBytes <= room || planes >= file || room <= leftOver {
		return Plan{}
	}
	missing := float64(modelBytes - room + leftOver) // bytes of the file that are to be saved
	// take is how many bytes of memory save what is missing, if each of them stands for so many of the file.
	take := func(planes int64) (bytes int64, each float64) {
		each = float64(file) / float64(planes)
		return int64(math.Ceil(missing / (each - 1))), each
	}
	need, each := take(planes)
	bytes := min(room-leftOver, planes, need)
	without := float64(modelBytes - room + window)
	with := float64(modelBytes-(room-leftOver-bytes)) - float64(bytes)*each
	gain := leastGain
	if routed > file/2 {
		gain = leastGainRouted
	}
	if with > gain*without || bytes < need && experts >= manyExperts {
		return Plan{}
	}
	if bytes == need && finer == planes && short < planes {
		// The rest fits. When it does not any more, planes go that the bound needs.
		return Plan{Bytes: bytes, Least: int64(float64(bytes) * float64(short) / float64(planes)), Weights: file, Rest: modelBytes - int64(float64(bytes)*each), Finer: true}
	}
	if bytes < need || finer == planes {
		return Plan{Bytes: bytes, Least: bytes, Weights: file, Rest: modelBytes - file}
	}
	if finer < file {
		if need, each := take(finer); need <= min(room-leftOver, finer) {
			p := Plan{Finer: true}
			for i := 0; i < len(tensors) && p.Weights < int64(float64(need)*each); i++ {
				f, least, most := sizes(&tensors[i], form)
				p.Weights, p.Least, p.Bytes = p.Weights+f, p.Least+least, p.Bytes+most
			}
			p.Bytes, p.Rest = min(p.Bytes, room-leftOver), modelBytes-p.Weights
			return p
		}
	}
	// With third planes alone it does not fit, without them it would: everything is held, and some tensors get one.
	return Plan{Bytes: min(file-int64(missing), room-leftOver), Least: planes, Weights: file, Rest: modelBytes - file, Finer: true}
}

// sizes of a tensor: in the file, in as few planes as the form's bound allows, and with what more it may have.
func sizes(t *device.Tensor, form device.Form) (file, planes, finer int64) {
	for _, e := range t.Matrices {
		rowBytes, err := e.Type.RowBytes(int64(e.Cols))
		if err != nil {
			continue
		}
		n := planesOf(&e, form)
		file += rowBytes * int64(e.Rows)
		planes += int64(form.Bytes(&e, n))
		if form.MayBeFiner(n) {
			n++
		}
		finer += int64(form.Bytes(&e, n))
	}
	return file, planes, finer
}

// shortSize is what a tensor takes with as few planes as it may have while memory is short.
func shortSize(t *device.Tensor, form device.Form) (bytes int64) {
	for _, e := range t.Matrices {
		n := planesOf(&e, form)
		if form.MayBeCoarser(n) {
			n--
		}
		bytes += int64(form.Bytes(&e, n))
	}
	return bytes
}

const (
	// window is what of a room keeps nothing, as prefetchd streams through it.
	window = 44 << 20
	// leastGain: where planes of 'balanced' had 4 % less read, the device's work cost more than that (docs/performance.md).
	leastGain = 0.9
	// manyExperts: of mixtures with so many, few experts carry most uses. prefetchd keeps these, the device holds all of a tensor: replayed, it read 1.5 and 3.5 times as much for the two models with
	// 128 experts whose routes are public (thesis-notes/rq6-fabric.md). With 16, trained and measured, it wins.
	manyExperts = 64
	// leastGainRouted is that of a mixture. Without the device the experts that are used most are in memory; the device holds all experts of a tensor. Where this rule's estimate was 0.86, just as
	// much was read as without, and tokens took 10 % longer.
	leastGainRouted = 0.6
)

// planesOf estimates how many planes e gets: 6.5 dB for the first, and 9.5 dB (a factor of 3) for each other, as weights in blocks of 32 have it.
func planesOf(e *device.Extent, form device.Form) int {
	n := decompose.ExactPlanes(e.Type)
	if form.Bound > 0 {
		if k := 1 + int(math.Ceil((form.Bound-6.5)/9.5)); n == 0 || k < n {
			n = max(k, 1)
		}
	}
	return n
}
