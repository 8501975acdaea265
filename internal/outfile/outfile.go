// Package outfile writes output files completely or not at all. All code that writes a file which a user names uses it.
package outfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write creates the file at path with what write writes. The file appears only after write has returned without error: until then, the data
// are in a temporary file next to path, which is then renamed over an existing file. The new file has the permissions of the one that it
// replaces, else those of the umask. A symbolic link is followed. A device or a pipe is written directly. Nothing is synced to disk,
// because outputs can be made again.
//
// Errors of write are returned unchanged; others name path.
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

// named replaces the temporary file's name in an error by path.
func named(err error, path string) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return &fs.PathError{Op: e.Op, Path: path, Err: e.Err}
	}
	return err
}
