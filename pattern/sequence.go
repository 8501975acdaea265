package pattern

// This file compares the steps that generate tokens: their sequences with the reference, and the experts
// that they chose with each other. Where nothing was generated, it compares the steps of the prompts.

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"tensorcast/internal/stats"
)

// Kind is how a sequence departs from the reference.
type Kind string

// The kinds of Difference.
const (
	KindMissing Kind = "missing" // reads of the reference are left out
	KindExtra   Kind = "extra"   // there are reads besides those of the reference
	KindOrder   Kind = "order"   // the same reads in another order
	KindSize    Kind = "size"    // one read has another number of bytes
	KindOp      Kind = "op"      // one read is made by another op
	KindOther   Kind = "other"   // anything else
)

// NamedRead is a Read with the tensor's name.
type NamedRead struct {
	Tensor string `json:"tensor_name"`
	Op     string `json:"op"`
	Bytes  int64  `json:"bytes_accessed"`
}

// Difference describes one sequence that is not the reference, and the tokens or steps that have it. The
// reads that both have in common at the beginning and at the end are left out. Expected is the rest
// of the reference, Got the rest of the other. At least one of them is not empty.
type Difference struct {
	Tokens   []int32     `json:"tokens"`          // generated tokens with this sequence
	Steps    []int32     `json:"steps,omitempty"` // the steps, if these generate nothing
	Position int         `json:"position"`        // index in the reference of the first read that differs
	Kind     Kind        `json:"kind"`
	Expected []NamedRead `json:"expected"`
	Got      []NamedRead `json:"got"`
}

// Sequences is the verdict on the steps of the pattern's phase that are not cut short. Each is compared
// with those that generate as many tokens. Those that generate nothing are compared with those that go
// through the model as often.
type Sequences struct {
	// Identical means that all steps have the reference sequence of their group. It is true
	// for a single step.
	Identical   bool         `json:"identical"`
	Tokens      int          `json:"tokens"`    // that these steps compute
	Following   int          `json:"following"` // of these, by steps that have the reference sequence
	Steps       int          `json:"steps"`     // that were compared
	Distinct    int          `json:"distinct"`  // sequences, the references included
	Batches     []Batch      `json:"batches"`   // by size, or by passes
	Differences []Difference `json:"differences"`

	perDecode bool // the steps generate nothing
	following int  // steps that have the reference sequence of their group
}

// Batch sums up the steps that generate the same number of tokens, or that generate nothing and go through
// the model as often.
type Batch struct {
	Tokens    int `json:"tokens"`           // of each step; 0 if they generate nothing
	Passes    int `json:"passes,omitempty"` // of each step, if they generate nothing
	Steps     int `json:"steps"`
	Following int `json:"following"` // steps that have this group's reference sequence
	Reads     int `json:"reads"`     // of the reference sequence
}

// Sequences compares the steps of the pattern's phase. It describes at most limit sequences besides the
// references, in the order of the first step that has each.
func (p *Pattern) Sequences(limit int) Sequences {
	v := Sequences{Differences: []Difference{}, perDecode: !p.Generates()}
	type other struct {
		group    int32
		sequence int
	}
	var order []other             // distinct sequences besides the references
	having := map[other][]int32{} // tokens, or steps if they generate nothing
	batches := map[int32]*Batch{}
	for i := range p.comparedSteps() {
		s := &p.Steps[i]
		group := p.groupOf(s)
		b := batches[group]
		if b == nil {
			b = &Batch{Tokens: int(group), Reads: len(p.groups[group].reads)}
			if v.perDecode {
				b.Tokens, b.Passes = 0, int(group)
			}
			batches[group] = b
		}
		v.Steps++
		b.Steps++
		v.Tokens += int(s.Batch)
		if !p.Deviates(s) {
			b.Following++
			v.following++
			v.Following += int(s.Batch)
			continue
		}
		key := other{group, s.sequence}
		if having[key] == nil {
			order = append(order, key)
		}
		number := s.Token
		if v.perDecode {
			number = s.Number
		}
		having[key] = append(having[key], number)
	}
	for _, group := range slices.Sorted(maps.Keys(batches)) {
		v.Batches = append(v.Batches, *batches[group])
	}
	v.Identical = v.following == v.Steps
	v.Distinct = len(v.Batches) + len(order)
	for _, key := range order[:min(limit, len(order))] {
		d := p.difference(p.groups[key.group].reads, p.sequences[key.sequence])
		d.Tokens = having[key]
		if v.perDecode {
			d.Tokens, d.Steps = []int32{}, having[key]
		}
		v.Differences = append(v.Differences, d)
	}
	return v
}

func (p *Pattern) difference(want, got []Read) Difference {
	from := 0
	for from < min(len(want), len(got)) && sameRead(want[from], got[from]) {
		from++
	}
	want, got = want[from:], got[from:]
	for len(want) > 0 && len(got) > 0 && sameRead(want[len(want)-1], got[len(got)-1]) {
		want, got = want[:len(want)-1], got[:len(got)-1]
	}
	return Difference{Position: from, Kind: kindOf(want, got), Expected: p.nameReads(want), Got: p.nameReads(got)}
}

func kindOf(want, got []Read) Kind {
	switch {
	case len(got) == 0:
		return KindMissing
	case len(want) == 0:
		return KindExtra
	case len(want) == 1 && len(got) == 1 && want[0].Tensor == got[0].Tensor && want[0].Op == got[0].Op:
		return KindSize
	case len(want) == 1 && len(got) == 1 && want[0].Tensor == got[0].Tensor:
		return KindOp
	case sameReads(want, got):
		return KindOrder
	}
	return KindOther
}

func sameReads(a, b []Read) bool {
	count := map[Read]int{}
	for _, r := range a {
		count[r.identity()]++
	}
	for _, r := range b {
		count[r.identity()]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

func (p *Pattern) nameReads(reads []Read) []NamedRead {
	named := make([]NamedRead, len(reads))
	for i, r := range reads {
		named[i] = NamedRead{p.Structure[r.Tensor].Name, r.Op, r.Bytes}
	}
	return named
}

// String returns one sentence: "token 7 differs at position 12: reads X instead of Y (…)".
func (d Difference) String() string {
	what, numbers, verb := "token", d.Tokens, "differs"
	if d.Steps != nil {
		what, numbers = "step", d.Steps
	}
	if len(numbers) > 1 {
		verb = "differ"
	}
	return fmt.Sprintf("%s %s at position %d: %s", numberList(what, numbers), verb, d.Position, d.describe())
}

func (d Difference) describe() string {
	more := func(reads []NamedRead) string {
		if len(reads) < 2 {
			return ""
		}
		return fmt.Sprintf(" and %s more", formatCount(len(reads)-1, "read"))
	}
	switch d.Kind {
	case KindMissing:
		return fmt.Sprintf("does not read %s%s", d.Expected[0].Tensor, more(d.Expected))
	case KindExtra:
		return fmt.Sprintf("reads %s%s besides", d.Got[0].Tensor, more(d.Got))
	case KindSize:
		return fmt.Sprintf("reads %d bytes of %s instead of %d", d.Got[0].Bytes, d.Got[0].Tensor, d.Expected[0].Bytes)
	case KindOp:
		return fmt.Sprintf("reads %s by %s instead of %s", d.Got[0].Tensor, d.Got[0].Op, d.Expected[0].Op)
	case KindOrder:
		return fmt.Sprintf("reads %s instead of %s (the same %d reads in another order)", d.Got[0].Tensor,
			d.Expected[0].Tensor, len(d.Got))
	}
	return fmt.Sprintf("reads %s instead of %s (%s where the others have %d)", d.Got[0].Tensor, d.Expected[0].Tensor,
		formatCount(len(d.Got), "read"), len(d.Expected))
}

// numberList formats numbers of things as "token 7", "tokens 7 and 9", or "tokens 7, 8, 9 and 40 more".
func numberList(what string, numbers []int32) string {
	const shown = 5
	var names []string
	for _, n := range numbers[:min(shown, len(numbers))] {
		names = append(names, strconv.Itoa(int(n)))
	}
	if rest := len(numbers) - len(names); rest > 0 {
		names = append(names, fmt.Sprintf("%d more", rest))
	}
	if len(names) == 1 {
		return what + " " + names[0]
	}
	last := len(names) - 1
	return what + "s " + strings.Join(names[:last], ", ") + " and " + names[last]
}

// formatCount formats a number of things as "1 read" or "2 reads".
func formatCount(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Experts is the verdict on the experts that were chosen in the steps with the reference sequence: those
// that generate tokens, or, where nothing was generated, those of the prompts. Two steps choose the same
// if each op selects the same set, in any order.
type Experts struct {
	Tokens    int  `json:"tokens"`    // steps that were compared; each is a token if one sequence is generated
	Identical bool `json:"identical"` // all steps chose the same
	// FirstToken is the first token that chose differently from the first one. FirstTensor is the
	// tensor of its first such read. They are -1 and "" if Identical. FirstStep is the step of that
	// token, if the steps generate nothing. FirstToken is then -1, too.
	FirstToken  int32  `json:"first_token"`
	FirstStep   int32  `json:"first_step,omitempty"`
	FirstTensor string `json:"first_tensor_name"`
	// Distinct is the number of different choices (of all the step's ops together) among the tokens.
	Distinct int `json:"distinct"`
	// Kept is the share (0 to 1) of a token's experts that the previous token chose too, over all
	// tokens and ops. The previous token is the last one of the same thread with the reference
	// sequence. Kept is -1 if no token has a previous one.
	Kept float64 `json:"kept_from_previous_token"`
	// Touched is how many different experts a step of several tokens reads, over all layers together. It
	// is null if a step computes one token. An expert of another layer is another expert.
	Touched *Touched `json:"touched_per_step,omitempty"`

	perDecode bool // the steps generate nothing
}

// Touched describes how many different experts a step reads, and how many the model has.
type Touched struct {
	Spread
	Of int64 `json:"of"`
}

// Experts compares the steps' experts. It returns nil if no op of the reference sequence selects
// experts.
func (p *Pattern) Experts() *Experts {
	steps := p.reference[p.Phase].steps
	first := &p.Steps[steps[0]]
	if first.experts == nil {
		return nil
	}
	v := &Experts{Tokens: len(steps), Identical: true, FirstToken: -1, perDecode: !p.Generates()}
	if first.Batch != 1 {
		v.Touched = p.touchedExperts(steps)
	}
	var kept, chosen int
	distinct := map[string]struct{}{}
	previous := map[int32]*Step{} // by thread
	for _, i := range steps {
		s := &p.Steps[i]
		var key []byte
		for at, experts := range s.experts {
			key = binary.AppendUvarint(key, uint64(len(experts)))
			for _, e := range experts {
				key = binary.AppendVarint(key, int64(e))
			}
			if v.Identical && !slices.Equal(experts, first.expertsAt(at)) {
				v.Identical, v.FirstToken, v.FirstTensor = false, s.Token, p.Structure[s.Reads[at].Tensor].Name
				if v.perDecode {
					v.FirstStep = s.Number
				}
			}
			if before := previous[s.thread]; before != nil {
				kept += countCommon(before.expertsAt(at), experts)
				chosen += len(experts)
			}
		}
		distinct[string(key)] = struct{}{}
		previous[s.thread] = s
	}
	v.Distinct = len(distinct)
	v.Kept = -1
	if chosen > 0 {
		v.Kept = float64(kept) / float64(chosen)
	}
	return v
}

// touchedExperts counts the different experts that each of the steps reads. The tensors of a layer share
// its experts.
func (p *Pattern) touchedExperts(steps []int) *Touched {
	type expert struct{ layer, number int32 }
	var counts []int64
	for _, i := range steps {
		s := &p.Steps[i]
		read := map[expert]struct{}{}
		for at, experts := range s.experts {
			for _, e := range experts {
				read[expert{p.Structure[s.Reads[at].Tensor].Layer, e}] = struct{}{}
			}
		}
		counts = append(counts, int64(len(read)))
	}
	t := &Touched{Spread: Spread{
		Median: int64(stats.Median(counts)), Min: slices.Min(counts), Max: slices.Max(counts),
	}}
	layers := map[int32]int32{} // how many experts each layer has
	for i := range p.Structure {
		if row := &p.Structure[i]; row.Model == p.Model {
			layers[row.Layer] = max(layers[row.Layer], row.Experts)
		}
	}
	for _, experts := range layers {
		t.Of += int64(experts)
	}
	return t
}

// expertsAt returns the experts that a read selects, nil if it selects none.
func (s *Step) expertsAt(read int) []int32 {
	if read >= len(s.experts) {
		return nil
	}
	return s.experts[read]
}

// countCommon returns the number of elements that two ascending lists share.
func countCommon(a, b []int32) int {
	n := 0
	for _, e := range b {
		if _, ok := slices.BinarySearch(a, e); ok {
			n++
		}
	}
	return n
}
