package preload

// This file decodes the shim's records, which wire.h defines. Another program writes them, so
// nothing in them is trusted.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unsafe"

	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/gguf"
)

// reader takes values from a record. Reading beyond its end gives zeros and sets short.
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

// readStruct reads a struct of wire.h.
func readStruct[T any](r *reader) (v T) {
	to := unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v))
	copy(to, r.take(len(to)))
	return v
}

// readText reads a string that ends at a zero byte or with the record.
func (r *reader) readText() string { return zeroTerminated(r.take(len(r.b))) }

// zeroTerminated converts a string that ends at a zero byte or with b.
func zeroTerminated(b []byte) string {
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

// processRecord describes the process that writes.
type processRecord struct {
	parent  int32
	command []string
}

func readProcess(body []byte) (processRecord, error) {
	r := reader{b: body}
	w := readStruct[wireProcess](&r)
	p := processRecord{parent: int32(w.Parent)}
	if w.Bytes > maxCommand {
		return p, fmt.Errorf("%w: a command line of %d bytes", errCorrupt, w.Bytes)
	}
	if line := r.take(int(w.Bytes)); len(line) > 0 {
		p.command = strings.Split(string(bytes.TrimSuffix(line, []byte{0})), "\x00")
	}
	return p, r.err("a process")
}

// imageRecord describes the library that computes, and the layout of its structs.
type imageRecord struct {
	layout          uint32
	version, commit string
	samples         [][]byte // raw tensors of the first graph
	path            string
}

func readImage(body []byte) (imageRecord, error) {
	r := reader{b: body}
	w := readStruct[wireImage](&r)
	im := imageRecord{layout: w.Layout, version: zeroTerminated(w.Version[:]), commit: zeroTerminated(w.Commit[:])}
	for i := range min(int(w.Samples), samples) {
		im.samples = append(im.samples, bytes.Clone(w.Sample[i][:min(w.Bytes[i], sampleBytes)]))
	}
	im.path = r.readText()
	return im, r.err("a library")
}

func readOpName(body []byte) (op uint32, name string, err error) {
	r := reader{b: body}
	w := readStruct[wireOpName](&r)
	if w.Op >= maxNames {
		return 0, "", fmt.Errorf("%w: op %d", errCorrupt, w.Op)
	}
	return w.Op, zeroTerminated(w.Name[:]), r.err("an op's name")
}

func readFile(body []byte) (id event.FileID, path string, err error) {
	r := reader{b: body}
	w := readStruct[wireFile](&r)
	if len(r.b) > maxPath {
		return id, "", fmt.Errorf("%w: a path of %d bytes", errCorrupt, len(r.b))
	}
	return event.FileID{Dev: w.Dev, Ino: w.Ino}, r.readText(), r.err("a file")
}

// template is what graphs with the same ops have in common.
type template struct {
	hash    uint64
	ops     []templateOp
	weights int // sources of all ops
}

type templateOp struct {
	op      uint32
	node    uint32      // index among the nodes that the graph computes
	gather  ggml.Gather // its Dim is 0 if the op does not gather
	selects uint32
	sources []event.Source
	memo    event.Memo
}

func readTemplate(body []byte) (id uint32, t *template, err error) {
	r := reader{b: body}
	w := readStruct[wireTemplate](&r)
	if w.Ops > maxOps || w.Id >= maxTemplates {
		return 0, nil, fmt.Errorf("%w: a graph of %d ops", errCorrupt, w.Ops)
	}
	t = &template{hash: w.Hash}
	gathers := ggml.Gathers()
	for range w.Ops {
		o := readStruct[wireOp](&r)
		if o.Sources == 0 || o.Sources > maxSources || int64(o.Gather) > int64(len(gathers)) || o.Selects > maxIDs ||
			r.short {
			return 0, nil, fmt.Errorf("%w: an op with %d sources", errCorrupt, o.Sources)
		}
		op := templateOp{op: o.Op, node: o.Node, selects: o.Selects}
		if o.Gather > 0 {
			op.gather = gathers[o.Gather-1]
		}
		for range o.Sources {
			op.sources = append(op.sources, readSource(&r))
		}
		t.ops = append(t.ops, op)
		t.weights += len(op.sources)
	}
	return w.Id, t, r.err("a graph's ops")
}

func readSource(r *reader) event.Source {
	w := readStruct[wireSource](r)
	s := event.Source{
		Name: zeroTerminated(w.Name[:]), Data: w.Data, InFile: w.Mapped != 0,
		File:   event.FileID{Dev: w.Dev, Ino: w.Ino},
		Offset: int64(w.Offset), Type: gguf.Type(w.Type), NE: w.Ne,
	}
	for i, n := range w.Nb {
		s.NB[i] = int64(n)
	}
	return s
}

// graphRecord is a call of ggml_graph_compute.
type graphRecord struct {
	time                              int64
	hash, seq                         uint64
	tid, decode, graph, template, ops uint32
	ids                               map[int]idList // by the op's index in the template
}

type idList struct {
	ids  []int32
	rows int
}

func readGraph(body []byte) (graphRecord, error) {
	r := reader{b: body}
	w := readStruct[wireGraph](&r)
	g := graphRecord{
		time: int64(w.Time), hash: w.Hash, seq: w.Seq, tid: w.Tid, decode: w.Decode, graph: w.Graph,
		template: w.Template, ops: w.Ops,
	}
	for range w.Lists {
		list := readStruct[wireIDs](&r)
		slots, rows := list.Slots, list.Rows
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
		g.ids[int(list.Op)] = l
	}
	return g, r.err("a graph")
}

type graphEnd struct {
	time        int64
	tid, decode uint32
}

func readGraphEnd(body []byte) (graphEnd, error) {
	r := reader{b: body}
	w := readStruct[wireGraphEnd](&r)
	return graphEnd{time: int64(w.Time), tid: w.Tid, decode: w.Decode}, r.err("a graph's end")
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
	w := readStruct[wireDecode](&r)
	d := decodeRecord{
		time: int64(w.Time), context: w.Context, tid: w.Tid, decode: w.Decode, tokens: w.Tokens,
		warmup: w.Warmup != 0,
	}
	if w.Sequences > maxSequences {
		return d, fmt.Errorf("%w: a batch of %d sequences", errCorrupt, w.Sequences)
	}
	for range max(w.Sequences, 0) {
		d.sequences = append(d.sequences, int32(r.u32()))
	}
	return d, r.err("a decode")
}
