package monitor

// This file asks a prefetchd.

import (
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
)

// errNobody says that nobody answers at a socket: its prefetchd was killed, or has just ended.
var errNobody = errors.New("nobody answers")

// mostAnswer bounds an answer.
const mostAnswer = 1 << 20

// ask asks at one socket.
func ask(ctx context.Context, path string) (r Report, err error) {
	err = do(ctx, path, http.MethodGet, "/status", nil, func(body io.Reader) error {
		if err := json.NewDecoder(io.LimitReader(body, mostAnswer)).Decode(&r); err != nil {
			return fmt.Errorf("read its answer: %w", err)
		}
		return nil
	})
	return r, err
}

// SetBudget caps from now on how many bytes of the model the prefetchd of a target keeps in memory.
func SetBudget(ctx context.Context, dir string, target int, bytes int64) error {
	err := do(ctx, filepath.Join(dir, name(target)), http.MethodPut, "/budget", strings.NewReader(strconv.FormatInt(bytes, 10)), nil)
	if err != nil {
		return fmt.Errorf("tell the prefetchd of process %d its budget: %w", target, err)
	}
	return nil
}

// do makes a request at a socket, and reads the answer.
func do(ctx context.Context, path, method, what string, body io.Reader, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, "http://prefetchd"+what, body)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		return errNobody
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
