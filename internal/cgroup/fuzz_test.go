package cgroup

// This file fuzzes the parsers of the kernel's texts.

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Whatever text a file of a group has, parsing it gives an error or a number that is not negative.
func FuzzTexts(f *testing.F) {
	for _, text := range []string{
		"max\n", "1073741824\n", "9223372036854771712\n", "18446744073709551615", "-1", "",
		"anon 4096\nfile 8192\nhierarchical_memory_limit 9223372036854771712\n",
		"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "name\nno number\n",
		"some avg10=0.00 avg60=0.00 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=45\n",
		"some total=9223372036854775807\n",
		"8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n", "8:0 Read 4096\n8:0 Write 1\nTotal 4097\n",
		"8:0 rbytes=-1\n",
		"MemTotal: 16 kB\nMemAvailable: 8 kB\nActive(file): 4 kB\nInactive(file): 18446744073709551615 kB\n",
		"MemTotal:\nMemAvailable: 8 kB\n",
		"pswpin 3\nzswpin 18446744073709551615\npgscan_kswapd 1\n" +
			"pgscan_direct_dma 9223372036854775807\npgscan_direct_throttle x\n",
		"100 (a) b) S 1 100 100 0 -1 4194560 1 2 3\n", ") ) S 1 1 1 1 1 -1\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseNumber(text); err == nil && (n < 0 || n > unlimited) {
			t.Errorf("number %d, want 0 to %d", n, int64(unlimited))
		}
		if m, err := parsePairs(text); err == nil {
			for name, n := range m {
				if n < 0 || n > unlimited || !strings.Contains(text, name) {
					t.Errorf("%q: %d, want 0 to %d", name, n, int64(unlimited))
				}
			}
		}
		p, err := parsePressure(text)
		if err == nil && (p.Some < 0 || p.Full < 0 || p.Whole || p.Some%time.Microsecond != 0) {
			t.Errorf("pressure %+v", p)
		}
		h, err := parseHost(text)
		if err == nil && (min(h.Total, h.Available, h.ActiveFile, h.InactiveFile) < 0 ||
			max(h.Total, h.Available) > unlimited) {
			t.Errorf("host memory %+v", h)
		}
		paging, err := parsePaging(text)
		if err == nil && (min(paging.SwapIns, paging.Scanned) < 0 || max(paging.SwapIns, paging.Scanned) > unlimited) {
			t.Errorf("paging %+v", paging)
		}
		_, _ = parseExiting(text)
		for version := 1; version <= 2; version++ {
			if n, err := parseReads(text, version, "8:0"); err == nil && n < 0 {
				t.Errorf("version %d: %d bytes read, want none below 0", version, n)
			}
		}
	})
}

// Whatever a process's cgroup file and the mounts are, Find gives an error or a directory below a
// mount point.
func FuzzFind(f *testing.F) {
	trees, err := filepath.Glob("testdata/*/proc")
	if err != nil || len(trees) == 0 {
		f.Fatal("no fixtures: ", err)
	}
	for _, tree := range trees {
		mounts, err := os.ReadFile(filepath.Join(tree, "self", "mountinfo"))
		if err != nil {
			f.Fatal(err)
		}
		cgroups, err := filepath.Glob(filepath.Join(tree, "*", "cgroup"))
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range cgroups {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text, mounts)
		}
	}
	// All inputs share one tree. Both versions are mounted, and the groups /a and /a/b exist.
	root := f.TempDir()
	for _, dir := range []string{
		"proc/1", "proc/self", "sys/fs/cgroup/a/b", "sys/fs/cgroup/memory/a/b", "sys/fs/cgroup/blkio/a/b",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	controllers := filepath.Join(root, "sys/fs/cgroup/cgroup.controllers")
	if err := os.WriteFile(controllers, []byte("memory io\n"), 0o644); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("0::/a/b\n"),
		[]byte("30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"))
	f.Add([]byte("4:memory:/a/b\n3:blkio:/a\n0::/\n"),
		[]byte("31 30 0:27 /a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"+
			"32 30 0:28 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n"))
	f.Add([]byte("0::/../a\n"), []byte("30 23 0:26 / /../../.. rw - cgroup2 cgroup2 rw\n"))
	f.Fuzz(func(t *testing.T, cgroup, mounts []byte) {
		for name, text := range map[string][]byte{"1/cgroup": cgroup, "self/mountinfo": mounts} {
			if err := os.WriteFile(filepath.Join(root, "proc", name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		g, err := system{root}.find(1)
		if err != nil {
			return
		}
		if v := g.Version(); v != 1 && v != 2 || !filepath.IsAbs(g.Name()) ||
			slices.Contains(strings.Split(g.Name(), "/"), "..") {
			t.Errorf("version %d, %q; want 1 or 2, an absolute path", v, g.Name())
		}
		if !strings.HasPrefix(g.Dir(), g.mem.mount) {
			t.Errorf("%q is not below %q", g.Dir(), g.mem.mount)
		}
		g.Hidden()
		if _, err := g.Levels(); err != nil && !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), root) {
			t.Errorf("error %v, want one that names a file", err)
		}
	})
}
