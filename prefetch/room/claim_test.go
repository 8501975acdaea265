package room

// This file tests that a target has one helper.

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

// claimerVariable makes the test's program a process that claims a target, says how that went, and waits
// until its standard input ends or it is killed. It says how and whom to claim: "pidfd 123".
const claimerVariable = "PREFETCH_TEST_CLAIM"

func init() {
	how, text, ok := strings.Cut(os.Getenv(claimerVariable), " ")
	if !ok {
		return
	}
	pid, _ := strconv.Atoi(text)
	p, err := proc.Open(pid)
	if err == nil {
		_, err = claimWith(p, openers[how], askTimeout)
	}
	fmt.Println(err)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	os.Exit(0)
}

var openers = map[string]openFunc{"pidfd": openPidfd, "proc": openProc}

// startClaimer starts such a process. It also returns what the process said: the error of its claim.
func startClaimer(t *testing.T, how string, pid int) (*exec.Cmd, string) {
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

// startSleeper starts a process to claim.
func startSleeper(t *testing.T) (*proc.Process, *exec.Cmd) {
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

// One process has a target until it gives the target back or ends. Another target is free all the while.
func TestClaim(t *testing.T) {
	for how, open := range openers {
		t.Run(how, func(t *testing.T) {
			p, target := startSleeper(t)
			if how == "pidfd" && !hasPidfs(t, p) {
				t.Skip("before Linux 6.9 all pidfds are one inode")
			}
			mine, err := claimWith(p, open, askTimeout)
			if err != nil {
				t.Fatal(err)
			}
			_, err = claimWith(p, open, askTimeout)
			if !errors.Is(err, ErrClaimed) || strings.Contains(err.Error(), "\n") {
				t.Errorf("a second claim by this process: %v, want %v", err, ErrClaimed)
			}
			if _, said := startClaimer(t, how, p.PID()); !strings.Contains(said, ErrClaimed.Error()) {
				t.Errorf("a claim by another process: %s, want %v", said, ErrClaimed)
			}
			other, _ := startSleeper(t)
			c, err := claimWith(other, open, askTimeout)
			if err != nil {
				t.Fatalf("another target: %v", err)
			}
			c.Close()
			if err := mine.Close(); err != nil {
				t.Fatal(err)
			}
			holder, said := startClaimer(t, how, p.PID())
			if said != "<nil>" {
				t.Fatalf("after it was given back: %s, want no error", said)
			}
			if _, err := claimWith(p, open, askTimeout); !errors.Is(err, ErrClaimed) {
				t.Errorf("while another process has it: %v, want %v", err, ErrClaimed)
			}
			if err := holder.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = holder.Wait()
			again, err := claimWith(p, open, askTimeout)
			if err != nil {
				t.Fatalf("after its holder was killed: %v", err)
			}
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
			_ = target.Process.Kill()
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			// Its parent does not know yet.
			if _, err := claimWith(p, open, askTimeout); !errors.Is(err, proc.ErrNoProcess) {
				t.Errorf("the target is a zombie: %v, want %v", err, proc.ErrNoProcess)
			}
			_ = target.Wait()
			if _, err := claimWith(p, open, askTimeout); !errors.Is(err, proc.ErrNoProcess) {
				t.Errorf("the target has ended: %v, want %v", err, proc.ErrNoProcess)
			}
		})
	}
}

// hasPidfs says whether each process has a pidfd inode of its own.
func hasPidfs(t *testing.T, p *proc.Process) bool {
	t.Helper()
	fd, err := openPidfd(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Type == unix.PID_FS_MAGIC
}

// IsClaimed does not claim, and does not keep another process from claiming.
func TestIsClaimed(t *testing.T) {
	p, _ := startSleeper(t)
	if claimed, err := IsClaimed(p); claimed || err != nil {
		t.Fatalf("IsClaimed before a claim: %v, %v, want false", claimed, err)
	}
	c, err := Claim(p)
	if err != nil {
		t.Fatal(err)
	}
	if claimed, err := IsClaimed(p); !claimed || err != nil {
		t.Errorf("IsClaimed after a claim: %v, %v, want true", claimed, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	open, err := chooseOpen(p)
	if err != nil {
		t.Fatal(err)
	}
	// Somebody asks, and has finished while the claim is tried.
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
		t.Errorf("Claim beside somebody who only asks: %v", err)
	}
}

// A claim that is held for a little while longer than somebody who only asks tries, as by a helper that was killed
// while it started a program, is waited for.
func TestClaimWaits(t *testing.T) {
	p, err := proc.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	first, err := Claim(p)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(3*askTimeout, func() {
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	})
	if claimed, err := IsClaimed(p); !claimed || err != nil {
		t.Errorf("claimed: %v, %v, want that it is", claimed, err)
	}
	second, err := Claim(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}
