package ebpf

// This file keeps what the programs have sent ahead of ops: templates, shapes, ids, buffers and
// pieces of routers' inputs. The programs keep theirs in maps of fixed size for all targets
// together. This file does the same, because a target may send any number of them.

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// cache holds what is kept for all targets of a Tracer.
type cache struct {
	// templates are stored at their id modulo their number, as in the programs: a new one replaces
	// the oldest.
	templates []*template
	shapes    map[uint32]*shape    // by id
	shapeOps  int                  // ops of all shapes
	useCount  uint64               // how often shapes were used
	ids       map[uint32][]opIDs   // by thread, the oldest first
	idCount   int                  // of all threads
	buffers   map[uint32]opBuffers // by thread
	rows      map[uint32]*inputRow // by thread: the row whose pieces are arriving

	// The CPU time that reading memory maps has taken, see readMappings.
	begun     time.Time
	mapsSpent time.Duration
}

// Bounds. A model has few different graphs, but each size of a prompt has one.
const (
	maxShapes   = 512     // as many as the programs know
	maxShapeOps = 1 << 16 // ops of all shapes
	keptIDs     = 64      // lists of ids per thread: more than the ops of one event can refer to
	maxIDsOfOp  = 1 << 16 // as many as the programs send
	maxIDs      = 1 << 24 // of all threads
	maxThreads  = 1024    // more than the programs know
	maxDim      = 1 << 16 // values of a row, as many as the programs send
)

// shape is the sequence of ops of a graph, in graph detail.
type shape struct {
	of   *target
	ops  []*template
	used uint64 // value of useCount when it was used last
}

// opIDs is the ids that one op gathers by. They arrive in pieces.
type opIDs struct {
	of          *target
	seq, tensor uint64
	slots, rows int
	ids         []int32
	arrived     int // how many of ids have arrived
}

// opBuffers is what one op touches besides weights.
type opBuffers struct {
	of   *target
	seq  uint64
	list []event.Buffer
}

// inputRow is a row of a router's input. Its pieces arrive in order. If one of them was lost, the
// programs do not send the rest of the row.
type inputRow struct {
	of            *target
	seq           uint64
	row, dim, tap uint32
	values        []float32
}

func newCache(templates uint32) *cache {
	return &cache{
		templates: make([]*template, templates),
		shapes:    map[uint32]*shape{},
		ids:       map[uint32][]opIDs{},
		buffers:   map[uint32]opBuffers{},
		rows:      map[uint32]*inputRow{},
		begun:     time.Now(),
	}
}

// Reading the memory maps of targets, of up to 65530 lines each, may take mapTime of a CPU at
// first. Then it may take no more than one part in mapShare of the time.
const (
	mapTime  = 300 * time.Millisecond
	mapShare = 20
)

// errTooOften says that reading memory maps has taken too much time.
var errTooOften = errors.New("the target makes too many mappings to look at each")

// readMappings is proc.Mappings, unless that has taken too much time.
func (c *cache) readMappings(pid int) ([]proc.Mapping, error) {
	if c.mapsSpent > mapTime+time.Since(c.begun)/mapShare {
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
	c.mapsSpent += ended - begun
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

func (c *cache) addTemplate(t *template) { c.templates[t.id%uint32(len(c.templates))] = t }

// template returns a target's template with this id; nil if it did not arrive.
func (c *cache) template(of *target, id uint32) *template {
	if t := c.templates[id%uint32(len(c.templates))]; t != nil && t.id == id && t.of == of {
		return t
	}
	return nil
}

// addShape creates a shape; the templates of its ops follow.
func (c *cache) addShape(of *target, id uint32) {
	c.dropShape(id)
	if len(c.shapes) >= maxShapes {
		c.dropOldestShape(id)
	}
	c.useCount++
	c.shapes[id] = &shape{of: of, used: c.useCount}
}

// extendShape adds an op to a shape. If the shapes have too many ops then, another one is dropped,
// the one that was not used for longest. If there is no other one, this shape is dropped.
func (c *cache) extendShape(of *target, id uint32, t *template) {
	s := c.shapes[id]
	if s == nil || s.of != of {
		return
	}
	if c.shapeOps >= maxShapeOps && !c.dropOldestShape(id) {
		c.dropShape(id)
		return
	}
	c.shapeOps++
	s.ops = append(s.ops, t)
}

// useShape returns a target's shape, and notes that it is used; nil if it is not known.
func (c *cache) useShape(of *target, id uint32) *shape {
	s := c.shapes[id]
	if s == nil || s.of != of {
		return nil
	}
	c.useCount++
	s.used = c.useCount
	return s
}

// templateIn returns the template with this id of a target's shape; nil if it is not known.
func (c *cache) templateIn(of *target, shape, id uint32) *template {
	s := c.useShape(of, shape)
	if s == nil {
		return nil
	}
	i := slices.IndexFunc(s.ops, func(t *template) bool { return t.id == id })
	if i < 0 {
		return nil
	}
	return s.ops[i]
}

func (c *cache) dropShape(id uint32) {
	if s := c.shapes[id]; s != nil {
		c.shapeOps -= len(s.ops)
		delete(c.shapes, id)
	}
}

// dropOldestShape drops the shape that was not used for longest, other than keep; false if there is
// none.
func (c *cache) dropOldestShape(keep uint32) bool {
	oldest, least := uint32(0), uint64(0)
	for id, s := range c.shapes {
		if id != keep && (least == 0 || s.used < least) {
			oldest, least = id, s.used
		}
	}
	c.dropShape(oldest)
	return least != 0
}

// dropTarget drops what is kept for a target that has ended.
func (c *cache) dropTarget(of *target) {
	for i, t := range c.templates {
		if t != nil && t.of == of {
			c.templates[i] = nil
		}
	}
	for id, s := range c.shapes {
		if s.of == of {
			c.dropShape(id)
		}
	}
	maps.DeleteFunc(c.rows, func(_ uint32, r *inputRow) bool { return r.of == of })
	maps.DeleteFunc(c.buffers, func(_ uint32, b opBuffers) bool { return b.of == of })
	for tid, all := range c.ids {
		if len(all) > 0 && all[len(all)-1].of == of {
			c.dropOldestIDs(tid, len(all))
		}
	}
}

// dropOldestIDs drops the n oldest lists of a thread.
func (c *cache) dropOldestIDs(tid uint32, n int) {
	all := c.ids[tid]
	for i := range all[:n] {
		c.idCount -= len(all[i].ids)
	}
	if n == len(all) {
		delete(c.ids, tid)
		return
	}
	kept := append(all[:0], all[n:]...)
	clear(all[len(kept):])
	c.ids[tid] = kept
}

// addIDs stores a piece of ids. All pieces precede the op that gathers by them.
func (c *cache) addIDs(of *target, e *traceIdsEvent) {
	all := c.ids[e.Tid]
	i := len(all) - 1
	if i < 0 || all[i].of != of || all[i].seq != e.Seq || all[i].tensor != e.Tensor {
		n := uint64(e.Slots) * uint64(e.Rows)
		if n == 0 || n > maxIDsOfOp {
			return
		}
		if len(all) >= keptIDs {
			c.dropOldestIDs(e.Tid, keptIDs/2)
		}
		if c.ids[e.Tid] == nil && len(c.ids) >= maxThreads || c.idCount+int(n) > maxIDs {
			clear(c.ids)
			c.idCount = 0
		}
		all = append(c.ids[e.Tid], opIDs{
			of: of, seq: e.Seq, tensor: e.Tensor, slots: int(e.Slots), rows: int(e.Rows), ids: make([]int32, n),
		})
		i = len(all) - 1
		c.ids[e.Tid] = all
		c.idCount += int(n)
	}
	g := &all[i]
	first, n := uint64(e.First), min(uint64(e.N), uint64(len(e.Ids)))
	if first+n <= uint64(len(g.ids)) {
		g.arrived += copy(g.ids[first:], e.Ids[:n])
	}
}

// idsOf returns the ids that an op gathers by; false if they are incomplete.
func (c *cache) idsOf(of *target, tid uint32, seq, tensor uint64) (*opIDs, bool) {
	all := c.ids[tid]
	for i := len(all) - 1; i >= 0; i-- {
		if g := &all[i]; g.of == of && g.seq == seq && g.tensor == tensor {
			return g, g.arrived >= len(g.ids)
		}
	}
	return nil, false
}

// addInputPiece adds a piece to the row that it belongs to. complete tells that the row is
// complete; its values are valid until the next call.
func (c *cache) addInputPiece(of *target, e *traceInputEvent) (values []float32, complete bool) {
	if e.Dim == 0 || e.Dim > maxDim || e.First > e.Dim || e.N > min(e.Dim-e.First, uint32(len(e.Values))) {
		return nil, false
	}
	r := c.rows[e.Tid]
	if r == nil {
		if len(c.rows) >= maxThreads {
			clear(c.rows)
		}
		r = &inputRow{}
		c.rows[e.Tid] = r
	}
	if e.First == 0 {
		r.of, r.values = of, r.values[:0]
		r.seq, r.row, r.dim, r.tap = e.Seq, e.Row, e.Dim, e.Tap
	}
	isNext := r.of == of && r.seq == e.Seq && r.row == e.Row && r.dim == e.Dim && r.tap == e.Tap &&
		len(r.values) == int(e.First)
	if !isNext {
		return nil, false
	}
	for _, bits := range e.Values[:e.N] {
		r.values = append(r.values, math.Float32frombits(bits))
	}
	return r.values, len(r.values) == int(e.Dim)
}

// setBuffers stores what the next op of a thread touches.
func (c *cache) setBuffers(of *target, e *traceBuffersEvent) {
	if _, there := c.buffers[e.Tid]; !there && len(c.buffers) >= maxThreads {
		clear(c.buffers)
	}
	c.buffers[e.Tid] = opBuffers{of, e.Seq, bufferList(e)}
}
