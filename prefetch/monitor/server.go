package monitor

// This file answers on a socket, and lists the prefetchds that do.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tensorcast/internal/outfile"
	"tensorcast/internal/sizes"
	"tensorcast/prefetch"
)

// Dir is the usual directory of the sockets of prefetchd.
const Dir = "/run/prefetchd"

const suffix = ".sock"

// socketName is the name of a target's socket.
func socketName(target int) string { return strconv.Itoa(target) + suffix }

// searchPrefix begins the name of the socket of a prefetchd that has no target. Its own process id follows.
const searchPrefix = "search-"

// timeout is how long a client may take to ask, and a server to answer.
const timeout = 5 * time.Second

// detailTime is how long somebody who has asked for a detail is taken to look at it, and how old one may be.
const detailTime = 5 * time.Second

// Server answers for one prefetchd. Its methods may be called concurrently.
type Server struct {
	path   string
	http   http.Server
	served sync.WaitGroup

	mu         sync.Mutex
	report     Report
	detailedAt time.Time // when the report's detail was told
	lookedAt   time.Time // when somebody asked for it last
}

// Controls are what may be changed at a target's socket. Each function must be safe for concurrent use.
type Controls struct {
	// Budget is called when somebody sets the cap of what is kept, in bytes; 0 ends the cap ([SetBudget]).
	Budget func(bytes int64)
	// Pause is called when somebody wants the target to be left alone, or to be helped again ([SetPaused]).
	Pause func(paused bool)
}

// Listen begins to answer at DIR/TARGET.sock. The directory is made if it is missing, and must be this user's
// alone. A socket that is there is replaced. A target has one helper (room.Claim), so the old socket is of a helper
// that was killed. The caller must call Close.
func Listen(dir string, target int, controls Controls, log *slog.Logger) (*Server, error) {
	return listenAt(dir, socketName(target), Report{
		Target: target, Status: prefetch.Status{Activity: prefetch.Waiting},
	}, &controls, log)
}

// ListenSearch begins to answer for this process, which has no target itself, as Listen does for a target.
func ListenSearch(dir string, search Search, log *slog.Logger) (*Server, error) {
	return listenAt(dir, searchPrefix+socketName(os.Getpid()), Report{
		Search: &search, Status: prefetch.Status{Activity: prefetch.Waiting},
	}, nil, log)
}

// listenAt begins to answer at a socket of this name. Without controls nothing can be changed.
func listenAt(dir, name string, report Report, controls *Controls, log *slog.Logger) (*Server, error) {
	d, err := outfile.OpenDir(dir, 0o700)
	if err != nil {
		return nil, fmt.Errorf("make a place to be asked at: %w", err)
	}
	defer d.Close()
	if err := lockDir(d, maxLockWait); err != nil {
		log.Debug("sockets of killed prefetchds are left", "why", err)
	} else if err := sweepLocked(d); err != nil {
		log.Debug("sockets of killed prefetchds are left", "why", err)
	}
	if err := d.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make a place to be asked at: %w", err)
	}
	report.PID, report.Began, report.Models = os.Getpid(), time.Now().Round(0), []string{}
	report.Status.Since = report.Began
	s := &Server{path: filepath.Join(dir, name), report: report}
	l, err := net.Listen("unix", s.path)
	if err != nil {
		return nil, fmt.Errorf("make a place to be asked at: %w", err)
	}
	if err := os.Chmod(s.path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("make a place to be asked at: %w", err), l.Close())
	}
	s.http = http.Server{
		Handler: s.handler(controls), ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: timeout, MaxHeaderBytes: 1 << 12,
	}
	s.http.SetKeepAlivesEnabled(false)
	s.served.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("prefetchd cannot be asked any more", "why", err)
		}
	})
	return s, nil
}

// handler answers the requests that the package's comment lists.
func (s *Server) handler(controls *Controls) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		report := s.currentReport()
		if report.Detail = nil; r.URL.Query().Has("detail") {
			report.Detail = s.currentDetail(time.Now())
		}
		_ = json.NewEncoder(w).Encode(report) // it fails if the client has gone
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_ = WriteMetrics(w, s.currentReport())
	})
	if controls == nil {
		return mux
	}
	mux.HandleFunc("PUT /budget", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(io.LimitReader(r.Body, 64))
		var bytes int64
		if err == nil {
			bytes, err = sizes.Parse(string(text))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		controls.Budget(bytes)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("DELETE /budget", func(w http.ResponseWriter, _ *http.Request) {
		controls.Budget(0)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("PUT /paused", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(io.LimitReader(r.Body, 64))
		paused, wrong := strconv.ParseBool(strings.TrimSpace(string(text)))
		if err != nil || wrong != nil {
			http.Error(w, "want true or false", http.StatusBadRequest)
			return
		}
		s.setPaused(paused)
		controls.Pause(paused)
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// setPaused has the server report that somebody wants the target to be left alone, or to be helped again.
func (s *Server) setPaused(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Paused = paused
}

// WantsDetail says whether somebody looks at the report's detail, and the one that was told is older than age.
func (s *Server) WantsDetail(now time.Time, age time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Sub(s.lookedAt) < detailTime && now.Sub(s.detailedAt) >= age
}

// SetDetail sets the detail that the server reports to those who ask for it. Nobody may change it any more.
func (s *Server) SetDetail(now time.Time, d *prefetch.Detail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Detail, s.detailedAt = d, now
}

// currentDetail is the detail for somebody who asks now; nil if there is none that is not too old.
func (s *Server) currentDetail(now time.Time) *prefetch.Detail {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lookedAt = now; now.Sub(s.detailedAt) > detailTime {
		s.report.Detail = nil // nobody has looked for a while
	}
	return s.report.Detail
}

// SetReport sets what the server reports from now on: Status, Models, IdleSince and Search. The rest is as it was in
// the beginning, is set by another method, or is found out when somebody asks.
func (s *Server) SetReport(r Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Status, s.report.IdleSince, s.report.Search = r.Status, r.IdleSince, r.Search
	if r.Models != nil { // in JSON [] instead of null
		s.report.Models = r.Models
	}
}

// currentReport is the report as of now.
func (s *Server) currentReport() Report {
	s.mu.Lock()
	r := s.report
	s.mu.Unlock()
	r.lookUp()
	return r
}

// Close ends the server, and removes the socket.
func (s *Server) Close() error {
	err := s.http.Close()
	s.served.Wait()
	return err
}

// askError says that a prefetchd could not be asked, though somebody is at its socket.
type askError struct {
	path string // of the socket
	err  error
}

func (e *askError) Error() string { return fmt.Sprintf("ask prefetchd at %s: %v", e.path, e.err) }
func (e *askError) Unwrap() error { return e.err }

// List asks all prefetchds whose sockets are in a directory, in the order of the sockets' names. The directory may
// be missing. Sockets at which nobody answers are left out, and those of killed prefetchds are removed, see
// [Sweep]. If some answer wrongly, List returns the reports of the others, and an error that wraps those of all
// that did.
func List(ctx context.Context, dir string) (all []Report, err error) {
	_ = Sweep(dir) // sockets that it could not remove are left out below
	return list(ctx, dir, func(string) bool { return true })
}

// ListOthers is List for a prefetchd that asks the others often, which help targets besides its own. It removes no
// sockets.
func ListOthers(ctx context.Context, dir string, target int) ([]Report, error) {
	own := socketName(target)
	return list(ctx, dir, func(name string) bool { return name != own && !strings.HasPrefix(name, searchPrefix) })
}

// list asks those whose sockets' names are wanted.
func list(ctx context.Context, dir string, wanted func(name string) bool) (all []Report, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(path string) bool { return !wanted(filepath.Base(path)) })
	if _, statErr := os.ReadDir(dir); statErr != nil && !errors.Is(statErr, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for prefetchd: %w", statErr)
	}
	for _, path := range names {
		r, askErr := askOne(ctx, path)
		switch {
		case errors.Is(askErr, errNobody):
		case askErr != nil:
			err = errors.Join(err, &askError{path, askErr})
		default:
			all = append(all, r)
		}
	}
	return all, err
}
