package pressure

// This file takes the readings of the disk during a series: of the disk by itself, and beside the computing target.

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// fastestSettings is how many of the grid's settings are measured again: the best of a single grid
// may have been best by chance.
const fastestSettings = 3

const (
	// besideTime is how long each of the fastest settings reads beside the target.
	besideTime = 200 * time.Millisecond
	// besideNice is the priority of these reads. A helper that the target waits for has it, too: the target's threads
	// compute on all processors.
	besideNice = -15
)

// readDisk takes a reading of the disk.
func (s *series) readDisk(ctx context.Context) error {
	s.progress("measuring the disk")
	options := s.cfg.Disk
	options.Settings = s.fastest
	result, err := DiskBandwidth(ctx, s.cfg.Model, s.extents, options)
	if err != nil {
		return err
	}
	s.report.Readings = append(s.report.Readings, DiskReading{len(s.report.Runs), result})
	return nil
}

// readBeside takes a reading of the disk while the target computes with all of the model in memory. Both read memory at
// the same time, and a virtual disk may need the processors, too. So the disk may deliver less than by itself.
func (s *series) readBeside(ctx context.Context) error {
	in := Folios
	if s.report.NoFolios != "" {
		in = Pages
	}
	var result DiskResult
	var failed error
	var took time.Duration
	run, err := s.run(ctx, runSpec{variant: Variant{Name: "beside the disk"}, in: in, beside: func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with its priority
		if failed = unix.Setpriority(unix.PRIO_PROCESS, 0, besideNice); failed != nil {
			failed = fmt.Errorf("raise the priority of reads beside the target: %w", failed)
			return
		}
		begun := time.Now()
		options := s.cfg.Disk
		options.Settings, options.PointTime = s.fastest, besideTime
		result, failed = DiskBandwidth(ctx, s.cfg.Model, s.extents, options)
		took = time.Since(begun)
	}})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	s.done++
	tokens, enough := countTokensIn(run.TokenMs, took)
	if !enough { // it went on beside nothing
		return nil
	}
	s.report.Beside = append(s.report.Beside, BesideReading{DiskReading{len(s.report.Runs), result}, took.Seconds(),
		tokens})
	return nil
}

// countTokensIn is how many tokens, and parts of one, were generated in a time that begins with the first one. ms are
// the times of each. enough is false if the tokens ended before the time did.
func countTokensIn(ms []float64, in time.Duration) (tokens float64, enough bool) {
	left := in.Seconds() * 1000
	for _, took := range ms {
		if left < took {
			return tokens + left/took, true
		}
		tokens++
		left -= took
	}
	return tokens, false
}
