package pattern

// This file compares the generated tokens: their sequences with the reference, and the experts that
// they chose with each other.

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"tensorcast/trace/tables"
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

// Difference describes one sequence that is not the reference, and the tokens that have it. The
// reads that both have in common at the beginning and at the end are left out. Expected is the rest
// of the reference, Got the rest of the other. At least one of them is not empty.
type Difference struct {
	Tokens   []int32     `json:"tokens"`   // generated tokens with this sequence
	Position int         `json:"position"` // index in the reference of the first read that differs
	Kind     Kind        `json:"kind"`
	Expected []NamedRead `json:"expected"`
	Got      []NamedRead `json:"got"`
}

// Sequences is the verdict on the steps that generate and are not cut short. Each is compared with
// those that generate as many tokens.
type Sequences struct {
	// Identical means that all steps have the reference sequence of their batch size. It is true
	// for a single step.
	Identical   bool         `json:"identical"`
	Tokens      int          `json:"tokens"`    // that these steps generate
	Following   int          `json:"following"` // of these, by steps that have the reference sequence
	Steps       int          `json:"steps"`     // that were compared
	Distinct    int          `json:"distinct"`  // sequences, the references included
	Batches     []Batch      `json:"batches"`   // by size
	Differences []Difference `json:"differences"`
}

// Batch sums up the steps that generate the same number of tokens.
type Batch struct {
	Tokens    int `json:"tokens"` // of each step
	Steps     int `json:"steps"`
	Following int `json:"following"` // steps that have this size's reference sequence
	Reads     int `json:"reads"`     // of the reference sequence
}

// Sequences compares the generated tokens. It describes at most limit sequences besides the
// references, in the order of the first step that has each.
func (p *Pattern) Sequences(limit int) Sequences {
	v := Sequences{Differences: []Difference{}}
	type other struct {
		batch    int32
		sequence int
	}
	var order []other // distinct sequences besides the references
	tokens := map[other][]int32{}
	batches := map[int32]*Batch{}
	for i := range p.tokens() {
		s := &p.Steps[i]
		b := batches[s.Batch]
		if b == nil {
			b = &Batch{Tokens: int(s.Batch), Reads: len(p.batches[s.Batch].reads)}
			batches[s.Batch] = b
		}
		v.Steps++
		b.Steps++
		v.Tokens += int(s.Batch)
		if !p.Deviates(s) {
			b.Following++
			v.Following += int(s.Batch)
			continue
		}
		key := other{s.Batch, s.sequence}
		if tokens[key] == nil {
			order = append(order, key)
		}
		tokens[key] = append(tokens[key], s.Token)
	}
	for _, size := range slices.Sorted(maps.Keys(batches)) {
		v.Batches = append(v.Batches, *batches[size])
	}
	v.Identical = v.Following == v.Tokens
	v.Distinct = len(v.Batches) + len(order)
	for _, key := range order[:min(limit, len(order))] {
		d := p.difference(p.batches[key.batch].reads, p.sequences[key.sequence])
		d.Tokens = tokens[key]
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
	verb := "differs"
	if len(d.Tokens) > 1 {
		verb = "differ"
	}
	return fmt.Sprintf("%s %s at position %d: %s", tokenList(d.Tokens), verb, d.Position, d.describe())
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

// tokenList formats tokens as "token 7", "tokens 7 and 9", or "tokens 7, 8, 9 and 40 more".
func tokenList(tokens []int32) string {
	const shown = 5
	var names []string
	for _, t := range tokens[:min(shown, len(tokens))] {
		names = append(names, strconv.Itoa(int(t)))
	}
	if rest := len(tokens) - len(names); rest > 0 {
		names = append(names, fmt.Sprintf("%d more", rest))
	}
	if len(names) == 1 {
		return "token " + names[0]
	}
	last := len(names) - 1
	return "tokens " + strings.Join(names[:last], ", ") + " and " + names[last]
}

// formatCount formats a number of things as "1 read" or "2 reads".
func formatCount(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Experts is the verdict on the experts that the generated tokens with the reference sequence
// chose. Two tokens choose the same if each op selects the same set, in any order.
type Experts struct {
	Tokens    int  `json:"tokens"`    // that were compared
	Identical bool `json:"identical"` // all tokens chose the same
	// FirstToken is the first token that chose differently from the first one. FirstTensor is the
	// tensor of its first such read. They are -1 and "" if Identical.
	FirstToken  int32  `json:"first_token"`
	FirstTensor string `json:"first_tensor_name"`
	// Distinct is the number of different choices (of all the step's ops together) among the tokens.
	Distinct int `json:"distinct"`
	// Kept is the share (0 to 1) of a token's experts that the previous token chose too, over all
	// tokens and ops. The previous token is the last one of the same thread with the reference
	// sequence. Kept is -1 if no token has a previous one.
	Kept float64 `json:"kept_from_previous_token"`
}

// Experts compares the tokens' experts. It returns nil if no op of the reference sequence selects
// experts.
func (p *Pattern) Experts() *Experts {
	steps := p.reference[tables.PhaseGeneration].steps
	first := &p.Steps[steps[0]]
	if first.experts == nil {
		return nil
	}
	v := &Experts{Tokens: len(steps), Identical: true, FirstToken: -1}
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
