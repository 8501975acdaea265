package prefetch

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/internal/testenv"
)

// fixedRoom is a Memory of one size.
type fixedRoom int64

func (r fixedRoom) Changed() bool { return false }

func (r fixedRoom) Room(_, _ int64) (Room, error) { return Room{Bytes: int64(r), Level: "test"}, nil }

// stageRig is a controller whose target is this process: it maps a file of eight weights of 2 MiB.
type stageRig struct {
	*Controller
	t    *testing.T
	base uint64
	id   event.FileID
}

const weights, weightBytes = 8, 2 << 20

func newStage(t *testing.T, room int64) *stageRig {
	t.Helper()
	testenv.NeedRoot(t) // to lock memory, and to page out a process
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, make([]byte, weights*weightBytes), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapping, err := unix.Mmap(int(f.Fd()), 0, weights*weightBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(os.Getpid(), Options{Memory: fixedRoom(room)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := unix.Munmap(mapping); err != nil {
			t.Error(err)
		}
	})
	s := &stageRig{Controller: c, t: t, base: uint64(uintptr(unsafe.Pointer(&mapping[0]))), id: event.FileID{Dev: 1, Ino: 2}}
	s.handle(event.FileSeen{File: s.id, Path: path})
	return s
}

func (s *stageRig) handle(e event.Event) {
	s.t.Helper()
	if err := s.Handle(e); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stageRig) begin(tid int32, decode uint32, tokens int32) {
	s.t.Helper()
	s.handle(event.DecodeBegin{TID: tid, Decode: decode, Tokens: tokens})
}

func (s *stageRig) read(tid int32, decode uint32, weight int) {
	s.t.Helper()
	offset := int64(weight) * weightBytes
	src := event.Source{Data: s.base + uint64(offset), InFile: true, File: s.id, Offset: offset, NE: [4]int64{weightBytes / 4, 1, 1, 1}, NB: [4]int64{4, weightBytes, weightBytes, weightBytes}}
	s.handle(&event.Op{TID: tid, Decode: decode, Sources: []event.Source{src}})
}

// learnAll lets the controller see one whole decode, and do what follows from it.
func (s *stageRig) learnAll() {
	s.t.Helper()
	s.begin(1, 1, 1)
	for w := range weights {
		s.read(1, 1, w)
	}
	s.handle(event.DecodeEnd{TID: 1, Decode: 1})
	for range 100 {
		if err := s.Tick(); err != nil {
			s.t.Fatal(err)
		}
	}
	if s.phase != following {
		s.t.Fatalf("phase %d after the lesson", s.phase)
	}
}

// A large batch is no lesson: only its last pass goes all the way.
func TestLargeBatchIsNoLesson(t *testing.T) {
	s := newStage(t, 1<<30)
	s.begin(1, 1, lessonTokens+1)
	s.read(1, 1, 0)
	s.handle(event.DecodeEnd{TID: 1, Decode: 1})
	if s.phase != learning {
		t.Error("it was learned from")
	}
	s.learnAll()
	if s.pinned != weights*weightBytes {
		t.Errorf("%d bytes pinned of %d that fit", s.pinned, weights*weightBytes)
	}
}

// Of two contexts that decode at the same time one is followed; the other does not move the position.
func TestOneContextIsFollowed(t *testing.T) {
	s := newStage(t, 40<<20)
	s.learnAll()
	s.begin(1, 2, 1)
	start := s.now
	s.begin(2, 3, 1)
	s.read(1, 2, 0)
	s.read(2, 3, 5)
	s.read(1, 2, 1)
	s.handle(event.DecodeEnd{TID: 2, Decode: 3})
	if s.now != start+2 {
		t.Errorf("position %d, want %d", s.now, start+2)
	}
	s.handle(event.DecodeEnd{TID: 1, Decode: 2})
	s.begin(2, 4, 1) // now the other may be followed
	if s.decode != 4 || s.now != start+weights {
		t.Errorf("decode %d at position %d", s.decode, s.now)
	}
}

// A model that is mapped at other addresses, or a decode that reads nothing of the plan, is learned anew, and no pin stays.
func TestForget(t *testing.T) {
	for name, upset := range map[string]func(*stageRig){
		"mapped anew": func(s *stageRig) {
			s.begin(1, 2, 1)
			s.base += 4096
			s.read(1, 2, 0)
		},
		"another model": func(s *stageRig) {
			s.begin(1, 2, 1)
			s.handle(event.DecodeEnd{TID: 1, Decode: 2})
		},
	} {
		s := newStage(t, 1<<30)
		s.learnAll()
		if s.pinned == 0 {
			t.Fatal("nothing was pinned")
		}
		upset(s)
		if s.phase != learning || s.pinned != 0 || s.plan != nil {
			t.Errorf("%s: phase %d, %d bytes pinned", name, s.phase, s.pinned)
		}
	}
}
