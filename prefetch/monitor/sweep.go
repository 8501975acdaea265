package monitor

// This file removes the sockets of prefetchds that were killed. Nobody else would.

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"regexp"
	"syscall"
	"time"

	"tensorcast/internal/outfile"
)

// socketNames are the names that [Listen] and [ListenSearch] give.
var socketNames = regexp.MustCompile(`^(` + searchPrefix + `)?[1-9][0-9]*\` + suffix + `$`)

// maxLockWait is how long [Listen] waits for another process that makes, or removes, sockets in the same directory.
// That takes almost no time, unless the process was stopped meanwhile. Then waiting does not help.
const maxLockWait = time.Second

// lockDir locks the directory, for somebody who makes or removes sockets in it, until it is closed. Between bind(2)
// and listen(2) a new socket looks like one that was left. If another process still has the lock after wait, the
// error is [outfile.ErrLocked].
func lockDir(d *outfile.Dir, wait time.Duration) error {
	end := time.Now().Add(wait)
	for {
		err := d.Lock()
		if err == nil || !errors.Is(err, outfile.ErrLocked) || time.Now().After(end) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Sweep removes from a directory the sockets of prefetchds that were killed: those that have a name as [Listen] gives
// it, belong to this user, and at which nobody listens. Nothing else is touched. A directory that is missing, or that
// others can write to, is left alone. [Listen] and [List] sweep, too.
func Sweep(dir string) error {
	if _, err := os.Lstat(dir); err != nil {
		return ignore(err, fs.ErrNotExist, fs.ErrPermission)
	}
	d, err := outfile.OpenDir(dir, 0o700)
	if err != nil {
		return ignore(err, outfile.ErrUnsafe, fs.ErrPermission)
	}
	defer d.Close()
	if err := lockDir(d, 0); err != nil {
		return ignore(err, outfile.ErrLocked, errors.ErrUnsupported) // another process is sweeping
	}
	return sweepLocked(d)
}

// sweepLocked is Sweep of a directory that is locked.
func sweepLocked(d *outfile.Dir) (err error) {
	entries, err := d.Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if path := d.Path(e.Name); socketNames.MatchString(e.Name) && isOwnSocket(path) && isRefused(path) {
			err = errors.Join(err, ignore(d.Remove(e.Name), fs.ErrNotExist))
		}
	}
	return err
}

// isOwnSocket says whether a path is a socket of this user.
func isOwnSocket(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// isRefused says whether nobody listens at a socket. A server that is too busy to accept does listen.
func isRefused(path string) bool {
	c, err := net.DialTimeout("unix", path, timeout)
	if err == nil {
		_ = c.Close() // nothing was sent
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// ignore returns an error unless it is one of those.
func ignore(err error, of ...error) error {
	for _, one := range of {
		if errors.Is(err, one) {
			return nil
		}
	}
	return err
}
