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
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if isGone(err) {
		return errNobody
	} else if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // it ends what waits
	defer stop()
	answer, err := exchange(conn, req)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case isGone(err):
		return errNobody
	case err != nil:
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

// exchange sends a request and reads the answer, but for its body. A http.Client would hide why a connection was
// closed.
func exchange(conn net.Conn, req *http.Request) (*http.Response, error) {
	req.Close = true
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(io.LimitReader(conn, 2*maxAnswer)), req)
}

// isGone says whether an error is that of a prefetchd that has ended, before, while or after it was asked.
func isGone(err error) bool {
	for _, gone := range []error{
		syscall.ECONNREFUSED, fs.ErrNotExist, syscall.EPIPE, syscall.ECONNRESET, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}
