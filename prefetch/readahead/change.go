package readahead

// This file makes a change, and undoes it. Whoever does either holds the target's files open, or may trace it.

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
	byOwn    Way = "own"    // through files that the helper has opened for itself: nobody else reads by them, so nothing is undone
)

// SmallKiB is what a fault then reads around itself, in KiB, by the way of the open file. It is near Linux's usual 128,
// with which a mixture of experts that nobody helps is fastest, and is nobody's choice: as long as a disk's setting
// is this one, it is ours.
const SmallKiB = 124

// change is what is done, and what is needed to undo it.
type change struct {
	Way   Way       `json:"way"`
	PID   int       `json:"pid"`
	Files []setting `json:"files,omitempty"` // ByFile: of the descriptors, in their order
	Areas []advice  `json:"areas,omitempty"` // ByInject
}

// setting is that of the disk on which a file lies.
type setting struct {
	Disk string `json:"disk"` // its path
	Now  int64  `json:"now"`  // KiB, when it was looked at last
	Was  int64  `json:"was"`  // KiB that faults in the file read
}

// advice is what the target itself had advised about an area.
type advice struct {
	Area
	advised
}

// advise is fadvise(2), which tests replace.
type advise func(f *os.File, advice int) error

func fadvise(f *os.File, advice int) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, advice); err != nil {
		return fmt.Errorf("advise the target's file: %w", err)
	}
	return nil
}

// apply makes the change. files are the target's own.
func (c *change) apply(files []*os.File, advise advise) error {
	if c.Way == ByInject {
		return c.inject(func(advice) int { return unix.MADV_RANDOM })
	}
	for i, f := range files {
		if err := briefly(c.Files[i].Disk, SmallKiB, func() error { return advise(f, unix.FADV_NORMAL) }); err != nil {
			return err
		}
	}
	return nil
}

// undo takes it back.
func (c *change) undo(files []*os.File, advise advise) error {
	if c.Way == byOwn {
		return nil
	}
	if c.Way == ByInject {
		return c.inject(func(a advice) int {
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

// undo gives a file the readahead that it had. As a rule that needs no change of the disk's.
func (s *setting) undo(f *os.File, advise advise) error {
	kib, err := readDisk(s.Disk)
	switch {
	case err != nil:
		return err
	case s.Was == kib:
		return advise(f, unix.FADV_NORMAL)
	case s.Was == 2*kib:
		return advise(f, unix.FADV_SEQUENTIAL)
	}
	return briefly(s.Disk, s.Was, func() error { return advise(f, unix.FADV_NORMAL) })
}

// recover restores the disks' settings for a guardian that was killed while one of them was ours.
func (c *change) recover() error {
	var errs []error
	for _, s := range c.Files {
		errs = append(errs, restore(s.Disk, SmallKiB, s.Now))
	}
	return errors.Join(errs...)
}

// inject has the target advise its areas, as far as it still maps them. A target that has ended has none.
func (c *change) inject(advice func(advice) int) error {
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
				calls = append(calls, proc.SystemCall{Number: unix.SYS_MADVISE, Args: [3]uint64{a.Start, a.End - a.Start, uint64(advice(a))}})
			}
		}
	}
	if len(calls) == 0 {
		return nil
	}
	return p.Inject(calls)
}
