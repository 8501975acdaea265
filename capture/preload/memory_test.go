package preload

// These tests read shared memory that a target has filled well or badly.

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
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
