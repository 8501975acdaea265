package ebpf

// This file loads the programs, attaches them to the libraries of targets, reads the ring buffer, and counts losses.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tensorcast/event"
	"tensorcast/ggml"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
)

// Options of a Tracer.
type Options struct {
	PID int
	// Hints are files that the target may map (arguments of its command). They serve to find the model file's path if the target ends
	// before its memory map could be read.
	Hints []string
	// RingBytes is the size of the ring buffer, a power of two; 0 means 8 MiB, or 512 KiB with Small.
	RingBytes uint32
	// Small sizes the maps for a helper that has little memory and reads the ring buffer every few milliseconds: about 3 MiB of kernel
	// memory instead of 20. Losses are still counted. What does not fit is looked up again, which takes time if a target's graphs have more
	// than 8192 nodes in total, or if more than 96 threads decode.
	Small bool
	// templates is the number of nodes that are remembered, a power of two; 0 means the default for Small. Tests use few.
	templates uint32
	// naps is the length from which on Run waits by epoll; 0 means minPoll. Tests use longer ones.
	naps time.Duration
	// PerfEvents attaches through perf events even if the kernel has uprobe_multi (Linux 6.6).
	PerfEvents bool
	// Interval bounds how long an event waits in the ring buffer: the reader is woken earlier only when an eighth of the buffer is full. 0
	// means one second. Run calls Tick at this interval, after the pending events.
	Interval time.Duration
	Tick     func() error
	// Pause, if not nil, is asked for the time until the next Tick instead of Interval: a caller that has nothing to do without events may let Run
	// sleep. Events then wait for as long, save for the first op that reads a file, and what fills an eighth of the buffer.
	Pause   func() time.Duration
	Detail  Detail
	Buffers bool // also report other tensors than weights (Op.Buffers), and ops that read no weight
	Follow  bool // also trace processes that the target starts
	// Selected asks for event.Selected: which experts a layer is about to read. DetailGraph does not see them. Ops are then sent one by one, so that events arrive in the
	// order in which they happened.
	Selected bool
	// Inputs asks for event.RouterInput for one in so many tokens; 0 for none. It is counted in decodes of one token, of which the first is one, and in the rows of
	// a batch, of which the last is one. A batch tells of at most InputRows tokens, at equal distances; 0 means 64. A row of more than 65536 values, or of others
	// than float32, counts as lost. Otherwise what is said of Selected holds.
	Inputs, InputRows int
	// AtOnce wakes the reader for each event.Selected, and for a layer's event.RouterInput, which then does not wait for Interval or Pause to be over. The calls of Tick do not become more.
	AtOnce bool
	// Program is a program that AttachLikely will be called for: what it is likely to load is scanned while New loads the programs into the kernel.
	Program Program
	Log     *slog.Logger
}

// Program is a program that is about to run.
type Program struct {
	Path string // empty: there is none
	Env  []string
}

// Detail is how closely a target is observed; more detail costs the target more time.
type Detail int

const (
	DetailOp    Detail = iota // each op with its duration
	DetailGraph               // one hit per graph: the sequence of ops, without their durations and without the selected experts
	DetailIO                  // like DetailOp, and how long each op waited for the disk, and each page of a model file that was read from disk
)

// Tracer observes a process and, with Options.Follow, the processes that it starts. Of its methods only Counters and Execed may be called
// concurrently with others.
type Tracer struct {
	opts     Options
	glance   time.Duration // see search
	objs     traceObjects
	system   *system // nil if the kernel supports none of these programs
	reader   *ringbuf.Reader
	links    []link.Link
	multi    bool
	wide     bool                        // probes fire in every process that runs the file; the programs ignore those that are no targets
	scanned  map[string]scanned          // files that were scanned ahead and not asked for yet, by path
	images   map[proc.FileID]*ggml.Image // files that were scanned
	files    map[*ggml.Image]*os.File    // those of them that can carry probes, open: probes go to what was scanned, wherever its name leads by then
	done     map[attachment]bool
	attached []string // paths of files that carry probes
	main     *target
	known    *known // shared by all targets
	targets  map[uint32]*target
	received atomic.Uint64
	// counts of: sources whose mapping could not be found; ops whose ids or template did not arrive
	unresolved, incomplete atomic.Uint64
	misses                 atomic.Uint64
	graphOps               uint64 // op number in graph detail
	configurations         uint32 // how often the programs were configured
	scratch                event.Op
	execs                  chan execRequest
	ran                    chan struct{} // closed when Run returns
}

// execRequest asks Run to look at the program that a process runs after an execve.
type execRequest struct {
	pid   int
	found chan bool
}

// New loads the programs for one target process. The caller must call Close.
func New(opts Options) (*Tracer, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Interval == 0 {
		opts.Interval = defaultInterval
	}
	glance := patientInterval
	if opts.Pause == nil {
		glance = glanceInterval
		opts.Pause = func() time.Duration { return opts.Interval }
	}
	if opts.Tick == nil {
		opts.Tick = func() error { return nil }
	}
	if err := rlimit.RemoveMemlock(); err != nil { // kernels before 5.11 charge maps to RLIMIT_MEMLOCK
		opts.Log.Debug("cannot raise RLIMIT_MEMLOCK", "error", err)
	}
	main, err := newTarget(opts.PID, 0, nil)
	if err != nil {
		return nil, err
	}
	if opts.routing() && opts.Detail == DetailGraph {
		return nil, errors.Join(errors.New("what routers read and choose is not seen in whole graphs: observe ops"), main.process.Close())
	}
	if opts.Inputs < 0 || opts.InputRows < 0 || opts.Inputs > math.MaxInt32 || opts.InputRows > math.MaxInt32 {
		return nil, errors.Join(fmt.Errorf("routers' inputs for one in %d tokens, and for %d of a batch: want 0 or more", opts.Inputs, opts.InputRows), main.process.Close())
	}
	var beside sync.WaitGroup
	var ahead map[string]scanned
	if opts.Program.Path != "" {
		beside.Go(func() { ahead = scanLikely(opts.Program) })
	}
	t := &Tracer{
		opts: opts, glance: glance, multi: !opts.PerfEvents && features.HaveBPFLinkUprobeMulti() == nil, images: map[proc.FileID]*ggml.Image{}, files: map[*ggml.Image]*os.File{}, done: map[attachment]bool{}, execs: make(chan execRequest, 1), ran: make(chan struct{}),
		main: main, targets: map[uint32]*target{uint32(opts.PID): main},
	}
	// Before Linux 6.10, uprobe_multi filters by thread and would miss the compute threads.
	if t.wide = opts.Follow; t.multi && !t.wide {
		remove, err := hitUprobe(true)
		t.wide = err != nil
		beside.Go(func() {
			if err := remove(); err != nil {
				opts.Log.Debug("cannot remove the probe of a test", "error", err)
			}
		})
	}
	err = t.load()
	beside.Wait()
	t.scanned = ahead
	if err != nil {
		return nil, errors.Join(err, main.process.Close(), t.closeScanned())
	}
	return t, nil
}

func (t *Tracer) load() error {
	spec, err := loadTrace()
	if err != nil {
		return fmt.Errorf("read the embedded programs: %w", err)
	}
	for name, n := range t.opts.sizes() {
		spec.Maps[name].MaxEntries = n
	}
	if !t.multi {
		for _, p := range spec.Programs {
			p.AttachType = ebpf.AttachNone
		}
	}
	err = errors.Join(spec.Variables["want_graph"].Set(flag(t.opts.Detail == DetailGraph)), spec.Variables["want_buffers"].Set(flag(t.opts.Buffers)),
		spec.Variables["want_io"].Set(flag(t.opts.Detail == DetailIO)), spec.Variables["wide"].Set(flag(t.wide)),
		spec.Variables["page_shift"].Set(pageShift()), spec.Variables["batch"].Set(t.opts.batch()),
		spec.Variables["want_selected"].Set(flag(t.opts.Selected)), spec.Variables["at_once"].Set(flag(t.opts.AtOnce)),
		spec.Variables["want_inputs"].Set(uint32(t.opts.Inputs)), spec.Variables["input_rows"].Set(uint32(cmp.Or(t.opts.InputRows, defaultInputRows))),
		spec.Variables["wake_at"].Set(wakeAt(spec.Maps["events"].MaxEntries)),
		spec.Variables["template_mask"].Set(spec.Maps["templates"].MaxEntries-1))
	if err != nil {
		return fmt.Errorf("configure the embedded programs: %w", err)
	}
	if err := setNamespace(spec); err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&t.objs, nil); err != nil {
		if isRefusal(err) {
			return refused(err)
		}
		if _, btfErr := btf.LoadKernelSpec(); btfErr != nil {
			return fmt.Errorf("%w (%v)", event.ErrNoBTF, btfErr)
		}
		return fmt.Errorf("load the probes into the kernel: %w", err)
	}
	if err := checkNamespace(t.objs.Whoami); err != nil {
		return errors.Join(err, t.objs.Close())
	}
	t.known = newKnown(t.objs.Templates.MaxEntries())
	t.main.known = t.known
	if t.reader, err = ringbuf.NewReader(t.objs.Events); err != nil {
		return errors.Join(fmt.Errorf("open the ring buffer: %w", err), t.objs.Close())
	}
	if t.system, err = openSystem(&t.objs, t.opts); err != nil {
		return errors.Join(err, t.reader.Close(), t.objs.Close())
	}
	// Make it a target at once: it may fork or read pages before its ggml is found.
	if err := t.objs.Targets.Put(uint32(t.opts.PID), traceTargetConfig{Follow: flag(t.opts.Follow)}); err != nil {
		return errors.Join(fmt.Errorf("configure the probes: %w", err), t.system.detach(), t.system.close(), t.reader.Close(), t.objs.Close())
	}
	return nil
}

// sizes are the numbers of entries of the maps whose size differs from the compiled one: fewer with Small, and 1 for maps that this detail
// does not use. For the ring buffer it is bytes.
func (o *Options) sizes() map[string]uint32 {
	n := map[string]uint32{}
	if o.Small {
		n = map[string]uint32{traceMapEvents: 512 << 10, traceMapThreads: 32, traceMapTemplates: 8192, traceMapNodes: 8192, traceMapShapes: 32, traceMapPlaces: 64}
	}
	if o.RingBytes != 0 {
		n[traceMapEvents] = o.RingBytes
	}
	if o.templates != 0 {
		n[traceMapTemplates], n[traceMapNodes] = o.templates, o.templates
	}
	if o.Detail == DetailGraph {
		n[traceMapTemplates], n[traceMapNodes] = 1, 1
	} else {
		n[traceMapShapes], n[traceMapPlaces] = 1, 1
	}
	return n
}

// MapBytes is the memory of the programs' maps in bytes, as the kernel accounts it. It is charged to the memory cgroup of the process that
// called New. Do not call it after Close.
func (t *Tracer) MapBytes() (int64, error) {
	o := &t.objs
	maps := []*ebpf.Map{o.Counters, o.Events, o.Nodes, o.Places, o.Shapes, o.Slots, o.Targets, o.Templates, o.Threads, o.WarmContexts}
	maps = append(maps, t.system.maps()...)
	sum := int64(0)
	for _, m := range maps {
		info, err := m.Info()
		if err != nil {
			return 0, fmt.Errorf("ask for the size of %s: %w", m, err)
		}
		n, ok := info.Memlock()
		if !ok {
			return 0, fmt.Errorf("the kernel does not tell the size of %s", m)
		}
		sum += int64(n)
	}
	return sum, nil
}

// batch is how many ops are sent together: one, if somebody waits for them or their order with other events matters.
func (o *Options) batch() uint32 {
	if o.Interval < 100*time.Millisecond || o.Detail == DetailIO || o.Buffers || o.routing() {
		return 1
	}
	return uint32(len(traceOpsEvent{}.Ops))
}

// routing reports whether anything of a mixture's routing is to be told before the experts run.
func (o *Options) routing() bool { return o.Selected || o.Inputs != 0 }

// defaultInputRows of a prompt suffice to learn from, and fit the ring buffer many times.
const defaultInputRows = 64

// wakeAt is the fill level in bytes at which the programs wake the reader.
func wakeAt(ringBytes uint32) uint64 { return uint64(ringBytes) / 8 }

func flag(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

func pageShift() uint32 { return uint32(bits.TrailingZeros(uint(os.Getpagesize()))) }

// Detach removes all probes from the target. Call it in Run's goroutine, or after Run has returned.
func (t *Tracer) Detach() error {
	t.countMisses()
	// Removing a probe waits for an RCU grace period (about 50 ms): remove all in parallel.
	var group errgroup.Group
	for _, l := range t.links {
		group.Go(l.Close)
	}
	t.links = nil
	group.Go(t.system.detach)
	return group.Wait()
}

// Close removes all probes and unloads the programs. Call it after Run has returned.
func (t *Tracer) Close() error {
	errs := []error{t.Detach(), t.reader.Close(), t.system.close(), t.objs.Close()}
	for _, p := range t.targets {
		errs = append(errs, p.process.Close())
	}
	clear(t.targets)
	for _, f := range t.files {
		errs = append(errs, f.Close())
	}
	clear(t.files)
	return errors.Join(append(errs, t.closeScanned())...)
}

// AttachLikely sets probes on the libraries that a program is likely to load, before it runs.
func (t *Tracer) AttachLikely(exe string, env []string) error {
	return t.attachLikely(t.main, exe, env)
}

func (t *Tracer) attachLikely(p *target, exe string, env []string) (err error) {
	paths, damaged := []string{exe}, 0
	for _, path := range likelyLibraries(exe, env) {
		if _, err := t.scan(path); err == nil {
			paths = append(paths, path)
		} else if damaged++; damaged == 1 { // it may never be mapped
			t.opts.Log.Warn("a library that the program may load cannot be read", "error", err)
		}
	}
	p.likely, err = t.attach(p, paths)
	return errors.Join(err, t.closeScanned())
}

// AttachMapped sets probes on the libraries that the target has mapped by now.
func (t *Tracer) AttachMapped() error { return t.attachMapped(t.main) }

func (t *Tracer) attachMapped(p *target) error {
	files, err := proc.Mappings(p.pid)
	if err != nil {
		return err
	}
	var paths []string
	for _, m := range files {
		if m.Executable {
			paths = append(paths, m.Locate(p.pid).Path)
		}
	}
	p.mapped, err = t.attach(p, paths)
	return err
}

// attach sets probes on files and returns their images. The programs are configured before any probe is set. The rarely hit probe is set
// last: while the target loads a model, setting a probe waits for the lock of its memory map.
func (t *Tracer) attach(p *target, paths []string) ([]*ggml.Image, error) {
	var images []*ggml.Image
	for _, path := range paths {
		im, err := t.scan(path)
		if err != nil {
			return nil, err
		}
		if im != nil && !slices.Contains(images, im) {
			images = append(images, im)
		}
	}
	if err := t.configure(p, images); err != nil {
		return nil, err
	}
	for _, seldom := range []bool{false, true} {
		for _, im := range images {
			if err := t.attachImage(im, seldom); err != nil {
				return nil, err
			}
		}
	}
	return images, nil
}

// configure tells the programs to watch a process, and how its ggml numbers the ops and lays out its structs.
func (t *Tracer) configure(p *target, found []*ggml.Image) error {
	changed, err := p.learnImages(found)
	if err != nil || !changed {
		return err
	}
	config := traceTargetConfig{Layout: p.config, Follow: flag(t.opts.Follow)}
	if err := t.objs.Targets.Put(uint32(p.pid), config); err != nil {
		return fmt.Errorf("configure the probes: %w", err)
	}
	t.configurations++ // threads copy the configuration again when this changes
	if err := t.objs.Configurations.Set(t.configurations); err != nil {
		return fmt.Errorf("configure the probes: %w", err)
	}
	t.opts.Log.Debug("watching", "pid", p.pid, "ops", len(p.ops), "layout", p.layout)
	return nil
}

// TellInputs says whether inputs that Options.Inputs asks for are wanted, from the next decode on. At first they are. While they are not, decodes of one token count nevertheless.
func (t *Tracer) TellInputs(wanted bool) error {
	if err := t.objs.InputsOff.Set(flag(!wanted)); err != nil {
		return fmt.Errorf("configure the probes: %w", err)
	}
	return nil
}

// Ready reports whether ops of the target would be seen now: it returns nil, ErrNoGGML or ErrOldGGML.
func (t *Tracer) Ready() error { return t.ready(t.main) }

func (t *Tracer) ready(p *target) error {
	switch {
	case p.configured && p.has(ggml.RoleOp), p.configured && p.has(ggml.RoleGraph) && t.opts.Detail == DetailGraph:
		return nil
	case p.has(ggml.RoleGraph) && !p.has(ggml.RoleOp):
		return event.ErrOldGGML
	}
	return event.ErrNoGGML
}

// Attached lists the files that carry probes.
func (t *Tracer) Attached() []string { return t.attached }

// Describe returns what is known about the ggml of a traced process.
func (t *Tracer) Describe(pid int) event.TargetInfo {
	info := event.TargetInfo{}
	p := t.targets[uint32(pid)]
	if p == nil {
		return info
	}
	for _, im := range p.images() {
		info.GGMLVersion = cmp.Or(info.GGMLVersion, im.GGMLVersion)
		info.GGMLCommit = cmp.Or(info.GGMLCommit, im.GGMLCommit)
	}
	if p.layout != nil {
		info.LayoutOrigin = p.layout.Origin
	}
	return info
}

// maxImages bounds the files with probes. A llama.cpp has about ten: one for each kind of processor.
const maxImages = 256

// scan returns the image of a file; each file is read once. The image is nil if the path does not lead to a file (any more, or in this mount
// namespace).
func (t *Tracer) scan(path string) (*ggml.Image, error) {
	if key, err := proc.FileOf(path); err == nil && t.images[key] != nil {
		return t.images[key], nil // no need to open it
	}
	s, ahead := t.scanned[path]
	delete(t.scanned, path)
	if !ahead {
		s = scanFile(path)
	}
	if s.image == nil {
		return nil, s.err
	}
	t.images[s.id] = s.image
	if len(s.image.Sites) == 0 || len(t.files) >= maxImages {
		return s.image, s.file.Close()
	}
	t.files[s.image] = s.file
	return s.image, nil
}

// scanned is a file that was scanned.
type scanned struct {
	image *ggml.Image // nil if there is none, or err
	id    proc.FileID
	file  *os.File // nil if image is
	err   error
}

func scanFile(path string) scanned {
	f, err := regular.Open(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, regular.ErrNotRegular) {
		return scanned{} // deleted, in another mount namespace, or something that is only named like a library
	}
	if err != nil {
		return scanned{err: fmt.Errorf("look for ggml: %w", err)}
	}
	info, err := f.Stat()
	if err != nil {
		return scanned{err: errors.Join(fmt.Errorf("look for ggml: %w", err), f.Close())}
	}
	im, err := ggml.ScanFile(f)
	if err != nil {
		return scanned{err: errors.Join(err, f.Close())}
	}
	return scanned{image: im, id: proc.IDOf(info), file: f}
}

// closeScanned forgets what was scanned ahead in vain.
func (t *Tracer) closeScanned() error {
	var errs []error
	for _, s := range t.scanned {
		if s.file != nil {
			errs = append(errs, s.file.Close())
		}
	}
	t.scanned = nil
	return errors.Join(errs...)
}

// attachImage sets probes on the rarely hit functions of a file, or on all others, unless that was done before.
func (t *Tracer) attachImage(im *ggml.Image, seldom bool) error {
	sites := slices.DeleteFunc(slices.Clone(im.Sites), func(s ggml.Site) bool {
		// Without the plain ops, fused ops alone would make an incomplete sequence.
		return (s.Role == ggml.RoleBufferFree) != seldom || s.Role == ggml.RoleFused && !im.Has(ggml.RoleOp)
	})
	done := attachment{im, seldom}
	if len(sites) == 0 || t.done[done] {
		return nil
	}
	t.done[done] = true
	file := t.files[im]
	if file == nil {
		return fmt.Errorf("the target has more than %d libraries with ggml's functions: no probe on %s", maxImages, im.Path)
	}
	ex, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return fmt.Errorf("open %s: %w", im.Path, err)
	}
	for _, s := range sites {
		if err := t.attachSite(ex, s); err != nil {
			return fmt.Errorf("attach to %s in %s: %w", s.Symbol, im.Path, err)
		}
		t.opts.Log.Debug("attached", "symbol", s.Symbol, "file", im.Path, "offset", s.Probe-s.Entry)
	}
	if !slices.Contains(t.attached, im.Path) {
		t.attached = append(t.attached, im.Path)
	}
	return nil
}

// attachment identifies a group of a file's probes: the rarely hit ones, or the others.
type attachment struct {
	im     *ggml.Image
	seldom bool
}

func (t *Tracer) attachSite(ex *link.Executable, s ggml.Site) error {
	type probe struct {
		prog   *ebpf.Program
		at     uint64
		ret    bool
		cookie uint64
	}
	var probes []probe
	perOp := t.opts.Detail != DetailGraph
	switch s.Role {
	case ggml.RoleOp:
		if perOp {
			probes = []probe{{prog: t.objs.Op, at: s.Probe}}
		}
	case ggml.RoleFused:
		if perOp {
			probes = []probe{{prog: t.objs.FusedOp, at: s.Probe}}
		}
	case ggml.RoleGraph:
		probes = []probe{{prog: t.objs.GraphBegin, at: s.Probe}, {prog: t.objs.GraphEnd, at: s.Entry, ret: true}}
	case ggml.RoleDecode, ggml.RoleEncode:
		probes = []probe{{prog: t.objs.DecodeBegin, at: s.Probe, cookie: s.Pushed}, {prog: t.objs.DecodeEnd, at: s.Entry, ret: true}}
	case ggml.RoleWarmup:
		probes = []probe{{prog: t.objs.SetWarmup, at: s.Probe}}
	case ggml.RoleBufferFree:
		probes = []probe{{prog: t.objs.BufferFree, at: s.Probe}}
	}
	// With a pid of 0 the probe fires in all processes that run the file. The programs ignore those that are no targets, but these pay for
	// each hit.
	pid := t.opts.PID
	if t.wide {
		pid = 0
	}
	for _, p := range probes {
		var l link.Link
		var err error
		if t.multi {
			opts := &link.UprobeMultiOptions{Addresses: []uint64{p.at}, Cookies: []uint64{p.cookie}, PID: uint32(pid)}
			if p.ret {
				l, err = ex.UretprobeMulti(nil, p.prog, opts)
			} else {
				l, err = ex.UprobeMulti(nil, p.prog, opts)
			}
		} else {
			opts := &link.UprobeOptions{Address: p.at, Cookie: p.cookie, PID: pid}
			if p.ret {
				l, err = ex.Uretprobe(s.Symbol, p.prog, opts)
			} else {
				l, err = ex.Uprobe(s.Symbol, p.prog, opts)
			}
		}
		switch {
		case isRefusal(err):
			return refused(err)
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH):
			return fmt.Errorf("process %d: %w", t.opts.PID, proc.ErrNoProcess)
		case err != nil:
			return err
		}
		t.links = append(t.links, l)
	}
	return nil
}

// minPoll is the shortest wait for which epoll is used: it waits whole milliseconds, rounded down, so shorter waits would spin.
const minPoll = 10 * time.Millisecond

const defaultInterval = time.Second

// recordHeader is what the ring buffer adds to each event, in bytes.
const recordHeader = 8

// eventsPerLook is how many events are handled between two looks at the clock.
const eventsPerLook = 64

// Run passes events to handle until ctx is done; then it passes on what the ring buffer holds at that time and returns nil. The next Op overwrites
// the one that *Op points to. If handle or Tick returns an error, Run returns it at once. Call it once.
func (t *Tracer) Run(ctx context.Context, handle func(event.Event) error) error {
	defer close(t.ran)
	stop := context.AfterFunc(ctx, func() { t.reader.Flush() })
	defer stop()
	var rec ringbuf.Record
	behind := false // events were left in the ring buffer: a handler that is slower than the events come must not keep Tick from being called
	left := -1      // when ctx is done: bytes of events that came before; a target that goes on sends more and more
	for {
		look, err := t.lookForLibraries()
		if err != nil {
			return err
		}
		var nap time.Time // until when this loop rests, save for events that wake it
		switch wait := min(t.opts.Pause(), max(time.Until(look), lookInterval)); {
		case behind:
			t.reader.SetDeadline(time.Now())
		case wait >= cmp.Or(t.opts.naps, minPoll):
			t.reader.SetDeadline(time.Now().Add(wait))
		default:
			nap = time.Now().Add(wait)
			if err := t.rest(wait); err != nil {
				return err
			}
			t.reader.SetDeadline(time.Now())
		}
		behind = false
		var begun time.Time // when the first event was read
		for n := 0; ; n++ {
			if n%eventsPerLook == 1 {
				if left < 0 && ctx.Err() != nil {
					left = t.reader.AvailableBytes()
				}
				if begun.IsZero() {
					begun = time.Now()
				} else if time.Since(begun) >= t.opts.Interval {
					behind = true
					break
				}
			}
			err := t.reader.ReadInto(&rec)
			if left := time.Until(nap); errors.Is(err, os.ErrDeadlineExceeded) && left > 0 && t.opts.AtOnce {
				if err := t.rest(left); err != nil {
					return err
				}
				t.reader.SetDeadline(time.Now())
				begun = time.Time{}
				continue
			}
			if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed) {
				break
			}
			if errors.Is(err, os.ErrClosed) {
				return t.finish(handle)
			}
			if err != nil {
				return fmt.Errorf("read the ring buffer: %w", err)
			}
			if err := t.dispatch(rec.RawSample, handle); err != nil {
				return err
			}
			if left >= 0 {
				if left -= len(rec.RawSample) + recordHeader; left <= 0 {
					return t.finish(handle)
				}
			}
		}
		if ctx.Err() != nil && !behind {
			return t.finish(handle)
		}
		if err := t.serveExecs(); err != nil {
			return err
		}
		if err := t.reap(handle); err != nil {
			return err
		}
		if err := t.opts.Tick(); err != nil {
			return err
		}
	}
}

// rest waits for a time of below a millisecond or some, or with AtOnce until the programs wake the reader or have left something in the ring buffer.
func (t *Tracer) rest(d time.Duration) error {
	if !t.opts.AtOnce {
		nanosleep(d)
		return nil
	}
	ring := []unix.PollFd{{Fd: int32(t.objs.Events.FD()), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(max(d, 0)))
	// A raw call: of any other one that takes more than 20 us Go's monitor thread takes the processor (P) away, and is woken to look again each 20 us when it is over. With a thousand calls in a second that took a tenth of
	// this process's time, beside a target whose threads spin. A collection of garbage waits for this one instead, which a signal ends.
	if _, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(ring))), uintptr(len(ring)), uintptr(unsafe.Pointer(&ts)), 0, 0, 0); errno != 0 && errno != unix.EINTR {
		return fmt.Errorf("wait for the ring buffer: %w", errno)
	}
	return nil
}

// nanosleep sleeps in the kernel. time.Sleep parks the goroutine, and another thread has to wake this one: where the target's threads spin on all processors that thread may wait for a
// time slice, whatever the priority of the one that Run is locked to. A signal ends it early, which does no harm.
func nanosleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(max(d, 0)))
	_ = unix.Nanosleep(&ts, nil)
}

// Execed sets probes for the program that a process, stopped after its execve, is about to run. It returns true if ggml was found, or if
// Run has ended. It may be called by any goroutine while Run runs.
func (t *Tracer) Execed(pid int) (found bool) {
	request := execRequest{pid, make(chan bool, 1)}
	select {
	case t.execs <- request:
	case <-t.ran:
		return true
	}
	t.reader.Flush() // wakes Run; the error means that Run has ended
	select {
	case found := <-request.found:
		return found
	case <-t.ran:
		return true
	}
}

func (t *Tracer) serveExecs() error {
	for {
		select {
		case r := <-t.execs:
			p := t.targets[uint32(r.pid)]
			if p == nil {
				r.found <- false // the event of its fork was lost
				continue
			}
			if err := t.execed(p); err != nil {
				return err
			}
			r.found <- t.ready(p) == nil
		default:
			return nil
		}
	}
}

// finish passes on what the programs still hold.
func (t *Tracer) finish(handle func(event.Event) error) error {
	if err := t.system.drain(func(e *systemPagesEvent) error { return t.pageIn(e, handle) }); err != nil {
		return err
	}
	for _, p := range t.targets {
		if err := p.derived.End(handle); err != nil {
			return err
		}
	}
	return nil
}

// reap removes processes that the target had started and that have ended.
func (t *Tracer) reap(handle func(event.Event) error) error {
	for tgid, p := range t.targets {
		if p == t.main {
			continue
		}
		if ended, err := p.process.Ended(); err != nil {
			return err
		} else if !ended {
			continue
		}
		if err := p.derived.End(handle); err != nil {
			return err
		}
		if p.announced {
			var now unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
				return fmt.Errorf("read the monotonic clock: %w", err)
			}
			if err := handle(event.ProcessEnd{Time: now.Nano(), PID: int32(p.pid)}); err != nil {
				return err
			}
		}
		t.known.forget(p)
		delete(t.targets, tgid)
		if err := t.objs.Targets.Delete(tgid); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget process %d: %w", p.pid, err)
		}
		if err := p.process.Close(); err != nil {
			return err
		}
	}
	return nil
}

// countMisses sums up the hits for which the kernel did not run the programs.
func (t *Tracer) countMisses() {
	sum := uint64(0)
	for _, p := range []*ebpf.Program{t.objs.Op, t.objs.FusedOp, t.objs.GraphBegin, t.objs.GraphEnd, t.objs.DecodeBegin, t.objs.DecodeEnd} {
		if stats, err := p.Stats(); err == nil {
			sum += stats.RecursionMisses
		}
	}
	t.misses.Store(sum)
}

// Counters reads the programs' counters. The sums are exact once the target has stopped. It may be called concurrently with Run.
func (t *Tracer) Counters() (event.Counters, error) {
	t.countMisses()
	sum := traceCounts{}.Of
	// Read the per-thread counts first: a thread that concurrently flushes its counts into the counters may be counted twice, but never
	// omitted.
	pending := func(th *traceThread) {
		sum[traceCounterCOUNT_HITS] += uint64(th.Hits)
		sum[traceCounterCOUNT_NO_WEIGHT] += uint64(th.NoWeight)
		sum[traceCounterCOUNT_BEGUN] += uint64(th.Begun)
	}
	var th traceThread
	for i := range t.objs.Slots.MaxEntries() {
		if err := t.objs.Slots.Lookup(i, &th); err != nil {
			return event.Counters{}, fmt.Errorf("read the counters of a thread: %w", err)
		}
		pending(&th)
	}
	var id uint64
	threads := t.objs.Threads.Iterate()
	for threads.Next(&id, &th) {
		pending(&th)
	}
	if err := threads.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return event.Counters{}, fmt.Errorf("read the counters of a thread: %w", err)
	}
	var perCPU []traceCounts
	if err := t.objs.Counters.Lookup(uint32(0), &perCPU); err != nil {
		return event.Counters{}, fmt.Errorf("read the counters: %w", err)
	}
	for _, counts := range perCPU {
		for i := range sum {
			sum[i] += counts.Of[i]
		}
	}
	return event.Counters{
		Hits: sum[traceCounterCOUNT_HITS], OtherThreads: sum[traceCounterCOUNT_OTHER_THREADS], NoWeight: sum[traceCounterCOUNT_NO_WEIGHT], OpsSent: sum[traceCounterCOUNT_SENT], OpsLost: sum[traceCounterCOUNT_LOST],
		Unfinished: sum[traceCounterCOUNT_BEGUN] - sum[traceCounterCOUNT_SENT] - sum[traceCounterCOUNT_LOST], Received: t.received.Load(), OthersLost: sum[traceCounterCOUNT_OTHERS_LOST],
		Faults: sum[traceCounterCOUNT_FAULTS], Unresolved: t.unresolved.Load(), Clipped: sum[traceCounterCOUNT_CLIPPED] + t.incomplete.Load(), Misses: t.misses.Load(),
		PagesSent: sum[traceCounterCOUNT_PAGES_SENT], PagesLost: sum[traceCounterCOUNT_PAGES_LOST],
		InputsSent: sum[traceCounterCOUNT_INPUTS_SENT], InputsLost: sum[traceCounterCOUNT_INPUTS_LOST],
	}, nil
}
