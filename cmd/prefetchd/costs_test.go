package main

// This file tests what doctor measures with --costs, of a process and of a model.

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/cli"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch/costs"
)

// uncachedFile makes a file without pages in the page cache.
func uncachedFile(t *testing.T, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	dropFromCache(t, path)
	return path
}

// resident returns how many bytes of a file are in the page cache.
func resident(t *testing.T, path string) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	n, err := pagecache.Resident(f, 0, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDoctorModelCosts measures the costs of a file without a process: with a table, and with JSON in a
// cgroup with little free memory.
func TestDoctorModelCosts(t *testing.T) {
	testenv.NeedRoot(t)
	path := uncachedFile(t, 96<<20)
	stdout, stderr, status := doctor(t, nil, "--model", path, "--costs")
	if status != cli.OK || stderr != "" || !strings.HasPrefix(stdout, "costs of reading "+path) {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	for _, part := range []string{"single pages  ", "page out", "folios", "iB/s"} {
		if !strings.Contains(stdout, part) {
			t.Errorf("no %q in\n%s", part, stdout)
		}
	}
	if n := resident(t, path); n != 0 {
		t.Errorf("%d bytes stay in memory", n)
	}

	root, err := cgroup.Root()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(root, fmt.Sprintf("tensorcast-test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	const limit = 80 << 20
	if err := group.SetLimit(limit); err != nil {
		t.Fatal(err)
	}
	inGroup := []string{"sh", "-c",
		"for f in " + strings.Join(group.ProcsFiles(), " ") + `; do echo $$ > $f; done; exec "$0" "$@"`}
	stdout, stderr, status = doctor(t, inGroup, "--model", path, "--costs", "--json")
	var c fileCosts
	if err := json.Unmarshal([]byte(stdout), &c); err != nil || status != cli.OK || stderr != "" {
		t.Fatalf("status %d, %v\n%s%s", status, err, stdout, stderr)
	}
	if c.Path != path || c.NotMeasured != "" || c.Costs == nil || len(c.Costs.Ways) == 0 {
		t.Fatalf("%+v", c)
	}
	for _, w := range c.Costs.Ways {
		if w.Bytes > limit/2 || w.Bytes == 0 || w.Sum() <= 0 {
			t.Errorf("with a limit of %d bytes: %+v", limit, w)
		}
	}
	if n := resident(t, path); n != 0 {
		t.Errorf("%d bytes stay in memory", n)
	}
}

// TestDoctorModelCostsRefuses checks the files and arguments with which doctor cannot measure.
func TestDoctorModelCostsRefuses(t *testing.T) {
	testenv.NeedRoot(t)
	whole := filepath.Join(t.TempDir(), "whole")
	if err := os.WriteFile(whole, make([]byte, 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	type refused struct {
		args   []string
		status int
		stderr string
	}
	cases := map[string]refused{
		"all in memory": {[]string{"--costs", "--model", whole}, cli.Failure, " in memory"},
		"nothing there": {[]string{"--costs", "--model", whole + " is not there"}, cli.Failure, "no such file"},
		"a directory":   {[]string{"--costs", "--model", t.TempDir()}, cli.Failure, "not a regular file"},
		// os.Open would wait forever here.
		"a FIFO":         {[]string{"--costs", "--model", fifo}, cli.Failure, "not a regular file"},
		"and a process":  {[]string{"--model", whole, "--pid", "1"}, cli.BadUsage, "--pid N --costs"},
		"of no process":  {[]string{"--costs"}, cli.BadUsage, "--pid N"},
		"of no value":    {[]string{"--model"}, cli.BadUsage, "--model"},
		"of an argument": {[]string{"--costs", "x"}, cli.BadUsage, "unexpected argument"},
		"of a URL":       {[]string{"--costs", "--model", "https://a.org/m.gguf"}, cli.BadUsage, "download the model"},
		"of some memory": {[]string{"--costs", "--model", whole, "--ram", "1GB"}, cli.BadUsage, "--ram is for"},
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err == nil && fs.Type == unix.TMPFS_MAGIC {
		f, err := os.CreateTemp("/dev/shm", "tensorcast-test-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(f.Name())
		defer f.Close()
		// The file is a hole. Reading it would make pages, which cannot be dropped.
		if err := f.Truncate(64 << 20); err != nil {
			t.Fatal(err)
		}
		cases["in memory by nature"] = refused{
			[]string{"--costs", "--model", f.Name()}, cli.Failure, "lies in memory (tmpfs)",
		}
		defer func() {
			if n := resident(t, f.Name()); n != 0 {
				t.Errorf("the hole in tmpfs has %d bytes in memory now, want none", n)
			}
		}()
	}
	for name, tc := range cases {
		stdout, stderr, status := doctor(t, nil, tc.args...)
		if status != tc.status || stdout != "" || !strings.Contains(stderr, tc.stderr) ||
			strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: status %d, want %d and one line with %q\n%s%s",
				name, status, tc.status, tc.stderr, stdout, stderr)
		}
	}
	if n := resident(t, whole); n < 7<<20 { // a kernel that reclaims cold pages by itself may have taken some
		t.Errorf("%d bytes of the file that was completely in memory are still there, want all", n)
	}
	// Another user neither owns the file nor may write it. So the kernel does not tell how much of it
	// is in memory.
	public := filepath.Join(testenv.PublicDir(t), "model")
	if err := os.WriteFile(public, make([]byte, 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	dropFromCache(t, public)
	asNobody := []string{"setpriv", "--reuid", "65534", "--clear-groups"}
	stdout, stderr, status := doctor(t, asNobody, "--costs", "--model", public)
	if status != cli.Failure || stdout != "" || !strings.Contains(stderr, "as the owner of the file") {
		t.Errorf("another user: status %d\n%s%s", status, stdout, stderr)
	}
}

// TestDoctorCosts measures the costs of the model of a stopped process.
func TestDoctorCosts(t *testing.T) {
	r := newRig(t, 0.1, 100)
	r.options.Repeat = 1 << 20
	r.start()
	pid := r.target.Process.Pid
	d, _ := diagnosisOf(t, pid)
	if d.Costs != nil {
		t.Errorf("without --costs the costs are %+v, want none", d.Costs)
	}
	if err := r.target.Process.Signal(syscall.SIGSTOP); err != nil { // or it would read what is measured
		t.Fatal(err)
	}
	diagnosisOf(t, pid) // this reads the model's metadata, which may have been dropped
	before := resident(t, r.options.Model)
	stdout, stderr, status := doctor(t, nil, "--pid", fmt.Sprint(pid), "--costs", "--json")
	d = diagnosis{}
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || stderr != "" || status != cli.OK {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	if len(d.Costs) != 1 || d.Costs[0].Path != r.options.Model || d.Costs[0].Costs == nil ||
		d.Costs[0].Costs.Ways[0].Way != costs.WayPages || d.Costs[0].Costs.Left != 0 {
		t.Fatalf("%+v", d.Costs)
	}
	// A kernel that reclaims cold pages by itself may have taken some before, and they may be read again meanwhile.
	if after := resident(t, r.options.Model); after > before+64<<10 {
		t.Errorf("%d bytes of the model are in memory, want hardly more than the %d of before", after, before)
	}
	stdout, stderr, status = doctor(t, nil, "--pid", fmt.Sprint(pid), "--costs")
	if status != cli.OK || stderr != "" || !strings.HasPrefix(stdout, "would help: ") ||
		!strings.Contains(stdout, "\n\ncosts of reading "+r.options.Model) {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}

	// All of the model is in memory, and cannot be reclaimed before doctor looks.
	f, err := os.Open(r.options.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapping, err := unix.Mmap(int(f.Fd()), 0, int(r.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapping) //nolint:errcheck
	if err := unix.Mlock(mapping); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, _ = doctor(t, nil, "--pid", fmt.Sprint(pid), "--costs")
	if stderr != "" || !strings.Contains(stdout, "costs of reading "+r.options.Model+": not measured\n") {
		t.Errorf("all in memory\n%s%s", stdout, stderr)
	}
}
