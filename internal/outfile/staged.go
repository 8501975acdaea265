package outfile

// This file makes a directory with all its files appear at once.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// StagedDir is a directory that is being filled under a temporary name. Call Commit, Replace or Discard in the end.
// Discard after one of the others does nothing. It is locked until then, so that [Dir.SweepStaged] can tell it from one
// that a killed process has left. It is not safe for concurrent use.
type StagedDir struct {
	*Dir           // where its files are made
	in      *Dir   // the directory in which it appears
	name    string // the name under which it appears
	temp    string // its name until then
	settled bool   // it has appeared, or is gone
}

// Stage begins a directory that appears in d with [StagedDir.Commit] or [StagedDir.Replace]. d must stay open until
// then.
func (d *Dir) Stage(name string, mode uint32) (*StagedDir, error) {
	const attempts = 100
	for i := range attempts {
		temp := tempName(name, os.Getpid(), i)
		err := retry(func() error { return unix.Mkdirat(d.fd(), temp, mode) })
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return nil, d.pathError("make", name, err)
		}
		sub, err := d.openExisting(temp, true)
		if errors.Is(err, fs.ErrNotExist) {
			continue // somebody swept it
		}
		if err != nil {
			return nil, errors.Join(err, d.Remove(temp))
		}
		sub.path = d.Path(name) // errors name what the user knows
		s := &StagedDir{Dir: sub, in: d, name: name, temp: temp}
		err = sub.Lock()
		switch {
		case err == nil || errors.Is(err, errors.ErrUnsupported):
			return s, nil
		case errors.Is(err, ErrLocked) || errors.Is(err, fs.ErrNotExist):
			sub.Close() // somebody swept it before it was locked
		default:
			s.Discard()
			return nil, err
		}
	}
	return nil, d.pathError("make", name, unix.EEXIST)
}

// Commit makes the directory appear under its name. It fails with [fs.ErrExist] if a directory with entries has that
// name, or anything else but a directory. Then the directory can still be committed, replace the other, or be
// discarded.
func (s *StagedDir) Commit() error {
	if err := s.sync(); err != nil {
		return err
	}
	// Rename replaces an empty directory, and fails where there is anything in it.
	err := retry(func() error { return unix.Renameat(s.in.fd(), s.temp, s.in.fd(), s.name) })
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
		err = unix.EEXIST
	}
	if err != nil {
		return s.in.pathError("make", s.name, err)
	}
	s.settle()
	return nil
}

// Replace makes the directory appear in place of the one that has its name, if there is one, and removes that. Whoever
// looks finds the one or the other (RENAME_EXCHANGE, since Linux 3.15). It fails with [errors.ErrUnsupported] on a file
// system that cannot exchange two directories, as NFS.
func (s *StagedDir) Replace() error {
	if err := s.Commit(); !errors.Is(err, fs.ErrExist) {
		return err
	}
	err := retry(func() error {
		return unix.Renameat2(s.in.fd(), s.temp, s.in.fd(), s.name, unix.RENAME_EXCHANGE)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("replace %s: %w: this file system cannot exchange two directories", s.in.Path(s.name),
			errors.ErrUnsupported)
	}
	if err != nil {
		return s.in.pathError("replace", s.name, err)
	}
	old := s.temp
	s.settle()
	return s.in.removeTree(old)
}

// Discard removes the directory, unless it has appeared.
func (s *StagedDir) Discard() {
	if s.settled {
		return
	}
	_ = s.in.removeTree(s.temp) // what is left is swept the next time
	s.settle()
}

// settle ends the directory's life under its temporary name.
func (s *StagedDir) settle() {
	s.settled = true
	s.Close()
}

// sync stores the files, so that after a crash the directory is not there with half of them. Single files are not
// synced (see the package's comment), but what a directory is made from is often removed when it is there.
func (s *StagedDir) sync() error {
	entries, err := s.Entries()
	if err != nil {
		return err
	}
	for _, e := range append(entries, Entry{Name: "."}) {
		fd, err := open(s.fd(), e.Name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return s.pathError("store", e.Name, err)
		}
		err = retry(func() error { return unix.Fsync(fd) })
		if err = errors.Join(err, unix.Close(fd)); err != nil {
			return s.pathError("store", e.Name, err)
		}
	}
	return nil
}

// SweepStaged removes directories that killed processes have begun with [Dir.Stage].
func (d *Dir) SweepStaged() error {
	entries, err := d.Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Dir && TemporaryOf(e.Name) != "" {
			err = errors.Join(err, d.sweepOne(e.Name))
		}
	}
	return err
}

// sweepOne removes a directory with a temporary name, unless somebody fills it.
func (d *Dir) sweepOne(name string) error {
	sub, err := d.openExisting(name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has appeared, or somebody else has swept it
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	err = sub.Lock()
	if errors.Is(err, ErrLocked) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrNotExist) {
		return nil // somebody fills it, or nobody can tell, or it has gone
	}
	if err != nil {
		return err
	}
	// It may have appeared meanwhile, and its process may have begun another one with this name.
	var locked, named unix.Stat_t
	if err := unix.Fstat(sub.fd(), &locked); err != nil {
		return d.pathError("look at", name, err)
	}
	err = stat(d.fd(), name, &named, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || err == nil && named.Ino != locked.Ino {
		return nil
	}
	if err != nil {
		return d.pathError("look at", name, err)
	}
	return d.removeTree(name)
}

// removeTree removes a directory that has nothing but files in it.
func (d *Dir) removeTree(name string) error {
	sub, err := d.openExisting(name, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody else has swept it
	}
	if err != nil {
		return err
	}
	entries, err := sub.Entries()
	for _, e := range entries {
		if removeErr := sub.Remove(e.Name); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	sub.Close()
	if removeErr := d.Remove(name); !errors.Is(removeErr, fs.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	return err
}
