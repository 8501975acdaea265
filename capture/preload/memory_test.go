package preload

// These tests read shared memory that a target has filled well or badly.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/internal/testenv"
)

// session returns a session without a shim.
func session(t testing.TB) *Session {
	t.Helper()
	m, err := newMemory(minRing, nil)
	if err != nil {
		t.Fatal(err)
	}
	return sessionIn(t, m)
}

func sessionIn(t testing.TB, m *memory) *Session {
	t.Helper()
	s := bare(m)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// bare returns a session without a shim. The caller closes it.
func bare(m *memory) *Session {
	return &Session{opts: Options{Log: slog.New(slog.DiscardHandler), Tick: func() error { return nil },
		Interval: time.Millisecond}, mem: m, procs: map[int]*process{}, strays: map[int]string{},
		layouts: ggml.Candidates()}
}

// The target may write anything to its ring. That gives an error, never a crash.
func TestCorruptRing(t *testing.T) {
	record := func(kind, size uint32) []byte {
		b := make([]byte, 64)
		binary.NativeEndian.PutUint32(b, kind)
		binary.NativeEndian.PutUint32(b[4:], size)
		return b
	}
	for name, tc := range map[string]struct {
		head, tail uint64
		ring       []byte
	}{
		"more than it holds": {head: minRing + 8},
		"backwards":          {head: 8, tail: 16},
		"size 0":             {head: 64, ring: record(kindGraph, 0)},
		"odd size":           {head: 64, ring: record(kindGraph, 12)},
		"beyond the head":    {head: 64, ring: record(kindGraph, 72)},
		"beyond the ring":    {head: 64, ring: record(kindPad, 1<<31)},
		"odd head":           {head: 4},
	} {
		t.Run(name, func(t *testing.T) {
			m := session(t).mem
			copy(m.buffer(3), tc.ring)
			m.tail[3] = tc.tail
			atomic.StoreUint64(&m.slot(3).Head, tc.head)
			if n, err := m.readRecords(3, time.Time{}, func(uint32, []byte) error { return nil }); !errors.Is(err,
				errCorrupt) || n != 0 {
				t.Errorf("%d records, %v; want %v, n = 0", n, err, errCorrupt)
			}
		})
	}
}

// Records wrap around as the shim writes them: if one does not fit before the ring's end, the rest
// of the ring is padding.
func TestRingWraps(t *testing.T) {
	m := session(t).mem
	m.tail[0] = minRing - 16
	ring := m.buffer(0)
	put := func(pos, kind, size uint32) {
		binary.NativeEndian.PutUint32(ring[pos:], kind)
		binary.NativeEndian.PutUint32(ring[pos+4:], size)
	}
	put(minRing-16, kindPad, 16)
	put(0, kindGraphEnd, 40)
	put(40, kindOpName, 24)
	atomic.StoreUint64(&m.slot(0).Head, minRing+64)
	var got []uint32
	n, err := m.readRecords(0, time.Now().Add(time.Minute), func(kind uint32, body []byte) error {
		got = append(got, kind, uint32(len(body)))
		return nil
	})
	if err != nil || n != 2 || len(got) != 4 || got[0] != kindGraphEnd || got[1] != 32 || got[2] != kindOpName ||
		got[3] != 16 {
		t.Errorf("%d records with kinds and sizes %v, error %v; want 2", n, got, err)
	}
}

// encode returns structs of wire.h as the shim writes them, one after the other.
func encode(t *testing.T, structs ...any) (b []byte) {
	t.Helper()
	for _, v := range structs {
		var err error
		if b, err = binary.Append(b, binary.NativeEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// encodeRecord returns a record with its head.
func encodeRecord(t *testing.T, kind uint32, body ...any) []byte {
	t.Helper()
	b := encode(t, body...)
	return append(encode(t, wireRecord{Kind: kind, Size: uint32(recordHead) + uint32(len(b))}), b...)
}

// When a process has ended, its slot is as good as new: the next process in it is read from its first record on. What
// the graphs of the ended one read counts towards no limit any more.
func TestSlotIsFreed(t *testing.T) {
	s := session(t)
	s.opts.Follow = true
	m, slot := s.mem, s.mem.slot(0)
	template := encodeRecord(t, kindTemplate, wireTemplate{Ops: 1}, wireOp{Sources: 1}, wireSource{})
	for i, templates := range []int{2, 1, 3} {
		records := append(encodeRecord(t, kindProcess, wireProcess{}), bytes.Repeat(template, templates)...)
		copy(m.buffer(0), records)
		atomic.StoreUint64(&slot.Head, uint64(len(records)))
		atomic.StoreUint32(&slot.Pid, maxPID) // it has ended: the kernel gives only smaller numbers
		begun, ended := 0, 0
		err := s.readSlots(time.Now().Add(time.Minute), func(e event.Event) error {
			switch e.(type) {
			case event.ProcessBegin:
				begun++
			case event.ProcessEnd:
				ended++
			}
			return nil
		})
		if pid := atomic.LoadUint32(&slot.Pid); err != nil || begun != 1 || ended != 1 || pid != 0 || s.weights != 0 {
			t.Errorf("process %d: %d begun, %d ended, %v; then the slot is of process %d, and %d weights are kept; "+
				"want one that begins and ends, a free slot and no weights", i, begun, ended, err, pid, s.weights)
		}
	}
}

// Behind an odd number of an op's ids there are 4 bytes more. The ids of the next op are found all the same.
func TestListsOfIDs(t *testing.T) {
	const padding = -1
	g, err := readGraph(encode(t, wireGraph{Lists: 4},
		wireIDs{Op: 1, Slots: 1, Rows: 1}, []int32{10, padding}, wireIDs{Op: 3, Slots: 2, Rows: 2}, []int32{0, 3, 2, 1},
		wireIDs{Op: 4, Slots: 3, Rows: 1}, []int32{7, 8, 9, padding}, wireIDs{Op: 9, Slots: 1, Rows: 2}, []int32{5, 6}))
	want := map[int]idList{1: {[]int32{10}, 1}, 3: {[]int32{0, 3, 2, 1}, 2}, 4: {[]int32{7, 8, 9}, 1},
		9: {[]int32{5, 6}, 2}}
	if err != nil || !reflect.DeepEqual(g.ids, want) {
		t.Errorf("ids %v, %v; want %v", g.ids, err, want)
	}
}

// A process says by number which of the offered layouts fits. A number that was not offered is an error.
func TestNumberOfLayout(t *testing.T) {
	s := session(t)
	p := s.addProcess(os.Getpid(), 0)
	offered := uint32(len(s.layouts))
	for number, want := range map[uint32]error{
		0: nil, offered - 1: nil, offered: errCorrupt, offered + 1: errCorrupt, noLayout - 1: errCorrupt,
	} {
		if err := s.handleImage(p, &imageRecord{layout: number}); !errors.Is(err, want) {
			t.Errorf("layout %d of %d: %v, want %v", number, offered, err, want)
		}
	}
}

// FuzzRecord reads records that a broken target may write.
func FuzzRecord(f *testing.F) {
	for kind := byte(0); kind <= kindDecodeEnd+1; kind++ {
		f.Add(kind, make([]byte, 256), []byte{})
		f.Add(kind, []byte("\x01\x00\x00\x00\x02\x00\x00\x00\x03"), make([]byte, 3000))
	}
	f.Fuzz(func(t *testing.T, kind byte, body, second []byte) {
		s := session(t)
		p := s.addProcess(os.Getpid(), 0)
		p.followed, p.begun = true, true
		handle := func(e event.Event) error {
			if o, ok := e.(*event.Op); ok && (o.Name == "" || len(o.Sources) == 0) {
				t.Errorf("op %+v, want a name and sources", o)
			}
			return nil
		}
		for _, b := range [][]byte{body, second} {
			if err := s.handleRecord(p, uint32(kind), b, handle); err != nil && !errors.Is(err, errCorrupt) &&
				!errors.Is(err, event.ErrLayout) {
				t.Error(err)
			}
			// This is a graph of the template that the body may have been.
			if kind == kindTemplate {
				for id, tmpl := range p.templates {
					if tmpl == nil {
						continue
					}
					g := graphRecord{hash: tmpl.hash, template: id, ops: uint32(len(tmpl.ops))}
					if err := s.handleGraph(p, &g, handle); err != nil && !errors.Is(err, errCorrupt) &&
						!errors.Is(err, event.ErrLayout) {
						t.Error(err)
					}
				}
			}
		}
	})
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	if s, err := Start(t.Context(), Options{}); !errors.Is(err, ErrNoCompiler) || s != nil ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want ErrNoCompiler in one line", err)
	}
}

func TestBadRing(t *testing.T) {
	for _, size := range []int{-1, 1, 4095, 5000, 1 << 31} {
		if s, err := Start(t.Context(), Options{RingBytes: size}); err == nil {
			t.Errorf("a ring of %d bytes is accepted, want an error", size)
			s.Close()
		}
	}
}

// The shim is compiled once. It works even if the name of the cache directory would count as two
// names in LD_PRELOAD, or if there is no cache directory.
func TestCache(t *testing.T) {
	testenv.NeedMachine(t) // it compiles the shim
	for _, tc := range []struct {
		name, cache string
		temp        bool
	}{{"plain", "cache", false}, {"space", "my cache", true}, {"none", "", true}} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.cache == "" {
				t.Setenv("XDG_CACHE_HOME", "")
				t.Setenv("HOME", "")
			} else {
				t.Setenv("XDG_CACHE_HOME", filepath.Join(t.TempDir(), tc.cache))
			}
			var shims []string
			for range 2 {
				s, err := Start(t.Context(), Options{})
				if err != nil {
					t.Fatal(err)
				}
				shims = append(shims, s.shim)
				cmd := exec.CommandContext(t.Context(), "/bin/true")
				cmd.Env = s.Environ([]string{"A=b", "LD_PRELOAD=", "TENSORCAST_PRELOAD=/nowhere"})
				out, err := cmd.CombinedOutput()
				if err != nil || len(out) != 0 || len(cmd.Env) != 3 {
					t.Errorf("%v: %s; %q; want len(out) = 0, len(cmd.Env) = 3", err, out, cmd.Env)
				}
				if n := atomic.LoadUint32(&s.mem.header().Loaded); n != 1 {
					t.Errorf("loaded %d times; want 1", n)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(s.shim); (err == nil) == tc.temp {
					t.Errorf("%s afterwards: %v", s.shim, err)
				}
			}
			if (shims[0] == shims[1]) == tc.temp {
				t.Errorf("shims %q, want a shim of its own for each session: %v", shims, tc.temp)
			}
		})
	}
}

func TestEnviron(t *testing.T) {
	s := session(t)
	s.shim = "/c/shim.so"
	got := strings.Join(s.Environ([]string{"LD_PRELOAD=/usr/lib/other.so", "B=c"}), " ")
	if want := "B=c LD_PRELOAD=/c/shim.so:/usr/lib/other.so TENSORCAST_PRELOAD=" + s.mem.path(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
