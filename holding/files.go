package holding

// This file finds the models among the files that a process maps, and finds out what can be known
// of them without the process.

import (
	"errors"
	"fmt"
	"io/fs"
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
	Path     string `json:"path"` // where this process can open it
	Size     int64  `json:"size"`
	Weights  int64  `json:"weights"`   // all of its tensors
	Mapped   int64  `json:"mapped"`    // those of them that lie in the mapped part, whether they are used there or not
	PerToken int64  `json:"per_token"` // see Holding
	Routed   int64  `json:"routed"`    // see Holding
	Resident int64  `json:"resident"`  // how much of the file is in the page cache; -1 if the kernel does not tell
	// Unread is the part of Weights that the process does not read here any more once it has loaded its model, because
	// it has a copy or they are on a GPU. It is 0 if its table of tensors was not found. UnreadResident is how much of
	// that is in the page cache; -1 if the kernel does not tell.
	Unread         int64 `json:"unread"`
	UnreadResident int64 `json:"unread_resident"`
	// Tables is as in Holding. TablesResident is how much of that is in the page cache; -1 if the kernel does not tell.
	Tables         int64  `json:"tables"`
	TablesResident int64  `json:"tables_resident"`
	Store          Store  `json:"store"`
	System         string `json:"system"` // the file system ("tmpfs"), if it is one that fileSystems names
	// Device is the device that holds it, as the kernel calls it ("nvme0n1p2"); "" if not known.
	Device    string `json:"device"`
	ReadAhead int64  `json:"read_ahead"` // of that device, as files that are opened now get it; -1 if not known
	PageOut   bool   `json:"page_out"`   // this process may page out what others map of it
	// Closed says that the process has no descriptor of it any more: what its faults read around themselves cannot be
	// changed from outside then.
	Closed bool `json:"closed"`
	// Changed says that the file at Path is not the one that the process maps, or is no complete
	// GGUF file any more. Then only Path is set.
	Changed bool `json:"changed"`
	// Problem says why a file that is Changed cannot be read.
	Problem string `json:"problem,omitempty"`
	// Foreign says which types that ggml's main line does not read its tensors have, a line for each.
	Foreign []string `json:"foreign_types,omitempty"`
	// Denied says of a Changed file that this process may not read it, so that nothing is known of it.
	Denied bool `json:"denied"`

	ID proc.FileID `json:"-"` // as in the memory map
	At proc.Place  `json:"-"` // to open it; zero if it is Changed
	// UnreadRanges are the offsets of Unread, in order and without overlap: from and to.
	UnreadRanges [][2]int64 `json:"-"`
}

// Store says what the pages of a file are to the kernel.
type Store string

const (
	StoreDisk    Store = "disk"    // page cache of a file system on a disk, or of an unknown one
	StoreNetwork Store = "network" // page cache of what a server or another program delivers
	StoreMemory  Store = "memory"  // the pages are the file, so paging them out means swapping
	StoreHuge    Store = "hugetlb" // the pages are the file, and cannot be paged out at all
	StoreDAX     Store = "dax"     // persistent memory, mapped without a page cache
)

// fileSystems are the file systems that are told apart, by the magic number that statfs returns.
// The numbers are in include/uapi/linux/magic.h; those of SMB, Ceph and AFS in their own sources.
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

// storeOf decides from the type that statfs returns and the attributes that statx returns
// (STATX_ATTR_DAX: since Linux 5.8).
func storeOf(magic int64, attributes uint64) (Store, string) {
	if attributes&unix.STATX_ATTR_DAX != 0 {
		return StoreDAX, ""
	}
	if known, ok := fileSystems[magic]; ok {
		return known.store, known.name
	}
	return StoreDisk, ""
}

// part is what was read of a GGUF file.
type part struct {
	info   os.FileInfo
	store  Store
	system string
	gguf   *gguf.File
}

// isStill reports whether a file is the one that was read, unchanged.
func (p *part) isStill(info os.FileInfo) bool {
	return os.SameFile(info, p.info) && info.Size() == p.info.Size() && info.ModTime().Equal(p.info.ModTime())
}

// model is a File with its structure, and where it is mapped.
type model struct {
	file  File
	gguf  *gguf.File
	spans [][2]int64 // ranges of offsets that are mapped, in order and without overlap
	start uint64     // address of the first area
}

// maxHeads bounds the metadata of all models of a process: it may map any number of files. Real
// ones have up to 13 MB.
const maxHeads = 128 << 20

// findModels adds the files to h, and returns those that could be read.
func (e *Examiner) findModels(sp *space, h *Holding) []*model {
	all := e.openModels(sp)
	addSpans(sp, all)
	slices.SortFunc(all, func(a, b *model) int {
		if a.start < b.start {
			return -1
		}
		return 1
	})
	var read []*model
	for _, m := range all {
		if m.gguf != nil {
			m.countWeights()
			read = append(read, m)
		}
		h.Files = append(h.Files, m.file)
	}
	if len(h.Files) == 0 {
		h.Inside = e.findInside(sp)
	}
	return read
}

// openModels opens the models among the files that are mapped, the largest first.
func (e *Examiner) openModels(sp *space) (all []*model) {
	left := int64(maxHeads)
	before := e.parts
	e.parts = map[proc.FileID]part{}
	for _, c := range sp.candidates() {
		if e.noModel[c.first.File] {
			continue
		}
		if left <= 0 {
			break
		}
		m, err := e.openModel(c, before)
		if errors.Is(err, gguf.ErrNotGGUF) || errors.Is(err, regular.ErrNotRegular) {
			e.noModel[c.first.File] = true
			continue
		}
		var damaged *damagedError
		hasSuffix := strings.HasSuffix(strings.TrimSuffix(c.first.Path, " (deleted)"), ".gguf")
		if err != nil && !errors.As(err, &damaged) && !hasSuffix {
			continue // one of the many files that a process maps and that cannot be opened from here
		}
		if err != nil {
			m = &model{file: File{
				Path: c.first.Path, Changed: true, Problem: explainUnreadable(err),
				Denied: errors.Is(err, fs.ErrPermission),
			}}
		}
		m.file.Closed = sp.open != nil && !sp.open[c.first.Path]
		if m.gguf != nil {
			left -= m.gguf.DataOffset
		}
		m.file.ID, m.start = c.first.File, c.first.Start
		all = append(all, m)
	}
	return all
}

// explainUnreadable says why a model that is mapped cannot be read, and what to do.
func explainUnreadable(err error) string {
	const restart = "restart llama.cpp with the model that is there now"
	switch {
	case errors.Is(err, proc.ErrOtherFile), errors.Is(err, fs.ErrNotExist):
		return "it was replaced or removed since the process mapped it; " + restart
	case errors.Is(err, gguf.ErrTruncated):
		return fmt.Sprintf("%v Was it cut off since the process mapped it? Then %s", err, restart)
	}
	return err.Error()
}

// addSpans finds out which parts of the models are mapped.
func addSpans(sp *space, all []*model) {
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
	for _, m := range all {
		m.spans = uniteRanges(m.spans)
	}
}

// countWeights adds up the tensors, and those that are mapped completely.
func (m *model) countWeights() {
	for i := range m.gguf.Tensors {
		t := &m.gguf.Tensors[i]
		m.file.Weights += t.Size
		if isCovered(m.spans, t.Offset, t.End()) {
			m.file.Mapped += t.Size
		}
	}
}

// damagedError says that a file begins like a GGUF file but cannot be parsed.
type damagedError struct{ err error }

func (e *damagedError) Error() string { return e.err.Error() }
func (e *damagedError) Unwrap() error { return e.err }

// openModel opens a file that is mapped, and reads it unless that was done before. before has what
// was read the last time.
func (e *Examiner) openModel(c *mapped, before map[proc.FileID]part) (*model, error) {
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
	if !ok || !known.isStill(info) {
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) // do not read ahead into the weights behind the metadata
		parsed, err := gguf.Parse(f, info.Size())
		if err != nil {
			return nil, &damagedError{err}
		}
		known = part{info: info, gguf: parsed}
		if known.store, known.system, err = StoreOf(f); err != nil {
			return nil, err
		}
	}
	e.parts[at.ID] = known
	device, readAhead := e.sys.deviceOf(info)
	m := &model{gguf: known.gguf, file: File{
		Path: at.Path, At: at, Size: info.Size(), Store: known.store, System: known.system,
		Device: device, ReadAhead: readAhead, PageOut: mayPageOut(f), Foreign: gguf.ForeignTypes(known.gguf),
	}}
	residency := pagecache.ResidencyOf(f, nil)
	if err = residency.Check(); err == nil {
		m.file.Resident, err = residency.Bytes(0, info.Size())
	}
	if err != nil {
		m.file.Resident = -1
	}
	return m, nil
}

// countUnread fills in what is not read any more of a file: these ranges of offsets.
func (m *model) countUnread(h *Holding, ranges [][2]int64) {
	if f := m.fileIn(h); f != nil && len(ranges) > 0 {
		f.UnreadRanges = uniteRanges(ranges)
		f.Unread, f.UnreadResident = f.countRanges(f.UnreadRanges)
	}
}

// countTables fills in where the tables of a file lie: in these ranges of offsets.
func (m *model) countTables(h *Holding, ranges [][2]int64) {
	if f := m.fileIn(h); f != nil {
		f.Tables, f.TablesResident = f.countRanges(uniteRanges(ranges))
		h.Tables += f.Tables
	}
}

// fileIn is the model's file in h; nil if it is not there.
func (m *model) fileIn(h *Holding) *File {
	i := slices.IndexFunc(h.Files, func(f File) bool { return f.ID == m.file.ID })
	if i < 0 {
		return nil
	}
	return &h.Files[i]
}

// countRanges returns how many bytes some ranges of a file have, and how many of them are in memory; -1 if that is not
// known. The ranges do not overlap.
func (f *File) countRanges(ranges [][2]int64) (bytes, resident int64) {
	for _, r := range ranges {
		bytes += r[1] - r[0]
	}
	if f.Resident < 0 {
		return bytes, -1
	}
	file, err := f.At.Open()
	if err != nil {
		return bytes, -1
	}
	defer file.Close()
	residency := pagecache.ResidencyOf(file, nil)
	for _, r := range ranges {
		n, err := residency.Bytes(r[0], r[1]-r[0])
		if err != nil {
			return bytes, -1
		}
		resident += n
	}
	return bytes, resident
}

// StoreOf returns what the pages of an open file are to the kernel, and the name of its file system
// (see File.System).
func StoreOf(f *os.File) (s Store, system string, err error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &stat); err != nil {
		return "", "", fmt.Errorf("ask for the file system of %s: %w", f.Name(), err)
	}
	var st unix.Statx_t
	err = unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, 0, &st)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return "", "", fmt.Errorf("ask for the attributes of %s: %w", f.Name(), err)
	}
	s, system = storeOf(int64(stat.Type), st.Attributes&st.Attributes_mask)
	return s, system, nil
}

// ReadAheadOf returns how many bytes around a fault the kernel reads of files on the device of an open file, as
// File.ReadAhead has it; -1 if that is not known.
func ReadAheadOf(f *os.File) (bytes int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return -1, err
	}
	_, bytes = system{"/"}.deviceOf(info)
	return bytes, nil
}

// deviceOf finds the device of a file by the number that stat returns. On overlayfs no device has
// that number.
func (s system) deviceOf(info os.FileInfo) (name string, readAhead int64) {
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

// mayPageOut reports whether MADV_PAGEOUT takes pages of a file from another process if this
// process asks. For that, this process must own the file, be able to override ownership, or be able
// to write the file (can_do_file_pageout in mm/madvise.c, since Linux 5.4). Otherwise the call
// succeeds and does nothing.
func mayPageOut(f *os.File) bool {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	if err == nil && data[0].Effective>>unix.CAP_FOWNER&1 == 1 {
		return true
	}
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) == nil && int(st.Uid) == os.Geteuid() {
		return true
	}
	return unix.Faccessat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.W_OK, unix.AT_EACCESS) == nil
}

// uniteRanges sorts ranges, and joins those that overlap or touch.
func uniteRanges(spans [][2]int64) [][2]int64 {
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

// isCovered reports whether a range lies in one of the spans, which are in order and do not overlap.
func isCovered(spans [][2]int64, from, end int64) bool {
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
