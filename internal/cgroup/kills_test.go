package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The kernel's kills in a group are noticed, with the group's limit. Those of other groups are not.
func TestKills(t *testing.T) {
	g := newGroup(t)
	if err := g.SetLimit(16 << 20); err != nil {
		t.Skip(err)
	}
	// It waits until it may go on, and then takes more memory than there is.
	cmd := inGroup(t, g, `echo ready; read x; exec sh -c 'a=$(head -c 200000000 /dev/zero | tr "\000" a); echo ${#a}'`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	there, here := WatchKills(cmd.Process.Pid), WatchKills(os.Getpid())
	if err := there.Err(); err != nil {
		t.Fatalf("before: %v", err)
	}
	if _, err := in.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed, or its shell says that a command was
	err = there.Err()
	killed := (*KilledError)(nil)
	if !errors.As(err, &killed) || killed.Group != g.Name() || killed.Limit != 16<<20 ||
		!strings.Contains(err.Error(), "which has a limit of 16 MiB") {
		t.Errorf("after: %#v", err)
	}
	if err := here.Err(); here.inGroup != nil && err != nil {
		t.Errorf("in this process's group: %v", err)
	}
}

// Where a group is gone, the machine's counter tells. Where the kernel counts nothing, nothing is said.
func TestKillsWithoutAGroup(t *testing.T) {
	const pid = 77
	s := system{t.TempDir()}
	vmstat := filepath.Join(s.root, "proc", "vmstat")
	if err := os.Mkdir(filepath.Dir(vmstat), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, vmstat, "oom_kill 3\n")
	k := s.watchKills(pid)
	if err := k.Err(); err != nil {
		t.Error(err)
	}
	writeFile(t, vmstat, "oom_kill 4\n")
	killed := (*KilledError)(nil)
	if err := k.Err(); !errors.As(err, &killed) || killed.Group != "" {
		t.Errorf("%#v", err)
	}
	writeFile(t, vmstat, "nothing 4\n")
	for _, k := range []Kills{k, s.watchKills(pid), {}} {
		if err := k.Err(); err != nil {
			t.Error(err)
		}
	}
}
