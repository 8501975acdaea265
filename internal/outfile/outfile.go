// Package outfile writes output files whole or not at all.
package outfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write gives the file at path what write writes. The file appears when write has returned without an error: until then it is beside path under a
// temporary name, and an older file of that name, which it then replaces in one step, stays. It takes the older file's permissions, else those of
// the umask. A symbolic link is followed. A device or a pipe is written directly. Nothing is synced to disk: outputs can be made again.
//
// Errors of write are returned as they are; others name path.
func Write(path string, write func(io.Writer) error) (err error) {
	target, mode := path, fs.FileMode(0)
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a directory; name a file in it", path)
	case err == nil && !info.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	case err == nil:
		mode = info.Mode().Perm()
		if target, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}

	temp := filepath.Join(filepath.Dir(target), fmt.Sprintf(".%s.%d.tmp", filepath.Base(target), os.Getpid()))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return named(err, path)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp))
		}
	}()
	err = write(f)
	if err == nil && mode != 0 {
		err = named(f.Chmod(mode), path)
	}
	if err := errors.Join(err, named(f.Close(), path)); err != nil {
		return err
	}
	if err := os.Rename(temp, target); err != nil {
		return fmt.Errorf("replace %s: %w", path, errors.Unwrap(err))
	}
	return nil
}

// named is an error of the temporary file, whose name would only puzzle.
func named(err error, path string) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return &fs.PathError{Op: e.Op, Path: path, Err: e.Err}
	}
	return err
}
