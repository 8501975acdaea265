package readahead

// This file makes a change, and undoes it. Whoever does either holds the target's files open, or may trace
// the target.

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"tensorcast/internal/proc"
)

// Way is how readahead is made small.
type Way string

const (
	ByFile   Way = "fd"     // through the open file with which the model was mapped
	ByInject Way = "inject" // by a thread of the target, which advises the mapping
	// byOwn is through files that the helper has opened for itself. Nobody else reads by them, so nothing is
	// undone.
	byOwn Way = "own"
)

// SmallKiB is what a fault reads around itself after a change ByFile, in KiB. It is near Linux's usual 128,
// with which a mixture of experts that nobody helps is fastest. Nobody else would choose 124: a disk whose
// setting it is was changed by us.
const SmallKiB = 124

// change is what is done, and what is needed to undo it.
type change struct {
	Way   Way       `json:"way"`
	PID   int       `json:"pid"`
	Files []setting `json:"files,omitempty"` // ByFile: of the descriptors, in their order
	Areas []advice  `json:"areas,omitempty"` // ByInject
}

// setting is the readahead of the disk on which a file lies, and of the file.
type setting struct {
	Disk string `json:"disk"` // path of the disk's setting
	Now  int64  `json:"now"`  // KiB, the disk's when it was read last
	Was  int64  `json:"was"`  // KiB that faults in the file read before the change
}

// advice is an area, and what the target itself had advised about it.
type advice struct {
	area
	advised
}

// adviseFunc is fadvise or a test's replacement of it.
type adviseFunc func(f *os.File, advice int) error

// fadvise advises all of a file (posix_fadvise(2)).
func fadvise(f *os.File, advice int) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, advice); err != nil {
		return fmt.Errorf("advise the target's file: %w", err)
	}
	return nil
}

// apply makes the change. files are the target's own.
func (c *change) apply(files []*os.File, advise adviseFunc) error {
	if c.Way == ByInject {
		return c.adviseInTarget(func(advice) int { return unix.MADV_RANDOM })
	}
	for i, f := range files {
		err := withSetting(c.Files[i].Disk, SmallKiB, func() error { return advise(f, unix.FADV_NORMAL) })
		if err != nil {
			return err
		}
	}
	return nil
}

// undo undoes the change.
func (c *change) undo(files []*os.File, advise adviseFunc) error {
	if c.Way == byOwn {
		return nil
	}
	if c.Way == ByInject {
		return c.adviseInTarget(func(a advice) int {
			switch {
			case a.Random:
				return unix.MADV_RANDOM
			case a.Sequential:
				return unix.MADV_SEQUENTIAL
			}
			return unix.MADV_NORMAL
		})
	}
	var errs []error
	for i, f := range files {
		errs = append(errs, c.Files[i].undo(f, advise))
	}
	return errors.Join(errs...)
}

// undo gives a file the readahead that it had. Usually the disk's setting need not be changed for that.
func (s *setting) undo(f *os.File, advise adviseFunc) error {
	kib, err := readSetting(s.Disk)
	switch {
	case err != nil:
		return err
	case s.Was == kib:
		return advise(f, unix.FADV_NORMAL)
	case s.Was == 2*kib:
		return advise(f, unix.FADV_SEQUENTIAL)
	}
	return withSetting(s.Disk, s.Was, func() error { return advise(f, unix.FADV_NORMAL) })
}

// recoverDisks restores the disks' settings after a guardian was killed, which may have been while one of
// them was ours.
func (c *change) recoverDisks() error {
	var errs []error
	for _, s := range c.Files {
		errs = append(errs, restoreDisk(s.Disk, SmallKiB, s.Now))
	}
	return errors.Join(errs...)
}

// adviseInTarget makes the target advise those areas that it still maps (madvise(2)). A target that has ended
// maps none.
func (c *change) adviseInTarget(choose func(advice) int) error {
	p, err := proc.Open(c.PID)
	if err != nil {
		return err
	}
	defer p.Close()
	mappings, err := proc.Mappings(c.PID)
	if err != nil {
		return err
	}
	var calls []proc.SystemCall
	for _, a := range c.Areas {
		for _, m := range mappings {
			if m.Start == a.Start && m.End == a.End && m.Path == a.Path && m.File.Ino == a.Ino {
				args := [3]uint64{a.Start, a.End - a.Start, uint64(choose(a))}
				calls = append(calls, proc.SystemCall{Number: unix.SYS_MADVISE, Args: args})
			}
		}
	}
	if len(calls) == 0 {
		return nil
	}
	return p.Inject(calls)
}
