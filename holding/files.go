package holding

// This file finds the models among the files that a process maps, and says what is known of them without the process.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/gguf"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
)

// File is a GGUF file that a process maps. Amounts are bytes.
type File struct {
	Path      string `json:"path"` // where this process can open it
	Size      int64  `json:"size"`
	Weights   int64  `json:"weights"`   // all of its tensors
	Mapped    int64  `json:"mapped"`    // those of them that lie in the mapped part, used there or not
	PerToken  int64  `json:"per_token"` // see Holding
	Routed    int64  `json:"routed"`    // see Holding
	Resident  int64  `json:"resident"`  // of the file in the page cache; -1 if this process may not know
	Store     Store  `json:"store"`
	System    string `json:"system"`     // the file system, if it is one of those that Store tells apart: "tmpfs"
	Device    string `json:"device"`     // that holds it, as the kernel calls it ("nvme0n1p2"); "" if that is not known
	ReadAhead int64  `json:"read_ahead"` // of that device, as files that are opened now get it; -1 if not known
	PageOut   bool   `json:"page_out"`   // this process may page out what others map of it
	Changed   bool   `json:"changed"`    // it cannot be opened as what the process maps, or is no whole GGUF file any more; only Path is set then

	ID proc.FileID `json:"-"` // as in the memory map
	At proc.Place  `json:"-"` // to open it: nothing if it is Changed
}

// Store is what the pages of a file are to the kernel.
type Store string

const (
	StoreDisk    Store = "disk"    // page cache of a file system on a disk, or of an unknown one
	StoreNetwork Store = "network" // page cache of what a server or another program delivers
	StoreMemory  Store = "memory"  // the pages are the file: to page them out is to swap
	StoreHuge    Store = "hugetlb" // the pages are the file, and cannot be paged out at all
	StoreDAX     Store = "dax"     // persistent memory, mapped without a page cache
)

// fileSystems are those that are told apart, by the magic number of statfs (include/uapi/linux/magic.h; those of SMB, Ceph and AFS in their own sources).
var fileSystems = map[int64]struct {
	store Store
	name  string
}{
	unix.TMPFS_MAGIC:      {StoreMemory, "tmpfs"},
	unix.RAMFS_MAGIC:      {StoreMemory, "ramfs"},
	unix.HUGETLBFS_MAGIC:  {StoreHuge, "hugetlbfs"},
	unix.NFS_SUPER_MAGIC:  {StoreNetwork, "nfs"},
	unix.CIFS_SUPER_MAGIC: {StoreNetwork, "cifs"},
	unix.SMB2_SUPER_MAGIC: {StoreNetwork, "smb"},
	unix.SMB_SUPER_MAGIC:  {StoreNetwork, "smb"},
	unix.FUSE_SUPER_MAGIC: {StoreNetwork, "fuse"},
	unix.V9FS_MAGIC:       {StoreNetwork, "9p"},
	unix.CEPH_SUPER_MAGIC: {StoreNetwork, "ceph"},
	unix.AFS_SUPER_MAGIC:  {StoreNetwork, "afs"},
}

// storeOf decides from statfs's type and statx's attributes (STATX_ATTR_DAX: since Linux 5.8).
func storeOf(magic int64, attributes uint64) (Store, string) {
	if attributes&unix.STATX_ATTR_DAX != 0 {
		return StoreDAX, ""
	}
	if known, ok := fileSystems[magic]; ok {
		return known.store, known.name
	}
	return StoreDisk, ""
}

// part is the structure of a GGUF file.
type part struct {
	of    os.FileInfo
	store Store
	sys   string
	gguf  *gguf.File
}

func (p *part) still(info os.FileInfo) bool {
	return os.SameFile(info, p.of) && info.Size() == p.of.Size() && info.ModTime().Equal(p.of.ModTime())
}

// model is a File with its structure, and where it is mapped.
type model struct {
	file  File
	gguf  *gguf.File
	spans [][2]int64 // offsets of what is mapped, in order, apart from each other
	at    uint64     // address of the first area
}

// maxHeads bounds the metadata of all models of a process: it may map any number of files. Real ones have up to 13 MB.
const maxHeads = 128 << 20

// models adds the files to h, and returns those that could be read.
func (e *Examiner) models(sp *space, h *Holding) []*model {
	var all []*model
	left := int64(maxHeads)
	before := e.parts
	e.parts = map[proc.FileID]part{}
	for _, c := range sp.candidates() {
		if e.other[c.first.File] {
			continue
		}
		if left <= 0 {
			break
		}
		m, err := e.model(c, before)
		if errors.Is(err, gguf.ErrNotGGUF) || errors.Is(err, regular.ErrNotRegular) {
			e.other[c.first.File] = true
			continue
		}
		var damaged *damagedError
		if err != nil && !errors.As(err, &damaged) && !strings.HasSuffix(strings.TrimSuffix(c.first.Path, " (deleted)"), ".gguf") {
			continue // one of the many files that a process maps and that cannot be opened from here
		}
		if err != nil {
			m = &model{file: File{Path: c.first.Path, Changed: true}}
		}
		if m.gguf != nil {
			left -= m.gguf.DataOffset
		}
		m.file.ID, m.at = c.first.File, c.first.Start
		all = append(all, m)
	}
	index := map[proc.FileID]*model{}
	for _, m := range all {
		index[m.file.ID] = m
	}
	for i := range sp.areas {
		if a := &sp.areas[i]; a.kind == kindFile && index[a.file] != nil {
			m := index[a.file]
			from := int64(min(a.offset, maxBytes))
			m.spans = append(m.spans, [2]int64{from, from + int64(min(a.end-a.start, maxBytes))})
		}
	}
	slices.SortFunc(all, func(a, b *model) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	var read []*model
	for _, m := range all {
		m.spans = union(m.spans)
		if m.gguf != nil {
			for i := range m.gguf.Tensors {
				t := &m.gguf.Tensors[i]
				m.file.Weights += t.Size
				if covered(m.spans, t.Offset, t.End()) {
					m.file.Mapped += t.Size
				}
			}
			read = append(read, m)
		}
		h.Files = append(h.Files, m.file)
	}
	return read
}

// damagedError says that a file begins as a GGUF file, and is none.
type damagedError struct{ err error }

func (e *damagedError) Error() string { return e.err.Error() }
func (e *damagedError) Unwrap() error { return e.err }

// model opens a file that is mapped, and reads it unless that was done before.
func (e *Examiner) model(c *mapped, before map[proc.FileID]part) (*model, error) {
	at := c.first.Locate(e.pid)
	f, err := at.Open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	known, ok := before[at.ID]
	if !ok || !known.still(info) {
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) // the metadata is read, not the weights behind it
		parsed, err := gguf.Parse(f, info.Size())
		if err != nil {
			return nil, &damagedError{err}
		}
		known = part{of: info, gguf: parsed}
		if known.store, known.sys, err = StoreOf(f); err != nil {
			return nil, err
		}
	}
	e.parts[at.ID] = known
	device, readAhead := e.sys.device(info)
	m := &model{gguf: known.gguf, file: File{Device: device, ReadAhead: readAhead, Path: at.Path, At: at, Size: info.Size(), Store: known.store, System: known.sys, PageOut: mayPageOut(f, info)}}
	if m.file.Resident, err = pagecache.Resident(f, 0, info.Size()); err != nil {
		m.file.Resident = -1
	}
	return m, nil
}

// StoreOf says what the pages of an open file are to the kernel, and the name of its file system, see File.System.
func StoreOf(f *os.File) (s Store, system string, err error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return "", "", fmt.Errorf("ask for the file system of %s: %w", f.Name(), err)
	}
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, 0, &st); err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return "", "", fmt.Errorf("ask for the attributes of %s: %w", f.Name(), err)
	}
	s, system = storeOf(int64(fs.Type), st.Attributes&st.Attributes_mask)
	return s, system, nil
}

// device finds the device of a file, by the number that stat has; on overlayfs that is none.
func (s system) device(info os.FileInfo) (name string, readAhead int64) {
	id := proc.IDOf(info)
	number := fmt.Sprintf("%d:%d", id.Dev>>20, id.Dev&(1<<20-1))
	if to, err := os.Readlink(filepath.Join(s.root, "sys/dev/block", number)); err == nil {
		name = filepath.Base(to)
	}
	data, err := os.ReadFile(filepath.Join(s.root, "sys/class/bdi", number, "read_ahead_kb"))
	if err != nil {
		return name, -1
	}
	kib, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 32)
	if err != nil {
		return name, -1
	}
	return name, int64(kib) << 10
}

// mayPageOut says whether MADV_PAGEOUT takes pages of a file from a process if this one asks: it must own the file, may override ownership, or may write it (can_do_file_pageout
// in mm/madvise.c, since Linux 5.4). Else the call succeeds and does nothing.
func mayPageOut(f *os.File, info os.FileInfo) bool {
	var data [2]unix.CapUserData
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]) == nil && data[0].Effective>>unix.CAP_FOWNER&1 == 1 {
		return true
	}
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) == nil && int(st.Uid) == os.Geteuid() {
		return true
	}
	return unix.Faccessat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.W_OK, unix.AT_EACCESS) == nil
}

// union sorts ranges, and joins those that touch.
func union(spans [][2]int64) [][2]int64 {
	slices.SortFunc(spans, func(a, b [2]int64) int {
		if a[0] < b[0] {
			return -1
		}
		return 1
	})
	var joined [][2]int64
	for _, s := range spans {
		if n := len(joined); n > 0 && s[0] <= joined[n-1][1] {
			joined[n-1][1] = max(joined[n-1][1], s[1])
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// covered says whether a range lies in one of spans, which are in order and apart.
func covered(spans [][2]int64, from, end int64) bool {
	i, found := slices.BinarySearchFunc(spans, from, func(s [2]int64, at int64) int {
		switch {
		case s[0] < at:
			return -1
		case s[0] > at:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	return i >= 0 && end <= spans[i][1]
}
