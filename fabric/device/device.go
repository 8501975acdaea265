package device

// This file is the device: its socket, its clients, its counters.

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
	PoolBytes  int           // planes in the pool (4 GiB)
	HostBytes  int           // evicted planes (4 GiB)
	ArenaBytes int           // of a client's memory, at most (4 GiB)
	Clients    int           // at a time (64)
	Workers    int           // goroutines that multiply (GOMAXPROCS)
	Idle       time.Duration // end when there has been no client for so long; 0: never
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

// SocketPath is where a user's device is: $TFMBS_SOCKET, or fabric.sock in $XDG_RUNTIME_DIR/tensorcast, or in /tmp/tensorcast-UID. The driver in C looks there.
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
	o        Options
	path     string
	listener *net.UnixListener
	lock     *os.File // of path.lock: one device for each socket
	store    *store
	holdings *holdings
	pool     *fabric.Pool
	counts   jobCounts
	begun    time.Time

	mu          sync.Mutex
	open        map[*net.UnixConn]struct{}
	clients     int // clients with a memory file
	clientsEver uint64
	conns       sync.WaitGroup
	idle        *time.Timer
}

// Listen makes a device with its socket at path. The socket's directory is made if it is missing; it must be this user's and nobody else's. If another device
// serves there, the error is ErrRunning. Close frees it all.
func Listen(path string, o Options) (_ *Device, err error) {
	d := &Device{o: o.withDefaults(), path: path, begun: time.Now(), open: map[*net.UnixConn]struct{}{}}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, fmt.Errorf("look at the socket's directory: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s must be a directory that belongs to this user and that nobody else can enter (mode 0700)", dir)
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
	if d.store, err = newStore(d.o.PoolBytes, d.o.HostBytes, d.o.Log); err != nil {
		return nil, err
	}
	d.holdings = newHoldings(d.store, uint64(d.o.PoolBytes), d.o.Workers)
	d.pool = fabric.NewPool(d.o.Workers)
	// The lock is ours: a socket there is left over.
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

// Close frees a device that does not serve.
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

// Serve serves clients until ctx ends, or nobody needs the device any more (Options.Idle): both are no errors. When it returns, all clients are gone.
func (d *Device) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var ahead sync.WaitGroup
	ahead.Go(func() { d.store.fetchAhead(ctx) })
	defer ahead.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = d.listener.Close() }) // Accept tells
	defer stop()
	d.mu.Lock()
	if d.o.Idle > 0 {
		d.idle = time.AfterFunc(d.o.Idle, func() {
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
			if ctx.Err() == nil && (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED)) {
				d.o.Log.Warn("a client could not connect", "err", err)
				time.Sleep(10 * time.Millisecond) // until somebody leaves
				continue
			}
			break
		}
		d.mu.Lock()
		if len(d.open) >= 2*d.o.Clients {
			d.mu.Unlock()
			_ = c.Close()
			continue
		}
		d.open[c] = struct{}{}
		d.mu.Unlock()
		d.conns.Go(func() {
			if err := d.serve(c); err != nil {
				d.o.Log.Warn("a client was dropped", "err", err)
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

// helloWait is how long a client has to say what it wants.
const helloWait = 5 * time.Second

// serve serves a connection until it hangs up.
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
			return errors.Join(sendAnswer(c, -int32(unix.EPERM), 0, -1), errors.New("root may ask, and say how much room there is, but is not the owner"))
		}
		return d.serveClient(c, u64(b[16:]), u32(b[24:]))
	}
	return sendAnswer(c, -int32(unix.EPROTO), 0, -1)
}

// permit refuses other users, but for root.
func (d *Device) checkPeer(c *net.UnixConn) (owner bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false, err
	}
	var cred *unix.Ucred
	var e error
	if err = raw.Control(func(fd uintptr) { cred, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err == nil {
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

// client serves a client until it hangs up.
func (d *Device) serveClient(c *net.UnixConn, arena uint64, entries uint32) error {
	if arena == 0 || arena > uint64(d.o.ArenaBytes) || entries < 2 || entries > maxEntries || entries&(entries-1) != 0 {
		return errors.Join(sendAnswer(c, statusInvalid, 0, -1), fmt.Errorf("a client wants %d bytes and rings of %d", arena, entries))
	}
	if !d.admitClient() {
		return errors.Join(sendAnswer(c, -int32(unix.EUSERS), 0, -1), fmt.Errorf("more than %d clients", d.o.Clients))
	}
	defer d.dismissClient()
	cl, err := newClient(arena, entries)
	if err != nil {
		return errors.Join(sendAnswer(c, statusNoMemory, 0, -1), err)
	}
	cl.executor.store, cl.executor.pool, cl.executor.workers, cl.executor.tokens, cl.counts = d.store, d.pool, d.o.Workers, &d.counts.tokens, &d.counts
	broke := make(chan error, 1)
	if err = sendAnswer(c, 0, len(cl.memory), cl.fd); err != nil {
		return errors.Join(err, cl.close())
	}
	_ = c.SetReadDeadline(time.Time{})
	go func() { // ended by cl.stop
		err := cl.run()
		if err != nil {
			_ = c.SetReadDeadline(time.Unix(1, 0)) // ends the read below
		}
		broke <- err
	}()
	var b [1]byte
	_, _ = c.Read(b[:]) // hangs up, or says what nobody asked for
	cl.stop()
	return errors.Join(<-broke, cl.close())
}

func (d *Device) admitClient() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.clients >= d.o.Clients {
		return false
	}
	d.clients++
	d.clientsEver++
	return true
}

func (d *Device) dismissClient() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.clients--; d.clients == 0 && d.idle != nil {
		d.idle.Reset(d.o.Idle)
	}
}

// ErrNotRunning says that no device serves the socket.
var ErrNotRunning = errors.New("no device is running there")

// Ask returns the status of the device at path. If there is none, the error is ErrNotRunning.
func Ask(ctx context.Context, path string) (s Status, err error) {
	b, err := exchangeHello(ctx, path, kindStatus, 0, nil)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("ask the device at %s: %w", path, err)
	}
	return s, nil
}

// GiveRoom tells the device at path how many bytes what it holds may take, see [Device.Room]. If there is none, the error is ErrNotRunning.
func GiveRoom(ctx context.Context, path string, bytes uint64) error {
	if err := sendNumber(ctx, path, kindRoom, bytes, nil); err != nil {
		return fmt.Errorf("tell the device at %s how much room it has: %w", path, err)
	}
	return nil
}

// Wish tells the device at path what to hold, see [Device.Wish]; of more than mostWishes the first ones. If there is none, the error is ErrNotRunning.
func Wish(ctx context.Context, path string, which []int) error {
	which = which[:min(len(which), maxWishes)]
	list := make([]byte, 0, 4*len(which))
	for _, i := range which {
		list = binary.NativeEndian.AppendUint32(list, uint32(i))
	}
	if err := sendNumber(ctx, path, kindWish, uint64(len(which)), list); err != nil {
		return fmt.Errorf("tell the device at %s what to hold: %w", path, err)
	}
	return nil
}

// tell sends a hello that is answered by one without an error.
func sendNumber(ctx context.Context, path string, kind uint32, number uint64, list []byte) error {
	b, err := exchangeHello(ctx, path, kind, number, list)
	if err == nil && (len(b) != helloBytes || binary.NativeEndian.Uint32(b[12:]) != 0) {
		err = errors.New("it does not know what that is")
	}
	return err
}

// call sends a hello with a number, and what follows it, and returns the packet that answers it.
func exchangeHello(ctx context.Context, path string, kind uint32, number uint64, list []byte) ([]byte, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", path)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
			err = ErrNotRunning
		}
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(helloWait))
	var hello [helloBytes]byte
	binary.NativeEndian.PutUint64(hello[0:], Magic)
	binary.NativeEndian.PutUint32(hello[8:], Version)
	binary.NativeEndian.PutUint32(hello[12:], kind)
	binary.NativeEndian.PutUint64(hello[16:], number)
	if _, err = c.Write(append(hello[:], list...)); err != nil {
		return nil, err
	}
	b := make([]byte, 64<<10)
	n, err := c.Read(b)
	return b[:n], err
}
