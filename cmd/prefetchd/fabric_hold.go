package main

// This file makes the device hold weights of a model (`prefetchd fabric --hold`). It also starts
// such a device for a command (`prefetchd --exec --fabric`), and shrinks it when other programs
// need memory.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tensorcast/fabric/device"
	"tensorcast/fabric/handover"
	"tensorcast/fabric/plan"
	"tensorcast/gguf"
	"tensorcast/internal/cli"
	"tensorcast/internal/invoker"
	"tensorcast/internal/proc"
	"tensorcast/prefetch"
	"tensorcast/prefetch/costs"
	"tensorcast/prefetch/pages"
	"tensorcast/prefetch/room"
)

// profileNames returns the names of the profiles of fabric/plan, the default first.
func profileNames() []string {
	names := []string{"balanced"}
	for _, p := range plan.Profiles() {
		if p.Name != names[0] {
			names = append(names, p.Name)
		}
	}
	return names
}

// holdOptions say which weights a device holds, and in which form.
type holdOptions struct {
	model, profile, decibels string // the values of --hold, --profile and --error
	room                     int64
	finer, told              bool

	file    *os.File // nil: it holds nothing
	tensors []device.Tensor
	form    device.Form
}

// addFlags adds the flags.
func (h *holdOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	h.profile = profileNames()[0]
	f.StringVar(&h.model, "hold", "", "hold weights of this `GGUF` file for programs that have the file mapped")
	cli.EnumVar(cmd, &h.profile, "profile", "", profileNames(),
		"with --hold: how much error the planes may have, as prefetchd --help says")
	f.StringVar(&h.decibels, "error", "", "with --hold: the least ratio of products to their error, in `DECIBELS` such as 20dB (default: the profile's)")
	cli.SizeVar(f, &h.room, "room", "with --hold: the most memory that planes and their factors may take, a `SIZE` (default: all of the pool)")
	f.BoolVar(&h.finer, "finer", false, "with --hold: give weights that need two planes a third one, while there is memory")
	f.BoolVar(&h.told, "told", false, "with --hold: hold nothing until prefetchd says what to hold")
}

// open checks the options and opens the model.
func (h *holdOptions) open() (err error) {
	if h.form, err = handover.ParseForm(h.profile, h.decibels); err != nil {
		return cli.Usage(err)
	}
	h.form.Finer = h.finer
	if h.model == "" {
		return nil
	}
	m, err := gguf.Open(h.model)
	if err != nil {
		return err
	}
	if h.file, err = m.Reopen(); err != nil {
		return err
	}
	if h.tensors = handover.Tensors(handover.Units(m)); len(h.tensors) == 0 {
		return errors.Join(fmt.Errorf("%s has no weights that the device can hold", h.model), h.file.Close())
	}
	return nil
}

func (h *holdOptions) close() {
	if h.file != nil {
		_ = h.file.Close() // nothing was written
	}
}

// startLoading starts to read the weights into the device. The returned function stops that, waits
// for its end and returns its error.
func (h *holdOptions) startLoading(ctx context.Context, d *device.Device) (wait func() error) {
	if h.file == nil {
		return func() error { return nil }
	}
	// If memory is short, the kernel should kill this process first: its clients can compute
	// without it.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	if h.room > 0 {
		d.Room(uint64(h.room))
	}
	if h.told {
		d.WillWish()
	}
	d.WillHold()
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- d.Hold(ctx, h.file, h.tensors, h.form) }()
	return func() error {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// backendName is the file name of the device's backend for ggml.
const backendName = "libggml-tfmbs.so"

// leftOver is how many bytes of the room for a model the device leaves to others: to its own memory
// besides planes, to the target's memory besides the model, and to the window through which the
// rest of the model is streamed. With a room of 556 MiB, 140 MiB were best; with 343 MiB, 150 MiB.
// With less, pages are taken before they are used; with more, more is streamed
// (docs/measurements/fabric-memory.md). A small model is streamed in smaller pieces, so it leaves less.
func leftOver(room int64) int64 { return min(64<<20+room/4, 140<<20+room/128) }

// handed is a device that holds weights for a command. close ends it.
type handed struct {
	device  *handover.Device
	memory  *room.ProcessMemory
	balance *handover.Balance
	experts *handover.Experts
	log     *slog.Logger
	counter atomic.Uint64 // changes of what the device holds
	rest    atomic.Int64  // bytes that a token reads besides what the device holds, as far as that is known
	stop    context.CancelFunc
	watch   sync.WaitGroup

	profile string
	out     io.Writer
	short   device.Holding // when most tensors had more error than the profile allows; written by manageMemory
}

// changes counts how often the device has changed what it holds since the command runs.
func (h *handed) changes() uint64 { return h.counter.Load() }

// noteStatus learns from prefetchd's status how much of the model a token reads besides what the
// device holds.
func (h *handed) noteStatus(s prefetch.Status) {
	if s.PerToken > 0 {
		h.rest.Store(s.PerToken)
	}
}

const (
	// memoryInterval is how often manageMemory asks whether memory is short, which is cheap.
	memoryInterval = 20 * time.Millisecond
	// roomInterval is how often it asks how much memory there is.
	roomInterval = 500 * time.Millisecond
)

// manageMemory makes the device give memory back when others need it, until ctx ends.
func (h *handed) manageMemory(ctx context.Context) {
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	var asked time.Time
	given, heldCount, settled := int64(-1), -1, false
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			change := h.memory.PollChange()
			if now.Sub(asked) < roomInterval && !change.RoomChanged && change.ShortReason == "" {
				continue
			}
			asked = now
		}
		room, err := h.memory.Room(room.InMemory{})
		if err != nil {
			h.log.Info("the Fabric keeps its memory: nobody can tell how much is left", "err", err)
			return
		}
		if bytes := h.balance.Next(time.Now(), room.Bytes, h.rest.Load()); bytes != given {
			if given >= 0 {
				h.log.Info("the Fabric's memory changes", "to", bytes, "left", room.Bytes, "bounded by", room.Level)
				if err := device.GiveRoom(ctx, h.device.Socket(), uint64(bytes)); err != nil {
					h.log.Info("the Fabric is gone", "err", err)
				}
			}
			given = bytes
		}
		s, err := h.device.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil: // the kernel has killed it; the command computes everything from its file
			h.log.Info("the Fabric is gone", "err", err)
			h.counter.Add(1)
			return
		case s.Holding != nil && s.Holding.Below > h.short.Below:
			h.short = *s.Holding
		}
		if s.Holding == nil || s.Holding.Loading {
			continue
		}
		switch now := h.experts.SetHeld(s.Holding); {
		case !settled: // the first time is no change, because no token was computed before
			settled, heldCount = true, now
		case now != heldCount:
			heldCount = now
			h.counter.Add(1)
		}
	}
}

// close ends the device.
func (h *handed) close() error {
	h.stop()
	h.watch.Wait()
	if s := h.short; s.Below > 0 {
		fmt.Fprintf(h.out, "prefetchd: memory was short: up to %d of %d tensors on the Fabric had two planes, "+
			"with an error of up to %.1f dB, which is more than that of %s\n",
			s.Below, s.Tensors, s.Decibels, h.profile)
	}
	return errors.Join(h.device.Close(), h.memory.Close())
}

// measureDisk measures how many bytes per second the disk delivers of a file of size bytes; 0 if
// that cannot be measured.
func measureDisk(path string, size int64, log *slog.Logger) float64 {
	const piece = 2 << 20
	var blocks []pages.Range
	for at := int64(0); at+piece <= size; at += piece {
		blocks = append(blocks, pages.Range{Offset: at, Length: piece})
	}
	id, err := proc.FileOf(path)
	if err != nil || len(blocks) == 0 {
		return 0
	}
	bandwidth, err := costs.Bandwidth(proc.Place{Path: path, ID: id}, blocks)
	if err != nil {
		log.Info("cannot measure the disk", "error", err)
	}
	return bandwidth
}

// handOver starts a device that holds weights of the model that a command's arguments name, and
// sets the command's environment so that it uses the device. The result is nil if the model fits in
// memory. It reports on standard error what it does.
func (o *options) handOver(
	cmd *exec.Cmd, user *invoker.User, live *live, log *slog.Logger,
) (_ *handed, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	backend := filepath.Join(filepath.Dir(self), backendName)
	if _, err := os.Stat(backend); errors.Is(err, fs.ErrNotExist) {
		backend = filepath.Join(filepath.Dir(self), "..", "lib", backendName) // as installed
	}
	if _, err := os.Stat(backend); err != nil {
		return nil, fmt.Errorf("--fabric needs %s beside prefetchd, or in ../lib (make build, make install): %w",
			backendName, err)
	}
	path := pages.FindNamedModel(cmd.Args)
	if path == "" {
		return nil, cli.Usagef("--fabric: the command names no model (*.gguf)")
	}
	m, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	form, err := handover.ParseForm(o.fabric, o.fabricError)
	if err != nil {
		return nil, cli.Usage(err)
	}
	memory, err := room.NewProcessMemory(os.Getpid(), room.MemoryOptions{Leave: o.leave, TrustHost: o.Budget > 0})
	if err != nil {
		return nil, err
	}
	h := &handed{memory: memory, log: log, profile: o.fabric, out: live}
	defer func() {
		if h.device == nil {
			err = errors.Join(err, memory.Close())
		}
	}()
	room, err := memory.Room(room.InMemory{})
	if err != nil {
		return nil, err
	}
	if o.Budget > 0 {
		room.Bytes = min(room.Bytes, o.Budget)
	}
	units, size := handover.Units(m), int64(0)
	for i := range m.Tensors {
		size += m.Tensors[i].Size
	}
	form.Finer = true
	target := handover.Target{
		Model: size, Room: room.Bytes, LeftOver: leftOver(room.Bytes), CPUs: runtime.NumCPU(),
	}
	if size > room.Bytes {
		target.Disk = measureDisk(path, size, log)
	}
	take := handover.NewPlan(units, form, target)
	if take.Bytes == 0 {
		why := "it fits"
		if size > room.Bytes {
			why = "planes with that error would save too little"
		}
		fmt.Fprintf(live, "prefetchd: nothing is handed to the Fabric: %s of weights, room for %s: %s\n",
			humanize.IBytes(uint64(size)), humanize.IBytes(uint64(max(room.Bytes, 0))), why)
		return nil, nil
	}
	var credential *syscall.Credential
	if user != nil {
		credential = user.Credential()
	}
	h.device, err = handover.Start(handover.Options{
		Program: []string{self, "fabric"}, Credential: credential,
		Model: path, Profile: o.fabric, Error: o.fabricError, Plan: take, Stderr: live,
	})
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, h.device.Environ(backend)...)
	h.balance = handover.NewBalance(take, room.Bytes)
	h.experts = handover.NewExperts(units)
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	h.watch.Go(func() { h.manageMemory(ctx) }) // close ends it
	return h, nil
}
