package device

// This file is the device: its socket, and the clients that connect to it.

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/fabric"
)

// Options of a device. Zero values stand for the defaults.
type Options struct {
	PoolBytes  int           // bytes of planes in the pool (4 GiB)
	HostBytes  int           // bytes of evicted planes (4 GiB)
	ArenaBytes int           // most bytes of a client's arena (4 GiB)
	Clients    int           // most clients at a time (64)
	Workers    int           // goroutines that multiply (GOMAXPROCS)
	Idle       time.Duration // how long the device serves without a client; 0: forever
	Log        *slog.Logger
}

func (o Options) withDefaults() Options {
	for _, v := range []*int{&o.PoolBytes, &o.HostBytes, &o.ArenaBytes} {
		if *v == 0 {
			*v = 4 << 30
		}
	}
	if o.Clients == 0 {
		o.Clients = 64
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// ErrRunning says that a device serves the socket already.
var ErrRunning = errors.New("a device is running there already")

// SocketPath is the path of a user's device: $TFMBS_SOCKET, or fabric.sock in $XDG_RUNTIME_DIR/tensorcast, or
// in /tmp/tensorcast-UID. The driver in C has the same rule.
func SocketPath() string {
	if p := os.Getenv("TFMBS_SOCKET"); p != "" {
		return p
	}
	dir := fmt.Sprintf("/tmp/tensorcast-%d", os.Getuid())
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		dir = filepath.Join(d, "tensorcast")
	}
	return filepath.Join(dir, "fabric.sock")
}

// Device serves clients. Its methods may be called concurrently.
type Device struct {
	options  Options
	path     string
	listener *net.UnixListener
	lock     *os.File // path.lock, which is locked: there is one device for each socket
	store    *store
	holdings *holdings
	pool     *fabric.Pool
	counts   jobCounts
	begun    time.Time

	mu          sync.Mutex
	open        map[*net.UnixConn]struct{}
	conns       sync.WaitGroup // goroutines that serve them
	clients     int            // clients with a memory file
	clientsEver uint64
	idle        *time.Timer // ends Serve unless there is a client
}

// Listen makes a device with its socket at path. It makes the socket's directory if it is missing; only this
// user may be able to enter it. The error wraps ErrRunning if another device serves there. The caller must call
// Close.
func Listen(path string, o Options) (_ *Device, err error) {
	d := &Device{options: o.withDefaults(), path: path, begun: time.Now(), open: map[*net.UnixConn]struct{}{}}
	if err := makePrivateDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.lock, err = os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600); err != nil {
		return nil, fmt.Errorf("open the socket's lock: %w", err)
	}
	if err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = d.lock.Close()
		d.lock = nil
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrRunning
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if d.store, err = newStore(d.options.PoolBytes, d.options.HostBytes, d.options.Log); err != nil {
		return nil, err
	}
	d.holdings = newHoldings(d.store, uint64(d.options.PoolBytes), d.options.Workers)
	d.pool = fabric.NewPool(d.options.Workers)
	// This process has the lock, so a socket there is left over from a device that has ended.
	if info, e := os.Lstat(path); e == nil && info.Mode().Type() == os.ModeSocket {
		_ = os.Remove(path)
	}
	if d.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"}); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err = os.Chmod(path, 0o600); err != nil {
		return nil, fmt.Errorf("close the socket to others: %w", err)
	}
	return d, nil
}

// makePrivateDir makes a directory that only this user can enter, or checks that it is one.
func makePrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the socket's directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at the socket's directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s must be a directory that belongs to this user and that nobody else can enter (mode 0700)",
			dir)
	}
	return nil
}

// Close frees a device. Serve must have returned, or not have been called.
func (d *Device) Close() error {
	var errs []error
	if d.listener != nil {
		if err := d.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if d.pool != nil {
		d.pool.Close()
		d.pool = nil
	}
	if d.store != nil {
		errs = append(errs, d.store.close())
		d.store = nil
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
		d.lock = nil
	}
	return errors.Join(errs...)
}

// Serve serves clients until ctx ends, or there has been no client for long enough (Options.Idle). Neither is
// an error. When it returns, all clients are gone.
func (d *Device) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var ahead sync.WaitGroup
	ahead.Go(func() { d.store.fetchAhead(ctx) })
	defer ahead.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = d.listener.Close() }) // then AcceptUnix fails
	defer stop()
	d.mu.Lock()
	if d.options.Idle > 0 {
		d.idle = time.AfterFunc(d.options.Idle, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.clients == 0 {
				cancel()
			}
		})
		defer d.idle.Stop()
	}
	d.mu.Unlock()
	var err error
	for {
		var c *net.UnixConn
		if c, err = d.listener.AcceptUnix(); err != nil {
			if ctx.Err() == nil && (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) ||
				errors.Is(err, unix.ECONNABORTED)) {
				d.options.Log.Warn("a client could not connect", "err", err)
				time.Sleep(10 * time.Millisecond) // somebody may leave
				continue
			}
			break
		}
		d.mu.Lock()
		if len(d.open) >= 2*d.options.Clients {
			d.mu.Unlock()
			_ = c.Close()
			continue
		}
		d.open[c] = struct{}{}
		d.mu.Unlock()
		d.conns.Go(func() {
			// Only an ending device closes connections of others: that is no fault of the client.
			if err := d.serve(c); err != nil && !errors.Is(err, net.ErrClosed) {
				d.options.Log.Warn("a client was dropped", "err", err)
			}
			d.mu.Lock()
			delete(d.open, c)
			d.mu.Unlock()
			_ = c.Close()
		})
	}
	d.mu.Lock()
	for c := range d.open {
		_ = c.Close() // ends its reads
	}
	d.mu.Unlock()
	d.conns.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("accept clients: %w", err)
}

// helloWait is how long a client has to send its hello, and a device to answer it.
const helloWait = 5 * time.Second

// serve reads the hello of a connection and answers it. If it opens a client, serve returns when the client hangs up.
func (d *Device) serve(c *net.UnixConn) error {
	owner, err := d.checkPeer(c)
	if err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(helloWait))
	b := make([]byte, helloBytes+4*maxWishes+1)
	n, err := c.Read(b)
	if err != nil {
		return nil // it left
	}
	u32, u64 := binary.NativeEndian.Uint32, binary.NativeEndian.Uint64
	wishes := 0
	if n > helloBytes && u32(b[12:]) == kindWish && u64(b[16:]) <= maxWishes {
		wishes = int(u64(b[16:]))
	}
	if n != helloBytes+4*wishes || u64(b[0:]) != Magic || u32(b[8:]) != Version {
		_ = sendAnswer(c, -int32(unix.EPROTO), 0, -1)
		return fmt.Errorf("a hello of %d bytes that is none of version %d", n, Version)
	}
	switch u32(b[12:]) {
	case kindStatus:
		text, err := json.Marshal(d.Status())
		if err != nil {
			return err
		}
		_ = c.SetWriteDeadline(time.Now().Add(helloWait))
		_, err = c.Write(text)
		return err
	case kindRoom:
		d.Room(u64(b[16:]))
		return sendAnswer(c, 0, 0, -1)
	case kindWish:
		which := make([]int, wishes)
		for i := range which {
			which[i] = int(u32(b[helloBytes+4*i:]))
		}
		d.Wish(which)
		return sendAnswer(c, 0, 0, -1)
	case kindOpen:
		if !owner {
			return errors.Join(sendAnswer(c, -int32(unix.EPERM), 0, -1),
				errors.New("root may ask, and say how much room there is, but is not the owner"))
		}
		return d.serveClient(c, u64(b[16:]), u32(b[24:]))
	}
	return sendAnswer(c, -int32(unix.EPROTO), 0, -1)
}

// checkPeer refuses users other than the owner and root.
func (d *Device) checkPeer(c *net.UnixConn) (owner bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	var cred *unix.Ucred
	var e error
	err = raw.Control(func(fd uintptr) { cred, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err == nil {
		err = e
	}
	if err != nil {
		return false, fmt.Errorf("ask who a client is: %w", err)
	}
	owner = int(cred.Uid) == os.Geteuid()
	if !owner && cred.Uid != 0 {
		return false, fmt.Errorf("user %d is not the owner", cred.Uid)
	}
	return owner, nil
}

// sendAnswer answers a hello: with a status, and for a client that is opened with the size and the descriptor
// of its memory file (fd -1: none).
func sendAnswer(c *net.UnixConn, status int32, size, fd int) error {
	var b [helloBytes]byte
	binary.NativeEndian.PutUint64(b[0:], Magic)
	binary.NativeEndian.PutUint32(b[8:], Version)
	binary.NativeEndian.PutUint32(b[12:], uint32(status))
	binary.NativeEndian.PutUint64(b[16:], uint64(size))
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	_ = c.SetWriteDeadline(time.Now().Add(helloWait))
	if _, _, err := c.WriteMsgUnix(b[:], rights, nil); err != nil {
		return fmt.Errorf("answer a client: %w", err)
	}
	return nil
}

// serveClient makes a client with an arena of so many bytes and rings of so many entries, and serves it until
// it hangs up.
func (d *Device) serveClient(c *net.UnixConn, arena uint64, entries uint32) error {
	if arena == 0 || arena > uint64(d.options.ArenaBytes) || entries < 2 || entries > maxEntries ||
		entries&(entries-1) != 0 {
		return errors.Join(sendAnswer(c, statusInvalid, 0, -1),
			fmt.Errorf("a client wants %d bytes and rings of %d", arena, entries))
	}
	if !d.admitClient() {
		return errors.Join(sendAnswer(c, -int32(unix.EUSERS), 0, -1),
			fmt.Errorf("more than %d clients", d.options.Clients))
	}
	defer d.dismissClient()
	cl, err := newClient(arena, entries)
	if err != nil {
		return errors.Join(sendAnswer(c, statusNoMemory, 0, -1), err)
	}
	cl.counts = &d.counts
	e := &cl.executor
	e.store, e.pool, e.workers, e.tokens = d.store, d.pool, d.options.Workers, &d.counts.tokens
	broke := make(chan error, 1)
	if err = sendAnswer(c, 0, len(cl.memory), cl.fd); err != nil {
		return errors.Join(err, cl.close())
	}
	_ = c.SetReadDeadline(time.Time{})
	go func() { // cl.stop ends it
		err := cl.run()
		if err != nil {
			_ = c.SetReadDeadline(time.Unix(1, 0)) // ends the read below
		}
		broke <- err
	}()
	var b [1]byte
	_, _ = c.Read(b[:]) // until it hangs up; it must not send anything more
	cl.stop()
	return errors.Join(<-broke, cl.close())
}

// admitClient counts a client. It reports false if there are too many.
func (d *Device) admitClient() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.clients >= d.options.Clients {
		return false
	}
	d.clients++
	d.clientsEver++
	return true
}

// dismissClient follows admitClient.
func (d *Device) dismissClient() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.clients--; d.clients == 0 && d.idle != nil {
		d.idle.Reset(d.options.Idle)
	}
}
