package handover

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDecoys: the kernel would take them as soon as a device, they cost little, and they end when they are told to.
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
			t.Errorf("score %q, %v", score, err)
		}
		for begin := time.Now(); ; time.Sleep(time.Millisecond) { // while it is started it is this program, still
			name, err := os.ReadFile(dir + "/comm")
			if strings.TrimSpace(string(name)) == "cat" {
				break
			}
			if err != nil || time.Since(begin) > 10*time.Second {
				t.Fatalf("%q, %v", name, err)
			}
		}
		if a, err := unix.SchedGetAttr(cmd.Process.Pid, 0); err != nil || a.Policy != unix.SCHED_IDLE {
			t.Errorf("policy %+v, %v", a, err)
		}
	}
	// One that the kernel has taken is no error.
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
