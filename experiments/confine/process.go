package confine

// This file puts commands into a group, and measures what a target needs of its memory.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"tensorcast/internal/cgroup"
)

// ExitNotJoined is the exit code of a command of [In] that could not enter the group.
const ExitNotJoined = 125

// joiningName is the name of the shell before it becomes the command.
const joiningName = "tensorcast-joining"

// In returns the arguments of a command that enters the group before it becomes the command args,
// followed by words in the shell's syntax. So all of the command's memory is charged to the group,
// from its first instruction on.
func In(group *cgroup.Group, args []string, words string) []string {
	files := group.ProcsFiles()
	script := `n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 > "$1" || exit ` + strconv.Itoa(ExitNotJoined) +
		`; shift; n=$((n-1)); done; exec "$@" ` + words
	return slices.Concat([]string{"/bin/sh", "-c", script, joiningName, strconv.Itoa(len(files))}, files, args)
}

// AwaitJoined waits until a process that was started with the arguments of [In] is no longer the shell,
// because a helper examines what the process runs. It also returns when the process has ended or
// ctx ends.
func AwaitJoined(ctx context.Context, pid int) {
	for ctx.Err() == nil {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.Contains(line, []byte("\x00"+joiningName+"\x00")) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// ownInterval is how often the target's own memory is sampled. The phase in which it allocates
// memory is short; a sample takes about a millisecond.
const ownInterval = 20 * time.Millisecond

// OwnMemory returns the largest usage of the group, in bytes, without page cache of files, until
// stop is closed: memory of no file, and the kernel's for the group. A program's own file and its
// libraries are left out. They are charged to whoever reads them first, so the same target would be
// measured once with them and once without.
func OwnMemory(group *cgroup.Group, stop <-chan struct{}) (int64, error) {
	var most int64
	tick := time.NewTicker(ownInterval)
	defer tick.Stop()
	for {
		// The order matters: the page cache grows between the two reads. So while the model is
		// being loaded the difference is rather too small than too large. Afterwards it is exact.
		usage, err := group.Usage()
		if err != nil {
			return 0, err
		}
		stat, err := group.Stat()
		if err != nil {
			return 0, err
		}
		most = max(most, usage-stat.Cache())
		select {
		case <-tick.C:
		case <-stop:
			return most, nil
		}
	}
}
