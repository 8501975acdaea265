package trace

// This file sums up what was read from disk more than once, while the capture runs.

import (
	"cmp"
	"slices"

	"tensorcast/event"
	"tensorcast/trace/tables"
)

const (
	rereadTop       = 20
	rereadProcesses = 64
)

// rereadAccount sums up page-ins and stalls per tensor. The number of tensors bounds its size.
type rereadAccount struct {
	tensors   []tensorAccount // by structure row
	none      tensorAccount   // metadata and padding
	processes map[int32]int64 // re-read bytes by process id; 0 stands for all beyond rereadProcesses
}

type tensorAccount struct {
	firstBytes, stallNS int64
	rereadBytes         [event.CauseOther + 1]int64
}

func (t *tensorAccount) rereads() (n int64) {
	for _, b := range t.rereadBytes {
		n += b
	}
	return n
}

func (a *rereadAccount) tensor(row int32) *tensorAccount {
	if row < 0 {
		return &a.none
	}
	if missing := int(row) + 1 - len(a.tensors); missing > 0 {
		a.tensors = append(a.tensors, make([]tensorAccount, missing)...)
	}
	return &a.tensors[row]
}

func (a *rereadAccount) addPageIn(r *tables.PageInRow) {
	t := a.tensor(r.Tensor)
	if r.Rereads == 0 {
		t.firstBytes += r.Bytes
		return
	}
	t.rereadBytes[min(r.Cause, event.CauseOther)] += r.Bytes
	if a.processes == nil {
		a.processes = map[int32]int64{}
	}
	pid := r.PID
	if _, known := a.processes[pid]; !known && len(a.processes) >= rereadProcesses {
		pid = 0
	}
	a.processes[pid] += r.Bytes
}

func (a *rereadAccount) addStall(row int32, ns int64) { a.tensor(row).stallNS += ns }

// summary lists at most top tensors, those with most re-read bytes first.
func (a *rereadAccount) summary(structure []tables.StructureRow, top int) *tables.Rereads {
	s := &tables.Rereads{
		ByCause: map[string]int64{}, ByProcess: []tables.ProcessBytes{},
		Tensors: []tables.TensorRereads{},
	}
	add := func(t *tensorAccount, name string, model int32) {
		again := t.rereads()
		s.FirstBytes += t.firstBytes
		s.RereadBytes += again
		s.StallNS += t.stallNS
		if again == 0 && t.stallNS == 0 {
			return
		}
		row := tables.TensorRereads{
			Name: name, Model: model, FirstBytes: t.firstBytes, RereadBytes: again,
			ByCause: map[string]int64{}, StallNS: t.stallNS,
		}
		for cause, n := range t.rereadBytes {
			if n > 0 {
				row.ByCause[event.Cause(cause).String()] = n
				s.ByCause[event.Cause(cause).String()] += n
			}
		}
		s.Tensors = append(s.Tensors, row)
	}
	for i := range a.tensors {
		add(&a.tensors[i], structure[i].Name, structure[i].Model)
	}
	add(&a.none, "", -1)
	slices.SortStableFunc(s.Tensors, func(x, y tables.TensorRereads) int {
		return cmp.Or(cmp.Compare(y.RereadBytes, x.RereadBytes), cmp.Compare(y.StallNS, x.StallNS))
	})
	s.Tensors = s.Tensors[:min(max(top, 0), len(s.Tensors))]
	for pid, n := range a.processes {
		s.ByProcess = append(s.ByProcess, tables.ProcessBytes{PID: pid, Bytes: n})
	}
	slices.SortFunc(s.ByProcess, func(x, y tables.ProcessBytes) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.PID, y.PID))
	})
	return s
}
