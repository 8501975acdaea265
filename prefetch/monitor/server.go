package monitor

// This file answers on a socket.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/outfile"
	"tensorcast/prefetch"
)

// Dir is where the sockets of prefetchd are, unless its caller says otherwise.
const Dir = "/run/prefetchd"

const suffix = ".sock"

// name is that of a target's socket.
func name(target int) string { return strconv.Itoa(target) + suffix }

// timeout is how long anybody may take to ask, or to be answered.
const timeout = 5 * time.Second

// Server answers for one target. Its methods may be called concurrently.
type Server struct {
	path   string
	http   http.Server
	served sync.WaitGroup

	mu     sync.Mutex
	report Report
}

// Listen answers from now on at DIR/TARGET.sock, in a directory that is made if it is missing, and that must be this
// user's alone. A socket that is there is replaced: a target has one helper (prefetch.Claim), so it is of one that
// was killed. Budget is called when somebody sets the cap of what is kept ([SetBudget]); it must be safe for
// concurrent use. The caller must call Close.
func Listen(dir string, target int, budget func(bytes int64), log *slog.Logger) (*Server, error) {
	d, err := outfile.OpenDir(dir, 0o700)
	if err != nil {
		return nil, fmt.Errorf("make a place to be asked at: %w", err)
	}
	defer d.Close()
	if err := lock(d, locking); err != nil {
		log.Debug("sockets of killed prefetchds are left", "why", err)
	} else if err := sweep(d); err != nil {
		log.Debug("sockets of killed prefetchds are left", "why", err)
	}
	if err := d.Remove(name(target)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make a place to be asked at: %w", err)
	}
	s := &Server{path: filepath.Join(dir, name(target)), report: Report{PID: os.Getpid(), Target: target, Began: time.Now().Round(0), Status: prefetch.Status{Activity: prefetch.Waiting}}}
	l, err := net.Listen("unix", s.path)
	if err != nil {
		return nil, fmt.Errorf("make a place to be asked at: %w", err)
	}
	if err := os.Chmod(s.path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("make a place to be asked at: %w", err), l.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.now()) // who asked has gone
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_ = WriteMetrics(w, s.now())
	})
	mux.HandleFunc("PUT /budget", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(io.LimitReader(r.Body, 64))
		bytes, wrong := humanize.ParseBytes(strings.TrimSpace(string(text)))
		if err != nil || wrong != nil || bytes == 0 || bytes > math.MaxInt64 {
			http.Error(w, "want a size such as 600MB or 2GiB", http.StatusBadRequest)
			return
		}
		budget(int64(bytes))
		w.WriteHeader(http.StatusNoContent)
	})
	s.http = http.Server{Handler: mux, ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: timeout, MaxHeaderBytes: 1 << 12, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	s.http.SetKeepAlivesEnabled(false)
	s.served.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("prefetchd cannot be asked any more", "why", err)
		}
	})
	return s, nil
}

// Tell takes what is being done now.
func (s *Server) Tell(now prefetch.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Status = now
}

func (s *Server) now() Report {
	s.mu.Lock()
	r := s.report
	s.mu.Unlock()
	r.fill()
	return r
}

// Close ends it, and removes the socket.
func (s *Server) Close() error {
	err := s.http.Close()
	s.served.Wait()
	return err
}

// List asks all prefetchds whose sockets are in a directory, in the order of their targets' ids. Sockets at which
// nobody answers are left out; the directory may be missing. An error of one that answers wrongly wraps those of the
// others. Sockets of those that were killed are removed: [Sweep].
func List(ctx context.Context, dir string) (all []Report, err error) {
	_ = Sweep(dir) // what is left is left out below
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return nil, err
	}
	if _, statErr := os.ReadDir(dir); statErr != nil && !errors.Is(statErr, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for prefetchd: %w", statErr)
	}
	for _, path := range names {
		r, askErr := ask(ctx, path)
		switch {
		case errors.Is(askErr, errNobody):
		case askErr != nil:
			err = errors.Join(err, fmt.Errorf("ask prefetchd at %s: %w", path, askErr))
		default:
			all = append(all, r)
		}
	}
	return all, err
}
