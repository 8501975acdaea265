package ebpf

// This file keeps what the programs have sent ahead of ops: templates, shapes, ids and buffers. The programs keep theirs in maps of fixed size for all targets together,
// so does this: a target may send any number of them.

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// known is what is kept for all targets of a Tracer.
type known struct {
	// templates are stored at their id modulo their number, as in the programs: a new one replaces the oldest.
	templates []*template
	shapes    map[uint32]*shape
	shaped    int                   // ops of all shapes
	ids       map[uint32][]gathered // by thread, oldest first
	idCount   int
	buffers   map[uint32]buffers // by thread
	rows      map[uint32]*row    // by thread: the one whose pieces arrive
	clock     uint64
	begun     time.Time
	spent     time.Duration // on reading memory maps
}

// Bounds. A model has few different graphs, but each size of a prompt has one.
const (
	maxShapes  = 512     // as many as the programs know
	maxShaped  = 1 << 16 // ops of all shapes
	keptIDs    = 64      // lists of ids per thread: more than the ops of one event can refer to
	maxIDsOfOp = 1 << 16 // as many as the programs send
	maxIDs     = 1 << 24 // of all threads
	maxThreads = 1024    // more than the programs know
	maxDim     = 1 << 16 // values of a row, as many as the programs send
)

// shape is the sequence of ops of a graph, in graph detail.
type shape struct {
	of   *target
	ops  []*template
	used uint64 // value of clock when it was used last
}

// gathered is the ids of one op; they arrive in pieces.
type gathered struct {
	of          *target
	seq, tensor uint64
	slots, rows int
	ids         []int32
	got         int
}

// row is a row of a router's input. Its pieces arrive in order; of one that has lost a piece the others follow no more.
type row struct {
	of            *target
	seq           uint64
	row, dim, tap uint32
	values        []float32
}

type buffers struct {
	of   *target
	seq  uint64
	list []event.Buffer
}

func newKnown(templates uint32) *known {
	return &known{templates: make([]*template, templates), shapes: map[uint32]*shape{}, ids: map[uint32][]gathered{}, buffers: map[uint32]buffers{}, rows: map[uint32]*row{}, begun: time.Now()}
}

// Reading the memory maps of targets, of up to 65530 lines each, takes mapTime of a CPU at once and then no more than one part in mapShare of the time.
const (
	mapTime  = 300 * time.Millisecond
	mapShare = 20
)

// errTooOften says that memory maps were read too often for what that takes.
var errTooOften = errors.New("the target makes too many mappings to look at each")

// mappings is proc.Mappings, unless that has taken too much time.
func (k *known) mappings(pid int) ([]proc.Mapping, error) {
	if k.spent > mapTime+time.Since(k.begun)/mapShare {
		return nil, errTooOften
	}
	runtime.LockOSThread() // its CPU time is counted: on a busy machine the time that passes says nothing
	defer runtime.UnlockOSThread()
	begun, err := threadTime()
	if err != nil {
		return nil, err
	}
	files, readErr := proc.Mappings(pid)
	ended, err := threadTime()
	if err != nil {
		return nil, err
	}
	k.spent += ended - begun
	return files, readErr
}

// threadTime is the CPU time of the calling thread.
func threadTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("read the thread's CPU time: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

func (k *known) add(t *template) { k.templates[t.id%uint32(len(k.templates))] = t }

// template returns a target's template with this id; nil if it did not arrive.
func (k *known) template(of *target, id uint32) *template {
	if t := k.templates[id%uint32(len(k.templates))]; t != nil && t.id == id && t.of == of {
		return t
	}
	return nil
}

// learn creates a shape; the templates of its ops follow.
func (k *known) learn(of *target, id uint32) {
	k.drop(id)
	if len(k.shapes) >= maxShapes {
		k.dropOldest(id)
	}
	k.clock++
	k.shapes[id] = &shape{of: of, used: k.clock}
}

// extend adds an op to a shape. If that are too many, the shape that was not used for longest is forgotten, which may be this one.
func (k *known) extend(of *target, id uint32, t *template) {
	s := k.shapes[id]
	if s == nil || s.of != of {
		return
	}
	if k.shaped >= maxShaped && !k.dropOldest(id) {
		k.drop(id)
		return
	}
	k.shaped++
	s.ops = append(s.ops, t)
}

// shape returns a target's shape, and notes that it is used; nil if it is not known.
func (k *known) shape(of *target, id uint32) *shape {
	s := k.shapes[id]
	if s == nil || s.of != of {
		return nil
	}
	k.clock++
	s.used = k.clock
	return s
}

func (k *known) drop(id uint32) {
	if s := k.shapes[id]; s != nil {
		k.shaped -= len(s.ops)
		delete(k.shapes, id)
	}
}

// dropOldest forgets the shape that was not used for longest, except one; false if there is none.
func (k *known) dropOldest(but uint32) bool {
	oldest, least := uint32(0), uint64(0)
	for id, s := range k.shapes {
		if id != but && (least == 0 || s.used < least) {
			oldest, least = id, s.used
		}
	}
	k.drop(oldest)
	return least != 0
}

// forget drops what is kept for a target that has ended.
func (k *known) forget(of *target) {
	for i, t := range k.templates {
		if t != nil && t.of == of {
			k.templates[i] = nil
		}
	}
	for id, s := range k.shapes {
		if s.of == of {
			k.drop(id)
		}
	}
	maps.DeleteFunc(k.rows, func(_ uint32, r *row) bool { return r.of == of })
	maps.DeleteFunc(k.buffers, func(_ uint32, b buffers) bool { return b.of == of })
	for tid, all := range k.ids {
		if len(all) > 0 && all[len(all)-1].of == of {
			k.forgetIDs(tid, len(all))
		}
	}
}

// forgetIDs drops the n oldest lists of a thread.
func (k *known) forgetIDs(tid uint32, n int) {
	all := k.ids[tid]
	for i := range all[:n] {
		k.idCount -= len(all[i].ids)
	}
	if n == len(all) {
		delete(k.ids, tid)
		return
	}
	kept := append(all[:0], all[n:]...)
	clear(all[len(kept):])
	k.ids[tid] = kept
}

// collect stores a piece of ids. All pieces precede the op that gathers by them.
func (k *known) collect(of *target, e *traceIdsEvent) {
	all := k.ids[e.Tid]
	i := len(all) - 1
	if i < 0 || all[i].of != of || all[i].seq != e.Seq || all[i].tensor != e.Tensor {
		n := uint64(e.Slots) * uint64(e.Rows)
		if n == 0 || n > maxIDsOfOp {
			return
		}
		if len(all) >= keptIDs {
			k.forgetIDs(e.Tid, keptIDs/2)
		}
		if k.ids[e.Tid] == nil && len(k.ids) >= maxThreads || k.idCount+int(n) > maxIDs {
			clear(k.ids)
			k.idCount = 0
		}
		all = append(k.ids[e.Tid], gathered{of: of, seq: e.Seq, tensor: e.Tensor, slots: int(e.Slots), rows: int(e.Rows), ids: make([]int32, n)})
		i = len(all) - 1
		k.ids[e.Tid] = all
		k.idCount += int(n)
	}
	g := &all[i]
	first, n := uint64(e.First), min(uint64(e.N), uint64(len(e.Ids)))
	if first+n <= uint64(len(g.ids)) {
		g.got += copy(g.ids[first:], e.Ids[:n])
	}
}

// gathered returns the ids that an op gathers by; false if they are incomplete.
func (k *known) gathered(of *target, tid uint32, seq, tensor uint64) (*gathered, bool) {
	all := k.ids[tid]
	for i := len(all) - 1; i >= 0; i-- {
		if g := &all[i]; g.of == of && g.seq == seq && g.tensor == tensor {
			return g, g.got >= len(g.ids)
		}
	}
	return nil, false
}

// join adds a piece to the row that it belongs to. ok tells that the row is whole; its values are valid until the next call.
func (k *known) join(of *target, e *traceInputEvent) (values []float32, ok bool) {
	if e.Dim == 0 || e.Dim > maxDim || e.First > e.Dim || e.N > min(e.Dim-e.First, uint32(len(e.Values))) {
		return nil, false
	}
	r := k.rows[e.Tid]
	if r == nil {
		if len(k.rows) >= maxThreads {
			clear(k.rows)
		}
		r = &row{}
		k.rows[e.Tid] = r
	}
	if e.First == 0 {
		r.of, r.values = of, r.values[:0]
		r.seq, r.row, r.dim, r.tap = e.Seq, e.Row, e.Dim, e.Tap
	}
	if r.of != of || r.seq != e.Seq || r.row != e.Row || r.dim != e.Dim || r.tap != e.Tap || len(r.values) != int(e.First) {
		return nil, false
	}
	for _, bits := range e.Values[:e.N] {
		r.values = append(r.values, math.Float32frombits(bits))
	}
	return r.values, len(r.values) == int(e.Dim)
}

// keepBuffers stores what the next op of a thread touches.
func (k *known) keepBuffers(of *target, e *traceBuffersEvent) {
	if _, there := k.buffers[e.Tid]; !there && len(k.buffers) >= maxThreads {
		clear(k.buffers)
	}
	k.buffers[e.Tid] = buffers{of, e.Seq, bufferList(e)}
}
