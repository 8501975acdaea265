package monitor

// This file asks all prefetchds for what a picture of them needs, again and again.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Survey is what all prefetchds of this machine say at one time.
type Survey struct {
	// Reports are in the order of the sockets' names. Those with a target have a Detail from the second time on.
	Reports []Report
	// Left are the targets of prefetchds that were killed: their sockets are there, and nobody answers.
	Left []int
	// Silent are the targets of prefetchds that did not answer in time, or did not answer as they should.
	Silent []int
}

// TakeSurvey asks all prefetchds whose sockets are in a directory, at the same time, so that one that hangs holds up no
// other. It removes no sockets. The directory may be missing. If some answer wrongly or not in time, or the directory
// cannot be read, the error wraps why, and the survey has what the others say.
func TakeSurvey(ctx context.Context, dir string) (s Survey, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("look for prefetchd: %w", err)
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !socketNames.MatchString(e.Name()) })
	reports, errs := make([]Report, len(entries)), make([]error, len(entries))
	var asking sync.WaitGroup
	for i, e := range entries {
		asking.Go(func() { reports[i], errs[i] = askAt(ctx, filepath.Join(dir, e.Name()), "/status?detail") })
	}
	asking.Wait()
	for i, e := range entries {
		target, noTarget := strconv.Atoi(strings.TrimSuffix(e.Name(), suffix))
		switch _, missing := os.Lstat(filepath.Join(dir, e.Name())); {
		case errs[i] == nil:
			s.Reports = append(s.Reports, reports[i])
		case errors.Is(errs[i], errNobody) && (missing != nil || noTarget != nil): // it has ended
		case errors.Is(errs[i], errNobody):
			s.Left = append(s.Left, target)
		default:
			if noTarget == nil {
				s.Silent = append(s.Silent, target)
			}
			err = errors.Join(err, fmt.Errorf("ask prefetchd at %s: %w", filepath.Join(dir, e.Name()), errs[i]))
		}
	}
	return s, err
}
