package device

// This file asks and tells a running device by its socket.

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotRunning says that no device serves the socket.
var ErrNotRunning = errors.New("no device is running there")

// Ask returns the status of the device at path. The error wraps ErrNotRunning if there is none.
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

// GiveRoom tells the device at path how many bytes the tensors that it holds may take, see [Device.Room]. The
// error wraps ErrNotRunning if there is no device.
func GiveRoom(ctx context.Context, path string, bytes uint64) error {
	if err := sendNumber(ctx, path, kindRoom, bytes, nil); err != nil {
		return fmt.Errorf("tell the device at %s how much room it has: %w", path, err)
	}
	return nil
}

// Wish tells the device at path what to hold, see [Device.Wish]. Of more than maxWishes, the first ones are
// sent. The error wraps ErrNotRunning if there is no device.
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

// sendNumber sends a hello with a number and a list, and checks that the answer has no error.
func sendNumber(ctx context.Context, path string, kind uint32, number uint64, list []byte) error {
	b, err := exchangeHello(ctx, path, kind, number, list)
	if err == nil && (len(b) != helloBytes || binary.NativeEndian.Uint32(b[12:]) != 0) {
		err = errors.New("it does not know what that is")
	}
	return err
}

// exchangeHello sends a hello with a number, followed by a list, and returns the packet that answers it.
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
