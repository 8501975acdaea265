package device

// This file serves one client: it makes its memory file, and takes jobs from its rings until it ends.

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// client is a connected client. run belongs to one goroutine; stop may be called by another.
type client struct {
	fd          int
	memory      []byte
	entries     uint32
	submissions []byte // the submission ring
	completions []byte // the completion ring
	executor    executor
	counts      *jobCounts
	productEnd  time.Time // of the last job, if that was a product
	closing     atomic.Bool
	ended       chan struct{}
}

// newClient makes the memory file of a client. The parameters must have been checked.
func newClient(arena uint64, entries uint32) (*client, error) {
	subAt := pageBytes
	compAt := subAt + roundUp(int(entries)*DescriptorBytes, pageBytes)
	arenaAt := compAt + roundUp(int(entries)*CompletionBytes, pageBytes)
	size := arenaAt + roundUp(int(arena), pageBytes)
	fd, b, err := memoryFile(size)
	if err != nil {
		return nil, err
	}
	p := binary.NativeEndian
	p.PutUint64(b[0:], Magic)
	p.PutUint32(b[8:], Version)
	p.PutUint32(b[12:], entries)
	p.PutUint64(b[16:], uint64(subAt))
	p.PutUint64(b[24:], uint64(compAt))
	p.PutUint64(b[32:], uint64(arenaAt))
	p.PutUint64(b[40:], uint64(size-arenaAt))
	return &client{
		fd: fd, memory: b, entries: entries,
		submissions: b[subAt : subAt+int(entries)*DescriptorBytes],
		completions: b[compAt : compAt+int(entries)*CompletionBytes],
		executor:    executor{arena: b[arenaAt:], handles: map[uint64]*handle{}},
		ended:       make(chan struct{}),
	}, nil
}

// stop ends run and waits until it has ended. The client can write any value to the words, so run is woken
// again and again until it has seen that it is to end.
func (c *client) stop() {
	c.closing.Store(true)
	bell := wordAt(c.memory, wordDoorbell)
	wakeAll(bell)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-tick.C:
			wakeAll(bell)
		}
	}
}

// close frees all that the client had. run must have ended, or never begun.
func (c *client) close() error {
	c.executor.close()
	err := unix.Munmap(c.memory)
	if e := unix.Close(c.fd); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("free a client's memory: %w", err)
	}
	return nil
}

// spinTime is how long a client's goroutine looks for the next job after a product before it sleeps. Between
// the products of a token, llama.cpp computes for some 20 us, and being woken takes longer.
const spinTime = 50 * time.Microsecond

// napTime is how long a client's goroutine sleeps without giving up its P, which it needs to run again at once.
const napTime = 20 * time.Millisecond

// run takes jobs until stop, or until the client breaks the rules of the rings: that is an error.
func (c *client) run() error {
	defer close(c.ended)
	m := c.memory
	submitted, taken := wordAt(m, wordSubmitted), wordAt(m, wordTaken)
	completed, reaped, wanted := wordAt(m, wordCompleted), wordAt(m, wordReaped), wordAt(m, wordWanted)
	doorbell, asleep := wordAt(m, wordDoorbell), wordAt(m, wordAsleep)
	bell, waiting, held := wordAt(m, wordBell), wordAt(m, wordWaiting), wordAt(m, wordHeld)
	var head, tail uint32 // of the rings. The client may overwrite taken and completed; that changes nothing
	var entry [DescriptorBytes]byte
	var result [CompletionBytes]byte
	var cancel *atomic.Uint32
	cancelled := func() bool { return cancel.Load() != 0 || c.closing.Load() }
	for !c.closing.Load() {
		rung := doorbell.Load()
		ready, full := submitted.Load()-head, tail-reaped.Load()
		if ready > c.entries || full > c.entries {
			return fmt.Errorf("%d jobs submitted and %d completions unread in rings of %d", ready, full, c.entries)
		}
		if ready == 0 && !c.productEnd.IsZero() && time.Since(c.productEnd) < spinTime {
			for i := 0; i < 64 && submitted.Load() == head; i++ {
			}
			continue
		}
		if ready == 0 || full == c.entries {
			reason := uint32(asleepForWork)
			if ready > 0 {
				reason = asleepForRoom
			}
			if asleep.Swap(reason) == reason {
				if futexNap(doorbell, rung, napTime); doorbell.Load() == rung {
					futexSleep(doorbell, rung)
				}
				asleep.Store(0)
			}
			continue // asleep is set now: look once more before sleeping
		}
		asleep.Store(0)
		at := int(head%c.entries) * DescriptorBytes
		copy(entry[:], c.submissions[at:at+DescriptorBytes])
		cancel = wordAt(c.submissions, at+descriptorCancel)
		r := c.runJob(&entry, cancelled)
		r.Encode(&result)
		copy(c.completions[int(tail%c.entries)*CompletionBytes:], result[:])
		head++
		tail++
		taken.Store(head)
		held.Store(c.executor.store.heldChanges.Load())
		completed.Store(tail)
		bell.Add(1)
		if waiting.Load() != 0 && int32(tail-wanted.Load()) >= 0 {
			wakeAll(bell)
		}
	}
	return nil
}

// runJob executes and counts the job of an entry.
func (c *client) runJob(entry *[DescriptorBytes]byte, cancelled func() bool) Completion {
	begun := time.Now()
	var d Descriptor
	valid := d.decode(entry)
	r := Completion{Tag: d.Tag}
	switch {
	case !valid:
		r.Status = statusInvalid
	case cancelled():
		r.Status = statusCancelled
	default:
		c.executor.execute(&d, &r, cancelled)
	}
	end := time.Now()
	r.Nanos = uint64(end.Sub(begun))
	if d.Op != OpProduct {
		c.productEnd = time.Time{}
	} else {
		if wait := begun.Sub(c.productEnd); !c.productEnd.IsZero() && wait <= maxHostPause {
			c.counts.hostNanos.Add(uint64(wait))
		}
		c.productEnd = end
	}
	c.counts.add(&d, &r)
	return r
}
