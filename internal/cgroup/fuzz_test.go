package cgroup

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

// The texts of the files of a group: a number or an error comes out, and never a negative one, whatever they hold.
func FuzzTexts(f *testing.F) {
	for _, text := range []string{
		"max\n", "1073741824\n", "9223372036854771712\n", "18446744073709551615", "-1", "",
		"anon 4096\nfile 8192\nhierarchical_memory_limit 9223372036854771712\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "name\nno number\n",
		"some avg10=0.00 avg60=0.00 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=45\n", "some total=9223372036854775807\n",
		"8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n", "8:0 Read 4096\n8:0 Write 1\nTotal 4097\n", "8:0 rbytes=-1\n",
		"MemTotal: 16 kB\nMemAvailable: 8 kB\nActive(file): 4 kB\nInactive(file): 18446744073709551615 kB\n", "MemTotal:\nMemAvailable: 8 kB\n",
		"pswpin 3\nzswpin 18446744073709551615\npgscan_kswapd 1\npgscan_direct_dma 9223372036854775807\npgscan_direct_throttle x\n",
		"100 (a) b) S 1 100 100 0 -1 4194560 1 2 3\n", ") ) S 1 1 1 1 1 -1\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseNumber(text); err == nil && (n < 0 || n > unlimited) {
			t.Errorf("number %d", n)
		}
		if m, err := parsePairs(text); err == nil {
			for name, n := range m {
				if n < 0 || n > unlimited || !strings.Contains(text, name) {
					t.Errorf("%q: %d", name, n)
				}
			}
		}
		if p, err := parsePressure(text); err == nil && (p.Some < 0 || p.Full < 0 || p.Whole || p.Some%time.Microsecond != 0) {
			t.Errorf("%+v", p)
		}
		if h, err := parseHost(text); err == nil && (min(h.Total, h.Available, h.ActiveFile, h.InactiveFile) < 0 || max(h.Total, h.Available) > unlimited) {
			t.Errorf("%+v", h)
		}
		if p, err := parsePaging(text); err == nil && (min(p.SwapIns, p.Scanned) < 0 || max(p.SwapIns, p.Scanned) > unlimited) {
			t.Errorf("%+v", p)
		}
		_, _ = parseExiting(text)
		for version := 1; version <= 2; version++ {
			if n, err := parseReads(text, version, "8:0"); err == nil && n < 0 {
				t.Errorf("version %d: %d bytes were read", version, n)
			}
		}
	})
}

// Which group a process is in, from its cgroup file and the mounts: a directory below a mount point, or an error.
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
	// The same tree for all: both versions are mounted, the groups /a and /a/b exist.
	root := f.TempDir()
	for _, dir := range []string{"proc/1", "proc/self", "sys/fs/cgroup/a/b", "sys/fs/cgroup/memory/a/b", "sys/fs/cgroup/blkio/a/b"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "sys/fs/cgroup/cgroup.controllers"), []byte("memory io\n"), 0o644); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("0::/a/b\n"), []byte("30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"))
	f.Add([]byte("4:memory:/a/b\n3:blkio:/a\n0::/\n"), []byte("31 30 0:27 /a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n32 30 0:28 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n"))
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
		if v := g.Version(); v != 1 && v != 2 || !filepath.IsAbs(g.Name()) || slices.Contains(strings.Split(g.Name(), "/"), "..") {
			t.Errorf("version %d, %q", v, g.Name())
		}
		if !strings.HasPrefix(g.Dir(), g.mem.mount) {
			t.Errorf("%q is not below %q", g.Dir(), g.mem.mount)
		}
		g.Hidden()
		if _, err := g.Levels(); err != nil && !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), root) {
			t.Errorf("an error that names no file: %v", err)
		}
	})
}
