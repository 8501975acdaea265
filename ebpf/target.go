package ebpf

// This file holds what is known about one traced process: the files that carry probes, the op names and struct layout of its ggml, and the
// templates (what each node of its graphs reads).

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
)

// target is a traced process. It is used only in the goroutine that runs the Tracer.
type target struct {
	pid, parent int
	process     *proc.Process
	likely      []*ggml.Image // images that it will probably map
	mapped      []*ggml.Image
	ops         []string
	layout      *ggml.Layout
	config      traceLayout
	configured  bool
	begun       bool // an event has arrived, so ggml was found and no further libraries are looked for
	announced   bool // ProcessBegin was sent
	command     []string
	files       map[string]event.FileID // files that ops read from, by the target's path
	seen        map[event.FileID]bool
	// templates are stored at their id modulo maxTemplates, as in the programs: a new one replaces the oldest.
	templates    []*template
	maxTemplates uint32
	shapes       map[uint32]*shape
	ids          map[uint32][]gathered // by thread, oldest first
	buffers      map[uint32]buffers    // by thread
	decodes      bool                  // llama_decode is observed, so steps need not be derived
	derived      event.DerivedSteps    // steps where it is not: it has no symbol, or other code computes (as in Ollama's own engine)
}

// template is what the op of a node reads. Op events refer to it by id.
type template struct {
	id    uint32
	op    event.Op // without times
	ids   uint64   // address of the tensor with the ids that it gathers by
	slots int      // ids per token
	memo  event.Memo
}

// shape is the sequence of ops of a graph, in graph detail.
type shape struct {
	ops  []*template
	used uint64 // number of the event that used it last
}

// maxShapes bounds memory; a model has few different graphs.
const maxShapes = 256

// gathered is the ids of one op; they arrive in pieces.
type gathered struct {
	seq, tensor uint64
	slots, rows int
	ids         []int32
	got         int
}

// keptIDs is how many of them are kept per thread: more than the ops of one event can refer to.
const keptIDs = 64

type buffers struct {
	seq  uint64
	list []event.Buffer
}

func newTarget(pid, parent int) (*target, error) {
	process, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	return &target{
		pid: pid, parent: parent, process: process, files: map[string]event.FileID{}, seen: map[event.FileID]bool{},
		shapes: map[uint32]*shape{}, ids: map[uint32][]gathered{}, buffers: map[uint32]buffers{}, derived: event.DerivedSteps{PID: int32(pid)},
	}, nil
}

// images are those that the process has mapped and, as long as these do not include a complete ggml, also those that it is likely to map:
// the library that computes may be loaded late.
func (p *target) images() []*ggml.Image {
	ops := slices.ContainsFunc(p.mapped, func(im *ggml.Image) bool { return im.Ops != nil })
	computes := slices.ContainsFunc(p.mapped, func(im *ggml.Image) bool { return im.Has(ggml.RoleOp) || im.Has(ggml.RoleGraph) })
	if ops && computes {
		return p.mapped
	}
	return slices.Concat(p.mapped, p.likely)
}

func (p *target) has(roles ...ggml.Role) bool {
	for _, im := range p.images() {
		if slices.ContainsFunc(roles, im.Has) {
			return true
		}
	}
	return false
}

// learnImages takes op names and layout from newly found images; it returns true if the programs' configuration must change.
func (p *target) learnImages(images []*ggml.Image) (bool, error) {
	if !slices.ContainsFunc(images, func(im *ggml.Image) bool { return im.Ops != nil }) {
		return false, nil // none of them has ggml's base library: keep what is known
	}
	for _, im := range images {
		if im.Ops != nil {
			p.ops = im.Ops
			break
		}
	}
	layout, err := ggml.Infer(images)
	if err != nil {
		return false, fmt.Errorf("process %d: %w", p.pid, err)
	}
	config := traceLayout{
		Gathers: gathersOf(p.ops), Ne: layout.NE, Op: layout.Op, Flags: layout.Flags,
		Src: layout.Src, MaxSrc: layout.MaxSrc, ViewSrc: layout.ViewSrc, Data: layout.Data, Name: layout.Name, N_nodes: layout.NNodes, Nodes: layout.Nodes,
	}
	config.Forget = flag(!slices.ContainsFunc(images, func(im *ggml.Image) bool { return im.Has(ggml.RoleBufferFree) }))
	if p.configured && config == p.config {
		return false, nil
	}
	p.layout, p.config, p.configured = layout, config, true
	return true, nil
}

// gathersOf returns the table of gathering ops with the op numbers of a given ggml, for the programs.
func gathersOf(ops []string) (to [traceLimitMAX_GATHERS]traceGather) {
	for i := range to {
		to[i].Op = uint32(traceLimitNO_OP)
	}
	for i, g := range ggml.Gathers() {
		if op := slices.Index(ops, g.Op); op >= 0 {
			to[i] = traceGather{Op: uint32(op), Source: uint8(g.Source), Ids: uint8(g.IDs), Experts: uint8(flag(g.Experts))}
		}
	}
	return to
}

// decode records that a thread called llama_decode: from now on no steps are derived.
func (p *target) decode(tid int32, handle func(event.Event) error) error {
	p.decodes = true
	return p.derived.EndThread(tid, handle)
}

// derive begins, extends or ends derived steps, and sets the op's decode.
func (p *target) derive(o *event.Op, handle func(event.Event) error) error {
	if o.Decode != 0 || p.decodes {
		return nil
	}
	if o.GatherDim > 0 && !o.ByExpert && len(o.Sources) > 0 && o.Sources[0].Name == event.TokenEmbeddings {
		if err := p.derived.Begin(o.TID, o.Time, len(o.IDs), handle); err != nil {
			return err
		}
	}
	o.Decode = p.derived.Decode(o.TID)
	p.derived.Extend(o.TID, o.Time+max(o.Duration, 0))
	return nil
}

func (p *target) opName(op uint32) (string, error) {
	if int(op) >= len(p.ops) {
		return "", fmt.Errorf("%w: a tensor has op number %d, but the target's ggml has %d (layout: %s)", event.ErrLayout, op, len(p.ops), p.layout)
	}
	return p.ops[op], nil
}

// learn stores a template that the programs sent. unresolved counts its sources whose mapping could not be found.
func (p *target) learn(e *traceTemplateEvent) (t *template, unresolved uint64, err error) {
	name, err := p.opName(e.Op)
	if err != nil {
		return nil, 0, err
	}
	t = &template{id: e.Id, ids: e.Ids, slots: int(e.Slots), op: event.Op{PID: int32(p.pid), Name: name, Clipped: has(e.Flags, traceOpFlagOP_CLIPPED)}}
	if has(e.Flags, traceOpFlagOP_FUSED) {
		second, err := p.opName(e.FusedOp)
		if err != nil {
			return nil, 0, err
		}
		t.op.Name += "+" + second
	}
	if has(e.Flags, traceOpFlagOP_GATHERS) {
		g, ok := ggml.GatherOf(name)
		if !ok {
			return nil, 0, fmt.Errorf("%w: %s does not gather", event.ErrLayout, name)
		}
		t.op.GatherDim, t.op.ByExpert = g.Dim, g.Experts
	}
	for i := range min(e.Nsrc, uint32(len(e.Src))) {
		s := newSource(&e.Src[i])
		if has(e.Src[i].Flags, traceSourceFlagSOURCE_UNRESOLVED) && !p.resolve(&s) {
			t.op.Clipped = true
			unresolved++
			continue
		}
		t.op.Sources = append(t.op.Sources, s)
	}
	if e.Shape != 0 {
		if s := p.shapes[e.Shape]; s != nil {
			s.ops = append(s.ops, t)
		}
		return t, unresolved, nil
	}
	if p.templates == nil {
		p.templates = make([]*template, p.maxTemplates)
	}
	p.templates[e.Id%p.maxTemplates] = t
	return t, unresolved, nil
}

// template returns the template with this id; nil if it did not arrive.
func (p *target) template(id uint32) *template {
	if p.templates == nil {
		return nil
	}
	if t := p.templates[id%p.maxTemplates]; t != nil && t.id == id {
		return t
	}
	return nil
}

// learnShape creates a shape; the templates of its ops follow.
func (p *target) learnShape(id uint32) {
	if len(p.shapes) >= maxShapes {
		oldest, first := uint32(0), true
		for i, s := range p.shapes {
			if first || s.used < p.shapes[oldest].used {
				oldest, first = i, false
			}
		}
		delete(p.shapes, oldest)
	}
	p.shapes[id] = &shape{}
}

// collect stores a piece of ids. All pieces precede the op that gathers by them.
func (p *target) collect(e *traceIdsEvent) {
	all := p.ids[e.Tid]
	i := len(all) - 1
	if i < 0 || all[i].seq != e.Seq || all[i].tensor != e.Tensor {
		if len(all) >= keptIDs {
			all = append(all[:0], all[keptIDs/2:]...)
		}
		i = len(all)
		all = append(all, gathered{seq: e.Seq, tensor: e.Tensor, slots: int(e.Slots), rows: int(e.Rows), ids: make([]int32, int(e.Slots)*int(e.Rows))})
		p.ids[e.Tid] = all
	}
	g := &all[i]
	first, n := int(e.First), min(int(e.N), len(e.Ids))
	if first+n <= len(g.ids) {
		g.got += copy(g.ids[first:], e.Ids[:n])
	}
}

// gathered returns the ids that an op gathers by; false if they are incomplete.
func (p *target) gathered(tid uint32, seq, tensor uint64) (*gathered, bool) {
	all := p.ids[tid]
	for i := len(all) - 1; i >= 0; i-- {
		if g := &all[i]; g.seq == seq && g.tensor == tensor {
			return g, g.got == len(g.ids) && g.got > 0
		}
	}
	return nil, false
}

func cString(raw []int8) string {
	name := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(raw))), len(raw))
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	return string(name)
}

func newSource(e *traceSource) event.Source {
	return event.Source{
		Name: cString(e.Name[:]), Data: e.Data, InFile: has(e.Flags, traceSourceFlagSOURCE_IN_FILE), File: event.FileID{Dev: uint64(e.Dev), Ino: e.Ino},
		Offset: int64(e.Offset), Type: gguf.Type(e.Type), NE: e.Ne, NB: strides(e.Nb),
	}
}

func strides(nb [4]uint64) (to [4]int64) {
	for i, n := range nb {
		to[i] = int64(n)
	}
	return to
}

func (p *target) keepBuffers(e *traceBuffersEvent) {
	list := make([]event.Buffer, min(int(e.N), len(e.Buffers)))
	for i := range list {
		b := &e.Buffers[i]
		list[i] = event.Buffer{Name: cString(b.Name[:]), Root: cString(b.Root[:]), Data: b.Data, Type: gguf.Type(b.Type), NE: b.Ne, NB: strides(b.Nb), Write: b.Write != 0}
	}
	p.buffers[e.Tid] = buffers{e.Seq, list}
}

// findFile finds the file that the target maps at an address. If the target has ended, its memory map is gone; then the hints
// are compared by inode number. (The device number does not help: on overlayfs and btrfs, stat returns another one than the kernel uses.)
func (p *target) findFile(id event.FileID, address uint64, hints []string) (proc.Place, error) {
	files, err := proc.Mappings(p.pid)
	if err != nil && !errors.Is(err, proc.ErrNoProcess) {
		return proc.Place{}, err
	}
	for _, m := range files {
		if address >= m.Start && address < m.End {
			p.files[m.Path] = id
			return m.Locate(p.pid), nil
		}
	}
	for _, hint := range hints {
		if key, err := proc.FileOf(hint); err == nil && key.Ino == id.Ino {
			return proc.Place{Path: hint, ID: key}, nil
		}
	}
	return proc.Place{}, fmt.Errorf("the target ended before its model file (device %#x, inode %d) could be named, trace a longer run: %w", id.Dev, id.Ino, proc.ErrNoProcess)
}

// resolve finds the mapping of a source for which the program could not search the memory map, because another thread was changing it.
func (p *target) resolve(s *event.Source) bool {
	files, err := proc.Mappings(p.pid)
	if err != nil {
		return false
	}
	for _, m := range files {
		if s.Data >= m.Start && s.Data < m.End {
			id, known := p.files[m.Path]
			if !known {
				id = event.FileID(m.File)
			}
			s.InFile, s.File, s.Offset = true, id, int64(s.Data-m.Start+m.Offset)
			return true
		}
	}
	return true // in no file: the weight was copied
}

// readCommand stores the process's command line, if there is one.
func (p *target) readCommand() {
	if line := proc.CommandLine(p.pid); line != nil {
		p.command = line
	}
}
