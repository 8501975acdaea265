package main

// This file measures this machine for two or three seconds, for `prefetchd doctor --model`.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/holding"
	"tensorcast/internal/cli"
	"tensorcast/internal/host"
	"tensorcast/internal/pagecache"
	"tensorcast/internal/proc"
	"tensorcast/prefetch/costs"
	"tensorcast/prefetch/forecast"
	"tensorcast/prefetch/pace"
	"tensorcast/prefetch/pages"
)

// probe measures a machine on a file.
type probe struct {
	at      proc.Place
	pass    *forecast.Pass
	size    int64 // of the file, in bytes
	machine forecast.Machine
	notes   []string
	noDisk  error // why the disk could not be measured
}

const (
	// paceTime is how long memory, and arithmetic, are measured.
	paceTime = 200 * time.Millisecond
	// diskReadings is how often the disk is read, alone and beside computing.
	diskReadings = 3
	// busyShare is the share of the processors' time below which others keep a machine busy.
	busyShare = 0.8
)

// measure measures what it can, and notes what it cannot. The error is one without which nothing can be said.
func (p *probe) measure(ctx context.Context) error {
	m := &p.machine
	m.Processors = runtime.GOMAXPROCS(0) // the limit of a control group, too
	drop, err := p.open()
	if err != nil {
		return err
	}
	defer drop()
	spare, _, err := costs.SpareMemory()
	if err != nil {
		return fmt.Errorf("ask how much memory is free: %w", err)
	}
	memory, err := pace.NewReader(min(m.Processors, host.Cores()), spare)
	if err != nil {
		return err
	}
	m.Pace, err = memory.Measure(ctx, paceTime)
	if err == nil {
		err = p.measureDisk(ctx, memory)
	}
	if err := errors.Join(err, memory.Close()); err != nil { // its memory is free for the rest
		return err
	}
	if m.Share < busyShare {
		p.notes = append(p.notes, fmt.Sprintf("others keep this machine busy: they left %.0f %% of the processors' time; "+
			"how fast it computes is said for a machine that they leave alone", 100*m.Share))
	}
	return p.measureCosts(ctx)
}

// open asks what is to be known of the file. What it returns drops what was read of the file, if none of it was in
// memory before.
func (p *probe) open() (drop func(), err error) {
	f, err := p.at.Open()
	if err != nil {
		return nil, err
	}
	if p.machine.Readahead, err = holding.ReadAheadOf(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	p.size = info.Size()
	n, err := pagecache.Resident(f, 0, p.size)
	cold := err == nil && n <= maxHead // opening the model has read its metadata
	return func() {
		if cold {
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		}
		_ = f.Close()
	}, nil
}

// maxHead is about what opening a model reads of it.
const maxHead = 16 << 20

// probeBlocks is how many blocks the disk is measured on, evenly over the file.
const probeBlocks = 4096

// measureDisk measures the disk, alone and beside threads that read memory as fast as they can. The error is ctx's.
func (p *probe) measureDisk(ctx context.Context, memory *pace.Reader) error {
	m := &p.machine
	const block = 2 << 20
	var blocks []pages.Range
	all := p.size / block
	for i := int64(0); i < all; i += max(all/probeBlocks, 1) {
		blocks = append(blocks, pages.Range{Offset: i * block, Length: block})
	}
	if all == 0 {
		p.noDisk = fmt.Errorf("%s is smaller than what is read to measure", p.at.Path)
		return nil
	}
	// Whatever disturbs a reading makes it smaller, so the greatest of some counts.
	for range diskReadings {
		rate, err := costs.Bandwidth(p.at, blocks)
		if err != nil {
			p.noDisk = err
			return nil
		}
		m.Disk = max(m.Disk, rate)
		var besideComputing float64
		pace, err := memory.Beside(ctx, costs.BandwidthDepth, func(context.Context) (err error) {
			besideComputing, err = costs.Bandwidth(p.at, blocks)
			return err
		})
		if err != nil {
			return err
		}
		if besideComputing > m.DiskBeside {
			m.DiskBeside, m.Slowdown = besideComputing, max(m.Pace.Memory/max(pace, 1), 1)
		}
	}
	m.DiskBeside = min(m.DiskBeside, m.Disk)
	if e := p.pass.Experts; e != nil {
		return p.measureGathers(ctx, e)
	}
	return nil
}

// maxSlices is how many slices are gathered at once at most. No layer of a known model chooses as many.
const maxSlices = 256

// measureGathers measures how long the slices of one expert take, and those of all that a layer chooses.
func (p *probe) measureGathers(ctx context.Context, e *forecast.Experts) error {
	gather := func(slices int) (*forecast.Gather, error) {
		slices = max(min(slices, int(costs.MaxGather/e.Slice), maxSlices), 1)
		took, err := costs.GatherTime(ctx, p.at, e.Slice, slices)
		if err != nil {
			return nil, err
		}
		return &forecast.Gather{Slices: slices, Time: took}, nil
	}
	var err error
	if p.machine.One, err = gather(e.Slices); err == nil {
		p.machine.All, err = gather(e.Slices * e.Chosen)
	}
	if err != nil && ctx.Err() == nil {
		p.noDisk = err
		return nil
	}
	return err
}

// measureCosts measures what reading costs the processors, and at which rate a program's own faults read. Both go only
// by what is not in memory. The error is ctx's.
func (p *probe) measureCosts(ctx context.Context) error {
	m := &p.machine
	c, err := costs.MeasureBriefly(ctx, p.at)
	if err == nil {
		m.Cost = &c.Ways[len(c.Ways)-1] // large folios that were touched before, if there are any
		m.Touched, err = costs.TouchRate(ctx, p.at, m.Threads)
		m.Disk = max(m.Disk, m.Touched) // a disk that was disturbed before
	}
	if err != nil && ctx.Err() == nil {
		p.notes = append(p.notes, "what reading costs the processors could not be measured, and is taken to be as usual: "+
			cli.Message(err))
		return nil
	}
	return err
}

// sampleBytes is the size of the file on which a disk is measured for a model that is not here.
const sampleBytes = 256 << 20

// makeSample writes a file without a name to the current directory. done gives its space back.
func makeSample(ctx context.Context) (at proc.Place, done func() error, err error) {
	const what = "measure the disk of the current directory, for a model that is not here: %w"
	fd, err := unix.Open(".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600) // nobody else can name it
	if err != nil {
		return at, nil, fmt.Errorf(what, err)
	}
	f := os.NewFile(uintptr(fd), "the sample of the disk")
	if err = fillSample(ctx, f); err == nil {
		at.Path = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		at.ID, err = proc.FileOf(at.Path)
	}
	if err == nil {
		err = checkStore(at)
	}
	if err != nil {
		return at, nil, errors.Join(fmt.Errorf(what, err), f.Close())
	}
	return at, f.Close, nil
}

// fillSample fills a file with what no file system makes smaller, and drops it from memory.
func fillSample(ctx context.Context, f *os.File) error {
	random := rand.NewChaCha8([32]byte{})
	piece := make([]byte, 4<<20)
	for written := 0; written < sampleBytes; written += len(piece) {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, _ = random.Read(piece) // it has no errors
		if _, err := f.Write(piece); err != nil {
			return err
		}
	}
	_, err := pagecache.Drop(ctx, f)
	return err
}
