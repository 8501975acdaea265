package preload

// This file reads the records of the shim. They come from another program's memory: nothing in them is believed without bounds.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/gguf"
)

// kinds of records, as in shim.c
const (
	kindPad = iota
	kindProcess
	kindImage
	kindOpName
	kindFile
	kindTemplate
	kindGraph
	kindGraphEnd
	kindDecodeBegin
	kindDecodeEnd
)

const (
	noLayout  = 0xffffffff
	samples   = 4
	nameBytes = 64

	maxSources   = 10
	maxOps       = 1 << 20 // in a graph
	maxNames     = 1 << 10 // of ops
	maxTemplates = 1 << 10
	maxIDs       = 1 << 16
	maxSequences = 1 << 10
)

// gathers, as in shim.c
const (
	gatherNone = iota
	gatherRows
	gatherMatrices
	gatherBiases
	gathers
)

// reader takes values from a record; what goes beyond its end is zero and sets short.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.short = true
		r.b = nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

// text is a string that ends at a zero, or with its n bytes.
func (r *reader) text(n int) string {
	b := r.take(n)
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return string(b)
}

func (r *reader) err(what string) error {
	if r.short {
		return fmt.Errorf("%w: a record of %s is cut short", errCorrupt, what)
	}
	return nil
}

// processRecord says who writes.
type processRecord struct {
	parent  int32
	command []string
}

func readProcess(body []byte) (processRecord, error) {
	r := reader{b: body}
	p := processRecord{parent: int32(r.u32())}
	if line := r.take(int(r.u32())); len(line) > 0 {
		p.command = strings.Split(string(bytes.TrimSuffix(line, []byte{0})), "\x00")
	}
	return p, r.err("a process")
}

// imageRecord says which library computes, and how its structs look.
type imageRecord struct {
	layout          uint32
	version, commit string
	samples         [][]byte // tensors of the first graph
	path            string
}

func readImage(body []byte) (imageRecord, error) {
	r := reader{b: body}
	im := imageRecord{layout: r.u32()}
	n := r.u32()
	im.version, im.commit = r.text(nameBytes), r.text(nameBytes)
	var sizes [samples]uint32
	for i := range sizes {
		sizes[i] = r.u32()
	}
	for i, size := range sizes {
		raw := r.take(ggml.TensorBytes)
		if uint32(i) < n && raw != nil {
			im.samples = append(im.samples, bytes.Clone(raw[:min(size, ggml.TensorBytes)]))
		}
	}
	im.path = r.text(len(r.b))
	return im, r.err("a library")
}

func readOpName(body []byte) (op uint32, name string, err error) {
	r := reader{b: body}
	op = r.u32()
	r.u32()
	if op >= maxNames {
		return 0, "", fmt.Errorf("%w: op %d", errCorrupt, op)
	}
	return op, r.text(nameBytes), r.err("an op's name")
}

func readFile(body []byte) (id event.FileID, path string, err error) {
	r := reader{b: body}
	id = event.FileID{Dev: r.u64(), Ino: r.u64()}
	return id, r.text(len(r.b)), r.err("a file")
}

// template is what graphs of the same ops have in common.
type template struct {
	hash uint64
	ops  []templateOp
}

type templateOp struct {
	op      uint32
	node    uint32 // among those that the graph computes
	gather  uint32
	selects uint32
	sources []event.Source
	memo    event.Memo
}

func readTemplate(body []byte) (id uint32, t *template, err error) {
	r := reader{b: body}
	t = &template{hash: r.u64()}
	id = r.u32()
	n := r.u32()
	if n > maxOps || id >= maxTemplates {
		return 0, nil, fmt.Errorf("%w: a graph of %d ops", errCorrupt, n)
	}
	for range n {
		op := templateOp{op: r.u32(), node: r.u32()}
		sources := r.u32()
		op.gather, op.selects = r.u32(), r.u32()
		r.u32()
		if sources == 0 || sources > maxSources || op.gather >= gathers || op.selects > maxIDs || r.short {
			return 0, nil, fmt.Errorf("%w: an op with %d sources", errCorrupt, sources)
		}
		for range sources {
			op.sources = append(op.sources, readSource(&r))
		}
		t.ops = append(t.ops, op)
	}
	return id, t, r.err("a graph's ops")
}

func readSource(r *reader) event.Source {
	s := event.Source{Data: r.u64(), Offset: int64(r.u64())}
	s.File.Ino, s.File.Dev = r.u64(), r.u64()
	s.Type = gguf.Type(r.u32())
	s.InFile = r.u32() != 0
	for i := range s.NE {
		s.NE[i] = int64(r.u64())
	}
	for i := range s.NB {
		s.NB[i] = int64(r.u64())
	}
	s.Name = r.text(nameBytes)
	return s
}

// graphRecord is one call of ggml_graph_compute.
type graphRecord struct {
	time                              int64
	hash, seq                         uint64
	tid, decode, graph, template, ops uint32
	ids                               map[int]idList // by the op's place in the template
}

type idList struct {
	ids  []int32
	rows int
}

func readGraph(body []byte) (graphRecord, error) {
	r := reader{b: body}
	g := graphRecord{time: int64(r.u64()), hash: r.u64(), seq: r.u64(), tid: r.u32(), decode: r.u32(), graph: r.u32(), template: r.u32(), ops: r.u32()}
	lists := r.u32()
	for range lists {
		op, slots, rows := r.u32(), r.u32(), r.u32()
		r.u32()
		if r.short || slots > maxIDs || rows > maxIDs || slots*rows > maxIDs || slots*rows == 0 {
			return g, fmt.Errorf("%w: %d x %d ids", errCorrupt, slots, rows)
		}
		l := idList{ids: make([]int32, slots*rows), rows: int(rows)}
		for i := range l.ids {
			l.ids[i] = int32(r.u32())
		}
		if len(l.ids)%2 != 0 {
			r.u32()
		}
		if g.ids == nil {
			g.ids = map[int]idList{}
		}
		g.ids[int(op)] = l
	}
	return g, r.err("a graph")
}

type graphEnd struct {
	time        int64
	tid, decode uint32
}

func readGraphEnd(body []byte) (graphEnd, error) {
	r := reader{b: body}
	return graphEnd{time: int64(r.u64()), tid: r.u32(), decode: r.u32()}, r.err("a graph's end")
}

type decodeRecord struct {
	time        int64
	context     uint64
	tid, decode uint32
	tokens      int32
	warmup      bool
	sequences   []int32 // nil if unknown
}

func readDecode(body []byte) (decodeRecord, error) {
	r := reader{b: body}
	d := decodeRecord{time: int64(r.u64()), context: r.u64(), tid: r.u32(), decode: r.u32(), tokens: int32(r.u32()), warmup: r.u32() != 0}
	n := int32(r.u32())
	r.u32()
	if n > maxSequences {
		return d, fmt.Errorf("%w: a batch of %d sequences", errCorrupt, n)
	}
	for range max(n, 0) {
		d.sequences = append(d.sequences, int32(r.u32()))
	}
	return d, r.err("a decode")
}
