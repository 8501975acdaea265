package cgroup

// This file tests groups on trees of fixtures in testdata, which stand for the kernel's files.

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func fixture(t *testing.T, name string) system {
	t.Helper()
	return system{filepath.Join("testdata", name)}
}

func TestFind(t *testing.T) {
	for _, test := range []struct {
		tree    string
		pid     int
		version int
		name    string
		hidden  bool
		err     error
	}{
		{"v2", 100, 2, "/user.slice/llama.service", false, nil},
		{"v2", 101, 2, "/", false, nil},
		{"v2", 103, 0, "", false, ErrHidden},
		{"v2", 999, 0, "", false, fs.ErrNotExist},
		{"v2-container", 7, 2, "/", true, nil},
		{"v2-container", 8, 0, "", false, ErrHidden},
		{"v1", 100, 1, "/jobs/llama", false, nil},
		{"v1", 101, 1, "/", false, nil},
		{"v1-container", 7, 1, "/", true, nil},
		{"v1-container", 8, 0, "", false, ErrHidden}, // its name only begins like that of the visible group
		{"none", 7, 0, "", false, ErrNoController},
	} {
		g, err := fixture(t, test.tree).find(test.pid)
		if !errors.Is(err, test.err) {
			t.Errorf("%s %d: error %v, want %v", test.tree, test.pid, err, test.err)
		}
		if err != nil || test.err != nil {
			continue
		}
		if g.Version() != test.version || g.Name() != test.name || g.Hidden() != test.hidden {
			t.Errorf("%s %d: version %d, %s, hidden %v; want %d, %s, %v", test.tree, test.pid,
				g.Version(), g.Name(), g.Hidden(), test.version, test.name, test.hidden)
		}
	}
}

func TestLevels(t *testing.T) {
	for _, test := range []struct {
		tree string
		pid  int
		want []Level
	}{
		{"v2", 100, []Level{
			{"/user.slice/llama.service memory.max", 1073741824, 981467136, 733999104, false},
			{"/user.slice/llama.service memory.high", 1000000000, 981467136, 733999104, true},
			{"/user.slice memory.max", 2147483648, 2000000000, 1100000000, false},
		}},
		{"v2", 101, nil},
		{"v2", 102, nil},
		{"v2-container", 7, []Level{{"/ memory.max", 536870912, 436207616, 733999104, false}}},
		{"v1", 100, []Level{
			{"/jobs/llama memory.limit_in_bytes", 943718400, 800000000, 2611073024, false},
			{"/jobs/llama memory.memsw.limit_in_bytes", 943718400, 850000000, 2611073024, false},
			{"/jobs memory.limit_in_bytes", 1048576000, 900000000, 2790931456, false},
		}},
		{"v1", 101, nil},
		{"v1-container", 7, []Level{
			{"/ memory.limit_in_bytes", 4000000000, 700000000, 499000000, false},
			{"a hidden ancestor", 1000000000, 700000000, 499000000, false},
		}},
	} {
		g, err := fixture(t, test.tree).find(test.pid)
		if err != nil {
			t.Fatal(err)
		}
		got, err := g.Levels()
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s %d: %v (%v), want %v", test.tree, test.pid, got, err, test.want)
		}
	}
}

func TestGroupNumbers(t *testing.T) {
	type numbers struct {
		Limit, Usage, OOMKills, Read int64
		Stat                         Stat
		Pressure                     Pressure
	}
	for _, test := range []struct {
		tree         string
		major, minor uint32
		want         numbers
	}{
		{"v2", 8, 0, numbers{
			1073741824, 981467136, 1, 734003200,
			Stat{241172480, 734003200, 733986816, 4096, 20480, 234003200, 6291456},
			Pressure{2500 * time.Millisecond, 1750 * time.Millisecond, false},
		}},
		{"v1", 254, 0, numbers{
			943718400, 800000000, 3, 43982848,
			Stat{18100224, 2620141568, 16150528, 9068544, 13312000, 2312237056, 5242880},
			Pressure{3 * time.Millisecond, time.Millisecond, false},
		}},
	} {
		g, err := fixture(t, test.tree).find(100)
		if err != nil {
			t.Fatal(err)
		}
		var got numbers
		var errs [6]error
		var limited bool
		got.Limit, limited, errs[0] = g.Limit()
		got.Usage, errs[1] = g.Usage()
		got.OOMKills, errs[2] = g.OOMKills()
		got.Read, errs[3] = g.ReadBytes(test.major, test.minor)
		got.Stat, errs[4] = g.Stat()
		got.Pressure, errs[5] = g.Pressure()
		if err := errors.Join(errs[:]...); err != nil || !limited {
			t.Errorf("%s: limited %v, %v; want true", test.tree, limited, err)
		}
		if got != test.want {
			t.Errorf("%s:\n got %+v\nwant %+v", test.tree, got, test.want)
		}
		if n, err := g.ReadBytes(1, 1); n != 0 || err != nil {
			t.Errorf("%s: a disk that was not read: %d, %v; want 0", test.tree, n, err)
		}
	}
}

func TestNoLimit(t *testing.T) {
	for tree, pid := range map[string]int{"v2": 102, "v1": 101} {
		g, err := fixture(t, tree).find(pid)
		if err != nil {
			t.Fatal(err)
		}
		if limit, ok, err := g.Limit(); ok || err != nil {
			t.Errorf("%s: limit %d, %v, %v; want none", tree, limit, ok, err)
		}
	}
}

func TestPressureOfTheHost(t *testing.T) {
	g, err := fixture(t, "v2").find(101)
	if err != nil {
		t.Fatal(err)
	}
	got, err := g.Pressure()
	if want := (Pressure{91 * time.Second, 81 * time.Second, true}); got != want || err != nil {
		t.Errorf("Pressure() = %+v, %v; want %+v", got, err, want)
	}
}

func TestHost(t *testing.T) {
	got, err := fixture(t, "v2").host()
	if want := (HostMemory{16316412 << 10, 9876544 << 10, 2123456 << 10, 5123456 << 10}); got != want || err != nil {
		t.Errorf("host() = %+v, %v; want %+v", got, err, want)
	}
	if _, err := fixture(t, "none").host(); err == nil {
		t.Error("no error without meminfo")
	}
}

// Paging counts swapping in, and only that reclaim that happened because the machine was short of
// memory.
func TestPaging(t *testing.T) {
	page := int64(os.Getpagesize())
	got, err := fixture(t, "v2").paging()
	if want := (Paging{SwapIns: 1024 * page, Scanned: 730 * page}); got != want || err != nil {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	const linux44 = "pswpin 1\npgscan_kswapd_dma 1\npgscan_kswapd_normal 2\n" +
		"pgscan_direct_normal 4\npgscan_direct_throttle 8\n"
	got, err = parsePaging(linux44)
	if want := (Paging{SwapIns: page, Scanned: 7 * page}); got != want || err != nil {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := fixture(t, "none").paging(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without vmstat: error %v, want %v", err, fs.ErrNotExist)
	}
}

// A group that was removed must not look like one without a limit.
func TestGroupIsGone(t *testing.T) {
	s := copyFixture(t, "v2")
	g, err := s.find(100)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(g.Dir()); err != nil {
		t.Fatal(err)
	}
	if levels, err := g.Levels(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("levels %v, error %v; want %v", levels, err, fs.ErrNotExist)
	}
	if limit, ok, err := g.Limit(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("limit %v %v, error %v; want %v", limit, ok, err, fs.ErrNotExist)
	}
}

func TestGarbage(t *testing.T) {
	for file, text := range map[string]string{
		"memory.max": "much\n", "memory.current": "", "memory.events": "oom_kill many\n", "memory.stat": "anon -1\n",
		"memory.pressure": "some total=x\n", "io.stat": "8:0 rbytes=x\n",
	} {
		s := copyFixture(t, "v2")
		g, err := s.find(100)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(g.Dir(), file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, _, err1 := g.Limit()
		_, err2 := g.OOMKills()
		_, err3 := g.Stat()
		_, err4 := g.Pressure()
		_, err5 := g.ReadBytes(8, 0)
		if err := errors.Join(err1, err2, err3, err4, err5); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: error %v, want one that names the file", file, err)
		}
	}
}

// copyFixture copies a tree, for tests that change it. Plain files do not react as the kernel's do.
// Such tests show only that the right text goes to the right file.
func copyFixture(t *testing.T, name string) system {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))); err != nil {
		t.Fatal(err)
	}
	return system{dir}
}

func TestWrites(t *testing.T) {
	for _, test := range []struct {
		tree   string
		change func(g *Group) error
		want   map[string]string // file in the group's directory: its text afterwards
	}{
		{"v2", func(g *Group) error { return g.SetLimit(123456) },
			map[string]string{"memory.max": "123456", "memory.swap.max": "0", "memory.high": "1000000000\n"}},
		{"v2", func(g *Group) error { return g.Join(42) }, map[string]string{"cgroup.procs": "42"}},
		{"v2", func(g *Group) error { return g.AccountReads(8, 0) }, nil},
		{"v1", func(g *Group) error { return g.SetLimit(123456) },
			map[string]string{
				"memory.limit_in_bytes": "123456", "memory.memsw.limit_in_bytes": "123456", "memory.swappiness": "0",
			}},
	} {
		g, err := copyFixture(t, test.tree).find(100)
		if err != nil {
			t.Fatal(err)
		}
		if err := test.change(g); err != nil {
			t.Error(err)
		}
		for file, want := range test.want {
			if got, err := os.ReadFile(filepath.Join(g.Dir(), file)); string(got) != want || err != nil {
				t.Errorf("%s %s: %q, %v; want %q", test.tree, file, got, err, want)
			}
		}
	}
}

// The file of the limit exists only where the kernel has such limits, so the test creates it.
func TestReadRate(t *testing.T) {
	for tree, want := range map[string][2]string{
		"v1": {"blkio.throttle.read_bps_device", "8:0 500000000"},
		"v2": {"io.max", "8:0 rbps=500000000"},
	} {
		g, err := copyFixture(t, tree).find(100)
		if err != nil {
			t.Fatal(err)
		}
		err = g.SetReadRate(8, 0, 500e6)
		if !errors.Is(err, ErrNoDiskControl) || !strings.Contains(err.Error(), want[0]) {
			t.Errorf("%s without limits: error %v, want %v that names %s", tree, err, ErrNoDiskControl, want[0])
		}
		file := g.io.file(want[0])
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := g.SetReadRate(8, 0, 500e6); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(file); string(got) != want[1] || err != nil {
			t.Errorf("%s: %q, %v; want %q", tree, got, err, want[1])
		}
		if err := g.SetReadRate(8, 0, 0); err == nil {
			t.Errorf("%s: a rate of 0 gave no error", tree)
		}
		g.io = hierarchy{}
		err = g.SetReadRate(8, 0, 500e6)
		if !errors.Is(err, ErrNoDiskControl) || !strings.Contains(err.Error(), "mount -t cgroup -o blkio") {
			t.Errorf("%s, not mounted: error %v, want %v with the command to mount it", tree, err, ErrNoDiskControl)
		}
	}
}

func TestCreateOnV2(t *testing.T) {
	s := copyFixture(t, "v2")
	g, err := s.find(101)
	if err != nil {
		t.Fatal(err)
	}
	sub, err := Create(g, "new")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(g.Dir(), "new")); err != nil || !info.IsDir() || sub.Name() != "/new" {
		t.Errorf("%v, %v, %s; want a directory /new", info, err, sub.Name())
	}
	want := []string{filepath.Join(g.Dir(), "new", "cgroup.procs")}
	if got := sub.ProcsFiles(); !reflect.DeepEqual(got, want) {
		t.Errorf("ProcsFiles() = %v, want %v", got, want)
	}
	if _, err := Create(g, "new"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create a second time: error %v, want %v", err, fs.ErrExist)
	}
	for _, name := range []string{"", "..", "a/b"} {
		if _, err := Create(g, name); err == nil {
			t.Errorf("Create with name %q gave no error", name)
		}
	}
	if err := sub.Remove(); err != nil {
		t.Error(err)
	}
	if err := sub.Remove(); err != nil {
		t.Errorf("Remove a second time: error %v, want none", err)
	}
}
