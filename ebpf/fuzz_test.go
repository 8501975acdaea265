package ebpf

// These tests give streams that no program sends to the decoder of the ring buffer, and to what
// handles its events. They need no kernel.

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"tensorcast/capture/capturetest"
	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/pattern"
	"tensorcast/trace"
)

var (
	record  = flag.Bool("record", false, "write the corpus of FuzzEvents again, from a target's events")
	streams = flag.Int("streams", 500, "how many mutated streams of events are tried")
)

// In a stream, each event has its length before it, in 2 bytes. The streams were recorded on
// another machine. So process, model and thread were replaced: the target is process tgid (no
// process has this number), its model is inode ino, its thread is tid.
const (
	tgid = 1 << 30
	ino  = 1
	tid  = 7
)

// corpus is where go test looks for the seeds of FuzzEvents.
const corpus = "testdata/fuzz/FuzzEvents"

// cutEvent takes the first event off a stream; nil at its end.
func cutEvent(stream []byte) (raw, rest []byte) {
	if len(stream) < 2 {
		return nil, nil
	}
	n := min(int(binary.LittleEndian.Uint16(stream)), len(stream)-2)
	return stream[2 : 2+n], stream[2+n:]
}

// joinEvents makes a stream of events.
func joinEvents(events [][]byte) (stream []byte) {
	for _, raw := range events {
		stream = append(binary.LittleEndian.AppendUint16(stream, uint16(len(raw))), raw...)
	}
	return stream
}

// replayer stands for a machine with a target.
type replayer struct {
	model *capturetest.Model
	id    proc.FileID
}

func newReplayer(t testing.TB) *replayer {
	t.Helper()
	m := capturetest.NewModel(t)
	id, err := proc.FileOf(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	return &replayer{m, id}
}

// replay gives a stream to a Tracer, and its events to a pattern.Builder and a trace.Recorder. dir
// is the capture's directory; "" writes nothing.
func (r *replayer) replay(t testing.TB, stream []byte, dir string) {
	t.Helper()
	layout := ggml.Candidates()[0]
	c := newCache(1024)
	p := &target{
		pid: tgid, ops: capturetest.Ops(), layout: &layout, configured: true, files: map[string]event.FileID{},
		fileFound: map[event.FileID]bool{}, cache: c,
		derived: event.DerivedSteps{PID: tgid},
	}
	tr := &Tracer{
		opts: Options{Detail: DetailIO, Hints: []string{r.model.Path}, Log: slog.New(slog.DiscardHandler)}, cache: c,
		main: p, targets: map[uint32]*target{tgid: p},
	}
	rec, err := trace.NewRecorder(trace.RecorderOptions{Dir: dir, PID: tgid, CSV: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	files := map[event.FileID]int{}
	learner := pattern.NewBuilder(func(id event.FileID) (int, bool) { i, ok := files[id]; return i, ok })
	handle := func(e event.Event) error {
		switch e := e.(type) {
		case event.FileSeen:
			files[e.File] = len(files)
		case event.DecodeBegin:
			learner.Begin()
		case event.DecodeEnd:
			learner.End()
		case *event.Op:
			learner.Op(e)
		}
		return rec.Handle(e)
	}
	for raw, rest := cutEvent(stream); raw != nil && err == nil; raw, rest = cutEvent(rest) {
		if len(raw) >= 8 && systemEventKind(binary.NativeEndian.Uint32(raw)) == systemEventKindKIND_FORK {
			continue // that would be one of this machine's processes
		}
		err = tr.dispatch(r.setInode(raw), handle)
	}
	if err == nil {
		err = tr.finish(handle)
	}
	learner.Cycle()
	_, _ = rec.Finish(err) // a stream without a model, or without a decode, is no failure
}

// setInode replaces the model's inode in the event of a template by that of this machine.
func (r *replayer) setInode(raw []byte) []byte {
	raw = append(make([]byte, 0, len(raw)), raw...)
	var empty traceTemplateEvent
	shortest := int(unsafe.Sizeof(empty)) - len(empty.Src)*int(unsafe.Sizeof(traceSource{}))
	if len(raw) < shortest || traceKind(binary.NativeEndian.Uint32(raw)) != traceKindKIND_TEMPLATE {
		return raw
	}
	e := *viewAs[traceTemplateEvent](raw)
	for i := range e.Src {
		if e.Src[i].Ino == ino {
			e.Src[i].Ino = r.id.Ino
		}
	}
	return append(raw[:0], unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e))...)
}

// FuzzEvents checks that nothing panics or takes long, whatever the ring buffer holds.
func FuzzEvents(f *testing.F) {
	r := newReplayer(f)
	f.Fuzz(func(t *testing.T, stream []byte) { r.replay(t, stream, "") })
}

// readSeeds returns the streams of the corpus.
func readSeeds(t *testing.T) (all [][]byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(corpus, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, value, _ := strings.Cut(string(data), "\n")
		text, err := strconv.Unquote(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(value), "[]byte("), ")"))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, []byte(text))
	}
	return all
}

// numbers are values with which programs often go wrong.
var numbers = []uint64{
	0, 1, 2, 3, 15, 16, 17, 63, 64, 127, 128, 255, 65535, 65536, 65537, 1 << 24, 1<<31 - 1, 1 << 31, 1<<32 - 1,
	1 << 46, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1,
}

// mutate changes a stream at random: bytes, numbers, whole events.
func mutate(r *rand.Rand, stream []byte) []byte {
	var events [][]byte
	for raw, rest := cutEvent(stream); raw != nil; raw, rest = cutEvent(rest) {
		events = append(events, append([]byte{}, raw...))
	}
	for range 1 + r.IntN(12) {
		i, j := r.IntN(len(events)), r.IntN(len(events))
		e := events[i]
		switch r.IntN(8) {
		case 0:
			events[i], events[j] = events[j], events[i]
		case 1:
			events[i] = append([]byte{}, events[j]...)
		case 2:
			events[i] = e[:r.IntN(len(e)+1)]
		case 3:
			if len(e) >= 4 { // another kind of event with the same bytes
				binary.NativeEndian.PutUint32(e, uint32(r.IntN(70)))
			}
		case 4:
			if len(e) > 0 {
				e[r.IntN(len(e))] ^= 1 << r.IntN(8)
			}
		case 5, 6:
			if len(e) >= 16 {
				binary.NativeEndian.PutUint32(e[8+r.IntN((len(e)-8)/4)*4:], uint32(numbers[r.IntN(len(numbers))]))
			}
		default:
			if len(e) >= 16 {
				binary.NativeEndian.PutUint64(e[8+r.IntN((len(e)-8)/8)*8:], numbers[r.IntN(len(numbers))])
			}
		}
	}
	return joinEvents(events)
}

// The corpus is complete: its events make rows. No mutated stream makes anything panic or hang.
func TestMutatedStreams(t *testing.T) {
	m := newReplayer(t)
	all := readSeeds(t)
	whole := filepath.Join(t.TempDir(), "whole")
	m.replay(t, all[0], whole)
	c, err := trace.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	if c.Meta.Rows == 0 || c.Meta.Steps == 0 {
		t.Errorf("the first seed makes %d rows in %d steps", c.Meta.Rows, c.Meta.Steps)
	}
	dir := filepath.Join(t.TempDir(), "capture")
	longest := time.Duration(0)
	for seed := range *streams {
		r := rand.New(rand.NewPCG(uint64(seed), 12))
		stream := mutate(r, all[seed%len(all)])
		begun := time.Now()
		where := ""
		if seed%16 == 0 { // the tables, too
			where = dir
		}
		m.replay(t, stream, where)
		if longest = max(longest, time.Since(begun)); longest > 5*time.Second {
			t.Fatalf("stream %d took %v", seed, longest)
		}
	}
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		_, peak, _ := strings.Cut(string(status), "VmHWM:")
		peak, _, _ = strings.Cut(strings.TrimSpace(peak), "\n")
		t.Logf("%d streams, the longest took %v; the most memory was %s", *streams, longest.Round(time.Microsecond),
			peak)
	}
}

// TestRecordCorpus writes the corpus from what the programs send of the fake target: go test ./ebpf
// -run TestRecordCorpus -record
func TestRecordCorpus(t *testing.T) {
	testenv.NeedRoot(t)
	f := capturetest.New(t)
	for name, opts := range map[string]Options{
		"op": {}, "graph": {Detail: DetailGraph}, "io": {Detail: DetailIO, Interval: minPoll},
		"buffers": {Buffers: true},
		"routing": {Selected: true, Inputs: 1},
	} {
		m := capturetest.NewModel(t)
		id, err := proc.FileOf(m.Path)
		if err != nil {
			t.Fatal(err)
		}
		args := f.Args(m, "control", time.Millisecond)
		events := recordEvents(t, exec.CommandContext(t.Context(), args[0], args[1:]...), opts, id.Ino)
		if len(events) < 20 {
			t.Errorf("%s: only %d events", name, len(events))
		}
		kinds := map[traceKind]int{}
		for _, raw := range events {
			kinds[traceKind(binary.NativeEndian.Uint32(raw))]++
		}
		if opts.Selected && (kinds[traceKindKIND_SELECTED] == 0 || kinds[traceKindKIND_INPUT] == 0) {
			t.Errorf("%s: events by kind %v", name, kinds)
		}
		if !*record {
			newReplayer(t).replay(t, joinEvents(events), "")
			continue
		}
		if err := os.MkdirAll(corpus, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(corpus, name),
			fmt.Appendf(nil, "go test fuzz v1\n[]byte(%q)\n", joinEvents(events)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// recordEvents runs a command to its end and returns the first events of the ring buffer, about 14
// KB. At most two of them are samples.
func recordEvents(t *testing.T, cmd *exec.Cmd, opts Options, inode uint64) (events [][]byte) {
	t.Helper()
	child, err := proc.Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	opts.PID = child.PID()
	tr, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := errors.Join(tr.AttachLikely(cmd.Path, os.Environ()), child.Release()); err != nil {
		t.Fatal(err)
	}
	if status, err := child.Wait(); status != 0 || err != nil {
		t.Fatalf("status %d, %v", status, err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	size, samples := 0, 0
	for ctx.Err() == nil {
		tr.reader.SetDeadline(time.Now())
		var rec ringbuf.Record
		if err := tr.reader.ReadInto(&rec); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		raw := append([]byte{}, rec.RawSample...)
		binary.NativeEndian.PutUint32(raw[4:], tgid)
		switch traceKind(binary.NativeEndian.Uint32(raw)) {
		case traceKindKIND_SAMPLE:
			if samples++; samples > 2 {
				continue
			}
		case traceKindKIND_TEMPLATE:
			e := *viewAs[traceTemplateEvent](raw)
			for i := range e.Src {
				if e.Src[i].Ino == inode {
					e.Src[i].Ino = ino
				}
			}
			copy(raw, unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e)))
		case traceKindKIND_OPS, traceKindKIND_IDS, traceKindKIND_DECODE_BEGIN, traceKindKIND_DECODE_END,
			traceKindKIND_GRAPH, traceKindKIND_BUFFERS,
			traceKindKIND_SELECTED, traceKindKIND_INPUT:
			binary.NativeEndian.PutUint32(raw[8:], tid)
		}
		events = append(events, raw)
		if size += len(raw); size > 14<<10 {
			break
		}
	}
	return events
}
