package preload

// This file makes temporary directories. If this session is killed, later ones remove them.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// temporary is a directory that is locked as long as the process that made it lives.
type temporary struct {
	path string
	lock *os.File
}

// newTemporary makes a directory in dir whose name begins with prefix, and removes those that were
// abandoned there.
func newTemporary(dir, prefix string) (*temporary, error) {
	removeAbandoned(dir, prefix)
	path, err := os.MkdirTemp(dir, prefix)
	if err != nil {
		return nil, err
	}
	t := &temporary{path: path}
	// The lock is shared. Whoever looks for abandoned directories tries to lock them exclusively.
	if t.lock, err = lockDirectory(path, unix.LOCK_SH); err == nil {
		_, err = os.Lstat(path) // it may have looked abandoned before it was locked
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), t.remove())
	}
	return t, nil
}

// remove removes the directory and what is in it. A nil *temporary has nothing to remove.
func (t *temporary) remove() error {
	if t == nil {
		return nil
	}
	err := os.RemoveAll(t.path)
	if t.lock != nil {
		err = errors.Join(err, t.lock.Close())
	}
	return err
}

// removeAbandoned removes the directories of sessions that were killed. Directories of other users,
// and what a link leads to, stay.
func removeAbandoned(dir, prefix string) {
	paths, err := filepath.Glob(filepath.Join(escapeGlob(dir), prefix+"*"))
	if err != nil {
		return
	}
	for _, path := range paths {
		if !isOurs(path, fs.ModeDir) {
			continue
		}
		if lock, err := lockDirectory(path, unix.LOCK_EX); err == nil {
			_ = os.RemoveAll(path) // another session may do so at the same time
			lock.Close()
		}
	}
}

// lockDirectory opens a directory, not one that a link leads to, and locks it, or fails at once.
func lockDirectory(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// escapeGlob returns a pattern of filepath.Glob that only the name itself matches.
func escapeGlob(name string) string {
	var out []byte
	for _, c := range []byte(name) {
		if c == '*' || c == '?' || c == '[' || c == '\\' {
			out = append(out, '\\')
		}
		out = append(out, c)
	}
	return string(out)
}
