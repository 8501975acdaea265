package room

// This file tests how much room there is, and that changes of it are noticed.

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
	"tensorcast/internal/testenv"
)

// hogVariable makes the test's program a process that reads numbers, one a line, takes as many bytes of
// memory for each, and keeps them.
const hogVariable = "TENSORCAST_TEST_HOG"

func TestMain(m *testing.M) {
	if os.Getenv(hogVariable) == "" {
		os.Exit(m.Run())
	}
	var kept [][]byte
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		n, err := strconv.Atoi(in.Text())
		if err != nil {
			os.Exit(1)
		}
		data := make([]byte, n)
		for i := 0; i < n; i += os.Getpagesize() {
			data[i] = 1
		}
		kept = append(kept, data)
		fmt.Println(len(kept))
	}
}

// The room is what the formulas at the head of budget.go say.
func TestRoomOfLevels(t *testing.T) {
	const mib = 1 << 20
	plenty := cgroup.HostMemory{Total: 64 << 30, Available: 60 << 30}
	oneLevel := func(limit, usage, levelCache, groupCache int64) bounds {
		level := cgroup.Level{Name: "/a", Limit: limit, Usage: usage, Cache: levelCache}
		return bounds{host: plenty, levels: []cgroup.Level{level}, groupCache: groupCache}
	}
	onlyHost := func(available, activeFile, inactiveFile, groupActive int64) bounds {
		return bounds{host: cgroup.HostMemory{
			Total: 10000 * mib, Available: available, ActiveFile: activeFile, InactiveFile: inactiveFile,
		}, groupActive: groupActive, floor: 600 * mib}
	}
	for name, test := range map[string]struct {
		bounds bounds
		model  InMemory
		want   Room
	}{
		"one level, the model is charged to it": {
			oneLevel(1000*mib, 900*mib, 700*mib, 700*mib), InMemory{Bytes: 700 * mib},
			Room{800 * mib, 1000 * mib, "/a", 550 * mib, 0, false, 0}},
		"other files of the own group give way": {
			oneLevel(1000*mib, 900*mib, 700*mib, 700*mib), InMemory{Bytes: 100 * mib},
			Room{800 * mib, 1000 * mib, "/a", 550 * mib, 0, false, 0}},
		"what is resident is charged elsewhere, and nobody knows": {
			oneLevel(1000*mib, 900*mib, 50*mib, 50*mib), InMemory{Bytes: 700 * mib},
			Room{150 * mib, 1000 * mib, "/a", 0, 0, false, 0}},
		"what is charged elsewhere takes no room of the group": {
			oneLevel(1000*mib, 900*mib, 700*mib, 700*mib), InMemory{Bytes: 600 * mib, Borrowed: 500 * mib},
			Room{800 * mib, 1000 * mib, "/a", 550 * mib, 0, false, 0}},
		"what is charged elsewhere takes room of the host": {
			onlyHost(8000*mib, 3500*mib, 500*mib, 0), InMemory{Bytes: 800 * mib, Borrowed: 3000 * mib},
			Room{4200 * mib, 10000 * mib, "host", 3800 * mib, 0, false, 0}},
		"a neighbour's heap below an ancestor is no page cache": {
			bounds{host: plenty, levels: []cgroup.Level{
				{Name: "/a/b", Limit: 1000 * mib, Usage: 300 * mib, Cache: 200 * mib},
				{Name: "/a", Limit: 1200 * mib, Usage: 1150 * mib, Cache: 210 * mib},
			}, groupCache: 200 * mib}, InMemory{Bytes: 600 * mib},
			Room{260 * mib, 1200 * mib, "/a", 0, 0, false, 0}},
		"a neighbour's page cache below an ancestor is left to it": {
			oneLevel(1200*mib, 1150*mib, 900*mib, 200*mib), InMemory{Bytes: 100 * mib},
			Room{250 * mib, 1200 * mib, "/a", 0, 0, false, 0}},
		"above a limit that was lowered": {
			oneLevel(100*mib, 300*mib, 150*mib, 150*mib), InMemory{Bytes: 150 * mib},
			Room{-50 * mib, 100 * mib, "/a", 0, 0, false, 0}},
		"what may be locked is bounded by another level": {
			bounds{host: plenty, levels: []cgroup.Level{
				{Name: "/a/b", Limit: 1000 * mib},
				{Name: "/a", Limit: 2000 * mib, Usage: 900 * mib},
			}}, InMemory{},
			Room{1000 * mib, 1000 * mib, "/a/b", 600 * mib, 0, false, 0}},
		"a reserve of one's own": {
			bounds{host: plenty, reserve: 400 * mib, levels: []cgroup.Level{{Name: "/a/b", Limit: 1000 * mib}}},
			InMemory{},
			Room{1000 * mib, 1000 * mib, "/a/b", 600 * mib, 0, false, 0}},
		"memory.high below memory.max": {
			bounds{host: plenty, levels: []cgroup.Level{
				{Name: "/a memory.max", Limit: 1000 * mib, Usage: 700 * mib, Cache: 600 * mib},
				{Name: "/a memory.high", Limit: 800 * mib, Usage: 700 * mib, Cache: 600 * mib, Delays: true},
			}, groupCache: 600 * mib}, InMemory{Bytes: 600 * mib},
			Room{700 * mib, 800 * mib, "/a memory.high", 500 * mib, 0, true, 0}},
		"memory.high above memory.max": {
			bounds{host: plenty, levels: []cgroup.Level{
				{Name: "/a memory.max", Limit: 1000 * mib, Usage: 700 * mib, Cache: 600 * mib},
				{Name: "/a memory.high", Limit: 1200 * mib, Usage: 700 * mib, Cache: 600 * mib, Delays: true},
			}, groupCache: 600 * mib}, InMemory{Bytes: 600 * mib},
			Room{900 * mib, 1000 * mib, "/a memory.max", 650 * mib, 0, false, 0}},
		"the host": {
			onlyHost(8000*mib, 1000*mib, 3000*mib, 0), InMemory{},
			Room{6400 * mib, 10000 * mib, "host", 6000 * mib, 0, false, 0}},
		"the model is the active page cache": {
			onlyHost(8000*mib, 3500*mib, 500*mib, 0), InMemory{Bytes: 3800 * mib},
			Room{7200 * mib, 10000 * mib, "host", 6800 * mib, 0, false, 0}},
		"the target's group has some of what is active": {
			onlyHost(8000*mib, 3500*mib, 5000*mib, 3000*mib), InMemory{Bytes: 3000 * mib},
			Room{6900 * mib, 10000 * mib, "host", 6500 * mib, 0, false, 0}},
		"locked pages are neither available nor active": {
			onlyHost(5000*mib, 500*mib, 500*mib, 0), InMemory{Bytes: 3000 * mib, Locked: 3000 * mib},
			Room{6900 * mib, 10000 * mib, "host", 6500 * mib, 0, false, 0}},
		"no more may be locked than has room where the floor is more than the reserve": {
			bounds{host: cgroup.HostMemory{Total: 10000 * mib, Available: 8000 * mib}, floor: 2500 * mib}, InMemory{},
			Room{5500 * mib, 10000 * mib, "host", 5500 * mib, 0, false, 0}},
	} {
		if got := test.bounds.room(test.model); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// The floor rises while others are short of memory, and falls after that.
func TestFloor(t *testing.T) {
	const gib = 1 << 30
	f := floor{total: 16 * gib}
	now := time.Unix(1000, 0)
	update := func(after time.Duration, short bool, want int64) {
		t.Helper()
		now = now.Add(after)
		if f.update(now, short); f.bytes() != want {
			t.Errorf("the floor is %d MiB, want %d", f.bytes()>>20, want>>20)
		}
	}
	update(0, false, gib)
	update(time.Second, true, gib*5/4)
	update(time.Second/2, true, gib*5/4) // one step a second
	update(time.Second/2, true, gib*6/4)
	for range 20 {
		now = now.Add(time.Second)
		f.update(now, true)
	}
	update(time.Second, true, 4*gib) // no more than a quarter
	update(time.Second, false, 4*gib)
	update(9*time.Second, false, gib*15/4)
	for range 12 {
		now = now.Add(fallTime)
		f.update(now, false)
	}
	update(fallTime, false, gib)
	if f = (floor{total: 256 * gib}); f.bytes() != maxLeave {
		t.Errorf("on a large machine the floor is %d, want %d", f.bytes(), maxLeave)
	}
}

// Reclaim is no shortage if nobody waits. Waiting is none without reclaim, because a group is at its limit
// then. What the target itself waits for is none either.
func TestShortage(t *testing.T) {
	type look struct {
		after         time.Duration
		swap, scanned int64
		fired         bool
		stalled       time.Duration // how long others have waited, in all
		why           string
		others        bool
	}
	nothing := look{}
	for name, looks := range map[string][]look{
		"swap-ins with reclaim": {
			{0, 5 << 30, 5 << 30, false, 0, "", false},
			{200 * time.Millisecond, 5<<30 + 2<<20, 5<<30 + 1, false, 0, shortSwap, true},
		},
		"swap-ins into free memory": {
			nothing,
			{200 * time.Millisecond, 9 << 20, 0, false, 0, "", false},
		},
		"few swap-ins": {
			nothing,
			{200 * time.Millisecond, 9 << 10, 9 << 20, false, 0, "", false},
		},
		"reclaim alone": {
			nothing,
			{200 * time.Millisecond, 0, 9 << 20, false, 0, "", false},
			{5 * time.Second, 0, 99 << 20, false, 0, "", false},
		},
		"others wait": {
			{0, 0, 0, false, time.Hour, "", false},
			{5 * time.Second, 0, 9 << 20, false, time.Hour + time.Second, shortHost, true},
		},
		"others wait without reclaim": {
			nothing,
			{5 * time.Second, 0, 0, false, time.Second, "", false},
		},
		"others wait a little": {
			nothing,
			{5 * time.Second, 0, 9 << 20, false, time.Second / 10, "", false},
		},
		"a trigger": {
			nothing,
			{200 * time.Millisecond, 0, 9 << 20, true, 0, shortHost, false},
		},
		"a trigger, a group's own limit": {
			nothing,
			{200 * time.Millisecond, 0, 0, true, 0, "", false},
		},
	} {
		var s shortage
		now := time.Unix(1000, 0)
		for i, l := range looks {
			now = now.Add(l.after)
			stalls := func() (time.Duration, bool) { return l.stalled, true }
			why, others := s.update(now, cgroup.Paging{SwapIns: l.swap, Scanned: l.scanned}, l.fired, stalls)
			if why != l.why || others != l.others {
				t.Errorf("%s, look %d: %q, %v; want %q, %v", name, i, why, others, l.why, l.others)
			}
		}
	}
}

// fakeHost is a host whose state a test sets, and finds a target's group that the test sets.
type fakeHost struct {
	memory   cgroup.HostMemory
	paging   cgroup.Paging
	pressure cgroup.Pressure
	group    *cgroup.Group
	err      error // of Find
	moved    bool
	time     time.Time
}

func (p *fakeHost) Moved() (bool, error)         { m := p.moved; p.moved = false; return m, nil }
func (p *fakeHost) Find() (*cgroup.Group, error) { return p.group, p.err }
func (p *fakeHost) Close() error                 { return nil }

func (p *fakeHost) start(opts MemoryOptions) (*ProcessMemory, error) {
	p.time = time.Unix(1000, 0)
	return newProcessMemory(p, hostSources{
		func() (cgroup.HostMemory, error) { return p.memory, nil },
		func() (cgroup.Paging, error) { return p.paging, nil },
		func() (cgroup.Pressure, error) { return p.pressure, nil },
	}, func() time.Time { return p.time }, opts)
}

// A shortage of the host is noticed within the interval. The room shrinks while others swap, and grows again.
func TestHostIsShort(t *testing.T) {
	const gib = 1 << 30
	memory := cgroup.HostMemory{Total: 16 * gib, Available: 12 * gib}
	p := &fakeHost{memory: memory, err: cgroup.ErrNoController, moved: true}
	m, err := p.start(MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	room := func(want int64) {
		t.Helper()
		if r, err := m.Room(InMemory{}); err != nil || r.Bytes != want || r.Level != "host" {
			t.Errorf("Room = %+v, %v; want %d MiB of the host", r, err, want>>20)
		}
	}
	changed := func(after time.Duration, want Change) {
		t.Helper()
		p.time = p.time.Add(after)
		if c := m.PollChange(); c != want {
			t.Errorf("PollChange = %+v, want %+v", c, want)
		}
	}
	room(11 * gib)
	changed(time.Second, Change{})
	p.memory.Available -= 8 << 20
	changed(hostInterval, Change{})
	p.memory.Available -= 56 << 20
	changed(hostInterval, Change{RoomChanged: true})
	changed(hostInterval, Change{})
	room(11*gib - 64<<20)
	p.memory.Available += 64 << 20
	changed(hostInterval, Change{RoomChanged: true})
	for i := range 3 {
		p.paging.SwapIns += 4 << 20
		p.paging.Scanned += 4 << 20
		changed(time.Second, Change{RoomChanged: true, ShortReason: shortSwap})
		room(11*gib - int64(i+1)*gib/4)
	}
	changed(time.Second, Change{})
	room(11*gib - 3*gib/4)
	changed(fallTime, Change{})
	room(11*gib - 2*gib/4)

	// A given floor stays.
	m.opts.Leave = 3 * gib
	room(9 * gib)
}

// Nothing is known of the limits of a hidden group. So there is no room, unless the caller has a bound of its
// own.
func TestHiddenGroup(t *testing.T) {
	memory := cgroup.HostMemory{Total: 16 << 30, Available: 12 << 30}
	var said strings.Builder
	log := slog.New(slog.NewTextHandler(&said, nil))
	p := &fakeHost{memory: memory, err: cgroup.ErrHidden, moved: true}
	if _, err := p.start(MemoryOptions{Log: log}); !errors.Is(err, cgroup.ErrHidden) || said.Len() > 0 {
		t.Errorf("hidden from the beginning: %v, want %v; it logged: %s", err, cgroup.ErrHidden, said.String())
	}
	p = &fakeHost{memory: memory, err: cgroup.ErrHidden, moved: true}
	trusting, err := p.start(MemoryOptions{TrustHost: true})
	if err != nil {
		t.Fatal(err)
	}
	defer trusting.Close()
	if r, err := trusting.Room(InMemory{}); err != nil || r.Level != "host" || r.Bytes <= 0 {
		t.Errorf("trusting: Room = %+v, %v; want some of the host", r, err)
	}

	p = &fakeHost{memory: memory, err: cgroup.ErrNoController, moved: true}
	m, err := p.start(MemoryOptions{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, err := range []error{cgroup.ErrHidden, fs.ErrPermission} {
		p.err, p.moved = err, true
		p.time = p.time.Add(followInterval)
		if err == cgroup.ErrHidden && !m.PollChange().RoomChanged {
			t.Error("the move is not reported")
		}
		if r, err := m.Room(InMemory{Bytes: 1 << 30}); err != nil || r != (Room{Level: LevelHidden}) {
			t.Errorf("hidden: Room = %+v, %v; want none", r, err)
		}
	}
	if n := strings.Count(said.String(), "its limits are not known"); n != 1 {
		t.Errorf("the limits are said to be unknown %d times, want 1:\n%s", n, said.String())
	}
	p.err, p.moved = cgroup.ErrNoController, true
	p.time = p.time.Add(followInterval)
	if !m.PollChange().RoomChanged {
		t.Error("the way back is not reported")
	}
	if r, err := m.Room(InMemory{}); err != nil || r.Level != "host" {
		t.Errorf("not hidden any more: Room = %+v, %v; want the host", r, err)
	}
}

// makeGroups makes control groups for a test: one, and two below it.
func makeGroups(t *testing.T) (top, a, b *cgroup.Group) {
	t.Helper()
	testenv.NeedRoot(t)
	root, err := cgroup.Root()
	if errors.Is(err, cgroup.ErrNoController) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	create := func(parent *cgroup.Group, name string) *cgroup.Group {
		g, err := cgroup.Create(parent, name)
		if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EBUSY) {
			t.Skipf("control groups cannot be made here: %v", err) // in a container
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
		})
		return g
	}
	top = create(root, fmt.Sprintf("tensorcast-test-%d-%s", os.Getpid(), t.Name()))
	return top, create(top, "a"), create(top, "b")
}

// hog is a process that takes memory when it is told to.
type hog struct {
	*exec.Cmd
	in  *os.File
	out *bufio.Reader
}

// newHog starts a hog in a group.
func newHog(t *testing.T, g *cgroup.Group) *hog {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), hogVariable+"=1")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); w.Close() })
	if err := g.Join(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	h := &hog{cmd, w, bufio.NewReader(out)}
	h.take(t, 1)
	if _, err := h.out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hog) take(t *testing.T, bytes int) {
	t.Helper()
	if _, err := fmt.Fprintln(h.in, bytes); err != nil {
		t.Fatal(err)
	}
}

// awaitChange asks as the control loop does, until something changed. It returns how long that took.
func awaitChange(t *testing.T, m *ProcessMemory, what string) (time.Duration, Change) {
	t.Helper()
	begun := time.Now()
	for {
		if c := m.PollChange(); c.RoomChanged {
			return time.Since(begun), c
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("waited a minute for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// settle waits until nothing has changed for a while, as it does when a process has just started.
func settle(m *ProcessMemory) {
	for since := time.Now(); time.Since(since) < 100*time.Millisecond; time.Sleep(time.Millisecond) {
		if m.PollChange().RoomChanged {
			since = time.Now()
		}
	}
}

func logLatencies(t *testing.T, what string, all []time.Duration) {
	slices.Sort(all)
	const unit = 10 * time.Microsecond
	t.Logf("%s: noticed after %v (median), %v (most) of %d",
		what, all[len(all)/2].Round(unit), all[len(all)-1].Round(unit), len(all))
}

// Limits of the group and its ancestor are noticed, and bound the room. So is usage.
func TestNoticing(t *testing.T) {
	top, a, _ := makeGroups(t)
	h := newHog(t, a)
	m, err := NewProcessMemory(h.Process.Pid, MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	settle(m)
	for i, g := range []*cgroup.Group{a, top} {
		var all []time.Duration
		for j := range int64(10) {
			// That is less than a small machine has. Otherwise the machine would bound the room.
			limit := int64(2-i)*400<<20 - j*10<<20
			if err := g.SetLimit(limit); err != nil {
				t.Fatal(err)
			}
			took, c := awaitChange(t, m, "a limit")
			all = append(all, took)
			if c.ShortReason != "" {
				t.Errorf("a limit that is far away: short of memory because of %q, want no shortage", c.ShortReason)
			}
			r, err := m.Room(InMemory{})
			inBounds := r.Bytes <= limit && r.Bytes >= limit/2
			if err != nil || r.Limit != limit || !strings.HasPrefix(r.Level, g.Name()+" ") || !inBounds {
				t.Errorf("Room = %+v, %v; want up to %d bytes, bounded by %s", r, err, limit, g.Name())
			}
			if r.Lockable != r.Bytes-limit/4 {
				t.Errorf("%d of %d bytes may be locked under a limit of %d, want %d",
					r.Lockable, r.Bytes, limit, r.Bytes-limit/4)
			}
		}
		logLatencies(t, "limit of "+g.Name(), all)
	}
	for _, g := range []*cgroup.Group{a, top} { // with the race detector a process takes some times as much
		if err := g.SetLimit(1 << 30); err != nil {
			t.Fatal(err)
		}
	}
	settle(m)
	before, err := m.Room(InMemory{})
	if err != nil {
		t.Fatal(err)
	}
	var all []time.Duration
	for range 10 {
		h.take(t, 16<<20)
		took, _ := awaitChange(t, m, "usage")
		all = append(all, took)
		if _, err := h.out.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		settle(m)
	}
	logLatencies(t, "usage", all)
	if after, err := m.Room(InMemory{}); err != nil || after.Bytes > before.Bytes-160<<20 {
		t.Errorf("room %d, %v; want 160 MiB less than %d", after.Bytes, err, before.Bytes)
	}
}

// The page cache of the target's own group gives way. That of a neighbour does not.
func TestCacheOfLevels(t *testing.T) {
	top, a, b := makeGroups(t)
	const size = 64 << 20
	read := func(g *cgroup.Group) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "file")
		const script = `echo $$ > "$1" && head -c "$3" /dev/zero > "$2" && sync "$2"`
		cmd := exec.Command("sh", "-c", script, "sh", g.ProcsFiles()[0], file, strconv.Itoa(size))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	h := newHog(t, a)
	if err := errors.Join(a.SetLimit(1<<30), top.SetLimit(1<<30)); err != nil {
		t.Fatal(err)
	}
	m, err := NewProcessMemory(h.Process.Pid, MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	room := func(want int64) Room {
		t.Helper()
		r, err := m.Room(InMemory{})
		if err != nil || r.Bytes < want-size/4 || r.Bytes > want+size/4 {
			t.Errorf("Room = %+v, %v; want about %d", r, err, want)
		}
		return r
	}
	const most = 1<<30 - 8<<20 // the limit, less what the process has
	room(most)
	read(a)
	room(most)
	read(b)
	if r := room(most - size); !strings.HasPrefix(r.Level, top.Name()+" ") {
		t.Errorf("bounded by %s, want %s", r.Level, top.Name())
	}
}

// ownGroup is the group of this process.
func ownGroup(t *testing.T) *cgroup.Group {
	t.Helper()
	g, err := cgroup.Find(0)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// When a target is moved, that is noticed, and this process follows. Where it must not join, it goes home. A
// group that the target has left is empty.
func TestMoved(t *testing.T) {
	top, a, b := makeGroups(t)
	home := ownGroup(t)
	t.Cleanup(func() {
		if err := home.Join(os.Getpid()); err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t)
	})
	// systemd does not run, or has no such unit. So it does not say that the unit survives.
	service, err := cgroup.Create(top, "x.service")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := service.Remove(); err != nil {
			t.Error(err)
		}
	}()
	const inService = 768 << 20
	// The limits are less than a small machine has. Otherwise the machine would bound the room.
	for g, limit := range map[*cgroup.Group]int64{a: 512 << 20, b: 640 << 20, service: inService} {
		if err := g.SetLimit(limit); err != nil {
			t.Fatal(err)
		}
	}
	h := newHog(t, a)
	m, err := NewProcessMemory(h.Process.Pid, MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	if *ownGroup(t) != *home {
		t.Fatal("joined without being asked to")
	}
	m.Join(t.Context())
	if *ownGroup(t) != *a {
		t.Fatalf("after Join in %s, want %s", ownGroup(t).Name(), a.Name())
	}
	m.Leave()
	if *ownGroup(t) != *home {
		t.Fatalf("after Leave in %s, want %s", ownGroup(t).Name(), home.Name())
	}
	if err := h.move(b); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "the move to be noticed", func() bool { m.PollChange(); return *m.Group() == *b })
	if m.joining.await(); *ownGroup(t) != *home {
		t.Fatalf("after Leave and a move in %s, want %s", ownGroup(t).Name(), home.Name())
	}
	if err := h.move(a); err != nil {
		t.Fatal(err)
	}
	m.Join(t.Context())
	testenv.WaitFor(t, "this process to follow again", func() bool { m.PollChange(); return *ownGroup(t) == *a })
	var all []time.Duration
	for _, to := range []*cgroup.Group{b, a, b, a, service, a, service, b} {
		settle(m)
		if err := h.move(to); err != nil {
			t.Fatal(err)
		}
		took, _ := awaitChange(t, m, "the move")
		for *m.Group() != *to { // something else has changed
			again, _ := awaitChange(t, m, "the move")
			took += again
		}
		all = append(all, took)
		r, err := m.Room(InMemory{})
		if limit, _, limitErr := to.Limit(); err != nil || limitErr != nil || r.Limit != limit {
			t.Errorf("Room = %+v, %v; want the limit of %s", r, err, to.Name())
		}
		want := to
		if to == service {
			want = home
		}
		testenv.WaitFor(t, "this process to follow", func() bool { m.PollChange(); return *ownGroup(t) == *want })
	}
	logLatencies(t, "moves", all)
	if err := a.Remove(); err != nil { // nobody is left in it
		t.Error(err)
	}

	// Room finds the new group, too, where nobody calls PollChange.
	if err := h.move(service); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "Room to find the new group", func() bool {
		r, err := m.Room(InMemory{})
		return err == nil && r.Limit == inService
	})
	testenv.WaitFor(t, "this process to go home", func() bool { m.PollChange(); return *ownGroup(t) == *home })
	if err := h.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = h.Wait()
	if err := service.Remove(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, "the end", func() bool {
		_, err := m.Room(InMemory{})
		return errors.Is(err, proc.ErrNoProcess)
	})
	m.PollChange()
	if *ownGroup(t) != *home {
		t.Errorf("after the target's end in %s, want %s", ownGroup(t).Name(), home.Name())
	}
	if _, err := NewProcessMemory(h.Process.Pid, MemoryOptions{}); !errors.Is(err, proc.ErrNoProcess) {
		t.Errorf("a process that has ended: %v, want %v", err, proc.ErrNoProcess)
	}
}

// Close waits for a move that is under way. Afterwards this process is not moved any more.
func TestCloseWhileJoining(t *testing.T) {
	_, a, b := makeGroups(t)
	home := ownGroup(t)
	defer func() {
		if err := home.Join(os.Getpid()); err != nil {
			t.Error(err)
		}
	}()
	h := newHog(t, a)
	m, err := NewProcessMemory(h.Process.Pid, MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Join(t.Context())
	m.joining.request(b)
	m.joining.close()
	select {
	case <-m.joining.done:
	default:
		t.Error("a move is still under way after close")
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	m.joining.request(a)
	if m.joining.await(); *ownGroup(t) == *a {
		t.Error("this process was moved after Close")
	}
}

func (h *hog) move(to *cgroup.Group) error { return to.Join(h.Process.Pid) }

// A memory.high is noticed as soon as somebody writes it. Then it bounds the room, whatever memory.max is. What the
// target takes beyond it is noticed as well: the kernel counts that, and ends nobody.
func TestMemoryHigh(t *testing.T) {
	_, a, _ := makeGroups(t)
	if a.Version() == 1 {
		t.Skip("version 1 of control groups has no memory.high")
	}
	if err := a.SetLimit(512 << 20); err != nil { // it does not swap from now on
		t.Fatal(err)
	}
	h := newHog(t, a)
	m, err := NewProcessMemory(h.Process.Pid, MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	settle(m)
	const high = 64 << 20
	if err := os.WriteFile(filepath.Join(a.Dir(), "memory.high"), []byte(strconv.Itoa(high)), 0); err != nil {
		t.Fatal(err)
	}
	awaitChange(t, m, "memory.high")
	r, err := m.Room(InMemory{})
	if err != nil || r.Limit != high || !r.Delays || r.Level != a.Name()+" memory.high" || r.Bytes > high {
		t.Errorf("Room = %+v, %v; want up to %d bytes, bounded by memory.high of %s", r, err, high, a.Name())
	}
	if own, err := ForOwnMemory(h.Process.Pid); err != nil || own.Limit != high || !own.Delays {
		t.Errorf("ForOwnMemory = %+v, %v; want it to be bounded by memory.high", own, err)
	}
	h.take(t, 80<<20)
	short := Change{}
	testenv.WaitFor(t, "the kernel to count memory beyond memory.high", func() bool {
		short = m.PollChange()
		return short.ShortReason == "memory.events: high"
	})
	if !short.RoomChanged {
		t.Errorf("%+v: want the room to be asked for", short)
	}
	if r, err := m.Room(InMemory{}); err != nil || r.Bytes > 4<<20 { // the counters are not exact
		t.Errorf("Room = %+v, %v; want hardly any", r, err)
	}
	if n, err := a.OOMKills(); err != nil || n != 0 {
		t.Errorf("%d processes were ended, %v; want none", n, err)
	}
}

// A group that the target has left may be removed before anybody looks.
func TestRemovedBehind(t *testing.T) {
	_, a, b := makeGroups(t)
	if err := errors.Join(a.SetLimit(512<<20), b.SetLimit(640<<20)); err != nil {
		t.Fatal(err)
	}
	h := newHog(t, a)
	m, err := NewProcessMemory(h.Process.Pid, MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := h.move(b); err != nil {
		t.Fatal(err)
	}
	if err := a.Remove(); err != nil {
		t.Fatal(err)
	}
	if r, err := m.Room(InMemory{}); err != nil || r.Limit != 640<<20 {
		t.Errorf("Room = %+v, %v; want the limit of %s", r, err, b.Name())
	}
}

// However often the target is moved, no descriptor stays open.
func TestMemoryLeavesNoDescriptors(t *testing.T) {
	_, a, b := makeGroups(t)
	h := newHog(t, a)
	count := func() int {
		dirs, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(dirs)
	}
	follow := func() {
		m, err := NewProcessMemory(h.Process.Pid, MemoryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		used := 0
		for i := range 6 {
			if err := h.move([]*cgroup.Group{b, a}[i%2]); err != nil {
				t.Fatal(err)
			}
			if moved, err := m.followTarget(); !moved || err != nil {
				t.Errorf("followTarget = %v, %v; want true", moved, err)
			}
			m.stopping.Wait()
			if n := count(); used == 0 {
				used = n
			} else if n != used {
				t.Errorf("%d descriptors, want %d as after the first move", n, used)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	follow() // Go's runtime opens some once
	before := count()
	for range 3 {
		follow()
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors, want %d as before", after, before)
	}
}

func BenchmarkProcessMemory(b *testing.B) {
	m, err := NewProcessMemory(os.Getpid(), MemoryOptions{})
	if err != nil {
		b.Skip(err)
	}
	defer m.Close()
	b.Run("PollChange", func(b *testing.B) {
		for b.Loop() {
			m.PollChange()
		}
	})
	b.Run("ChangedEachMs", func(b *testing.B) { // with what is due in intervals, and cold caches
		var all []time.Duration
		for b.Loop() {
			begun := time.Now()
			m.PollChange()
			all = append(all, time.Since(begun))
			time.Sleep(time.Millisecond)
		}
		slices.Sort(all)
		for _, percent := range []int{50, 90, 99} {
			b.ReportMetric(float64(all[len(all)*percent/100].Nanoseconds()), fmt.Sprintf("ns-p%d", percent))
		}
	})
	b.Run("Room", func(b *testing.B) {
		for b.Loop() {
			if _, err := m.Room(InMemory{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A room is shared by size where all models do not have room at once.
func TestShareWith(t *testing.T) {
	for _, c := range []struct{ room, own, others, want, shared int64 }{
		{100, 40, 60, 100, 0}, {100, 50, 150, 25, 150}, {100, 0, 500, 100, 0}, {100, 80, 0, 100, 0},
		{-5, 10, 10, -5, 0}, {1 << 40, 1 << 62, 1 << 62, 1 << 39, 1 << 62},
	} {
		r := Room{Bytes: c.room, Level: "/a memory.max"}
		got := r.ShareWith(c.own, c.others)
		if got.Bytes != c.want || got.Others != c.shared {
			t.Errorf("%d for %d beside %d: %d beside %d, want %d beside %d", c.room, c.own, c.others, got.Bytes,
				got.Others, c.want, c.shared)
		}
		if strings.Contains(got.Bound(), "shared") != (c.shared > 0) || !strings.HasPrefix(got.Bound(), r.Level) {
			t.Errorf("the bound is %q", got.Bound())
		}
	}
}
