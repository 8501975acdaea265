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
	"syscall"
)

// errNobody says that nobody answers at a socket: its prefetchd was killed, or has just ended.
var errNobody = errors.New("nobody answers")

// mostAnswer bounds an answer.
const mostAnswer = 1 << 20

// ask asks at one socket.
func ask(ctx context.Context, path string) (r Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://prefetchd/status", nil)
	if err != nil {
		return r, err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		return r, errNobody
	}
	if err != nil {
		return r, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return r, fmt.Errorf("it says %s", answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, mostAnswer)).Decode(&r); err != nil {
		return r, fmt.Errorf("read its answer: %w", err)
	}
	return r, nil
}
