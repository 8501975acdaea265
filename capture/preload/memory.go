package preload

// This file manages the shared memory: a file with a header and a slot for each process, laid out as in wire.h.

import (
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

// slots is how many processes can compute at the same time.
const slots = 16

// memory is the shared file. It stays locked as long as the process that made it lives.
type memory struct {
	file *os.File
	path string
	b    []byte
	ring uint64 // bytes
}

const filePrefix = "tensorcast-preload-"

// directories lists where the shared memory may be made, the best first. Only the last one may be on a disk.
func directories(foreign bool) []string {
	var dirs []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && filepath.IsAbs(dir) && !foreign {
		dirs = append(dirs, dir)
	}
	return append(dirs, "/dev/shm", os.TempDir())
}

// newMemory makes the file for programs that run with credential (nil: the caller's).
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
	// A shared lock. Others that look for abandoned files try to lock them exclusively.
	if err := unix.Flock(int(m.file.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return err
	}
	if _, err := os.Stat(m.path); err != nil {
		return err // removed before it was locked, because it looked abandoned
	}
	if credential != nil {
		if err := m.file.Chown(int(credential.Uid), int(credential.Gid)); err != nil {
			return err
		}
	}
	stride := slotHeader + m.ring
	size := int64(slotHeader + slots*stride) // sparse: only the slots of processes that compute take memory
	if err := m.file.Truncate(size); err != nil {
		return err
	}
	b, err := unix.Mmap(int(m.file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	m.b = b
	h := m.header()
	h.Slots, h.Slot_bytes, h.Ring_bytes = slots, stride, m.ring
	h.Magic = magic
	return nil
}

// removeAbandoned removes the files of sessions that were killed, as far as this user may.
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

// close tells the programs to stop and removes the file. Running programs keep their mapping of it.
func (m *memory) close() error {
	var errs []error
	if m.b != nil {
		atomic.StoreUint32(&m.header().Closed, 1)
		errs = append(errs, unix.Munmap(m.b))
		m.b = nil
	}
	if err := os.Remove(m.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, m.file.Close())...)
}

func (m *memory) header() *wireHeader { return (*wireHeader)(unsafe.Pointer(&m.b[0])) }

// at is the offset of slot i.
func (m *memory) at(i int) int { return slotHeader + i*(slotHeader+int(m.ring)) }

// slot is the head of slot i. Programs write to it at any time, so its members are accessed atomically.
func (m *memory) slot(i int) *wireSlot { return (*wireSlot)(unsafe.Pointer(&m.b[m.at(i)])) }

// buffer is the ring buffer of slot i.
func (m *memory) buffer(i int) []byte {
	begin := m.at(i) + slotHeader
	return m.b[begin : begin+int(m.ring)]
}

// putLayout stores layout i. Programs do not read it before the count is raised.
func (m *memory) putLayout(i int, l ggml.Layout) {
	m.header().Layout[i] = wireLayout{
		Type: l.Type, Ne: l.NE, Nb: l.NB, Op: l.Op, Flags: l.Flags, Src: l.Src, Max_src: l.MaxSrc, View_src: l.ViewSrc, Data: l.Data, Name: l.Name,
		N_nodes: l.NNodes, Nodes: l.Nodes,
	}
	atomic.StoreUint32(&m.header().Layouts, uint32(i+1))
}

// stop tells the programs that nobody reads any more.
func (m *memory) stop() { atomic.StoreUint32(&m.header().Closed, 1) }

func (m *memory) pid(slot int) int { return int(atomic.LoadUint32(&m.slot(slot).Pid)) }

// free makes the slot of an ended process available.
func (m *memory) free(slot int) {
	at := m.at(slot)
	clear(m.b[at+int(unsafe.Offsetof(wireSlot{}.Nodes)) : at+slotHeader]) // the pid is cleared last: from then on the slot may be taken
	atomic.StoreUint32(&m.slot(slot).Pid, 0)
}

func (m *memory) unread(slot int) uint64 { return atomic.LoadUint64(&m.slot(slot).Unread) }

func (m *memory) counters(p *process) event.Counters {
	s := m.slot(p.slot)
	c := event.Counters{
		NoWeight: atomic.LoadUint64(&s.No_weight), OpsSent: atomic.LoadUint64(&s.Ops_sent), OpsLost: atomic.LoadUint64(&s.Ops_lost),
		OthersLost: atomic.LoadUint64(&s.Others_lost), Clipped: p.clipped, Received: p.received,
	}
	c.Hits = atomic.LoadUint64(&s.Nodes)
	// A killed process may have counted a graph's nodes without counting what became of them, or counted ops as sent without completing the
	// record.
	if p.gone && c.OpsSent > c.Received {
		c.OpsSent = c.Received
	}
	if done := c.NoWeight + c.OpsSent + c.OpsLost; c.Hits > done {
		c.Unfinished = c.Hits - done
	}
	return c
}

// recordHead is the size in bytes of a record's head.
const recordHead = uint64(unsafe.Sizeof(wireRecord{}))

// read passes the records in a slot's ring buffer to each, in order. body is shared memory that is valid during the call.
func (m *memory) read(slot int, each func(kind uint32, body []byte) error) (n int, err error) {
	ring, s := m.buffer(slot), m.slot(slot)
	head := atomic.LoadUint64(&s.Head)
	tail := atomic.LoadUint64(&s.Tail)
	if head-tail > m.ring {
		return 0, fmt.Errorf("%w: %d bytes in a buffer of %d", errCorrupt, head-tail, m.ring)
	}
	for tail != head {
		pos := tail & (m.ring - 1)
		if m.ring-pos < recordHead {
			return n, errCorrupt
		}
		record := fixed[wireRecord](&reader{b: ring[pos:]})
		kind, size := record.Kind, uint64(record.Size)
		if size < recordHead || size%8 != 0 || size > m.ring-pos || size > head-tail {
			return n, fmt.Errorf("%w: a record of %d bytes", errCorrupt, size)
		}
		if kind != kindPad {
			if err := each(kind, ring[pos+recordHead:pos+size]); err != nil {
				return n, err
			}
			n++
		}
		tail += size
		atomic.StoreUint64(&s.Tail, tail)
	}
	return n, nil
}

var errCorrupt = errors.New("the shared memory was overwritten by the target")
