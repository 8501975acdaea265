package llama

// This file manages the cache: where it is, and how directories are put into it atomically and only
// once.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// newPrefix begins the names of incomplete directories.
const newPrefix = ".new-"

// cacheDir returns the directory of all installations; it creates it if necessary.
func cacheDir() (string, error) {
	if dir := os.Getenv(envCache); dir != "" {
		dir, err := filepath.Abs(filepath.Join(dir, "llama"))
		if err == nil {
			err = os.MkdirAll(dir, 0o755)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", envCache, err)
		}
		return dir, nil
	}
	if user, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(user, "tensorcast", "llama")
		if os.MkdirAll(dir, 0o755) == nil && unix.Access(dir, unix.W_OK) == nil {
			return dir, nil
		}
	}
	// There is no home directory, or it belongs to another user (sudo, a service's user).
	return privateDir(filepath.Join(os.TempDir(), fmt.Sprintf("tensorcast-%d", os.Geteuid())))
}

// privateDir makes dir and returns the cache's directory in it. If the parent is writable for all,
// someone else could have made dir first, and we would run their programs. Therefore dir must
// belong to this user, and only this user may write to it.
func privateDir(dir string) (string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make the cache: %w (set %s to a directory that can be written)", err, envCache)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("make the cache: %s exists and is not a directory that only this user can write to "+
			"(set %s)", dir, envCache)
	}
	dir = filepath.Join(dir, "llama")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	return dir, nil
}

// makeDir calls fill with a temporary directory next to dir, and renames that to dir if fill
// succeeds. If dir exists, it does nothing. Of several processes, one fills it and the others wait.
func makeDir(ctx context.Context, dir string, fill func(tmp string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	unlock, err := lock(ctx, filepath.Join(parent, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return nil // another process made it while we waited
	}
	if err := removeUnfinished(parent); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, newPrefix)
	if err != nil {
		return fmt.Errorf("install %s: %w", filepath.Base(dir), err)
	}
	defer os.RemoveAll(tmp) // a no-op after the rename
	if err := fill(tmp); err != nil {
		return fmt.Errorf("install %s: %w", filepath.Base(dir), err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return fmt.Errorf("install %s: %w", filepath.Base(dir), err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("install %s: %w", filepath.Base(dir), err)
	}
	return nil
}

// removeUnfinished removes what killed processes left behind. The caller holds the lock, so nobody is working on it.
func removeUnfinished(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("clean the cache: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) {
			if err := os.RemoveAll(filepath.Join(parent, e.Name())); err != nil {
				return fmt.Errorf("clean the cache: %w", err)
			}
		}
	}
	return nil
}

// lock takes the exclusive lock on the file at path. The kernel releases it when the process ends.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w (set %s to a directory that can be written)", err, envCache)
	}
	// A blocking flock cannot be interrupted by ctx, so poll.
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another process, which fills the cache: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// hardLink makes to another name of the file from, or copies it if the file system has no hard links.
func hardLink(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return writeFile(to, in, 0o755)
}

// writeFile writes everything from r to a new file.
func writeFile(path string, r io.Reader, perm fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
