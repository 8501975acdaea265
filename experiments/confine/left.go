package confine

// This file finds what is left of a run, and copies models.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
)

// exitTime is how long processes may take to end after their parents.
const exitTime = time.Second

// ListLeft lists the processes that have the marker in their environment, or are in the groups, once
// those that are ending have ended.
func ListLeft(ctx context.Context, marker string, groups []*cgroup.Group) ([]string, error) {
	end := time.Now().Add(exitTime)
	for {
		pids, err := ListMarked(marker)
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			in, err := g.Procs()
			if err != nil {
				return nil, err
			}
			pids = append(pids, in...)
		}
		if len(pids) == 0 {
			return nil, nil
		}
		if time.Now().After(end) {
			var lines []string
			slices.Sort(pids)
			for _, pid := range slices.Compact(pids) {
				lines = append(lines, fmt.Sprintf("%d %s", pid, strings.Join(proc.CommandLine(pid), " ")))
			}
			return lines, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ListMarked lists the processes that have the marker in the environment that they were started with.
func ListMarked(marker string) ([]int, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, p := range all {
		env, err := proc.Environ(p.PID) // it fails if the process has ended
		if err == nil && slices.Contains(env, marker) {
			pids = append(pids, p.PID)
		}
	}
	return pids, nil
}

// KillMarked kills the processes that have the marker, and waits until they are gone.
func KillMarked(marker string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		pids, err := ListMarked(marker)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", pids)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Copy copies a file. The copy has pages of its own in the page cache.
func Copy(ctx context.Context, to, from string) (err error) {
	in, err := regular.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for {
		n, err := io.CopyN(out, in, 64<<20)
		switch {
		case n == 0 && errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("copy the model: %w", err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}
