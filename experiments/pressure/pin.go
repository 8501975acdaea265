package pressure

// This file is the static baseline: it locks the first bytes of a file in memory, and nothing else.

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"tensorcast/internal/proc"
	"tensorcast/internal/regular"
)

// Pin locks the first bytes of the file at path in memory (mlock, as vmtouch -l does), in whole
// pages, until the process pid has ended or ctx ends, which is no error. What it reads is charged
// to the calling process's memory control group. When all are locked it calls locked, if that is
// not nil, with their number: length, or the file's size if that is less.
func Pin(ctx context.Context, path string, length int64, pid int, locked func(int64)) (err error) {
	target, err := proc.Open(pid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	f, err := regular.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if length = min(length, info.Size()) &^ int64(os.Getpagesize()-1); length > 0 {
		mapping, err := unix.Mmap(int(f.Fd()), 0, int(length), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map %d bytes of %s: %w", length, path, err)
		}
		defer func() { err = errors.Join(err, unix.Munmap(mapping)) }() // which also unlocks
		for at := 0; at < len(mapping) && ctx.Err() == nil; at += loadStep {
			if ended, err := target.Ended(); ended || err != nil {
				return err
			}
			if err := unix.Mlock(mapping[at:min(at+loadStep, len(mapping))]); err != nil {
				return fmt.Errorf("lock bytes %d to %d of %s: %w", at, min(at+loadStep, len(mapping)), path, err)
			}
		}
	}
	if ctx.Err() == nil && locked != nil {
		locked(max(length, 0))
	}
	if err := target.Wait(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}
