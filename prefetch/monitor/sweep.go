package monitor

// This file removes the sockets of those that were killed: nobody else would.

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

// ours are the names that [Listen] gives.
var ours = regexp.MustCompile(`^[1-9][0-9]*\` + suffix + `$`)

// locking is how long [Listen] waits for another that makes, or removes, sockets in the same directory. Either takes
// no time, unless it was stopped right there: then there is no waiting for it.
const locking = time.Second

// lock takes the directory for whoever makes or removes sockets in it, until it is closed: between bind(2) and
// listen(2) a new socket looks like one that was left. Without waiting it fails with [outfile.ErrLocked] if somebody
// has it.
func lock(d *outfile.Dir, wait time.Duration) error {
	end := time.Now().Add(wait)
	for {
		err := d.Lock()
		if err == nil || !errors.Is(err, outfile.ErrLocked) || time.Now().After(end) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Sweep removes from a directory the sockets of prefetchds that were killed: those named after a target, this user's
// own, at which nobody listens. Nothing else is touched, and a directory that is missing, or that others can write
// to, is left alone. [Listen] and [List] do so, too.
func Sweep(dir string) error {
	if _, err := os.Lstat(dir); err != nil {
		return ignore(err, fs.ErrNotExist, fs.ErrPermission)
	}
	d, err := outfile.OpenDir(dir, 0o700)
	if err != nil {
		return ignore(err, outfile.ErrUnsafe, fs.ErrPermission)
	}
	defer d.Close()
	if err := lock(d, 0); err != nil {
		return ignore(err, outfile.ErrLocked, errors.ErrUnsupported) // another one sweeps, or listens and sweeps
	}
	return sweep(d)
}

// sweep is Sweep of a directory that is locked.
func sweep(d *outfile.Dir) (err error) {
	entries, err := d.Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if path := d.Path(e.Name); ours.MatchString(e.Name) && own(path) && refused(path) {
			err = errors.Join(err, ignore(d.Remove(e.Name), fs.ErrNotExist))
		}
	}
	return err
}

// own reports whether a path is a socket of this user.
func own(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// refused reports whether nobody listens at a socket. One who listens and is too busy to accept is no less there.
func refused(path string) bool {
	c, err := net.DialTimeout("unix", path, timeout)
	if err == nil {
		_ = c.Close() // nothing was said
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// ignore returns the error unless it is one of those.
func ignore(err error, of ...error) error {
	for _, one := range of {
		if errors.Is(err, one) {
			return nil
		}
	}
	return err
}
