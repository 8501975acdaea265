package trace

// This file opens, locks and clears the directory of a capture.

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"regexp"
	"slices"

	"tensorcast/internal/outfile"
)

// captureFiles lists the files of a capture directory other than the segments of tables. Earlier
// versions left the temporary ones when they were killed.
var captureFiles = []string{MetaFile, MetaFile + ".tmp", StructureFile, StructureFile + ".tmp"}

func isCaptureFile(name string) bool {
	_, _, segment := segmentOf(name)
	return segment || isExport(name) || isExport(outfile.TemporaryOf(name)) ||
		slices.Contains(captureFiles, name) || slices.Contains(captureFiles, outfile.TemporaryOf(name))
}

// processDir matches the name of one process's capture in a session's directory.
var processDir = regexp.MustCompile(`^[0-9]+(-[0-9]+)?$`)

// ErrBusy means that another tracer writes to the directory.
var ErrBusy = errors.New("is being written by another tracer")

// openDir opens the directory of a capture, creates it if need be, and locks it. It fails with
// ErrOccupied if it holds anything else than a capture, and with ErrBusy if it is locked.
func openDir(path string, log *slog.Logger) (*outfile.Dir, error) {
	const attempts = 10
	for i := 0; ; i++ {
		d, err := outfile.OpenDir(path, dirMode)
		if err != nil {
			return nil, fmt.Errorf("capture directory: %w", err)
		}
		err = lockDir(d)
		switch {
		case errors.Is(err, fs.ErrNotExist) && i < attempts: // a tracer that captured nothing has removed it
			d.Close()
			continue
		case errors.Is(err, errors.ErrUnsupported):
			log.Warn("another tracer that writes to the same directory would not be noticed", "error", err)
			err = nil
		}
		if err == nil {
			err = checkOnlyCapture(d, true)
		}
		if err != nil {
			d.CloseAndRemoveEmpty()
			return nil, err
		}
		return d, nil
	}
}

// checkOnlyCapture returns ErrOccupied if dir holds anything that is not part of a capture. processes
// allows directories with the captures of single processes.
func checkOnlyCapture(dir *outfile.Dir, processes bool) error {
	entries, err := dir.Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case isCaptureFile(e.Name):
		case processes && e.Dir && processDir.MatchString(e.Name):
			check := func(d *outfile.Dir) error { return checkOnlyCapture(d, false) }
			if err := inSubdir(dir, e.Name, check); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s holds %s, which is %w", dir.Path(""), e.Name, ErrOccupied)
		}
	}
	return nil
}

// clearCapture deletes an earlier capture in dir, so that none of its tables is mistaken for one of
// this run.
func clearCapture(dir *outfile.Dir) error {
	if err := checkOnlyCapture(dir, true); err != nil {
		return err
	}
	return removeAll(dir)
}

// removeAll empties a capture directory. It removes the description first, so that what is left is
// not taken for a capture if this is interrupted.
func removeAll(dir *outfile.Dir) error {
	entries, err := dir.Entries()
	if err != nil {
		return err
	}
	for _, description := range []bool{true, false} {
		for _, e := range entries {
			if (e.Name == MetaFile) != description {
				continue
			}
			if e.Dir {
				if err := inSubdir(dir, e.Name, removeAll); err != nil {
					return err
				}
			}
			if err := dir.Remove(e.Name); err != nil {
				return fmt.Errorf("replace the earlier capture: %w", err)
			}
		}
	}
	return nil
}

// inSubdir locks a directory in dir and calls do with it.
func inSubdir(dir *outfile.Dir, name string, do func(*outfile.Dir) error) error {
	sub, err := dir.OpenSub(name, dirMode)
	if err != nil {
		return err
	}
	defer sub.Close()
	if err := lockDir(sub); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return do(sub)
}

func lockDir(dir *outfile.Dir) error {
	err := dir.Lock()
	if errors.Is(err, outfile.ErrLocked) {
		return fmt.Errorf("%s %w", dir.Path(""), ErrBusy)
	}
	return err
}
