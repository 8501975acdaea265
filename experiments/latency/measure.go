package latency

// This file makes a run: a target in a group with a limit, a helper beside it, and the probes.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tensorcast/experiments/confine"
	"tensorcast/experiments/llama"
	"tensorcast/internal/cgroup"
	"tensorcast/internal/host"
	"tensorcast/internal/proc"
)

// Config says what to measure.
type Config struct {
	Model  string
	Target []string // the command line; it must print what llamarun --stream does
	Helper string   // a simple shell command; {pid} is replaced by the target's process id
	Limit  int64    // bytes of memory for both
	Skip   int      // tokens before the measurement
	// Progress, if not nil, is called with how many tokens were generated.
	Progress func(tokens int)
}

func (c *Config) check() error {
	switch {
	case c.Model == "":
		return errors.New("no model")
	case len(c.Target) == 0:
		return errors.New("no target command")
	case c.Helper == "":
		return errors.New("no helper: it is its latency that is measured")
	case c.Limit <= 0 || c.Skip < 1:
		return errors.New("a limit, and a token at least before it is measured, are needed")
	}
	return nil
}

// Measure makes a run. When ctx ends, or it fails, all processes that it has started are ended, and
// nothing is returned.
func Measure(ctx context.Context, cfg Config) (r *Report, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r = &Report{Started: time.Now(), Host: host.Read(), Model: cfg.Model, Target: cfg.Target, Helper: cfg.Helper,
		Limit: cfg.Limit, Skip: cfg.Skip}
	model, err := confine.Open(cfg.Model)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	if err := errors.Join(model.OnDisk(), model.Drop(ctx)); err != nil {
		return nil, err
	}
	id, err := proc.FileOf(cfg.Model)
	if err != nil {
		return nil, err
	}
	root, err := cgroup.Root()
	if err != nil {
		return nil, err
	}
	group, err := cgroup.Create(root, fmt.Sprintf("tensorcast-latency-%d", os.Getpid()))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, group.Remove()) }()
	if err := group.SetLimit(cfg.Limit); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t, err := startTarget(ctx, group, cfg.Target)
	if err != nil {
		return nil, err
	}
	defer t.end(cancel)
	h, err := proc.StartGroup(ctx,
		confine.In(group, nil, strings.ReplaceAll(cfg.Helper, "{pid}", strconv.Itoa(t.cmd.Process.Pid)))...)
	if err != nil {
		return nil, fmt.Errorf("start the helper: %w", err)
	}
	defer h.Kill()
	if err := r.follow(ctx, &cfg, t, h, id.Dev); err != nil {
		return nil, t.failure(err)
	}
	return r, h.Stop(syscall.SIGTERM)
}

// follow reads the target's tokens to its end. From Config.Skip on there are probes in it.
func (r *Report) follow(ctx context.Context, cfg *Config, t *target, h *proc.Group, dev uint64) (err error) {
	stream, err := llama.NewStream(t.stdout)
	if err != nil {
		return err
	}
	r.Threads = stream.Run.Threads
	var m *Meter
	defer func() {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	var first, last llama.Token
	for n := 1; ; n++ {
		token, err := stream.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if cfg.Progress != nil {
			cfg.Progress(n)
		}
		if h.Ended() {
			return fmt.Errorf("the helper ended: %s", h.LastLine())
		}
		if n == cfg.Skip {
			// The images are not read before: a program may load several builds of ggml, and keep
			// one.
			images, err := Images(t.cmd.Process.Pid)
			if err != nil {
				return err
			}
			if m, err = Attach(t.cmd.Process.Pid, h.PID, images, dev); err != nil {
				return err
			}
			first = token
		}
		last = token
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if m == nil || last.Token == first.Token {
		return fmt.Errorf("the target generated %d tokens: none is left after the first %d", last.Token+1, cfg.Skip)
	}
	r.Tokens = last.Token - first.Token
	if took := time.Duration(last.End - first.End); took > 0 {
		r.TokS = float64(r.Tokens) / took.Seconds()
	}
	seen, err := m.Read()
	if err != nil {
		return err
	}
	if seen.Choices == 0 {
		return errNoChoice
	}
	r.add(seen)
	return nil
}

// target is a running target.
type target struct {
	cmd    *exec.Cmd
	stdout io.ReadCloser
	stderr proc.Tail
}

func startTarget(ctx context.Context, group *cgroup.Group, args []string) (*target, error) {
	t := &target{cmd: proc.GroupCommand(ctx, confine.In(group, args, "")...)}
	t.cmd.Stderr = &t.stderr
	var err error
	if t.stdout, err = t.cmd.StdoutPipe(); err == nil {
		err = t.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the target: %w", err)
	}
	confine.AwaitJoined(ctx, t.cmd.Process.Pid)
	return t, nil
}

// end kills the target, and waits for its end.
func (t *target) end(cancel context.CancelFunc) {
	cancel()
	_, _ = io.Copy(io.Discard, t.stdout)
	_ = t.cmd.Wait() // that it was killed is expected
}

// failure adds the target's output to an error.
func (t *target) failure(err error) error {
	if said := t.stderr.LastLine(); said != "" {
		return fmt.Errorf("%w (the target: %s)", err, said)
	}
	return err
}
