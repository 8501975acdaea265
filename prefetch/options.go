package prefetch

// This file has what a Controller can be told.

import (
	"log/slog"
	"time"

	"tensorcast/event"
	"tensorcast/internal/proc"
	"tensorcast/pattern"
	"tensorcast/prefetch/mixture"
	"tensorcast/prefetch/models"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/plan"
	"tensorcast/prefetch/room"
)

// Options of a Controller. Only Memory is needed.
type Options struct {
	Strategy plan.Strategy // nil: plan.Auto

	// How much memory is used.

	Memory room.Memory
	Budget int64 // caps the bytes of the model in memory, whatever Memory says; 0: no cap
	// Share, if not nil, is asked for that cap instead, which may change. It must be safe for concurrent use.
	Share func() int64
	// Paused, if not nil, says whether somebody wants the target to be left alone for now. While it does, the
	// Controller stands back. It must be safe for concurrent use, and return at once.
	Paused func() bool
	// Neighbours, if not nil, says how many bytes of other models are read at present that want to be in memory at
	// the same level (room.Room.Level). It must return at once, and be safe for concurrent use.
	Neighbours func(level string) int64
	Window     int64 // bytes that may be read ahead or wait to be paged out; 0 chooses
	// Lock locks what is held, so that nobody can reclaim it, not even when the target needs memory to live.
	// Otherwise it is kept: it is read, and never paged out from here, but the kernel takes it when somebody
	// needs the memory.
	Lock bool

	// When there is help.

	// Always helps without comparing with tokens without help. Help is given up only where everything fits.
	Always bool
	// KeepWarm is for a target that waits for requests: what fits is read back by Warm when others took it.
	KeepWarm bool
	// Stored, if not nil, is a cycle to begin with before the target has decoded. Target.Models is asked now
	// and then until the target maps that cycle's model.
	Stored *pattern.Cycle
	// Dry, if not nil, makes it a dry run: once a cycle is known it is planned for, nothing is held or
	// streamed, and Handle or Tick return ErrPlanned. Dry measures how many bytes per second the disk
	// delivers of blocks of a file.
	Dry func(at proc.Place, blocks []pages.Range) (perSecond float64, err error)

	Target  Target
	Experts Experts
	Host    Host

	Log *slog.Logger     // nil: nothing is logged
	Now func() time.Time // the clock; nil: time.Now
}

// Target is what can be asked of a target. Each function may be nil.
type Target struct {
	// Models lists the model files that the target maps at the time.
	Models func() (models.Model, error)
	// Touched tells which addresses the target has in its page tables. With it a target is also helped while
	// it loads its model: with the stored cycle, or with a guess (see pattern.Guess). It has no effect with
	// Options.Lock, because what is locked for a wrong guess would be missing to the load.
	Touched func(addresses []uint64) ([]bool, error)
	// Weights tells where the weights of a file lie, as models.ReadWeights does. Nothing else is read or held
	// then, whatever the target says. Without it only the files' sizes bound what is read.
	Weights func(path string, id event.FileID) (models.Weights, error)
	// Judge says why the target cannot be helped, by how it holds its model; nil if it can. It is asked when
	// a cycle is known, and when paging out has no effect.
	Judge func() error
	// Advise says how the target is to be started so that its weights are read from a mapping of the file.
	Advise func() string
	// Elsewhere changes whenever the target may have begun to read other weights than before, because some
	// are computed elsewhere. What it reads is learned anew then.
	Elsewhere func() uint64
}

// Experts is what concerns the experts of a mixture.
type Experts struct {
	// Speculate says whether experts are read before their router has chosen them.
	Speculate Speculation
	// Predict makes a predictor for that; nil: there is none. path and id are of the file that has the first
	// expert.
	Predict func(r mixture.Routers, path string, id event.FileID) mixture.Predictor
	// Known says what is known of the experts of a model before any was chosen; nil: nothing is. Its model has the
	// files with experts. Then no token is measured before help begins.
	Known func(models.Model) *mixture.Known
	// Keep is told now and then, and in the end, how often the experts of a model were chosen lately. Without scores
	// it is to forget what it was told before. It must not take long. nil: nobody wants to know.
	Keep func(models.Model, mixture.Scores)
	// Routes says which experts are computed elsewhere, of those that the target's ops may read; nil: none.
	Routes mixture.Routes
}

// Host is the process that feeds the Controller. Each function may be nil.
type Host struct {
	// Begin is called when there seems to be something to win, before anything of the model is read; and
	// again after a StandBack.
	Begin func()
	// Urgent is called when experts are to be helped. The target waits for what is read for them, so whoever
	// handles its events should get a processor at once.
	Urgent func()
	// Memory is how many bytes of memory this process takes for itself.
	Memory func() int64
}

// Speculation says whether experts are read before their router has chosen them.
type Speculation string

// All kinds of speculation. "auto" is what was measured to be best over all mixtures that were tried (see
// docs/measurements/experts.md). It is off, because the median did not win.
const (
	SpeculateAuto Speculation = "auto"
	SpeculateOff  Speculation = "off"
	SpeculateOn   Speculation = "on"
)

// SpeculationNames are the names of all, the default first.
func SpeculationNames() []string {
	return []string{string(SpeculateAuto), string(SpeculateOff), string(SpeculateOn)}
}

// Speculates says whether experts are read before they are chosen.
func (s Speculation) Speculates() bool { return s == SpeculateOn }

// setDefaults fills in what was left out.
func (o *Options) setDefaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Strategy == nil {
		o.Strategy = plan.Auto{}
	}
}

// IsAmple says, before a target has loaded anything, whether models of so many bytes fit for certain in a
// room, and nothing else is asked for. Then the target need not be observed. bytes is all that it will map,
// as far as the caller can tell.
func (o *Options) IsAmple(bytes int64, free room.Room) bool {
	return bytes > 0 && plan.Keepable(free) >= bytes+max(bytes/ampleShare, ampleBytes) &&
		o.Budget == 0 && !o.Always && !o.KeepWarm && o.Stored == nil
}
