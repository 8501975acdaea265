// Package serverload shows what clients of a llama-server notice of an observer that attaches to it and detaches from it over and over.
//
// As many clients as the server has slots ask for completions at temperature 0, all the time. Phases alternate: in a plain one nobody
// observes, in an observed one the observer comes and goes. Each request is made once in every phase, so each answer has a plain twin, and its
// tokens must be the same.
//
// What is computed together in a batch rounds otherwise than what is computed alone, and requests do not meet in the same way twice. So
// answers may differ between plain phases, too; only where they do not, equality proves anything. The report says both.
package serverload

// This file runs the phases.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"tensorcast/internal/proc"
)

// Config says what is run.
type Config struct {
	Server   []string // llama-server and its flags, all but --host, --port and --parallel
	Observer string   // a simple shell command that observes until SIGINT; {pid} in it is the server's process id
	Clients  int      // and slots
	Requests int      // of each client in a phase
	Tokens   int      // of an answer
	Rounds   int      // of four phases: plain, observed, observed, plain
	On, Off  time.Duration

	// Progress, if not nil, is told of each answer. It may be called by several goroutines at once.
	Progress func(done, total int)
}

func (c *Config) check() error {
	switch {
	case len(c.Server) == 0:
		return errors.New("no server")
	case c.Observer == "":
		return errors.New("no observer")
	case c.Clients < 1 || c.Requests < 1 || c.Tokens < 1 || c.Rounds < 1:
		return errors.New("the numbers of clients, requests, tokens and rounds are 1 or more")
	case c.On <= 0 || c.Off < 0:
		return errors.New("an observer is on for some time, and off for no less than none")
	}
	return nil
}

// run is one server and what its clients see.
type run struct {
	cfg     Config
	pid     int
	url     string
	client  *http.Client
	mu      sync.Mutex
	done    int
	report  *Report
	answers map[request][]int32 // of the first plain phase
}

type request struct{ client, number int }

// Measure runs it all. That the server fails, that an answer is an error or that the observer does not attach is an error. If ctx ends, the report
// of the answers up to then (nil if there is none) comes with ctx's error.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args := append(append([]string{}, cfg.Server[1:]...), "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--parallel", strconv.Itoa(cfg.Clients))
	server, err := proc.StartGroup(ctx, append([]string{cfg.Server[0]}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	defer server.Kill()
	transport := &http.Transport{DisableKeepAlives: true} // the server closes a connection when it likes, and a POST is not repeated
	r := &run{
		cfg: cfg, pid: server.PID, url: fmt.Sprintf("http://127.0.0.1:%d", port), client: &http.Client{Transport: transport},
		report: &Report{Server: cfg.Server, Observer: cfg.Observer, Clients: cfg.Clients}, answers: map[request][]int32{},
	}
	err = r.all(ctx, server)
	if ctx.Err() != nil {
		if r.report.Plain.Answers+r.report.Observed.Answers == 0 {
			return nil, context.Cause(ctx)
		}
		r.report.Interrupted = true
		return r.report, context.Cause(ctx)
	}
	if server.Ended() {
		return nil, fmt.Errorf("the server ended: %s", server.LastLine())
	}
	if err != nil {
		return nil, err
	}
	// It must still end as it should.
	if err := server.Stop(syscall.SIGTERM); err != nil {
		return nil, fmt.Errorf("the server: %w", err)
	}
	r.report.ExitStatus = server.State().ExitCode()
	return r.report, nil
}

func (r *run) all(ctx context.Context, server *proc.Group) error {
	if err := r.ready(ctx, server); err != nil {
		return err
	}
	if err := r.phase(ctx, &Phase{}, false); err != nil { // the first one warms up
		return err
	}
	for range r.cfg.Rounds {
		for _, observed := range []bool{false, true, true, false} {
			into := &r.report.Plain
			if observed {
				into = &r.report.Observed
			}
			if err := r.phase(ctx, into, observed); err != nil {
				return err
			}
		}
	}
	return nil
}

// ready waits until the server has loaded its model.
func (r *run) ready(ctx context.Context, server *proc.Group) error {
	for !server.Ended() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/health", nil)
		if err != nil {
			return err
		}
		if resp, err := r.client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return errors.New("it was not ready")
}

// phase makes every request once. In an observed one the observer is on at least once.
func (r *run) phase(ctx context.Context, into *Phase, observed bool) error {
	observing, stop := context.WithCancel(ctx)
	defer stop()
	var attached int
	var observerErr error
	var background sync.WaitGroup
	if observed {
		background.Go(func() { attached, observerErr = r.comeAndGo(ctx, observing) })
	}
	g, clients := errgroup.WithContext(ctx)
	for client := range r.cfg.Clients {
		g.Go(func() error {
			for number := range r.cfg.Requests {
				if err := r.ask(clients, into, request{client, number}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	stop()
	background.Wait()
	r.report.Attached += attached
	return errors.Join(err, observerErr)
}

// comeAndGo attaches and detaches until the phase ends, and says how often it attached. The first time the observer stays as long as it should
// even if the phase is over sooner, so that it is seen whether it observes at all.
func (r *run) comeAndGo(ctx, phase context.Context) (int, error) {
	for n := 0; ; n++ {
		enough := phase.Done()
		if n == 0 {
			enough = ctx.Done()
		}
		// Without the end of ctx, which is not the observer's: it is told to end as always.
		o, err := proc.StartGroup(context.WithoutCancel(ctx), "/bin/sh", "-c", "exec "+strings.ReplaceAll(r.cfg.Observer, "{pid}", strconv.Itoa(r.pid)))
		if err != nil {
			return n, fmt.Errorf("start the observer: %w", err)
		}
		select {
		case <-o.Done:
			err = errors.New("it ended before it was told to: " + o.LastLine())
		case <-enough:
		case <-time.After(r.cfg.On):
		}
		if err == nil {
			err = o.Stop(syscall.SIGINT)
		}
		o.Kill()
		if err != nil {
			return n, fmt.Errorf("the observer: %w", err)
		}
		select {
		case <-phase.Done():
			return n + 1, nil
		case <-time.After(r.cfg.Off):
		}
	}
}

// ask makes one request and adds what became of it to into.
func (r *run) ask(ctx context.Context, into *Phase, q request) error {
	a, err := r.complete(ctx, q)
	if err != nil {
		return fmt.Errorf("request %d of client %d: %w", q.number, q.client, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	twin, known := r.answers[q]
	if !known && into == &r.report.Plain {
		r.answers[q] = a.tokens
		twin, known = a.tokens, true
	}
	into.add(a, known && equal(a.tokens, twin), r.cfg.Tokens)
	r.done++
	if r.cfg.Progress != nil {
		r.cfg.Progress(r.done, r.cfg.Clients*r.cfg.Requests*(1+4*r.cfg.Rounds))
	}
	return nil
}

// freePort is a port that nobody listens on now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}
