package gather

// This file makes the sequence of reads that memories of other sizes are replayed with.

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"tensorcast/internal/stats"
	"tensorcast/sim/reuse"
	"tensorcast/trace/tables"
)

// Sizes of the blocks that memory is counted in.
const (
	folioBytes      = 2 << 20 // of the largest folios on x86-64, and on arm64 with pages of 4 KiB
	leastBlockBytes = 64 << 10
)

// Replay is what a capture's steps read of the files, in their order, and how long they took.
type Replay struct {
	Sequence *reuse.Sequence
	Fill     int // steps of Sequence that fill the memory before the first that counts

	whole  []float64 // seconds of each counted step but the first, with its waiting for the disk
	times  []float64 // seconds of each counted step, without its waiting as far as that was observed
	stalls bool      // waiting was observed
}

// ReplayOptions say what of a capture is replayed.
type ReplayOptions struct {
	Context int32
	Model   int32
	Phase   tables.Phase // whose steps count
	Passes  bool         // a step may go through the model several times: each pass is replayed as a step
	Group   int          // steps that are replayed together, and read what they share once
	Batch   int32        // tokens that a step generates: the times are of steps with so many
	Extents bool         // count memory in extents as they lie in the file, not in folios
}

// NewReplay reads what the steps of a context have read. One at a time, prompt and warm-up fill the memory, and so does
// the first generated token. In groups, only generated steps are replayed, and the first group fills the memory. Of a
// context that generated nothing the steps of the prompts count. The first pass through the model fills the memory.
func NewReplay(
	meta *tables.Meta, structure []tables.StructureRow, accesses iter.Seq2[*tables.Access, error],
	steps iter.Seq2[*tables.StepRow, error], o ReplayOptions,
) (*Replay, error) {
	files := newFileNumbers(meta, structure, o.Model)
	block := int64(0)
	if !o.Extents {
		block = blockSize(structure, o.Model)
	}
	r := &Replay{Sequence: reuse.New(block, files.sizes, o.Group)}
	current, stall := int32(-1), map[int32]int64{}
	passes := map[int32]int{} // of the steps that count
	var tensor int32          // of the first read of the current step
	var op string
	for a, err := range accesses {
		if err != nil {
			return nil, err
		}
		isCounted := a.Phase == o.Phase
		if a.Context != o.Context || o.Group > 1 && !isCounted {
			continue
		}
		isNew := a.Step != current
		if isNew {
			current, tensor, op = a.Step, a.Tensor, strings.Clone(a.Op) // the row is reused
		}
		// Each pass begins with the same read.
		if isNew || o.Passes && a.Tensor == tensor && a.Op == op {
			if isCounted {
				passes[a.Step]++
			} else {
				r.Fill++
			}
			r.Sequence.Step()
		}
		if a.Stall > 0 {
			stall[a.Step] += a.Stall
		}
		r.stalls = r.stalls || a.Stall != tables.NotObserved
		read := func(file string, offset, bytes int64) error {
			return r.Sequence.Read(files.number(file), offset, bytes)
		}
		if err := eachExtent(a, structure, read); err != nil {
			return nil, err
		}
	}
	r.Fill++
	for s, err := range steps {
		if err != nil {
			return nil, err
		}
		isTimed := s.End != tables.NotObserved && s.End > s.Begin
		isCounted := s.Phase == o.Phase && (max(s.Tokens, 1) == o.Batch || o.Phase != tables.PhaseGeneration)
		if s.Context == o.Context && isCounted && isTimed {
			perSecond := 1e9 * float64(max(passes[s.Step], 1)) // ns
			if len(r.times) > 0 {
				r.whole = append(r.whole, float64(s.End-s.Begin)/perSecond)
			}
			// The sum over the threads is more than what the step waited. This is what it waited at least.
			waited := stall[s.Step] / int64(max(meta.Host.CPUs, 1))
			r.times = append(r.times, max(float64(s.End-s.Begin-waited), 0)/perSecond)
		}
	}
	return r, nil
}

// Compute is how long a step computes, and how that is known.
func (r *Replay) Compute() (compute time.Duration, source string, err error) {
	if len(r.times) == 0 {
		return 0, "", errors.New("no step's end was observed")
	}
	source = "the median of the capture's steps, without their waiting for the disk"
	if !r.stalls {
		source = "the median of the capture's steps, with their waiting for the disk, which tracer --detail op+io " +
			"tells apart"
	}
	return time.Duration(stats.Median(r.times) * 1e9), source, nil
}

// Waited is how many seconds a step that computes for so long waited, by the median of the capture's steps. It is false
// if their times are not known, or are shorter than that.
func (r *Replay) Waited(compute time.Duration) (seconds float64, known bool) {
	if len(r.whole) == 0 {
		return 0, false
	}
	seconds = stats.Median(r.whole) - compute.Seconds()
	return seconds, seconds > 0
}

// fileNumbers numbers the files of a model.
type fileNumbers struct {
	numbers map[string]int32
	sizes   []int64 // by number; the greatest int64 where it is not known
}

func newFileNumbers(meta *tables.Meta, structure []tables.StructureRow, model int32) *fileNumbers {
	f := &fileNumbers{numbers: map[string]int32{}}
	if int(model) < len(meta.Models) {
		for _, file := range meta.Models[model].Files {
			f.numbers[file.Name] = int32(len(f.sizes))
			f.sizes = append(f.sizes, file.Bytes)
		}
	}
	for i := range structure {
		if structure[i].Model == model {
			f.number(structure[i].File)
		}
	}
	return f
}

func (f *fileNumbers) number(name string) int32 {
	n, ok := f.numbers[name]
	if !ok {
		n = int32(len(f.sizes))
		f.numbers[name] = n
		f.sizes = append(f.sizes, math.MaxInt64)
	}
	return n
}

// blockSize is the size of a folio, but at most a quarter of an expert: larger blocks would count experts
// together with their neighbours.
func blockSize(structure []tables.StructureRow, model int32) int64 {
	size := int64(folioBytes)
	for _, s := range structure {
		for s.Model == model && s.ExpertStride > 0 && size > s.ExpertStride/4 && size > leastBlockBytes {
			size /= 2
		}
	}
	return size
}

// eachExtent calls read for what an access read: the slices of the chosen experts, or its bytes from its
// offset on. Of an access that gathers several rows only the tensor is known: its bytes are taken from
// the tensor's beginning.
func eachExtent(
	a *tables.Access, structure []tables.StructureRow, read func(file string, offset, bytes int64) error,
) error {
	if a.Tensor < 0 || int(a.Tensor) >= len(structure) {
		return nil
	}
	s := &structure[a.Tensor]
	if len(a.Experts) == 0 || s.ExpertStride <= 0 {
		return read(s.File, a.Offset, a.Bytes)
	}
	each := min(a.Bytes/int64(len(a.Experts)), s.ExpertStride)
	for _, e := range a.Experts {
		if e < 0 || e >= s.Experts {
			return fmt.Errorf("expert %d of %s, which has %d", e, s.Name, s.Experts)
		}
		if err := read(s.File, s.Offset+int64(e)*s.ExpertStride, each); err != nil {
			return err
		}
	}
	return nil
}
