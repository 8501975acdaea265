package device

// This file serves one client: its memory file, its rings, and its end.

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
	completions []byte
	executor    executor
	counts      *jobCounts
	closing     atomic.Bool
	ended       chan struct{}
}

// newClient makes the memory file of a client, whose parameters have been checked.
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
		fd: fd, memory: b, entries: entries, submissions: b[subAt : subAt+int(entries)*DescriptorBytes], completions: b[compAt : compAt+int(entries)*CompletionBytes],
		executor: executor{arena: b[arenaAt:], handles: map[uint64]*handle{}}, ended: make(chan struct{}),
	}, nil
}

// stop ends run and waits until it has ended. The client may hold any value in the words, so it is woken until it has seen it.
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

// close frees what the client had. run must have ended, or never begun.
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

// lookTime is how long a client's goroutine looks for the next product after one before it sleeps. Between the products of a token llama.cpp computes for some 20 us, and being woken takes longer.
const spinTime = 50 * time.Microsecond

// napTime is how long a client's goroutine keeps what it needs to run again at once.
const napTime = 20 * time.Millisecond

// run takes jobs until stop, or until the client breaks the rules of the rings: that is an error.
func (c *client) run() error {
	defer close(c.ended)
	m := c.memory
	submitted, taken, completed, reaped := wordAt(m, wordSubmitted), wordAt(m, wordTaken), wordAt(m, wordCompleted), wordAt(m, wordReaped)
	changes := wordAt(m, wordHeld)
	doorbell, asleep, bell, waiting, wanted := wordAt(m, wordDoorbell), wordAt(m, wordAsleep), wordAt(m, wordBell), wordAt(m, wordWaiting), wordAt(m, wordWanted)
	var head, tail uint32 // ours: what the client writes over taken and completed changes nothing
	var entry [DescriptorBytes]byte
	var result [CompletionBytes]byte
	var cancel *atomic.Uint32
	var over time.Time // of the last product, if nothing came after it
	cancelled := func() bool { return cancel.Load() != 0 || c.closing.Load() }
	for !c.closing.Load() {
		rung := doorbell.Load()
		ready, full := submitted.Load()-head, tail-reaped.Load()
		if ready > c.entries || full > c.entries {
			return fmt.Errorf("%d jobs submitted and %d completions unread in rings of %d", ready, full, c.entries)
		}
		if ready == 0 && !over.IsZero() && time.Since(over) < spinTime {
			for i := 0; i < 64 && submitted.Load() == head; i++ {
			}
			continue
		}
		if ready == 0 || full == c.entries {
			why := uint32(asleepForWork)
			if ready > 0 {
				why = asleepForRoom
			}
			if asleep.Swap(why) == why {
				if futexNap(doorbell, rung, napTime); doorbell.Load() == rung {
					futexSleep(doorbell, rung)
				}
				asleep.Store(0)
			}
			continue // with asleep set, look once more
		}
		asleep.Store(0)
		at := int(head%c.entries) * DescriptorBytes
		copy(entry[:], c.submissions[at:at+DescriptorBytes])
		cancel = wordAt(c.submissions, at+descriptorCancel)

		begun := time.Now()
		var d Descriptor
		valid := d.decode(&entry)
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
			over = time.Time{}
		} else {
			if wait := begun.Sub(over); !over.IsZero() && wait <= maxHostPause {
				c.counts.host.Add(uint64(wait))
			}
			over = end
		}
		c.counts.add(&d, &r)
		r.Encode(&result)
		copy(c.completions[int(tail%c.entries)*CompletionBytes:], result[:])
		head++
		tail++
		taken.Store(head)
		changes.Store(c.executor.store.heldChanges.Load())
		completed.Store(tail)
		bell.Add(1)
		if waiting.Load() != 0 && int32(tail-wanted.Load()) >= 0 {
			wakeAll(bell)
		}
	}
	return nil
}
