// Package serverload shows what clients of a llama-server notice of an observer that is attached
// and detached again and again. "lab serverload" runs it.
//
// As many clients as the server has slots request completions at temperature 0, without pause.
// Phases alternate: plain ones without an observer, and observed ones in which the observer comes
// and goes. Each request is made once in every phase, so each answer has a plain counterpart with
// which its tokens can be compared.
//
// Computing several requests in one batch rounds differently than computing one alone, and requests
// do not always meet in the same batches. Therefore answers may differ even between plain phases;
// equality is evidence only if they do not. The report shows both.
package serverload

// This file runs the phases.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"tensorcast/experiments/llamaserver"
	"tensorcast/internal/proc"
)

// Config says what to run.
type Config struct {
	Server   []string // llama-server and its flags, except --host, --port and --parallel
	Observer string   // a simple shell command that observes until SIGINT; {pid} is replaced by the server's process id
	Clients  int      // number of clients, and of the server's slots
	Requests int      // requests per client in a phase
	Tokens   int      // tokens per answer
	Rounds   int      // rounds of four phases: plain, observed, observed, plain
	On, Off  time.Duration

	// Progress, if not nil, is called for each answer. It may be called by several goroutines at the same time.
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

// run is the state of a measurement: a server and what its clients see.
type run struct {
	cfg     Config
	pid     int
	url     string
	client  *http.Client
	mu      sync.Mutex
	done    int
	report  *Report
	answers map[request][]int32 // tokens of the first plain phase's answers
}

type request struct{ client, number int }

// Measure runs all phases. It is an error if the server fails, if an answer is an error, or if the
// observer does not attach. If ctx ends, the report of the answers so far (nil if there are none)
// is returned with ctx's error.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	port, err := llamaserver.FreePort()
	if err != nil {
		return nil, err
	}
	args := append(append([]string{}, cfg.Server[1:]...), "--host", "127.0.0.1", "--port", strconv.Itoa(port),
		"--parallel", strconv.Itoa(cfg.Clients))
	server, err := proc.StartGroup(ctx, append([]string{cfg.Server[0]}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	defer server.Kill()
	// the server may close a connection at any time, and a POST is not retried
	transport := &http.Transport{DisableKeepAlives: true}
	r := &run{
		cfg: cfg, pid: server.PID, url: fmt.Sprintf("http://127.0.0.1:%d", port),
		client:  &http.Client{Transport: transport},
		report:  &Report{Server: cfg.Server, Observer: cfg.Observer, Clients: cfg.Clients},
		answers: map[request][]int32{},
	}
	err = r.runPhases(ctx, server)
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
	// The server must still end properly.
	if err := server.Stop(syscall.SIGTERM); err != nil {
		return nil, fmt.Errorf("the server: %w", err)
	}
	r.report.ExitStatus = server.State().ExitCode()
	return r.report, nil
}

func (r *run) runPhases(ctx context.Context, server *proc.Group) error {
	if err := r.awaitServer(ctx, server); err != nil {
		return err
	}
	if err := r.runPhase(ctx, &Phase{}, false); err != nil { // the first phase is the warm-up
		return err
	}
	for range r.cfg.Rounds {
		for _, observed := range []bool{false, true, true, false} {
			into := &r.report.Plain
			if observed {
				into = &r.report.Observed
			}
			if err := r.runPhase(ctx, into, observed); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitServer waits until the server has loaded its model.
func (r *run) awaitServer(ctx context.Context, server *proc.Group) error {
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

// runPhase makes every request once. In an observed phase the observer is attached at least once.
func (r *run) runPhase(ctx context.Context, into *Phase, observed bool) error {
	observing, stop := context.WithCancel(ctx)
	defer stop()
	var attached int
	var observerErr error
	var background sync.WaitGroup
	if observed {
		background.Go(func() { attached, observerErr = r.attachRepeatedly(ctx, observing) })
	}
	g, clients := errgroup.WithContext(ctx)
	for client := range r.cfg.Clients {
		g.Go(func() error {
			for number := range r.cfg.Requests {
				if err := r.request(clients, into, request{client, number}); err != nil {
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

// attachRepeatedly attaches and detaches the observer until the phase ends, and returns how often it was
// attached. The first time, the observer stays for its full time even if the phase ends sooner, so
// that one sees whether it observes at all.
func (r *run) attachRepeatedly(ctx, phase context.Context) (int, error) {
	for n := 0; ; n++ {
		enough := phase.Done()
		if n == 0 {
			enough = ctx.Done()
		}
		// The observer must not be killed when ctx ends; it is asked to end as usual.
		o, err := proc.StartGroup(context.WithoutCancel(ctx), "/bin/sh", "-c",
			"exec "+strings.ReplaceAll(r.cfg.Observer, "{pid}", strconv.Itoa(r.pid)))
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

// request makes one request and adds the result to into.
func (r *run) request(ctx context.Context, into *Phase, q request) error {
	a, err := r.requestCompletion(ctx, q)
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
	into.add(a, known && slices.Equal(a.tokens, twin), r.cfg.Tokens)
	r.done++
	if r.cfg.Progress != nil {
		r.cfg.Progress(r.done, r.cfg.Clients*r.cfg.Requests*(1+4*r.cfg.Rounds))
	}
	return nil
}
