package holding

// These tests describe what this machine lacks: GPUs, DAX, huge pages. A process is a directory
// like those in /proc.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/ggml"
	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
	"tensorcast/loadflags"
	"tensorcast/processes/processestest"
)

// Addresses of the process that fixtures describe.
const (
	heapAt   = 0x20000
	heapSize = 0x20000
	anonAt   = 0x1000000
	modelAt  = 0x10000000
	gpuAt    = 0x40000000
	reserved = 0x50000000 // addresses without access, where a driver puts a GPU's memory
	areaSize = 0x4000000
)

const fixturePID = 1<<22 + 7 // larger than any that a kernel gives

// fake is a process in a tree of fixtures.
type fake struct {
	root  string
	model string
	file  *gguf.File
}

func newFake(t *testing.T, ownKiB int) *fake {
	t.Helper()
	var tensors []gguftest.Tensor
	for _, name := range []string{"token_embd.weight", "blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "output.weight"} {
		tensors = append(tensors, gguftest.Tensor{Name: name, Type: gguf.F32, Shape: []int64{1024, 1024}})
	}
	return newFakeOf(t, ownKiB, tensors)
}

// newFakeOf is newFake with other tensors.
func newFakeOf(t *testing.T, ownKiB int, tensors []gguftest.Tensor) *fake {
	t.Helper()
	f := &fake{root: t.TempDir()}
	f.model = filepath.Join(f.root, "model.gguf")
	(&gguftest.Model{Tensors: tensors}).Write(t, f.model)
	var err error
	if f.file, err = gguf.Open(f.model); err != nil {
		t.Fatal(err)
	}
	id := proc.IDOf(f.file.Info())
	f.write(t, "maps", fmt.Sprintf(`00010000-00011000 r-xp 00000000 08:01 77 /usr/lib/libggml-cuda.so
%08x-%08x rw-p 00000000 00:00 0 [heap]
%08x-%08x rw-p 00000000 00:00 0 
%08x-%08x r--s 00000000 %02x:%02x %d %s
%08x-%08x rw-s 00000000 00:06 9 /dev/nvidia-uvm
%08x-%08x ---p 00000000 00:00 0 
`, heapAt, heapAt+heapSize, anonAt, anonAt+areaSize, modelAt, modelAt+(f.file.Size+4095)/4096*4096, id.Dev>>20,
		id.Dev&(1<<20-1), id.Ino, f.model,
		gpuAt, gpuAt+areaSize, reserved, reserved+areaSize))
	f.write(t, "status", fmt.Sprintf("Name:\tfake\nRssAnon:\t%d kB\nVmSwap:\t0 kB\nVmLck:\t0 kB\n", ownKiB))
	f.write(t, "mem", "")
	if err := os.Mkdir(f.path("fd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/nvidiactl", f.path("fd/5")); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fake) path(name string) string {
	return filepath.Join(f.root, "proc", fmt.Sprint(fixturePID), name)
}

func (f *fake) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(f.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// rawTensor is the struct ggml_tensor of a weight.
func rawTensor(l ggml.Layout, w *gguf.Tensor, data uint64) []byte {
	b := make([]byte, l.Name+64)
	binary.LittleEndian.PutUint32(b[l.Type:], uint32(w.Type))
	stride := uint64(4)
	for i := range uint32(4) {
		n := uint64(1)
		if int(i) < len(w.Shape) {
			n = uint64(w.Shape[i])
		}
		binary.LittleEndian.PutUint64(b[l.NE+8*i:], n)
		binary.LittleEndian.PutUint64(b[l.NB+8*i:], stride)
		stride *= n
	}
	binary.LittleEndian.PutUint64(b[l.Data:], data)
	copy(b[l.Name:], w.Name)
	return b
}

// putTensors writes a tensor to the process's memory for each weight, with the address of its data.
// 1 stands for where the file is mapped.
func (f *fake) putTensors(t *testing.T, l ggml.Layout, addresses ...uint64) {
	t.Helper()
	mem, err := os.OpenFile(f.path("mem"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for i, address := range addresses {
		w := &f.file.Tensors[i]
		if address == 1 {
			address = modelAt + uint64(w.Offset)
		}
		if _, err := mem.WriteAt(rawTensor(l, w, address), int64(heapAt+0x1008+0x400*i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := mem.Truncate(heapAt + heapSize); err != nil {
		t.Fatal(err)
	}
}

func (f *fake) examine(t *testing.T) *Holding {
	t.Helper()
	h, err := newExaminer(system{f.root}, fixturePID).Examine(t.Context(), Options{Others: true})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

const weightSize = 4 << 20 // bytes of each weight of the fixture

// With a GPU, only what the processor reads counts. The addresses of the weights show it, in all
// layouts of ggml's tensors.
func TestDevices(t *testing.T) {
	for name, tc := range map[string]struct {
		addresses []uint64
		ownKiB    int
		weights   Weights
		mode      Mode
		exact     bool
		blocks    []Reason
		notes     []Reason
	}{
		"all offloaded": {
			[]uint64{1, gpuAt, gpuAt + weightSize, gpuAt + 2*weightSize}, 1 << 10,
			Weights{Mapped: weightSize, Device: 3 * weightSize}, ModeDevice, true, []Reason{OnDevice}, nil,
		},
		"one layer": {
			[]uint64{1, gpuAt, 1, 1}, 1 << 10, Weights{Mapped: 3 * weightSize, Device: weightSize}, ModePartly, true,
			nil, []Reason{OnDevice},
		},
		"reserved": {
			[]uint64{1, reserved, 1, 1}, 1 << 10, Weights{Mapped: 3 * weightSize, Device: weightSize}, ModePartly,
			true, nil, []Reason{OnDevice},
		},
		// Vulkan's
		"no address": {
			[]uint64{1, 0x1000, 1, 1}, 1 << 10, Weights{Mapped: 3 * weightSize, Device: weightSize}, ModePartly, true,
			nil, []Reason{OnDevice},
		},
		"not used": {[]uint64{1, 1, 1, 1}, 1 << 10, Weights{Mapped: 4 * weightSize}, ModeMapped, true, nil, nil},
		"copies, too": {
			[]uint64{1, gpuAt, anonAt, anonAt + weightSize}, 9 << 10,
			Weights{Mapped: weightSize, Device: weightSize, Copied: 2 * weightSize}, ModeCopied, true,
			[]Reason{Copied}, []Reason{OnDevice},
		},
		"not found": {nil, 1 << 10, Weights{Unknown: 4 * weightSize}, ModeUnknown, false, []Reason{Undecided}, nil},
		"being loaded": {
			[]uint64{0, 0, 0, 0}, 1 << 10, Weights{Unknown: 4 * weightSize}, ModeUnknown, false, []Reason{Undecided},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, layout := range ggml.Candidates() {
				f := newFake(t, tc.ownKiB)
				f.putTensors(t, layout, tc.addresses...)
				h := f.examine(t)
				v := h.Judge(-1, false)
				if h.Weights != tc.weights || h.Mode != tc.mode || h.Exact != tc.exact ||
					!slices.Equal(reasonsOf(v, true), tc.blocks) || !slices.Equal(reasonsOf(v, false), tc.notes) {
					t.Errorf("%s: %+v\n%+v", layout.Origin, h, v)
				}
				if !slices.Equal(h.Devices, []string{"/dev/nvidia-uvm", "/dev/nvidiactl"}) ||
					!slices.Equal(h.Backends, []string{"cuda"}) {
					t.Errorf("devices %q, backends %q", h.Devices, h.Backends)
				}
			}
		})
	}
}

// Tensors are looked for first at the address where they were found the last time. If the process
// has moved them, they are found again.
func TestAgain(t *testing.T) {
	f := newFake(t, 1<<10)
	l := ggml.Candidates()[0]
	f.putTensors(t, l, 1, 1, 1, 1)
	e := newExaminer(system{f.root}, fixturePID)
	for _, addresses := range [][]uint64{{1, 1, 1, 1}, {1, anonAt, anonAt, anonAt}, {1, 1, 1, 1}} {
		f.putTensors(t, l, addresses...)
		h, err := e.Examine(t.Context(), Options{})
		if want := map[bool]Mode{true: ModeMapped, false: ModeCopied}[addresses[1] == 1]; err != nil || !h.Exact ||
			h.Mode != want || len(e.hits) != 1 || e.hits[0] != heapAt {
			t.Fatalf("%+v, %v, %#x", h, err, e.hits)
		}
	}
	read := &zeros{} // memory without the weights
	tab := &table{
		space:   &space{areas: []area{{start: heapAt, end: heapAt + heapSize, kind: kindMemory, mayHoldTables: true}}},
		layouts: ggml.Candidates(), byName: map[string][]*weight{"x.weight": nil}, missing: 1,
	}
	if tab.scan(t.Context(), read, []uint64{heapAt, 1 << 50}); read.n != 2*heapSize || len(tab.hits) > 0 {
		t.Errorf("read %d bytes, want %d; hits %#x, want none", read.n, 2*heapSize, tab.hits)
	}
}

// Tensors that do not belong to the model, or no longer do, do not count.
func TestForeignTensors(t *testing.T) {
	f := newFake(t, 1<<10)
	l := ggml.Candidates()[0]
	w := f.file.Tensors[1]
	w.Shape = []int64{1024, 512}
	other := f.file.Tensors[1]
	other.Type = gguf.F16
	view := rawTensor(l, &f.file.Tensors[1], anonAt)
	binary.LittleEndian.PutUint64(view[l.ViewSrc:], heapAt)
	wrong := modelAt + uint64(f.file.Tensors[2].Offset) // another tensor's data
	var mem []byte
	for _, b := range [][]byte{
		rawTensor(l, &w, anonAt), rawTensor(l, &other, anonAt), view, rawTensor(l, &f.file.Tensors[1], wrong),
	} {
		mem = append(append(mem, make([]byte, 64)...), b...)
	}
	f.putTensors(t, l, 1, 0, 1, 1)
	file, err := os.OpenFile(f.path("mem"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(mem, heapAt); err != nil {
		t.Fatal(err)
	}
	if h := f.examine(t); h.Weights != (Weights{Mapped: 3 * weightSize, Unknown: weightSize}) {
		t.Errorf("weights %+v, want %d bytes mapped and %d unknown", h.Weights, 3*weightSize, weightSize)
	}
}

// If the process's memory may not be read, but it has little memory of its own, the weights were
// not copied. If it has much, nothing is presumed. While the model is being loaded nothing is
// presumed either.
func TestPresumed(t *testing.T) {
	for name, tc := range map[string]struct {
		ownKiB   int
		readable bool
		want     Mode
	}{
		"little": {1 << 10, false, ModeMapped}, "much": {1 << 20, false, ModeUnknown},
		"being loaded": {1 << 10, true, ModeUnknown},
	} {
		f := newFake(t, tc.ownKiB)
		text, err := os.ReadFile(f.path("maps"))
		if err != nil {
			t.Fatal(err)
		}
		lines := slices.DeleteFunc(strings.SplitAfter(string(text), "\n"), func(l string) bool {
			return strings.Contains(l, "cuda") || strings.Contains(l, "nvidia")
		})
		f.write(t, "maps", strings.Join(lines, ""))
		if err := os.Remove(f.path("fd/5")); err != nil {
			t.Fatal(err)
		}
		if tc.readable {
			f.putTensors(t, ggml.Candidates()[0], 0, 0, 0, 0)
		} else if err := os.Remove(f.path("mem")); err != nil {
			t.Fatal(err)
		}
		if h := f.examine(t); h.Mode != tc.want || h.Exact {
			t.Errorf("%s: %+v, want mode %s, not exact", name, h, tc.want)
		}
	}
}

// A model that was cut off or replaced since it was mapped is reported as such.
func TestChanged(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"cut off": func(path string) error { return os.Truncate(path, 60) },
		"replaced": func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, []byte("GGUF"), 0o600))
		},
	} {
		f := newFake(t, 1<<10)
		f.putTensors(t, ggml.Candidates()[0], 1, 1, 1, 1)
		if err := change(f.model); err != nil {
			t.Fatal(err)
		}
		h := f.examine(t)
		if v := h.Judge(-1, false); v.Helps || !slices.Equal(reasonsOf(v, true), []Reason{FileChanged}) ||
			!strings.Contains(v.Line(), "model.gguf cannot be read") {
			t.Errorf("%s: %+v, %+v", name, h, v)
		}
	}
}

// A model that root may not read is reported as such: FUSE keeps out everybody but who mounted it, even root.
func TestDenied(t *testing.T) {
	model := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(model, append([]byte("GGUF"), make([]byte, 1<<16)...), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := testenv.Mount(t, "bindfs:user", model)
	program := processestest.Program(t, "standin", true)
	as := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}
	p := processestest.Start(t, append(as, program, "model", filepath.Join(dir, "model.gguf"))...)
	h, err := New(p.Next()).Examine(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	v := h.Judge(-1, false)
	if v.Helps || !slices.Contains(reasonsOf(v, true), FileDenied) || !strings.Contains(v.Line(), "allow_other") {
		t.Errorf("%+v, %+v, want that it is denied", h, v)
	}
}

func TestStoreOf(t *testing.T) {
	for _, tc := range []struct {
		magic      int64
		attributes uint64
		store      Store
		name       string
	}{
		{unix.EXT4_SUPER_MAGIC, 0, StoreDisk, ""},
		{unix.EXT4_SUPER_MAGIC, unix.STATX_ATTR_DAX, StoreDAX, ""},
		{unix.FUSE_SUPER_MAGIC, unix.STATX_ATTR_DAX, StoreDAX, ""}, // virtiofs
		{unix.TMPFS_MAGIC, 0, StoreMemory, "tmpfs"},
		{unix.HUGETLBFS_MAGIC, 0, StoreHuge, "hugetlbfs"},
		{unix.NFS_SUPER_MAGIC, 0, StoreNetwork, "nfs"},
		{unix.V9FS_MAGIC, 0, StoreNetwork, "9p"},
	} {
		if store, name := storeOf(tc.magic, tc.attributes); store != tc.store || name != tc.name {
			t.Errorf("storeOf(%#x, %#x) = %s %q, want %s %q", tc.magic, tc.attributes, store, name, tc.store, tc.name)
		}
	}
}

// A file that cannot be helped blocks only if there is no other file that can.
func TestJudgeFiles(t *testing.T) {
	disk := File{Path: "/a.gguf", PerToken: 100, Store: StoreDisk, PageOut: true}
	holding := func(files ...File) *Holding {
		h := &Holding{PID: 5, Mode: ModeMapped, Files: files}
		for _, f := range files {
			h.Weights.Mapped += f.PerToken
			h.PerToken += f.PerToken
		}
		return h
	}
	for name, tc := range map[string]struct {
		change func(f *File)
		reason Reason
	}{
		"hugetlb":    {func(f *File) { f.Store, f.System = StoreHuge, "hugetlbfs" }, HugeTLB},
		"dax":        {func(f *File) { f.Store = StoreDAX }, DAX},
		"ramfs":      {func(f *File) { f.Store, f.System = StoreMemory, "ramfs" }, InMemory},
		"another's":  {func(f *File) { f.PageOut = false }, NoPageOut},
		"nothing":    {func(f *File) { f.PerToken = 0 }, Negligible},
		"on network": {func(f *File) { f.Store, f.System = StoreNetwork, "nfs" }, Network},
	} {
		t.Run(name, func(t *testing.T) {
			changed := disk
			tc.change(&changed)
			h := holding(changed)
			h.Weights.Mapped = 100
			if v := h.Judge(-1, false); tc.reason == Network {
				if !v.Helps || v.PerToken != 100 || !slices.Equal(reasonsOf(v, false), []Reason{Network}) {
					t.Errorf("%+v, want a helpful verdict with a note about the network", v)
				}
			} else if v.Helps || v.PerToken != 0 || !slices.Equal(reasonsOf(v, true), []Reason{tc.reason}) ||
				!strings.HasPrefix(v.Line(), "nothing to win: ") {
				t.Errorf("%+v, want %s to block", v, tc.reason)
			}
			if v := holding(changed, disk).Judge(50, false); !v.Helps || v.Keep != 50 || len(reasonsOf(v, true)) > 0 {
				t.Errorf("beside another file: %+v", v)
			}
		})
	}
}

// A dense model of which much less than all fits is told that its faults read much around themselves, if it is too late
// to change that. Where most of it fits nothing is lost by that.
func TestJudgeReadaheadOfADenseModel(t *testing.T) {
	file := File{Path: "/a.gguf", PerToken: 1000, Store: StoreDisk, PageOut: true, Closed: true, ReadAhead: 8 << 20}
	small, open := file, file
	small.ReadAhead = 128 << 10
	open.Closed = false
	for name, tc := range map[string]struct {
		file File
		room int64
		want []Reason
	}{
		"half fits":                           {file, 500, []Reason{Readahead}},
		"most fits":                           {file, 850, nil},
		"the room is not known":               {file, -1, nil},
		"half fits, with a small readahead":   {small, 500, nil},
		"half fits, and the file is open yet": {open, 500, nil},
	} {
		h := &Holding{PID: 5, Mode: ModeMapped, Files: []File{tc.file}, PerToken: 1000,
			Weights: Weights{Mapped: 1000}}
		if v := h.Judge(tc.room, false); !v.Helps || !slices.Equal(reasonsOf(v, false), tc.want) {
			t.Errorf("%s: %s\n%+v", name, v.Line(), v)
		}
	}
}

// A file that has only experts counts as one that tokens read. If a model has nothing that every
// token reads, it is left alone. Locked memory matters only if all that tokens read is locked.
func TestJudgeExperts(t *testing.T) {
	trunk := File{Path: "/a.gguf", PerToken: 10, Store: StoreDisk, PageOut: true}
	experts := File{Path: "/b.gguf", Routed: 990, Store: StoreDisk, PageOut: true}
	holding := func(change func(h *Holding), files ...File) *Holding {
		h := &Holding{PID: 5, Mode: ModeMapped, Files: files, Weights: Weights{Mapped: 1000}}
		for _, f := range files {
			h.PerToken += f.PerToken
			h.Routed += f.Routed
		}
		if change != nil {
			change(h)
		}
		return h
	}
	elsewhere := experts
	elsewhere.Store, elsewhere.System = StoreMemory, "tmpfs"
	for name, tc := range map[string]struct {
		h             *Holding
		blocks, notes []Reason
		keep, experts int64
	}{
		"both": {holding(nil, trunk, experts), nil, []Reason{RoutedExperts}, 10, 490},
		"closed, with a large readahead": {
			holding(func(h *Holding) { h.Files[1].Closed, h.Files[1].ReadAhead = true, 8<<20 }, trunk, experts),
			nil, []Reason{RoutedExperts, Readahead}, 10, 490,
		},
		"closed, with a small readahead": {
			holding(func(h *Holding) { h.Files[1].Closed, h.Files[1].ReadAhead = true, 128<<10 }, trunk, experts),
			nil, []Reason{RoutedExperts}, 10, 490,
		},
		"open, with a large readahead": {
			holding(func(h *Holding) { h.Files[1].ReadAhead = 8 << 20 }, trunk, experts),
			nil, []Reason{RoutedExperts}, 10, 490,
		},
		"experts on tmpfs": {holding(nil, trunk, elsewhere), []Reason{InMemory}, nil, 10, 0},
		"trunk on a GPU": {
			holding(func(h *Holding) {
				h.Weights, h.Mode = Weights{Mapped: 990, Device: 100}, ModePartly
			}, experts),
			[]Reason{RoutedExperts}, []Reason{OnDevice}, 0, 500,
		},
		"trunk locked": {
			holding(func(h *Holding) { h.Locked = 10 }, trunk, experts), nil, []Reason{RoutedExperts}, 10, 490,
		},
		"all locked": {
			holding(func(h *Holding) { h.Locked = 1000 }, trunk, experts), []Reason{Locked}, []Reason{RoutedExperts},
			10, 490,
		},
	} {
		v := tc.h.Judge(500, false)
		if !slices.Equal(reasonsOf(v, true), tc.blocks) || !slices.Equal(reasonsOf(v, false), tc.notes) ||
			v.Helps != (tc.blocks == nil) || v.Keep != tc.keep || v.Experts != tc.experts {
			t.Errorf("%s: %s\n%+v", name, v.Line(), v)
		}
	}
	// What is in memory beyond the room of the process's own group is paid for by others.
	shared := holding(func(h *Holding) {
		for i := range h.Files {
			h.Files[i].Size, h.Files[i].Resident = 1000, 1000
		}
	}, trunk, experts)
	if v := shared.JudgeInGroup(500, false); v.Helps || !slices.Equal(reasonsOf(v, true), []Reason{Fits}) {
		t.Errorf("another group pays: %+v, want that nothing is to be won (%v)", v, Fits)
	}
	shared.Files[1].Resident--
	if v := shared.JudgeInGroup(500, false); !v.Helps {
		t.Errorf("another group pays for a part: %+v, want that it helps", v)
	}
	h := Holding{Weights: Weights{Mapped: 500, Device: 500}, Routed: 500} // experts are read from the file
	if m := h.decideMode(); m != ModePartly {
		t.Errorf("experts in the file, and all else on a GPU: mode %s, want %s", m, ModePartly)
	}
}

// crowdVariable is an environment variable. It makes the test program map the model that it names,
// and as many areas as the kernel allows.
const crowdVariable = "HOLDING_TEST_CROWD"

func init() {
	model := os.Getenv(crowdVariable)
	if model == "" {
		return
	}
	f, err := os.Open(model)
	if err == nil {
		_, err = unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED)
	}
	page := os.Getpagesize()
	b, mapErr := unix.Mmap(-1, 0, 70000*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	for i := 0; mapErr == nil && i < 70000; i += 2 {
		b[i*page] = 1
		if unix.Mprotect(b[i*page:(i+1)*page], unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC) != nil {
			break // no more
		}
	}
	fmt.Println(err, mapErr)
	time.Sleep(time.Hour)
}

// Examining a process that maps as much as it can takes a bounded time.
func TestCrowd(t *testing.T) {
	testenv.NeedRoot(t)
	f := newFake(t, 1)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crowdVariable+"="+f.model)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	said := make([]byte, 100)
	if n, err := out.Read(said); err != nil || string(said[:n]) != "<nil> <nil>\n" {
		t.Fatalf("the process says %q, %v, want no errors", said[:n], err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
	if areas := bytes.Count(maps, []byte("\n")); err != nil || areas < 30000 {
		t.Fatalf("%d areas, %v", areas, err)
	}
	began := time.Now()
	h, err := New(cmd.Process.Pid).Examine(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d areas: %v", bytes.Count(maps, []byte("\n")), time.Since(began))
	// No weight lies completely in the first MiB, which is mapped.
	if len(h.Files) != 1 || h.Files[0].Weights != 4*weightSize || h.Files[0].Mapped != 0 ||
		h.Weights.Copied != 4*weightSize || h.Exact {
		t.Errorf("%+v, want all weights copied, and not exact", h)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(cmd.Process.Pid).Examine(ctx, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v, want %v", err, context.Canceled)
	}
}

// However much memory a process has, a bounded part of it is read.
func TestScanIsBounded(t *testing.T) {
	sp := &space{}
	for i := range uint64(1000) { // 60 GiB, each area small enough to be read as a whole
		sp.areas = append(sp.areas, area{
			start: (i + 1) << 32, end: (i+1)<<32 + largeArea, kind: kindMemory, mayHoldTables: true,
		})
	}
	sp.areas = append(sp.areas, area{
		start: 1 << 46, end: 1<<46 + 1<<40, kind: kindMemory, mayHoldTables: true, heap: true,
	})
	for _, heap := range []bool{true, false} {
		read := &zeros{}
		tab := &table{
			space: sp, layouts: ggml.Candidates(), byName: map[string][]*weight{"x.weight": nil}, missing: 1,
		}
		if !heap {
			tab.space = &space{areas: sp.areas[:1000]}
		}
		tab.scan(t.Context(), read, nil)
		if read.n < maxScan || read.n > maxScan+chunkBytes+overlapBytes {
			t.Errorf("read %d MiB, want about %d", read.n>>20, maxScan>>20)
		}
	}
}

// zeros is memory without end that counts how much of it is read.
type zeros struct{ n int64 }

func (z *zeros) ReadAt(b []byte, _ int64) (int, error) {
	z.n += int64(len(b))
	return len(b), nil
}

func TestGone(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := New(gone.Process.Pid).Examine(t.Context(), Options{Others: true}); !errors.Is(err, proc.ErrNoProcess) {
		t.Errorf("a process that has ended: %v, want %v", err, proc.ErrNoProcess)
	}
	sleep := exec.Command("sleep", "1000") // not this process, which has tensors of other tests in its memory
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	h, err := New(sleep.Process.Pid).Examine(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if v := h.Judge(-1, false); h.Mode != ModeNone || v.Helps || !slices.Equal(reasonsOf(v, true), []Reason{NoModel}) {
		t.Errorf("a process without a model: %+v, %+v", h, v)
	}
}

// FuzzMemory searches memory that holds any bytes.
func FuzzMemory(f *testing.F) {
	l := ggml.Candidates()[0]
	w := gguf.Tensor{Name: "blk.0.ffn_up.weight", Type: gguf.F32, Shape: []int64{1024, 1024}, Size: weightSize}
	f.Add(rawTensor(l, &w, anonAt), true)
	f.Add(rawTensor(l, &w, 0), false)
	f.Add([]byte(".weight\x00.weight\x00"), true)
	sp := &space{areas: []area{{start: anonAt, end: anonAt + areaSize, kind: kindMemory}}}
	f.Fuzz(func(t *testing.T, memory []byte, loose bool) {
		known := &weight{model: &model{}, of: &w}
		tab := &table{
			space: sp, layouts: ggml.Candidates(), byName: map[string][]*weight{}, loose: map[string]looseWeight{},
		}
		if !loose {
			tab.byName[w.Name], tab.missing = []*weight{known}, 1
		}
		tab.search(memory, heapAt)
		if tab.missing < 0 || !loose && known.seen.isSomewhere() != (tab.missing == 0) {
			t.Errorf("%d missing, %+v", tab.missing, known.seen)
		}
		for name, w := range tab.loose {
			if w.size < 0 || w.size > maxBytes || len(name) > longestName {
				t.Errorf("%q: %d bytes", name, w.size)
			}
		}
	})
}

// Copies of weights are advised against only if they do not fit in memory, with the flags of the target.
func TestCopiesAreWeighed(t *testing.T) {
	const mib = 1 << 20
	file := File{Path: "/m.gguf", Store: StoreDisk, PageOut: true, Unread: 99 * mib, UnreadResident: 60 * mib}
	unmapped := loadflags.OfWords([]string{"llama-server", "--load-mode", "none", "--no-repack"})
	for name, tc := range map[string]struct {
		h       Holding
		want    string
		advised bool
	}{
		"in memory": {
			Holding{Own: 120 * mib, Files: []File{file}}, "; leave it so, because " + loadflags.LayoutGain +
				"; 60 MiB of the file are in memory besides", false,
		},
		"swapped out": {
			Holding{Own: 120 * mib, Swapped: 30 * mib, Files: []File{file}},
			"too large for the memory, and 30 MiB is swapped out; to read weights from the file instead, start llama.cpp " +
				"with --no-repack", true,
		},
		"still copying": {
			Holding{Own: 50 * mib, Files: []File{file}},
			"it is still copying them (50 MiB by now); if they do not fit in memory, start llama.cpp with --no-repack", true,
		},
		"not mapped": {Holding{Own: 120 * mib, program: unmapped}, "nothing is read again; leave it so", false},
		"not mapped and swapped out": {
			Holding{Own: 120 * mib, Swapped: 30 * mib, program: unmapped},
			"start llama.cpp without --load-mode none", true,
		},
	} {
		tc.h.Mode, tc.h.Weights = ModeCopied, Weights{Mapped: mib, Copied: 99 * mib}
		verdict := tc.h.Judge(-1, false)
		line := verdict.Line()
		if !strings.Contains(line, tc.want) || strings.Contains(line, "start llama.cpp") != tc.advised {
			t.Errorf("%s: %s", name, line)
		}
		if tc.h.program.Request().InLayout && strings.Contains(line, "--no-repack") {
			t.Errorf("%s: advises what was done already: %s", name, line)
		}
	}
}
