package preload

// This file manages the shared memory: a header and a slot for each process, laid out as in wire.h.
//
// It is a memfd (Linux 3.17), sealed so that nobody can change its size. Otherwise a mapped page
// could be cut off, and the process that touches it next, target or reader, would end with SIGBUS.
// A memfd needs no directory, has no size limit of a mounted file system, and is gone with the last
// process that has it open or mapped. Programs open it as /proc/PID/fd/N. The kernel allows that to
// processes that may read PID's memory (PTRACE_MODE_READ): those of the same user, unless they run
// in another PID or user namespace.
//
// Programs may write anything to it at any time. So records are copied before they are checked, and
// the reader keeps its own state elsewhere.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/ggml"
)

// slots is how many processes can compute at the same time.
const slots = 16

// memory is the shared memory, and how far it was read.
type memory struct {
	file   *os.File
	holder *holder // nil if programs may open the descriptors of this process
	b      []byte
	ring   uint64        // bytes
	tail   [slots]uint64 // how far each slot was read
	body   []byte        // of the record that is being read
}

// memoryName is what /proc/PID/fd shows for the shared memory. The shim compares it, in case the
// process id was reused.
const memoryName = "tensorcast-preload"

// newMemory makes shared memory for programs that run with credential (nil: the caller's).
func newMemory(ring int, credential *syscall.Credential) (*memory, error) {
	m := &memory{ring: uint64(ring)}
	err := m.init()
	if err == nil && !canOpenDescriptors(credential) {
		m.holder, err = startHolder(m.file, credential)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make shared memory: %w", err), m.close())
	}
	return m, nil
}

func (m *memory) init() error {
	// Where the sysctl vm.memfd_noexec is 2, this flag (Linux 6.3) is obligatory. Older kernels
	// refuse it. It allows seals, too.
	fd, err := unix.MemfdCreate(memoryName, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(memoryName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	m.file = os.NewFile(uintptr(fd), memoryName)
	stride := slotHeader + m.ring
	size := int64(slotHeader + slots*stride) // sparse: only the slots of processes that compute take memory
	if err := unix.Ftruncate(fd, size); err != nil {
		return fmt.Errorf("%d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
		unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal its size: %w", err)
	}
	if m.b, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map it: %w", err)
	}
	h := m.header()
	h.Slots, h.Slot_bytes, h.Ring_bytes = slots, stride, m.ring
	h.Magic = magic
	return nil
}

// path returns the name by which programs open the memory.
func (m *memory) path() string {
	if m.holder != nil {
		return m.holder.path()
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.file.Fd())
}

// isForeign reports whether a program with this credential (nil: the caller's) runs as somebody else.
func isForeign(c *syscall.Credential) bool {
	return c != nil && (int(c.Uid) != os.Geteuid() || int(c.Gid) != os.Getegid())
}

// canOpenDescriptors reports whether a program with this credential may open the descriptors of
// this process. It may not if this process is another user's, or got privileges from its file (the
// kernel then calls it not "dumpable").
func canOpenDescriptors(c *syscall.Credential) bool {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	return err == nil && dumpable == 1 && !isForeign(c)
}

// holder is a process that keeps the memory open, so that another user's programs can open it
// there. It ends when this process does.
type holder struct {
	cmd   *exec.Cmd
	alive io.Closer // its standard input
}

// heldFD is the memory's descriptor in the holder: the first after the standard ones, where os/exec
// puts it.
const heldFD = 3

func startHolder(file *os.File, c *syscall.Credential) (*holder, error) {
	path, err := exec.LookPath("cat") // it does what is wanted: it waits for its input to end
	if err != nil {
		return nil, err
	}
	// It has its own process group, so that the terminal's Ctrl-C does not reach it.
	h := &holder{
		cmd: &exec.Cmd{Path: path, Args: []string{path}, Dir: "/", ExtraFiles: []*os.File{file},
			SysProcAttr: &syscall.SysProcAttr{Credential: c, Setpgid: true}},
	}
	h.cmd.Env = []string{}
	if h.alive, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process that holds it: %w", err)
	}
	return h, nil
}

func (h *holder) path() string { return fmt.Sprintf("/proc/%d/fd/%d", h.cmd.Process.Pid, heldFD) }

// close ends the holder. Its user may have stopped or killed it, which is no error.
func (h *holder) close() {
	_ = h.alive.Close()
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// close tells the programs to stop. Running programs keep their mapping.
func (m *memory) close() error {
	var errs []error
	if m.b != nil {
		m.markClosed()
		errs = append(errs, unix.Munmap(m.b))
		m.b = nil
	}
	if m.holder != nil {
		m.holder.close()
	}
	if m.file != nil {
		errs = append(errs, m.file.Close())
	}
	return errors.Join(errs...)
}

func (m *memory) header() *wireHeader { return (*wireHeader)(unsafe.Pointer(&m.b[0])) }

// slotOffset returns the offset of slot i.
func (m *memory) slotOffset(i int) int { return slotHeader + i*(slotHeader+int(m.ring)) }

// slot returns the head of slot i. Programs write to it at any time, so its members are accessed
// atomically.
func (m *memory) slot(i int) *wireSlot { return (*wireSlot)(unsafe.Pointer(&m.b[m.slotOffset(i)])) }

// buffer returns the ring buffer of slot i.
func (m *memory) buffer(i int) []byte {
	begin := m.slotOffset(i) + slotHeader
	return m.b[begin : begin+int(m.ring)]
}

// putLayout stores layout i. Programs do not read it before the count is raised.
func (m *memory) putLayout(i int, l ggml.Layout) {
	m.header().Layout[i] = wireLayout{
		Type: l.Type, Ne: l.NE, Nb: l.NB, Op: l.Op, Flags: l.Flags, Src: l.Src, Max_src: l.MaxSrc,
		View_src: l.ViewSrc, Data: l.Data, Name: l.Name,
		N_nodes: l.NNodes, Nodes: l.Nodes,
	}
	atomic.StoreUint32(&m.header().Layouts, uint32(i+1))
}

// markClosed tells the programs that nobody reads any more.
func (m *memory) markClosed() { atomic.StoreUint32(&m.header().Closed, 1) }

// ownerPID returns the process that claims the slot, 0 if it is free.
func (m *memory) ownerPID(slot int) (int, error) {
	pid := atomic.LoadUint32(&m.slot(slot).Pid)
	if pid > maxPID {
		return 0, fmt.Errorf("%w: process %d", errCorrupt, pid)
	}
	return int(pid), nil
}

// maxPID is the kernel's PID_MAX_LIMIT on 64-bit machines.
const maxPID = 4 << 20

// freeSlot makes the slot of an ended process available.
func (m *memory) freeSlot(slot int) {
	at := m.slotOffset(slot)
	m.tail[slot] = 0
	// The pid is cleared last. From then on another process may take the slot.
	clear(m.b[at+int(unsafe.Offsetof(wireSlot{}.Nodes)) : at+slotHeader])
	atomic.StoreUint32(&m.slot(slot).Pid, 0)
}

func (m *memory) unreadGraphs(slot int) uint64 { return atomic.LoadUint64(&m.slot(slot).Unread) }

func (m *memory) counters(p *process) event.Counters {
	s := m.slot(p.slot)
	c := event.Counters{
		NoWeight: atomic.LoadUint64(&s.No_weight), OpsSent: atomic.LoadUint64(&s.Ops_sent),
		OpsLost:    atomic.LoadUint64(&s.Ops_lost),
		OthersLost: atomic.LoadUint64(&s.Others_lost), Clipped: p.clipped, Received: p.received,
	}
	c.Hits = atomic.LoadUint64(&s.Nodes)
	if p.abandoned && c.OpsSent > c.Received {
		c.OpsLost += c.OpsSent - c.Received
		c.OpsSent = c.Received
	}
	// A killed process may have counted a graph's nodes without counting what became of them. Or it
	// may have counted ops as sent without completing the record.
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

// readRecords passes the records in a slot's ring buffer to each, in order. It ends with the last
// record that was there when it was called, or at the deadline. At least one record is read. The
// body is valid during the call.
func (m *memory) readRecords(slot int, deadline time.Time, each func(kind uint32, body []byte) error) (n int,
	err error) {
	ring, s := m.buffer(slot), m.slot(slot)
	// read once, so that a target that writes faster than we read does not keep us here
	head := atomic.LoadUint64(&s.Head)
	tail := m.tail[slot]
	if head-tail > m.ring {
		return 0, fmt.Errorf("%w: %d bytes in a buffer of %d", errCorrupt, head-tail, m.ring)
	}
	for first := true; tail != head && (first || time.Now().Before(deadline)); first = false {
		pos := tail & (m.ring - 1)
		if m.ring-pos < recordHead {
			return n, fmt.Errorf("%w: a record at byte %d of a buffer of %d", errCorrupt, pos, m.ring)
		}
		record := readStruct[wireRecord](&reader{b: ring[pos:]})
		kind, size := record.Kind, uint64(record.Size)
		if size < recordHead || size%8 != 0 || size > m.ring-pos || size > head-tail || kind != kindPad &&
			size > maxRecord {
			return n, fmt.Errorf("%w: a record of %d bytes", errCorrupt, size)
		}
		if kind != kindPad {
			m.body = append(m.body[:0], ring[pos+recordHead:pos+size]...)
			if err := each(kind, m.body); err != nil {
				return n, err
			}
			n++
		}
		tail += size
		m.tail[slot] = tail
		atomic.StoreUint64(&s.Tail, tail)
	}
	return n, nil
}

// unreadBytes reports how many bytes of a slot were not read.
func (m *memory) unreadBytes(slot int) uint64 {
	return atomic.LoadUint64(&m.slot(slot).Head) - m.tail[slot]
}

var errCorrupt = errors.New("the shared memory holds what the preloaded library does not write")
