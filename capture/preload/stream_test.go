package preload

// These tests damage a real session's records, as a broken target may write them, and pass what the
// session makes of them on to a recorder.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
	"tensorcast/experiments/synth"
	"tensorcast/gguf"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/trace"
	"tensorcast/trace/tables"
)

var (
	update  = flag.Bool("update", false, "record the sessions in testdata/fuzz anew")
	streams = flag.Int("streams", 200, "how many damaged streams TestDamagedStreams reads")
)

// streamModels are the models of the recorded sessions. Their structure must not change, because
// the records contain offsets in them.
var streamModels = map[string]synth.Config{
	"dense": {Layers: 1, Embd: 64, FF: 64, Heads: 2, KVHeads: 1, Vocab: 300, Ctx: 64, Type: gguf.Q8_0, Seed: 3},
	"moe": {Layers: 1, Embd: 64, FF: 64, Heads: 2, KVHeads: 1, Vocab: 300, Ctx: 64, Experts: 4, Used: 2,
		Type: gguf.Q8_0, Seed: 4},
}

// corpusFile returns where the fuzzer looks for the session with a model.
func corpusFile(name string) string {
	return filepath.Join("testdata", "fuzz", "FuzzStream", "session-"+name)
}

// TestRecordedStreams checks that the recorded sessions are read to their ends, with every op at
// its weight.
func TestRecordedStreams(t *testing.T) {
	for name, config := range streamModels {
		t.Run(name, func(t *testing.T) {
			if *update {
				recordStream(t, name, config)
			}
			m := newStreamModels(t)
			events, meta, err := m.replay(t, readStream(t, name), t.TempDir())
			// The decodes are a warm-up of 2 tokens, a prompt, and 2 tokens.
			if err != nil || events.ops == 0 || events.decodes != 4 || meta == nil || meta.Rows == 0 ||
				meta.Steps != 4 || meta.Tokens != 2 {
				t.Errorf("events %+v, description %+v, error %v; want 4 decodes that generate 2 tokens, and rows",
					events, meta, err)
			}
		})
	}
}

func recordStream(t *testing.T, name string, config synth.Config) {
	t.Helper()
	in := install(t)
	o := llama.Options{Model: model(t, config), Prompt: "x", Tokens: 2, Threads: 1, NoRepack: true}
	s, err := Start(t.Context(), Options{RingBytes: 1 << 20, Credential: ordinary()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cmd := in.Command(t.Context(), o)
	cmd.Env = s.Environ(cmd.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: ordinary()}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the program failed with %v: %s", err, out)
	}
	stream := s.mem.buffer(0)[:atomic.LoadUint64(&s.mem.slot(0).Head)]
	stream = bytes.ReplaceAll(stream, []byte(filepath.Dir(o.Model)),
		bytes.Repeat([]byte("/"), len(filepath.Dir(o.Model))))
	stream = bytes.ReplaceAll(stream, []byte(in.Dir), bytes.Repeat([]byte("/"), len(in.Dir)))
	text := fmt.Sprintf("go test fuzz v1\n[]byte(%s)\n", strconv.Quote(string(stream)))
	if err := errors.Join(os.MkdirAll(filepath.Dir(corpusFile(name)), 0o755),
		os.WriteFile(corpusFile(name), []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func readStream(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(corpusFile(name))
	if err != nil {
		t.Fatal(err)
	}
	_, quoted, ok := strings.Cut(string(text), "[]byte(")
	stream, err := strconv.Unquote(strings.TrimSuffix(strings.TrimSpace(quoted), ")"))
	if !ok || err != nil {
		t.Fatalf("%s holds no stream: %v", corpusFile(name), err)
	}
	return []byte(stream)
}

// replayed is the result of reading a stream.
type replayed struct{ ops, decodes int }

// streamModel holds the models that streams refer to.
type streamModel struct{ paths []string }

func newStreamModels(t testing.TB) *streamModel {
	t.Helper()
	m := &streamModel{}
	for _, name := range []string{"dense", "moe"} {
		m.paths = append(m.paths, llamatest.Model(t, streamModels[name]))
	}
	return m
}

// replay lets a session read a stream and passes the events to a recorder. If dir is not empty, a
// capture is written there.
func (m *streamModel) replay(t testing.TB, stream []byte, dir string) (got replayed, meta *tables.Meta, err error) {
	t.Helper()
	const ring = 256 << 10
	mem, err := newMemory(ring, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := bare(mem)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.target = os.Getpid()
	// The structure shows which model it is: only one has experts' tensors.
	path := m.paths[0]
	if bytes.Contains(stream, []byte("_exps.weight")) {
		path = m.paths[1]
	}
	id, err := proc.FileOf(path)
	if err != nil {
		t.Fatal(err)
	}
	options := trace.RecorderOptions{
		Dir: dir, PID: os.Getpid(), Counters: s.Counters, Libraries: s.Libraries, Target: s.Target,
		Detail: tables.DetailPreload,
	}
	if dir == "" {
		options.CSV = io.Discard
	}
	recorder, err := trace.NewSession(options)
	if err != nil {
		t.Fatal(err)
	}
	handle := func(e event.Event) error {
		switch e := e.(type) {
		case event.FileSeen:
			e.Path, e.ID = path, id
			return recorder.Handle(e)
		case event.DecodeBegin:
			got.decodes++
		case *event.Op:
			got.ops++
			if e.Name == "" || len(e.Sources) == 0 {
				t.Errorf("op %+v, want a name and sources", e)
			}
		}
		return recorder.Handle(e)
	}
	slot := mem.slot(0)
	atomic.StoreUint32(&slot.Pid, uint32(os.Getpid()))
	for len(stream) > 0 && err == nil {
		// Records that do not fit come later, as they would from a shim. Here they begin at the
		// start of the ring.
		n := 0
		for _, r := range split(stream) {
			if n > 0 && n+len(r) > ring {
				break
			}
			n += copy(mem.buffer(0)[n:], r)
		}
		if n == 0 {
			break // half a record's head
		}
		mem.tail[0] = 0
		atomic.StoreUint64(&slot.Head, uint64(n))
		err = s.readSlots(time.Now().Add(time.Minute), handle)
		stream = stream[n:]
	}
	if err == nil {
		err = s.finishProcesses(handle)
	}
	metas, finishErr := recorder.Finish(err)
	if len(metas) > 0 {
		meta = metas[0]
	}
	if err == nil {
		err = finishErr
	}
	return got, meta, err
}

// isExplained reports whether an error is one that a broken stream may cause: it says in one line
// what is wrong.
func isExplained(err error) bool {
	return err == nil || !strings.Contains(err.Error(), "\n") &&
		(errors.Is(err, errCorrupt) || errors.Is(err, event.ErrLayout) || errors.Is(err, event.ErrNoDecode) ||
			errors.Is(err, event.ErrOutside))
}

// FuzzStream reads any bytes that a target may write to its ring.
func FuzzStream(f *testing.F) {
	m := newStreamModels(f)
	f.Fuzz(func(t *testing.T, stream []byte) {
		if _, _, err := m.replay(t, stream, ""); !isExplained(err) {
			t.Error(err)
		}
	})
}

// However a stream is damaged, it is read or refused with one line, in little time and memory.
func TestDamagedStreams(t *testing.T) {
	testenv.NeedMachine(t)
	m := newStreamModels(t)
	var sessions [][]byte
	for _, name := range []string{"dense", "moe"} {
		sessions = append(sessions, readStream(t, name))
	}
	var slowest time.Duration
	results := map[string]int{}
	for i := range *streams {
		random := rand.New(rand.NewPCG(uint64(i), 12))
		stream := damage(random, sessions[i%2])
		dir := ""
		if i%10 == 0 {
			dir = filepath.Join(t.TempDir(), "capture")
		}
		begun := time.Now()
		got, _, err := m.replay(t, stream, dir)
		if !isExplained(err) {
			t.Errorf("stream %d: error %v, want one line that says what is wrong", i, err)
		}
		if took := time.Since(begun); took > slowest {
			if slowest = took; took > 5*time.Second {
				t.Errorf("stream %d took %v for %d ops; want at most %v", i, took, got.ops, 5*time.Second)
			}
		}
		switch {
		case err == nil:
			results["read"]++
		case got.ops > 0:
			results["refused after ops"]++
		default:
			results["refused"]++
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	peak, _, _ = strings.Cut(strings.TrimSpace(peak), " ")
	kib, err := strconv.Atoi(peak)
	if err != nil || kib > 500<<10 {
		t.Errorf("%d KiB at the peak, %v; want at most %v", kib, err, 500<<10)
	}
	t.Logf("%v; the slowest took %v; %d MiB at the peak", results, slowest, kib>>10)
}

// damage changes bytes, numbers, records or the order of a stream. Most of the time the records'
// heads stay sound, so that the bodies are read.
func damage(random *rand.Rand, session []byte) []byte {
	records := split(session)
	values := []uint64{
		0, 1, 2, 7, 8, 9, 63, 64, 255, 1023, 1024, 65535, 65536, 1 << 20, 1<<31 - 1, 1 << 31,
		1<<32 - 1, 1 << 32, 1 << 48, 1 << 62, 1<<63 - 1, 1 << 63, ^uint64(0), ^uint64(7),
	}
	for range 1 + random.IntN(8) {
		at := random.IntN(len(records))
		r := bytes.Clone(records[at])
		body := (len(r) - int(recordHead)) &^ 7
		if body == 0 {
			continue
		}
		switch random.IntN(9) {
		case 0: // a bit
			r[int(recordHead)+random.IntN(body)] ^= 1 << random.IntN(8)
		case 1, 2: // a number
			to := int(recordHead) + random.IntN(body)&^7
			binary.NativeEndian.PutUint64(r[to:], values[random.IntN(len(values))])
		case 3, 4:
			to := int(recordHead) + random.IntN(body)&^3
			binary.NativeEndian.PutUint32(r[to:], uint32(values[random.IntN(len(values))]))
		case 5: // the kind or the size
			binary.NativeEndian.PutUint32(r[random.IntN(2)*4:], uint32(random.IntN(len(r)+16)))
		case 6: // shorter
			r = r[:int(recordHead)+random.IntN(body)&^7]
			binary.NativeEndian.PutUint32(r[4:], uint32(len(r)))
			if len(r) == int(recordHead) {
				r = nil
			}
		case 7: // again and again
			r = bytes.Repeat(r, 1+random.IntN(max(1, (256<<10)/len(r))))
		case 8: // elsewhere
			other := random.IntN(len(records))
			r, records[other] = records[other], r
		}
		if records[at] = r; len(r) == 0 {
			if records = append(records[:at:at], records[at+1:]...); len(records) == 0 {
				return nil
			}
		}
		records = split(bytes.Join(records, nil))
	}
	out := bytes.Join(records, nil)
	if random.IntN(10) == 0 {
		out = out[:random.IntN(len(out))]
	}
	return out
}

// split cuts a stream into its records. Bytes that are no record count as one.
func split(stream []byte) (records [][]byte) {
	for len(stream) > 0 {
		size := len(stream)
		if size > int(recordHead) {
			size = int(binary.NativeEndian.Uint32(stream[4:]))
		}
		if size <= int(recordHead) || size > len(stream) {
			size = len(stream)
		}
		records = append(records, stream[:size:size])
		stream = stream[size:]
	}
	return records
}
