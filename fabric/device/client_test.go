package device

// This file has a client in Go, for tests, which uses the rings as doc.go describes them.

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

type testClient struct {
	conn         *net.UnixConn
	memory       []byte
	arena        []byte
	entries      uint32
	subs, comps  uint64 // offsets of the submission and the completion ring
	tail, reaped uint32 // entries written to the one, and read from the other
}

// start runs a device until the test ends. It returns the path of its socket, too.
func start(t testing.TB, o Options) (*Device, string) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	d, err := Listen(path, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, path
}

// dial opens a client of the device at path.
func dial(path string, arena uint64, entries uint32) (*testClient, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	var b, oob [helloBytes]byte
	binary.NativeEndian.PutUint64(b[0:], Magic)
	binary.NativeEndian.PutUint32(b[8:], Version)
	binary.NativeEndian.PutUint32(b[12:], kindOpen)
	binary.NativeEndian.PutUint64(b[16:], arena)
	binary.NativeEndian.PutUint32(b[24:], entries)
	if _, err = c.Write(b[:]); err != nil {
		return nil, err
	}
	_, n, _, _, err := c.ReadMsgUnix(b[:], oob[:])
	if err != nil {
		return nil, err
	}
	if status := int32(binary.NativeEndian.Uint32(b[12:])); status != 0 {
		_ = c.Close()
		return nil, unix.Errno(-status)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	defer unix.Close(fds[0])
	if err := unix.Ftruncate(fds[0], 4096); err == nil {
		return nil, fmt.Errorf("the memory file can be made smaller")
	}
	m, err := unix.Mmap(fds[0], 0, int(binary.NativeEndian.Uint64(b[16:])), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	u64 := binary.NativeEndian.Uint64
	return &testClient{
		conn: c, memory: m, arena: m[u64(m[32:]):], entries: entries, subs: u64(m[16:]), comps: u64(m[24:]),
	}, nil
}

func (c *testClient) close() {
	_ = c.conn.Close()
	_ = unix.Munmap(c.memory)
}

// submit writes a job to the ring.
func (c *testClient) submit(d *Descriptor) {
	var b [DescriptorBytes]byte
	d.Encode(&b)
	copy(c.memory[c.subs+uint64(c.tail%c.entries)*DescriptorBytes:], b[:])
	c.tail++
	wordAt(c.memory, wordSubmitted).Store(c.tail)
	c.ring()
}

// ring tells the device that there is something to do.
func (c *testClient) ring() {
	wordAt(c.memory, wordDoorbell).Add(1)
	if wordAt(c.memory, wordAsleep).Load() != 0 {
		wakeAll(wordAt(c.memory, wordDoorbell))
	}
}

// wait waits for the next completion.
func (c *testClient) wait() (r Completion) {
	bell, waiting := wordAt(c.memory, wordBell), wordAt(c.memory, wordWaiting)
	for {
		b := bell.Load()
		if wordAt(c.memory, wordCompleted).Load() != c.reaped {
			break
		}
		waiting.Store(1)
		if wordAt(c.memory, wordCompleted).Load() == c.reaped {
			futexSleep(bell, b)
		}
		waiting.Store(0)
	}
	at := c.comps + uint64(c.reaped%c.entries)*CompletionBytes
	r.Decode((*[CompletionBytes]byte)(c.memory[at : at+CompletionBytes]))
	c.reaped++
	wordAt(c.memory, wordReaped).Store(c.reaped)
	if wordAt(c.memory, wordAsleep).Load() == asleepForRoom {
		c.ring()
	}
	return r
}

// do submits a job and waits for its completion.
func (c *testClient) do(d Descriptor) Completion {
	c.submit(&d)
	return c.wait()
}
