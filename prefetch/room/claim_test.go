package room

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/internal/proc"
)

// claimerVariable makes the test program a process that claims a target, says how that went, and waits until it is
// ended or its standard input is.
const claimerVariable = "PREFETCH_TEST_CLAIM" // how and whom: "pidfd 123"

func init() {
	how, text, ok := strings.Cut(os.Getenv(claimerVariable), " ")
	if !ok {
		return
	}
	pid, _ := strconv.Atoi(text)
	p, err := proc.Open(pid)
	if err == nil {
		_, err = claim(p, openers[how])
	}
	fmt.Println(err)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	os.Exit(0)
}

var openers = map[string]opener{"pidfd": openPidfd, "proc": openProc}

// claimer starts that process, and returns it with what it said.
func claimer(t *testing.T, how string, pid int) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", claimerVariable, how, pid))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

// sleeper is a process to claim.
func sleeper(t *testing.T) (*proc.Process, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p, err := proc.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, cmd
}

// One process has a target, until it gives it back or ends; another target is free all the while.
func TestClaim(t *testing.T) {
	for how, open := range openers {
		t.Run(how, func(t *testing.T) {
			p, target := sleeper(t)
			if how == "pidfd" && !pidfs(t, p) {
				t.Skip("before Linux 6.9 all pidfds are one inode")
			}
			mine, err := claim(p, open)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := claim(p, open); !errors.Is(err, ErrClaimed) || strings.Contains(err.Error(), "\n") {
				t.Errorf("a second claim of this process: %v", err)
			}
			if _, said := claimer(t, how, p.PID()); !strings.Contains(said, ErrClaimed.Error()) {
				t.Errorf("a claim of another process: %s", said)
			}
			if other, _ := sleeper(t); true {
				c, err := claim(other, open)
				if err != nil {
					t.Fatalf("another target: %v", err)
				}
				c.Close()
			}
			if err := mine.Close(); err != nil {
				t.Fatal(err)
			}
			holder, said := claimer(t, how, p.PID())
			if said != "<nil>" {
				t.Fatalf("after it was given back: %s", said)
			}
			if _, err := claim(p, open); !errors.Is(err, ErrClaimed) {
				t.Errorf("while another process has it: %v", err)
			}
			if err := holder.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = holder.Wait()
			again, err := claim(p, open)
			if err != nil {
				t.Fatalf("its holder was killed: %v", err)
			}
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
			_ = target.Process.Kill()
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := claim(p, open); !errors.Is(err, proc.ErrNoProcess) { // its parent does not know yet
				t.Errorf("the target is a zombie: %v", err)
			}
			_ = target.Wait()
			if _, err := claim(p, open); !errors.Is(err, proc.ErrNoProcess) {
				t.Errorf("the target has ended: %v", err)
			}
		})
	}
}

func pidfs(t *testing.T, p *proc.Process) bool {
	t.Helper()
	fd, err := openPidfd(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Type == unix.PID_FS_MAGIC
}

// The exported functions: whoever asks takes nothing, also while another one asks.
func TestClaimed(t *testing.T) {
	p, _ := sleeper(t)
	if claimed, err := IsClaimed(p); claimed || err != nil {
		t.Fatalf("%v, %v", claimed, err)
	}
	c, err := Claim(p)
	if err != nil {
		t.Fatal(err)
	}
	if claimed, err := IsClaimed(p); !claimed || err != nil {
		t.Errorf("claimed: %v, %v", claimed, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	open, err := claimable(p)
	if err != nil {
		t.Fatal(err)
	}
	// Somebody asks, and is done while the claim is tried.
	fd, err := open(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		c, err := Claim(p)
		if err == nil {
			err = c.Close()
		}
		done <- err
	}()
	time.Sleep(2 * claimStep)
	unix.Close(fd)
	if err := <-done; err != nil {
		t.Errorf("beside somebody who only asks: %v", err)
	}
}
