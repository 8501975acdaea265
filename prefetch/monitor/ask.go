package monitor

// This file asks a prefetchd.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errNobody says that nobody answers at a socket: its prefetchd was killed, or has just ended.
var errNobody = errors.New("nobody answers")

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 1 << 20

// askOne asks the prefetchd at one socket for its report.
func askOne(ctx context.Context, path string) (Report, error) { return askAt(ctx, path, "/status") }

// askAt asks it at a resource.
func askAt(ctx context.Context, path, resource string) (r Report, err error) {
	err = request(ctx, path, http.MethodGet, resource, nil, func(body io.Reader) error {
		if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&r); err != nil {
			return fmt.Errorf("read its answer: %w", err)
		}
		return nil
	})
	return r, err
}

// Ask asks the prefetchd of a target for its report.
func Ask(ctx context.Context, dir string, target int) (Report, error) {
	r, err := askOne(ctx, filepath.Join(dir, socketName(target)))
	if err != nil {
		return r, fmt.Errorf("ask the prefetchd of process %d: %w", target, err)
	}
	return r, nil
}

// SetBudget caps how many bytes of the model the prefetchd of a target keeps in memory from now on; 0 takes the cap
// away.
func SetBudget(ctx context.Context, dir string, target int, bytes int64) error {
	path, method, text := filepath.Join(dir, socketName(target)), http.MethodPut, strconv.FormatInt(bytes, 10)+"B"
	if bytes == 0 {
		method, text = http.MethodDelete, ""
	}
	err := request(ctx, path, method, "/budget", strings.NewReader(text), nil)
	if err != nil {
		return fmt.Errorf("tell the prefetchd of process %d its budget: %w", target, err)
	}
	return nil
}

// SetPaused has the prefetchd of a target leave it alone from now on, or help it again. That takes up to a second.
func SetPaused(ctx context.Context, dir string, target int, paused bool) error {
	path, text := filepath.Join(dir, socketName(target)), strconv.FormatBool(paused)
	err := request(ctx, path, http.MethodPut, "/paused", strings.NewReader(text), nil)
	if err != nil {
		return fmt.Errorf("tell the prefetchd of process %d to pause or resume: %w", target, err)
	}
	return nil
}

// request makes an HTTP request at a socket, and has read read the answer's body, if it is not nil. resource is the
// path in the URL.
func request(
	ctx context.Context, socket, method, resource string, body io.Reader, read func(io.Reader) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://prefetchd"+resource, body)
	if err != nil {
		return err
	}
	answer, err := exchange(ctx, socket, req)
	// A prefetchd that ends closes its socket before, while or after it is asked.
	for _, gone := range []error{
		syscall.ECONNREFUSED, fs.ErrNotExist, syscall.EPIPE, syscall.ECONNRESET, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, gone) {
			return errNobody
		}
	}
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("it says %s", answer.Status)
	}
	if read == nil {
		return nil
	}
	return read(answer.Body)
}

// exchange sends a request over a connection of its own and reads the answer, whose body is read until ctx is done at
// most. The caller closes the body, and with it the connection. A http.Client would hide why a connection was closed.
func exchange(ctx context.Context, socket string, req *http.Request) (*http.Response, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // it ends what waits
	release := func() error { stop(); return conn.Close() }
	req.Close = true
	err = req.Write(conn)
	var answer *http.Response
	if err == nil {
		answer, err = http.ReadResponse(bufio.NewReader(io.LimitReader(conn, 2*maxAnswer)), req)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, errors.Join(err, release())
	}
	answer.Body = &connectionBody{answer.Body, release}
	return answer, nil
}

// connectionBody is an answer's body that closes the connection, too.
type connectionBody struct {
	io.ReadCloser
	release func() error
}

func (b *connectionBody) Close() error { return errors.Join(b.ReadCloser.Close(), b.release()) }
