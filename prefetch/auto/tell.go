package auto

// This file tells whom helpers help, and who waits for one.

import (
	"cmp"
	"slices"
	"tensorcast/processes"
)

// tell calls Options.OnChange if other candidates are helped, or wait, than when it was called last. It is called after
// each round of Run.
func (k *keeper) tell() {
	if k.o.OnChange == nil {
		return
	}
	helped := make([]processes.Candidate, 0, len(k.helpers))
	for _, h := range k.helpers {
		helped = append(helped, h.Candidate)
	}
	slices.SortFunc(helped, func(a, b processes.Candidate) int { return cmp.Compare(a.PID, b.PID) })
	if k.told && slices.Equal(helped, k.toldHelped) && slices.Equal(k.waiting, k.toldWaiting) {
		return
	}
	k.told, k.toldHelped, k.toldWaiting = true, helped, slices.Clone(k.waiting)
	k.o.OnChange(k.toldHelped, k.toldWaiting)
}
