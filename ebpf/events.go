package ebpf

// This file turns the records of the ring buffer into events.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"tensorcast/event"
	"tensorcast/internal/proc"
)

// viewAs interprets raw as a T. If raw is long enough, the result points into raw, which the next
// record overwrites. If the tail is missing, it is a copy padded with zeros.
func viewAs[T any](raw []byte) *T {
	var zero T
	begin := unsafe.Pointer(unsafe.SliceData(raw))
	if uintptr(len(raw)) >= unsafe.Sizeof(zero) && uintptr(begin)%unsafe.Alignof(zero) == 0 {
		return (*T)(begin)
	}
	into := new(T)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(into)), unsafe.Sizeof(zero)), raw)
	return into
}

func hasFlag[F ~uint32](flags uint32, flag F) bool { return flags&uint32(flag) != 0 }

// dispatch handles one record of the ring buffer. The first kinds prepare for ops that follow; they
// are no events of their own.
func (t *Tracer) dispatch(raw []byte, handle func(event.Event) error) error {
	if len(raw) < 8 {
		return errors.New("an event of the ring buffer is cut short")
	}
	kind, tgid := traceKind(binary.NativeEndian.Uint32(raw)), binary.NativeEndian.Uint32(raw[4:])
	if kind >= traceKindSYSTEM_KINDS {
		return t.dispatchSystem(systemEventKind(kind), tgid, raw, handle)
	}
	if kind == traceKindKIND_GRAPH {
		t.received.Add(1)
	}
	p := t.targets[tgid]
	if p == nil {
		return nil // the process has ended since the event was sent
	}
	switch kind {
	case traceKindKIND_SAMPLE:
		e := viewAs[traceSampleEvent](raw)
		if err := p.layout.Check(e.Raw[:], len(p.ops)); err != nil {
			return fmt.Errorf("%w: %w", event.ErrLayout, err)
		}
		return nil
	case traceKindKIND_SHAPE:
		t.cache.addShape(p, viewAs[traceShapeEvent](raw).Id)
		return nil
	case traceKindKIND_IDS:
		t.cache.addIDs(p, viewAs[traceIdsEvent](raw))
		return nil
	case traceKindKIND_BUFFERS:
		t.cache.setBuffers(p, viewAs[traceBuffersEvent](raw))
		return nil
	}
	if err := t.announce(p, handle); err != nil {
		return err
	}
	switch kind {
	case traceKindKIND_TEMPLATE:
		known, unresolved, err := p.learnTemplate(viewAs[traceTemplateEvent](raw))
		t.unresolved.Add(unresolved)
		if err != nil {
			return err
		}
		return t.announceFiles(p, &known.op, handle)
	case traceKindKIND_OPS:
		e := viewAs[traceOpsEvent](raw)
		for i := range min(int(e.N), len(e.Ops)) {
			t.received.Add(1)
			if err := t.handleOp(p, e, &e.Ops[i], handle); err != nil {
				return err
			}
		}
		return nil
	case traceKindKIND_SELECTED:
		return t.handleSelected(p, viewAs[traceSelectedEvent](raw), handle)
	case traceKindKIND_LOOKUP:
		return t.handleLookup(p, viewAs[traceLookupEvent](raw), handle)
	case traceKindKIND_INPUT:
		return t.handleInput(p, viewAs[traceInputEvent](raw), handle)
	case traceKindKIND_GRAPH:
		return t.handleGraph(p, viewAs[traceGraphEvent](raw), handle)
	case traceKindKIND_DECODE_BEGIN:
		return t.handleDecodeBegin(p, viewAs[traceDecodeEvent](raw), handle)
	case traceKindKIND_DECODE_END:
		e := viewAs[traceDecodeEvent](raw)
		// The decode may have begun before the probes were attached.
		if err := p.noteDecode(int32(e.Tid), handle); err != nil {
			return err
		}
		return handle(event.DecodeEnd{
			Time: int64(e.Time), PID: int32(p.pid), TID: int32(e.Tid), Decode: e.Decode,
			Partial: e.Decode <= p.partialDecode || t.probedAt == 0,
		})
	default:
		return fmt.Errorf("the ring buffer holds an event of unknown kind %d", kind)
	}
}

// announce sends ProcessBegin before a process's first event.
func (t *Tracer) announce(p *target, handle func(event.Event) error) error {
	if p.announced {
		return nil
	}
	p.announced = true
	p.readCommand()
	return handle(event.ProcessBegin{PID: int32(p.pid), Parent: int32(p.parent), Command: p.command})
}

func (t *Tracer) handleDecodeBegin(p *target, e *traceDecodeEvent, handle func(event.Event) error) error {
	if err := p.noteDecode(int32(e.Tid), handle); err != nil {
		return err
	}
	p.noteBegin(e.Decode, int64(e.Time), t.probedAt)
	begin := event.DecodeBegin{
		Time: int64(e.Time), PID: int32(p.pid), TID: int32(e.Tid),
		Context: e.Context, Decode: e.Decode, Tokens: e.Tokens, Warmup: e.Warmup != 0,
	}
	if e.SequencesKnown != 0 {
		for i, word := range e.Sequences {
			for ; word != 0; word &= word - 1 {
				begin.Sequences = append(begin.Sequences, int32(64*i+bits.TrailingZeros64(word)))
			}
		}
	}
	return handle(begin)
}

// handleOp sends an op: its template, and what the record says of this run of it.
func (t *Tracer) handleOp(p *target, of *traceOpsEvent, e *traceOpRecord, handle func(event.Event) error) error {
	p.sawOp = true
	known := t.cache.template(p, e.Id)
	if known == nil { // the template event was lost; that loss is counted where it happened
		t.incomplete.Add(1)
		return nil
	}
	o := &t.scratch
	*o = known.op
	o.Memo = &known.memo
	o.Time, o.Duration, o.Stall, o.TID = int64(e.Time), int64(e.Duration), -1, int32(of.Tid)
	o.Decode, o.Graph = of.Decode, of.Graph
	o.Seq = of.Seq - uint64(uint32(of.Seq)-e.Seq) // the record has the low 32 bits
	o.Clipped = o.Clipped || hasFlag(e.Flags, traceOpFlagOP_CLIPPED)
	if t.opts.Detail == DetailIO {
		o.Stall = int64(of.Stalled)
	}
	if o.GatherDim > 0 && len(o.Sources) > 0 {
		if g, ok := t.cache.idsOf(p, of.Tid, o.Seq-uint64(e.IdsBack), known.ids); ok {
			o.IDs, o.IDRows = g.ids, g.rows
		} else {
			if !o.Clipped {
				t.incomplete.Add(1)
			}
			o.Clipped = true
		}
	}
	if hasFlag(e.Flags, traceOpFlagOP_BUFFERS) {
		if b := t.cache.buffers[of.Tid]; b.of == p && b.seq == o.Seq {
			o.Buffers = b.list
		}
	}
	return t.sendOp(p, o, handle)
}

// handleSelected sends the experts that a layer has chosen. Their ids have arrived before.
func (t *Tracer) handleSelected(p *target, e *traceSelectedEvent, handle func(event.Event) error) error {
	g, ok := t.cache.idsOf(p, e.Tid, e.Seq, e.Tensor)
	if !ok {
		t.incomplete.Add(1)
		return nil
	}
	return handle(event.Selected{
		Time: int64(e.Time), PID: int32(p.pid), TID: int32(e.Tid), Decode: p.decodeOf(int32(e.Tid), e.Decode),
		Graph: e.Graph, Seq: e.Seq, Layer: e.Layer,
		IDs: g.ids, IDRows: g.rows,
	})
}

// handleLookup sends the rows that an op is about to look up, if the table is in a file. Their numbers have arrived
// before, and what the op reads has, too. The programs may not know whether the table is in a file: they cannot look
// that up while another thread changes the target's memory map.
func (t *Tracer) handleLookup(p *target, e *traceLookupEvent, handle func(event.Event) error) error {
	known := t.cache.template(p, e.Id)
	if e.Shape != 0 {
		known = t.cache.templateIn(p, e.Shape, e.Id)
	}
	g, ok := t.cache.idsOf(p, e.Tid, e.IdsSeq, e.Tensor)
	if known == nil || !ok || len(known.op.Sources) == 0 {
		t.incomplete.Add(1)
		return nil
	}
	seq := e.Seq
	if e.Shape != 0 {
		seq = 0 // the ops of graphs have numbers of their own
	}
	table := known.op.Sources[0] // GET_ROWS has no other weight
	if !table.InFile {
		return nil
	}
	return handle(event.Lookup{
		Time: int64(e.Time), PID: int32(p.pid), TID: int32(e.Tid), Decode: p.decodeOf(int32(e.Tid), e.Decode),
		Graph: e.Graph, Seq: seq, Table: table, IDs: g.ids,
	})
}

// handleInput puts the pieces of a row together, and sends it when it is complete.
func (t *Tracer) handleInput(p *target, e *traceInputEvent, handle func(event.Event) error) error {
	values, complete := t.cache.addInputPiece(p, e)
	if !complete {
		return nil
	}
	point := event.PointRouter
	if e.Tap == uint32(traceTapTAP_ATTENTION) {
		point = event.PointAttention
	}
	return handle(event.RouterInput{
		Time: int64(e.Time), PID: int32(p.pid), TID: int32(e.Tid), Decode: p.decodeOf(int32(e.Tid), e.Decode),
		Graph: e.Graph, Seq: e.Seq, Layer: e.Layer,
		Point: point, Row: int(e.Row), Rows: int(e.Rows), Values: values,
	})
}

// handleGraph sends the ops that a graph of this shape has.
func (t *Tracer) handleGraph(p *target, e *traceGraphEvent, handle func(event.Event) error) error {
	p.sawOp = true
	s := t.cache.useShape(p, e.Shape)
	if s == nil {
		t.incomplete.Add(1)
		return nil
	}
	rows := 0 // tokens in the graph: the number of embeddings that it looks up
	for _, known := range s.ops {
		t.graphOps++
		o := &t.scratch
		*o = known.op
		o.Memo = &known.memo
		o.Time, o.Duration, o.Stall, o.TID = int64(e.Time), -1, -1, int32(e.Tid)
		o.Decode, o.Graph, o.Seq = e.Decode, e.Graph, t.graphOps
		switch {
		case o.GatherDim == 0:
		case !o.ByExpert:
			if g, ok := t.cache.idsOf(p, e.Tid, e.Seq, known.ids); ok {
				o.IDs, o.IDRows = g.ids, g.rows
				rows = g.rows * g.slots
			} else {
				t.incomplete.Add(1)
				o.Clipped = true
			}
		case rows == 1:
			o.Selects = known.slots // the experts of one token differ from each other; which ones they are is unknown
		}
		if err := t.sendOp(p, o, handle); err != nil {
			return err
		}
	}
	return nil
}

// sendOp sends an op, preceded by the begin of its step if llama_decode is not observed.
func (t *Tracer) sendOp(p *target, o *event.Op, handle func(event.Event) error) error {
	if err := p.deriveStep(o, handle); err != nil {
		return err
	}
	return handle(o)
}

// announceFiles sends FileSeen for files that are new. It is called when a template arrives, before
// the first op that uses it, because the path must be looked up before the target ends. Sources
// whose file cannot be found are left out and counted. It is an error if there are more files than
// maxFiles.
func (t *Tracer) announceFiles(p *target, o *event.Op, handle func(event.Event) error) error {
	var err error
	o.Sources = slices.DeleteFunc(o.Sources, func(s event.Source) bool {
		if !s.InFile || err != nil {
			return false
		}
		found, seen := p.fileFound[s.File]
		if !seen && len(p.fileFound) >= maxFiles {
			err = fmt.Errorf("process %d reads weights from more than %d files: no more can be followed", p.pid, maxFiles)
			return false
		}
		if !seen {
			if found, err = t.announceFile(p, &s, handle); err == nil {
				p.fileFound[s.File] = found
			}
		}
		if !found && err == nil {
			o.Clipped = true
			t.unresolved.Add(1)
			return true
		}
		return false
	})
	return err
}

// announceFile sends FileSeen for the file of a source. found is false if the file is mapped no
// more, or cannot be looked for.
func (t *Tracer) announceFile(p *target, s *event.Source, handle func(event.Event) error) (found bool, err error) {
	at, err := p.findFile(s.File, s.Data, t.opts.Hints)
	switch {
	case errors.Is(err, errNotMapped), errors.Is(err, errTooOften):
		return false, nil
	// without a first file nothing is known of this process
	case errors.Is(err, proc.ErrNoProcess) && len(p.fileFound) > 0:
		return false, nil
	case err != nil:
		return false, err
	}
	if err := t.system.watch(s.File); err != nil {
		return false, err
	}
	return true, handle(event.FileSeen{PID: int32(p.pid), File: s.File, Path: at.Path, ID: at.ID})
}
