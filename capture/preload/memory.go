package preload

// This file owns the shared memory: a file with a header and a slot for each process. shim.c has the same layout.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/ggml"
)

const (
	magic      = 0x74637031
	slots      = 16
	slotHeader = 4096 // bytes before a slot's ring, and before the first slot
	maxLayouts = 16

	headerSlots     = 4
	headerSlotBytes = 8
	headerRingBytes = 16
	headerClosed    = 24
	headerLayouts   = 28
	headerLoaded    = 32
	headerNoSlot    = 36
	headerLayout    = 40
	layoutBytes     = 64

	slotPID        = 0
	slotNodes      = 8
	slotNoWeight   = 16
	slotOpsSent    = 24
	slotOpsLost    = 32
	slotOthersLost = 40
	slotUnread     = 48
	slotHead       = 128
	slotTail       = 192
)

// memory is the shared file, which is locked as long as its maker lives.
type memory struct {
	file *os.File
	path string
	b    []byte
	ring uint64 // bytes
}

const filePrefix = "tensorcast-preload-"

// directories lists where shared memory may be made, the best first. Only the last may be on a disk.
func directories(foreign bool) []string {
	var dirs []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && filepath.IsAbs(dir) && !foreign {
		dirs = append(dirs, dir)
	}
	return append(dirs, "/dev/shm", os.TempDir())
}

// newMemory makes the file, for programs that run with credential (nil: the caller's).
func newMemory(ring int, credential *syscall.Credential) (*memory, error) {
	var errs []error
	for _, dir := range directories(credential != nil) {
		m, err := makeMemory(dir, ring, credential)
		if err == nil {
			return m, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("make shared memory: %w", errors.Join(errs...))
}

func makeMemory(dir string, ring int, credential *syscall.Credential) (*memory, error) {
	removeAbandoned(dir)
	f, err := os.CreateTemp(dir, filePrefix)
	if err != nil {
		return nil, err
	}
	m := &memory{file: f, path: f.Name(), ring: uint64(ring)}
	if err := m.init(credential); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", m.path, err), m.close())
	}
	return m, nil
}

func (m *memory) init(credential *syscall.Credential) error {
	// Shared: the maker removes it, others that look for abandoned files want it exclusively.
	if err := unix.Flock(int(m.file.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return err
	}
	if _, err := os.Stat(m.path); err != nil {
		return err // between the creation and the lock it looked abandoned
	}
	if credential != nil {
		if err := m.file.Chown(int(credential.Uid), int(credential.Gid)); err != nil {
			return err
		}
	}
	stride := slotHeader + m.ring
	size := int64(slotHeader + slots*stride) // sparse: a process without graphs takes no memory
	if err := m.file.Truncate(size); err != nil {
		return err
	}
	b, err := unix.Mmap(int(m.file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	m.b = b
	binary.NativeEndian.PutUint32(b[headerSlots:], slots)
	binary.NativeEndian.PutUint64(b[headerSlotBytes:], stride)
	binary.NativeEndian.PutUint64(b[headerRingBytes:], m.ring)
	binary.NativeEndian.PutUint32(b, magic)
	return nil
}

// removeAbandoned removes what sessions of this user left that were killed.
func removeAbandoned(dir string) {
	paths, err := filepath.Glob(filepath.Join(dir, filePrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		info, err := f.Stat()
		if err == nil && info.Mode().IsRegular() && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.Remove(path)
		}
		f.Close()
	}
}

// close tells the programs, and removes the file; those that run keep their mapping of it.
func (m *memory) close() error {
	var errs []error
	if m.b != nil {
		atomic.StoreUint32(m.u32(headerClosed), 1)
		errs = append(errs, unix.Munmap(m.b))
		m.b = nil
	}
	if err := os.Remove(m.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, m.file.Close())...)
}

func (m *memory) u32(at int) *uint32 { return (*uint32)(unsafe.Pointer(&m.b[at])) }
func (m *memory) u64(at int) *uint64 { return (*uint64)(unsafe.Pointer(&m.b[at])) }

// slot is the offset of a slot.
func (m *memory) slot(i int) int { return slotHeader + i*(slotHeader+int(m.ring)) }

// putLayout writes a layout that no reader looks at before the count says so.
func (m *memory) putLayout(i int, l ggml.Layout) {
	at := headerLayout + i*layoutBytes
	for k, v := range []uint32{l.Type, l.NE, l.NB, l.Op, l.Flags, l.Src, l.MaxSrc, l.ViewSrc, l.Data, l.Name, l.NNodes, l.Nodes} {
		binary.NativeEndian.PutUint32(m.b[at+4*k:], v)
	}
	atomic.StoreUint32(m.u32(headerLayouts), uint32(i+1))
}

// stop tells the programs that nobody will read any more.
func (m *memory) stop() { atomic.StoreUint32(m.u32(headerClosed), 1) }

func (m *memory) pid(slot int) int { return int(atomic.LoadUint32(m.u32(m.slot(slot) + slotPID))) }

// free gives the slot of a process that is gone to another.
func (m *memory) free(slot int) {
	at := m.slot(slot)
	clear(m.b[at+8 : at+slotHeader])
	atomic.StoreUint32(m.u32(at+slotPID), 0)
}

func (m *memory) unread(slot int) uint64 { return atomic.LoadUint64(m.u64(m.slot(slot) + slotUnread)) }

func (m *memory) counters(p *process) event.Counters {
	at := m.slot(p.slot)
	get := func(field int) uint64 { return atomic.LoadUint64(m.u64(at + field)) }
	c := event.Counters{
		NoWeight: get(slotNoWeight), OpsSent: get(slotOpsSent), OpsLost: get(slotOpsLost), OthersLost: get(slotOthersLost), Clipped: p.clipped, Received: p.received,
	}
	c.Hits = get(slotNodes)
	// A process that was killed may have counted a graph's nodes and not yet said what became of them, or sent what it had not finished.
	if p.gone && c.OpsSent > c.Received {
		c.OpsSent = c.Received
	}
	if done := c.NoWeight + c.OpsSent + c.OpsLost; c.Hits > done {
		c.Unfinished = c.Hits - done
	}
	return c
}

// read gives the records that a slot's ring holds to each, in order, as parts of the shared memory that are valid during the call.
func (m *memory) read(slot int, each func(kind uint32, body []byte) error) (n int, err error) {
	at := m.slot(slot)
	ring := m.b[at+slotHeader : at+slotHeader+int(m.ring)]
	head := atomic.LoadUint64(m.u64(at + slotHead))
	tail := atomic.LoadUint64(m.u64(at + slotTail))
	if head-tail > m.ring {
		return 0, fmt.Errorf("%w: %d bytes in a buffer of %d", errCorrupt, head-tail, m.ring)
	}
	for tail != head {
		pos := tail & (m.ring - 1)
		if m.ring-pos < 8 {
			return n, errCorrupt
		}
		kind, size := binary.NativeEndian.Uint32(ring[pos:]), uint64(binary.NativeEndian.Uint32(ring[pos+4:]))
		if size < 8 || size%8 != 0 || size > m.ring-pos || size > head-tail {
			return n, fmt.Errorf("%w: a record of %d bytes", errCorrupt, size)
		}
		if kind != kindPad {
			if err := each(kind, ring[pos+8:pos+size]); err != nil {
				return n, err
			}
			n++
		}
		tail += size
		atomic.StoreUint64(m.u64(at+slotTail), tail)
	}
	return n, nil
}

var errCorrupt = errors.New("the shared memory was overwritten by the target")
