package ebpf

// This file holds what is known about one traced process: the files that carry probes, the op names
// and struct layout of its ggml, and what the nodes of its graphs read.

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
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
	command     []string
	announced   bool // ProcessBegin was sent
	cache       *cache

	// Its ggml.
	likely     []*ggml.Image // images that it will probably map
	mapped     []*ggml.Image
	ops        []string
	layout     *ggml.Layout
	config     traceLayout
	configured bool
	sawOp      bool // an event has arrived, so ggml was found and no further libraries are looked for
	search     search

	// Its files.
	files      map[string]event.FileID // files that ops read from, by the target's path
	fileFound  map[event.FileID]bool   // at most maxFiles: whether the file could be found
	mappings   []proc.Mapping          // its memory map, as refreshMappings read it
	mappingsAt time.Time               // when
	unmapped   []unmapping             // at most maxUnmapped, the newest last

	// Its steps.
	seesDecodes   bool   // llama_decode is observed, so steps need not be derived
	lastDecode    uint32 // the highest number of a decode that was seen to begin
	partialDecode uint32 // the last decode that began before the probes on ops were set
	// derived are the steps where it is not: llama_decode has no symbol, or other code computes (as
	// in Ollama's own engine).
	derived event.DerivedSteps
}

// maxFiles is how many files a process may read weights from. Split models have up to some thousand
// parts. Captures and patterns hold as many files.
const maxFiles = 1 << 12

// unmapping is a mapping of a file that the target has no more.
type unmapping struct {
	proc.Mapping
	at time.Time // when the memory map was read without it
}

// Mappings that have gone are remembered for a while, because events about them may still be in the buffer: a target
// that ends unmaps its models. No event is expected to wait longer than lateReader.
const (
	lateReader  = 10 * time.Second
	maxUnmapped = 1 << 12
)

// template is what the op of a node reads. Op events refer to it by id.
type template struct {
	of    *target
	id    uint32
	op    event.Op // without times
	ids   uint64   // address of the tensor with the ids that it gathers by
	slots int      // ids per token
	memo  event.Memo
}

func newTarget(pid, parent int, cache *cache) (*target, error) {
	process, err := proc.Open(pid)
	if err != nil {
		return nil, err
	}
	return &target{
		pid: pid, parent: parent, process: process, cache: cache,
		files: map[string]event.FileID{}, fileFound: map[event.FileID]bool{},
		derived: event.DerivedSteps{PID: int32(pid)},
	}, nil
}

// images are those that the process has mapped. As long as these do not include a complete ggml,
// the result also has those that it is likely to map: the library that computes may be loaded late.
func (p *target) images() []*ggml.Image {
	ops := slices.ContainsFunc(p.mapped, func(im *ggml.Image) bool { return im.Ops != nil })
	computes := slices.ContainsFunc(p.mapped, func(im *ggml.Image) bool {
		return im.Has(ggml.RoleOp) || im.Has(ggml.RoleGraph)
	})
	if ops && computes {
		return p.mapped
	}
	return slices.Concat(p.mapped, p.likely)
}

// hasRole reports whether one of the images has a function with this role.
func (p *target) hasRole(role ggml.Role) bool {
	return slices.ContainsFunc(p.images(), func(im *ggml.Image) bool { return im.Has(role) })
}

// learnImages takes op names and layout from newly found images. It returns true if the programs'
// configuration must change.
func (p *target) learnImages(images []*ggml.Image) (bool, error) {
	base := slices.IndexFunc(images, func(im *ggml.Image) bool { return im.Ops != nil })
	if base < 0 {
		return false, nil // none of them has ggml's base library: keep what is known
	}
	p.ops = images[base].Ops
	layout, err := ggml.Infer(images)
	if err != nil {
		return false, fmt.Errorf("process %d: %w", p.pid, err)
	}
	config := traceLayout{
		Gathers: gathersOf(p.ops), Ne: layout.NE, Op: layout.Op, Flags: layout.Flags,
		Src: layout.Src, MaxSrc: layout.MaxSrc, ViewSrc: layout.ViewSrc, Data: layout.Data, Name: layout.Name,
		N_nodes: layout.NNodes, Nodes: layout.Nodes,
	}
	seesFree := slices.ContainsFunc(images, func(im *ggml.Image) bool { return im.Has(ggml.RoleBufferFree) })
	config.AlwaysLearn = asFlag(!seesFree)
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
			to[i] = traceGather{
				Op: uint32(op), Source: uint8(g.Source), Ids: uint8(g.IDs), Experts: uint8(asFlag(g.Experts)),
			}
		}
	}
	return to
}

// noteDecode records that a thread called llama_decode: from now on no steps are derived.
func (p *target) noteDecode(tid int32, handle func(event.Event) error) error {
	p.seesDecodes = true
	return p.derived.EndThread(tid, handle)
}

// noteBegin notes that a decode began at a time (in ns, CLOCK_MONOTONIC). Probes on ops were last set at probedAt.
func (p *target) noteBegin(decode uint32, at, probedAt int64) {
	p.lastDecode = max(p.lastDecode, decode)
	if at < probedAt {
		p.partialDecode = max(p.partialDecode, decode)
	}
}

// deriveStep begins, extends or ends derived steps, and sets the op's decode.
func (p *target) deriveStep(o *event.Op, handle func(event.Event) error) error {
	if o.Decode != 0 || p.seesDecodes {
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

// decodeOf is the decode of an event other than an op: the one that the programs sent, or the
// derived step that is open.
func (p *target) decodeOf(tid int32, sent uint32) uint32 {
	if sent != 0 || p.seesDecodes {
		return sent
	}
	return p.derived.Decode(tid)
}

func (p *target) opName(op uint32) (string, error) {
	if int(op) >= len(p.ops) {
		return "", fmt.Errorf("%w: a tensor has op number %d, but the target's ggml has %d (layout: %s)",
			event.ErrLayout, op, len(p.ops), p.layout)
	}
	return p.ops[op], nil
}

// learnTemplate stores a template that the programs sent. unresolved counts its sources whose
// mapping could not be found.
func (p *target) learnTemplate(e *traceTemplateEvent) (t *template, unresolved uint64, err error) {
	name, err := p.opName(e.Op)
	if err != nil {
		return nil, 0, err
	}
	t = &template{
		of: p, id: e.Id, ids: e.Ids, slots: int(e.Slots),
		op: event.Op{PID: int32(p.pid), Name: name, Clipped: hasFlag(e.Flags, traceOpFlagOP_CLIPPED)},
	}
	if hasFlag(e.Flags, traceOpFlagOP_FUSED) {
		second, err := p.opName(e.FusedOp)
		if err != nil {
			return nil, 0, err
		}
		t.op.Name += "+" + second
	}
	if hasFlag(e.Flags, traceOpFlagOP_GATHERS) {
		g, ok := ggml.GatherOf(name)
		if !ok {
			return nil, 0, fmt.Errorf("%w: %s does not gather", event.ErrLayout, name)
		}
		t.op.GatherDim, t.op.ByExpert = g.Dim, g.Experts
	}
	if p.mappingsAt.IsZero() {
		p.refreshMappings(0) // for sources that are resolved when the target has ended
	}
	for i := range min(e.Nsrc, uint32(len(e.Src))) {
		s := newSource(&e.Src[i])
		if hasFlag(e.Src[i].Flags, traceSourceFlagSOURCE_UNRESOLVED) && !p.resolveSource(&s) {
			t.op.Clipped = true
			unresolved++
			continue
		}
		t.op.Sources = append(t.op.Sources, s)
	}
	if e.Shape != 0 {
		p.cache.extendShape(p, e.Shape, t)
	} else {
		p.cache.addTemplate(t)
	}
	return t, unresolved, nil
}

// cString converts a C string, which ends at its first zero byte or with the array.
func cString(raw []int8) string {
	name := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(raw))), len(raw))
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	return string(name)
}

func newSource(e *traceSource) event.Source {
	return event.Source{
		Name: cString(e.Name[:]), Data: e.Data, InFile: hasFlag(e.Flags, traceSourceFlagSOURCE_IN_FILE),
		File:   event.FileID{Dev: uint64(e.Dev), Ino: e.Ino},
		Offset: int64(e.Offset), Type: gguf.Type(e.Type), NE: e.Ne, NB: strides(e.Nb),
	}
}

func strides(nb [4]uint64) (to [4]int64) {
	for i, n := range nb {
		to[i] = int64(n)
	}
	return to
}

func bufferList(e *traceBuffersEvent) []event.Buffer {
	list := make([]event.Buffer, min(int(e.N), len(e.Buffers)))
	for i := range list {
		b := &e.Buffers[i]
		list[i] = event.Buffer{
			Name: cString(b.Name[:]), Root: cString(b.Root[:]), Data: b.Data,
			Type: gguf.Type(b.Type), NE: b.Ne, NB: strides(b.Nb), Write: b.Write != 0,
		}
	}
	return list
}

// errNotMapped says that a target has unmapped a file that it was about to read.
var errNotMapped = errors.New("the file is mapped no more")

// findFile finds the file that the target maps at an address. If the target has ended, its memory
// map is gone. Then the hints are compared by inode number. (The device number does not help: on
// overlayfs and btrfs, stat returns another one than the kernel uses.)
//
// The memory map is read once for many files: it is as long as there are parts of a model. What was read before is
// looked at first: a target that is about to end may have unmapped the file since then.
func (p *target) findFile(id event.FileID, address uint64, hints []string) (proc.Place, error) {
	m, ok := p.findMapping(address, id.Ino)
	if !ok {
		p.refreshMappings(address)
		m, ok = p.findMapping(address, id.Ino)
	}
	if ok {
		p.files[m.Path] = id
		return m.Locate(p.pid), nil
	}
	files, err := p.cache.readMappings(p.pid)
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
	if reachesBeyond(files, address) {
		return proc.Place{}, errNotMapped
	}
	return proc.Place{}, fmt.Errorf(
		"the target ended before its model file (device %#x, inode %d) could be named, trace a longer run: %w",
		id.Dev, id.Ino, proc.ErrNoProcess)
}

// findMapping returns what the target maps at an address, by the memory map that was read last, or has unmapped there.
// inode is that of the file that is looked for; 0 for any file.
func (p *target) findMapping(address, inode uint64) (proc.Mapping, bool) {
	matches := func(m *proc.Mapping) bool {
		return address >= m.Start && address < m.End && (inode == 0 || inode == m.File.Ino)
	}
	for i := range p.mappings {
		if matches(&p.mappings[i]) {
			return p.mappings[i], true
		}
	}
	for i := range slices.Backward(p.unmapped) {
		if matches(&p.unmapped[i].Mapping) {
			return p.unmapped[i].Mapping, true
		}
	}
	return proc.Mapping{}, false
}

// mapInterval is how old the memory map may be in which sources are looked up. A target that starts
// threads without end makes many mappings, but the events that are looked up are older than these.
const mapInterval = 100 * time.Millisecond

// reachesBeyond reports whether a memory map, which is in ascending order, was read beyond an
// address. The map of a process that is about to end may stop anywhere.
func reachesBeyond(files []proc.Mapping, address uint64) bool {
	return len(files) > 0 && files[len(files)-1].End > address
}

// refreshMappings reads the memory map, unless it was read just now. What was read last remains if
// there is none any more: a target that has ended mapped its model there until then.
func (p *target) refreshMappings(address uint64) {
	now := time.Now()
	if p.mappingsAt.After(now.Add(-mapInterval)) {
		return
	}
	p.mappingsAt = now
	files, err := p.cache.readMappings(p.pid)
	if err == nil && (p.mappings == nil || reachesBeyond(files, address)) {
		p.setMappings(files, now)
	}
}

// setMappings stores a memory map that was read just now. It remembers for a while what has gone since the one before,
// unless another file is mapped there.
func (p *target) setMappings(files []proc.Mapping, now time.Time) {
	gone := p.unmapped
	for _, m := range p.mappings {
		gone = append(gone, unmapping{m, now})
	}
	p.unmapped = slices.DeleteFunc(gone, func(m unmapping) bool {
		return now.Sub(m.at) > lateReader || overlaps(files, m.Mapping)
	})
	p.unmapped = slices.Clone(p.unmapped[max(0, len(p.unmapped)-maxUnmapped):])
	p.mappings = files
}

// overlaps reports whether a memory map, which is in ascending order, has a file in the range of a mapping.
func overlaps(files []proc.Mapping, m proc.Mapping) bool {
	i, _ := slices.BinarySearchFunc(files, m.Start, func(f proc.Mapping, start uint64) int {
		return cmp.Compare(f.End, start+1) // the first that ends behind start
	})
	return i < len(files) && files[i].Start < m.End
}

// resolveSource finds the mapping of a source for which the program could not search the memory
// map, because another thread was changing it. It returns false if the memory map does not reach
// that far.
func (p *target) resolveSource(s *event.Source) bool {
	p.refreshMappings(s.Data)
	m, ok := p.findMapping(s.Data, 0)
	if !ok {
		return reachesBeyond(p.mappings, s.Data) // in no file: the weight was copied
	}
	id, known := p.files[m.Path]
	if !known {
		id = m.File
	}
	s.InFile, s.File, s.Offset = true, id, int64(s.Data-m.Start+m.Offset)
	return true
}

// readCommand stores the process's command line, if there is one.
func (p *target) readCommand() {
	if line := proc.CommandLine(p.pid); line != nil {
		p.command = line
	}
}
