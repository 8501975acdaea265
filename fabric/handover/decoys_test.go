package handover

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDecoys: the kernel would end decoys as soon as a device, they cost little, and close ends them.
func TestDecoys(t *testing.T) {
	d, err := startDecoys(3)
	if err != nil {
		t.Fatal(err)
	}
	cmds := d.cmds
	for _, cmd := range cmds {
		dir := "/proc/" + strconv.Itoa(cmd.Process.Pid)
		score, err := os.ReadFile(dir + "/oom_score_adj")
		if err != nil || strings.TrimSpace(string(score)) != "1000" {
			t.Errorf("oom_score_adj %q, error %v; want 1000", score, err)
		}
		for begin := time.Now(); ; time.Sleep(time.Millisecond) { // until it has become cat
			name, err := os.ReadFile(dir + "/comm")
			if strings.TrimSpace(string(name)) == "cat" {
				break
			}
			if err != nil || time.Since(begin) > 10*time.Second {
				t.Fatalf("the program is %q, error %v; want cat", name, err)
			}
		}
		if a, err := unix.SchedGetAttr(cmd.Process.Pid, 0); err != nil || a.Policy != unix.SCHED_IDLE {
			t.Errorf("scheduling %+v, error %v; want SCHED_IDLE", a, err)
		}
	}
	// That the kernel has ended one of them is no error.
	_ = cmds[1].Process.Kill()
	if err := d.close(); err != nil {
		t.Error(err)
	}
	for _, cmd := range cmds {
		if cmd.ProcessState == nil {
			t.Errorf("process %d still runs", cmd.Process.Pid)
		}
	}
}
